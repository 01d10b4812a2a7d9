"""ML-VAE's estimators against quadrature: the mean over groups of Eq. 3, for both rules of evidence
and both draws.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal as TorchNormal

from guides import Evidence, GroupedGuide, MixtureOfNormals, ProductOfNormals
from inference import GuideEnum_ELBO, Loss
from ppl_models import MLP, MLVAE, Normal
from tests.draws_of import assert_unbiased, gradient_moments, loss_draws
from tests.statistical.test_estimators import SEED

pytestmark = pytest.mark.slow(10)

X = torch.rand(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GROUP = torch.tensor([0, 1, 1, 1, 2, 2, 0])
# Nodes and weights of expectations under a standard normal.
NODES, WEIGHTS = (torch.as_tensor(part) for part in np.polynomial.hermite_e.hermegauss(60))
WEIGHTS = WEIGHTS / WEIGHTS.sum()
LINE = torch.linspace(-12, 12, 4001, dtype=torch.float64)


def build(evidence: Evidence, content: str, num_samples: int = 1) -> GroupedGuide:
    torch.manual_seed(1)
    model = MLVAE((4,), 1, 1, Normal(0.7), MLP((5,), "tanh", dropout=0))
    guide = GroupedGuide(model, num_samples, evidence, content).double()
    for p in guide.parameters():
        torch.nn.init.normal_(p, std=0.6)
    return guide


def normal(head: Tensor) -> TorchNormal:
    return TorchNormal(head[:, 0], torch.exp(5 * torch.tanh(head[:, 1] / 10)))


def exact_loss(guide: GroupedGuide) -> Tensor:
    """Minus the mean over groups of Eq. 3 by their mean size, without the library's densities."""
    style, content = guide.encoder(X)
    q_style, q_member = normal(style), normal(content)
    standard = TorchNormal(torch.zeros((), dtype=X.dtype), 1.0)
    total = torch.zeros((), dtype=X.dtype)
    for g in range(3):
        members = (g == GROUP).nonzero()[:, 0]
        loc, scale = q_member.loc[members], q_member.scale[members]
        if isinstance(guide.evidence, ProductOfNormals):
            variance = 1 / (scale**-2).sum()
            loc, scale = (variance * (loc / scale**2).sum())[None], variance.sqrt()[None]
        c = loc[:, None] + scale[:, None] * NODES  # [components, nodes]
        density = (TorchNormal(loc[:, None], scale[:, None]).log_prob(LINE)).logsumexp(
            0
        ) - math.log(len(loc))
        kl = torch.trapezoid(density.exp() * (density - standard.log_prob(LINE)), LINE)
        for i in members:
            s = q_style.loc[i] + q_style.scale[i] * NODES
            grid = {
                "content": c[..., None, None].expand(-1, -1, len(NODES), 1),
                "style": s[:, None].expand(*c.shape, -1, 1),
            }
            mean = guide.model.decode(grid).base_dist.loc
            log_likelihood = TorchNormal(mean, 0.7).log_prob(X[i]).sum(-1)
            total = total + torch.einsum("kcs,c,s->k", log_likelihood, WEIGHTS, WEIGHTS).mean()
            total = total - torch.distributions.kl_divergence(
                TorchNormal(q_style.loc[i], q_style.scale[i]), standard
            )
        total = total - kl
    return -total / 3 / (7 / 3)


CASES = [
    pytest.param(rule, content, L, id=f"{rule!r}-{content}-{L}")
    for rule in (ProductOfNormals(), MixtureOfNormals())
    for content in ("member", "group")
    for L in (1, 2)
]


@pytest.mark.parametrize(("evidence", "content", "num_samples"), CASES)
def test_expected_loss_is_eq_5(evidence: Evidence, content: str, num_samples: int) -> None:
    """A bias of 0.05 nats would be found with probability 0.99."""
    guide = build(evidence, content, num_samples)
    loss = Loss(guide.model, guide, GuideEnum_ELBO(max_plate_nesting=guide.max_plate_nesting))
    exact = float(exact_loss(guide).detach())
    pilot = float(loss_draws(loss, X, 2000, SEED + 1, group=GROUP).std())
    draws = loss_draws(loss, X, int((7.5 * pilot / 0.05) ** 2) + 2000, SEED, group=GROUP)
    assert_unbiased(draws, exact, detectable=0.05)


@pytest.mark.parametrize("content", ["member", "group"])
@pytest.mark.parametrize("evidence", [ProductOfNormals(), MixtureOfNormals()], ids=repr)
def test_expected_gradient_is_that_of_eq_5(evidence: Evidence, content: str) -> None:
    """Every entry of the mean gradient within six of its standard errors of the exact one."""
    guide = build(evidence, content)
    moments = gradient_moments(Loss(guide.model, guide), X, 20_000, SEED, group=GROUP)
    parameters = dict(guide.named_parameters())
    names = [name.removeprefix("guide.") for name in moments.mean]
    exact = torch.autograd.grad(exact_loss(guide), [parameters[name] for name in names])
    for key, want in zip(moments.mean, exact, strict=True):
        error = (moments.variance[key] / moments.num_draws).sqrt()
        assert ((moments.mean[key] - want).abs() <= 6 * error + 1e-6).all(), key
