"""VLAC's Eq. 6 to 9 written out, without Pyro and without the library's code, against its guide and
objectives.

With the draws given the formula is met to 1e-10, value and gradient. Its expectation, by
enumeration of all clusters and quadrature over all latents, is met by enumeration, straight-through
and the score function: a bias of 0.01 nats would be found with probability 0.99. Soft Gumbel has a
bias, which is measured.
"""

from __future__ import annotations

import itertools
import math

import pyro
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn

from guides import GumbelSoftmax, LadderGuide, ScoreFunction
from guides.discrete import Discrete
from inference import Loss
from ppl_models import VLAC, MLPLadder
from tests.draws_of import SEED, assert_unbiased, gauss_hermite, loss_draws, worst_gradient_error
from tests.statistical.test_estimators import BATCH, draws_needed

pytestmark = pytest.mark.slow(15)

K = (2, 3)
Parameters = dict[str, Tensor]


def build(discrete: Discrete | None = None) -> LadderGuide:
    torch.manual_seed(4)
    model = VLAC((4,), K, (1, 1), network=MLPLadder((4, 5), activation="tanh"), scale=1.0)
    guide = LadderGuide(model, discrete=discrete).double()
    with torch.no_grad():
        for head in guide.encoder.rungs:
            head.bias[1] = 2 * math.log(0.4)
        for head in guide.classifier.rungs:
            nn.init.normal_(head.weight)  # clusters that are not all alike
        for shift in guide.encoder.shifts.values():
            nn.init.normal_(shift.weight)  # they start at 0, where z would not depend on y
    return guide


# The paper, by the parameters' names.


def linear(p: Parameters, name: str, h: Tensor) -> Tensor:
    out = h @ p[f"{name}.weight"].T
    return out + p[f"{name}.bias"] if f"{name}.bias" in p else out


def log_q_y(p: Parameters, x: Tensor) -> list[Tensor]:
    """log q(y_l given x), ``[B, K_l]``: a ladder of its own."""
    h1 = torch.tanh(linear(p, "classifier.backbones.0.1", x))
    h2 = torch.tanh(linear(p, "classifier.backbones.1.0", h1))
    return [
        torch.log_softmax(linear(p, f"classifier.rungs.{j}", h), -1) for j, h in enumerate((h1, h2))
    ]


def q_z(p: Parameters, x: Tensor, y: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Eq. 6 to 8: mean and deviation of z_1 given x, y_1 and of z_2 given x, y_1, y_2."""
    h1 = torch.tanh(linear(p, "encoder.backbones.0.1", x)) + linear(p, "encoder.shifts.0", y[0])
    h2 = torch.tanh(linear(p, "encoder.backbones.1.0", h1)) + linear(p, "encoder.shifts.1", y[1])
    heads = [linear(p, f"encoder.rungs.{j}", h) for j, h in enumerate((h1, h2))]
    return [(head[..., :1], torch.exp(5 * torch.tanh(head[..., 1:] / 10))) for head in heads]


def p_z(p: Parameters, layer: int, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of z_l given y_l."""
    name = f"model.facets.layer_{layer + 1}"
    scale = 1e-4 + torch.log1p(torch.exp(10 * p[f"{name}.raw_scale"])) / 10
    return y @ p[f"{name}.loc"], y @ scale


def log_p_x(p: Parameters, x: Tensor, z: list[Tensor]) -> Tensor:
    """Eq. 1 to 3 with a Bernoulli likelihood: ``[..., B]``."""
    rungs = [torch.tanh(linear(p, f"model.decoder.rungs.{j}.0", z_l)) for j, z_l in enumerate(z)]
    upper = torch.tanh(linear(p, "model.decoder.backbones.1.0", rungs[1]))
    rung = rungs[0].expand(*upper.shape[:-1], -1)
    logits = linear(p, "model.decoder.backbones.0.0", torch.cat([upper, rung], -1))
    return (x * logits - torch.nn.functional.softplus(logits)).sum(-1)


def kl_normal(q: tuple[Tensor, Tensor], p: tuple[Tensor, Tensor]) -> Tensor:
    ratio = (q[1] / p[1]) ** 2
    return 0.5 * (ratio + ((q[0] - p[0]) / p[1]) ** 2 - 1 - torch.log(ratio)).sum(-1)


def kl_y(p: Parameters, x: Tensor) -> Tensor:
    """The last sum of Eq. 9: ``[B]``."""
    return sum(
        (log_q.exp() * (log_q + math.log(log_q.shape[-1]))).sum(-1) for log_q in log_q_y(p, x)
    )


def exact_loss(p: Parameters, x: Tensor, num_nodes: int = 24) -> Tensor:
    """Minus Eq. 9, every expectation taken: nats per datum."""
    nodes, weights = gauss_hermite(num_nodes, 1)
    log_q = log_q_y(p, x)
    elbo = -kl_y(p, x)
    for k1, k2 in itertools.product(range(K[0]), range(K[1])):
        y = [torch.eye(K[0], dtype=x.dtype)[k1], torch.eye(K[1], dtype=x.dtype)[k2]]
        q = q_z(p, x, y)
        z1 = q[0][0] + q[0][1] * nodes[:, None, None]
        z2 = q[1][0] + q[1][1] * nodes[:, None]
        log_likelihood = torch.einsum(
            "i,j,ijb->b",
            weights,
            weights,
            log_p_x(p, x, [z1.expand(-1, num_nodes, -1, -1), z2.expand(num_nodes, -1, -1, -1)]),
        )
        kl_z = sum(kl_normal(q[j], p_z(p, j, y[j])) for j in range(2))
        elbo = elbo + torch.exp(log_q[0][:, k1] + log_q[1][:, k2]) * (log_likelihood - kl_z)
    return -elbo.mean()


# What the library gives.


def test_eq_9_with_relaxed_clusters_draw_by_draw() -> None:
    guide = build(GumbelSoftmax(0.5))
    parameters = dict(guide.named_parameters())
    pyro.set_rng_seed(1)
    sites = poutine.trace(guide).get_trace(BATCH).nodes
    pyro.set_rng_seed(1)
    got = Loss(guide.model, guide)(BATCH)
    relaxed = [
        _gumbel_softmax(seed_state=1, logits=log_q_y(parameters, BATCH))[j] for j in range(2)
    ]
    for j, y in enumerate(relaxed):
        torch.testing.assert_close(y, sites[f"c_layer_{j + 1}"]["value"], rtol=1e-12, atol=0)
    q = q_z(parameters, BATCH, relaxed)
    noise = [((sites[f"z_layer_{j + 1}"]["value"] - q[j][0]) / q[j][1]).detach() for j in range(2)]
    z = [q[j][0] + q[j][1] * noise[j] for j in range(2)]
    kl_z = sum(kl_normal(q[j], p_z(parameters, j, relaxed[j])) for j in range(2))
    want = (kl_z + kl_y(parameters, BATCH) - log_p_x(parameters, BATCH, z)).mean()
    names = [name for name, value in parameters.items() if value.requires_grad]
    ours, theirs = (
        torch.autograd.grad(v, [parameters[n] for n in names], retain_graph=True)
        for v in (got, want)
    )
    torch.testing.assert_close(got, want, rtol=1e-10, atol=0)
    scale = max(g.abs().max() for g in theirs)
    for name, a, b in zip(names, ours, theirs, strict=True):
        assert (a - b).abs().max() <= 1e-10 * scale, name


def _gumbel_softmax(
    seed_state: int, logits: list[Tensor], temperature: float = 0.5
) -> list[Tensor]:
    pyro.set_rng_seed(seed_state)
    noise = [-torch.log(-torch.log(torch.rand(each.shape, dtype=each.dtype))) for each in logits]
    return [
        torch.softmax((each + g) / temperature, -1) for each, g in zip(logits, noise, strict=True)
    ]


UNBIASED: dict[str, Discrete | None] = {
    "enumerated": None,
    "straight-through": GumbelSoftmax(0.5, hard=True),
    "score function": ScoreFunction("none"),
}


@pytest.mark.parametrize("name", UNBIASED)
def test_expected_loss_is_eq_9(name: str) -> None:
    guide = build(UNBIASED[name])
    loss = Loss(guide.model, guide)
    assert_unbiased(
        loss_draws(loss, BATCH, draws_needed(loss), SEED),
        exact_loss(dict(guide.named_parameters()), BATCH).item(),
    )


@pytest.mark.parametrize("name", ["enumerated", "score function"])
def test_expected_gradient_is_that_of_eq_9(name: str) -> None:
    """Every entry of the mean gradient within six of its standard errors of the exact one."""
    guide = build(ScoreFunction("none") if name == "score function" else None)
    exact = exact_loss(dict(guide.named_parameters()), BATCH)
    assert worst_gradient_error(Loss(guide.model, guide), BATCH, exact) < 6


@pytest.mark.parametrize("layer", [0, 1])
def test_reach_is_every_site_that_sees_a_cluster(layer: int) -> None:
    """For the same draws, the log-densities that change are those in the cluster's reach."""
    guide = build(ScoreFunction("none"))

    def log_densities(clusters: tuple[int, int]) -> dict[str, Tensor]:
        y = {
            f"c_layer_{j + 1}": torch.eye(K[j], dtype=BATCH.dtype)[[k] * len(BATCH)]
            for j, k in enumerate(clusters)
        }
        pyro.set_rng_seed(1)
        guide_trace = poutine.trace(poutine.condition(guide, data=y)).get_trace(BATCH)
        values = {name: guide_trace.nodes[name]["value"] for name in ("z_layer_1", "z_layer_2")}
        model_trace = poutine.trace(poutine.condition(guide.model, data=y | values)).get_trace(
            BATCH
        )
        for trace in (guide_trace, model_trace):
            trace.compute_log_prob()
        # A latent's value moves with the cluster, so both of its densities count.
        return {
            name: torch.stack(
                [
                    trace.nodes[name]["log_prob"]
                    for trace in (guide_trace, model_trace)
                    if name in trace.nodes
                ]
            )
            for name in (*values, "x")
        }

    before, after = log_densities((0, 0)), log_densities((1, 0) if layer == 0 else (0, 1))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(guide.downstream(f"layer_{layer + 1}"))


def test_soft_gumbels_bias_falls_with_the_temperature() -> None:
    """It is there, many standard errors wide, at 1, and less than a third of that at 0.1."""
    biases = {}
    for temperature in (1.0, 0.1):
        guide = build(GumbelSoftmax(temperature))
        draws = loss_draws(Loss(guide.model, guide), BATCH, 40_000, SEED)
        error = float(draws.std()) / math.sqrt(len(draws))
        biases[temperature] = (
            float(draws.mean()) - exact_loss(dict(guide.named_parameters()), BATCH).item(),
            error,
        )
    assert abs(biases[1.0][0]) > 10 * biases[1.0][1]
    assert abs(biases[0.1][0]) < abs(biases[1.0][0]) / 3
