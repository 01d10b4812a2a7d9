"""The objective against the paper's formula: same draws, same value, same gradient, in float64.

The tolerance is 1e-10 relative. With the draws fixed there is no Monte-Carlo error, so what this
detects is any term that is missing, doubled or mis-weighted by more than that.
"""

from __future__ import annotations

import itertools
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO

from guides import MarginalGuide, VaDEGuide
from inference import GuideEnum_ELBO, Loss
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, StandardNormal
from ppl_models.distributions import Component
from ppl_models.program import ENUMERATE
from tests import paper

BATCH, PIXELS = 6, 11


def build(
    J: int, L: int, covariance: str = "diag", alpha: list[float] | None = None
) -> tuple[MFCVAE, VaDEGuide]:
    facets = {
        f"facet{j}": GaussianMixture(4 + j, 2 + j, covariance=covariance, scale=0.8)
        for j in range(J)
    }
    model = MFCVAE((PIXELS,), facets, network=MLPLadder([7 + j for j in range(J)]))
    for prior in model.priors.values():
        torch.nn.init.normal_(prior.logits)
        if covariance == "full":
            torch.nn.init.normal_(prior.lower)
    guide = VaDEGuide(model, num_samples=L).double()
    if alpha is not None:
        model.gates = torch.tensor(alpha, dtype=torch.float64)
    return model, guide


def as_gates(model: MFCVAE) -> torch.Tensor:
    """The weight of a facet's KL terms is its gate (Eq. 89)."""
    return model.gates.unsqueeze(-1).expand(-1, 2)


def drawn_noise(guide: VaDEGuide, x: torch.Tensor, seed: int) -> dict[str, torch.Tensor]:
    """The standard normal draws that the guide makes from this seed: ``{name: [L, B, d]}``."""
    pyro.set_rng_seed(seed)
    trace = poutine.trace(guide).get_trace(x)
    noise = {}
    for name, q in guide.encode(x).items():
        z = trace.nodes[f"z_{name}"]["value"]
        noise[name] = (
            ((z - q.base_dist.loc) / q.base_dist.scale)
            .reshape(guide.num_samples, BATCH, -1)
            .detach()
        )
    return noise


def value_and_gradient(
    loss: torch.Tensor, parameters: list[torch.Tensor]
) -> tuple[float, list[torch.Tensor]]:
    gradient = torch.autograd.grad(loss, parameters, allow_unused=True)
    return loss.item(), [
        torch.zeros_like(p) if g is None else g for g, p in zip(gradient, parameters, strict=True)
    ]


def assert_equal_to(got: tuple, want: tuple, tolerance: float = 1e-10) -> None:
    assert abs(got[0] - want[0]) <= tolerance * abs(want[0])
    scale = max(g.abs().max().item() for g in want[1])
    for ours, theirs in zip(got[1], want[1], strict=True):
        assert (ours - theirs).abs().max().item() <= tolerance * scale


CASES = [
    (J, L, covariance, alpha)
    for J, L, covariance, alpha in itertools.product(
        (1, 2, 3), (1, 5), ("diag", "full"), (0.0, 0.37, 1.0)
    )
]


@pytest.mark.parametrize(
    "checks", [True, False], ids=["checks on", "checks off"]
)  # the runner trains with them off
@pytest.mark.parametrize(("J", "L", "covariance", "alpha"), CASES)
def test_equals_eq_58_and_89(J: int, L: int, covariance: str, alpha: float, checks: bool) -> None:
    # The shallowest facet carries alpha, the others are in; with J = 1 that is the only one.
    weights = [alpha] + [1.0] * (J - 1)
    model, guide = build(J, L, covariance, weights)
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    noise = drawn_noise(guide, x, seed=3)
    parameters = dict(guide.named_parameters())
    want = paper.negative_objective(parameters, x, noise, list(model.priors), weights) / BATCH
    pyro.set_rng_seed(3)
    with pyro.validation_enabled(checks):
        got = Loss(model, guide)(x, kl_weights=as_gates(model))
    tensors = list(parameters.values())
    assert_equal_to(value_and_gradient(got, tensors), value_and_gradient(want, tensors))


class Chained(VaDEGuide):
    """Clusters that each depend on the one before: q(c_j given c_1 ... c_(j-1))."""

    def __init__(self, model: MFCVAE) -> None:
        super().__init__(model)
        sizes = [prior.num_components for prior in model.priors.values()]
        tables = [torch.randn(a, b) for a, b in itertools.pairwise([1, *sizes])]
        self.tables = torch.nn.ParameterList(tables)

    def forward(self, x: torch.Tensor, **options: Any) -> None:
        with self.model.plate(x, len(x)):
            logits = self.tables[0].expand(len(x), -1)
            for name, table in zip(self.model.priors, [*self.tables[1:], None], strict=True):
                c = pyro.sample(f"c_{name}", Component(logits=logits), infer=ENUMERATE)
                if table is not None:
                    logits = c @ table
            for name, q in self.encode(self.model.seen(x)).items():
                pyro.sample(f"z_{name}", q)


@pytest.mark.parametrize("checks", [True, False])
def test_clusters_may_depend_on_each_other_in_the_guide(checks: bool) -> None:
    """Each term counts by the joint probability of all clusters that its own depend on."""
    model, _ = build(J=3, L=1)
    guide = Chained(model).double()
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    results = []
    for objective in (GuideEnum_ELBO, TraceEnum_ELBO):
        loss = Loss(model, guide, objective(max_plate_nesting=1))
        pyro.set_rng_seed(5)
        with pyro.validation_enabled(checks):
            results.append(value_and_gradient(loss(x), list(loss.parameters())))
    assert_equal_to(*results)


@pytest.mark.parametrize(("J", "covariance"), [(1, "full"), (2, "diag")])
def test_marginal_form_equals_the_responsibilities_form(J: int, covariance: str) -> None:
    """Eq. 71 equals Eq. 62 at L = 1, with weights that differ between facets."""
    model, guide = build(J, 1, covariance, [0.3] + [1.0] * (J - 1))
    marginal = MarginalGuide(model).double()
    marginal.encoder = guide.encoder
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    results = []
    for form in (marginal, guide):
        pyro.set_rng_seed(4)
        results.append(value_and_gradient(Loss(model, form)(x), list(guide.parameters())))
    assert_equal_to(*results)


def test_marginal_form_equals_pyros_enumeration_in_the_model() -> None:
    model, _ = build(J=2, L=1)
    guide = MarginalGuide(model).double()
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    pyro.set_rng_seed(4)
    density = value_and_gradient(Loss(model, guide)(x) * BATCH, list(guide.parameters()))
    pyro.set_rng_seed(4)
    enumerated = TraceEnum_ELBO(max_plate_nesting=1)(model, guide)(x)
    assert_equal_to(value_and_gradient(enumerated, list(guide.parameters())), density)


def test_terms_add_up_to_the_elbo_and_match_the_paper() -> None:
    model, guide = build(J=2, L=3, alpha=[0.4, 1.0])
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    loss = Loss(model, guide)
    pyro.set_rng_seed(2)
    terms = loss.terms(x)
    assert set(terms) == {
        "elbo",
        "reconstruction",
        *(f"kl_{s}_facet{j}" for s in "zc" for j in (0, 1)),
    }
    kl = sum(value for name, value in terms.items() if name.startswith("kl_"))
    torch.testing.assert_close(terms["elbo"], terms["reconstruction"] - kl, rtol=1e-12, atol=0)
    noise = drawn_noise(guide, x, seed=2)
    parameters = dict(guide.named_parameters())
    gates, names = [0.4, 1.0], list(model.priors)

    def loss_at(*weights: float) -> torch.Tensor:
        # The decoder keeps its gates; only the terms' weights change.
        at_gates = paper.negative_objective(parameters, x, noise, names, gates)
        kl = paper.kl_terms(parameters, x, noise, names)
        return (
            at_gates
            + sum(
                (w - g) * (kl[f][0] + kl[f][1])
                for w, g, f in zip(weights, gates, names, strict=True)
            )
        ) / BATCH

    torch.testing.assert_close(terms["elbo"], -loss_at(1.0, 1.0), rtol=1e-10, atol=0)
    torch.testing.assert_close(terms["reconstruction"], -loss_at(0.0, 0.0), rtol=1e-10, atol=0)
    for name, (kl_z, kl_c) in paper.kl_terms(parameters, x, noise, names).items():
        torch.testing.assert_close(terms[f"kl_z_{name}"], kl_z / BATCH, rtol=1e-10, atol=0)
        torch.testing.assert_close(terms[f"kl_c_{name}"], kl_c / BATCH, rtol=1e-10, atol=0)


def test_a_facet_without_components_is_a_plain_vae_latent() -> None:
    model = MFCVAE((PIXELS,), {"z": StandardNormal(3)})
    guide = VaDEGuide(model).double()
    terms = Loss(model, guide).terms(torch.rand(BATCH, PIXELS, dtype=torch.float64))
    assert set(terms) == {"elbo", "reconstruction", "kl_z_z"}


def test_refuses_a_guide_site_that_is_neither_enumerated_nor_reparameterized() -> None:
    model, guide = build(J=1, L=1)

    sampling_guide = poutine.infer_config(guide, lambda site: {"enumerate": None})
    with pytest.raises(
        NotImplementedError, match="'c_facet0' is neither enumerated nor reparameterized"
    ):
        GuideEnum_ELBO(max_plate_nesting=1).differentiable_loss(
            model, sampling_guide, torch.rand(2, PIXELS, dtype=torch.float64)
        )


def test_of_a_facet_that_waits_only_the_backbones_are_trained() -> None:
    """D.3 has the gradients of its backbones at 0, too, but deeper facets are read through them."""
    model, guide = build(2, 1, alpha=[0.0, 1.0])
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    Loss(model, guide)(x, kl_weights=as_gates(model)).backward()

    def moved(*modules: torch.nn.Module) -> list[bool]:
        sizes = (p.grad.abs().max() for module in modules for p in module.parameters())
        return [bool(size > 0) for size in sizes]

    encoder, decoder = guide.encoder, model.decoder
    assert not any(moved(encoder.rungs[0], decoder.rungs[0], model.priors["facet0"]))
    assert all(moved(encoder.backbones[0], decoder.backbones[0]))
    assert all(moved(encoder.rungs[1], decoder.rungs[1]))
