"""Objectives: the loss that is minimized, in nats per datum, and its terms."""

from inference.objectives.enumerated import GuideEnum_ELBO
from inference.objectives.importance import ImportanceWeighted_ELBO
from inference.objectives.loss import SUITABLE, Loss, default_objective
from inference.objectives.mean_field import MeanField_ELBO, MeanFieldEnum_ELBO
from inference.objectives.score_function import ScoreFunction_ELBO

__all__ = [
    "SUITABLE",
    "GuideEnum_ELBO",
    "ImportanceWeighted_ELBO",
    "Loss",
    "MeanFieldEnum_ELBO",
    "MeanField_ELBO",
    "ScoreFunction_ELBO",
    "default_objective",
]
