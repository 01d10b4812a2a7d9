"""What a training step of every model costs.

    python -m lab.benchmarks.model_costs --steps 30 --out costs.json
    python -m lab.benchmarks.model_costs --models MFCVAE VAE --modes --device cuda
    OMP_NUM_THREADS=1 python -m lab.benchmarks.model_costs --models --out modes.json
    python -m lab.benchmarks.model_costs --smoke

For every model, interleaved in one process, medians of: the step that SVIRunner.fit takes, the
dealing of its batch and its guard's look included ("ours"), also with networks in bfloat16; a plain
PyTorch loop of the same objective, written by hand around the same networks ("plain loop"); and
encoder, decoder, their backward pass and Adam's step ("networks alone"). Before that the two
objectives and their gradients are compared, with the same noise: where they differ the program
ends. Data lie on the device beforehand.

Then, at batches of 64 rows, the ways in which SVIRunner.fit takes its steps: through Pyro's
handlers (compile=None) and replayed (compile="replay"), whole steps with the gathering of their
batch, in turns; medians over the turns, and of the ratio within a round, with its quartiles.

--models or --modes without a name leaves that part out.
"""

from __future__ import annotations

import gc
import json
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pyro
import torch

from inference import SVIRunner
from inference.training.recorder import RecordingWarning
from lab.benchmarks.model_cases import CASES, FULL, SMALL, Case, Size
from lab.benchmarks.model_steps import (
    VARIANTS,
    FitSteps,
    begin,
    check_same_objective,
    in_turns,
    ratios,
    spread,
)
from lab.run_lines import described_by
from ppl_models.given.observed import Observed

RATIOS = {
    "ours / plain": ("ours", "plain loop"),
    "ours / networks": ("ours", "networks alone"),
    "bf16 / float32": ("ours, bf16", "ours"),
}


@dataclass(frozen=True)
class Settings:
    """How to measure.

    :ivar steps: timed, of each variant.
    """

    size: Size
    device: torch.device
    steps: int


def build_step(variant: str, case: Case, settings: Settings) -> Callable[[], Any]:
    """A step of a model of its own."""
    guide = case.guide(settings.size).to(settings.device)
    return VARIANTS[variant](case, guide, case.data(guide, settings.size, settings.device))


def seconds_of_model(case: Case, settings: Settings) -> dict[str, float]:
    """Median seconds of each variant's step."""
    steps = {variant: build_step(variant, case, settings) for variant in VARIANTS}
    times = in_turns(steps, settings.steps, 1, time.perf_counter)
    return {variant: median(of) for variant, of in times.items()}


# SVIRunner's compile=, by name; XLA takes the steps of a pass at once, so a turn is a pass.
MODES = {"handlers": None, "replay": "replay", "xla": "xla"}
MODE_BATCH, MODE_BATCHES = 64, 8


def mode_step(case: Case, settings: Settings, mode: str | None) -> FitSteps:
    """Steps of a run of its own, in one of ``SVIRunner``'s ways; all on the same data, from the
    same weights.
    """
    pyro.set_rng_seed(0)
    batch, guide = settings.size.rows(MODE_BATCH), case.guide(settings.size).to(settings.device)
    x = torch.rand(MODE_BATCHES * batch, *guide.model.x_shape)
    data = Observed(x, case.given(len(x))).to(settings.device)
    return FitSteps(SVIRunner(guide.model, guide, compile=mode), data, batch)


def seconds_by_mode(case: Case, settings: Settings) -> dict[str, Any]:
    """Seconds of a step, of the first one, and what they are of those through Pyro's handlers; of
    modes that are not to be had, why.
    """
    steps, first, refused = {}, {}, {}
    for name, mode in MODES.items():
        try:
            step = mode_step(case, settings, mode)
        except ValueError as error:
            refused[name] = str(error)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordingWarning)  # it is told below
            seconds = begin(step)
        if step.refusal is None:
            steps[name], first[name] = step, seconds
        else:
            refused[name] = step.refusal
    turns = -(-settings.steps // MODE_BATCHES)
    times = in_turns(steps, turns, MODE_BATCHES, time.perf_counter)
    return {
        "seconds": {name: spread(of) for name, of in times.items()},
        "first_step": first,
        "ratios": {
            name: ratios(of, times["handlers"]) for name, of in times.items() if name != "handlers"
        },
        "refused": refused,
    }


# What is printed: a line as soon as it is measured.


def line(cells: Sequence[str], headings: Sequence[str]) -> str:
    """A line of a table whose first column holds names, each other one as wide as its heading asks
    for.
    """
    columns = zip(cells[1:], headings[1:], strict=True)
    return cells[0].ljust(15) + "".join(
        cell.rjust(max(len(heading), 7) + 2) for cell, heading in columns
    )


def report_times(names: Sequence[str], settings: Settings) -> dict[str, dict[str, float]]:
    headings, found = ["", *VARIANTS, *RATIOS], {}
    print("Median milliseconds of a step\n" + line(headings, headings))
    for name in names:
        check_same_objective(name, CASES[name], settings.size, settings.device)
        found[name] = seconds = seconds_of_model(CASES[name], settings)
        ratios = [seconds[a] / seconds[b] for a, b in RATIOS.values()]
        cells = [f"{1e3 * s:.2f}" for s in seconds.values()] + [f"{ratio:.3f}" for ratio in ratios]
        print(line([name, *cells], headings), flush=True)
        gc.collect()  # models hold themselves: a prior may know its guide's encoder
    print("GMMFlow's layers run in float32 at either precision.\n" if "GMMFlow" in names else "")
    return found


def report_modes(names: Sequence[str], settings: Settings) -> dict[str, dict[str, Any]]:
    ways = [name for name in MODES if name != "handlers"]
    headings = ["", *MODES, *(f"{way} / handlers" for way in ways)]
    found = {}
    print(
        f"Milliseconds of a whole step of {settings.size.rows(MODE_BATCH)} rows, "
        "wall clock\n" + line(headings, headings)
    )
    for name in names:
        found[name] = of = seconds_by_mode(CASES[name], settings)
        medians = [of["seconds"].get(way) for way in MODES]
        ratio = [of["ratios"].get(way) for way in ways]
        cells = ["" if m is None else f"{1e3 * m['median']:.2f}" for m in medians]
        cells += ["" if r is None else f"{r['median']:.3f}" for r in ratio]
        print(line([name, *cells], headings), flush=True)
        gc.collect()
    for name, way in product(names, ways):
        if (reason := found[name]["refused"].get(way)) is not None:
            print(f"{name} is not had by {way}: {reason}")
    print()
    return found


def measure(models: Sequence[str], settings: Settings, modes: Sequence[str] = ()) -> dict[str, Any]:
    """Measure and print all; what was found, in seconds."""
    about = {
        "device": str(settings.device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "steps": settings.steps,
        "batches": {name: settings.size.rows(CASES[name].batch) for name in models},
    }
    print(", ".join(f"{name} {value}" for name, value in about.items() if name != "batches"))
    print(
        "rows of a batch: "
        + ", ".join(f"{name} {rows}" for name, rows in about["batches"].items())
        + "\n"
    )
    return {
        "about": about,
        "seconds": report_times(models, settings) if models else {},
        "modes": report_modes(modes, settings) if modes else {},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = described_by(__doc__)
    parser.add_argument(
        "--models",
        nargs="*",
        choices=list(CASES),
        default=list(CASES),
        metavar="MODEL",
        help=", ".join(CASES),
    )
    parser.add_argument(
        "--modes",
        nargs="*",
        choices=list(CASES),
        default=list(CASES),
        metavar="MODEL",
        help="models whose ways to take a step are compared",
    )
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each variant")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes and three steps, to see that it runs"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="write medians, quartiles and ratios, in seconds, to this JSON file",
    )
    args = parser.parse_args(arguments)
    pyro.set_rng_seed(0)
    settings = Settings(FULL, args.device, args.steps)
    if args.smoke:
        settings = replace(settings, size=SMALL, steps=3)
    found = measure(args.models, settings, args.modes)
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
