"""Ten seeds in one program against ten runs in turn: the ratio of wall times, and whether their
ELBOs agree.

python -m lab.benchmarks.seeds_at_once

The synthetic task of lab.protocols.identifiability. Both ways take the same steps from the same
networks, by turns in one process, and only the draws differ. The two-sample tests are of the last
ELBOs on the training rows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import mean, stdev

import numpy as np
from scipy.stats import mannwhitneyu, ttest_ind, ttest_rel

from inference import SVIRunner, elbo, fit_together
from lab.protocols.identifiability import MODELS, NUM_SEGMENTS, Settings, build, given
from lab.protocols.sources import Segments, time_contrastive


def in_turn(runners: list[SVIRunner], data: Segments, epochs: int, batch_size: int) -> None:
    for runner in runners:
        beside = given(runner.guide, data)
        runner.fit(data.x, epochs, batch_size, log_every=epochs, progress=False, **beside)


def at_once(runners: list[SVIRunner], data: Segments, epochs: int, batch_size: int) -> None:
    beside = given(runners[0].guide, data)
    fit_together(runners, data.x, epochs, batch_size, log_every=epochs, progress=False, **beside)


WAYS: dict[str, Callable] = {"in turn": in_turn, "at once": at_once}


def measure(name: str, seeds: int, steps: int, turns: int) -> None:
    settings = Settings()
    data = time_contrastive(100, NUM_SEGMENTS, seed=settings.data_seed)
    runners = {way: [build(name, settings, seed) for seed in range(seeds)] for way in WAYS}
    epochs = max(1, round(steps / turns / -(-len(data.x) // settings.batch_size)))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(turns):
        for way in list(WAYS) if turn % 2 == 0 else list(WAYS)[::-1]:
            started = time.perf_counter()
            WAYS[way](runners[way], data, epochs, settings.batch_size)
            seconds[way].append(time.perf_counter() - started)
    ratios = [a / b for a, b in zip(seconds["in turn"], seconds["at once"], strict=True)]
    totals = ", ".join(f"{way} {sum(of):.1f} s" for way, of in seconds.items())
    print(
        f"{name}, {seeds} seeds, {runners['in turn'][0].step} steps: {totals}, ratio "
        f"{mean_and_deviation(ratios)}"
    )
    ends = {way: [_elbo(runner, data) for runner in of] for way, of in runners.items()}
    for way, values in ends.items():
        print(f"  ELBO {way}: {mean_and_deviation(values, 3)} nats per datum")
    compare(*(np.array(values) for values in ends.values()))


def compare(one: np.ndarray, other: np.ndarray) -> None:
    error = np.sqrt(one.var(ddof=1) / len(one) + other.var(ddof=1) / len(other))
    print(f"  difference {other.mean() - one.mean():+.3f}, standard error {error:.3f}")
    print(
        f"  (with ten seeds each, a true difference of {3 * error:.3f} would be found with "
        "probability 0.8)"
    )
    tests = {
        "Welch": ttest_ind(one, other, equal_var=False),
        "Mann-Whitney": mannwhitneyu(one, other),
        "pairs of a seed": ttest_rel(one, other),
    }
    print("  " + ", ".join(f"{test} p = {result.pvalue:.2f}" for test, result in tests.items()))


def mean_and_deviation(values: list[float], digits: int = 2) -> str:
    return f"{mean(values):.{digits}f} ({stdev(values):.{digits}f})"


def _elbo(runner: SVIRunner, data: Segments) -> float:
    return elbo(runner.model, runner.guide, data.x, num_draws=20, **given(runner.guide, data))[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["VaDE", "iVAE"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument(
        "--turns", type=int, default=4, help="the steps are taken in so many parts, by turns"
    )
    args = parser.parse_args()
    for name in args.models:
        measure(name, args.seeds, args.steps, args.turns)


if __name__ == "__main__":
    main()
