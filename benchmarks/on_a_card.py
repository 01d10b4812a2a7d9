"""All that this library has to check and to measure on a graphics card, in one program that needs
no hand.

    python -m benchmarks.on_a_card --out card
    python -m benchmarks.on_a_card --out card --parts correctness steps --minutes 9
    python -m benchmarks.on_a_card --out card --models VAE --ways replay "cuda graph"
    python -m benchmarks.on_a_card --out card --device cpu --smoke

Parts, in order, each in a process of its own, as an error of CUDA ends its process:

- rates: seconds to launch a kernel of one element, alone and within a CUDA graph; FLOP/s of a large
  matrix product
- correctness: every model in float64, with the same weights and data. Objective and gradients on
  the device against the CPU's, whose noise both have; then every way to take a step against steps
  through Pyro's handlers, on one random stream of the device
- steps: every model's step in every way, beside a plain loop of the same objective and the networks
  alone, with 64 and 512 rows; and two floors: kernels times the seconds to launch one (within a
  graph for "cuda graph"), and FLOPs of the matrix products over the measured rate
- mnist: benchmarks.step_time at MNIST's size, in float32 and bf16
- seeds: many seeds of that model as one program (fit_together): seconds of a step and seed, and
  peak memory
- memory: peak bytes of every model's step, in every way

Each part writes FOLDER/PART.json, after every model; models that are there from an earlier call
stay. All of them together are in FOLDER/on_a_card.json, and as a record of results/ in
FOLDER/on_a_card.toml, which needs the extra `dev`. What failed is listed at the end, and the exit
status is then 1. What a machine cannot have (a way that a model refuses, CUDA graphs on the CPU) is
left out, with its reason. --minutes ends the program in time: what would take longer than that, by
the longest of its kind so far, is left out and listed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import gc
import json
import math
import multiprocessing
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import model_costs, step_time
from benchmarks.model_cases import CASES, FULL, SMALL
from benchmarks.model_steps import (
    COMPARED_ROWS,
    SAME_GRADIENT,
    SAME_VALUE,
    FitSteps,
    PlainSteps,
    Step,
    first_step,
    in_turns,
    peak_memory,
    ratios,
    spread,
)
from benchmarks.records import ROOT, RecordError
from benchmarks.reproduce import git
from benchmarks.step_time import SIZES, Unavailable, first_line
from inference import SVIRunner, fit_together
from inference.randomness import seeded, synchronize, usable_device
from inference.training.cuda_graph import WARM_UP, CUDAGraphStep, recorded
from inference.training.loop import DeadFacetWarning
from ppl_models.data import Observed

NAME = "on_a_card"
WAYS: dict[str, str | None] = {
    **{way: mode for way, mode in model_costs.MODES.items() if mode != "xla"},  # a processor's
    "cuda graph": "cuda graph",
}
REFERENCE = "handlers"
# Those that fit_together has.
TOGETHER = ("handlers", "replay")
ROWS = (64, 512)
# Models of a smoke test: one that is replayed, one with labels, and one that is not recorded.
LOOKED_AT = ("MFCVAE", "IVAE", "MLVAE")


@dataclass(frozen=True)
class Settings:
    """What to measure.

    :ivar smoke: tiny sizes, and few steps.
    """

    device: torch.device
    models: tuple[str, ...]
    ways: tuple[str, ...]
    smoke: bool = False

    @property
    def costs(self) -> model_costs.Settings:
        steps = 2 if self.smoke else 60
        remembered = ("ours",) if self.smoke else ("ours", "plain loop", "ours, bf16")
        size = SMALL if self.smoke else FULL
        return model_costs.Settings(size, self.device, steps, remembered=remembered)

    @property
    def size_name(self) -> str:
        return "table" if self.smoke else "mnist"

    @property
    def size(self) -> step_time.Size:
        """Of the model that is trained with many seeds."""
        size = replace(SIZES[self.size_name], device=str(self.device))
        return replace(size, batches=2) if self.smoke else size

    @property
    def seeds(self) -> tuple[int, ...]:
        return (2,) if self.smoke else (1, 2, 4, 8, 16, 32)


#: A part's measurements by name, in order.
Items = Iterator[tuple[str, Callable[[], dict[str, Any]]]]


def in_every_way(ways: Sequence[str], make: Callable[[str], Any]) -> dict[str, dict[str, Any]]:
    """What ``make`` gives for each way, which of them were ``left_out`` and which ``failed``, with
    the reasons.
    """
    found: dict[str, dict[str, Any]] = {"found": {}, "left_out": {}, "failed": {}}
    for way in ways:
        try:
            found["found"][way] = make(way)
        except (Unavailable, ValueError) as reason:
            found["left_out"][way] = first_line(reason)
        except Exception as error:
            traceback.print_exc()
            found["failed"][way] = f"{type(error).__name__}: {first_line(error)}"
    return found


# Rates.

REPEATS = 20


def seconds_of(call: Callable[[], Any], times: int, device: torch.device) -> float:
    """Of one call, on average, after a few that are not timed."""
    for _ in range(3):
        call()
    synchronize(device)
    started = time.perf_counter()
    for _ in range(times):
        call()
    synchronize(device)
    return (time.perf_counter() - started) / times


@cache
def rates(device: torch.device, smoke: bool) -> dict[str, float]:
    """Seconds of a launch, alone (``launch``) and in a graph (``graph_launch``, on CUDA alone), and
    FLOP/s of products of square matrices (``float32``, ``bfloat16``).
    """
    one, chain, n = torch.zeros(1, device=device), 100 if smoke else 1000, 256 if smoke else 8192

    def launches() -> Tensor:
        for _ in range(chain):
            one.add_(1)
        return one

    found = {"launch": seconds_of(launches, REPEATS, device) / chain}
    if device.type == "cuda":
        replay, _ = recorded(launches, device)
        found["graph_launch"] = seconds_of(replay, REPEATS, device) / chain
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.rand(n, n, device=device).to(dtype)
        product = partial(torch.mm, a, a, out=torch.empty_like(a))
        name = str(dtype).removeprefix("torch.")
        found[name] = 2 * n**3 / seconds_of(product, REPEATS, device)
    return found


def rate_items(settings: Settings) -> Items:
    yield "rates", partial(rates, settings.device, settings.smoke)


# Correctness.


class DrawnOnCPU(TorchDispatchMode):
    """All random draws are the CPU's, whatever device they are for.

    A generator is replaced by the CPU's with the same seed.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        tensors = [each for each in args if isinstance(each, Tensor)]
        device = tensors[0].device if tensors else torch.device(kwargs.get("device") or "cpu")
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        if kwargs.get("generator") is not None:
            seed = kwargs["generator"].initial_seed()
            kwargs["generator"] = torch.Generator().manual_seed(seed)
        drawn = func(*(a.cpu() if isinstance(a, Tensor) else a for a in args), **kwargs)
        if func._schema.is_mutable:
            return tensors[0].copy_(drawn)
        if isinstance(drawn, Tensor):
            return drawn.to(device)
        return tuple(each.to(device) for each in drawn)


# Steps that are compared: a graph is recorded in the second pass of one batch.
TAKEN = WARM_UP + 4
# So small that all steps are at the same weights.
NO_RATE = 1e-15


def objective_and_gradients(
    model: str, settings: Settings, way: str = REFERENCE, noise: Any = None
) -> dict[str, Tensor]:
    """Of the last of a few steps in float64, on the CPU; all have the same weights and data.

    :param noise: a context in which the steps are taken.
    :raises Unavailable: if the steps are not recorded.
    """
    case, costs = CASES[model], settings.costs
    pyro.set_rng_seed(0)
    guide = case.guide(costs.size).double()
    rows = costs.size.rows(COMPARED_ROWS)
    x = torch.rand(rows, *guide.model.x_shape, dtype=torch.float64)
    given = {
        name: of.double() if of.is_floating_point() else of for name, of in case.given(rows).items()
    }
    guide, data = guide.to(settings.device), Observed(x, given).to(settings.device)
    runner = SVIRunner(guide.model, guide, lr=NO_RATE, compile=WAYS[way])
    step = FitSteps(runner, data, rows)
    with noise or contextlib.nullcontext(), pyro.validation_enabled(False):
        for number in range(TAKEN):
            with seeded(number, settings.device):
                step.total_loss.zero_()
                step()
    if step.refusal is not None:
        raise Unavailable(step.refusal)
    if isinstance(step.steps, CUDAGraphStep) and step.steps.replay is None:
        raise RuntimeError("no step was recorded as a CUDA graph")
    parameters = runner.loss.named_parameters()
    gradients = {name: p.grad.cpu() for name, p in parameters if p.grad is not None}
    return {"the objective": step.total_loss.cpu(), **gradients}


def apart(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Any]:
    """The largest relative differences.

    :raises ArithmeticError: if they are more than rounding.
    """
    if found.keys() != wanted.keys():
        names = ", ".join(sorted(found.keys() ^ wanted.keys()))
        raise ArithmeticError(f"only one of the two has a gradient by {names}")
    by_name = {
        name: float((found[name] - of).abs().max() / (of.abs().max() + SAME_VALUE / SAME_GRADIENT))
        for name, of in wanted.items()
    }
    objective = by_name.pop("the objective")
    name = max(by_name, key=lambda name: (math.isnan(by_name[name]), by_name[name]))
    if not (objective <= SAME_VALUE and by_name[name] <= SAME_GRADIENT):
        raise ArithmeticError(
            f"the objective is {objective:.1e} off (rounding: {SAME_VALUE:.0e}), the gradient by "
            f"{name} {by_name[name]:.1e} ({SAME_GRADIENT:.0e})"
        )
    return {"objective": objective, "gradient": by_name[name]}


def correct(model: str, settings: Settings) -> dict[str, Any]:
    """How far the device is from the CPU, and every way from steps through Pyro's handlers."""
    here = objective_and_gradients(model, settings)

    def compared(way: str) -> dict[str, Any]:
        if way != REFERENCE:
            return apart(objective_and_gradients(model, settings, way), here)
        on_cpu = replace(settings, device=torch.device("cpu"))
        wanted = objective_and_gradients(model, on_cpu, noise=DrawnOnCPU())
        return apart(objective_and_gradients(model, settings, noise=DrawnOnCPU()), wanted)

    return in_every_way(tuple(dict.fromkeys((REFERENCE, *settings.ways))), compared)


def correctness_items(settings: Settings) -> Items:
    for model in settings.models:
        yield model, partial(correct, model, settings)


# Steps.

TURN = 10
# Of a trace: what a device is given to do. On the CPU, all operations, also those within others.
COUNTED = {"cuda": {"kernel", "gpu_memcpy", "gpu_memset"}, "cpu": {"cpu_op"}}


def kernels(step: Step, device: torch.device) -> int:
    """How many a step launches."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with pyro.validation_enabled(False), profile(activities=activities) as seen:
        step()
        synchronize(device)
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    if not (count := sum(event.get("cat") in COUNTED[device.type] for event in events)):
        raise RuntimeError("the profiler saw no kernels: may it trace the device (CUPTI)?")
    return count


def flops(step: Step) -> int:
    """Of a step's matrix products and convolutions."""
    with pyro.validation_enabled(False), FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def begun(model: str, settings: Settings, way: str, rows: int) -> tuple[FitSteps, float]:
    """Steps after the first one, and the seconds that this took, recording included.

    :raises Unavailable: if the steps are not recorded.
    """
    step = model_costs.mode_step(CASES[model], settings.costs, WAYS[way], rows)
    seconds = first_step(step)
    if step.refusal is not None:
        raise Unavailable(step.refusal)
    with pyro.validation_enabled(False):
        step.settle()
    return step, seconds


def steps_of_model(model: str, rows: int, settings: Settings) -> dict[str, Any]:
    """Seconds of a step and their ratio to the plain loop's, by program, and the floors."""
    case, costs, device = CASES[model], settings.costs, settings.device
    ours = in_every_way(settings.ways, lambda way: begun(model, settings, way, rows))
    first = {way: seconds for way, (_, seconds) in ours["found"].items()}
    steps: dict[str, Step] = {way: step for way, (step, _) in ours.pop("found").items()}
    for name, objective in (("plain loop", case.plain), ("networks alone", case.networks)):
        guide, data = model_costs.guide_and_data(case, costs, costs.size.rows(rows))
        steps[name] = PlainSteps(objective, guide, data, costs.size.rows(rows))
    length = min(TURN, costs.steps)
    times = in_turns(steps, costs.steps // length, length, time.perf_counter)
    rate = rates(device, settings.smoke)
    launch = dict.fromkeys(steps, rate["launch"]) | {"cuda graph": rate.get("graph_launch")}
    products = flops(steps["plain loop"])
    counts = in_every_way(tuple(steps), lambda name: kernels(steps[name], device))
    counted = counts["found"]
    ours["failed"] |= {f"kernels of {name}": why for name, why in counts["failed"].items()}
    return ours | {
        "rows": costs.size.rows(rows),
        "seconds": {name: spread(of) for name, of in times.items()},
        "over_plain": {name: ratios(of, times["plain loop"]) for name, of in times.items()},
        "first_step": first,
        "kernels": counted,
        "launch_floor": {name: n * launch[name] for name, n in counted.items()},
        "flops": products,
        "arithmetic_floor": products / rate["float32"],
    }


def step_items(settings: Settings) -> Items:
    for model in settings.models:
        for rows in sorted({settings.costs.size.rows(rows) for rows in ROWS}):
            yield f"{model}, {rows} rows", partial(steps_of_model, model, rows, settings)


# MNIST's size.


def mnist(precision: str, settings: Settings) -> dict[str, Any]:
    own = {"ours" if way == REFERENCE else f"ours, {way}" for way in settings.ways}
    variants = [
        name
        for name in step_time.VARIANTS
        if name in own
        or not (name.startswith("ours") or name in {"NumPyro", "plain loop, torch.compile"})
    ]
    flags = ["--size", settings.size_name, "--device", str(settings.device)]
    flags += ["--precisions", precision, "--variants", *variants]
    flags += ["--steps", "2"] if settings.smoke else []
    with TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        step_time.main([*flags, "--out", str(out)])
        return json.loads(out.read_text())


def mnist_items(settings: Settings) -> Items:
    for precision in ("float32",) if settings.smoke else ("float32", "bf16"):
        yield precision, partial(mnist, precision, settings)


# Many seeds.


def many_seeds(seeds: int, way: str, settings: Settings) -> dict[str, Any]:
    """Seconds of a step, by the difference of two calls, so that none is of what a call does once;
    and the most bytes.
    """
    size = settings.size
    x, _ = size.data()

    def build() -> Callable[[int], None]:
        guides = [size.guide() for _ in range(seeds)]
        runners = [
            SVIRunner(guide.model, guide, lr=size.lr, seed=seed, compile=WAYS[way])
            for seed, guide in enumerate(guides)
        ]

        def fit(epochs: int = 1) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeadFacetWarning)
                fit_together(runners, x, epochs, size.batch, log_every=epochs, progress=False)
            synchronize(settings.device)

        return fit

    fit, seconds, more = build(), {}, 1 if settings.smoke else 10
    fit()
    for epochs in (1, 1 + more):
        started = time.perf_counter()
        fit(epochs)
        seconds[epochs] = time.perf_counter() - started
    step = (seconds[1 + more] - seconds[1]) / (more * size.batches)

    def once() -> Step:
        build()()
        return lambda: None

    peak = peak_memory(once, settings.device)
    return {"step": step, "step_and_seed": step / seeds, "peak_bytes": peak}


def seeds_items(settings: Settings) -> Items:
    for way in [way for way in TOGETHER if way in settings.ways]:
        for seeds in settings.seeds:
            yield f"{way}, {seeds}", partial(many_seeds, seeds, way, settings)


# Memory.


def memory(model: str, settings: Settings) -> dict[str, Any]:
    """Most bytes of a step's tensors at a time, by variant and by way, recording included."""
    ways = in_every_way(
        settings.ways,
        lambda way: peak_memory(lambda: begun(model, settings, way, ROWS[0])[0], settings.device),
    )
    case = CASES[model]
    return {
        "rows": settings.costs.size.rows(case.batch),
        "peak_bytes": model_costs.memory_of_model(case, settings.costs),
        "rows_of_ways": settings.costs.size.rows(ROWS[0]),
        "peak_bytes_of_ways": ways.pop("found"),
        **ways,
    }


def memory_items(settings: Settings) -> Items:
    for model in settings.models:
        yield model, partial(memory, model, settings)


PARTS: dict[str, Callable[[Settings], Items]] = {
    "rates": rate_items,
    "correctness": correctness_items,
    "steps": step_items,
    "mnist": mnist_items,
    "seeds": seeds_items,
    "memory": memory_items,
}


# Running them.

# Seconds that a part may take beyond --minutes.
GRACE = 60.0
# What all parts import, so that a process begins at once.
IMPORTED = [
    "benchmarks.model_costs",
    "benchmarks.step_time",
    "benchmarks.reproduce",
    "torch._dynamo",
]


def about(settings: Settings) -> dict[str, Any]:
    """Where the figures come from."""
    try:
        commit = git(ROOT, "rev-parse", "--short", "HEAD").strip()
    except (OSError, RecordError):
        commit = "unknown"
    card = settings.device.type == "cuda"
    return {
        "commit": commit,
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name(settings.device) if card else "CPU",
        "cuda": torch.version.cuda if card else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "float32_products": torch.get_float32_matmul_precision(),
        "smoke": settings.smoke,
    }


def run_part(part: str, settings: Settings, out: Path, until: float) -> None:
    """Measure a part and write FOLDER/PART.json after every item.

    :param until: the end, in seconds since the epoch.
    """
    path = out / f"{part}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found = {"found": {}, "took": {}} | found
    found |= {"about": about(settings), "failed": {}, "left_out": {}}
    longest = 0.0
    for name, measure in PARTS[part](settings):
        started = time.time()
        if started + longest >= until:
            found["left_out"][name] = "it would not be done in time"
        else:
            print(f"{part}: {name}", flush=True)
            try:
                found["found"][name] = item = measure()
                for kind in ("failed", "left_out"):
                    ways = item.get(kind, {}).items()
                    found[kind] |= {f"{name}, {way}": why for way, why in ways}
            except Exception as error:
                traceback.print_exc()
                found["failed"][name] = f"{type(error).__name__}: {first_line(error)}"
            gc.collect()
            found["took"][name] = time.time() - started
            longest = max(longest, found["took"][name])
        path.write_text(json.dumps(found, indent=1) + "\n")


def run_apart(part: str, settings: Settings, out: Path, until: float) -> str | None:
    """:func:`run_part` in a process of its own; why that ended, if it did not end well."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    process = context.Process(target=run_part, args=(part, settings, out, until))
    process.start()
    process.join(None if math.isinf(until) else max(0.0, until - time.time()) + GRACE)
    if process.is_alive():
        process.kill()
        process.join()
        return "it had not ended in time"
    return f"its process ended with status {process.exitcode}" if process.exitcode else None


def run(parts: Sequence[str], settings: Settings, out: Path, until: float) -> dict[str, Any]:
    """Measure the parts, each apart, and put together what the folder holds."""
    ended = {}
    for part in parts:
        if why := run_apart(part, settings, out, until):
            ended[part] = why
    found: dict[str, Any] = {part: {} for part in PARTS}
    found |= {"about": about_all(out), "failed": dict(ended), "left_out": {}}
    for part in PARTS:
        path = out / f"{part}.json"
        if not path.exists():
            found["left_out"].setdefault(part, "it was not asked for")
            continue
        measured = json.loads(path.read_text())
        found[part] = measured["found"]
        for kind in ("failed", "left_out"):
            found[kind] |= {f"{part}: {name}": why for name, why in measured[kind].items()}
    return found


def about_all(out: Path) -> dict[str, Any]:
    """Of each part that the folder holds."""
    paths = {part: out / f"{part}.json" for part in PARTS}
    return {
        part: json.loads(path.read_text())["about"] for part, path in paths.items() if path.exists()
    }


# The record.


def ms(seconds: Mapping[str, float] | None) -> Any:
    if seconds is None:
        return "-"
    return {part: milliseconds(seconds[part]) for part in ("median", "low", "high")}


def milliseconds(seconds: float | None) -> Any:
    return "-" if seconds is None else rounded(1e3 * seconds)


def rounded(number: float) -> float:
    return float(f"{number:.3g}")


def mebibytes(count: float | None) -> Any:
    return "-" if count is None else rounded(count / 2**20)


def step_table(found: Mapping[str, Any]) -> dict[str, Any]:
    programs, rows = [*WAYS, "plain loop", "networks alone"], []
    for name, of in found["steps"].items():
        launches = min(of["launch_floor"].values(), default=None)
        floors = [milliseconds(launches), milliseconds(of["arithmetic_floor"])]
        rows.append([name, *(ms(of["seconds"].get(program)) for program in programs), *floors])
    columns = ["", *programs, "launch floor", "arithmetic floor"]
    caption = "Milliseconds of a step; its launch floor is the lowest one of all programs."
    return {"caption": caption, "columns": columns, "rows": rows}


def correctness_table(found: Mapping[str, Any]) -> dict[str, Any]:
    rows = [
        [name, *(f"{of['found'][w]['gradient']:.0e}" if w in of["found"] else "-" for w in WAYS)]
        for name, of in found["correctness"].items()
    ]
    caption = (
        "Largest relative difference of a gradient in float64: handlers from the CPU, the other "
        "ways from handlers."
    )
    return {"caption": caption, "columns": ["", *WAYS], "rows": rows}


def memory_table(found: Mapping[str, Any]) -> dict[str, Any]:
    variants, rows = ("ours", "plain loop", "ours, bf16"), []
    for name, of in found["memory"].items():
        counts = [of["peak_bytes"].get(variant) for variant in variants]
        counts += [of["peak_bytes_of_ways"].get(way) for way in WAYS]
        rows.append([name, *map(mebibytes, counts)])
    columns = ["", *variants, *(f"{way}, {ROWS[0]} rows" for way in WAYS)]
    return {"caption": "Peak MiB of tensors.", "columns": columns, "rows": rows}


def figure(what: str, unit: str, value: float, keys: str, scale: float) -> dict[str, Any]:
    name = "".join(c if c.isalnum() else "_" for c in what.lower())
    return {
        "name": name,
        "what": what,
        "unit": unit,
        "value": rounded(scale * value),
        "read": f"{NAME}.json: {keys}",
        "scale": scale,
        "tolerance": rounded(0.25 * abs(scale * value)),
    }


def figures(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    at_size = [
        figure(name, "ms", of["median"], f"mnist.{precision}.seconds.{name}.median", 1e3)
        for precision, part in found["mnist"].items()
        for name, of in part["seconds"].items()
    ]
    together = [
        figure(f"seeds at once, {name}: {what}", unit, of[key], f"seeds.{name}.{key}", scale)
        for name, of in found["seeds"].items()
        for key, what, unit, scale in (
            ("step_and_seed", "a step and seed", "ms", 1e3),
            ("peak_bytes", "peak memory", "MiB", 2.0**-20),
        )
    ]
    return at_size + together


def record(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of results/, in TOML's types; its machine, "card", needs a line in results/machines.toml."""
    described = next(iter(found["about"].values()))
    rate = found["rates"].get("rates", {})
    measured = ", ".join(f"{name} {value:.3g}" for name, value in rate.items())
    tables = [
        table
        for table in (step_table(found), correctness_table(found), memory_table(found))
        if table["rows"]
    ]
    versions = f"{described['device']}, torch {described['torch']}, CUDA {described['cuda']}"
    return {
        "title": "On a graphics card",
        "section": "One training step",
        "order": 465,
        "command": f"python -m benchmarks.{NAME} --out {{out}}",
        "commit": described["commit"],
        "date": datetime.date.fromisoformat(described["date"]),
        "machine": "card",
        "depends": ["training", "every_model", "timed_steps", "plain_objectives"],
        "setting": f"{versions}. Launches in seconds, and products in FLOP/s: {measured}.",
        "figure": figures(found),
        "table": tables,
    }


def write(found: Mapping[str, Any], out: Path) -> None:
    """All figures as JSON, and the record.

    :raises ModuleNotFoundError: if the record needs what is not installed; the figures are written.
    """
    (out / f"{NAME}.json").write_text(json.dumps(found, indent=1) + "\n")
    import tomlkit

    (out / f"{NAME}.toml").write_text(tomlkit.dumps(record(found)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument(
        "--parts", nargs="*", choices=list(PARTS), default=list(PARTS), metavar="PART",
        help=", ".join(PARTS) + "; without a name, what the folder holds is put together",
    )  # fmt: skip
    parser.add_argument(
        "--models", nargs="+", choices=list(CASES), metavar="MODEL",
        help=", ".join(CASES) + "; all, but in a smoke test " + ", ".join(LOOKED_AT),
    )  # fmt: skip
    parser.add_argument(
        "--ways", nargs="+", choices=list(WAYS), metavar="WAY",
        help=", ".join(WAYS),
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=math.inf, help="for all of it")
    parser.add_argument(
        "--smoke", action="store_true", help="tiny sizes and few steps, to see that it runs"
    )
    args = parser.parse_args(arguments)
    args.models = args.models or (LOOKED_AT if args.smoke else list(CASES))
    if args.ways is None:
        args.ways = list(WAYS)
    try:
        usable_device(args.device)
    except ValueError as error:
        parser.error(str(error))
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 1 if something failed."""
    args, until = parse(arguments), time.time()
    until += 60 * args.minutes
    settings = Settings(args.device, tuple(args.models), tuple(args.ways), args.smoke)
    args.out.mkdir(parents=True, exist_ok=True)
    found = run([part for part in PARTS if part in args.parts], settings, args.out, until)
    try:
        if found["about"]:
            write(found, args.out)
    except ModuleNotFoundError as error:
        found["left_out"]["the record"] = f"{error.name} is not installed"
    except Exception as error:
        traceback.print_exc()
        found["failed"]["the record"] = f"{type(error).__name__}: {first_line(error)}"
    for kind, words in (("left_out", "is left out"), ("failed", "FAILED")):
        for name, why in found[kind].items():
            print(f"{name} {words}: {why}")
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
