"""Objects that remember how they were built: a saved run describes each by its class and arguments
(JSON beside safetensors, never pickled code), and loading calls the class again.
"""

from __future__ import annotations

import importlib
import inspect
from abc import ABCMeta
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from ppl_models.turns import exclusive

# Key that marks the description of an object; no argument or facet can have this name.
CLASS = "@class"

# Building a named class imports its module, so only this library's packages are allowed.
TRUSTED_PACKAGES = ("ppl_models", "guides", "inference")


class _Recorder(ABCMeta):
    """Metaclass that records the constructor arguments on each object."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        with exclusive():  # starting values are drawn from the process's random stream
            instance = super().__call__(*args, **kwargs)
        bound = inspect.signature(type(instance).__init__).bind(instance, *args, **kwargs)
        instance.__dict__["_arguments"] = {
            name: _copied(value) for name, value in list(bound.arguments.items())[1:]
        }
        return instance

    @property
    def __signature__(cls) -> inspect.Signature:
        """The constructor's: otherwise ``help`` and the documentation show that of ``__call__``."""
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        arguments = list(signature.parameters.values())[1:]
        return signature.replace(parameters=arguments, return_annotation=inspect.Signature.empty)


class UnknownClass(ValueError):
    """A description is of a class that a user defined or another version of the library has."""


class Configurable(metaclass=_Recorder):
    """Mixin: :func:`to_config` can describe the object and :func:`from_config` can rebuild it."""


class Options(Configurable):
    """Base of plain settings objects, which are fully described by their attributes."""

    def __repr__(self) -> str:
        arguments = ", ".join(
            f"{name}={value!r}" for name, value in vars(self).items() if name[0] != "_"
        )
        return f"{type(self).__name__}({arguments})"


def _copied(value: Any) -> Any:
    """``value`` with containers of its own, so that what the caller changes later stays out."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [_copied(item) for item in value]
    return value


def to_config(value: Any) -> Any:
    """A description of ``value`` in JSON types.

    :param value: a :class:`Configurable`, or numbers, strings, lists, tuples and dicts of them.
    :raises TypeError: if something in ``value`` cannot be described, naming it.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic | np.ndarray | Tensor):
        return value.tolist()
    if isinstance(value, Configurable):
        cls = type(value)
        arguments = {
            name: to_config(argument) for name, argument in value.__dict__["_arguments"].items()
        }
        return {CLASS: public_name(f"{cls.__module__}.{cls.__qualname__}"), **arguments}
    if hasattr(value, "items"):
        return {str(key): to_config(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_config(item) for item in value]
    raise TypeError(
        f"cannot describe {value!r} of type {type(value).__name__} in a checkpoint: "
        "use numbers, strings and the library's own objects, or pass the objects to `load` yourself"
    )


def from_config(config: Any) -> Any:
    """Rebuild what :func:`to_config` described.

    :raises ValueError: if it names a class from outside this library, or arguments do not fit.
    """
    if isinstance(config, list):
        return [from_config(item) for item in config]
    if not isinstance(config, dict):
        return config
    arguments = {name: from_config(value) for name, value in config.items() if name != CLASS}
    if CLASS not in config:
        return arguments
    cls = _trusted_class(config[CLASS])
    try:
        return cls(**arguments)
    except TypeError as error:
        raise ValueError(
            f"the description of {config[CLASS]} does not fit this version: {error}"
        ) from error


def first_difference(one: nn.Module, other: nn.Module) -> str | None:
    """The name of the first part, or setting, that is another in two modules."""
    others = {name: _said(part) for name, part in other.named_modules()}
    for name, part in one.named_modules():
        for key, value in _said(part).items():
            if others.get(name, {}).get(key, ...) != value:
                return ".".join(filter(None, (name, key)))
    return None


def _said(part: nn.Module) -> dict[str, Any]:
    """What a part says of itself, and its arguments that are settings, as they are now."""
    arguments = inspect.signature(type(part).__init__).parameters
    settings = (type(None), bool, int, float, str, Options)
    own = {n: v for n, v in vars(part).items() if n in arguments and isinstance(v, settings)}
    return {"": (part._get_name(), part.extra_repr()), **{n: repr(v) for n, v in own.items()}}


def public_name(path: str) -> str:
    """The public name of a class: that of its package, if the package exports it.

    Files may move, but public names stay. Earlier versions saved the path of the file.

    :param path: ``package.module.Class`` or ``package.Class``.
    """
    package, _, inside = path.partition(".")
    name = inside.rpartition(".")[2]
    return f"{package}.{name}" if name in _public(package) else path


def _public(package: str) -> tuple[str, ...]:
    """The exports of one of this library's packages; empty for others, which are not imported."""
    if package not in TRUSTED_PACKAGES:
        return ()
    return tuple(importlib.import_module(package).__all__)


def _trusted_class(path: Any) -> type:
    """:raises ValueError: if a description may not name this class."""
    package, _, name = public_name(str(path)).partition(".")
    if package not in TRUSTED_PACKAGES:
        raise UnknownClass(
            f"the checkpoint names {path!r}, which is not part of this library, so it is not "
            "imported: build the model and guide yourself and pass them to `load`"
        )
    if name not in _public(package):
        raise UnknownClass(
            f"the checkpoint names {path!r}, which this version of the library lacks: if it was "
            "made of functions, give `load` the guide of plain_programs"
        )
    found = getattr(importlib.import_module(package), name)
    if not (isinstance(found, type) and issubclass(found, Configurable)):
        raise ValueError(
            f"the checkpoint names {path!r}, which is not something a checkpoint may build"
        )
    return found
