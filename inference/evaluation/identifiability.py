"""Whether a mixture's latents can be identified by its components (*I Don't Need u*, Eq. 2)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from inference.randomness import seeded
from inference.run import Run
from ppl_models.given.checks import check_kind, number
from ppl_models.priors import GaussianMixture

# In float64, equal components give 1e15 and more, clearly different ones far less.
SINGULAR = 1e12


class IdentifiabilityWarning(UserWarning):
    """A mixture's components did not differ enough and were perturbed."""


def natural_parameters(prior: GaussianMixture) -> Tensor:
    r"""Every component's natural parameters :math:`(\mu / \sigma^2, -1 / (2 \sigma^2))`: ``[K, 2
    d]``, float64.

    :raises ValueError: if the covariance is not diagonal, which the theory assumes.

    Example:
        >>> from inference.evaluation.identifiability import natural_parameters
        >>> from ppl_models import GaussianMixture
        >>> natural_parameters(GaussianMixture(5, 2)).shape
        torch.Size([5, 4])
    """
    _check_mixture(prior)
    return prior.natural_parameters().detach()


def identifiability_matrix(prior: GaussianMixture) -> Tensor:
    r"""L: the natural parameters minus those of the first component, ``[2 d, K - 1]`` (Eq. 2).

    The paper takes 2 d + 1 components, so that L is square; here all components are used. Some 2 d
    + 1 of them give an invertible matrix if and only if the rows of this one are independent.

    Example:
        >>> from inference.evaluation.identifiability import identifiability_matrix
        >>> from ppl_models import GaussianMixture
        >>> identifiability_matrix(GaussianMixture(5, 2)).shape
        torch.Size([4, 4])
    """
    parameters = natural_parameters(prior)
    return (parameters[1:] - parameters[0]).T


def condition_number(prior: GaussianMixture) -> float:
    """Largest divided by smallest singular value of :func:`identifiability_matrix`; infinite if it
    is singular within rounding.

    With fewer than 2 d + 1 components it is infinite as well: the paper's matrix cannot be built
    then, and the theory does not say that latents are identifiable. The paper's image models are of
    this kind, and the paper finds them identified all the same.

    Example:
        >>> from inference.evaluation.identifiability import condition_number
        >>> from ppl_models import GaussianMixture
        >>> condition_number(GaussianMixture(4, 2))  # 2 d + 1 = 5 components are needed
        inf
    """
    matrix = identifiability_matrix(prior)
    if matrix.shape[1] < matrix.shape[0]:
        return float("inf")
    if torch.linalg.matrix_rank(matrix) < len(matrix):
        return float("inf")
    return float(torch.linalg.cond(matrix))


def coinciding_components(prior: GaussianMixture, tolerance: float = 1e-5) -> list[int]:
    """Indices of components that equal an earlier one, up to ``tolerance`` standard deviations.

    In a model that infers its clusters, gradient descent cannot separate two components with equal
    parameters and weights: their gradients are the same.

    :raises ValueError: if the covariance is not diagonal, or ``tolerance`` is negative.

    Example:
        >>> import torch
        >>> from inference.evaluation.identifiability import coinciding_components
        >>> from ppl_models import GaussianMixture
        >>> prior = GaussianMixture(3, 2)
        >>> prior.initialize(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]))
        >>> coinciding_components(prior)
        [2]
    """
    _check_mixture(prior)
    if not 0 <= number(tolerance) < float("inf"):
        raise ValueError(f"tolerance must be a number of at least 0, got {tolerance!r}")
    loc, scale = prior.loc.detach().double(), prior.scale.detach().double()
    apart = ((loc[:, None] - loc).abs() / scale).amax(-1) > tolerance
    apart |= (scale[:, None] / scale).log().abs().amax(-1) > tolerance
    return [k for k in range(1, prior.num_components) if not bool(apart[k, :k].all())]


def _check_mixture(prior: Any) -> None:
    """:raises ValueError: if it is none of diagonal covariance, which the theory assumes."""
    check_kind("prior", prior, GaussianMixture, "a GaussianMixture, such as model.mixtures[name]")
    if prior.covariance != "diag":
        raise ValueError(
            "identifiability is stated for mixtures of diagonal covariance, got covariance="
            f"{prior.covariance!r}: give one with covariance='diag'"
        )


def perturb_components(prior: GaussianMixture, which: list[int], noise: float, seed: int) -> None:
    """Add noise to the natural parameters of some components; ``noise`` is relative to their size.

    :raises ValueError: if the covariance is not diagonal.

    Example:
        >>> import torch
        >>> from inference.evaluation import coinciding_components, perturb_components
        >>> from ppl_models import GaussianMixture
        >>> prior = GaussianMixture(3, 2)
        >>> prior.initialize(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]))
        >>> perturb_components(prior, [2], noise=0.01, seed=0)
        >>> coinciding_components(prior)
        []
    """
    _check_mixture(prior)
    with seeded(seed, prior.loc.device):
        loc, variance = prior.loc.detach().clone(), prior.scale.detach().square()
        for k in which:
            variance[k] *= (noise * torch.randn_like(variance[k])).exp()
            loc[k] += noise * variance[k].sqrt() * torch.randn_like(loc[k])
    prior.initialize(loc, torch.diag_embed(variance))


class KeepIdentifiable:
    """Record each diagonal mixture's condition number as ``condition_NAME``, and keep L invertible.

    If L has become singular, or two components are equal, noise is added to natural parameters (of
    the components that equal others, or of all) with a warning, and the number of perturbed
    components is recorded as ``perturbed_NAME``. This is the paper's remedy (section 3), which the
    paper never had to use; :class:`~inference.Conditioned_ELBO` is that of its footnote. With fewer
    than 2 d + 1 components there is no L and no number, and only equal components are perturbed.

    :param noise: relative to the parameters' size.
    :raises ValueError: if ``noise`` is not positive.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> from guides import VaDEGuide
        >>> from inference import SVIRunner
        >>> from inference.evaluation.identifiability import KeepIdentifiable
        >>> from ppl_models import GaussianMixture, SharedMLP, VaDE
        >>> model = VaDE((6,), GaussianMixture(5, 2), network=SharedMLP((8,)))
        >>> generator = torch.Generator().manual_seed(0)
        >>> loc, variance = torch.rand(2, 5, 2, generator=generator)
        >>> model.mixtures["cluster"].initialize(loc, torch.diag_embed(0.5 + variance))
        >>> runner, x = SVIRunner(model, VaDEGuide(model)), np.random.default_rng(0).random((20, 6))
        >>> runner = runner.fit(x, epochs=2, progress=False, callbacks=[KeepIdentifiable()])
        >>> runner.history[-1]["condition_cluster"] > 1
        True
    """

    def __init__(self, noise: float = 0.01) -> None:
        if not 0 < number(noise) < float("inf"):
            raise ValueError(f"noise must be positive, got {noise!r}")
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
