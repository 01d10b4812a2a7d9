"""Directions along which two gradients are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

# Beside the reference's own, of the whole gradient and of each parameter.
RANDOM = 4


@dataclass(frozen=True)
class Directions:
    """Unit vectors in the space of all parameters, chosen before the draws that are tested.

    :ivar names: one for each direction.
    :ivar vectors: ``[directions, entries]``.
    :ivar parameters: whose entries these are, in order.
    """

    names: tuple[str, ...]
    vectors: Tensor
    parameters: tuple[str, ...]

    @classmethod
    def of(cls, reference: Mapping[str, Tensor], seed: int) -> Directions:
        """The reference's direction, its part in each parameter, and some random ones."""
        flat = flattened(reference, reference)
        names, vectors = ["gradient along the reference's"], [flat]
        start = 0
        for name, gradient in reference.items():
            part = torch.zeros_like(flat)
            part[start : start + gradient.numel()] = flat[start : start + gradient.numel()]
            start += gradient.numel()
            if len(reference) > 1 and bool(part.any()):
                names.append(f"gradient of {name!r}")
                vectors.append(part)
        generator = Generator().manual_seed(seed)
        for k in range(RANDOM):
            names.append(f"gradient along random direction {k + 1}")
            vectors.append(torch.randn(len(flat), generator=generator, dtype=flat.dtype))
        table = torch.stack(vectors)
        norms = table.norm(dim=1, keepdim=True).clamp(min=1e-300)
        return cls(tuple(names), table / norms, tuple(reference))

    def project(self, gradient: Mapping[str, Tensor]) -> Tensor:
        """``[directions]``."""
        return self.vectors @ flattened(gradient, self.parameters)


def flattened(gradient: Mapping[str, Tensor], names: Mapping | tuple) -> Tensor:
    """Entries of the named parameters' gradients, in float64 on the CPU."""
    return torch.cat([gradient[name].detach().double().cpu().flatten() for name in names])
