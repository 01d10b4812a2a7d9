"""Missing entries filled by what is there, as one normal with a few factors has it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ppl_models.configurable import Configurable


class FactorFill(Configurable, nn.Module):
    r"""Fills the missing entries of rows of numbers by their means given the others, under factor
    analysis (Rubin and Thayer, *EM algorithms for ML factor analysis*, 1982).

    .. math:: f \sim \mathcal{N}(0, I), \qquad x = \text{loc} + \text{weights}^\top f + \epsilon,
              \qquad \epsilon_d \sim \mathcal{N}(0, \text{noise}_d)

    :param weights: ``[k, D]``.
    :param loc: ``[D]``.
    :param noise: variances ``[D]``, above 0.
    :raises ValueError: if shapes do not fit, or a number is not finite or a variance not above 0.

    Example:
        >>> import torch
        >>> from ppl_models import FactorFill
        >>> fill = FactorFill(weights=[[1.0, 1.0]], loc=[0.0, 10.0], noise=[0.25, 0.25])
        >>> fill(torch.tensor([[1.0, float("nan")]]))
        tensor([[ 1.0000, 10.8000]])
    """

    weights: Tensor
    loc: Tensor
    noise: Tensor

    def __init__(self, weights: Any, loc: Any, noise: Any) -> None:
        super().__init__()
        for name, values in {"weights": weights, "loc": loc, "noise": noise}.items():
            own = torch.as_tensor(values, dtype=torch.get_default_dtype())
            self.register_buffer(name, own.detach().clone(), persistent=False)
        shapes = [tuple(own.shape) for own in self.buffers()]
        alike = len(shapes[0]) == 2 and shapes[1:] == [shapes[0][1:]] * 2
        finite = all(bool(own.isfinite().all()) for own in self.buffers())
        if not (alike and finite and (self.noise > 0).all()):
            raise ValueError(
                "weights [k, D], loc [D] and noise [D] must be finite, and noise above 0: got the "
                f"shapes {', '.join(map(str, shapes))}"
            )

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of the factors given the entries of ``x`` ``[..., D]`` that are there: their mean
        ``[..., k]`` and precision ``[..., k, k]``.
        """
        there, k = ~x.isnan(), len(self.weights)
        told = self.weights / self.noise
        pairs = (told.unsqueeze(1) * self.weights).flatten(0, 1)  # [k k, D]
        precision = (there.to(x.dtype) @ pairs.T).unflatten(-1, (k, k))
        precision = precision + torch.eye(k, dtype=x.dtype, device=x.device)
        left = torch.where(there, x - self.loc, 0.0) @ told.T
        mean = torch.linalg.solve_ex(precision, left.unsqueeze(-1))[0]  # reads no value
        return mean.squeeze(-1), precision

    def forward(self, x: Tensor) -> Tensor:
        """``x`` ``[..., D]``, NaN where missing, without missing entries."""
        mean, _ = self.posterior(x)
        return torch.where(x.isnan(), self.loc + mean @ self.weights, x)

    def draw(self, x: Tensor) -> Tensor:
        """The same with draws of what is missing."""
        mean, precision = self.posterior(x)
        root = torch.linalg.cholesky(precision).mT
        spread = torch.linalg.solve_triangular(
            root, torch.randn_like(mean).unsqueeze(-1), upper=True
        )
        drawn = self.loc + (mean + spread.squeeze(-1)) @ self.weights
        return torch.where(x.isnan(), drawn + torch.randn_like(x) * self.noise.sqrt(), x)

    def log_prob(self, x: Tensor) -> Tensor:
        """The log-density of what is there of ``x`` ``[..., D]``, in nats: ``[...]``."""
        mean, precision = self.posterior(x)
        left = x - self.loc
        each = left.square() / self.noise + (2 * torch.pi * self.noise).log()
        explained = (precision @ mean.unsqueeze(-1)).squeeze(-1).mul(mean).sum(-1)
        return (explained - each.nansum(-1) - precision.logdet()) / 2

    def extra_repr(self) -> str:
        return f"factors={len(self.weights)}, columns={len(self.loc)}"
