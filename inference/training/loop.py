"""The training loop, for one run or for several similar runs in one program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pyro
import torch
from pyro.poutine.util import is_validation_enabled

from inference.checkpoints.periodic import CheckpointWriter
from inference.evaluation.bounds import mutual_information
from inference.progress import progress_bar
from inference.randomness import random_state, seeded
from inference.records import check_record
from inference.run import Callback, Run
from inference.training.faults import check_first_step, report_faults
from inference.training.plan import FitPlan
from inference.training.steps import ScheduledLoss, Steps, StepsTogether
from ppl_models.given.observed import Observed
from ppl_models.modes import evaluating, network_precision, temporarily, train_unfrozen
from ppl_models.turns import yield_lock
from ppl_models.warn import warn

__all__ = ["DeadFacetWarning", "train"]

# Rows on which the terms of the ELBO and the mutual information are computed at each logging
# interval.
WATCHED_ROWS = 2048
# Below this many nats a facet that is fully faded in encodes (almost) nothing about the data.
DEAD_BELOW = 0.01


class DeadFacetWarning(UserWarning):
    """A fitted facet encodes nothing about the data."""


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
            stack.enter_context(temporarily(run.model, gated=not lead.schedule.gates_open))
        watched, first = source.subset(WATCHED_ROWS), source.subset(source.batch_size)
        processes.begin(plan)
        with lead.while_training():
            for run in plan.runs:
                check_first_step(run, first, plan.weights)
            checks = is_validation_enabled()
            with pyro.validation_enabled(False):
                _loop(plan, watched, checks)
        if processes.is_first:
            for run in plan.runs:
                _warn_of_dead_facets(run, watched)


def _loop(plan: FitPlan, watched: Observed, checks: bool) -> None:
    with ExitStack() as stack:
        log = Log(plan, watched, checks)
        stack.callback(log.bar.close)
        listeners: list[Log | CheckpointWriter] = [log]
        if plan.checkpoints is not None:
            listeners.append(stack.enter_context(plan.checkpoints.writer(plan)))
        at = plan.lead.progress
        log.after_steps(at.epoch * plan.source.steps + at.batches)
        steps = stack.enter_context(closing((StepsTogether if plan.together else Steps)(plan)))
        for run in plan.runs:
            stack.callback(run.loss.eval)
        while not plan.ended:
            for run in plan.runs:
                train_unfrozen(run.loss)
            for batches in steps.turns(at.batches):
                steps.take(batches)
                for run in plan.runs:
                    run.step += len(batches)
                    run.progress.batches += len(batches)
                for listener in listeners:
                    listener.after_steps(len(batches))
                yield_lock()
            for run in plan.runs:
                run.epoch += 1
                run.progress.epoch, run.progress.batches = run.progress.epoch + 1, 0
            for listener in listeners:
                listener.after_epoch()


class Log:
    """Adds a record to each run's history at each logging interval, and shows the progress.

    :param watched: rows on which the terms of the ELBO are computed.
    :param checks: whether callbacks run with Pyro's checks, as the caller of ``fit`` set them.
    """

    def __init__(self, plan: FitPlan, watched: Observed, checks: bool) -> None:
        self.plan, self.watched, self.checks = plan, watched, checks
        executor, shown = plan.recording.executor, plan.progress and plan.processes.is_first
        what = f"training ({executor})" if executor else "training"
        self.bar = progress_bar(plan.epochs * plan.source.steps, shown, what)

    def after_steps(self, taken: int) -> None:
        self.bar.update(taken)

    def after_epoch(self) -> None:
        plan, lead = self.plan, self.plan.lead
        if lead.progress.epoch % plan.log_every and lead.progress.epoch < plan.epochs:
            return
        records = [self._begun(run) for run in plan.runs]
        lead.random_state = random_state(lead.device)  # which copies of it go on from
        with network_precision(None):
            for run, record, callbacks in zip(plan.runs, records, plan.callbacks, strict=True):
                plan.processes.on_first(partial(self._complete, run, record, callbacks))
                plan.processes.copy(run)
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
            with pyro.validation_enabled(self.checks), temporarily(run.model, gated=True):
                for callback in callbacks:
                    callback(run, record)
                    check_record(record, callback)


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
            kl_c = 0.0 if prior.shares_density else last.get(f"kl_c_{name}", 0.0)
            measures["KL(z)"] = last[f"kl_z_{name}"] + kl_c
            if name in model.shared:  # once per group, not once per datum
                measures["KL(z)"] *= len(watched) / len(watched.given["group"].unique())
        if name in model.inferred and prior.num_components > 1:
            measures["mutual information"] = last[f"mutual_information_{name}"]
        for measure, nats in measures.items():
            if gate == 1 and nats < DEAD_BELOW:
                warn(
                    f"facet {name!r} ended with {measure} = {nats:.2g} nats, so it encodes nothing "
                    "about the data: it has died, or has not learned yet; try a warm start, a "
                    "slower fade-in or more epochs",
                    DeadFacetWarning,
                )
                break
