"""One training run: its model and guide, its optimizer and settings, and its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import Tensor, nn

from guides.base import FacetGuide
from inference.objectives.loss import Loss
from inference.optimizers import OptimizerFactory, build_optimizer, load_optimizer
from inference.randomness import random_state, seeded, set_random_state, usable_device
from inference.schedules import Constant, Schedule
from ppl_models.base import FacetModel
from ppl_models.configurable import Options, to_config
from ppl_models.given.checks import check_kind, check_one_of, check_positive, check_seed
from ppl_models.modes import network_precision
from ppl_models.turns import exclusive

__all__ = ["Callback", "Guard", "Run"]

#: Ways to compute a step: chosen by the number of steps; a recorded program, replayed, by XLA for
#: many steps at a time, or as a CUDA graph; or Pyro's own handlers in every step.
COMPILE = ("auto", "replay", "xla", "cuda graph", None)
PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16}
# What follows from an objective or gradient that is not finite.
ACTIONS = ("stop", "skip", "halve")


class Guard(Options):
    """Checks every step before it is taken, without reading anything back to the host.

    A step whose objective or gradient is not finite is not taken: parameters, moments and running
    statistics stay as they were. What follows depends on ``action``: ``"stop"`` takes no further
    step, and ``fit`` raises at the next logging interval; ``"skip"`` continues with the next batch;
    ``"halve"`` also halves the learning rate at the logging interval. Records hold the number of
    such steps as ``skipped``; after ten or more in a row without another ``fit`` raises anyway.

    :param action: ``"stop"``, ``"skip"`` or ``"halve"``.
    :param max_norm: gradients with a larger norm, over all parameters, are scaled down to it; by
        default none are.
    :raises ValueError: if ``action`` is unknown or ``max_norm`` is not positive.

    Example:
        >>> from inference import Guard
        >>> Guard("skip", max_norm=10)
        Guard(action='skip', max_norm=10.0)
    """

    def __init__(self, action: str = "stop", max_norm: float | None = None) -> None:
        self.action = check_one_of("action", action, ACTIONS)
        self.max_norm = max_norm if max_norm is None else check_positive("max_norm", max_norm)


# Parts of a run that a saved run describes: the type of each, and an example.
PARTS: dict[str, tuple[type, str]] = {
    "guide": (FacetGuide, "a guide, such as VaDEGuide(model)"),
    "schedule": (Schedule, "such as WarmUp(1000)"),
    "guard": (Guard, "a Guard, such as Guard('skip')"),
}


@dataclass
class Progress:
    """How far a run's call of ``fit`` is.

    :ivar logged: the step of the last record.
    :ivar epoch: complete passes in this call.
    :ivar batches: batches taken in the current pass.
    :ivar stopped: whether a callback ended the call before its last epoch.
    :ivar faults_in_a_row: consecutive steps up to the last record that were not finite.
    :ivar before: seconds that the call took before it was resumed.
    """

    logged: int
    epoch: int = 0
    batches: int = 0
    stopped: bool = False
    faults_in_a_row: int = 0
    before: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started


class Run:
    """A run and all that changes while it is trained, which a checkpoint holds; parameters and
    further attributes are those of :class:`~inference.SVIRunner`.

    :raises ValueError: if an option is invalid, naming it.

    :ivar continued: whether the call of ``fit`` is a further part of one by ``fit_neighbors``.
    :ivar random_state: of the streams with which training begins or goes on.
    :ivar progress: of the call of ``fit``.
    :ivar counters: what each step changes beside parameters, buffers and the optimizer's state, by
        name: the ``step``; the ``total`` of the objectives since the last record, the number of
        steps since then that were not finite (``faults``), and the first of these (``first_fault``,
        else -1) with each parameter's norm of the gradient at it (``fault_norms``).
    """

    def __init__(
        self,
        model: FacetModel,
        guide: FacetGuide,
        objective: ELBO | None = None,
        lr: float = 5e-4,
        schedule: Schedule | None = None,
        seed: int = 0,
        device: str | torch.device | None = None,
        precision: str = "float32",
        guard: Guard | None = None,
        optimizer: OptimizerFactory | PyroOptim | None = None,
        compile: str | None = "auto",
    ) -> None:
        self.loss = loss = Loss(model, guide, objective)
        self.compile = check_one_of("compile", compile, COMPILE)
        self._lr, self.seed, self.precision = check_settings(lr, seed, precision)
        self.schedule = check_part("schedule", Constant() if schedule is None else schedule)
        self.guard = check_part("guard", Guard() if guard is None else guard)
        check_precision(loss)
        if made := [name for name, p in loss.named_parameters() if p.is_inference()]:
            raise ValueError(
                f"{made[0]} was made within torch.inference_mode(), so it cannot be trained: build "
                "the model outside that context"
            )
        self.device = usable_device(device) if device is not None else self.model.gates.device
        self.loss.to(self.device)
        self.optimizer = build_optimizer(optimizer, self.loss, self._lr)
        # A factory or one of Pyro's may bring its own rates.
        self._lr = float(max(each.get("lr", self._lr) for each in self.optimizer.param_groups))
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        self.step = 0
        self._in_use = self.continued = False
        self.begin()
        with seeded(self.seed, self.device):
            self.random_state = random_state(self.device)

    @property
    def lr(self) -> float:
        """The rate as given, the largest of several; setting it counts from the next step."""
        return self._lr

    @lr.setter
    def lr(self, rate: float) -> None:
        self._lr = check_positive("lr", rate)
        for group in self.optimizer.param_groups:
            group["lr"] = self._lr

    @property
    def guide(self) -> FacetGuide:
        return self.loss.guide

    @property
    def model(self) -> FacetModel:
        return self.loss.model

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers by name."""
        return dict(self.loss.named_parameters()) | dict(self.loss.named_buffers())

    def begin(self) -> None:
        """Begin a call of ``fit``, in which nothing is counted yet."""
        self.should_stop, self.progress = False, Progress(self.step)
        like, parameters = self.model.gates, sum(1 for _ in self.loss.parameters())
        self.counters = {
            "step": like.new_full((), self.step),
            "total": like.new_zeros(()),
            "faults": like.new_zeros(()),
            "first_fault": like.new_full((), -1.0),
            "fault_norms": like.new_zeros(parameters),
        }

    @contextmanager
    def while_training(self) -> Iterator[None]:
        """Use this run's precision and random streams within the context, then restore the
        caller's. Gradients are on, and the caller's autocast is off.
        """
        with (
            seeded(self.seed, self.device),
            network_precision(PRECISIONS[self.precision]),
            torch.enable_grad(),
            torch.autocast(self.device.type, enabled=False),
        ):
            set_random_state(self.random_state, self.device)
            try:
                yield
            finally:
                self.random_state = random_state(self.device)

    def __getstate__(self) -> dict[str, Any]:
        """Of copies and pickles, which nobody trains, even if a callback makes them."""
        return {**self.__dict__, "_in_use": False}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Hold the run within the context.

        :raises ValueError: if it is held already, by another thread or a callback's ``fit``.
        """
        with exclusive():
            if self._in_use:
                raise ValueError(
                    f"this run (seed {self.seed}) is being trained already, by another thread or "
                    "the call of fit that a callback belongs to: wait until that ends, or train "
                    "another runner"
                )
            self._in_use = True
            try:
                yield
            finally:
                self._in_use = False

    def description(self) -> dict[str, Any]:
        """What runs that can be trained together have in common, in JSON types."""
        objective, own = self.loss.objective, self.optimizer.defaults.keys() - {"lr"}
        groups = [of.items() for of in self.optimizer.param_groups]
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
            # Without those that are off, to which PyTorch may add.
            "optimizer's settings": [
                _plain({k: v for k, v in of if k in own and v is not None and v is not False})
                for of in groups
            ],
        }

    def state_dict(self) -> dict[str, Any]:
        """All that changes, but the random streams, which processes have each for themselves."""
        progress = asdict(self.progress) | {"before": self.progress.seconds}
        del progress["started"]
        return {
            "epoch": self.epoch,
            "step": self.step,
            "should_stop": self.should_stop,
            "history": self.history,
            "weights": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": progress,
            "counters": self.counters,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what :meth:`state_dict` returned."""
        load_optimizer(self.optimizer, state["optimizer"])
        self.loss.load_state_dict(state["weights"])
        for name, counter in self.counters.items():
            counter.copy_(state["counters"][name])
        for name in ("history", "epoch", "step", "should_stop"):
            setattr(self, name, state[name])
        self.progress = Progress(**state["progress"])


#: Called with a run and its new record.
Callback = Callable[[Run, dict[str, Any]], None]


def check_settings(lr: Any, seed: Any, precision: Any) -> tuple[float, int, str]:
    """:raises ValueError: if a setting is invalid, naming it."""
    precision = check_one_of("precision", precision, PRECISIONS)
    return check_positive("lr", lr), check_seed("seed", seed), precision


def check_part(name: str, part: Any) -> Any:
    """:raises ValueError: if the part is not the guide, schedule or guard that ``name`` says."""
    return check_kind(name, part, *PARTS[name])


def check_precision(module: nn.Module) -> None:
    """:raises ValueError: naming a parameter or buffer that is not float32, float64 or integer."""
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point() or tensor.dtype in (torch.float32, torch.float64):
            continue
        raise ValueError(
            f"parameters must be float32 or float64, but {name!r} is {tensor.dtype}: call "
            "guide.float(), and give precision='bf16' for networks that run in bfloat16"
        )
    kinds = {p.dtype: name for name, p in module.named_parameters() if p.is_floating_point()}
    if len(kinds) > 1:
        named = " and ".join(f"{name!r} is {dtype}" for dtype, name in kinds.items())
        raise ValueError(
            f"parameters must be of one precision, but {named}: call guide.float() or "
            "guide.double(), which convert the model as well"
        )


def _described(guide: FacetGuide) -> Any:
    try:
        return to_config(guide)
    except TypeError:  # a user's own parts, distinguished by their weights
        return type(guide).__name__


def _plain(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{name}={value!r}"
        for name, value in sorted(values.items())
        if value is None or isinstance(value, bool | int | float | str | tuple | Tensor)
    ]
