"""The training loop and its parts: the plan, batches, steps, handling of non-finite values."""

from inference.training.batching import Batching, Groups, Rows
from inference.training.plan import FitPlan
from inference.training.together import fit_together

__all__ = ["Batching", "FitPlan", "Groups", "Rows", "fit_together"]
