"""Guides: the posteriors of the models, one file per kind."""

from guides.amortized import AmortizedGuide, NetworkGuide
from guides.base import FacetGuide, SupervisedGuide
from guides.classifier import ClassifierGuide
from guides.codebook import CodebookGuide, PointGuide
from guides.conditional import ConditionalGuide
from guides.discrete import Annealed, Enumerate, GumbelSoftmax, ScoreFunction
from guides.evidence import Evidence, MixtureOfNormals, ProductOfNormals
from guides.families import Diagonal, Family, FullCovariance, InverseAutoregressive, Refined
from guides.flow import FlowGuide
from guides.grouped import GroupedGuide, SimilarContentGuide, TableGuide
from guides.ladder import LadderGuide
from guides.vade import MarginalGuide, VaDEGuide

__all__ = [
    "AmortizedGuide",
    "Annealed",
    "ClassifierGuide",
    "CodebookGuide",
    "ConditionalGuide",
    "Diagonal",
    "Enumerate",
    "Evidence",
    "FacetGuide",
    "Family",
    "FlowGuide",
    "FullCovariance",
    "GroupedGuide",
    "GumbelSoftmax",
    "InverseAutoregressive",
    "LadderGuide",
    "MarginalGuide",
    "MixtureOfNormals",
    "NetworkGuide",
    "PointGuide",
    "ProductOfNormals",
    "Refined",
    "ScoreFunction",
    "SimilarContentGuide",
    "SupervisedGuide",
    "TableGuide",
    "VaDEGuide",
]
