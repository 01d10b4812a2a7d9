"""What a step is made of: every object that its functions can reach.

A recorded program repeats operations on tensors and nothing else. That is all there is to a step of
this library's and PyTorch's parts; what another class does beside it, such as counting its calls,
nobody can know.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from inference.run import Run

# Buffers that a schedule sets before each step.
SCHEDULED = {"gates", "temperature"}
# Packages whose classes and functions keep to what a recorded program repeats.
OWN = {"facetvae", "guides", "inference", "ppl_models"}
KNOWN = OWN | {"numpy", "pyro", "torch", "zuko"}
KNOWN |= {"abc", "builtins", "collections", "contextlib", "dataclasses", "enum", "functools"}
KNOWN |= {"itertools", "math", "operator", "pathlib", "types", "typing", "weakref", "_weakref"}
# Types of values that are compared; other objects are compared by identity.
PLAIN = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device}
# They hold nothing else.
LEAVES = (type, ModuleType, BuiltinFunctionType, np.ndarray, np.generic, torch.Generator)
CONTAINERS = {dict, OrderedDict, list, tuple, set}
# Of a module, visited by themselves.
TENSORS = {"_parameters", "_buffers", "_modules"}


class Parts:
    """The objects that a run's steps depend on.

    :param weights: the run's schedule, bound to its steps.

    :ivar settings: what a recorded program has fixed: all values, and which objects hold them. A
        parameter's and a buffer's own values are not among them, but which parameters learn is.
    :ivar unknown: the first part that is neither this library's nor PyTorch's, in words; ``None``
        if there is none.
    """

    def __init__(self, run: Run, weights: Any) -> None:
        self.settings: list[Any] = []
        self.unknown: str | None = None
        self._seen: set[int] = set()
        self._classes: set[type] = set()
        loss = run.loss
        begins = {"model": loss.model, "guide": loss.guide, "objective": loss.objective}
        begins |= {"loss": loss, "schedule": weights, "guard": run.guard}
        for name, part in begins.items():
            self._visit(name, part)
        if getattr(torch.nn.modules.module, "_has_any_global_hook", bool)():
            self._note("a hook of all modules")

    def _note(self, what: str) -> None:
        self.unknown = self.unknown or what

    def _visit(self, name: str, value: Any) -> None:
        kind = type(value)
        if kind in PLAIN or (kind in CONTAINERS and not value):  # as hooks of most modules are
            self.settings.append((kind, repr(value)))  # by text, as NaN differs from itself
            return
        self.settings.append(id(value))
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            self._tensor(name, value)
            if not value.is_inference():
                self.settings.append(value._version)
        elif isinstance(value, FunctionType):
            self._function(name, value)
        elif isinstance(value, partial):
            for each in (value.func, value.args, value.keywords):
                self._visit(name, each)
        elif isinstance(value, MethodType):
            self._visit(name, value.__func__)
            self._visit(name, value.__self__)
        elif isinstance(value, Mapping | list | tuple | set | frozenset):
            self._class(name, kind)
            for key, each in value.items() if isinstance(value, Mapping) else enumerate(value):
                self._visit(f"{name}[{key!r}]", each)
        elif not isinstance(value, LEAVES):
            self._object(name, value)

    def _tensor(self, name: str, value: Tensor) -> None:
        self._class(name, type(value))
        if value._backward_hooks or getattr(value, "_post_accumulate_grad_hooks", None):
            self._note(f"a hook of {name}")

    def _function(self, name: str, function: FunctionType) -> None:
        if not _is_of(KNOWN, function.__module__):
            self._note(f"{name} is the function {function.__module__}.{function.__qualname__}")
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # not filled yet
                self._visit(name, cell.cell_contents)
        self._visit(name, function.__defaults__)
        self._visit(name, function.__kwdefaults__)

    def _object(self, name: str, value: Any) -> None:
        self._class(name, type(value))
        attributes = dict(getattr(value, "__dict__", {}))
        for base in type(value).__mro__:
            slots = vars(base).get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, slot):
                    attributes[slot] = getattr(value, slot)
        if isinstance(value, nn.Module):
            for key, each in (value._parameters | value._buffers).items():
                if each is not None and key not in SCHEDULED:
                    self._learned(f"{name}.{key}", each)
            others = {k: v for k, v in attributes.items() if k not in TENSORS}
            attributes = value._modules | others  # a part is best named by its place in a model
        for key, each in attributes.items():
            self._visit(f"{name}.{key}", each)

    def _learned(self, name: str, value: Tensor) -> None:
        """One that a program is given, so that its values may change."""
        self._seen.add(id(value))
        self._tensor(name, value)
        self.settings.append((id(value), value.requires_grad, bool(value._backward_hooks)))

    def _class(self, name: str, cls: type) -> None:
        """Look at a class and, of this library's, at its functions: have they been replaced?"""
        if cls in self._classes:
            return
        self._classes.add(cls)
        if not _is_of(KNOWN, cls.__module__):
            self._note(f"{name} is a {cls.__module__}.{cls.__qualname__}")
            return
        for base in cls.__mro__:
            own = vars(base).items() if _is_of(OWN, base.__module__) else ()
            for key, each in own:
                if type(each) is FunctionType and not _is_of(KNOWN, each.__module__):
                    self._note(f"{cls.__qualname__}.{key} is the function {each.__qualname__}")


def is_own(function: Any) -> bool:
    """Whether it is this library's."""
    return _is_of(OWN, function.__module__)


def _is_of(packages: set[str], module: str | None) -> bool:
    return module is None or module.partition(".")[0] in packages
