"""What has to be checked and measured on a graphics card, in one call; writes FILE as it goes.

    python -m lab.benchmarks.on_a_card cuda card.json

For every model: objective and gradient in float64 on the device against the CPU's, with the same
noise, and of every way to take a step against steps through Pyro; seconds of a step in every way,
in bfloat16 and of a plain loop; and peak bytes. Of MFCVAE at its own batch, captured steps by
precision; and ten seeds at once. What fails is a sentence.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pyro
import torch
from torch import Tensor

from inference import SVIRunner, fit_together
from inference.randomness import seeded
from lab.benchmarks import model_costs as costs
from lab.benchmarks.model_cases import CASES, FULL, Case, Size
from lab.benchmarks.model_steps import DrawnOnCPU, in_turns

WAYS = {"handlers": None, "replay": "replay", "cuda graph": "cuda graph"}


def gradient(case: Case, settings: costs.Settings, way: str, noise: bool) -> Tensor:
    """The twelfth step's objective in float64, then all steps' Adam moments; weights are fixed."""
    step = costs.mode_step(case, settings, WAYS[way], case.batch, torch.float64, lr=1e-15)
    total = step.runner.counters["total"]
    with DrawnOnCPU() if noise else nullcontext(), pyro.validation_enabled(False):
        for number in range(12):
            with seeded(number, settings.device):
                total.zero_()
                step()
    if step.refusal is not None:
        raise ValueError(step.refusal)
    moments = (of["exp_avg"] for of in step.runner.optimizer.state.values())
    return torch.cat([each.flatten().cpu() for each in (total, *moments)])


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((one - other).abs().max() / other.abs().max())


def correct(case: Case, settings: costs.Settings) -> dict[str, Any]:
    """How far the device is from the CPU, and every way from steps through Pyro."""
    on_cpu = gradient(case, replace(settings, device=torch.device("cpu")), "handlers", True)
    here, noisy = (gradient(case, settings, "handlers", noise) for noise in (False, True))
    ways = {w: tried(lambda w=w: apart(gradient(case, settings, w, False), here)) for w in WAYS}
    return ways | {"cpu": apart(noisy, on_cpu)}


def captured_steps(case: Case, settings: costs.Settings) -> dict[str, float]:
    """Median seconds of a captured step by precision."""
    steps = {
        precision: costs.mode_step(case, settings, "cuda graph", case.batch, precision=precision)
        for precision in ("float32", "bf16")
    }
    times = in_turns(steps, 10, 8, time.perf_counter)
    return {precision: median(of) for precision, of in times.items()}


def ten_seeds(case: Case, settings: costs.Settings) -> dict[int, float]:
    """Seconds of a step of ten seeds at once, and of one by itself, each as a fit takes it by
    default; the first fit of each is not counted.
    """
    epochs = 1 if settings.size.small else 75  # of 8 steps
    found, batch = {}, settings.size.rows(case.batch)
    for seeds in (10, 10, 1, 1):
        guides = [costs.guide_and_data(case, settings, batch) for _ in range(seeds)]
        runners = [SVIRunner(of.model, of, seed=i) for i, (of, _) in enumerate(guides)]
        how, begun = (guides[0][1].x, epochs, batch, epochs), time.perf_counter()
        if seeds > 1:
            fit_together(runners, *how, progress=False)
        else:
            runners[0].fit(*how, progress=False)
        found[seeds] = (time.perf_counter() - begun) / (8 * epochs)
    return found


def tried(measure: Callable[[], Any]) -> Any:
    """What it measures, or why it cannot be had."""
    try:
        return measure()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


PARTS: dict[str, Callable[[Case, costs.Settings], Any]] = {
    "correct": correct,
    "seconds": costs.seconds_of_model,
    "ways": partial(costs.seconds_by_mode, modes=WAYS),
}


def main(device: str, out: str, size: Size = FULL, models: Sequence[str] = tuple(CASES)) -> None:
    settings = costs.Settings(size, torch.device(device), 8 if size.small else 80)
    runs = [(model, part, PARTS[part]) for model in models for part in PARTS]
    found: dict[str, Any] = {"torch": torch.__version__}
    runs += [("MFCVAE", "captured", captured_steps), ("MFCVAE", "ten seeds", ten_seeds)]
    for model, part, measure in runs:
        found[f"{model}: {part}"] = tried(lambda m=measure, on=model: m(CASES[on], settings))
        Path(out).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("a device and a file are needed, such as: cuda card.json")
    main(*sys.argv[1:])
