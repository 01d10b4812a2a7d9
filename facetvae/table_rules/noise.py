"""How far real data lie from what linear latents explain: the scale of a normal likelihood."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from sklearn.decomposition import PCA, FactorAnalysis

from facetvae.table_rules.chance import filled, principal_dimensions
from facetvae.table_rules.rows import has_missing, is_missing, thinned
from facetvae.table_rules.threads import on_one_thread

# Rows to use when a rough estimate is enough.
SOME_ROWS = 5000
# Bounds on the residual's standard deviation, in units of the data's own: with less, only the
# reconstruction would count; with more, the latents would have nothing to encode.
RESIDUAL_SHARE = (0.1, 0.6)
# Most common factors, and the nats per row by which a fit of them must still gain.
MOST_FACTORS, GAIN = 20, 1e-3
# Least deviation of a column's noise, in units of the median column's: a factor of its own leaves a
# column none.
LEAST_SHARE = 0.1
# Deviation, in units of a whole column's, that is none; and fewest and most columns, and fewest
# rows, that factors are fitted to.
CONSTANT, FEWEST, WIDE = 1e-3, 3, 1000


def residual_scale(x: np.ndarray, dim: int) -> float:
    """Deviation of probabilistic PCA's noise with ``dim`` components (Tipping and Bishop, 1999),
    within bounds.

    Missing entries take their column's mean, and do not count in the deviation.

    :param x: ``[N, ...]``.
    """
    rows = x[:: -(-len(x) // SOME_ROWS)].reshape(-1, prod(x.shape[1:])).astype(float)
    missing = is_missing(rows)
    total = float(np.nanstd(rows)) if not missing.all() else 1.0
    low, high = (share * (total or 1.0) for share in RESIDUAL_SHARE)
    k = min(dim, rows.shape[1] - 1, len(rows) - 1)
    if k < 1:
        return high
    complete = filled(rows) if missing.any() else rows
    with np.errstate(invalid="ignore"):  # shares of the variance of constant data
        noise = PCA(k, random_state=0).fit(complete).noise_variance_ / (1 - missing.mean())
    return float(np.clip(np.sqrt(noise), low, high))


def linear_noise(x: np.ndarray, dim: int) -> float | np.ndarray:
    """Deviation of what ``dim`` linear latents leave of standardised columns ``[N, D]``: one, or
    each column's (:func:`column_noise`); the lower bound for as many latents as columns, which
    leave nothing; one for incomplete data.
    """
    if has_missing(x):
        return residual_scale(x, dim)
    if dim >= x.shape[1]:
        return RESIDUAL_SHARE[0]
    found = column_noise(x, dim)
    return residual_scale(x, dim) if found is None else found


@on_one_thread
def column_noise(x: np.ndarray, dim: int) -> np.ndarray | None:
    """Deviation of each column's noise by factor analysis ``[D]``; ``None`` if held-out rows are as
    likely where all columns have the same (probabilistic PCA), or columns depend on each other
    without any noise.

    Both models are fitted to one half of the rows and judged on the other, with as many latents as
    are best there: at most ``dim``, and no more than the covariances of D columns determine
    (Ledermann, 1937).

    :param x: ``[N, D]``, standardised and complete. Of more than ``WIDE`` columns ``None``, because
        the likelihood takes time cubic in them.
    """
    rows = np.random.default_rng(0).permutation(thinned(x, SOME_ROWS)).astype(float)
    fitted, held_out = rows[::2], rows[1::2]
    vary = np.minimum(fitted.std(0), held_out.std(0)) > CONSTANT
    if not (vary.sum() >= FEWEST and vary.sum() <= WIDE and len(held_out) >= FEWEST):
        return None
    rows, fitted, held_out = rows[:, vary], fitted[:, vary], held_out[:, vary]
    scores = dict(_factors_by_likelihood(fitted, held_out, dim))
    if not scores:
        return None
    number = max(scores, key=scores.__getitem__)
    saturated = {vary.sum() - 1} if len(fitted) > 2 * vary.sum() else set()
    alike = [PCA(k, random_state=0).fit(fitted) for k in {*scores, *saturated}]
    if min(pca.noise_variance_ for pca in alike) < CONSTANT**2:
        return None
    if not scores[number] > max(pca.score(held_out) for pca in alike):
        return None
    noise = np.sqrt(_factor_analysis(number, rows).noise_variance_)
    noise = noise.clip(LEAST_SHARE * np.median(noise))
    size = np.sqrt((noise**2).mean())
    of_all = np.full(len(vary), np.clip(size, *RESIDUAL_SHARE))
    of_all[vary] *= noise / size
    return of_all


def _factors_by_likelihood(
    fitted: np.ndarray, held_out: np.ndarray, dim: int
) -> Iterator[tuple[int, float]]:
    """Numbers of common factors and the log-likelihood of held-out rows, from those beyond chance
    on, until it no longer rises.
    """
    D = fitted.shape[1]
    determined = int((2 * D + 1 - np.sqrt(8 * D + 1)) / 2)
    most, best = min(dim, determined, MOST_FACTORS, len(fitted) - 2), -np.inf
    first = principal_dimensions(fitted, 1, max(1, most))
    for number in range(first, most + 1):
        score = _factor_analysis(number, fitted).score(held_out)
        if not score > best:
            return
        yield number, (best := score)


def _factor_analysis(number: int, rows: np.ndarray) -> FactorAnalysis:
    return FactorAnalysis(number, tol=GAIN * len(rows), random_state=0).fit(rows)
