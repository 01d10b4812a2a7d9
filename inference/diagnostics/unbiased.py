"""A test of an estimator's bias with a stated power."""

from __future__ import annotations

import math

from scipy.stats import norm
from torch import Tensor

from ppl_models.checks import check_kind, number

__all__ = ["assert_unbiased"]


def assert_unbiased(
    draws: Tensor,
    exact: float | Tensor,
    detectable: float = 0.01,
    false_alarm: float = 1e-6,
    power: float = 0.99,
) -> float:
    """Fail if the mean of ``draws`` is not ``exact``, or if there are too few draws to tell.

    This is a two-sided z-test, with the standard error estimated from the draws.

    :param draws: independent draws ``[n]``.
    :param detectable: the bias, in the draws' unit, that the test must find with probability
        ``power``.
    :param false_alarm: probability of failing an unbiased estimator.
    :returns: the z-score.
    :raises ValueError: if the test would miss a bias of ``detectable`` too often.
    :raises AssertionError: if the draws are biased.

    Example:
        >>> import torch
        >>> from inference.diagnostics import assert_unbiased
        >>> draws = 3 + torch.randn(100_000, generator=torch.Generator().manual_seed(0))
        >>> abs(assert_unbiased(draws, exact=3.0, detectable=0.05)) < 5
        True
    """
    check_kind("draws", draws, Tensor, "a tensor [n]")
    for name, value in (("detectable", detectable), ("false_alarm", false_alarm), ("power", power)):
        if not 0 < number(value) < (math.inf if name == "detectable" else 1):
            raise ValueError(
                f"{name} must be {'positive' if name == 'detectable' else 'within (0, 1)'}, got "
                f"{value!r}"
            )
    n = draws.numel()
    if draws.dim() != 1 or n < 2 or not (draws.isfinite().all() and math.isfinite(exact)):
        raise ValueError(
            "a test needs a vector of at least two finite draws and a finite exact value, got "
            "shape "
            f"{tuple(draws.shape)}, {int((~draws.isfinite()).sum())} draws not finite, and "
            f"exact={float(exact)}"
        )
    error = max(float(draws.std()) / math.sqrt(n), 1e-12 * (1 + abs(float(exact))))
    threshold = float(norm.isf(false_alarm / 2))
    found = (threshold + float(norm.isf(1 - power))) * error
    if not found <= detectable:
        raise ValueError(
            f"{n} draws with a standard error of {error:.3g} detect a bias of {found:.3g} at "
            f"power {power}, not "
            f"{detectable:g}: take about {math.ceil(n * (found / detectable) ** 2):,} draws"
        )
    z = (float(draws.mean()) - float(exact)) / error
    if not abs(z) <= threshold:
        raise AssertionError(
            f"biased: the mean of {n} draws is {float(draws.mean()):.6g}, exact is "
            f"{float(exact):.6g}; "
            f"z = {z:.1f} beyond {threshold:.1f}"
        )
    return z
