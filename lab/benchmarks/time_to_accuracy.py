"""How soon MFCVAE's digit facet is right about 92 % of MNIST's test images, with both facets in.

    python -m lab.benchmarks.time_to_accuracy --data-root DATA --seeds 3
    python -m lab.benchmarks.time_to_accuracy --data-root DATA --seeds 3 --start cold

From neighbours: the clusters of the training images' nearest neighbours are taught to the digit
facet while both facets are let in; then training goes on without them. From the cold start:
mixtures are fitted anew on the way.

The clock runs from the untrained model on, while neighbours are looked for, while training and
while mixtures are fitted, and stands while accuracy is measured. Settings are to be chosen on the
accuracy of training images, which is printed beside. Nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

import pyro

from facetvae.datasets import Dataset, mnist
from guides import VaDEGuide
from inference import ProgressiveFadeIn, SVIRunner, cold_start, fit_mixtures, neighbor_start
from inference.metrics import cluster_accuracy
from ppl_models import MFCVAE, GaussianMixture, MLPLadder

GOAL = 0.92
COMPONENTS, DIM = 25, 5


@dataclass
class Clock:
    """Looks at a run, and stands meanwhile.

    :ivar seconds: until now.
    :ivar reached: when the goal was met with both facets in.
    """

    data: Dataset
    seed: int
    seconds: float = 0.0
    reached: float | None = None
    started: float = field(default_factory=time.perf_counter)

    def __call__(self, runner: SVIRunner, record: dict) -> None:
        self.seconds += time.perf_counter() - self.started
        on_train, on_test = self.accuracy(runner, "train", 10_000), self.accuracy(runner, "test")
        both_in = float(runner.model.gates.min()) == 1
        if both_in and self.reached is None and on_test >= GOAL:
            self.reached = self.seconds
        print(
            f"seed {self.seed}  epoch {runner.epoch:3d}  {self.seconds:6.1f} s  train "
            f"{on_train:.4f}  "
            f"test {on_test:.4f}  ELBO {record['elbo']:7.2f}  I(x; c) of style "
            f"{record['mutual_information_style']:.2f}"
            f"{'  both in' if both_in else ''}",
            flush=True,
        )
        self.started = time.perf_counter()

    def accuracy(self, runner: SVIRunner, split: str, rows: int | None = None) -> float:
        """Of the digit facet's clusters."""
        x, labels = (
            getattr(self.data, split)[:rows],
            getattr(self.data, f"{split}_labels")["digit"][:rows],
        )
        return cluster_accuracy(labels, runner.guide.predict(x)["digit"])


def train(data: Dataset, args: argparse.Namespace, seed: int) -> float | None:
    """Seconds until the goal was met with both facets in, or None."""
    pyro.set_rng_seed(seed)
    facets = {name: GaussianMixture(COMPONENTS, DIM) for name in ("style", "digit")}
    model = MFCVAE(data.train.shape[1:], facets, network=MLPLadder(merge="gated_add"))
    guide = VaDEGuide(model, label_weight=args.label_weight)
    clock = Clock(data, seed)
    schedule = ProgressiveFadeIn((args.alone, args.together), args.fade_steps, waiting_weight=0.5)
    runner = SVIRunner(model, guide, lr=args.lr, schedule=schedule, seed=seed, precision="bf16")
    how = {"batch_size": args.batch_size, "log_every": args.every, "progress": False}
    epochs = args.alone + args.together
    if args.start == "neighbors":
        neighbor_start(
            runner, data.train, epochs, facet="digit", seed=seed, callbacks=[clock], **how
        )
    else:

        def fit_anew(runner: SVIRunner, record: dict) -> None:
            if runner.epoch in args.fit_at:
                fit_mixtures(guide, data.train, facets=["digit"], n_init=args.restarts, seed=seed)

        cold_start(guide, data.train, 20_000, seed, fit_to="draws")
        runner.fit(data.train, epochs, callbacks=[fit_anew, clock], **how)
    if args.free:
        print("without labels from here on", flush=True)
        free = SVIRunner(model, guide, lr=args.free_lr, seed=seed + 1000, precision="bf16")
        free.fit(data.train, args.free, callbacks=[clock], **how | {"log_every": args.free_every})
    return clock.reached


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--start", choices=("neighbors", "cold"), default="neighbors")
    parser.add_argument(
        "--label-weight",
        type=float,
        default=30.0,
        help="of neighbours' clusters while they are taught",
    )
    parser.add_argument("--alone", type=int, default=1, help="epochs of the digit facet by itself")
    parser.add_argument(
        "--together", type=int, default=6, help="epochs after the style facet is let in"
    )
    parser.add_argument("--fade-steps", type=int, default=1000)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--every", type=int, default=1, help="epochs between measurements")
    parser.add_argument("--free", type=int, default=0, help="epochs that follow without labels")
    parser.add_argument("--free-lr", type=float, default=1e-3)
    parser.add_argument("--free-every", type=int, default=5)
    parser.add_argument(
        "--fit-at", type=int, nargs="*", default=[], help="epochs that fit the mixture (cold start)"
    )
    parser.add_argument("--restarts", type=int, default=3)
    args = parser.parse_args()
    if any(epoch % args.every for epoch in args.fit_at):
        parser.error(
            f"mixtures can be fitted where accuracy is measured, every {args.every} epochs: got "
            f"{args.fit_at}"
        )
    return args


def main() -> None:
    args = parse()
    data = mnist(args.data_root)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    times = {seed: train(data, args, seed) for seed in seeds}
    print(f"seconds to {GOAL:.0%} of the test images with both facets in:", times)
    reached = [value for value in times.values() if value is not None]
    if len(reached) > 1:
        print(
            f"mean {mean(reached):.0f} (sd {stdev(reached):.0f}) over the {len(reached)} of "
            f"{len(times)} that met it"
        )


if __name__ == "__main__":
    main()
