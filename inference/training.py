"""The training loop: of one run, or of several of a kind in one program."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import isfunction
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyro
import torch
from numpy.typing import ArrayLike
from pyro.poutine.util import is_validation_enabled
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from inference.evaluation import mutual_information
from inference.feeds import Feed, feed_for
from inference.guard import Faults
from inference.processes import Processes
from inference.randomness import seeded, set_random_state
from inference.resuming import Checkpoints, Keeper
from inference.schedules import Weights
from inference.state import Position
from inference.steps import AtStep, Steps, Together
from ppl_models.base import evaluating
from ppl_models.checks import check_count, check_kind
from ppl_models.configurable import to_config
from ppl_models.data import Observed
from ppl_models.precision import network_precision

if TYPE_CHECKING:
    from inference.runner import SVIRunner

__all__ = ["Call", "Callback", "DeadFacetWarning", "check_callbacks", "fit_together", "train"]

# Rows that the terms of the ELBO and the mutual information are measured on at each logging interval.
WATCHED_ROWS = 2048
# Below this many nats a facet that is fully in tells (next to) nothing about the data.
DEAD_BELOW = 0.01

#: Called with a runner and its new record.
Callback = Callable[["SVIRunner", dict[str, Any]], None]


class DeadFacetWarning(UserWarning):
    """A fitted facet tells nothing about the data."""


def fit_together(
    runners: Sequence[SVIRunner],
    x: ArrayLike | Tensor,
    epochs: int,
    batch_size: int | None = None,
    log_every: int = 1,
    callbacks: Callable[[SVIRunner], Sequence[Callback]] = lambda runner: (),
    progress: bool = True,
    checkpoints: Checkpoints | None = None,
    **given: Any,
) -> None:
    """Train several runs of a kind as one program, for many seeds of small networks on one machine.

    As :meth:`SVIRunner.fit <inference.SVIRunner.fit>` for each of ``runners`` in turn, and alike in distribution, the
    draws being others: parameters are stacked and the objective is mapped over them (``torch.vmap``), so that each of
    its operations is called once for all runs. Each run has its own networks, shuffling, draws, optimiser, history and
    callbacks, and can be saved, loaded or trained on alone. Random numbers are the first runner's, but for the
    shuffling. It ends before its last epoch where callbacks of all runs ask for it.

    :param runners: built alike but for parameters and seed: model, guide, objective, schedule, precision and device;
        as many steps behind each. Optimisers are their own, and so are rates.
    :param x: data ``[N, *x_shape]``, for all runs; what else the models take (``given``) is for all as well.
    :param callbacks: gives a runner its own callbacks; those of :meth:`SVIRunner.fit <inference.SVIRunner.fit>`.
    :raises ValueError: before training, if data or sizes do not fit, or the runners are not of a kind.
    :raises FloatingPointError: at a logging interval, where a run's guard says so; see :class:`~inference.Guard`.
    """
    runners = list(check_kind("runners", runners, Iterable, "runners in a sequence, such as [runner]"))
    _check_alike(runners)
    if not callable(callbacks):
        raise ValueError(f"callbacks must be a function that gives a runner its own, got {callbacks!r}")
    each = [check_callbacks(callbacks(runner)) for runner in runners]
    shared = {id(callback) for callback in each[0]}
    if any(id(callback) in shared for calls in each[1:] for callback in calls if not isfunction(callback)):
        raise ValueError("two runners got the same callback: what it remembers of one is not so of the other")
    if isinstance(x, DataLoader):
        raise ValueError(
            "runs that are trained together take data, no DataLoader: train each alone, with SVIRunner.fit"
        )
    feed = feed_for(runners[0].guide, runners[0].device, x, given, batch_size, None)
    train(Call(runners, Together, feed, epochs, log_every, each, progress, checkpoints))


@dataclass(frozen=True)
class Call:
    """One call of :meth:`SVIRunner.fit <inference.SVIRunner.fit>` or :func:`fit_together`.

    :ivar runners: that are trained; the first one's schedule and random numbers are for all.
    :ivar kind: how they take their steps.
    :ivar callbacks: of each runner.
    :raises ValueError: if a number is not positive, or checkpoints are none.
    """

    runners: Sequence[SVIRunner]
    kind: type[Steps]
    feed: Feed
    epochs: int
    log_every: int
    callbacks: Sequence[Sequence[Callback]]
    progress: bool
    checkpoints: Checkpoints | None = None
    processes: Processes = field(default_factory=Processes)

    def __post_init__(self) -> None:
        for name in ("epochs", "log_every"):
            check_count(name, getattr(self, name))
        if self.checkpoints is not None:
            check_kind("checkpoints", self.checkpoints, Checkpoints, "such as Checkpoints('folder')")

    @property
    def lead(self) -> SVIRunner:
        return self.runners[0]

    def check(self) -> None:
        """Let callbacks that can say so say that they will fail."""
        for runner, calls in zip(self.runners, self.callbacks, strict=True):
            for callback in calls:
                if callable(check := getattr(callback, "check", None)):
                    check(runner)

    def weights(self) -> Weights:
        """Those of the schedule over this call's steps."""
        steps = self.feed.steps
        return self.lead.schedule.bind(self.lead.model, steps, self.lead.step + self.epochs * steps)

    def described(self) -> dict[str, Any]:
        """What makes this call what it is, so that another one is not gone on with in its place; in JSON types."""
        return {
            **describe(self.lead),
            **self.feed.described(),
            "sizes": [self.epochs, self.feed.batch_size, self.log_every],
            "kind": self.kind.__name__,
            "guard": to_config(self.lead.guard),
            "callbacks": [[type(callback).__name__ for callback in calls] for calls in self.callbacks],
            "runners": [[runner.seed, runner.epoch, runner.step, runner.lr] for runner in self.runners],
        }

    @contextmanager
    def keeper(self) -> Iterator[Keeper | NoKeeper]:
        """Whoever writes and reads checkpoints."""
        if self.checkpoints is None:
            yield NoKeeper()
            return
        with self.checkpoints.of(self.runners, self.callbacks, self.described(), self.processes) as keeper:
            yield keeper


def describe(runner: SVIRunner) -> dict[str, Any]:
    """What runs of a kind have in common, in JSON types."""
    objective = runner.loss.objective
    return {
        "guide and model": _described(runner.guide),
        "objective": [type(objective).__name__, *_plain(vars(objective))],
        "schedule": to_config(runner.schedule),
        "precision": [runner.precision, str(runner.model.gates.dtype)],
        "parameters that learn": [name for name, p in runner.loss.named_parameters() if p.requires_grad],
        "weights": {name: list(t.shape) for name, t in runner.loss.state_dict().items()},
        "device": runner.device.type,
    }


def _described(guide: Any) -> Any:
    try:
        return to_config(guide)
    except TypeError:  # parts of a user's own, told apart by their weights
        return type(guide).__name__


def _plain(values: Mapping[str, Any]) -> list[str]:
    return [f"{k}={v!r}" for k, v in sorted(values.items()) if v is None or isinstance(v, bool | int | float | str)]


def check_callbacks(callbacks: Any) -> Sequence[Callback]:
    """``callbacks`` if they are some that can be called at each record.

    :raises ValueError: naming what cannot be.
    """
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise ValueError(f"callbacks must be in a sequence, such as [callback], got {callbacks!r}")
    for callback in callbacks:
        if isinstance(callback, type) or not callable(callback):
            raise ValueError(f"each of callbacks is called with a runner and a record, got {callback!r}")
    return callbacks


def _check_alike(runners: Sequence[SVIRunner]) -> None:
    from inference.runner import SVIRunner  # which imports this module

    if not runners:
        raise ValueError("there are no runners to train together")
    for runner in runners:
        check_kind("each of runners", runner, SVIRunner, "an SVIRunner")
    held = [id(p) for runner in runners for p in runner.loss.parameters()]
    if len(set(held)) < len(held):
        raise ValueError("two runners hold the same parameters: build a model and a guide for each")
    lead, *others = (
        describe(runner) | {"device": runner.device, "steps": (runner.epoch, runner.step)} for runner in runners
    )
    for i, other in enumerate(others, start=1):
        if differing := [what for what in lead if lead[what] != other[what]]:
            raise ValueError(
                f"runner {i} differs from the first one in its {' and '.join(differing)}: runs that are trained "
                "together differ in their parameters, seeds and rates only"
            )


def train(call: Call) -> None:
    """What all calls have in common."""
    lead, processes, feed, weights = call.lead, call.processes, call.feed, call.weights()
    processes.check_alike(lambda: {name: v for name, v in call.described().items() if name != "callbacks"})
    processes.first(call.check)
    watched = feed.some(WATCHED_ROWS)
    first = feed.some(feed.batch_size)
    faults = [Faults(runner) for runner in call.runners]
    at = Position(logged=lead.step, total_loss=lead.model.gates.new_zeros(len(call.runners)), faults=faults)
    shown = call.progress and processes.leads
    with lead.while_training(), tqdm(total=call.epochs, unit="epoch", disable=not shown, dynamic_ncols=True) as bar:
        for runner in call.runners:
            runner.should_stop = False
            processes.share(runner)
            _check_first_step(runner, first, weights)
        if not processes.leads:
            set_random_state(processes.fresh(lead), lead.device)
        checks = is_validation_enabled()
        with call.keeper() as keeper, pyro.validation_enabled(False):
            keeper.restore(at)
            if at.random:
                set_random_state(at.random, lead.device)
            bar.update(at.epoch)
            with _closing(call.kind(call.runners, weights, feed, faults, processes)) as steps:
                for records in _loop(call, steps, bar, at, keeper):
                    with network_precision(None), pyro.validation_enabled(checks):
                        _report(call, records, watched)
                    bar.set_postfix({name: f"{records[0][name]:.2f}" for name in ("objective", "elbo")})
    for runner in call.runners:
        runner.loss.eval()
        if processes.leads:
            _warn_of_dead_facets(runner, watched)


def _report(call: Call, records: Sequence[dict[str, Any]], watched: Observed) -> None:
    """Complete each run's record and give it to its callbacks, in the first process; then all have what that has."""

    def complete(runner: SVIRunner, record: dict[str, Any], calls: Sequence[Callback]) -> None:
        with seeded(0, call.lead.device):
            record |= _watch(runner, watched)
            runner.history.append(record)
            for callback in calls:
                callback(runner, record)

    for runner, record, calls in zip(call.runners, records, call.callbacks, strict=True):
        call.processes.first(lambda: complete(runner, record, calls))  # noqa: B023, called at once
        call.processes.share(runner)
        record |= runner.history[-1]


@contextmanager
def _closing(steps: Steps) -> Iterator[Steps]:
    try:
        yield steps
    finally:
        steps.close()


def _loop(call: Call, steps: Steps, bar: tqdm, at: Position, keeper: Keeper | NoKeeper) -> Iterator[list[dict]]:
    """The loop itself: yields the start of each run's record at each logging interval."""
    runners, lead = call.runners, call.lead
    started, first = time.perf_counter() - at.seconds, lead.epoch - at.epoch
    step = torch.full_like(lead.model.gates[0], lead.step)
    while at.epoch < call.epochs and not at.stopped:
        for runner in runners:
            runner.loss.train()
        for batch in islice(steps.deal(), at.batches, None):
            at.total_loss += steps(batch, step)
            step += 1
            at.batches += 1
            for runner in runners:
                runner.step += 1
            keeper.after_step(at)
        at.epoch, at.batches = at.epoch + 1, 0
        for runner in runners:
            runner.epoch = first + at.epoch
        bar.update()
        if at.epoch % call.log_every == 0 or at.epoch == call.epochs:
            for runner in runners:
                AtStep(runner.loss, steps.weights).set(step - 1)
            progress = {"epoch": lead.epoch, "step": lead.step, "seconds": time.perf_counter() - started}
            yield [progress | told for told in _objectives(steps, at)]
            at.logged = lead.step
            at.total_loss.zero_()
            at.stopped = all(runner.should_stop for runner in runners)
        keeper.after_epoch(at, last=at.stopped or at.epoch == call.epochs)


def _objectives(steps: Steps, at: Position) -> list[dict[str, Any]]:
    """Of each run, the mean objective since the last record, and how many steps were skipped, where some were."""
    taken = steps.runners[0].step - at.logged
    skipped = [faults.settle(taken, steps.feed) for faults in steps.faults]
    counts = torch.tensor([taken - n for n in skipped], device=at.total_loss.device)
    return [
        {"objective": objective} | ({"skipped": n} if n else {})
        for objective, n in zip((at.total_loss / counts).tolist(), skipped, strict=True)
    ]


class NoKeeper:
    """In place of a keeper where no checkpoints are asked for."""

    def restore(self, at: Position) -> None:
        """Nothing is restored."""

    def after_step(self, at: Position) -> None:
        """Nothing is written."""

    def after_epoch(self, at: Position, last: bool) -> None:
        """Nothing is written."""


def _check_first_step(runner: SVIRunner, batch: Observed, weights: Weights) -> None:
    """One objective with all of Pyro's checks on; it changes neither parameters nor the stream of draws."""
    at_start = weights(torch.full_like(runner.model.gates[0], runner.step))
    checked = pyro.validation_enabled(True)
    with (
        seeded(0, runner.device),
        checked,
        torch.enable_grad(),  # some of Pyro's objectives refuse where nothing can be differentiated
        evaluating(runner.loss),
        runner.model.weights_set_to(*at_start),
    ):
        loss = runner.loss(batch.x, **batch.given).detach()
    if not loss.isfinite():
        raise ValueError(
            f"the objective is {float(loss)} before the first step: check the scale of the data "
            "and the parameters that the model was given"
        )


def _watch(runner: SVIRunner, rows: Observed) -> dict[str, float]:
    with evaluating(runner.loss):
        terms = {name: float(value) for name, value in runner.loss.terms(rows.x, **rows.given).items()}
        information = mutual_information(runner.guide, rows.x, **rows.given)
    return terms | {f"mutual_information_{name}": nats for name, nats in information.items()}


def _warn_of_dead_facets(runner: SVIRunner, watched: Observed) -> None:
    """Say so if a facet that is fully in ended without telling anything about the data."""
    last, model = runner.history[-1], runner.model
    for (name, prior), gate in zip(model.priors.items(), model.gates.tolist(), strict=True):
        measures = {}
        if not runner.guide.deterministic:
            measures["KL(z)"] = last[f"kl_z_{name}"] + (0.0 if prior.apart else last.get(f"kl_c_{name}", 0.0))
            if name in model.shared:  # once a group, and not once a datum
                measures["KL(z)"] *= len(watched) / len(watched.given["group"].unique())
        if name in model.inferred and prior.num_components > 1:
            measures["mutual information"] = last[f"mutual_information_{name}"]
        for measure, nats in measures.items():
            if gate == 1 and nats < DEAD_BELOW:
                warnings.warn(
                    f"facet {name!r} ended with {measure} = {nats:.2g} nats, so it tells nothing about the data: "
                    "it has died, or has not learned yet; try a warm start, a slower fade-in or more epochs",
                    DeadFacetWarning,
                    stacklevel=4,
                )
                break
