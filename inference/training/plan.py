"""What a call of ``fit`` will do, validated before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
from torch import Tensor

from inference.checkpoints.periodic import Checkpoints
from inference.distributed import SingleProcess
from inference.optimizers import check_optimized
from inference.records import plain
from inference.run import Callback, Run, check_precision
from inference.schedules import Constant, WeightFunction
from inference.training.data_source import DataSource, InMemorySource, fingerprint
from inference.training.parts import Parts
from inference.training.recorder import Recording
from ppl_models.configurable import to_config
from ppl_models.given.arrays import as_numbers
from ppl_models.given.checks import check_count, check_kind

__all__ = ["FitPlan"]

# Recording takes less time than it saves in so many steps, and compiling in so many.
STEPS_THAT_PAY, STEPS_THAT_PAY_COMPILING = 500, 4000


@dataclass(frozen=True)
class FitPlan:
    """One call of :meth:`SVIRunner.fit <inference.SVIRunner.fit>` or
    :func:`~inference.fit_together`.

    :ivar runs: the runs to train; all use the first one's schedule and random numbers.
    :ivar source: where the data come from.
    :ivar callbacks: of each run.
    :ivar together: whether the runs are trained as one program.
    :ivar weights: of the terms, by step: the schedule over this call's steps.
    :ivar recording: which steps are computed by recorded programs.
    :raises ValueError: if a number is not positive, ``checkpoints`` has the wrong type, the
        schedule does not fit, parameters are neither float32 nor float64, or one that learns is
        not in the optimizer; or if the steps that were asked for cannot be had here.
    """

    runs: Sequence[Run]
    source: DataSource
    epochs: int
    log_every: int
    callbacks: Sequence[Sequence[Callback]]
    progress: bool
    checkpoints: Checkpoints | None = None
    processes: SingleProcess = field(default_factory=SingleProcess)
    together: bool = False
    recording: Recording = field(init=False)
    weights: WeightFunction = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("epochs", "log_every"):
            check_count(name, getattr(self, name))
        if self.checkpoints is not None:
            check_kind(
                "checkpoints", self.checkpoints, Checkpoints, "such as Checkpoints('folder')"
            )
        for run in self.runs:
            check_precision(run.loss)
            check_optimized(run.loss, run.optimizer)
        default = to_config(self.lead.schedule) == to_config(Constant())
        if not self.lead.model.priors and not (default and self.lead.precision == "float32"):
            raise ValueError(
                "a schedule weights the KL terms of facets, and precision is of this library's "
                "networks, and functions have none: leave it out, and scale their sites by "
                "poutine.scale"
            )
        steps = self.source.steps
        lead, total = self.lead, self.lead.step + self.epochs * steps
        weights = lead.schedule.bind_further(lead.model, steps, total, lead.epoch, lead.step)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "recording", self._recording())

    @property
    def lead(self) -> Run:
        return self.runs[0]

    @property
    def ended(self) -> bool:
        """Whether all epochs have passed, or callbacks have ended the call."""
        at = self.lead.progress
        return at.stopped or at.epoch >= self.epochs

    def _recording(self) -> Recording:
        """Which steps are recorded: if the run leaves it open, those where it pays and is safe."""
        device, executor = self.lead.device, self.lead.compile
        whole = "cuda graph" if device.type == "cuda" else "xla"
        unsuitable = self._unsuitable(whole if executor == "auto" else executor)
        if executor == "cuda graph" and device.type != "cuda":
            raise ValueError(
                "compile='cuda graph' is for one process on a CUDA device, but here the device is "
                f"{device}: leave it out"
            )
        if executor != "auto":
            return Recording(executor, asked_for=True, unsuitable=unsuitable)
        steps = self.epochs * self.source.steps
        if steps < STEPS_THAT_PAY or not self.lead.model.recordable:
            return Recording()
        unknown = (Parts(run, self.weights).unknown for run in self.runs)
        if part := next(filter(None, unknown), None):
            return Recording(unknown=part)
        # Half of single precision XLA computes more slowly.
        precise = self.lead.precision == "float32" and find_spec("jax") is not None
        compiled = precise and steps >= STEPS_THAT_PAY_COMPILING
        pays = unsuitable is None and (whole != "xla" or compiled)
        return Recording(whole if pays else "replay", last=self.epochs >= STEPS_THAT_PAY)

    def _unsuitable(self, executor: str | None) -> str | None:
        """Why whole steps cannot be taken by a compiler or a graph, as far as that is plain."""
        if self.together or self.processes.size > 1:
            return "several runs or processes take part"
        if self.source.full is None:
            return "batches of groups of many sizes"
        if executor == "cuda graph":
            return None
        if not isinstance(self.source, InMemorySource):
            return "its data come from a loader"
        device = self.lead.device
        return None if device.type == "cpu" else f"its device is {device}"

    def check_callbacks(self) -> None:
        """Call ``check`` of the callbacks that have it, which raises if they would fail."""
        for run, callbacks in zip(self.runs, self.callbacks, strict=True):
            for callback in callbacks:
                if callable(check := getattr(callback, "check", None)):
                    check(run)

    def description(self) -> dict[str, Any]:
        """What identifies this call, in JSON types, so that no other call resumes its run."""
        return {
            **self.lead.description(),
            **self.source.description(),
            "sizes": [self.epochs, self.source.batch_size, self.log_every],
            "steps by": [self.recording.executor, self.together],
            "guard": to_config(self.lead.guard),
            "callbacks": [[_described(callback) for callback in of] for of in self.callbacks],
            "steps": self.source.steps,
            "runners": [[run.seed, run.epoch, run.step, run.lr] for run in self.runs],
        }


def _described(callback: Any) -> list[Any]:
    """A callback's type and what its ``settings()`` says, arrays by their fingerprint.

    :raises ValueError: if JSON cannot hold a setting.
    """
    name, settings = type(callback).__name__, getattr(callback, "settings", None)
    own = settings() if callable(settings) else {}
    check_kind(f"what {name}.settings returns", own, Mapping, "settings by name")
    try:
        return [name, {str(key): _setting(value) for key, value in own.items()}]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"what {name}.settings returns must be numbers, text, arrays, and lists and "
            f"dictionaries of numbers and text, but {error}"
        ) from error


def _setting(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = as_numbers(value)
    return fingerprint(value) if isinstance(value, Tensor) and value.ndim else plain(value)


def check_callbacks(callbacks: Any) -> Sequence[Callback]:
    """Validate ``callbacks`` and return them.

    :raises ValueError: if they are not a sequence of functions.
    """
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise ValueError(f"callbacks must be a sequence, such as [callback], got {callbacks!r}")
    for callback in callbacks:
        if isinstance(callback, type) or not callable(callback):
            raise ValueError(
                f"each callback must be a function of a runner and a record, got {callback!r}"
            )
    return callbacks
