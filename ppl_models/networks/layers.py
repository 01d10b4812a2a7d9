"""Layers that convolutional networks share."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import batch_norm

__all__ = ["BatchNorm", "Batched"]


class Batched(nn.Sequential):
    """Layers that know a single batch axis, under any number of them.

    :param event_dim: axes of one datum.
    """

    def __init__(self, event_dim: int, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.event_dim = event_dim

    def forward(self, h: Tensor) -> Tensor:
        batch = h.shape[: -self.event_dim]
        out = super().forward(h.reshape(-1, *h.shape[-self.event_dim :]))
        return out.reshape(*batch, *out.shape[1:])


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation of vectors ``[B, C]`` or images ``[B, C, H, W]``, which also bears a
    batch of one value.
    """

    def _check_input_dim(self, x: Tensor) -> None:
        """Both are taken."""

    def forward(self, x: Tensor) -> Tensor:
        if x.numel() > x.shape[1]:
            return super().forward(x)
        # The variance of one value is undefined; what earlier batches had stands in.
        return batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )
