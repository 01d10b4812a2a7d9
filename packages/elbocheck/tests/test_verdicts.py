"""Verdicts on arrays and functions: the level, the power, and what is refused."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from elbocheck import (
    CalibrationReport,
    Draws,
    Exact,
    Program,
    check,
    check_density,
    check_gradient,
    check_mean,
    compare_estimators,
    gauss_hermite,
    importance_weighted_bounds,
    moments,
    pareto_k,
    sbc,
)

RNG = np.random.default_rng


class Values(Program):
    """Draws by a function of a generator and a number."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def draw(self, num_draws: int, seed: int, gradient: bool = True) -> Draws:
        return Draws({"value": self.function(RNG(seed), num_draws)})


SKEWED = {
    "lognormal": (lambda rng, n: rng.lognormal(0, 1.5, n), math.exp(1.125), 0.5),
    "an event of 1 %": (lambda rng, n: (rng.random(n) < 0.01).astype(float), 0.01, 0.01),
    "t with 2.5 degrees": (lambda rng, n: rng.standard_t(2.5, n), 0.0, 0.15),
    "normal": (lambda rng, n: rng.standard_normal(n), 0.0, 0.15),
}


@pytest.mark.parametrize("name", SKEWED)
def test_the_level_holds_for_skewed_draws(name: str) -> None:
    """Of 1,000 right estimators at a level of 1 % no more than twice as many are called biased; a
    plain z-test calls 25 and 23 of the first two.
    """
    draw, mean, bias = SKEWED[name]
    options = {"bias": bias, "level": 1e-2, "max_draws": 3000}
    found = Counter(check(Values(draw), mean, seed=s, **options).verdict for s in range(1000))
    assert found["biased"] <= 20, found
    assert name != "normal" or found["unbiased"] > 970


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2])
def test_planted_biases_are_found_as_often_as_stated(share: float) -> None:
    """200 runs at a power of 0.9, of which the binomial deviation is 0.021: four of these."""
    power = []
    for draw in (lambda rng, n: 1 + rng.standard_normal(n), lambda rng, n: rng.exponential(1, n)):
        program = Values(lambda rng, n, draw=draw: (1 + share) * draw(rng, n))
        options = {"relative_bias": share, "bias": 1e-9, "power": 0.9}
        found = Counter(check(program, 1.0, seed=s, **options).verdict for s in range(200))
        power.append(found["biased"] / 200)
    assert min(power) > 0.9 - 4 * 0.021


def test_the_power_curve_is_that_of_repeated_tests() -> None:
    reports = [check_mean(1.0 + RNG(s).standard_normal(2000), 0.9, bias=0.2) for s in range(400)]
    stated = reports[0].power_curve(np.array([0.1]))["mean"][0]
    found = np.mean([report.verdict == "biased" for report in reports])
    assert abs(found - stated) < 4 * math.sqrt(stated * (1 - stated) / 400) + 0.02


def test_gross_faults_are_found_by_the_pilot() -> None:
    for factor in (50, 1000, -1):
        report = check(Values(lambda rng, n, f=factor: f * (6 + rng.standard_normal(n))), 6.0)
        assert report.verdict == "biased"
        assert report.comparisons[0].num_draws == 128


def test_equal_draws_may_hide_an_event() -> None:
    """No verdict from some hundred zeros: an event of 1 % may be to come."""
    report = check(Values(lambda rng, n: np.zeros(n)), 0.01, max_draws=128)
    assert report.verdict == "undecided"
    assert check(Values(lambda rng, n: np.zeros(n)), 0.01).verdict == "biased"
    assert check(Values(lambda rng, n: np.full(n, 0.5)), 0.5).verdict == "unbiased"


def test_draws_without_noise_are_compared_within_rounding() -> None:
    """In single precision 0.1 is 1.5e-9 too large; a difference of 1e-5 is found still."""
    for kind in (np.float32, np.float64):
        assert check_mean(np.full(1000, 0.1, kind), 0.1, bias=1e-4).verdict == "unbiased"
        assert check_mean(np.full(1000, 0.1, kind), 0.10001, bias=1e-4).verdict == "biased"


def test_rounding_that_hides_a_bias_leaves_it_undecided() -> None:
    def draw(rng: Any, n: int) -> np.ndarray:
        return (2e5 + rng.standard_normal(n)).astype(np.float32)

    report = check(Values(draw), 2e5, bias=0.1)
    assert report.verdict == "undecided"
    assert "double precision" in str(report)


def slow(rng: Any, n: int) -> np.ndarray:
    import time

    time.sleep(0.002 * n)
    return rng.standard_normal(n)


def test_time_that_runs_out_says_how_much_it_takes() -> None:
    report = check(Values(slow), 0.0, bias=1e-3, max_seconds=0.5)
    assert report.verdict == "undecided"
    assert report.seconds < 3
    with pytest.raises(AssertionError, match=r"it takes about [\d,]+ draws, [\d,]+ s: give max"):
        report.assert_unbiased()


def two(seed: int) -> tuple[float, dict[str, np.ndarray]]:
    """A value with mean 5, and its gradient by two parameters."""
    z = 2 + RNG(seed).standard_normal(40)
    return float((z**2).mean()), {"a": np.array([2 * z.mean()]), "b": np.ones(3)}


def test_functions_of_a_seed_and_references_of_every_kind() -> None:
    gradient = {"a": np.array([4.0]), "b": np.ones(3)}
    assert check(two, (5.0, gradient), bias=0.3).verdict == "unbiased"
    assert check(two, Exact(5.0, {"a": np.array([4.0])}), bias=0.3).verdict == "unbiased"
    assert check(two, two, bias=0.3).verdict == "unbiased"
    wrong = check(two, (5.0, gradient | {"a": np.array([3.0])}), bias=0.3)
    assert {c.name for c in wrong.biased} >= {"gradient along the reference's", "gradient of 'a'"}
    assert check(two, 5.0, gradient=False, bias=0.3).verdict == "unbiased"
    with pytest.raises(ValueError, match="what FunctionProgram should have as its mean"):
        check(two)


def wide(seed: int) -> tuple[float, np.ndarray]:
    rng = RNG(seed)
    return float(rng.standard_normal()), 0.05 + rng.standard_normal(400)


def test_a_drawn_reference_does_not_favor_its_own_directions() -> None:
    """With the draws that chose them, all twenty right estimators were called biased."""
    options = {"bias": 0.5, "gradient_bias": 0.5, "level": 1e-3, "max_draws": 1000}
    assert all(check(wide, wide, seed=s, **options).verdict != "biased" for s in range(20))


def test_gradients_of_arrays() -> None:
    draws = RNG(0).standard_normal((9000, 3)) + np.array([1.0, 0.0, -2.0])
    assert check_gradient(draws, [1.0, 0.0, -2.0]).verdict == "unbiased"
    assert check_gradient(draws, [1.0, 0.5, -2.0]).verdict == "biased"
    zero = draws - np.array([1.0, 0.0, -2.0])
    assert check_gradient(zero, np.zeros(3)).verdict == "unbiased"  # of a draw's deviation


def test_a_forgotten_normalization_is_found() -> None:
    """Detects 0.1 of the integral, and of the score's deviation."""
    z = RNG(0).standard_normal((6000, 2))
    right = -0.5 * (z**2).sum(1) - math.log(2 * math.pi)
    score = z**2 - 1  # by the log scales
    assert [r.verdict for r in check_density(z, right, score)] == ["unbiased", "unbiased"]
    integral, _ = check_density(z, right + 0.3, score)
    assert integral.verdict == "biased"
    _, of_score = check_density(z, right, z**2)
    assert of_score.verdict == "biased"


def test_moments_and_comparison_are_those_of_formulas() -> None:
    found = moments(two, 2000)
    assert found.mean[0] == pytest.approx(4.0, abs=0.05)
    assert found.variance[0] == pytest.approx(4 / 40, rel=0.2)
    report = compare_estimators({"two": two}, (5.0, {"a": np.array([4.0])}), 2000)["two"]
    assert abs(report.bias) < 4 * report.bias_error
    assert report.variance == pytest.approx(18 / 40, rel=0.2)
    assert report.gradient_variance == pytest.approx(4 / 40, rel=0.3)
    assert report.cosine == pytest.approx(1.0, abs=0.01)


def test_ranks_of_ties_and_of_mirrored_posteriors() -> None:
    """1,000 ranks detect 0.8 times the scale."""
    rng = RNG(0)
    c = rng.random(1000) < 0.4
    x = 2 * c + rng.standard_normal(1000)
    odds = 0.4 / 0.6 * np.exp(2 * x - 2)
    right = rng.random((1000, 99)) < (odds / (1 + odds))[:, None]
    mirrored = rng.random((1000, 99)) < (1 / (1 + odds))[:, None]
    report = sbc(c, right)
    assert isinstance(report.assert_calibrated(), CalibrationReport)
    assert 0.7 < report.narrow < 0.9
    with pytest.raises(AssertionError, match=r"ranks of value\[0\] are not uniform"):
        sbc(c, mirrored).assert_calibrated()


def test_tails_are_those_of_pareto_draws() -> None:
    """Weights u^-k of uniform u are Pareto with shape k, whatever the scale."""
    pytest.importorskip("arviz_stats", reason="needs elbocheck[psis]")
    uniform = RNG(0).random((20_000, 8))
    for k in (0.2, 0.6, 1.2):
        # The largest 3 sqrt(n) = 424 draws make the fit: a deviation of about (1 + k) / sqrt(424)
        # each.
        assert np.abs(pareto_k(-k * np.log(uniform)) - k).max() < 5 * (1 + k) / math.sqrt(424)


def test_weights_beyond_float64_have_no_mean_and_equal_ones_no_tail() -> None:
    """A draw that outweighs all others had k = 0.05, the best verdict; equal weights were refused,
    and with them all other data.
    """
    pytest.importorskip("arviz_stats", reason="needs elbocheck[psis]")
    noise = RNG(0).standard_normal(1000)
    one = np.where(np.arange(1000) == 7, 1000.0, 3 * noise)
    k = pareto_k(np.stack([one, 5000 * noise, np.full(1000, -math.inf), noise * 0 - 100, noise], 1))
    assert np.isposinf(k[:3]).all()
    assert k[3] == 0
    assert k[4] == pareto_k(noise[:, None])[0]  # whatever data are beside it


WRONG = {
    "bias": (lambda: check(two, 5.0, bias=0), "bias must be positive, got 0"),
    "level": (lambda: check(two, 5.0, level=1.0), "level must be between 0 and 1, got 1.0"),
    "relative": (lambda: check(two, 5.0, relative_bias=-1), "relative_bias must be between"),
    "draws": (lambda: check(two, 5.0, max_draws=0.5), "max_draws must be a whole number"),
    "seed": (lambda: check(two, 5.0, seed=-1), "seed must be a whole number of at least 0"),
    "program": (lambda: check(3.0, 5.0), "the program must be an elbocheck Program"),
    "reference": (lambda: check(two, "5?"), "reference must be a number"),
    "sizes": (lambda: check(two, (5.0, {"a": np.ones(2)})), "has 2 entries of 'a', and the"),
    "nan": (lambda: check_mean([1.0, math.nan], 0.0), "1 of 2 draws are not finite"),
    "table": (lambda: check_mean(np.zeros((3, 2)), 0.0), r"draws must be \[n\] with at least"),
    "entries": (lambda: check_gradient(np.zeros((3, 2)), [0.0]), "have 2 entries, and exact has 1"),
    "bins": (lambda: sbc(np.zeros(99), np.zeros((99, 8))), "must be a multiple of bins"),
    "few": (lambda: sbc(np.zeros(9), np.zeros((9, 99))), "9 ranks in 10 bins are too few"),
    "shapes": (lambda: sbc(np.zeros(9), np.zeros((8, 99))), r"draws must be \[S, L\]"),
    "nodes": (lambda: gauss_hermite(10**7, 1), r"10000000 \*\* 1 nodes are too many"),
    "sizes of bounds": (lambda: importance_weighted_bounds(np.zeros((4, 5)), [5]), "at most the"),
    "weights": (lambda: pareto_k(np.zeros(100)), r"must be \[num_draws, N\] without NaN"),
    "tail": (lambda: pareto_k(np.zeros((4, 5))), "a tail needs at least 100 draws, got 4"),
    "estimators": (lambda: compare_estimators({}, 5.0), "must be estimators by name"),
    "no gradient": (lambda: compare_estimators({"a": two}, 5.0), "the reference has no gradient"),
    "without": (lambda: moments(Values(slow), 2), "Values gives no gradient"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case: str) -> None:
    call, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        call()


def test_the_import_is_small_and_fast() -> None:
    """After NumPy and SciPy: a third of a second at most, and none of the frameworks."""
    code = (
        "import numpy, scipy.stats, scipy.special, scipy.optimize, time, sys; start = time.time(); "
        "import elbocheck; seconds = time.time() - start; "
        "heavy = {'torch', 'jax', 'sklearn', 'pandas', 'pyro', 'numpyro'} & set(sys.modules); "
        "print(seconds, heavy); assert seconds < 0.3 and not heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
