"""One training run: what it trains, what trains it, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pyro.optim import PyroOptim
from torch import Tensor

from guides.base import FacetGuide
from inference.guard import Guard
from inference.objectives import Loss
from inference.optimizers import OptimizerFactory, build_optimizer
from inference.randomness import random_state, seeded, set_random_state, usable_device
from inference.schedules import Constant, Schedule
from ppl_models.base import FacetModel
from ppl_models.checks import check_kind, check_one_of, check_positive, check_seed
from ppl_models.configurable import to_config
from ppl_models.precision import network_precision

__all__ = ["Callback", "Run", "check_part", "check_settings"]

PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16}
# Parts of a run that a saved run describes: of which kind they are, and an example.
PARTS: dict[str, tuple[type, str]] = {
    "guide": (FacetGuide, "a guide, such as VaDEGuide(model)"),
    "schedule": (Schedule, "such as WarmUp(1000)"),
    "guard": (Guard, "a Guard, such as Guard('skip')"),
}


class Run:
    """What the training loop, the guard, checkpoints and processes speak of.

    :param loss: the objective of a model and a guide.
    :param lr: Adam's rate.
    :param schedule: weights of the terms over the steps; ``None`` for the ELBO.
    :param seed: of the shuffling and of every draw while training.
    :param device: where to train; ``None`` for where the model is.
    :param precision: of the networks, ``"float32"`` or ``"bf16"``.
    :param guard: what happens at a step that is not finite; ``None`` for ``Guard()``.
    :param optimizer: see :func:`~inference.optimizers.build_optimizer`.
    :raises ValueError: naming an option that cannot be.

    :ivar history: one record per logging interval.
    :ivar epoch: passes over the data so far.
    :ivar step: optimiser steps so far; the schedule goes by them.
    :ivar should_stop: set by a callback to end training after its record.
    """

    def __init__(
        self,
        loss: Loss,
        lr: float,
        schedule: Schedule | None,
        seed: int,
        device: str | torch.device | None,
        precision: str,
        guard: Guard | None,
        optimizer: OptimizerFactory | PyroOptim | None = None,
    ) -> None:
        self.lr, self.seed, self.precision = check_settings(lr, seed, precision)
        self.schedule = check_part("schedule", Constant() if schedule is None else schedule)
        self.guard = check_part("guard", Guard() if guard is None else guard)
        self.loss = loss
        self.device = usable_device(device) if device is not None else self.model.gates.device
        self.loss.to(self.device)
        self.optimizer = build_optimizer(optimizer, self.loss, self.lr)
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        self.step = 0
        self.should_stop = False
        with seeded(self.seed, self.device):
            self._random_state = random_state(self.device)

    @property
    def guide(self) -> FacetGuide:
        return self.loss.guide

    @property
    def model(self) -> FacetModel:
        return self.loss.model

    @contextmanager
    def while_training(self) -> Iterator[None]:
        """This run's precision and random streams, and the caller's again afterwards."""
        with seeded(self.seed, self.device), network_precision(PRECISIONS[self.precision]):
            set_random_state(self._random_state, self.device)
            try:
                yield
            finally:
                self._random_state = random_state(self.device)

    def description(self) -> dict[str, Any]:
        """What runs of a kind have in common, in JSON types."""
        objective = self.loss.objective
        return {
            "guide and model": _described(self.guide),
            "objective": [type(objective).__name__, *_plain(vars(objective))],
            "schedule": to_config(self.schedule),
            "precision": [self.precision, str(self.model.gates.dtype)],
            "parameters that learn": [
                n for n, p in self.loss.named_parameters() if p.requires_grad
            ],
            "weights": {name: list(t.shape) for name, t in self.loss.state_dict().items()},
            "device": self.device.type,
            "optimizer": type(self.optimizer).__name__,
        }

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimiser, history and progress; the random streams are the caller's."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "should_stop": self.should_stop,
            "history": self.history,
            "weights": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        moments = {
            int(p): _like(parameters[int(p)], of) for p, of in state["optimizer"]["state"].items()
        }
        groups = state["optimizer"]["param_groups"]
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.loss.load_state_dict(state["weights"])
        self.history, self.epoch, self.step = state["history"], state["epoch"], state["step"]
        self.should_stop = state["should_stop"]


#: Called with a run and its new record.
Callback = Callable[[Run, dict[str, Any]], None]


def check_settings(lr: Any, seed: Any, precision: Any) -> tuple[float, int, str]:
    """:raises ValueError: naming what cannot be."""
    precision = check_one_of("precision", precision, PRECISIONS)
    return check_positive("lr", lr), check_seed("seed", seed), precision


def check_part(name: str, part: Any) -> Any:
    """:raises ValueError: if that is no guide, schedule or guard, as ``name`` says."""
    return check_kind(name, part, *PARTS[name])


def _like(parameter: Tensor, moments: Mapping[str, Any]) -> dict[str, Any]:
    """An optimiser's moments, in memory as their parameter lies, which fused steps rely on."""
    return {
        name: torch.empty_like(parameter).copy_(value)
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for name, value in moments.items()
    }


def _described(guide: FacetGuide) -> Any:
    try:
        return to_config(guide)
    except TypeError:  # parts of a user's own, told apart by their weights
        return type(guide).__name__


def _plain(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}={value!r}"
        for name, value in sorted(values.items())
        if value is None or isinstance(value, bool | int | float | str)
    ]
