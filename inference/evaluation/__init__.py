"""Evaluation of a model and guide: bounds, exact values, clusters, identifiability."""

from inference.evaluation.bounds import elbo, elbo_per_datum, kl_by_dimension, mutual_information
from inference.evaluation.exact import exact_objective
from inference.evaluation.identifiability import (
    IdentifiabilityWarning,
    KeepIdentifiable,
    coinciding_components,
    condition_number,
    identifiability_matrix,
    natural_parameters,
    perturb_components,
)
from inference.evaluation.importance import log_importance_weights

__all__ = [
    "IdentifiabilityWarning",
    "KeepIdentifiable",
    "coinciding_components",
    "condition_number",
    "elbo",
    "elbo_per_datum",
    "exact_objective",
    "identifiability_matrix",
    "kl_by_dimension",
    "log_importance_weights",
    "mutual_information",
    "natural_parameters",
    "perturb_components",
]
