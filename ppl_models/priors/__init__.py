"""Priors of one facet's latent vector."""

from ppl_models.priors.base import DirichletWeights, Mixture, Prior
from ppl_models.priors.gaussian_mixture import GaussianMixture
from ppl_models.priors.neighbors import NeighborMixture
from ppl_models.priors.plain import ClassBlocks, Codebook, ConditionalNormal, Flat, StandardNormal
from ppl_models.priors.vamp import VampPrior

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
