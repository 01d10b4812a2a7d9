"""Generative programs and their parts: priors, likelihoods, networks."""

from ppl_models.base import FacetModel
from ppl_models.likelihoods import Bernoulli, ContinuousBernoulli, Likelihood, Normal
from ppl_models.mfcvae import MFCVAE
from ppl_models.networks import MLPLadder, SharedMLP
from ppl_models.priors import GaussianMixture, Prior, StandardNormal
from ppl_models.vade import VaDE

__all__ = [
    "MFCVAE",
    "Bernoulli",
    "ContinuousBernoulli",
    "FacetModel",
    "GaussianMixture",
    "Likelihood",
    "MLPLadder",
    "Normal",
    "Prior",
    "SharedMLP",
    "StandardNormal",
    "VaDE",
]
