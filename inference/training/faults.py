"""Objectives and gradients that are not finite: before the first step, and in steps, what follows
from them and which they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import pyro
import torch
from pyro import poutine
from torch import Tensor

from inference.randomness import seeded
from inference.run import Run
from inference.schedules import WeightFunction
from inference.training.data_source import DataSource
from inference.training.parts import is_own
from ppl_models.given.observed import Observed
from ppl_models.modes import evaluating

# This many consecutive faulty steps end a run that skips them.
IN_A_ROW = 10
# Rows to check at a time for a term that is not finite.
PART = 2048


def check_first_step(run: Run, batch: Observed, weights: WeightFunction) -> None:
    """Compute one objective with all of Pyro's checks on; parameters and random streams stay."""
    at_start = weights(run.model.gates.new_full((), run.step))
    with evaluating(run.loss), run.model.annealed(*at_start):
        if not _starts_finite(run, batch) and run.guard.action == "stop":
            names = [name for name, p in run.loss.named_parameters() if not p.isfinite().all()]
            parameters = f"{names[0]} is not finite" if names else "all of them are finite"
            raise ValueError(
                "the objective is not finite before the first step: check the scale of the data "
                f"({_range(batch.x)}) and the parameters that the model was given "
                f"({parameters})"
            )
    if run.model.priors and not (
        is_own(type(run.model).forward) and is_own(type(run.model).decode)
    ):
        _check_decode(run, batch)


def _check_decode(run: Run, batch: Observed) -> None:
    """Whether a user's program and ``decode`` say the same of x, which all that uses a fitted model
    rests on.

    :raises ValueError: if they do not.
    """
    model, guide, beside = run.model, run.guide, {**run.guide.options, **batch.given}
    with seeded(0, run.device), torch.no_grad(), evaluating(run.loss):
        latents = poutine.trace(guide).get_trace(batch.x, **beside)
        sites = poutine.trace(poutine.replay(model, latents)).get_trace(batch.x, **beside).nodes
        if not {"x", *(f"z_{name}" for name in model.priors)} <= sites.keys():
            return
        plates = {each.dim: each for each in sites["x"]["cond_indep_stack"]}
        rows = plates.get(-1)
        if rows is None or (rows.size, rows.full_size or rows.size) != (len(batch), len(batch)):
            raise ValueError(
                f"{type(model).__name__}.forward draws x in another plate than that of the batch's "
                f"{len(batch)} rows, so that its terms would have other weights: take "
                "`with self.plate(x, size):`, with size as the number of rows where x is None"
            )
        found = sites["x"]["fn"].log_prob(sites["x"]["value"])
        known = {n: sites[n]["value"] if n in sites else beside.get(n) for n in model.decodes}
        try:
            z = {name: sites[f"z_{name}"]["value"] for name in model.priors}
            told = model.decode(z, **known).log_prob(sites["x"]["value"])
            differs = not torch.allclose(found, told, rtol=1e-3, atol=1e-3)
            how = "the densities of x differ"
        except (RuntimeError, ValueError, NotImplementedError) as error:
            differs, how = True, str(error)
    if differs:
        raise ValueError(
            f"{type(model).__name__}.forward and its decode disagree on p(x given z) ({how}), and "
            "reconstruct, generate and exact_objective call decode: let forward draw x from "
            "self.decode(z, ...), and say what else the decoder reads, by decoded_clusters, "
            "inputs or decoder_inputs"
        )


def _starts_finite(run: Run, batch: Observed) -> bool:
    """Whether the objective is finite; where a check of Pyro fails for another reason it raises."""

    def is_finite(checks: bool) -> bool:
        with seeded(0, run.device), pyro.validation_enabled(checks):
            return bool(run.loss(batch.x, **batch.given).isfinite())

    try:
        return is_finite(checks=True)
    except ValueError:
        if is_finite(checks=False):
            raise
        return False


def _range(x: Tensor) -> str:
    """The range of a batch's entries, of those that are given."""
    given = x[~x.isnan()] if x.is_floating_point() else x
    least, most = (float(each) for each in given.aminmax()) if given.numel() else (nan, nan)
    return f"the first batch is between {least:.4g} and {most:.4g}"


def report_faults(run: Run, steps: int, source: DataSource) -> int:
    """Number of steps skipped since the last record; halve the rate or end the run, depending on
    the guard, and count anew.

    :param steps: number of steps since the last record.
    :raises FloatingPointError: if a fault stops the run, or at least ten consecutive steps were
        faulty.
    """
    progress, skipped = run.progress, int(run.counters["faults"])
    progress.faults_in_a_row = progress.faults_in_a_row + skipped if skipped == steps else 0
    if skipped and (run.guard.action == "stop" or progress.faults_in_a_row >= IN_A_ROW):
        raise FloatingPointError(diagnosis(run, source))
    if skipped and run.guard.action == "halve":
        for group in run.optimizer.param_groups:
            group["lr"] /= 2
    run.counters["faults"].zero_()
    if not progress.faults_in_a_row:  # the first fault is kept until a step succeeds
        run.counters["first_fault"].fill_(-1.0)
    return skipped


def diagnosis(run: Run, source: DataSource) -> str:
    """Which step, which gradients and, if it can be told, which term was not finite."""
    rate, finite = run.optimizer.param_groups[0]["lr"], run.counters["fault_norms"].isfinite()
    each = zip(run.loss.named_parameters(), finite.tolist(), strict=True)
    gradients = [name for (name, _), is_finite in each if not is_finite]
    first = int(run.counters["first_fault"]) + 1
    advice = (
        '- to skip such steps: guard=Guard("skip"), or Guard("halve"), which halves the rate too'
        if run.guard.action == "stop"
        else f"{run.progress.faults_in_a_row} steps in a row were skipped already"
    )
    return (
        f"the objective of the run with seed {run.seed}, or its gradient, was not finite at step "
        f"{first} (the run is in epoch {run.epoch}) at lr={rate}; parameters are as they were "
        f"before that step.\n  Gradients that were not finite: {_some(gradients) or 'none'}\n  "
        f"Terms that are not, on the data, with these parameters: "
        f"{_some(non_finite_terms(run, source)) or 'none'}\n  Try one of:\n  - a lower rate\n"
        f"  - data of another scale\n  {advice}"
    )


def non_finite_terms(run: Run, source: DataSource) -> list[str]:
    """Terms of the ELBO that are not finite, on the first rows where one is not."""
    for part in source.chunks(max(source.batch_size, PART)):
        found = run.loss.terms(part.x, **part.given)
        if terms := [n for n, value in found.items() if n != "elbo" and not value.isfinite()]:
            return terms
    return []


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} others" if len(names) > 5 else "")
