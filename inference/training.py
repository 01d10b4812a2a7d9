"""The training loop: of one run, or of several of a kind in one program."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from inspect import isfunction
from typing import TYPE_CHECKING, Any

import pyro
import torch
from numpy.typing import ArrayLike
from pyro.poutine.util import is_validation_enabled
from torch import Tensor, nn
from tqdm.auto import tqdm

from inference.batches import Batches, Groups, Rows
from inference.evaluation import mutual_information
from inference.guard import Faults
from inference.objectives import Loss
from inference.randomness import random_state, seeded, set_random_state
from inference.resuming import Checkpoints, Keeper, Position, fingerprint
from inference.schedules import Weights
from ppl_models.base import evaluating
from ppl_models.checks import check_count
from ppl_models.configurable import to_config
from ppl_models.data import Observed
from ppl_models.precision import network_precision

if TYPE_CHECKING:
    from inference.runner import SVIRunner

__all__ = ["Callback", "DeadFacetWarning", "fit_together", "train"]

# Rows that the terms of the ELBO and the mutual information are measured on at each logging interval.
WATCHED_ROWS = 2048
# So many faulty steps with no good one among them end a run that skips them.
IN_A_ROW = 10
# Below this many nats a facet that is fully in tells (next to) nothing about the data.
DEAD_BELOW = 0.01

Callback = Callable[["SVIRunner", dict[str, Any]], None]


class DeadFacetWarning(UserWarning):
    """A fitted facet tells nothing about the data."""


def fit_together(
    runners: Sequence[SVIRunner],
    x: ArrayLike | Tensor,
    epochs: int,
    batch_size: int = 512,
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
    callbacks, and can be saved, loaded or trained on alone. Random numbers are the first runner's.

    :param runners: built alike but for parameters and seed: model, guide, objective, schedule, precision and device;
        as many steps behind each. Optimisers are their own, and so are rates.
    :param x: data ``[N, *x_shape]``, for all runs; what else the models take (``given``) is for all as well.
    :param callbacks: gives a runner its own callbacks; those of :meth:`SVIRunner.fit <inference.SVIRunner.fit>`.
    :raises ValueError: before training, if data or sizes do not fit, or the runners are not of a kind.
    :raises FloatingPointError: at a logging interval, where a run's guard says so; see :class:`~inference.Guard`.
    """
    runners = list(runners)
    _check_alike(runners)
    if not callable(callbacks):
        raise ValueError(f"callbacks must be a function that gives a runner its own, got {callbacks!r}")
    each = [callbacks(runner) for runner in runners]
    shared = {id(callback) for callback in each[0]}
    if any(id(callback) in shared for calls in each[1:] for callback in calls if not isfunction(callback)):
        raise ValueError("two runners got the same callback: what it remembers of one is not so of the other")
    train(runners, Together, x, epochs, batch_size, log_every, each, progress, None, checkpoints, given)


class Steps(ABC):
    """How the runs take their steps.

    :param runners: one or several; the first one's schedule holds for all.
    :param weights: of the terms, by the step.
    :param batches: how data are dealt.
    :param faults: of each run.
    """

    def __init__(
        self, runners: Sequence[SVIRunner], weights: Weights, batches: Batches, faults: Sequence[Faults]
    ) -> None:
        self.runners = runners
        self.weights = weights
        self.batches = batches
        self.faults = faults

    @abstractmethod
    def deal(self, data: Observed, batch_size: int) -> Iterator[Observed]:
        """One shuffled pass over the data."""

    @abstractmethod
    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        """One optimiser step; the objectives before it, ``[S]``, 0 where the step was not taken for a fault."""

    def close(self) -> None:
        """Leave the runs as they would be alone."""
        for faults in self.faults:
            faults.let_go()


class Alone(Steps):
    """One run."""

    def deal(self, data: Observed, batch_size: int) -> Iterator[Observed]:
        return self.batches.deal(data, batch_size)

    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        (runner,) = self.runners
        self.faults[0].remember()
        loss = _AtStep(runner.loss, self.weights)(step, batch.x, batch.given, batch.size)
        runner.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        kept = self.faults[0].look(loss.detach(), step)
        self.faults[0].step()
        return kept


class Together(Steps):
    """Several runs whose parameters, gradients and buffers lie in stacks; the runs' own are views of these."""

    def __init__(
        self, runners: Sequence[SVIRunner], weights: Weights, batches: Batches, faults: Sequence[Faults]
    ) -> None:
        super().__init__(runners, weights, batches, faults)
        if not isinstance(batches, Rows):
            raise ValueError(
                f"runs that are trained together take batches of as many rows, and {batches!r} does not deal them: "
                "train each alone, with SVIRunner.fit"
            )
        self.rows = batches
        self.program = _AtStep(runners[0].loss, weights)
        programs = [_AtStep(runner.loss, weights) for runner in runners]
        self.parameters = _stacked([dict(program.named_parameters()) for program in programs])
        self.buffers = _stacked([dict(program.named_buffers()) for program in programs])
        self.gradients = [p.grad for p in self.parameters.values() if p.grad is not None]

    def deal(self, data: Observed, batch_size: int) -> Iterator[Observed]:
        orders = torch.stack([self.rows.order(data) for _ in self.runners])
        return (data[rows] for rows in orders.split(batch_size, dim=1))

    def __call__(self, batch: Observed, step: Tensor) -> Tensor:
        torch._foreach_zero_(self.gradients)
        for faults in self.faults:
            faults.remember()
        mapped = torch.vmap(self._loss, in_dims=(0, 0, 0, 0, None), randomness="different")
        losses = mapped(self.parameters, self.buffers, batch.x, batch.given, step)
        losses.sum().backward()  # no run has a part in another's objective
        kept = [faults.look(loss, step) for faults, loss in zip(self.faults, losses.detach(), strict=True)]
        for faults in self.faults:
            faults.step()
        return torch.stack(kept)

    def _loss(
        self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, given: Any, step: Tensor
    ) -> Tensor:
        return torch.func.functional_call(self.program, (parameters, buffers), (step, x, given))

    def close(self) -> None:
        super().close()
        for runner in self.runners:
            for parameter in runner.loss.parameters():
                parameter.data, parameter.grad = parameter.data.clone(), None
            for module in runner.loss.modules():
                for name, buffer in module.named_buffers(recurse=False):
                    setattr(module, name, buffer.clone())  # a schedule may have given one object to all


class _AtStep(nn.Module):
    """The objective with its weights, and whatever of the guide changes in training, as they are at a step."""

    def __init__(self, loss: Loss, weights: Weights) -> None:
        super().__init__()
        self.loss = loss
        self.weights = weights

    def forward(self, step: Tensor, x: Tensor, given: Mapping[str, Tensor], size: float | None = None) -> Tensor:
        self.set(step)
        return self.loss(x, size, **given)

    def set(self, step: Tensor) -> None:
        self.loss.model.kl_weights, self.loss.model.gates = self.weights(step)
        self.loss.guide.at_step(step)


def _stacked(each: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stacks ``[S, ...]`` by name, of which the given tensors, and their gradients, become views."""
    stacks = {}
    for name, lead in each[0].items():
        stack = torch.stack([tensors[name].detach() for tensors in each])
        for tensors, part in zip(each, stack, strict=True):
            tensors[name].data, tensors[name].grad = part, None
        if lead.requires_grad:
            stack.requires_grad_().grad = torch.zeros_like(stack)
            for tensors, part in zip(each, stack.grad, strict=True):  # type: ignore[arg-type]
                tensors[name].grad = part
        stacks[name] = stack
    return stacks


def train(
    runners: Sequence[SVIRunner],
    kind: type[Steps],
    x: ArrayLike | Tensor,
    epochs: int,
    batch_size: int,
    log_every: int,
    callbacks: Sequence[Sequence[Callback]],
    progress: bool,
    batches: Batches | None,
    checkpoints: Checkpoints | None,
    given: Mapping[str, Any],
) -> None:
    """What :meth:`SVIRunner.fit <inference.SVIRunner.fit>` and :func:`fit_together` have in common.

    :param callbacks: of each runner.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("log_every", log_every)):
        check_count(name, value)
    lead = runners[0]
    data = lead.guide.observed(x, given).to(lead.device)
    batches = batches if batches is not None else Groups() if "group" in data.given else Rows()
    batches.check(data)
    steps_per_epoch = batches.steps(data, batch_size)
    weights = lead.schedule.bind(lead.model, steps_per_epoch, lead.step + epochs * steps_per_epoch)
    watched = batches.some(data, WATCHED_ROWS)
    checks = is_validation_enabled()
    first = batches.some(data, batch_size)
    faults = [Faults(runner) for runner in runners]
    at = Position(logged=lead.step, total_loss=lead.model.gates.new_zeros(len(runners)), faults=faults)
    sizes = (epochs, batch_size, log_every)
    call = _call(runners, kind, data, sizes, batches, callbacks) if checkpoints is not None else {}
    with lead.while_training(), tqdm(total=epochs, unit="epoch", disable=not progress, dynamic_ncols=True) as bar:
        for runner in runners:
            _check_first_step(runner, first, weights)
        kept = nullcontext(NoKeeper()) if checkpoints is None else checkpoints.of(runners, callbacks, call)
        with kept as keeper, pyro.validation_enabled(False):
            keeper.restore(at)
            if at.random and not at.batches:
                set_random_state(at.random, lead.device)
            bar.update(at.epoch)
            with _closing(kind(runners, weights, batches, faults)) as steps:
                for records in _loop(steps, data, epochs, batch_size, log_every, bar, at, keeper):
                    with network_precision(None), pyro.validation_enabled(checks):
                        for runner, record, calls in zip(runners, records, callbacks, strict=True):
                            with seeded(0, lead.device):
                                record |= _watch(runner, watched)
                                runner.history.append(record)
                                for callback in calls:
                                    callback(runner, record)
                    bar.set_postfix({name: f"{records[0][name]:.2f}" for name in ("objective", "elbo")})
    for runner in runners:
        runner.loss.eval()
        _warn_of_dead_facets(runner, watched)


@contextmanager
def _closing(steps: Steps) -> Iterator[Steps]:
    try:
        yield steps
    finally:
        steps.close()


def _loop(
    steps: Steps,
    data: Observed,
    epochs: int,
    batch_size: int,
    log_every: int,
    bar: tqdm,
    at: Position,
    keeper: Keeper | NoKeeper,
) -> Iterator[list[dict[str, Any]]]:
    """The loop itself: yields the start of each run's record at each logging interval."""
    runners, lead = steps.runners, steps.runners[0]
    started, first = time.perf_counter() - at.seconds, lead.epoch - at.epoch
    step = torch.full_like(lead.model.gates[0], lead.step)
    for epoch in range(at.epoch + 1, epochs + 1):
        for runner in runners:
            runner.loss.train()
        for batch in _dealt(steps, data, batch_size, at):
            at.total_loss += steps(batch, step)
            step += 1
            at.batches += 1
            for runner in runners:
                runner.step += 1
            keeper.after_step(at)
        at.epoch, at.batches = epoch, 0
        for runner in runners:
            runner.epoch = first + epoch
        bar.update()
        if epoch % log_every == 0 or epoch == epochs:
            for runner in runners:
                _AtStep(runner.loss, steps.weights).set(step - 1)
            progress = {"epoch": lead.epoch, "step": lead.step, "seconds": time.perf_counter() - started}
            skipped = [_settle(faults, lead.step - at.logged, data, batch_size) for faults in steps.faults]
            counts = torch.tensor([lead.step - at.logged - n for n in skipped], device=at.total_loss.device)
            yield [
                {**progress, "objective": objective, **({"skipped": n} if n else {})}
                for objective, n in zip((at.total_loss / counts).tolist(), skipped, strict=True)
            ]
            at.logged = lead.step
            at.total_loss.zero_()
        keeper.after_epoch(at, last=epoch == epochs)


def _dealt(steps: Steps, data: Observed, batch_size: int, at: Position) -> Iterator[Observed]:
    """A pass over the data, or what is left of the one that a checkpoint stands in."""
    device = steps.runners[0].device
    if not at.batches:
        at.dealt_from = random_state(device)
        return steps.deal(data, batch_size)
    set_random_state(at.dealt_from, device)
    batches = steps.deal(data, batch_size)
    for _ in range(at.batches):
        next(batches)
    set_random_state(at.random, device)
    return batches


class NoKeeper:
    """In place of a keeper where no checkpoints are asked for."""

    def restore(self, at: Position) -> None:
        """Nothing is restored."""

    def after_step(self, at: Position) -> None:
        """Nothing is written."""

    def after_epoch(self, at: Position, last: bool) -> None:
        """Nothing is written."""


def _call(
    runners: Sequence[SVIRunner],
    kind: type[Steps],
    data: Observed,
    sizes: tuple[int, ...],
    batches: Batches,
    callbacks: Sequence[Sequence[Callback]],
) -> dict[str, Any]:
    """What makes a call of ``fit`` what it is."""
    return {
        "sizes": list(sizes),
        "batches": to_config(batches),
        "data": {"x": fingerprint(data.x)} | {name: fingerprint(values) for name, values in data.given.items()},
        "kind": kind.__name__,
        "schedule": to_config(runners[0].schedule),
        "guide and model": _described(runners[0].guide),
        "objective": [type(runners[0].loss.objective).__name__, *_plain(vars(runners[0].loss.objective))],
        "guard": to_config(runners[0].guard),
        "callbacks": [[type(callback).__name__ for callback in calls] for calls in callbacks],
        "device": runners[0].device.type,
        "runners": [[runner.seed, runner.precision, runner.epoch, runner.step, runner.lr] for runner in runners],
        "weights": {name: list(t.shape) for name, t in runners[0].loss.state_dict().items()},
    }


def _described(guide: Any) -> Any:
    try:
        return to_config(guide)
    except TypeError:  # parts of a user's own, told apart by their weights
        return type(guide).__name__


def _plain(values: Mapping[str, Any]) -> list[str]:
    return [f"{k}={v!r}" for k, v in sorted(values.items()) if v is None or isinstance(v, bool | int | float | str)]


def _settle(faults: Faults, steps: int, data: Observed, batch_size: int) -> int:
    """How many steps since the last record were not taken; the rate halved, or an end, where that is what was asked.

    :raises FloatingPointError: if a fault is to stop the run, or ten steps or more have had nothing but faults.
    """
    runner, skipped = faults.runner, int(faults.count)
    faults.in_a_row = faults.in_a_row + skipped if skipped == steps else 0
    if skipped and (runner.guard.action == "stop" or faults.in_a_row >= IN_A_ROW):
        raise FloatingPointError(_diagnosis(faults, data, batch_size))
    if skipped and runner.guard.action == "halve":
        for group in runner.optimizer.param_groups:
            group["lr"] /= 2
    faults.forget()
    return skipped


def _diagnosis(faults: Faults, data: Observed, batch_size: int) -> str:
    """Which step, which of the parameters' gradients, and, as far as it can be found again, which term."""
    runner, terms = faults.runner, list[str]()
    for batch in data.whole_groups(max(batch_size, WATCHED_ROWS)):
        found = runner.loss.terms(batch.x, **batch.given)
        terms = [name for name, value in found.items() if name != "elbo" and not value.isfinite()]
        if terms:
            break
    return (
        f"the objective of the run with seed {runner.seed}, or its gradient, was not finite at step "
        f"{int(faults.first) + 1} (the run is in epoch {runner.epoch}) at lr={runner.optimizer.param_groups[0]['lr']}; "
        "parameters are as they were before that step.\n"
        f"  Gradients that were not finite: {_some(faults.broken()) or 'none'}\n"
        f"  Terms that are not, on the data, with these parameters: {_some(terms) or 'none'}\n"
        "  Try one of:\n  - a lower rate\n  - data of another scale\n"
        '  - to skip such steps: guard=Guard("skip"), or Guard("halve"), which halves the rate as well'
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")


def _check_first_step(runner: SVIRunner, batch: Observed, weights: Weights) -> None:
    """One objective with all of Pyro's checks on; it changes neither parameters nor the stream of draws."""
    at_start = weights(torch.full_like(runner.model.gates[0], runner.step))
    checked = pyro.validation_enabled(True)
    with (
        seeded(0, runner.device),
        checked,
        torch.no_grad(),
        evaluating(runner.loss),
        runner.model.weights_set_to(*at_start),
    ):
        loss = runner.loss(batch.x, **batch.given)
    if not loss.isfinite():
        raise ValueError(
            f"the objective is {float(loss)} before the first step: check the scale of the data "
            "and the parameters that the model was given"
        )


def _check_alike(runners: Sequence[SVIRunner]) -> None:
    if not runners:
        raise ValueError("there are no runners to train together")
    held = [id(p) for runner in runners for p in runner.loss.parameters()]
    if len(set(held)) < len(held):
        raise ValueError("two runners hold the same parameters: build a model and a guide for each")
    lead, *others = (_kind(runner) for runner in runners)
    for i, other in enumerate(others, start=1):
        if differing := [what for what in lead if lead[what] != other[what]]:
            raise ValueError(
                f"runner {i} differs from the first one in its {' and '.join(differing)}: runs that are trained "
                "together differ in their parameters, seeds and rates only"
            )


def _kind(runner: SVIRunner) -> dict[str, Any]:
    return {
        "guide and model": to_config(runner.guide),
        "objective": (type(runner.loss.objective), vars(runner.loss.objective)),
        "schedule": to_config(runner.schedule),
        "precision": (runner.precision, runner.model.gates.dtype),
        "parameters that learn": {name for name, p in runner.loss.named_parameters() if p.requires_grad},
        "device": runner.device,
        "steps": (runner.epoch, runner.step),
    }


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
