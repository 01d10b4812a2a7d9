"""The training loop, for one run or for several similar runs in one program."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from math import nan
from typing import Any, Protocol

import pyro
import torch
from pyro.poutine.util import is_validation_enabled
from torch import Tensor
from tqdm import tqdm

from inference.distributed import SingleProcess
from inference.evaluation.bounds import mutual_information
from inference.objectives import Loss
from inference.progress import progress_bar
from inference.randomness import seeded, set_random_state
from inference.records import check_record
from inference.run import Callback, Run
from inference.schedules import WeightFunction
from inference.training.faults import report_faults
from inference.training.plan import FitPlan
from inference.training.steps import ScheduledLoss
from ppl_models.given.observed import Observed
from ppl_models.modes import evaluating, network_precision
from ppl_models.turns import yield_lock

__all__ = ["DeadFacetWarning", "train"]

# Rows on which the terms of the ELBO and the mutual information are computed at each logging
# interval.
WATCHED_ROWS = 2048
# Below this many nats a facet that is fully faded in encodes (almost) nothing about the data.
DEAD_BELOW = 0.01


class DeadFacetWarning(UserWarning):
    """A fitted facet encodes nothing about the data."""


class Listener(Protocol):
    """What the loop tells of its progress: the log, a progress bar, checkpoints."""

    def after_steps(self, taken: int) -> None:
        """So many steps were taken by one call."""

    def after_epoch(self) -> None:
        """A pass over the data has ended."""


def train(plan: FitPlan) -> None:
    """Train as planned.

    :raises ValueError: if a run is being trained already, or gradients cannot be had here.
    """
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "training needs gradients, which torch.inference_mode() rules out: call it outside "
            "that context"
        )
    lead, processes, source = plan.lead, plan.processes, plan.source
    with ExitStack() as stack:
        for run in plan.runs:
            stack.enter_context(run.in_use())
            stack.enter_context(run.model.gating(not lead.schedule.gates_open))
        processes.check_alike(lambda: plan.description() | {"callbacks": "of the first alone"})
        processes.on_first(plan.check_callbacks)
        watched, first = source.subset(WATCHED_ROWS), source.subset(source.batch_size)
        with lead.while_training():
            for run in plan.runs:
                run.begin()
                _copy_to_all(run, processes)
                _check_first_step(run, first, plan.weights)
            if not processes.is_first:
                fresh = processes.fresh_random_state(lead.seed, lead.step, lead.device)
                set_random_state(fresh, lead.device)
            checks = is_validation_enabled()
            with pyro.validation_enabled(False):
                _loop(plan, watched, checks)
        if processes.is_first:
            for run in plan.runs:
                _warn_of_dead_facets(run, watched)


def _loop(plan: FitPlan, watched: Observed, checks: bool) -> None:
    with ExitStack() as stack:
        bar = stack.enter_context(_bar(plan))
        listeners: list[Listener] = [Log(plan, bar, watched, checks)]
        if plan.checkpoints is not None:
            writer = stack.enter_context(plan.checkpoints.writer(plan))
            writer.restore()
            listeners.append(writer)
        at, epoch = plan.lead.progress, plan.source.steps
        bar.update(at.epoch * epoch + at.batches)
        steps = stack.enter_context(closing(plan.steps()))
        for run in plan.runs:
            stack.callback(run.loss.eval)
        while not plan.ended:
            for run in plan.runs:
                run.loss.train()
            for batches in steps.turns(at.batches):
                steps.take(batches)
                for run in plan.runs:
                    run.count(len(batches))
                for listener in listeners:
                    listener.after_steps(len(batches))
                yield_lock()
            for run in plan.runs:
                run.end_pass()
            for listener in listeners:
                listener.after_epoch()


def _bar(plan: FitPlan) -> tqdm:
    executor = plan.recording.executor
    return progress_bar(
        plan.epochs * plan.source.steps,
        "step",
        shown=plan.progress and plan.processes.is_first,
        desc=f"training ({executor})" if executor else "training",
    )


class Log:
    """Adds a record to each run's history at each logging interval, and shows the progress.

    :param watched: rows on which the terms of the ELBO are computed.
    :param checks: whether callbacks run with Pyro's checks, as the caller of ``fit`` set them.
    """

    def __init__(self, plan: FitPlan, bar: tqdm, watched: Observed, checks: bool) -> None:
        self.plan, self.bar, self.watched, self.checks = plan, bar, watched, checks

    def after_steps(self, taken: int) -> None:
        self.bar.update(taken)

    def after_epoch(self) -> None:
        plan, lead = self.plan, self.plan.lead
        if lead.progress.epoch % plan.log_every and lead.progress.epoch < plan.epochs:
            return
        records = [self._begun(run) for run in plan.runs]
        lead.keep_random_state()
        with network_precision(None):
            for run, record, callbacks in zip(plan.runs, records, plan.callbacks, strict=True):
                plan.processes.on_first(partial(self._complete, run, record, callbacks))
                _copy_to_all(run, plan.processes)
        stopped = all(run.should_stop for run in plan.runs)
        for run in plan.runs:
            run.progress.logged, run.progress.stopped = run.step, stopped
            run.counters["total"].zero_()
        last = lead.history[-1]
        shown = {name: f"{last[name]:.2f}" for name in ("objective", "elbo")}
        self.bar.set_postfix({"epoch": last["epoch"]} | shown)

    def _begun(self, run: Run) -> dict[str, Any]:
        """A record with the mean objective since the last one, and the number of skipped steps."""
        ScheduledLoss(run.loss, self.plan.weights).set(run.counters["step"])
        taken, lead = run.step - run.progress.logged, self.plan.lead
        skipped = report_faults(run, taken, self.plan.source)
        objective = (run.counters["total"] / (taken - skipped)).item()
        record = {"epoch": lead.epoch, "step": lead.step, "seconds": lead.progress.seconds}
        return record | {"objective": objective} | ({"skipped": skipped} if skipped else {})

    def _complete(self, run: Run, record: dict[str, Any], callbacks: Sequence[Callback]) -> None:
        """Measure, and pass the record to the callbacks."""
        with seeded(0, self.plan.lead.device):
            record |= _watch(run, self.watched)
            run.history.append(record)
            # A callback may copy the model, or train it in another way.
            with pyro.validation_enabled(self.checks), run.model.gating(gated=True):
                for callback in callbacks:
                    callback(run, record)
                    check_record(record, callback)


def _copy_to_all(run: Run, processes: SingleProcess) -> None:
    """Copy what callbacks may have changed in the first process, such as parameters and rates."""
    if processes.size == 1:
        return
    parameters, groups = list(run.loss.parameters()), run.optimizer.param_groups
    tensors = [*parameters, *run.loss.buffers()]
    told: Any = processes.on_first(
        lambda: {
            "tensors": [tensor.detach().cpu() for tensor in tensors],
            "learn": [p.requires_grad for p in parameters],
            "rates": [group["lr"] for group in groups],
            "records": run.history[-1:],
            "should_stop": run.should_stop,
        }
    )
    if processes.is_first:
        return
    for tensor, value in zip(tensors, told["tensors"], strict=True):
        tensor.data.copy_(value)
    for p, learns in zip(parameters, told["learn"], strict=True):
        p.requires_grad_(learns)
    for group, rate in zip(groups, told["rates"], strict=True):
        group["lr"] = rate
    run.should_stop = told["should_stop"]
    known = run.history[-1]["step"] if run.history else None
    run.history += [record for record in told["records"] if record["step"] != known]


def _check_first_step(run: Run, batch: Observed, weights: WeightFunction) -> None:
    """Compute one objective with all of Pyro's checks on; parameters and random streams stay."""
    at_start = weights(torch.full_like(run.model.gates[0], run.step))
    with evaluating(run.loss), run.model.annealed(*at_start):
        if not _starts_finite(run, batch) and run.guard.action == "stop":
            raise ValueError(
                "the objective is not finite before the first step: check the scale of the data "
                f"({_range(batch.x)}) and the parameters that the model was given "
                f"({_infinite(run.loss) or 'all of them are finite'})"
            )


def _starts_finite(run: Run, batch: Observed) -> bool:
    """Whether the objective is finite; where a check of Pyro fails for another reason it raises."""
    try:
        return bool(_objective(run, batch, checks=True).isfinite())
    except ValueError:
        if _objective(run, batch, checks=False).isfinite():
            raise
        return False


def _objective(run: Run, batch: Observed, checks: bool) -> Tensor:
    with seeded(0, run.device), pyro.validation_enabled(checks):
        return run.loss(batch.x, **batch.given).detach()


def _infinite(loss: Loss) -> str:
    """The first parameter that is not finite, if there is one."""
    names = [name for name, p in loss.named_parameters() if not p.isfinite().all()]
    return f"{names[0]} is not finite" if names else ""


def _range(x: Tensor) -> str:
    """The range of a batch's entries, of those that are given."""
    given = x[~x.isnan()] if x.is_floating_point() else x
    least, most = (float(each) for each in given.aminmax()) if given.numel() else (nan, nan)
    return f"the first batch is between {least:.4g} and {most:.4g}"


def _watch(run: Run, rows: Observed) -> dict[str, float]:
    with evaluating(run.loss):
        terms = {name: float(value) for name, value in run.loss.terms(rows.x, **rows.given).items()}
        information = mutual_information(run.guide, rows.x, **rows.given)
    return terms | {f"mutual_information_{name}": nats for name, nats in information.items()}


def _warn_of_dead_facets(run: Run, watched: Observed) -> None:
    """Warn if a facet that is fully faded in encodes nothing about the data."""
    last, model = run.history[-1], run.model
    for (name, prior), gate in zip(model.priors.items(), model.gates.tolist(), strict=True):
        measures = {}
        if not run.guide.deterministic:
            measures["KL(z)"] = last[f"kl_z_{name}"] + (
                0.0 if prior.shares_density else last.get(f"kl_c_{name}", 0.0)
            )
            if name in model.shared:  # once per group, not once per datum
                measures["KL(z)"] *= len(watched) / len(watched.given["group"].unique())
        if name in model.inferred and prior.num_components > 1:
            measures["mutual information"] = last[f"mutual_information_{name}"]
        for measure, nats in measures.items():
            if gate == 1 and nats < DEAD_BELOW:
                warnings.warn(
                    f"facet {name!r} ended with {measure} = {nats:.2g} nats, so it encodes nothing "
                    "about the data: it has died, or has not learned yet; try a warm start, a "
                    "slower fade-in or more epochs",
                    DeadFacetWarning,
                    stacklevel=4,
                )
                break
