"""Callbacks, which are called during training with the runner and each new record of its history.

A callback with state has ``state_dict()``, which returns the state in JSON types, and
``load_state_dict(state)``; they are called when a run is checkpointed and resumed. A callback whose
arguments may not fit the run can have ``check(runner)``, which is called before the first step and
raises ``ValueError``; one that begins anew there goes on if ``runner.continued``. A callback with
``settings()``, which returns its constructor's arguments by name (numbers, text, arrays), resumes
only a run whose callback had the same; of others only the type is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from inference.checkpoints.atomic_files import check_folder, write_atomically
from inference.records import as_line
from inference.run import Run
from ppl_models.given.checks import check_count, check_kind, check_path, number
from ppl_models.warn import warn

FUNCTION: Any = Callable, "a function that is called with the runner"
# What PyTorch's scheduler remembers beside its settings.
PLATEAU = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")

__all__ = ["Draw", "Evaluate", "JSONLines", "ReduceOnPlateau", "StopEarly"]


class _EveryEpochs:
    """A callback that acts on the first record after each ``every`` epochs of a run."""

    def __init__(self, every: int) -> None:
        self.every = check_count("every", every)
        self.done = 0

    def check(self, runner: Run) -> None:
        self.done = runner.epoch // self.every  # of this run, which another may have come before

    def __call__(self, runner: Run, record: dict[str, Any]) -> None:
        if record["epoch"] // self.every > self.done:
            self.done = record["epoch"] // self.every
            self.act(runner, record)

    def act(self, runner: Run, record: dict[str, Any]) -> None:
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        return {"every": self.every}

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.done = state["done"]


class Evaluate(_EveryEpochs):
    """Add your own measures to the first record after each ``every`` epochs.

    :param measure: called with the runner; returns ``{name: number}``.

    Example:
        >>> import numpy as np
        >>> from facetvae import VAE, SVIRunner, SharedMLP, VaDEGuide, elbo
        >>> from inference.callbacks import Evaluate
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> look = Evaluate(lambda run: {"test": elbo(run.model, run.guide, x[15:], 5)[0]}, every=2)
        >>> runner = SVIRunner(model, VaDEGuide(model))
        >>> runner = runner.fit(x[:15], epochs=3, progress=False, callbacks=[look])
        >>> ["test" in record for record in runner.history]
        [False, True, False]
    """

    def __init__(self, measure: Callable[[Run], Mapping[str, float]], every: int = 1) -> None:
        self.measure = check_kind("measure", measure, *FUNCTION)
        super().__init__(every)

    def act(self, runner: Run, record: dict[str, Any]) -> None:
        measured = check_kind(
            "what measure returns", self.measure(runner), Mapping, "numbers by name"
        )
        record.update({name: float(value) for name, value in measured.items()})


class JSONLines:
    """Append each record to a file, one JSON object per line, so that the run can be followed.

    If the disk is full it warns, and the next record that can be written completes the file.

    :param path: the file, in a folder that exists; the first record overwrites what it held.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from facetvae import VAE, SVIRunner, SharedMLP, VaDEGuide
        >>> from inference.callbacks import JSONLines
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> runner, x = SVIRunner(model, VaDEGuide(model)), np.random.default_rng(0).random((20, 6))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "history.jsonl"
        ...     _ = runner.fit(x, epochs=2, progress=False, callbacks=[JSONLines(path)])
        ...     len(path.read_text().splitlines())
        2
    """

    def __init__(self, path: str | Path) -> None:
        self.path = check_path("path", path).absolute()
        self.lines = 0
        self.complete = False

    def check(self, runner: Run) -> None:
        if self.path.is_dir():
            raise ValueError(f"{self.path} is a folder, but a file for records is needed")
        if not self.path.parent.is_dir():
            raise ValueError(
                f"there is no folder {self.path.parent} for {self.path.name}: create it first"
            )

    def __call__(self, runner: Run, record: dict[str, Any]) -> None:
        self.lines += 1
        try:
            if self.complete:
                with self.path.open("a") as file:
                    file.write(as_line(record))
            else:
                last = runner.history[-self.lines :]
                write_atomically(self.path, "".join(map(as_line, last)).encode())
                self.complete = True
        except OSError as error:
            warn(f"a record could not be written to {self.path} ({error}); training continues")
            self.complete = False

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self.lines}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # The next record removes the lines of steps after the checkpoint.
        self.lines, self.complete = state["lines"], False


class Draw(_EveryEpochs):
    """Draw figures in the first record after each ``every`` epochs, into ``folder/epoch-N``.

    :param draw: called with the runner and that folder; see :func:`inference.figures.save_figures`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from facetvae import VAE, SVIRunner, SharedMLP, VaDEGuide
        >>> from inference.callbacks import Draw
        >>> from inference.figures import training_curves
        >>> def draw(run, folder):
        ...     training_curves(run.history, ["layer_1"]).savefig(folder / "curves.png")
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> runner, x = SVIRunner(model, VaDEGuide(model)), np.random.default_rng(0).random((20, 6))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     callbacks = [Draw(folder, draw, every=2)]
        ...     _ = runner.fit(x, epochs=2, progress=False, callbacks=callbacks)
        ...     [path.parent.name for path in Path(folder).rglob("*.png")]
        ['epoch-00002']
    """

    def __init__(self, folder: str | Path, draw: Callable[[Run, Path], Any], every: int) -> None:
        self.folder = check_path("folder", folder).absolute()
        self.draw = check_kind("draw", draw, *FUNCTION)
        super().__init__(every)

    def check(self, runner: Run) -> None:
        super().check(runner)
        check_folder(self.folder, "figures")

    def act(self, runner: Run, record: dict[str, Any]) -> None:
        place = self.folder / f"epoch-{record['epoch']:05d}"
        place.mkdir(parents=True, exist_ok=True)
        self.draw(runner, place)


class StopEarly:
    """End training when a number in the record has stopped improving.

    The parameters are those of that moment, not the best ones. To stop by a number on held-out
    data, put an :class:`Evaluate` before this callback. Each call of ``fit`` waits anew, unless it
    resumes a run or is a part of ``fit_neighbors``.

    :param measure: the number's name in the record; records without it are skipped.
    :param patience: records without an improvement before training ends.
    :param threshold: the least improvement that counts, in the measure's unit.
    :param larger_is_better: true for an ELBO, false for an objective.
    :raises ValueError: if ``patience`` is below 1 or ``threshold`` is not a number; during
        training, if more than ``patience`` records have come and none holds the measure.

    Example:
        >>> import numpy as np
        >>> from facetvae import VAE, SVIRunner, SharedMLP, VaDEGuide
        >>> from inference.callbacks import StopEarly
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> runner, x = SVIRunner(model, VaDEGuide(model)), np.random.default_rng(0).random((20, 6))
        >>> stop = StopEarly("elbo", patience=2, threshold=100.0)  # more than two epochs can bring
        >>> runner.fit(x, epochs=10, progress=False, callbacks=[stop]).epoch
        3
    """

    def __init__(
        self,
        measure: str = "elbo",
        patience: int = 10,
        threshold: float = 0.0,
        larger_is_better: bool = True,
    ) -> None:
        self.measure = check_kind("measure", measure, str, "a name in the record, such as 'elbo'")
        self.patience = check_count("patience", patience)
        self.threshold, self.sign = _check_threshold(threshold), 1 if larger_is_better else -1
        self.best: float | None = None
        self.waited = 0

    def check(self, runner: Run) -> None:
        if not runner.continued:
            self.best, self.waited = None, 0

    def __call__(self, runner: Run, record: dict[str, Any]) -> None:
        if self.measure not in record:
            self._missing(record)
            return
        value = self.sign * record[self.measure]
        if self._better(value):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        runner.should_stop = runner.should_stop or self.waited >= self.patience

    def _better(self, value: float) -> bool:
        """Any number is better than none, and than NaN."""
        if self.best is None or isnan(self.best):
            return self.best is None or not isnan(value)
        return value > self.best + self.threshold

    def _missing(self, record: dict[str, Any]) -> None:
        self.waited += self.best is None
        if self.waited > self.patience and self.best is None:
            raise ValueError(
                f"none of {self.waited} records has {self.measure!r}, but {sorted(record)}: name "
                "one of these, or add the measure by an Evaluate before this callback"
            )

    def settings(self) -> dict[str, Any]:
        return {
            "measure": self.measure,
            "patience": self.patience,
            "threshold": self.threshold,
            "larger_is_better": self.sign > 0,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


class ReduceOnPlateau:
    """Multiply the rate by ``factor`` once the objective no longer falls (PyTorch's scheduler).

    It follows the objective of each record, a mean over the logging interval, and adds the rate to
    the record as ``lr``. As :class:`StopEarly`, it waits anew in each call of ``fit``.

    :param patience: records without an improvement before the rate is reduced.
    :param threshold: the least improvement that counts, in nats per datum.
    :raises ValueError: if ``factor`` is not between 0 and 1, ``patience`` is below 1 or
        ``threshold`` is not a number.

    Example:
        >>> import numpy as np
        >>> from facetvae import VAE, SVIRunner, SharedMLP, VaDEGuide
        >>> from inference.callbacks import ReduceOnPlateau
        >>> model = VAE((6,), 2, network=SharedMLP((8,)))
        >>> runner = SVIRunner(model, VaDEGuide(model), lr=0.001)
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> reduce = ReduceOnPlateau(factor=0.5, patience=5)
        >>> runner.fit(x, epochs=2, progress=False, callbacks=[reduce]).history[-1]["lr"]
        0.001
    """

    def __init__(self, factor: float = 0.5, patience: int = 5, threshold: float = 0.01) -> None:
        if not 0 < number(factor) < 1:
            raise ValueError(f"factor must be within (0, 1), got {factor!r}")
        self.options: dict[str, Any] = {
            "factor": factor,
            "patience": check_count("patience", patience),
            "threshold": _check_threshold(threshold),
        }
        self.scheduler: ReduceLROnPlateau | None = None
        self.resumed: dict[str, Any] = {}

    def check(self, runner: Run) -> None:
        if not runner.continued:
            self.scheduler, self.resumed = None, {}

    def __call__(self, runner: Run, record: dict[str, Any]) -> None:
        if self.scheduler is None or self.scheduler.optimizer is not runner.optimizer:
            self.scheduler = ReduceLROnPlateau(
                runner.optimizer, threshold_mode="abs", **self.options
            )
            self.scheduler.load_state_dict(self.resumed)
            self.resumed = {}
        self.scheduler.step(record["objective"])
        record["lr"] = runner.optimizer.param_groups[0]["lr"]

    def settings(self) -> dict[str, Any]:
        return dict(self.options)

    def state_dict(self) -> dict[str, Any]:
        if self.scheduler is None:
            return {"scheduler": self.resumed}
        state = self.scheduler.state_dict()
        return {"scheduler": {name: state[name] for name in PLATEAU}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        # The scheduler needs the run's optimizer, which is available at the next record.
        self.scheduler, self.resumed = None, dict(state["scheduler"])


def _check_threshold(value: Any) -> float:
    if not isfinite(number(value)):
        raise ValueError(f"threshold must be a number, got {value!r}")
    return number(value)
