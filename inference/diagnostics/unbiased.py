"""A test of an estimator's bias with a stated power."""

from __future__ import annotations

import math

import torch
from scipy.stats import norm
from torch import Tensor

from ppl_models.given.checks import check_kind, number

__all__ = ["assert_unbiased"]


def assert_unbiased(
    draws: Tensor,
    exact: float | Tensor,
    detectable: float = 0.01,
    false_alarm: float = 1e-6,
    power: float = 0.99,
) -> float:
    """Fail if the mean of ``draws`` is not ``exact``, or if there are too few draws to tell.

    This is a two-sided z-test, with the standard error estimated from the draws, but not below the
    rounding of their dtype.

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
    epsilon = torch.finfo(draws.dtype).eps if draws.is_floating_point() else 0.0
    draws, exact = draws.detach().double(), float(torch.as_tensor(exact).detach())
    n = draws.numel()
    if draws.dim() != 1 or n < 2 or not (draws.isfinite().all() and math.isfinite(exact)):
        raise ValueError(
            "a test needs a vector of at least two finite draws and a finite exact value, got "
            f"shape {tuple(draws.shape)}, {int((~draws.isfinite()).sum())} draws not finite, and "
            f"exact={exact}"
        )
    rounding = max(4 * epsilon, 1e-12) * (1 + abs(exact))
    error = max(float(draws.std()) / math.sqrt(n), rounding)
    threshold = float(norm.isf(false_alarm / 2))
    found = (threshold + float(norm.isf(1 - power))) * error
    if not found <= detectable:
        more = f"take about {math.ceil(n * (found / detectable) ** 2):,} draws"
        raise ValueError(
            f"{n} draws with a standard error of {error:.3g} detect a bias of {found:.3g} at "
            f"power {power}, not {detectable:g}: "
            f"{more if error > rounding else 'this is rounding, so draw in float64'}"
        )
    z = (float(draws.mean()) - exact) / error
    if not abs(z) <= threshold:
        raise AssertionError(
            f"biased: the mean of {n} draws is {float(draws.mean()):.6g}, exact is {exact:.6g}; z "
            f"= {z:.1f} beyond {threshold:.1f}"
        )
    return z
