"""Refined posteriors: how near they come to known ones, and what they leave as it is."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn

from guides import (
    ConditionalGuide,
    Diagonal,
    FacetGuide,
    Family,
    FullCovariance,
    InverseAutoregressive,
    MarginalGuide,
    Refined,
    VaDEGuide,
)
from inference import data_dependent_start
from inference.evaluation import exact_objective
from ppl_models import (
    CVAE,
    IVAE,
    MFCVAE,
    ContinuousIVAE,
    GaussianMixture,
    MLPLadder,
    Normal,
    SharedMLP,
    StandardNormal,
    VaDE,
)
from ppl_models.distributions import raw_log_variance
from ppl_models.program import ScaleSites

DIM, SIZE, SCALE = 2, 4, 0.5
FAMILIES = [Diagonal(), FullCovariance(), InverseAutoregressive()]
named = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)


def linear(family: Family) -> tuple[FacetGuide, Tensor, Tensor]:
    """A guide of z ~ Normal(0, I), x ~ Normal(W z + b, scale): the guide, W
    and b.

    The decoder's only hidden layer is linear where it is used: its units never are below 0.
    """
    pyro.set_rng_seed(0)
    network = SharedMLP((8,))
    model = MFCVAE((SIZE,), {"z": StandardNormal(DIM)}, Normal(SCALE), network).double()
    guide = MarginalGuide(model, family=family).double()
    first, last = (each for each in model.decoder.modules() if isinstance(each, nn.Linear))
    with torch.no_grad():
        for layer in (first, last):
            layer.weight.abs_()  # so that both coordinates do much the same
        first.bias.fill_(50.0)
        last.bias.sub_(last.weight @ first.bias)
    W, b = last.weight @ first.weight, last.weight @ first.bias + last.bias
    return guide, W.detach(), b.detach()


def known_posterior(W: Tensor, b: Tensor, x: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Mean and precision of p(z) p(x given z)^(1 / weight), as a weight of the KL asks for."""
    precision = torch.eye(DIM, dtype=torch.float64) + W.T @ W / (SCALE**2 * weight)
    return torch.linalg.solve(precision, W.T @ (x - b).T / (SCALE**2 * weight)).T, precision


@pytest.mark.parametrize(
    ("family", "weight"), [(FAMILIES[0], 1.0), (FAMILIES[1], 0.4)], ids=["diagonal", "full"]
)
def test_an_untrained_encoder_is_led_to_the_known_posterior(family: Family, weight: float) -> None:
    """The best mean, and the best variances: those given the other coordinates for a diagonal
    Normal, and the whole covariance for a full one. Its points are correlated, by some percent.
    """
    refined = Refined(family, num_steps=300, rate=0.2, num_points=64)
    guide, W, b = linear(refined)
    x = torch.randn(5, SIZE, dtype=torch.float64)
    mean, precision = known_posterior(W, b, x, weight)
    with ScaleSites({"z_z": weight}):
        q = guide.posterior(x)["z"]
    covariance = precision.inverse()
    expected = 1 / precision.diagonal() if family is FAMILIES[0] else covariance.diagonal()
    assert ((q.mean - mean).abs() < 0.05 * expected.sqrt()).all()
    assert ((q.variance / expected).log().abs() < 0.1).all()
    if family is FAMILIES[1]:
        cosine = covariance[0, 1] / (covariance[0, 0] * covariance[1, 1]).sqrt()
        found = q.covariance_matrix
        found = found[:, 0, 1] / (found[:, 0, 0] * found[:, 1, 1]).sqrt()
        assert abs(cosine) > 0.1  # so that a diagonal Normal would fail
        assert ((found - cosine).abs() < 0.05).all()


@named
def test_every_step_is_worth_its_cost(family: Family) -> None:
    """The exact bound of an untrained encoder, without steps, with few and with more."""
    facets = {"a": GaussianMixture(2, 1, scale=0.6), "b": GaussianMixture(2, 1, scale=0.6)}
    x = torch.rand(6, SIZE, dtype=torch.float64)

    def loss(how: Family) -> float:
        pyro.set_rng_seed(1)
        model = MFCVAE((SIZE,), facets, Normal(0.3), MLPLadder((5, 6), activation="tanh"))
        guide = VaDEGuide(model, family=how).double()
        return float(exact_objective(guide.model, guide, x, num_nodes=48).detach())

    none, few, more = loss(family), loss(Refined(family, 3)), loss(Refined(family, 20))
    assert more < few < none
    assert none - more > 1.0


@pytest.mark.parametrize("dims", [(2,), (3, 3), (10, 10)])
@pytest.mark.parametrize("start", ["best diagonal", "diagonal", "full"])
def test_no_posterior_gets_worse(start: str, dims: tuple[int, ...]) -> None:
    """Of a linear model, one facet or two that explain the same entries, by the divergence from the
    known posterior; also at few points, and from the best member, which no step can improve.
    """
    pyro.set_rng_seed(0)
    d, size = sum(dims), 2 * sum(dims)
    W = torch.randn(size, d, dtype=torch.float64)
    W[:, d // 2 :] += W[:, : d - d // 2]
    precision = torch.eye(d, dtype=torch.float64) + W.T @ W
    x = torch.randn(8, size, dtype=torch.float64)
    best = torch.linalg.solve(precision, W.T @ x.T).T
    family = FullCovariance() if start == "full" else Diagonal()
    priors = {f"z{j}": StandardNormal(dim) for j, dim in enumerate(dims)}
    model = MFCVAE((size,), priors, Normal(1.0), SharedMLP((4,)))
    guide = VaDEGuide(model, family=family).double()
    model.decoder.output = lambda z, gates: torch.cat(list(z), -1) @ W.T
    if start == "best diagonal":
        raw = raw_log_variance(-precision.diagonal().log()).expand(8, -1)
        parts = zip(best.split(dims, 1), raw.split(dims, 1), strict=True)
        heads = [torch.cat(each, 1) for each in parts]
        guide.encoder.forward = lambda x: heads

    def divergence() -> Tensor:
        q = guide.posterior(x).values()
        off = torch.cat([each.mean for each in q], -1) - best
        every = [getattr(each, "covariance_matrix", each.variance.diag_embed()) for each in q]
        covariance = torch.stack([torch.block_diag(*each) for each in zip(*every, strict=True)])
        terms = (precision * covariance).sum((-1, -2)) + (off @ precision * off).sum(-1)
        return 0.5 * (terms - d - precision.logdet() - covariance.logdet())

    before = divergence()
    guide.family = Refined(family, num_steps=50, num_points=4)
    assert (divergence() <= before + 1e-6).all()
    assert (divergence() < before - 0.1).all() == (start != "best diagonal")


@named
def test_data_do_not_touch_each_other(family: Family) -> None:
    guide, _, _ = linear(Refined(family))
    x = torch.randn(5, SIZE, dtype=torch.float64)
    together = guide.embed(x)["z"]
    alone = [guide.embed(row[None])["z"][0] for row in x]
    np.testing.assert_allclose(together, alone, rtol=1e-6)


@pytest.mark.parametrize("label", [True, False])
def test_the_objectives_gradient_is_that_of_a_fixed_offset(label: bool) -> None:
    """By hand: the encoder's output plus a constant; draws the same."""
    pyro.set_rng_seed(0)
    x, u = torch.rand(7, SIZE), torch.arange(7) % 3
    given = {"label": u} if label else {}
    if label:
        guide: FacetGuide = ConditionalGuide(
            IVAE((SIZE,), 3, DIM, Normal(0.3), SharedMLP((8,))), family=Refined()
        )
    else:
        model = VaDE((SIZE,), GaussianMixture(3, DIM), Normal(0.3), SharedMLP((8,)))
        guide = VaDEGuide(model, family=Refined())
    name = next(iter(guide.model.priors))
    encoded = guide._prepared_heads(guide.model.seen(x), **given)[name]
    refined = guide.heads(x, **given)[name]
    offset = (refined - encoded).detach()
    assert (offset.abs() > 0.01).any()
    for parameter in guide.parameters():
        parameter.grad = None
    noise = torch.randn(7, DIM)
    q = guide.latent_posterior(name, refined)
    z = q.from_noise(noise)
    (guide.model.log_joint(x, {name: z}, **given) - q.log_prob(z)).sum().backward()
    found = {n: p.grad.clone() for n, p in guide.named_parameters() if p.grad is not None}
    guide.zero_grad()
    again = guide._prepared_heads(guide.model.seen(x), **given)[name] + offset
    q = guide.latent_posterior(name, again)
    z = q.from_noise(noise)
    (guide.model.log_joint(x, {name: z}, **given) - q.log_prob(z)).sum().backward()
    expected = {n: p.grad for n, p in guide.named_parameters() if p.grad is not None}
    torch.testing.assert_close(found, expected)


MODELS = {
    "MFCVAE": lambda: MFCVAE(
        (SIZE,), {"a": GaussianMixture(2, 2), "b": GaussianMixture(3, 1)}, Normal(0.3)
    ),
    "IVAE": lambda: IVAE((SIZE,), 3, DIM, Normal(0.3), SharedMLP((8,))),
    "ContinuousIVAE": lambda: ContinuousIVAE((SIZE,), 2, DIM, Normal(0.3), SharedMLP((8,))),
    "CVAE": lambda: CVAE((SIZE,), 3, DIM, Normal(0.3), SharedMLP((8,))),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_joint_density_is_that_of_the_program(name: str) -> None:
    """By Pyro's trace of the model, with clusters summed out by their own density."""
    pyro.set_rng_seed(0)
    model = MODELS[name]()
    x = torch.rand(5, SIZE)
    given = {"label": torch.arange(5) % 3} if name != "MFCVAE" else {}
    if name == "ContinuousIVAE":
        given = {"label": torch.randn(5, 2)}
    z = {facet: torch.randn(5, prior.dim) for facet, prior in model.priors.items()}
    options = {"marginal": True} if name == "MFCVAE" else {}
    values = {f"z_{facet}": value for facet, value in z.items()}
    scaled = ScaleSites(dict.fromkeys(values, 0.7))
    with scaled:
        trace = poutine.trace(poutine.condition(model, values)).get_trace(x, **given, **options)
    trace.compute_log_prob()
    sites = [*values, "x"]
    expected = sum(trace.nodes[site]["log_prob"] for site in sites)
    several = {facet: value.expand(3, -1, -1) for facet, value in z.items()}
    with scaled:
        of_one, of_three = (model.log_joint(x, each, **given) for each in (z, several))
    torch.testing.assert_close(of_one, expected)
    torch.testing.assert_close(of_three, expected.expand(3, -1), msg="of several draws")


def test_networks_are_started_as_without_steps() -> None:
    """The steps call the decoder, whose layers a start scales when they are called."""
    weights = []
    for family in (Diagonal(), Refined()):
        pyro.set_rng_seed(0)
        model = VaDE((SIZE,), GaussianMixture(3, DIM), Normal(0.3), SharedMLP((8,)))
        guide = VaDEGuide(model, family=family)
        data_dependent_start(guide, torch.rand(50, SIZE))
        weights.append(list(guide.parameters()))
    torch.testing.assert_close(*weights)
