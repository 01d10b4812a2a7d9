"""Identifiable VAE: Eq. 3 written out, the label's part in it, and what is refused."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import Normal as TorchNormal
from torch.distributions import kl_divergence

from guides import ConditionalGuide
from inference import (
    Loss,
    MeanField_ELBO,
    SVIRunner,
    data_dependent_start,
    elbo,
    mutual_information,
)
from inference.evaluation import log_importance_weights
from ppl_models import IVAE, MLP, ContinuousIVAE, ConvLadder, MLPLadder, Normal
from tests.draws_of import gauss_hermite
from tests.paper import linear, normal

K, D = 3, 2
X = torch.rand(7, 6, dtype=torch.float64)
U = torch.tensor([0, 2, 1, 1, 0, 2, 2])


def build(num_samples: int = 1) -> ConditionalGuide:
    model = IVAE((6,), K, D, Normal(0.4), MLPLadder((8, 9), rungs=[1]), scale=0.7)
    return ConditionalGuide(model, num_samples).double()


def eq_3(p: dict[str, Tensor], noise: Tensor, analytic: bool) -> Tensor:
    """Minus Eq. 3 for draws ``[L, B, d]`` of noise, in nats per datum, by the parameters' names."""
    known = torch.eye(K, dtype=X.dtype)[U]
    h = linear(p, "encoder.backbones.0.0.1", torch.cat([X, known], -1)).relu()
    h = linear(p, "encoder.backbones.0.1.0", h).relu()
    q = normal(linear(p, "encoder.rungs.0", h))
    prior = "model.facets.label"
    p_z = TorchNormal(
        p[f"{prior}.loc"][U], 1e-4 + torch.log1p(torch.exp(10 * p[f"{prior}.raw_scale"][U])) / 10
    )
    z = q.loc + q.scale * noise
    h = linear(p, "model.decoder.rungs.0.0", z).relu()
    h = linear(p, "model.decoder.backbones.0.0.0", h).relu()
    mean = linear(p, "model.decoder.backbones.0.1.0", h)
    log_likelihood = (
        TorchNormal(mean, torch.tensor(0.4, dtype=torch.float32).double())
        .log_prob(X)
        .sum(-1)
        .mean(0)
    )
    kl = kl_divergence(q, p_z) if analytic else (q.log_prob(z) - p_z.log_prob(z)).mean(0)
    return (kl.sum(-1) - log_likelihood).mean()


@pytest.mark.parametrize("analytic", [False, True])
@pytest.mark.parametrize("num_samples", [1, 3])
def test_equals_eq_3_draw_by_draw(num_samples: int, analytic: bool) -> None:
    guide = build(num_samples)
    parameters = dict(guide.named_parameters())
    objective = MeanField_ELBO(max_plate_nesting=guide.max_plate_nesting) if analytic else None
    pyro.set_rng_seed(1)
    z = poutine.trace(guide).get_trace(X, label=U).nodes["z_label"]["value"]
    q = guide.encode(X, label=U)["label"]
    noise = ((z - q.base_dist.loc) / q.base_dist.scale).detach().reshape(num_samples, 7, D)
    pyro.set_rng_seed(1)
    got, want = Loss(guide.model, guide, objective)(X, label=U), eq_3(parameters, noise, analytic)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=0)
    names = [name for name, value in parameters.items() if value.requires_grad]
    ours, theirs = (
        torch.autograd.grad(value, [parameters[name] for name in names]) for value in (got, want)
    )
    largest = max(gradient.abs().max() for gradient in theirs)
    for name, a, b in zip(names, ours, theirs, strict=True):
        assert (a - b).abs().max() <= 1e-10 * largest, name


@pytest.mark.parametrize("num_samples", [1, 3])
def test_a_continuous_label_gives_the_priors_mean_and_scale(num_samples: int) -> None:
    """Eq. 3 with p(z given u) from a network of u, draw by draw."""
    model = ContinuousIVAE((6,), 2, D, Normal(0.4), MLP((8,), dropout=0))
    guide = ConditionalGuide(model, num_samples).double()
    u = torch.randn(7, 2, dtype=torch.float64)
    pyro.set_rng_seed(3)
    with pyro.validation_enabled(False):
        loss = Loss(model, guide)(X, label=u)
    pyro.set_rng_seed(3)
    noise = torch.randn((num_samples, 7, D) if num_samples > 1 else (7, D), dtype=torch.float64)
    p = dict(guide.named_parameters())
    h = torch.nn.functional.leaky_relu(linear(p, "encoder.trunk.1.0", torch.cat([X, u], -1)), 0.1)
    q = normal(linear(p, "encoder.rungs.0", h))
    network = "model.facets.label.network"
    h = torch.nn.functional.leaky_relu(linear(p, f"{network}.0", u), 0.1)
    h = torch.nn.functional.leaky_relu(linear(p, f"{network}.2", h), 0.1)
    p_z = normal(linear(p, f"{network}.4", h))
    z = q.loc + q.scale * noise
    h = torch.nn.functional.leaky_relu(linear(p, "model.decoder.trunk.0.0", z), 0.1)
    mean = linear(p, "model.decoder.trunk.1", h)
    log_likelihood = (
        TorchNormal(mean, torch.tensor(0.4, dtype=torch.float32).double()).log_prob(X).sum(-1)
    )
    expected = ((q.log_prob(z) - p_z.log_prob(z)).sum(-1) - log_likelihood).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)


@pytest.mark.slow(2)
def test_it_learns_a_prior_for_each_label() -> None:
    """Three groups, told apart by their label alone: components move to where their data are."""
    rng = np.random.default_rng(0)
    label = rng.integers(K, size=600)
    x = (np.array([[0.0, 0], [3, 0], [0, 3]])[label] + 0.2 * rng.normal(size=(600, 2))).astype(
        np.float32
    )
    torch.manual_seed(0)
    guide = ConditionalGuide(IVAE((2,), K, D, Normal(0.2), MLPLadder((32,)), scale=0.5))
    before, before_error = elbo(guide.model, guide, x, 20, label=label)
    SVIRunner(guide.model, guide, lr=5e-3).fit(
        x, epochs=30, batch_size=60, progress=False, label=label
    )
    after, after_error = elbo(guide.model, guide, x, 20, label=label)
    assert after - before > 10 * np.hypot(before_error, after_error)
    z, loc = guide.embed(x, label=label)["label"], guide.model.priors["label"].loc.detach().numpy()
    apart = np.linalg.norm(loc[:, None] - loc, axis=-1)[~np.eye(K, dtype=bool)].min()
    for u in range(K):
        assert np.linalg.norm(z[label == u].mean(0) - loc[u]) < apart / 4
    # A wrong label costs: the model knows what belongs to which.
    wrong, _ = elbo(guide.model, guide, x, 20, label=(label + 1) % K)
    assert after - wrong > 1


def test_a_given_cluster_is_not_told_of_as_if_it_were_inferred() -> None:
    """The label goes into q(z given x, u): reading it from z would say nothing about x."""
    guide = build()
    assert guide.predict(X, label=U) == {}
    assert mutual_information(guide, X, label=U) == {}
    runner = SVIRunner(guide.model, guide, lr=1e-9).fit(X, epochs=1, progress=False, label=U)
    assert not {name for name in runner.history[-1] if name.startswith(("mutual", "kl_c"))}


@pytest.mark.parametrize("x_shape", [(6,), (2, 3), (1, 8, 8)])
def test_what_the_encoder_makes_of_x_depends_on_the_label(x_shape: tuple[int, ...]) -> None:
    network = ConvLadder((4,)) if len(x_shape) == 3 else MLPLadder((8,))
    guide = ConditionalGuide(IVAE(x_shape, K, D, Normal(0.4), network)).eval()
    x = torch.rand(20, *x_shape)
    one, other = (guide.embed(x, label=np.full(20, u))["label"] for u in (0, 1))
    assert (one - other).std(0).min() > 1e-4, "a constant would leave x and u apart"


@pytest.mark.parametrize("reads_label", [True, False])
def test_importance_weights_give_the_density_given_the_label(reads_label: bool) -> None:
    """The mean weight against p(x given u) by quadrature, within five standard errors."""
    pyro.set_rng_seed(0)
    network = MLP((5,), activation="tanh", dropout=0)
    model = IVAE((6,), 3, 1, Normal(0.7), network, scale=0.8).double()
    with torch.no_grad():
        model.priors["label"].loc.copy_(torch.tensor([[-0.5], [0.0], [0.5]]))
    guide = ConditionalGuide(model, reads_label=reads_label).double()
    x, u, draws = torch.rand(6, 6, dtype=torch.float64), torch.arange(6) % 3, 20_000
    weights = log_importance_weights(guide, x, draws, label=u).exp()
    nodes, node_weights = gauss_hermite(60, 1)
    prior = model.priors["label"].components().base_dist
    z = prior.loc[u] + prior.scale[u] * nodes.unsqueeze(1)  # [M, N, 1]
    evidence = node_weights @ model.decode({"label": z}).log_prob(x).exp()
    error = weights.std(0) / draws**0.5
    assert (error / evidence < 0.02).all()  # so that another label's prior would be found
    assert ((weights.mean(0) - evidence).abs() < 5 * error).all()
    with pytest.raises(ValueError, match="needs label="):
        log_importance_weights(guide, x, 3)


def test_a_start_from_data_takes_labels() -> None:
    guide = build()
    data_dependent_start(guide, X, label=U)
    head = guide.heads(X, label=U)["label"]
    torch.testing.assert_close(
        head.std(0), torch.ones(2 * D, dtype=torch.float64), atol=0.6, rtol=0
    )
