"""Labels from the data themselves: a fixed random partition (*I Don't Need u*, appendix C)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from guides.base import EVALUATION_BATCH
from ppl_models.configurable import Configurable
from ppl_models.given.arrays import as_numbers
from ppl_models.given.checks import check_count, check_seed, check_shape


class RademacherHash(Configurable):
    r"""u as the orthant of random signs' projection: :math:`u(x) = \sum_i 2^i \, [(A x)_i > 0]`.

    Eq. C.1 to C.3. The posterior of u is one-hot and has no parameters, so a model with this u is
    an :class:`~ppl_models.ivae.IVAE` trained with these labels: ``runner.fit(x, epochs=10,
    label=hash_of(x))``.

    :param x_shape: shape of one sample.
    :param num_bits: N, which gives 2 ** N labels; 7 in the paper.
    :param seed: seed of A.
    :raises ValueError: if a size is below 1, or ``num_bits`` is above 24.

    Example:
        >>> import numpy as np
        >>> from guides import RademacherHash
        >>> hash_of = RademacherHash((784,), num_bits=7, seed=0)
        >>> hash_of.num_labels
        128
        >>> hash_of(np.random.default_rng(0).normal(size=(5, 784))).shape
        (5,)
    """

    def __init__(self, x_shape: Sequence[int], num_bits: int, seed: int = 0) -> None:
        self.x_shape = check_shape(x_shape)
        self.num_bits = check_count("num_bits", num_bits)
        if num_bits > 24:
            raise ValueError(f"num_bits={num_bits} gives {2**num_bits} labels: use 24 bits at most")
        self.seed = check_seed("seed", seed)
        signs = torch.Generator().manual_seed(self.seed)
        self.projection = (
            torch.randint(0, 2, (num_bits, prod(self.x_shape)), generator=signs).double() * 2 - 1
        )

    @property
    def num_labels(self) -> int:
        """2 ** N."""
        return 2**self.num_bits

    def __call__(self, x: ArrayLike | Tensor) -> np.ndarray:
        """Labels ``[N]`` of data ``[N, *x_shape]``.

        :raises ValueError: if the shape is wrong, or data are empty or not finite.
        """
        data = as_numbers(x)
        if tuple(data.shape[1:]) != self.x_shape:
            needed = ", ".join(map(str, ("N", *self.x_shape)))
            raise ValueError(
                f"x has shape {list(data.shape)}, but the hash was built for [{needed}]"
            )
        if not len(data) or not data.isfinite().all():
            raise ValueError(
                f"x is empty, or holds NaN or infinity (shape {list(data.shape)}): drop those rows"
            )
        powers = 2 ** torch.arange(self.num_bits)
        parts = [
            part.cpu().flatten(1).double() @ self.projection.T > 0
            for part in data.split(EVALUATION_BATCH)
        ]
        return torch.cat([(positive * powers).sum(1) for positive in parts]).numpy()

    def __repr__(self) -> str:
        return f"RademacherHash(x_shape={self.x_shape}, num_bits={self.num_bits}, seed={self.seed})"
