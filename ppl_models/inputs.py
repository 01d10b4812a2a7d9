"""What a model is given beside x, one entry a sample."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Input"]


@dataclass(frozen=True)
class Input:
    """Something given beside x by a keyword, such as ``label``.

    :ivar required: whether the program needs it; else a guide may use it where it is given.
    :ivar decoded: whether the decoder reads it.

    Example:

    >>> from ppl_models import NVAE
    >>> NVAE((6,), num_classes=3, class_dim=2, shared_dim=2).inputs["label"]
    Input(required=True, decoded=True)
    """

    required: bool = True
    decoded: bool = False
