"""Amortised posteriors, one file per posterior rule."""

from guides.base import FacetGuide
from guides.vade import VaDEGuide

__all__ = ["FacetGuide", "VaDEGuide"]
