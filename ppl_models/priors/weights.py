"""Weights of a mixture's components: learned, fixed, or under a prior that empties components."""

from __future__ import annotations

import torch
from torch import Tensor

from ppl_models.configurable import Configurable
from ppl_models.distributions import AveragedComponent, Component
from ppl_models.given.checks import check_count, check_one_of, check_positive


class MixtureWeights(Configurable):
    """How the weights of a mixture follow from its parameter ``logits``.

    :cvar learned: whether that parameter is trained.
    """

    learned = True

    def component(self, logits: Tensor) -> Component:
        """p(c), one-hot with event ``[K]``, from the mixture's parameter ``[K]``."""
        return Component(logits=logits)


class PlainWeights(MixtureWeights):
    """pi = softmax(logits): point estimates (``"learned"``), or fixed at 1 / K (``"uniform"``)."""

    def __init__(self, name: str) -> None:
        self.name = check_one_of("weights", name, ("learned", "uniform"))
        self.learned = name == "learned"

    def __repr__(self) -> str:
        return repr(self.name)


class DirichletWeights(MixtureWeights):
    r"""A Dirichlet prior on the weights, which empties the components that the data do not need.

    .. math:: \pi \sim \mathrm{Dirichlet}(\alpha, \ldots, \alpha), \quad
              q(\pi) = \mathrm{Dirichlet}(\alpha + N \, \mathrm{softmax}(\mathrm{logits}))

    This family of q contains the exact optimum given the responsibilities, where softmax(logits) is
    their mean. The weights are never drawn: :math:`\log \pi_k` is replaced by its mean under q, and
    each sample carries 1 / N of KL(q(pi), p(pi)). The bound is therefore exact in pi, and ``kl_c``
    in the history includes this share.

    As N grows, surplus components become empty if alpha is below half the number of a component's
    parameters (Rousseau and Mengersen, 2011); optimisation may stop earlier, with several that
    share a cluster. With a smaller N, a stronger prior, the objective is still a bound: a component
    is removed once its share of the data falls below about 2 / N.

    :param num_data: N: the number of training samples, or fewer for a stronger prior.
    :param concentration: alpha, positive.
    :raises ValueError: if a number is out of range.

    Example:
        >>> from ppl_models import DirichletWeights, GaussianMixture
        >>> prior = GaussianMixture(20, 5, weights=DirichletWeights(num_data=1000))
        >>> bool(prior.component().log_probs.exp().sum() < 1)
        True
    """

    def __init__(self, num_data: int, concentration: float = 0.01) -> None:
        self.num_data = check_count("num_data", num_data)
        check_positive("concentration", concentration)
        self.concentration = concentration

    def component(self, logits: Tensor) -> Component:
        prior = torch.full_like(logits, self.concentration)
        posterior = prior + self.num_data * logits.softmax(-1)
        p, q = (
            torch.distributions.Dirichlet(each, validate_args=False) for each in (prior, posterior)
        )
        mean_log_weights = posterior.digamma() - posterior.sum().digamma()
        kl = torch.distributions.kl_divergence(q, p)
        return AveragedComponent(mean_log_weights - kl / self.num_data)

    def __repr__(self) -> str:
        return f"DirichletWeights(num_data={self.num_data}, concentration={self.concentration})"


def mixture_weights(weights: str | MixtureWeights) -> MixtureWeights:
    """The :class:`MixtureWeights` that ``weights`` is or names."""
    return weights if isinstance(weights, MixtureWeights) else PlainWeights(weights)
