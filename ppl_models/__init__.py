"""Generative programs and their parts: priors, likelihoods, networks."""

from ppl_models.base import FacetModel
from ppl_models.flow import GMMFlow
from ppl_models.ivae import IVAE
from ppl_models.likelihoods import Bernoulli, ContinuousBernoulli, Exact, Likelihood, Normal
from ppl_models.mfcvae import MFCVAE
from ppl_models.networks import MLP, AutoregressiveFlow, ConvLadder, MLPLadder, SharedMLP
from ppl_models.priors import DirichletWeights, GaussianMixture, Mixture, Prior, StandardNormal, VampPrior
from ppl_models.vade import VaDE
from ppl_models.vlac import GMDGM, VAE, VLAC, VLAE

__all__ = [
    "GMDGM",
    "IVAE",
    "MFCVAE",
    "MLP",
    "VAE",
    "VLAC",
    "VLAE",
    "AutoregressiveFlow",
    "Bernoulli",
    "ContinuousBernoulli",
    "ConvLadder",
    "DirichletWeights",
    "Exact",
    "FacetModel",
    "GMMFlow",
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
