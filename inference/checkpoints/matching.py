"""Whether a checkpoint's state fits the runs that are to resume from it, before they change.

A digest says that a file is as it was written, and not that this program wrote it: what is read is
compared with what the runs have, by name, shape, type and range.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from inference.checkpoints.saved_run import check_counts_up, check_history
from inference.checkpoints.training_state import TrainingProgress
from inference.randomness import random_state
from inference.run import Run, restored_settings
from ppl_models.given.checks import check_keys, check_kind

# Norms of a step's gradients, which are noted because they are not finite.
NOT_FINITE = "norms"


def check_fits(
    state: Mapping[str, Any],
    runs: Sequence[Run],
    trackers: Sequence[Any],
    at: TrainingProgress,
    call: Mapping[str, Any],
) -> None:
    """Compare a complete state of this call with the runs that would resume from it.

    :param trackers: of each run's steps that are not finite, with a ``state_dict``.
    :param at: the call's progress, whose values are not used, but their types are.
    :param call: the description of the call.
    :raises ValueError: naming the first thing that does not fit.
    """
    progress = state["progress"]
    check_like("its progress", progress, at.state_dict())
    for i, (run, tracker, of) in enumerate(zip(runs, trackers, state["runs"], strict=True)):
        with _within(f"run {i}"):
            check_like("its counts", of["non_finite"], tracker.state_dict())
            check_like("its weights", of["run"]["weights"], run.loss.state_dict())
            check_optimizer(of["run"]["optimizer"], run.optimizer)
            check_history(of["run"]["history"], "record")
            _check_position(of["run"], progress, call, i)
            _check_end(of["run"], run, progress, call)
    check_random(state["random"], random_state(runs[0].device), runs[0].device)


def check_like(name: str, value: Any, like: Any) -> None:
    """:raises ValueError: if ``value`` is of another kind than ``like``, lacks a part of it, or has
    tensors of another shape or type, or numbers that are not finite.
    """
    if isinstance(like, Mapping):
        entries = check_keys(name, value, tuple(like))
        if unknown := sorted(map(str, entries.keys() - like.keys())):
            raise ValueError(f"{name} has an unknown {unknown[0]!r}")
        for key, item in like.items():
            check_like(f"{name}: {key}", entries[key], item)
    elif isinstance(like, Tensor):
        _check_tensor(name, value, like)
    elif isinstance(like, bool):
        check_kind(name, value, bool, "True or False")
    elif isinstance(like, int):
        check_counts_up(name, "a number", value)
    else:
        check_number(name, value)


def _check_tensor(name: str, value: Any, like: Tensor) -> None:
    check_kind(name, value, Tensor, "a tensor")
    if (value.shape, value.dtype) != (like.shape, like.dtype):
        raise ValueError(
            f"{name} is {value.dtype} {list(value.shape)}, but {like.dtype} {list(like.shape)} is "
            "needed"
        )
    if not name.endswith(NOT_FINITE) and not value.isfinite().all():
        raise ValueError(f"{name} holds NaN or infinity")


def check_number(name: str, value: Any) -> None:
    """:raises ValueError: if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise ValueError(f"{name} must be a finite number, got {_shown(value)}")


def check_optimizer(saved: Any, optimizer: Optimizer) -> None:
    """:raises ValueError: if it is not the state of such an optimiser after some steps."""
    check_keys("its optimizer", saved, ("state", "param_groups"))
    own = optimizer.state_dict()["param_groups"]
    groups = check_kind("its param_groups", saved["param_groups"], list, "a list")
    if len(groups) != len(own):
        raise ValueError(f"its optimizer has {len(groups)} groups, but {len(own)} are needed")
    for group, mine in zip(groups, own, strict=True):
        _check_group(check_keys("a group", group, ("params", "lr")), mine)
    moments = check_keys("its moments", saved["state"], ())
    parameters = [
        (p, restored_settings(mine, group))
        for mine, group in zip(optimizer.param_groups, groups, strict=True)
        for p in mine["params"]
    ]
    places = {str(i): i for i in range(len(parameters))}
    if unknown := sorted({str(name) for name in moments} - places.keys()):
        raise ValueError(f"its moments name an unknown parameter {unknown[0]!r}")
    if "moved" in saved and sorted(map(str, moments)) != sorted(map(str, _list(saved["moved"]))):
        raise ValueError("moments of its optimizer are missing")
    for name, found in moments.items():
        with _within(f"moments of parameter {name}"):
            _check_moments(found, *parameters[places[str(name)]], type(optimizer))


def _check_group(group: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    if group["params"] != own["params"]:
        raise ValueError("its optimizer has other parameters")
    for name in (group.keys() & own.keys()) - {"params"}:
        _check_setting(name, group[name], own[name])


def _check_setting(name: str, value: Any, like: Any) -> None:
    """:raises ValueError: if ``value`` is of another kind than a run's own setting ``like``."""
    if isinstance(like, str):
        check_kind(name, value, str, "text")
    elif isinstance(like, bool):
        check_kind(name, value, bool | type(None), "True, False or None")  # type: ignore[arg-type]
    elif isinstance(like, tuple | list):
        if len(_list(value)) != len(like):
            raise ValueError(f"{name} must have {len(like)} numbers, got {_shown(value)}")
        for item, own in zip(value, like, strict=True):
            _check_setting(name, item, own)
    elif like is None and (value is None or isinstance(value, bool)):
        return  # such as a way to take the step, chosen where it is not given
    elif not isinstance(value, Tensor):
        check_number(name, value)


def _check_moments(
    found: Any, parameter: Tensor, group: Mapping[str, Any], kind: type[Optimizer]
) -> None:
    """Take a step of such an optimiser, from a parameter of zeros and without a gradient.

    :raises ValueError: if its moments are of other names, shapes or types than those found, or a
        step from those found is not finite.
    """
    known = inspect.signature(kind).parameters
    probe = torch.zeros_like(parameter, requires_grad=True)
    probe.grad = torch.zeros_like(parameter)
    try:
        other = kind([probe], **{k: v for k, v in group.items() if k in known and k != "params"})
        other.step()
    except TypeError:  # it takes more than a gradient to find out
        return
    check_like("they", found, dict(other.state[probe]))
    other.state[probe] = {
        name: value.clone() if isinstance(value, Tensor) else value for name, value in found.items()
    }
    other.step()
    if not probe.isfinite().all():
        raise ValueError("a step from them is not finite")


def check_random(random: Any, own: Sequence[Tensor], device: torch.device) -> None:
    """:raises ValueError: if it does not hold the random streams of one process at least."""
    if not _list(random):
        raise ValueError("its random streams are missing")
    for streams in random:
        if len(_list(streams)) != len(own):
            raise ValueError(f"it has {len(streams)} random streams, but {len(own)} are needed")
        for i, (stream, mine) in enumerate(zip(streams, own, strict=True)):
            _check_tensor("a random stream", stream, mine)
            try:
                torch.Generator("cpu" if i == 0 else device).set_state(stream)
            except (RuntimeError, TypeError) as error:
                raise ValueError(f"a random stream is damaged: {error}") from error


def _check_position(
    run: Mapping[str, Any], progress: Mapping[str, Any], call: Mapping[str, Any], i: int
) -> None:
    """:raises ValueError: if epochs, steps and batches contradict each other."""
    _, epoch, step, _ = call["runners"][i]
    check_kind("should_stop", run["should_stop"], bool, "True or False")
    for name in ("epoch", "step"):
        check_counts_up("it", name, run[name])
    taken = progress["epoch"] * call["steps"] + progress["batches"]
    if (
        (run["epoch"], run["step"]) != (epoch + progress["epoch"], step + taken)
        or progress["epoch"] > call["sizes"][0]
        or progress["batches"] > call["steps"]
        or not step <= progress["logged"] <= run["step"]
    ):
        raise ValueError("its epochs, steps and batches contradict each other")


def _check_end(
    of: Mapping[str, Any], run: Run, progress: Mapping[str, Any], call: Mapping[str, Any]
) -> None:
    """:raises ValueError: if a call has ended and its last record is not that of its end."""
    if not progress["stopped"] and progress["epoch"] < call["sizes"][0]:
        return
    last = of["history"][-1] if of["history"] else {}
    if (last.get("epoch"), last.get("step")) != (of["epoch"], of["step"]):
        raise ValueError("its last record is missing")
    model = run.model
    needed = [] if run.guide.deterministic else [f"kl_z_{facet}" for facet in model.priors]
    needed += [
        f"mutual_information_{facet}"
        for facet, prior in model.priors.items()
        if facet in model.inferred and prior.num_components > 1
    ]
    optional = [name for name in last if name.startswith("kl_c_")]
    for name in [*needed, *optional]:
        if isinstance(last.get(name), bool) or not isinstance(last.get(name), int | float):
            raise ValueError(f"{name} of its last record must be a number")


@contextmanager
def _within(what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error


def _list(value: Any) -> Sequence[Any]:
    return check_kind("it", value, list | tuple, "a list")  # type: ignore[arg-type]


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an integer with hundreds of digits
        return False


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 50 else f"{text[:50]}..."
