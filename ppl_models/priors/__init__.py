"""Priors of one facet's latent vector."""

from ppl_models.priors.base import Mixture, Prior
from ppl_models.priors.blocks import ClassBlocks
from ppl_models.priors.codebook import Codebook
from ppl_models.priors.conditional import ConditionalNormal
from ppl_models.priors.flat import Flat
from ppl_models.priors.gaussian_mixture import GaussianMixture
from ppl_models.priors.neighbors import NeighborMixture
from ppl_models.priors.standard_normal import StandardNormal
from ppl_models.priors.vamp import VampPrior
from ppl_models.priors.weights import DirichletWeights

__all__ = [
    "ClassBlocks",
    "Codebook",
    "ConditionalNormal",
    "DirichletWeights",
    "Flat",
    "GaussianMixture",
    "Mixture",
    "NeighborMixture",
    "Prior",
    "StandardNormal",
    "VampPrior",
]
