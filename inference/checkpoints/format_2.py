"""Conversion of checkpoints of an earlier version to the current format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ppl_models.configurable import with_public_names

__all__ = ["upgraded"]

STEP_TYPES = {"Alone": "SingleRunStep", "Together": "VmappedStep", "Captured": "CUDAGraphStep"}
# The state of callbacks, by their type.
CALLBACKS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Draw": lambda done: {"done": done},
    "Evaluate": lambda done: {"done": done},
    "FitMixtures": lambda done: {"done": done},
    "JSONLines": lambda lines: {"lines": lines},
    "ReduceOnPlateau": lambda scheduler: {"scheduler": scheduler},
    "StopEarly": lambda state: dict(zip(("best", "waited"), state, strict=True)),
}


def upgraded(state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """A checkpoint of format 2 as one of format 3.

    :raises KeyError: if something is missing, or another error if something is of another kind.
    """
    call = with_public_names(state["call"])
    call["optimizer"] = "Adam"
    call["kind"] = STEP_TYPES.get(call["kind"], call["kind"])
    total_loss = {"total_loss": tensors["position.total_loss"]}
    return {
        "format": 3,
        "call": call,
        "progress": dict(state["position"]) | total_loss,
        "runs": [
            _run(i, of, names, tensors)
            for i, (of, names) in enumerate(zip(state["runners"], call["callbacks"], strict=True))
        ],
        "random": _random(tensors),
    }


def _run(
    i: int, of: Mapping[str, Any], callbacks: list[str], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    moments: dict[str, dict[str, Tensor]] = {}
    for name, tensor in _under(tensors, f"{i}.optimizer.").items():
        parameter, _, what = name.partition(".")
        moments.setdefault(parameter, {})[what] = tensor
    remembered = [
        None if kept is None else CALLBACKS.get(name, lambda own: own)(kept)
        for name, kept in zip(callbacks, of["callbacks"], strict=True)
    ]
    return {
        "run": {name: of[name] for name in ("epoch", "step", "should_stop", "history")}
        | {
            "weights": _under(tensors, f"{i}.weights."),
            "optimizer": {"state": moments, "param_groups": of["optimizer"]},
        },
        "non_finite": {
            "in_a_row": of["in_a_row"],
            "count": tensors["position.skipped"][i],
            "first": tensors["position.first_skipped"][i],
            "norms": tensors[f"{i}.norms"],
        },
        "callbacks": remembered,
    }


def _random(tensors: Mapping[str, Tensor]) -> list[list[Tensor]]:
    """Random streams by process."""
    found = {name: tensor for name, tensor in sorted(tensors.items()) if name.startswith("random.")}
    ranks = sorted({int(name.split(".")[1]) for name in found})
    return [[t for name, t in found.items() if name.startswith(f"random.{r}.")] for r in ranks]


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
