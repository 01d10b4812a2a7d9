"""The flow over a mixture: log p(x) by the change of variables, and what it is used for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch.distributions import Distribution

from guides import FlowGuide
from inference import GuideEnum_ELBO, Loss, MeanField_ELBO, SVIRunner, elbo
from ppl_models import AutoregressiveFlow, GaussianMixture, GMMFlow


def build(dim: int = 2, num_layers: int = 3) -> FlowGuide:
    torch.manual_seed(0)
    prior = GaussianMixture(4, dim, scale=0.8)
    guide = FlowGuide(
        GMMFlow((dim,), prior, AutoregressiveFlow((16,), num_layers=num_layers))
    ).double()
    for p in guide.model.flow.parameters():
        torch.nn.init.normal_(p, std=0.3)  # far from the identity that layers start near
    return guide


def log_density(guide: FlowGuide, x: torch.Tensor) -> torch.Tensor:
    """Eq. D.4 with the determinant of autograd's Jacobian, the mixture written out."""
    model = guide.model
    prior = model.prior("cluster")
    z = model.flow.invert(x)[0]
    jacobian = torch.stack(
        [
            torch.autograd.functional.jacobian(lambda v: model.flow.invert(v[None])[0][0], v)
            for v in x
        ]
    )
    components = torch.distributions.Normal(prior.loc, prior.scale)
    log_joint = components.log_prob(z[:, None]).sum(-1) + prior.logits.log_softmax(-1)
    return (log_joint.logsumexp(-1) + torch.linalg.slogdet(jacobian)[1]).detach()


@pytest.mark.parametrize("L", [1, 2])
@pytest.mark.parametrize(
    "objective", [GuideEnum_ELBO, MeanField_ELBO, Trace_ELBO, TraceMeanField_ELBO]
)
def test_every_objective_is_log_p_of_x(objective: type, L: int) -> None:
    """Also where KL divergences have a closed form: Pyro's, of a point, has no determinant."""
    guide = build(dim=4)
    guide.num_samples = L
    x = torch.randn(6, 4, dtype=torch.float64)
    loss = Loss(guide.model, guide, objective(max_plate_nesting=1 + (L > 1)))(x)
    assert -loss.item() == pytest.approx(float(log_density(guide, x).mean()), rel=1e-10)


def test_it_runs_backwards() -> None:
    guide = build()
    x = torch.randn(50, 2, dtype=torch.float64)
    np.testing.assert_allclose(guide.reconstruct(x), x, atol=1e-8)
    drawn = guide.model.generate(200, facet="cluster", cluster=2)
    assert (guide.predict(drawn)["cluster"] == 2).mean() > 0.5


@pytest.mark.thorough
@pytest.mark.slow(5)
def test_it_learns_a_bent_density_by_maximum_likelihood() -> None:
    """A banana; the entropy of the truth is what no density beats."""
    torch.manual_seed(1)
    s = torch.randn(4000, 2)
    x = torch.stack([s[:, 0], 0.5 * s[:, 1] + s[:, 0] ** 2], 1)
    entropy = math.log(2 * math.pi * math.e) + math.log(0.5)
    guide = FlowGuide(
        GMMFlow((2,), GaussianMixture(3, 2, scale=1.0), AutoregressiveFlow((32, 32), num_layers=3))
    )
    runner = SVIRunner(guide.model, guide, lr=3e-3).fit(
        x[:3000], epochs=60, batch_size=256, progress=False
    )
    held_out, _ = elbo(guide.model, guide, x[3000:], num_draws=2)
    error = float(np.std(_log_p(guide, x[3000:]))) / math.sqrt(1000)
    assert -entropy - 4 * error - 0.1 < held_out < -entropy + 4 * error
    assert runner.history[-1]["reconstruction"] == pytest.approx(0, abs=1e-4)


def _log_p(guide: FlowGuide, x: torch.Tensor) -> np.ndarray:
    posterior = guide.posterior(x)["cluster"]
    return (
        (guide.model.prior("cluster").log_prob(posterior.mean) - posterior.log_prob(posterior.mean))
        .detach()
        .numpy()
    )


def test_building_a_flow_leaves_the_checks_of_distributions_on() -> None:
    """zuko switches them off for the whole process where it is imported."""
    kept = Distribution._validate_args
    try:
        for on in (True, False):
            Distribution.set_default_validate_args(on)
            build()
            assert Distribution._validate_args is on
    finally:
        Distribution.set_default_validate_args(kept)
