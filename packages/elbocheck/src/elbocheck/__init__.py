"""Is a stochastic estimator, such as that of an ELBO, unbiased in value and gradient?

:func:`check` draws as often as it takes to say so, and says what it could have found. The core
takes arrays and functions of a seed and needs NumPy and SciPy alone; adapters take programs of Pyro
(:mod:`elbocheck.pyro`), NumPyro (:mod:`elbocheck.numpyro`) and PyTorch (:mod:`elbocheck.pytorch`).
"""

from elbocheck.checks import check, check_gradient, check_mean
from elbocheck.comparing import EstimatorReport, GradientMoments, compare_estimators, moments
from elbocheck.comparisons import Comparison
from elbocheck.importance import check_density, gauss_hermite, importance_weighted_bounds, pareto_k
from elbocheck.programs import Draws, Exact, Program
from elbocheck.ranks import CalibrationReport, sbc
from elbocheck.reports import Report

__all__ = [
    "CalibrationReport",
    "Comparison",
    "Draws",
    "EstimatorReport",
    "Exact",
    "GradientMoments",
    "Program",
    "Report",
    "check",
    "check_density",
    "check_gradient",
    "check_mean",
    "compare_estimators",
    "gauss_hermite",
    "importance_weighted_bounds",
    "moments",
    "pareto_k",
    "sbc",
]
