"""What has to be checked and measured on a graphics card, in one call; writes FILE as it goes.

    python -m lab.benchmarks.on_a_card --out card.json
    python -m lab.benchmarks.on_a_card --out card.json --device cpu --smoke

For every model: objective and gradient in float64 on the device against the CPU's, with the same
noise, and of every way to take a step against steps through Pyro; seconds of a step in every way
and in bfloat16, beside a plain loop, peak bytes, and two floors: kernels of the plain loop times
the seconds of a launch, and its matrix products' FLOPs over the measured rate. Then ten seeds of
MFCVAE as one program. What fails or cannot be had is a sentence in its place.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from inference import SVIRunner, fit_together
from inference.randomness import seeded, synchronize
from lab.benchmarks.model_cases import CASES, FULL, SMALL, Case, Size
from lab.benchmarks.model_steps import (
    FitSteps,
    PlainSteps,
    begin,
    in_turns,
    peak_memory,
    ratios,
    spread,
)
from ppl_models.given.observed import Observed

WAYS = {"handlers": None, "replay": "replay", "cuda graph": "cuda graph"}
SMOKE_MODELS = ("MFCVAE", "MLVAE")


class DrawnOnCPU(TorchDispatchMode):
    """All random draws are the CPU's, whatever device they are for."""

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
            kwargs["generator"] = torch.Generator().manual_seed(kwargs["generator"].initial_seed())
        drawn = func(*(a.cpu() if isinstance(a, Tensor) else a for a in args), **kwargs)
        if func._schema.is_mutable:
            return tensors[0].copy_(drawn)
        return drawn.to(device) if isinstance(drawn, Tensor) else tuple(d.to(device) for d in drawn)


def start(case: Case, size: Size, device: str, double: bool = False) -> tuple[Any, Observed]:
    """The same guide and data each time, eight batches of them."""
    pyro.set_rng_seed(0)
    guide, rows = case.guide(size), 8 * size.rows(case.batch)
    data = Observed(torch.rand(rows, *guide.model.x_shape), case.given(rows))
    if double:
        given = {k: v.double() if v.is_floating_point() else v for k, v in data.given.items()}
        guide, data = guide.double(), Observed(data.x.double(), given)
    return guide.to(device), data.to(device)


def steps_of(case: Case, size: Size, device: str, way: str, **options: Any) -> FitSteps:
    guide, data = start(case, size, device, options.pop("double", False))
    runner = SVIRunner(guide.model, guide, compile=WAYS[way], **options)
    return FitSteps(runner, data, size.rows(case.batch))


def gradient(case: Case, size: Size, device: str, way: str, noise: bool) -> Tensor:
    """Of the twelfth step in float64, the objective before it, on the CPU; weights do not move."""
    step = steps_of(case, size, device, way, lr=1e-15, double=True)
    with DrawnOnCPU() if noise else nullcontext(), pyro.validation_enabled(False):
        for number in range(12):
            with seeded(number, torch.device(device)):
                step.total_loss.zero_()
                step()
    if step.refusal is not None:
        raise ValueError(step.refusal)
    grads = [p.grad for p in step.runner.loss.parameters() if p.grad is not None]
    return torch.cat([each.flatten().cpu() for each in (step.total_loss, *grads)])


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return float((one - other).abs().max() / other.abs().max())


def correct(case: Case, size: Size, device: str) -> dict[str, Any]:
    """How far the device is from the CPU, and every way from steps through Pyro."""
    through_pyro = gradient(case, size, device, "handlers", noise=False)
    on_cpu = gradient(case, size, "cpu", "handlers", noise=True)
    found = {"cpu": tried(lambda: apart(gradient(case, size, device, "handlers", True), on_cpu))}
    for way in list(WAYS)[1:]:
        found[way] = tried(
            lambda way=way: apart(gradient(case, size, device, way, False), through_pyro)
        )
    return found


def times(case: Case, size: Size, device: str, turns: int) -> dict[str, Any]:
    """Seconds of a step, over the plain loop's, peak bytes, and the plain loop's floors."""
    makes: dict[str, Callable[[], Any]] = {
        way: lambda way=way: steps_of(case, size, device, way) for way in WAYS
    }
    makes["bf16"] = lambda: steps_of(case, size, device, "handlers", precision="bf16")
    rows = size.rows(case.batch)
    makes["plain loop"] = lambda: PlainSteps(case.plain, *start(case, size, device), rows)
    steps, found, place = {}, {}, torch.device(device)
    for name, make in makes.items():
        first = tried(lambda make=make, name=name: begin(steps.setdefault(name, make())))
        found[name] = {
            "first": first,
            "bytes": tried(lambda m=make: peak_memory(m, place)),
        }
    steps = {name: step for name, step in steps.items() if isinstance(found[name]["first"], float)}
    seconds = in_turns(steps, turns, 10, time.perf_counter)
    for name, of in seconds.items():
        found[name] |= {"seconds": spread(of), "over_plain": ratios(of, seconds["plain loop"])}
    plain, one, many = steps["plain loop"], torch.zeros(1, device=device), 4096
    with pyro.validation_enabled(False), FlopCounterMode(display=False) as counter:
        plain()
    with pyro.validation_enabled(False), profile() as seen:
        plain()
        synchronize(place)
    kind = place.type.upper()
    kernels = sum(e.count for e in seen.key_averages() if e.device_type.name == kind)
    square = torch.rand(many if kind == "CUDA" else 512, many if kind == "CUDA" else 512).to(device)
    launch = in_turns({"launch": lambda: one.add_(1)}, 20, 100, time.perf_counter)["launch"]
    product = in_turns({"mm": lambda: (square @ square).sum().item()}, 5, 5, time.perf_counter)
    rate = 2 * len(square) ** 3 / spread(product["mm"])["median"]
    floors = {"launch": kernels * spread(launch)["median"]}
    return found | {"floors": floors | {"arithmetic": counter.get_total_flops() / rate}}


def ten_seeds(size: Size, device: str) -> dict[str, float]:
    """Seconds of an epoch of ten seeds at once, and of one."""
    case, found = CASES["MFCVAE"], {}
    for seeds in (10, 1):
        guides = [start(case, size, device) for _ in range(seeds)]
        runners = [SVIRunner(g.model, g, seed=i) for i, (g, _) in enumerate(guides)]
        for _ in range(2):  # the first one is not counted
            begun = time.perf_counter()
            fit_together(runners, guides[0][1].x, 10, size.rows(case.batch), progress=False)
            found[str(seeds)] = (time.perf_counter() - begun) / 10
    return found


def tried(measure: Callable[[], Any]) -> Any:
    """What it measures, or why it cannot be had."""
    try:
        return measure()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see that it runs")
    args = parser.parse_args(arguments)
    size, models = (SMALL, SMOKE_MODELS) if args.smoke else (FULL, tuple(CASES))
    cuda = args.device.startswith("cuda")
    name = torch.cuda.get_device_name(args.device) if cuda else args.device
    found: dict[str, Any] = {"card": name, "torch": torch.__version__}
    parts: dict[str, Callable[[], Any]] = {}
    for model in models:
        of = (CASES[model], size, args.device)
        parts[f"{model}: correct"] = lambda of=of: correct(*of)
        parts[f"{model}: times"] = lambda of=of: times(*of, turns=1 if args.smoke else 10)
    parts["ten seeds"] = lambda: ten_seeds(size, args.device)
    for part, measure in parts.items():
        found[part] = tried(measure)
        print(part, json.dumps(found[part]), flush=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
