"""Layers that convolutional networks share."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import batch_norm

__all__ = ["BatchNorm", "Batched"]


class Batched(nn.Sequential):
    """Layers that expect a single batch axis, applied to any number of batch axes.

    :param event_dim: number of axes of one sample.
    """

    def __init__(self, event_dim: int, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.event_dim = event_dim

    def forward(self, h: Tensor) -> Tensor:
        batch = h.shape[: -self.event_dim]
        out = super().forward(h.reshape(-1, *h.shape[-self.event_dim :]))
        return out.reshape(*batch, *out.shape[1:])


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of vectors ``[B, C]`` or images ``[B, C, H, W]`` that also allows a
    single value per channel.
    """

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept both vectors and images."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or x.numel() > x.shape[1]:
            return super().forward(x)
        # The variance of one value is undefined: use the running statistics.
        return batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )
