"""Generative programs and their parts: priors, likelihoods, networks."""

from ppl_models.base import FacetModel
from ppl_models.likelihoods import Bernoulli, ContinuousBernoulli, Likelihood, Normal
from ppl_models.mfcvae import MFCVAE
from ppl_models.networks import MLPLadder, SharedMLP
from ppl_models.priors import DirichletWeights, GaussianMixture, Mixture, Prior, StandardNormal, VampPrior
from ppl_models.vade import VaDE

__all__ = [
    "MFCVAE",
    "Bernoulli",
    "ContinuousBernoulli",
    "DirichletWeights",
    "FacetModel",
    "GaussianMixture",
    "Likelihood",
    "MLPLadder",
    "Mixture",
    "Normal",
    "Prior",
    "SharedMLP",
    "StandardNormal",
    "VaDE",
    "VampPrior",
]
