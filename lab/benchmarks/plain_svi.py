"""Every model and guide under Pyro's own SVI, with each of Pyro's objectives that suits it.

    python -m lab.benchmarks.plain_svi --out runs/plain_svi

For each pair: how many parameters 30 steps of plain ``SVI`` move, of those that the runner moves
with the same objective; by how much the loss differs from the library's on the same draws (float64,
nats per sample); and the held-out ELBO after so many steps of each, from the same start.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from pyro.infer import SVI
from pyro.optim import Adam
from torch import Tensor

from guides import FacetGuide
from inference import Loss, SVIRunner, elbo
from tests.catalog import OBJECTIVES, PAIRS, given

N, LR, DRAWS = 48, 1e-3, 20


def data(guide: FacetGuide, seed: int) -> Tensor:
    """Samples with a structure of two dimensions: 8-bit values in [0, 1]."""
    rng = np.random.default_rng(0)
    loadings = rng.normal(size=(2, int(np.prod(guide.model.x_shape))))
    z = np.random.default_rng(seed).normal(size=(N, 2))
    x = np.round(255 / (1 + np.exp(-2 * z @ loadings))) / 255
    return torch.tensor(x.reshape(N, *guide.model.x_shape), dtype=torch.float32)


def moved(guide: FacetGuide, train: Callable[[], Any]) -> set[str]:
    """Which parameters a training changes."""
    before = {name: p.detach().clone() for name, p in guide.named_parameters()}
    train()
    return {name for name, p in guide.named_parameters() if not torch.equal(p, before[name])}


def built(build: Callable[[], FacetGuide]) -> FacetGuide:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    return build()


def by_svi(guide: FacetGuide, name: str, steps: int) -> None:
    x, options = guide.model.prepare(data(guide, 1)), {**guide.options, **given(guide, N)}
    svi = SVI(guide.model, guide, Adam({"lr": LR}), OBJECTIVES[name](guide))
    for _ in range(steps):
        svi.step(x, **options)


def by_runner(guide: FacetGuide, name: str, steps: int) -> None:
    runner = SVIRunner(guide.model, guide, OBJECTIVES[name](guide), lr=LR)
    runner.fit(data(guide, 1), steps, N, steps, progress=False, **given(guide, N))


def loss_difference(guide: FacetGuide, name: str) -> float:
    """Plain SVI's loss less the library's on the same draws, in nats per sample."""
    guide = guide.double()
    x, objective = data(guide, 1).double(), OBJECTIVES[name](guide)
    beside = {k: v.double() if v.is_floating_point() else v for k, v in given(guide, N).items()}
    pyro.set_rng_seed(1)
    ours = float(Loss(guide.model, guide, objective)(x, **beside).detach())
    pyro.set_rng_seed(1)
    svi = SVI(guide.model, guide, Adam({"lr": 0.0}), objective)
    return svi.step(guide.model.prepare(x), **guide.options, **beside) / N - ours


def held_out(guide: FacetGuide) -> tuple[float, float]:
    guide.eval()
    return elbo(guide.model, guide, data(guide, 2), DRAWS, **given(guide, N))


def row(build: Callable[[], FacetGuide], name: str, steps: int) -> dict[str, Any]:
    guides = {"svi": built(build), "runner": built(build)}
    changed = {
        way: moved(guides[way], lambda g=guides[way], t=train: t(g, name, 30))
        for way, train in (("svi", by_svi), ("runner", by_runner))
    }
    found: dict[str, Any] = {
        "pair": build.__name__,
        "objective": name.removeprefix("Pyro's "),
        "moved": len(changed["svi"]),
        "of": len(changed["runner"]),
        "same": changed["svi"] == changed["runner"],
        "difference": abs(loss_difference(built(build), name)),
    }
    for way, train in (("svi", by_svi), ("runner", by_runner)):
        guide = built(build)
        train(guide, name, steps)
        found[f"elbo_{way}"], found[f"error_{way}"] = held_out(guide)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pairs", nargs="+", help="some of the catalog's builders")
    parser.add_argument("--out", type=Path, default=Path("runs/plain_svi"))
    args = parser.parse_args(arguments)
    rows = []
    print(f"{'pair':42s} {'objective':14s} {'moved':>9s} {'loss':>8s} {'SVI':>9s} {'runner':>9s}")
    for build, _, suitable in PAIRS:
        for name in sorted(name for name in suitable if name.startswith("Pyro's ")):
            if args.pairs and build.__name__ not in args.pairs:
                continue
            found = row(build, name, args.steps)
            rows.append(found)
            print(
                f"{found['pair']:42s} {found['objective']:14s} {found['moved']:4d}/{found['of']:4d}"
                f" {found['difference']:8.1e} {found['elbo_svi']:9.3f} {found['elbo_runner']:9.3f}",
                flush=True,
            )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "plain_svi.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"pairs: {len(rows)}")
    print(f"pairs that move what the runner moves: {sum(each['same'] for each in rows)}")
    print(f"largest difference of losses: {max(each['difference'] for each in rows):.1e}")
    apart = [abs(each["elbo_svi"] - each["elbo_runner"]) for each in rows]
    print(f"held-out ELBOs differ by: median {np.median(apart):.3f}, at most {max(apart):.3f}")


if __name__ == "__main__":
    main()
