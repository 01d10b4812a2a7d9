"""Things to do while a run goes on: a callback gets the runner and each new record of its history.

One that remembers something has ``state(runner)``, which gives it in JSON types, and ``restore(runner, state)``: they
are called where a run is checkpointed and resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from inference.initialization import chosen_mixtures, fit_mixtures
from inference.runner import SVIRunner
from ppl_models.checks import check_count
from ppl_models.data import as_data

__all__ = ["Evaluate", "FitMixtures", "JSONLines", "ReduceOnPlateau"]


class Evaluate:
    """Add your own measures to the record, in the first record after each ``every`` epochs.

    :param measure: called with the runner; returns ``{name: number}``.
    """

    def __init__(self, measure: Callable[[SVIRunner], Mapping[str, float]], every: int = 1) -> None:
        self.measure = measure
        self.every = check_count("every", every)
        self.done = 0

    def __call__(self, runner: SVIRunner, record: dict[str, Any]) -> None:
        if record["epoch"] // self.every > self.done:
            self.done = record["epoch"] // self.every
            record.update({name: float(value) for name, value in self.measure(runner).items()})

    def state(self, runner: SVIRunner) -> int:
        return self.done

    def restore(self, runner: SVIRunner, state: int) -> None:
        self.done = state


class FitMixtures:
    """Fit mixtures anew to the latents, once, in the first record from an epoch on.

    A mixture that is trained from its start may settle with two groups in one component, which descent does not undo;
    a fit with restarts finds them, once the latents have taken shape.

    :param x: the data, ``[N, *x_shape]``.
    :param epoch: when; never, in a run that ends before.
    :param facets: which; all mixtures where not given.
    :param restarts: fits of each mixture, of which the likeliest is taken.

    In its first record it raises ``ValueError`` if ``x`` does not fit the model, or a facet is unknown or no mixture.
    """

    def __init__(
        self, x: ArrayLike | Tensor, epoch: int, facets: Sequence[str] | None = None, restarts: int = 3
    ) -> None:
        self.x, self.facets = x, facets
        self.epoch = check_count("epoch", epoch)
        self.restarts = check_count("restarts", restarts)
        self.done = self.checked = False

    def __call__(self, runner: SVIRunner, record: dict[str, Any]) -> None:
        if not self.checked:
            self.x, self.checked = as_data(self.x, runner.model), True
            chosen_mixtures(runner.model, self.facets)
        if record["epoch"] >= self.epoch and not self.done:
            self.done = True
            fit_mixtures(runner.guide, self.x, seed=runner.seed, facets=self.facets, n_init=self.restarts)

    def state(self, runner: SVIRunner) -> bool:
        return self.done

    def restore(self, runner: SVIRunner, state: bool) -> None:
        self.done = state


class JSONLines:
    """Append each record to a file, one JSON object a line; the file can be followed while the run goes on.

    :param path: what is there is overwritten by the first record.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lines = 0

    def __call__(self, runner: SVIRunner, record: dict[str, Any]) -> None:
        with self.path.open("a" if self.lines else "w") as file:
            file.write(json.dumps(record) + "\n")
        self.lines += 1

    def state(self, runner: SVIRunner) -> int:
        return self.lines

    def restore(self, runner: SVIRunner, state: int) -> None:
        self.lines = state
        last = runner.history[max(0, len(runner.history) - state) :]
        self.path.write_text("".join(json.dumps(record) + "\n" for record in last))


class ReduceOnPlateau:
    """Multiply the rate by ``factor`` when the objective has not fallen for a while (PyTorch's scheduler of that name).

    It looks at the objective of each record, a mean over the logging interval, and notes the rate as ``lr``.

    :param patience: records without an improvement before the rate falls.
    :param threshold: what counts as an improvement, in nats per datum.
    :raises ValueError: if ``factor`` is not between 0 and 1, or ``patience`` is below 1.
    """

    def __init__(self, factor: float = 0.5, patience: int = 5, threshold: float = 0.01) -> None:
        if not 0 < factor < 1:
            raise ValueError(f"factor must be within (0, 1), got {factor}")
        patience = check_count("patience", patience)
        self.options: dict[str, Any] = {"factor": factor, "patience": patience, "threshold": threshold}
        self.scheduler: ReduceLROnPlateau | None = None

    def __call__(self, runner: SVIRunner, record: dict[str, Any]) -> None:
        if self.scheduler is None or self.scheduler.optimizer is not runner.optimizer:
            self.scheduler = ReduceLROnPlateau(runner.optimizer, threshold_mode="abs", **self.options)
        self.scheduler.step(record["objective"])
        record["lr"] = runner.optimizer.param_groups[0]["lr"]

    def state(self, runner: SVIRunner) -> dict[str, Any] | None:
        if self.scheduler is None or self.scheduler.optimizer is not runner.optimizer:
            return None
        return {name: value for name, value in self.scheduler.state_dict().items() if _plain(value)}

    def restore(self, runner: SVIRunner, state: dict[str, Any]) -> None:
        self.scheduler = ReduceLROnPlateau(runner.optimizer, threshold_mode="abs", **self.options)
        self.scheduler.load_state_dict(state)


def _plain(value: Any) -> bool:
    """Whether JSON can hold it."""
    return value is None or isinstance(value, bool | int | float | str | list)
