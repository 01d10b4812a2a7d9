"""Amortised posteriors, one file per posterior rule."""

from guides.amortized import AmortizedGuide
from guides.base import FacetGuide
from guides.discrete import Annealed, Enumerate, GumbelSoftmax, ScoreFunction
from guides.marginal import MarginalGuide
from guides.vade import VaDEGuide

__all__ = [
    "AmortizedGuide",
    "Annealed",
    "Enumerate",
    "FacetGuide",
    "GumbelSoftmax",
    "MarginalGuide",
    "ScoreFunction",
    "VaDEGuide",
]
