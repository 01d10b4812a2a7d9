"""Evaluation of a fitted model and guide: bounds, clusters, identifiability."""

from inference.evaluation.bounds import elbo, elbo_per_datum, kl_by_dimension, mutual_information
from inference.evaluation.identifiability import (
    IdentifiabilityWarning,
    KeepIdentifiable,
    coinciding_components,
    condition_number,
    identifiability_matrix,
    natural_parameters,
    perturb_components,
)

__all__ = [
    "IdentifiabilityWarning",
    "KeepIdentifiable",
    "coinciding_components",
    "condition_number",
    "elbo",
    "elbo_per_datum",
    "identifiability_matrix",
    "kl_by_dimension",
    "mutual_information",
    "natural_parameters",
    "perturb_components",
]
