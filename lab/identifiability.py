"""Whether a mixture's latents can be identified by its components (*I Don't Need u*, Eq. 2), and
the paper's remedy where they cannot.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from inference.randomness import seeded
from inference.run import Run
from ppl_models import GaussianMixture

# In float64, equal components give 1e15 and more, clearly different ones far less.
SINGULAR = 1e12


class IdentifiabilityWarning(UserWarning):
    """A mixture's components did not differ enough and were perturbed."""


def identifiability_matrix(prior: GaussianMixture) -> Tensor:
    r"""L: the natural parameters :math:`(\mu / \sigma^2, -1 / (2 \sigma^2))` of every component
    minus those of the first, ``[2 d, K - 1]``, float64 (Eq. 2).

    The paper takes 2 d + 1 components, so that L is square; here all components are used. Some 2 d
    + 1 of them give an invertible matrix if and only if the rows of this one are independent.
    """
    parameters = prior.natural_parameters().detach()
    return (parameters[1:] - parameters[0]).T


def condition_number(prior: GaussianMixture) -> float:
    """Largest divided by smallest singular value of :func:`identifiability_matrix`; infinite if it
    is singular within rounding.

    With fewer than 2 d + 1 components it is infinite as well: the paper's matrix cannot be built
    then, and the theory does not say that latents are identifiable. The paper's image models are of
    this kind, and the paper finds them identified all the same.
    """
    matrix = identifiability_matrix(prior)
    if matrix.shape[1] < len(matrix) or torch.linalg.matrix_rank(matrix) < len(matrix):
        return float("inf")
    return float(torch.linalg.cond(matrix))


def coinciding_components(prior: GaussianMixture, tolerance: float = 1e-5) -> list[int]:
    """Indices of components that equal an earlier one, up to ``tolerance`` standard deviations.

    In a model that infers its clusters, gradient descent cannot separate two components with equal
    parameters and weights: their gradients are the same.
    """
    loc, scale = prior.loc.detach().double(), prior.scale.detach().double()
    apart = ((loc[:, None] - loc).abs() / scale).amax(-1) > tolerance
    apart |= (scale[:, None] / scale).log().abs().amax(-1) > tolerance
    return [k for k in range(1, prior.num_components) if not bool(apart[k, :k].all())]


def perturb_components(prior: GaussianMixture, which: list[int], noise: float, seed: int) -> None:
    """Add noise to the natural parameters of some components; ``noise`` is relative to their
    size.
    """
    with torch.no_grad(), seeded(seed, prior.loc.device):
        loc, variance = prior.loc.detach().clone(), prior.scale.detach().square()
        for k in which:
            variance[k] *= (noise * torch.randn_like(variance[k])).exp()
            loc[k] += noise * variance[k].sqrt() * torch.randn_like(loc[k])
    prior.place(loc, torch.diag_embed(variance))


class KeepIdentifiable:
    """A callback that records each diagonal mixture's condition number as ``condition_NAME``, and
    keeps L invertible.

    If L has become singular, or two components are equal, noise is added to natural parameters (of
    the components that equal others, or of all) with a warning, and the number of perturbed
    components is recorded as ``perturbed_NAME``. This is the paper's remedy (section 3), which the
    paper never had to use. With fewer
    than 2 d + 1 components there is no L and no number, and only equal components are perturbed.

    :param noise: relative to the parameters' size.
    """

    def __init__(self, noise: float = 0.01) -> None:
        self.noise = noise

    def __call__(self, runner: Run, record: dict[str, Any]) -> None:
        for name, prior in runner.model.mixtures.items():
            if isinstance(prior, GaussianMixture) and prior.covariance == "diag":
                self._watch(runner, record, name, prior)

    def _watch(
        self, runner: Run, record: dict[str, Any], name: str, prior: GaussianMixture
    ) -> None:
        condition, which = condition_number(prior), coinciding_components(prior)
        if prior.num_components > 2 * prior.dim:
            record[f"condition_{name}"] = condition
            if not which and condition > SINGULAR:
                which = list(range(prior.num_components))
        if which:
            record[f"perturbed_{name}"] = len(which)
            perturb_components(prior, which, self.noise, seed=runner.step)
            warnings.warn(
                f"components of facet {name!r} did not differ enough at step {runner.step}, L's "
                f"condition number being {condition:.3g}: noise was added to the parameters of "
                f"{len(which)} of {prior.num_components}",
                IdentifiabilityWarning,
                stacklevel=2,
            )
