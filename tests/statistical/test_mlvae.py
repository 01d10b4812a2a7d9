"""ML-VAE's estimators against quadrature: the mean over groups of Eq. 3, for both rules of evidence
and both draws.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal as TorchNormal

from guides import Evidence, GroupedGuide, MixtureOfNormals, ProductOfNormals
from inference import GuideEnum_ELBO, Loss
from ppl_models import MLP, MLVAE, Normal
from tests.draws_of import SEED, assert_unbiased, gauss_hermite, loss_draws, worst_gradient_error
from tests.paper import normal

pytestmark = pytest.mark.slow(10)

X = torch.rand(7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
GROUP = torch.tensor([0, 1, 1, 1, 2, 2, 0])
# Nodes and weights of expectations under a standard normal.
NODES, WEIGHTS = gauss_hermite(60, 1)
NODES = NODES[:, 0]
LINE = torch.linspace(-12, 12, 4001, dtype=torch.float64)


def build(evidence: Evidence, content: str, num_samples: int = 1) -> GroupedGuide:
    torch.manual_seed(1)
    model = MLVAE((4,), 1, 1, Normal(0.7), MLP((5,), "tanh", dropout=0))
    guide = GroupedGuide(model, num_samples, evidence, content).double()
    for p in guide.parameters():
        torch.nn.init.normal_(p, std=0.6)
    return guide


def exact_loss(guide: GroupedGuide) -> Tensor:
    """Minus the mean over groups of Eq. 3 by their mean size, without the library's densities."""
    each = map(normal, guide.encoder(X))
    q_style, q_member = (TorchNormal(q.loc[:, 0], q.scale[:, 0]) for q in each)
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
    loss = Loss(guide.model, guide)
    assert worst_gradient_error(loss, X, exact_loss(guide), 1e-7, group=GROUP) < 6
