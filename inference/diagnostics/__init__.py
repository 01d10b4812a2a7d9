"""Is an ELBO estimator unbiased, how noisy is it, and how tight is the bound?

Draws, exact values for small models, tests that state their power, comparisons, importance
weights, and calibration: for the project's own models, and for any Pyro model, guide and ELBO.
"""

from inference.diagnostics.comparison import EstimatorReport, compare_estimators
from inference.diagnostics.draws import GradientMoments, gradient_moments, loss_draws
from inference.diagnostics.elbo_unbiased import Comparison, ElboReport, assert_elbo_unbiased
from inference.diagnostics.enumeration import exact_elbo
from inference.diagnostics.exact import exact_objective, gauss_hermite
from inference.diagnostics.rank_calibration import CalibrationReport, calibration
from inference.diagnostics.tightness import (
    importance_weighted_bounds,
    log_importance_weights,
    pareto_k,
)
from inference.diagnostics.unbiased import assert_unbiased

__all__ = [
    "CalibrationReport",
    "Comparison",
    "ElboReport",
    "EstimatorReport",
    "GradientMoments",
    "assert_elbo_unbiased",
    "assert_unbiased",
    "calibration",
    "compare_estimators",
    "exact_elbo",
    "exact_objective",
    "gauss_hermite",
    "gradient_moments",
    "importance_weighted_bounds",
    "log_importance_weights",
    "loss_draws",
    "pareto_k",
]
