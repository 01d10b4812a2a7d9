"""Evaluation of a fitted model and guide: bounds and clusters."""

from inference.evaluation.bounds import elbo, elbo_per_datum, kl_by_dimension, mutual_information

__all__ = ["elbo", "elbo_per_datum", "kl_by_dimension", "mutual_information"]
