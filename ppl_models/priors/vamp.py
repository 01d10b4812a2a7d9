"""A mixture of posteriors (Tomczak and Welling, *VAE with a VampPrior*, 2018)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

import pyro.distributions as dist
import torch
from torch import Tensor, nn

from ppl_models.given.checks import check_shape, number
from ppl_models.priors.base import Data, DirichletWeights, Mixture


class VampPrior(Mixture):
    r"""Mixture of the guide's posteriors at learned pseudo-inputs (Tomczak and Welling, Eq. 9).

    .. math:: c \sim \mathrm{Cat}(\pi), \quad z \mid c \sim q(z \mid x = u_c)

    Such a prior belongs to the first guide that is built for its model. Pseudo-inputs start as
    uniform noise, which :func:`~inference.cold_start` and :func:`~inference.fit_mixtures` replace
    with data.

    :param num_components: K, at least 1.
    :param dim: d, length of the latent vector.
    :param x_shape: shape of one sample as the encoder reads it, ``model.features_shape``: the
        model's ``x_shape``, unless the likelihood gives the encoder other numbers.
    :param weights: ``"learned"``, ``"uniform"`` (the paper's) or ``DirichletWeights(...)``; see
        :class:`~ppl_models.priors.base.Mixture`.
    :param support: range that pseudo-inputs are clamped to, such as (0, 1) for images.

    Example:
        >>> import torch
        >>> from guides import VaDEGuide
        >>> from ppl_models import VaDE, VampPrior
        >>> prior = VampPrior(10, 5, x_shape=(784,), support=(0, 1))
        >>> guide = VaDEGuide(VaDE((784,), prior))
        >>> prior.log_joint(torch.zeros(3, 5)).shape
        torch.Size([3, 10])
    """

    uses_posterior = True

    def __init__(
        self,
        num_components: int,
        dim: int,
        x_shape: Sequence[int],
        weights: str | DirichletWeights = "learned",
        support: tuple[float, float] = (-inf, inf),
    ) -> None:
        super().__init__(num_components, dim, weights)
        self.pseudo_inputs = nn.Parameter(torch.rand(num_components, *check_shape(x_shape)))
        is_pair = isinstance(support, Sequence) and len(support) == 2
        low, high = map(number, support) if is_pair else (0.0, 0.0)
        if not low < high:
            raise ValueError(f"support is a range (low, high) with low < high, got {support!r}")
        self.support = (low, high)
        self._encode: Callable[[Tensor], dist.TorchDistribution] | None = None

    @property
    def loc(self) -> Tensor:  # type: ignore[override]
        return self.components().mean

    def bind(
        self, encode: Callable[[Tensor], dist.TorchDistribution], x_shape: tuple[int, ...]
    ) -> None:
        """Use this encoder for the components from now on.

        :raises ValueError: if it has another guide's encoder, or pseudo-inputs' shape differs.
        """
        own_shape = tuple(self.pseudo_inputs.shape[1:])
        if own_shape != x_shape:
            raise ValueError(
                f"this VampPrior was built for data of shape {own_shape}, but the encoder reads "
                f"{x_shape}: give VampPrior(..., x_shape={x_shape})"
            )
        if self._encode is not None:
            raise ValueError(
                "this VampPrior has another guide's posteriors: build a new model for a new guide"
            )
        self._encode = encode

    def components(self) -> dist.TorchDistribution:
        if self._encode is None:
            raise ValueError("a VampPrior needs a guide: build one first, such as VaDEGuide(model)")
        return self._encode(self.pseudo_inputs.clamp(*self.support))

    @torch.no_grad()
    def place(
        self,
        loc: Tensor,
        covariances: Tensor | None = None,
        weights: Tensor | None = None,
        data: Data | None = None,
    ) -> None:
        """Set each pseudo-input to the sample whose latent is nearest to the mean."""
        if data is not None:
            rows, z = data
            self.pseudo_inputs.copy_(rows[torch.cdist(loc.to(z), z).argmin(-1)])
        self.set_weights(weights)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, x_shape={tuple(self.pseudo_inputs.shape[1:])}"
