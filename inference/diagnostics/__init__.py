"""Is an ELBO estimator unbiased, how noisy is it, and how tight is the bound?

Draws, exact values for small models, tests with a stated power, comparisons, and importance
weights.
"""

from inference.diagnostics.comparison import EstimatorReport, compare_estimators
from inference.diagnostics.draws import GradientMoments, gradient_moments, loss_draws
from inference.diagnostics.exact import exact_objective, gauss_hermite
from inference.diagnostics.tightness import (
    importance_weighted_bounds,
    log_importance_weights,
    pareto_k,
)
from inference.diagnostics.unbiased import assert_unbiased

__all__ = [
    "EstimatorReport",
    "GradientMoments",
    "assert_unbiased",
    "compare_estimators",
    "exact_objective",
    "gauss_hermite",
    "gradient_moments",
    "importance_weighted_bounds",
    "log_importance_weights",
    "loss_draws",
    "pareto_k",
]
