"""What has to be checked and measured on a graphics card, in one call; writes FILE as it goes.

    python -m lab.benchmarks.on_a_card cuda card.json

For every model: objective and gradient in float64 on the device against the CPU's, with the same
noise, and of every way to take a step against steps through Pyro; seconds of a step in every way,
in bfloat16 and of a plain loop; peak bytes; and ten seeds at once. What fails is a sentence.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor

from inference import SVIRunner, fit_together
from inference.randomness import seeded
from lab.benchmarks import model_costs as costs
from lab.benchmarks.model_cases import CASES, FULL, Case, Size
from lab.benchmarks.model_steps import DrawnOnCPU

WAYS = {"handlers": None, "replay": "replay", "cuda graph": "cuda graph"}


def gradient(case: Case, settings: costs.Settings, way: str, noise: bool) -> Tensor:
    """Of the twelfth step in float64, the objective before it, on the CPU; weights do not move."""
    step = costs.mode_step(case, settings, WAYS[way], case.batch, torch.float64, lr=1e-15)
    with DrawnOnCPU() if noise else nullcontext(), pyro.validation_enabled(False):
        for number in range(12):
            with seeded(number, settings.device):
                step.total_loss.zero_()
                step()
    if step.refusal is not None:
        raise ValueError(step.refusal)
    grads = [p.grad for p in step.runner.loss.parameters() if p.grad is not None]
    return torch.cat([each.flatten().cpu() for each in (step.total_loss, *grads)])


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((one - other).abs().max() / other.abs().max())


def correct(case: Case, settings: costs.Settings) -> dict[str, Any]:
    """How far the device is from the CPU, and every way from steps through Pyro."""
    on_cpu = gradient(case, replace(settings, device=torch.device("cpu")), "handlers", True)
    here, noisy = (gradient(case, settings, "handlers", noise) for noise in (False, True))
    ways = {w: tried(lambda w=w: apart(gradient(case, settings, w, False), here)) for w in WAYS}
    return ways | {"cpu": apart(noisy, on_cpu)}


def ten_seeds(case: Case, settings: costs.Settings) -> dict[int, float]:
    """Seconds of an epoch of ten seeds at once, and of one; the first fit is not counted."""
    found, batch = {}, settings.size.rows(case.batch)
    for seeds in (10, 10, 1, 1):
        guides, data = zip(
            *(costs.guide_and_data(case, settings, batch) for _ in range(seeds)), strict=True
        )
        runners = [SVIRunner(guide.model, guide, seed=i) for i, guide in enumerate(guides)]
        begun = time.perf_counter()
        fit_together(runners, data[0].x, 10, batch, progress=False)
        found[seeds] = (time.perf_counter() - begun) / 10
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
    "bytes": costs.memory_of_model,
}


def main(device: str, out: str, size: Size = FULL, models: Sequence[str] = tuple(CASES)) -> None:
    settings = costs.Settings(size, torch.device(device), 8 if size.small else 80)
    runs = [(model, part, PARTS[part]) for model in models for part in PARTS]
    found: dict[str, Any] = {"torch": torch.__version__}
    for model, part, measure in (*runs, ("MFCVAE", "ten seeds", ten_seeds)):
        found[f"{model}: {part}"] = tried(lambda m=measure, on=model: m(CASES[on], settings))
        Path(out).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("a device and a file are needed, such as: cuda card.json")
    main(*sys.argv[1:])
