"""The training loop and its parts: a plan, data in batches, steps, and what is not finite."""

from inference.training.batching import Batching, Groups, Rows
from inference.training.plan import FitPlan
from inference.training.together import fit_together

__all__ = ["Batching", "FitPlan", "Groups", "Rows", "fit_together"]
