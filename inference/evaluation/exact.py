"""Exact values of objectives, for models small enough for quadrature."""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.special import roots_hermitenorm
from torch import Tensor

from guides.amortized import AmortizedGuide
from guides.base import FacetGuide
from inference.objectives.loss import Loss
from ppl_models import Mixture
from ppl_models.base import FacetModel
from ppl_models.distributions import DiagonalNormal
from ppl_models.given.checks import MAX_SIZE, check_count
from ppl_models.given.observed import Observed, as_data
from ppl_models.program import site_scale

# Fewer nodes may change an exact loss by so much, relative to 1 nat or its size.
TOLERANCE = 1e-3


def _gauss_hermite(num_nodes: int, dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes ``[M, dim]`` and weights ``[M]`` for a standard normal, ``M = num_nodes ** dim``.

    :raises ValueError: if there are too many to sum over.
    """
    if dim * math.log(num_nodes) > math.log(MAX_SIZE):
        raise ValueError(f"{num_nodes} ** {dim} nodes are too many: at most {MAX_SIZE} in all")
    nodes, weights = (torch.as_tensor(each).to(like) for each in roots_hermitenorm(num_nodes))
    grid = torch.cartesian_prod(*[nodes] * dim).reshape(-1, dim)
    shares = torch.cartesian_prod(*[weights / weights.sum()] * dim).reshape(-1, dim)
    return grid, shares.log().sum(-1).exp()


def exact_objective(model: FacetModel, guide: FacetGuide, x: Tensor, num_nodes: int = 30) -> Tensor:
    """The expected loss of ``guide`` on ``x``, nats per datum, by quadrature over z and sums of c.

    For a guide that relaxes its clusters it is the loss with exact clusters (MFCVAE, Eq. 58 and
    89). The cost grows as ``num_nodes`` to the power of all latent dimensions together, and for
    responsibilities shared by L draws of L times a facet's: this is for tests on small models. The
    value can be differentiated. Use smooth activations (``"tanh"``, ``"elu"``), as quadrature
    converges slowly at the kinks of ReLU; so it does between narrow components: with scales of 0.3
    and a posterior of scale 1 it takes a hundred nodes, with the default 0.1 many hundreds.

    :param x: ``[B, *x_shape]`` in the model's dtype; use float64.
    :param num_nodes: a dimension. With three quarters of them the value must be the same to
        1e-3 of 1 nat or of its size.
    :raises ValueError: if the guide's facets depend on one another given x, as in ``LadderGuide``,
        or are points, as in ``PointGuide``; if the model takes more than x; if a facet's KL terms
        for z and c have different weights and its clusters follow from z, so that responsibilities
        are not the optimal q(c given x); or if the quadrature has not converged.

    Example:
        >>> import torch
        >>> from facetvae import GaussianMixture, SharedMLP, VaDE, VaDEGuide
        >>> from inference.evaluation import exact_objective
        >>> prior = GaussianMixture(2, 1, scale=1.0)
        >>> network = SharedMLP((8,), activation="tanh")
        >>> model = VaDE((6,), prior, network=network).double()
        >>> value = exact_objective(model, VaDEGuide(model).double(), torch.zeros(5, 6).double())
        >>> value.shape, value.requires_grad
        (torch.Size([]), True)
    """
    Loss(model, guide)  # refuses a guide of another model
    if model.takes or not guide.factorizes or guide.deterministic:
        raise ValueError(
            f"{type(guide).__name__}'s facets depend on one another given x, or on more than x, or "
            "are points without a density, and this value is for those of which nothing is so"
        )
    check_count("num_nodes", num_nodes, least=2)  # to tell convergence
    x = model.prepare(Observed(as_data(x, model))[:].x)
    heads = guide.heads(x)
    loss = _by_quadrature(model, guide, heads, x, num_nodes)
    fewer = num_nodes - max(num_nodes // 4, 1)
    with torch.no_grad():
        coarse = _by_quadrature(model, guide, heads, x, fewer)
    if not abs(loss.detach() - coarse) <= TOLERANCE * (1 + abs(loss.detach())):
        raise ValueError(
            f"the quadrature has not converged: the loss of {float(loss.detach()):.6g} nats per "
            f"datum with num_nodes={num_nodes} is {float(coarse):.6g} with {fewer}: take more "
            "nodes (narrow components need hundreds) and a smooth activation, or compare with "
            "draws of an estimator that is known to be right"
        )
    return loss


def _by_quadrature(
    model: FacetModel, guide: FacetGuide, heads: dict[str, Tensor], x: Tensor, num_nodes: int
) -> Tensor:
    """The loss of given heads, per datum."""
    loss = -_expected_log_likelihood(model, guide, heads, x, num_nodes)
    for name, head in heads.items():
        scales = torch.stack([site_scale(f"{letter}_{name}") * x.new_ones(()) for letter in "zc"])
        prior = guide.model.priors[name]
        if isinstance(prior, Mixture) and isinstance(guide, AmortizedGuide):
            kl = _kl_of_given_clusters(guide, prior, name, head, scales, num_nodes)
        else:
            own = scales if isinstance(prior, Mixture) else scales[:1].expand(2)
            kl = _kl_of_responsibilities(guide, name, head, own, num_nodes)
        loss = loss + kl.sum()
    return loss / len(x)


def _kl_of_responsibilities(
    guide: FacetGuide, name: str, head: Tensor, weights: Tensor, num_nodes: int
) -> Tensor:
    """One facet's KL if q(c given x) follows from the draws of z, or c is summed out: ``[B]``."""
    if weights[0] != weights[1]:
        raise ValueError(
            f"each facet's two KL weights must be equal, got {weights.tolist()} for {name!r}"
        )
    q, prior = guide.latent_posterior(name, head), guide.model.priors[name]
    # If clusters are summed out for each draw, one draw is enough.
    shares = isinstance(prior, Mixture) and not guide.options.get("marginal")
    draws = guide.num_samples if shares else 1
    nodes, node_weights = _gauss_hermite(num_nodes, draws * prior.dim, head)
    z = q.from_noise(nodes.view(-1, draws, 1, prior.dim).expand(-1, -1, *head.shape[:-1], -1))
    log_p = prior.log_joint(z).mean(1).logsumexp(-1)  # Eq. 58 at its optimal q(c given x)
    log_q = q.log_prob(z).mean(1)  # [M, L, B] -> [M, B]
    return weights[0] * (node_weights @ (log_q - log_p))


def _kl_of_given_clusters(
    guide: AmortizedGuide, prior: Mixture, name: str, head: Tensor, weights: Tensor, num_nodes: int
) -> Tensor:
    """One facet's KL if a network gives q(c given x): ``[B]``."""
    branch_probs, q = _branches(guide, name, head)
    nodes, node_weights = _gauss_hermite(num_nodes, prior.dim, head)
    z = _at(q, nodes)  # [M, R, B, d]
    log_weights = prior.component().log_probs
    given_each = prior.log_joint(z) - log_weights  # log p(z given c) of every cluster
    log_p_z = torch.einsum("m,mrbk->rbk", node_weights, given_each)
    q_c = guide.cluster_logits(name, head).softmax(-1)
    # Each branch of z belongs to one cluster, or a single branch to all.
    clusters = (
        torch.eye(prior.num_components, dtype=q_c.dtype, device=q_c.device).unsqueeze(1)
        if len(branch_probs) > 1
        else q_c
    )
    kl_z = (branch_probs * (-q.entropy() - (clusters * log_p_z).sum(-1))).sum(0)
    kl_c = (torch.special.xlogy(q_c, q_c) - q_c * log_weights).sum(-1)
    return weights[0] * kl_z + weights[1] * kl_c


def _branches(guide: FacetGuide, name: str, head: Tensor) -> tuple[Tensor, Any]:
    """q(z given x) as R transforms of noise: their probabilities ``[R, B]``, and distributions
    with batch ``[R, B]`` and event ``[d]``.
    """
    q = guide.latent_posterior(name, head)
    each = getattr(q, "component_distribution", None)
    if isinstance(q, torch.distributions.MixtureSameFamily) and isinstance(each, DiagonalNormal):
        loc, scale = (values.movedim(1, 0) for values in (each.base_dist.loc, each.base_dist.scale))
        return q.mixture_distribution.probs.mT, DiagonalNormal(loc, scale)
    return head.new_ones(1, len(head)), q.expand(torch.Size([1, *q.batch_shape]))


def _at(q: Any, nodes: Tensor) -> Tensor:
    """z at the nodes of noise ``[M, d]``: ``[M, *batch, d]``."""
    noise = nodes.view(-1, *[1] * len(q.batch_shape), nodes.shape[-1])
    return q.from_noise(noise.expand(-1, *q.batch_shape, -1))


def _expected_log_likelihood(
    model: FacetModel, guide: FacetGuide, heads: dict[str, Tensor], x: Tensor, num_nodes: int
) -> Tensor:
    """E log p(x given z), summed over the batch, on the grid of all facets' nodes."""
    z, known, weight = {}, {}, torch.ones((), dtype=x.dtype, device=x.device)
    for j, (name, head) in enumerate(heads.items()):
        probs, q = _branches(guide, name, head)
        if decoded := name in model.decoded_clusters:  # a branch for each cluster
            probs = guide.cluster_logits(name, head).softmax(-1).mT
            q = q.expand(torch.Size(probs.shape))
        nodes, node_weights = _gauss_hermite(num_nodes, q.event_shape[0], x)
        grid = _at(q, nodes).flatten(0, 1)  # [M R, B, d]
        axis = (1,) * j + (len(grid),) + (1,) * (len(heads) - 1 - j)
        z[name] = grid.view(*axis, *grid.shape[1:])
        if decoded:
            cluster = torch.arange(len(probs), device=x.device).repeat(len(nodes))
            known[f"c_{name}"] = cluster.view(*axis, 1)
        weight = weight * (node_weights[:, None, None] * probs).reshape(*axis, -1)
    return (weight * model.decode(z, **known).log_prob(x)).sum()
