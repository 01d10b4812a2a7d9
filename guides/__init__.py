"""Amortised posteriors, one file per posterior rule."""

from guides.base import FacetGuide
from guides.marginal import MarginalGuide
from guides.vade import VaDEGuide

__all__ = ["FacetGuide", "MarginalGuide", "VaDEGuide"]
