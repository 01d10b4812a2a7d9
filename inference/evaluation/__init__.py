"""Evaluation of a model and guide: bounds, exact values, clusters."""

from inference.evaluation.bounds import elbo, elbo_per_datum, kl_by_dimension, mutual_information
from inference.evaluation.exact import exact_objective
from inference.evaluation.importance import log_importance_weights

__all__ = [
    "elbo",
    "elbo_per_datum",
    "exact_objective",
    "kl_by_dimension",
    "log_importance_weights",
    "mutual_information",
]
