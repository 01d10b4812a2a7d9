"""Fitted guides as exported programs of PyTorch's, which need neither Pyro nor this library."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyro
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from guides import FacetGuide
from guides.base import check_guide
from guides.families import Family
from inference.checkpoints.atomic_files import write_atomically
from ppl_models.given.checks import check_one_of, check_path
from ppl_models.modes import evaluating

__all__ = ["Predictions", "export_predictions", "write_program"]

# Rows of the example that a program is traced with. A single one would be taken for a constant.
ROWS = 2
# What a program may compute in.
PRECISIONS = (torch.float32, torch.float64)


class Predictions(nn.Module):
    """What ``embed`` and ``predict_proba`` of a guide compute for a batch, as a module of tensors.

    ``forward`` maps x ``[B, *x_shape]``, and by keyword what the posterior is conditioned on, to
    ``{facet: {"mean": [B, d], "probabilities": [B, K]}}``; the second is missing where a facet has
    no clusters to infer.

    :param guide: a fitted guide, whose own parameters are used.
    :param clusters: for each facet to be given, the components to tell apart, in the order of their
        probabilities; by default all of all facets.
    :param encoding: maps a batch of the user's data to the model's form, if they are not in it.

    Example:
        >>> import torch
        >>> from facetvae import GaussianMixture, VaDE, VaDEGuide
        >>> from inference.export import Predictions
        >>> guide = VaDEGuide(VaDE((6,), GaussianMixture(4, 3)))
        >>> found = Predictions(guide, {"cluster": [2, 0]})(torch.zeros(5, 6))
        >>> found["cluster"]["mean"].shape, found["cluster"]["probabilities"].shape
        (torch.Size([5, 3]), torch.Size([5, 2]))
    """

    def __init__(
        self,
        guide: FacetGuide,
        clusters: Mapping[str, ArrayLike] | None = None,
        encoding: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.guide = guide
        self.encoding = nn.Identity() if encoding is None else encoding
        self.facets = list(guide.model.priors if clusters is None else clusters)
        for name, components in ({} if clusters is None else clusters).items():
            numbers = torch.as_tensor(components, dtype=torch.int64)
            self.register_buffer(f"components_{self.facets.index(name)}", numbers)

    def __repr__(self) -> str:
        # Without its parts, which may read tensors: some PyTorch asks while these have no values.
        return f"{type(self).__name__}({type(self.guide).__name__})"

    def forward(self, x: Tensor, **given: Tensor) -> dict[str, dict[str, Tensor]]:
        heads = self.guide.heads(self.encoding(x), **given)
        return {name: self._found(name, heads[name]) for name in self.facets}

    def _found(self, name: str, head: Tensor) -> dict[str, Tensor]:
        found = {"mean": self.guide.latent_posterior(name, head).mean}
        if name in self.guide.model.inferred:
            logits = self.guide.cluster_logits(name, head)
            ours = getattr(self, f"components_{self.facets.index(name)}", None)
            found["probabilities"] = (logits if ours is None else logits[..., ours]).softmax(-1)
        return found


def export_predictions(
    guide: FacetGuide,
    path: str | Path,
    x: ArrayLike | Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    **given: Any,
) -> None:
    """Write what ``embed`` and ``predict_proba`` compute as a program of PyTorch's
    (``torch.export``), which runs without Pyro and this library.

    ``torch.export.load(path).module()`` maps a batch of any size in the model's form, and after it
    what the posterior is conditioned on, to ``{facet: {"mean": [B, d], "probabilities": [B, K]}}``,
    as :class:`Predictions` does. It does not check its input as a guide does. The file holds what
    is read for this, so no decoder. As with a pickle, load only files that you trust.

    :param guide: a fitted guide, on any device; the program is for the CPU, and
        ``torch.export.passes.move_to_device_pass`` moves it.
    :param path: the file, which ends in ``.pt2``.
    :param x: some data, whose type the program's input has: 8-bit, or else ``dtype``.
    :param dtype: what the program computes in and returns: ``torch.float32`` or ``torch.float64``.
    :param given: some values of what the posterior is conditioned on, such as ``label=``.
    :raises ValueError: if the guide cannot be exported, or an argument does not fit.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from facetvae import GaussianMixture, VaDE, VaDEGuide, export_predictions
        >>> guide = VaDEGuide(VaDE((6,), GaussianMixture(4, 3)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_predictions(guide, f"{folder}/clusters.pt2", torch.zeros(2, 6))
        ...     program = torch.export.load(f"{folder}/clusters.pt2").module()
        >>> program(torch.zeros(5, 6))["cluster"]["probabilities"].shape
        torch.Size([5, 4])
    """
    check_guide(guide)
    _check_exportable(guide)
    data = guide.observed(x, given)
    examples = data[torch.arange(ROWS) % len(data)]
    ours = copy.deepcopy(guide).cpu().to(check_one_of("dtype", dtype, PRECISIONS))
    inputs = [examples.given[name].cpu() for name in guide.reads]
    write_program(
        Predictions(ours),
        path,
        examples.x.cpu() if examples.x.dtype == torch.uint8 else examples.x.cpu().to(dtype),
        *(each.to(dtype) if each.is_floating_point() else each for each in inputs),
    )


def write_program(
    module: Predictions, path: str | Path, *inputs: Tensor, about: Mapping[str, Any] | None = None
) -> None:
    """Write a module as a program.

    :param module: in the precision that it is to compute in, on the CPU.
    :param inputs: examples of x and of what its guide reads besides, two rows or more.
    :param about: what a reader of the file is to know, in JSON types, in its ``about.json``.
    :raises ValueError: if the module cannot be exported, or the path does not fit.
    """
    path = check_path("path", path)
    if path.suffix != ".pt2":
        raise ValueError(f"path must end in .pt2, as PyTorch's exported programs do, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"path is {path}, but there is no folder {path.parent}: create it first")
    file = io.BytesIO()
    with evaluating(module), pyro.validation_enabled(False), torch.no_grad():
        program = _traced(_Numbered(module, inputs), inputs)
        torch.export.save(program, file, extra_files={"about.json": json.dumps(about or {})})
    write_atomically(path, file.getvalue())


def _check_exportable(guide: FacetGuide) -> None:
    """:raises ValueError: if a posterior is no function of single rows that a program can have."""
    kind = type(guide).__name__
    if "group" in guide.reads:
        raise ValueError(
            f"{kind} cannot be exported: the content of a group is inferred from all of its rows, "
            "and a program maps each row by itself; save the run instead (SVIRunner.save)"
        )
    if type(guide.family).improved is not Family.improved:
        raise ValueError(
            f"{kind} cannot be exported with family={type(guide.family).__name__}(...), which "
            "takes steps along gradients for each row, and a program has no gradients: save the "
            "run instead (SVIRunner.save)"
        )


def _traced(module: nn.Module, inputs: Sequence[Tensor]) -> ExportedProgram:
    """:raises ValueError: if the module does what a program cannot."""
    rows = Dim("rows", min=1)
    try:
        shapes = {"inputs": tuple({0: rows} for _ in inputs)}
        return torch.export.export(module, tuple(inputs), dynamic_shapes=shapes)
    except Exception as error:  # of many kinds
        raise ValueError(
            "the guide cannot be exported: a part of its own does what differs with the values or "
            "the number of rows, such as an `if` on a tensor or a call of .item(); PyTorch says: "
            f"{str(error).strip().partition(chr(10))[0]}"
        ) from error


class _Reads(TorchFunctionMode):
    """Notes which tensors operations read."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [*args, *(kwargs or {}).values()]
        result = function(*args, **(kwargs or {}))
        if _tensors([result]):  # not a shape or a type
            self.seen |= {id(each) for each in _tensors(given)}
        return result


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    several = [each if isinstance(each, list | tuple) else [each] for each in values]
    return [each for few in several for each in few if isinstance(each, Tensor)]


class _Numbered(nn.Module):
    """A module with numbers for the names of its tensors, as names of facets need not be names in
    Python, and with the tensors alone that it reads.
    """

    def __init__(self, module: Predictions, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.inside = (module,)  # a tuple, so that its tensors are not this module's
        with _Reads() as reads:
            self._call({}, *inputs)
        tensors = chain(module.named_parameters(), module.named_buffers())
        read = {name: each for name, each in tensors if id(each) in reads.seen}
        self.names = list(read)
        for i, tensor in enumerate(read.values()):
            plain = tensor.detach().clone(memory_format=torch.contiguous_format)
            self.register_buffer(f"tensor_{i}", plain)

    def forward(self, *inputs: Tensor) -> dict[str, dict[str, Tensor]]:
        tensors = {name: getattr(self, f"tensor_{i}") for i, name in enumerate(self.names)}
        return self._call(tensors, *inputs)

    def _call(self, tensors: dict[str, Tensor], x: Tensor, *beside: Tensor) -> Any:
        (module,) = self.inside
        given = dict(zip(module.guide.reads, beside, strict=True))
        return functional_call(module, tensors, (x,), given)
