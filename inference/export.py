"""Fitted guides as programs that need neither Pyro nor this library: PyTorch's exported programs
and ONNX.
"""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyro
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._python_dispatch import TorchDispatchMode

from guides import FacetGuide
from guides.base import check_guide
from inference.checkpoints.atomic_files import write_together
from ppl_models.checks import check_kind, check_one_of
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
    :param encoding: maps a batch of the user's data to the model's form; by default the batch is in
        that form.

    Example:
        >>> import torch
        >>> from guides import VaDEGuide
        >>> from inference.export import Predictions
        >>> from ppl_models import GaussianMixture, VaDE
        >>> guide = VaDEGuide(VaDE((6,), GaussianMixture(4, 3)))
        >>> found = Predictions(guide, {"cluster": [2, 0]})(torch.zeros(5, 6))
        >>> found["cluster"]["mean"].shape, found["cluster"]["probabilities"].shape
        (torch.Size([5, 3]), torch.Size([5, 2]))
    """

    def __init__(
        self,
        guide: FacetGuide,
        clusters: Mapping[str, Sequence[int]] | None = None,
        encoding: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.guide = guide
        self.encoding = nn.Identity() if encoding is None else encoding
        self.facets = list(guide.model.priors if clusters is None else clusters)
        for name, components in ({} if clusters is None else clusters).items():
            self.register_buffer(f"components_{self.facets.index(name)}", _numbers(components))

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
    """Write what ``embed`` and ``predict_proba`` compute as a program that PyTorch, or a runtime
    for ONNX, runs without Pyro and this library.

    The program maps a batch of any size, in the model's form, to a dictionary ``{facet: {"mean":
    [B, d], "probabilities": [B, K]}}`` (in ONNX to outputs named ``FACET.mean`` and
    ``FACET.probabilities``). It does not check its input as a guide does. Of the model only what
    this takes is written, which leaves out the decoder.

    Load it by ``torch.export.load(path).module()``.

    :param guide: a fitted guide, on any device; the program is for the CPU.
    :param path: the file; its ending, ``.pt2`` (PyTorch) or ``.onnx``, says which kind. The latter
        needs the extra ``onnx``.
    :param x: some data, whose type the program's input has: 8-bit, or else ``dtype``.
    :param dtype: what the program computes in and returns: ``torch.float32`` or ``torch.float64``.
    :param given: some values of what the posterior is conditioned on, such as ``label=``.
    :raises ValueError: if the guide cannot be exported, an argument does not fit, or the path has
        another ending or lies in no folder.
    :raises ImportError: if a package for ONNX is not installed.

    Example:
        >>> import tempfile
        >>> import torch
        >>> from guides import VaDEGuide
        >>> from inference import export_predictions
        >>> from ppl_models import GaussianMixture, VaDE
        >>> guide = VaDEGuide(VaDE((6,), GaussianMixture(4, 3)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_predictions(guide, f"{folder}/clusters.pt2", torch.zeros(2, 6))
        ...     program = torch.export.load(f"{folder}/clusters.pt2").module()
        >>> program(torch.zeros(5, 6))["cluster"]["probabilities"].shape
        torch.Size([5, 4])
    """
    check_guide(guide)
    _check_rows_are_independent(guide)
    data = guide.observed(x, given)
    examples = data[torch.arange(ROWS) % len(data)]
    ours = copy.deepcopy(guide).cpu().to(check_precision(dtype))
    write_program(
        Predictions(ours),
        path,
        examples.x.cpu() if examples.x.dtype == torch.uint8 else examples.x.cpu().to(dtype),
        {name: _in(dtype, examples.given[name].cpu()) for name in guide.reads},
    )


def write_program(
    module: Predictions,
    path: str | Path,
    x: Tensor,
    given: Mapping[str, Tensor] | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a module as a program.

    :param module: in the precision that it is to compute in, on the CPU; it loses the parameters
        that it does not need.
    :param x: an example of its input, at least two rows.
    :param given: examples of what it takes besides x.
    :param about: what a reader of the file is to know, in JSON types.
    :raises ValueError: if the module cannot be exported, or the path does not fit.
    """
    path = Path(path)
    write = WRITERS[check_one_of("the ending of path", path.suffix, WRITERS)]
    if not path.parent.is_dir():
        raise ValueError(f"the folder {path.parent} of path does not exist: create it first")
    with evaluating(module), pyro.validation_enabled(False), torch.no_grad():
        _leave_out_unused(module.requires_grad_(False), x, given or {})
        content = write(_traced(module, x, given or {}), about or {})
    write_together({path: content})


def check_precision(dtype: Any) -> torch.dtype:
    """:raises ValueError: if ``dtype`` is neither float32 nor float64."""
    check_kind("dtype", dtype, torch.dtype, "torch.float32 or torch.float64")
    return check_one_of("dtype", dtype, PRECISIONS)


def _numbers(values: Sequence[int]) -> Tensor:
    return torch.as_tensor(list(map(int, values)), dtype=torch.int64)


def _in(dtype: torch.dtype, values: Tensor) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values


def _check_rows_are_independent(guide: FacetGuide) -> None:
    """:raises ValueError: if a posterior is that of a group of rows."""
    if "group" in guide.reads:
        raise ValueError(
            f"{type(guide).__name__} cannot be exported: the posterior of a group's content depends "
            "on all rows of the group, and a program maps each row by itself; save the run "
            "(SVIRunner.save) and load it where it is needed"
        )


def _traced(module: nn.Module, x: Tensor, given: Mapping[str, Tensor]) -> ExportedProgram:
    """:raises ValueError: if the module does what a program cannot."""
    rows = Dim("rows", min=1)
    shapes = {"x": {0: rows}, "given": {name: {0: rows} for name in given}}
    with _refused(module):
        return torch.export.export(
            module, (x,), dict(given), dynamic_shapes=shapes if given else {"x": {0: rows}}
        )


@contextmanager
def _refused(module: nn.Module) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise error


class _Reads(TorchDispatchMode):
    """Notes which tensors operations read."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        self.seen |= {id(each) for each in leaves if isinstance(each, Tensor)}
        return function(*args, **(kwargs or {}))


def _leave_out_unused(module: nn.Module, x: Tensor, given: Mapping[str, Tensor]) -> None:
    """Drop the parameters that are not read, such as a decoder's, which the file would hold."""
    with _Reads() as reads:
        module(x, **given)
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if id(parameter) not in reads.seen:
                part.register_parameter(name, None)


def _pt2(program: ExportedProgram, about: Mapping[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={"about.json": json.dumps(about)})
    return file.getvalue()


#: What writes a program, by the ending of its file.
WRITERS: dict[str, Callable[[ExportedProgram, Mapping[str, Any]], bytes]] = {".pt2": _pt2}
