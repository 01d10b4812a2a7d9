"""What a call of ``fit`` will do, validated before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from inference.checkpoints.periodic import Checkpoints, CheckpointWriter, NoCheckpoints
from inference.distributed import SingleProcess
from inference.run import Callback, Run
from inference.schedules import Weights
from inference.training.data_source import DataSource
from inference.training.steps import Steps
from ppl_models.checks import check_count, check_kind
from ppl_models.configurable import to_config

__all__ = ["FitPlan", "check_callbacks"]

# Recording takes about as long as what it saves in so many steps.
STEPS_THAT_PAY = 500


@dataclass(frozen=True)
class FitPlan:
    """One call of :meth:`SVIRunner.fit <inference.SVIRunner.fit>` or
    :func:`~inference.fit_together`.

    :ivar runs: the runs to train; all use the first one's schedule and random numbers.
    :ivar step_type: how the runs take their steps.
    :ivar source: where the data come from.
    :ivar callbacks: of each run.
    :ivar weights: of the terms, by step: the schedule over this call's steps.
    :ivar executor: how objectives are computed, see :class:`~inference.training.steps.Steps`.
    :raises ValueError: if a number is not positive, ``checkpoints`` has the wrong type, or the
        schedule does not fit.
    """

    runs: Sequence[Run]
    step_type: type[Steps]
    source: DataSource
    epochs: int
    log_every: int
    callbacks: Sequence[Sequence[Callback]]
    progress: bool
    checkpoints: Checkpoints | None = None
    processes: SingleProcess = field(default_factory=SingleProcess)
    executor: str | None = field(init=False)
    weights: Weights = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("epochs", "log_every"):
            check_count(name, getattr(self, name))
        if self.checkpoints is not None:
            check_kind(
                "checkpoints", self.checkpoints, Checkpoints, "such as Checkpoints('folder')"
            )
        steps = self.source.steps
        total = self.lead.step + self.epochs * steps
        object.__setattr__(self, "weights", self.lead.schedule.bind(self.lead.model, steps, total))
        object.__setattr__(self, "executor", self._executor())

    @property
    def lead(self) -> Run:
        return self.runs[0]

    def _executor(self) -> str | None:
        """How objectives are computed: if the run leaves it open, recorded where that pays."""
        if self.lead.compile != "auto":
            return self.lead.compile
        return "replay" if self.epochs * self.source.steps >= STEPS_THAT_PAY else None

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
            "kind": " ".join(filter(None, (self.step_type.__name__, self.executor))),
            "guard": to_config(self.lead.guard),
            "callbacks": [[type(callback).__name__ for callback in of] for of in self.callbacks],
            "runners": [[run.seed, run.epoch, run.step, run.lr] for run in self.runs],
        }

    @contextmanager
    def checkpoint_writer(self) -> Iterator[CheckpointWriter | NoCheckpoints]:
        """The object that writes and reads checkpoints during this plan."""
        if self.checkpoints is None:
            yield NoCheckpoints()
            return
        described = self.description()
        with self.checkpoints.writer(
            self.runs, self.callbacks, described, self.processes
        ) as writer:
            yield writer


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
