"""The training loop, for one run or for several similar runs in one program."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from math import nan
from typing import Any

import pyro
import torch
from pyro.poutine.util import is_validation_enabled
from torch import Tensor
from tqdm import tqdm

from inference.checkpoints.periodic import CheckpointWriter
from inference.checkpoints.training_state import TrainingProgress
from inference.distributed import SingleProcess
from inference.evaluation.bounds import mutual_information
from inference.objectives import Loss
from inference.progress import progress_bar
from inference.randomness import seeded, set_random_state
from inference.records import check_record
from inference.run import Callback, Run
from inference.schedules import WeightFunction
from inference.training.compiled import warn_of_unknown
from inference.training.nonfinite import NonFiniteTracker
from inference.training.plan import FitPlan
from inference.training.steps import ScheduledLoss, Steps
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


def train(plan: FitPlan) -> None:
    """Train as planned.

    :raises ValueError: if a run is being trained already, or gradients cannot be had here.
    """
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "training needs gradients, which torch.inference_mode() rules out: call it outside "
            "that context"
        )
    with ExitStack() as stack:
        for run in plan.runs:
            stack.enter_context(run.in_use())
            stack.enter_context(run.model.gating(not plan.lead.schedule.gates_open))
        _train(plan)


def _train(plan: FitPlan) -> None:
    lead, processes, source = plan.lead, plan.processes, plan.source
    processes.check_alike(lambda: _without_callbacks(plan))
    processes.on_first(plan.check_callbacks)
    if plan.recording.unknown is not None:
        warn_of_unknown(plan.recording.unknown)
    watched = source.subset(WATCHED_ROWS)
    first = source.subset(source.batch_size)
    trackers = [NonFiniteTracker(run) for run in plan.runs]
    at = TrainingProgress(lead.step, lead.model.gates.new_zeros(len(plan.runs)))
    executor = plan.recording.executor
    with (
        lead.while_training(),
        progress_bar(
            plan.epochs * source.steps,
            "step",
            shown=plan.progress and processes.is_first,
            desc=f"training ({executor})" if executor else "training",
        ) as bar,
    ):
        for run in plan.runs:
            run.should_stop = False
            _copy_to_all(run, processes)
            _check_first_step(run, first, plan.weights)
        if not processes.is_first:
            fresh = processes.fresh_random_state(lead.seed, lead.step, lead.device)
            set_random_state(fresh, lead.device)
        checks = is_validation_enabled()
        with plan.checkpoint_writer(trackers, at) as writer, pyro.validation_enabled(False):
            if writer is not None:
                writer.restore()
            bar.update(at.epoch * source.steps + at.batches)
            parts = (plan.weights, source, trackers, processes, plan.recording)
            steps = plan.step_type(plan.runs, *parts)
            with closing(steps), ExitStack() as ended:
                for run in plan.runs:
                    ended.callback(run.loss.eval)
                for records in _loop(plan, steps, bar, at, writer):
                    with network_precision(None):
                        _report(plan, records, watched, checks)
                    shown = {name: f"{records[0][name]:.2f}" for name in ("objective", "elbo")}
                    bar.set_postfix({"epoch": records[0]["epoch"]} | shown)
    if processes.is_first:
        for run in plan.runs:
            _warn_of_dead_facets(run, watched)


def _without_callbacks(plan: FitPlan) -> dict[str, Any]:
    """What all processes must have in common; only the first one has callbacks."""
    return {name: value for name, value in plan.description().items() if name != "callbacks"}


def _report(
    plan: FitPlan, records: Sequence[dict[str, Any]], watched: Observed, checks: bool
) -> None:
    """Complete each run's record and pass it to its callbacks, in the first process, then copy it
    to all.

    :param checks: whether callbacks run with Pyro's checks, as the caller of ``fit`` set them.
    """

    def complete(run: Run, record: dict[str, Any], callbacks: Sequence[Callback]) -> None:
        with seeded(0, plan.lead.device):
            record |= _watch(run, watched)
            run.history.append(record)
            # A callback may copy the model, or train it in another way.
            with pyro.validation_enabled(checks), run.model.gating(gated=True):
                for callback in callbacks:
                    callback(run, record)
                    check_record(record, callback)

    plan.lead.keep_random_state()
    for run, record, callbacks in zip(plan.runs, records, plan.callbacks, strict=True):
        plan.processes.on_first(partial(complete, run, record, callbacks))
        _copy_to_all(run, plan.processes)
        record |= run.history[-1]


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


def _loop(
    plan: FitPlan,
    steps: Steps,
    bar: tqdm,
    at: TrainingProgress,
    writer: CheckpointWriter | None,
) -> Iterator[list[dict]]:
    """The loop itself: yields the start of each run's record at each logging interval."""
    runs, lead = plan.runs, plan.lead
    first = lead.epoch - at.epoch
    step = torch.full_like(lead.model.gates[0], lead.step)
    while at.epoch < plan.epochs and not at.stopped:
        for run in runs:
            run.loss.train()
        for batches in steps.turns(at.batches):
            steps.take(batches, step, at.total_loss)
            at.batches += len(batches)
            for run in runs:
                run.step += len(batches)
            if writer is not None:
                writer.after_step()
            bar.update(len(batches))
            yield_lock()
        at.epoch, at.batches = at.epoch + 1, 0
        for run in runs:
            run.epoch = first + at.epoch
        if at.epoch % plan.log_every == 0 or at.epoch == plan.epochs:
            for run in runs:
                ScheduledLoss(run.loss, steps.weights).set(step)
            progress = {"epoch": lead.epoch, "step": lead.step, "seconds": at.seconds}
            yield [progress | objective for objective in _objectives(steps, at)]
            steps.look_again = True
            at.logged = lead.step
            at.total_loss.zero_()
            at.stopped = all(run.should_stop for run in runs)
        if writer is not None:
            writer.after_epoch(last=at.stopped or at.epoch == plan.epochs)


def _objectives(steps: Steps, at: TrainingProgress) -> list[dict[str, Any]]:
    """Each run's mean objective since the last record, and its number of skipped steps."""
    taken = steps.runs[0].step - at.logged
    skipped = [tracker.report(taken, steps.source) for tracker in steps.trackers]
    counts = torch.tensor([taken - n for n in skipped], device=at.total_loss.device)
    return [
        {"objective": objective} | ({"skipped": n} if n else {})
        for objective, n in zip((at.total_loss / counts).tolist(), skipped, strict=True)
    ]


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
