"""Evaluation of a model and guide: bounds, exact values, clusters."""

from inference.evaluation.exact import exact_objective
from inference.evaluation.importance import log_importance_weights

__all__ = ["exact_objective", "log_importance_weights"]
