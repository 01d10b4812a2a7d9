"""Fitting models, and inspecting the result: runner, schedules, objectives, metrics, figures."""

from inference.checkpoints.periodic import Checkpoints
from inference.evaluation.bounds import elbo, elbo_per_datum, kl_by_dimension, mutual_information
from inference.export import export_predictions
from inference.initialization.encoders import infer_tables, learn_to_encode
from inference.initialization.graph import NeighborGraph
from inference.initialization.image_features import image_graph, image_variants, random_affine
from inference.initialization.mixtures import (
    cold_start,
    fit_mixtures,
    standard_normal_priors,
    warm_start,
)
from inference.initialization.neighbor_training import cluster_posterior, fit_neighbors
from inference.initialization.neighbors import neighbor_clusters
from inference.initialization.networks import data_dependent_start
from inference.objectives.enumerated import GuideEnum_ELBO
from inference.objectives.importance import ImportanceWeighted_ELBO
from inference.objectives.loss import Loss
from inference.objectives.mean_field import MeanField_ELBO, MeanFieldEnum_ELBO
from inference.objectives.score_function import ScoreFunction_ELBO
from inference.plain import plain_programs
from inference.run import Guard
from inference.runner import SVIRunner, fit_together
from inference.schedules import Constant, CoolDown, ProgressiveFadeIn, WarmUp
from inference.training.batching import Groups, Rows

__all__ = [
    "Checkpoints",
    "Constant",
    "CoolDown",
    "Groups",
    "Guard",
    "GuideEnum_ELBO",
    "ImportanceWeighted_ELBO",
    "Loss",
    "MeanFieldEnum_ELBO",
    "MeanField_ELBO",
    "NeighborGraph",
    "ProgressiveFadeIn",
    "Rows",
    "SVIRunner",
    "ScoreFunction_ELBO",
    "WarmUp",
    "cluster_posterior",
    "cold_start",
    "data_dependent_start",
    "elbo",
    "elbo_per_datum",
    "export_predictions",
    "fit_mixtures",
    "fit_neighbors",
    "fit_together",
    "image_graph",
    "image_variants",
    "infer_tables",
    "kl_by_dimension",
    "learn_to_encode",
    "mutual_information",
    "neighbor_clusters",
    "plain_programs",
    "random_affine",
    "standard_normal_priors",
    "warm_start",
]
