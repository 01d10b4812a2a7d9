"""Generative models and their parts: priors, likelihoods, networks."""

from ppl_models.base import FacetModel, Input
from ppl_models.categories import Categorical, Ordinal
from ppl_models.columns import Columns
from ppl_models.compositions import DirichletMultinomial, Multinomial
from ppl_models.counts import NegativeBinomial, Poisson
from ppl_models.factors import FactorFill
from ppl_models.flow import GMMFlow
from ppl_models.given.sparse import SparseRows
from ppl_models.ivae import CVAE, IVAE, ContinuousIVAE
from ppl_models.likelihoods import (
    Bernoulli,
    ContinuousBernoulli,
    DiscretizedLogistic,
    Exact,
    HeteroscedasticNormal,
    Incomplete,
    Likelihood,
    LogNormal,
    Normal,
    StudentT,
)
from ppl_models.mfcvae import MFCVAE
from ppl_models.mlvae import MLVAE
from ppl_models.networks import (
    MLP,
    AutoregressiveFlow,
    ConvGrid,
    ConvLadder,
    ConvNet,
    MLPLadder,
    ResNet,
    SharedMLP,
    StridedConvNet,
)
from ppl_models.nvae import NVAE
from ppl_models.priors.base import DirichletWeights, Mixture, Prior
from ppl_models.priors.gaussian_mixture import GaussianMixture
from ppl_models.priors.neighbors import NeighborMixture
from ppl_models.priors.plain import ClassBlocks, Codebook, ConditionalNormal, Flat, StandardNormal
from ppl_models.priors.vamp import VampPrior
from ppl_models.program import ScaleSites
from ppl_models.vade import VaDE
from ppl_models.vlac import GMDGM, VAE, VLAC, VLAE
from ppl_models.vqvae import VQVAE, Autoencoder

__all__ = [
    "CVAE",
    "GMDGM",
    "IVAE",
    "MFCVAE",
    "MLP",
    "MLVAE",
    "NVAE",
    "VAE",
    "VLAC",
    "VLAE",
    "VQVAE",
    "Autoencoder",
    "AutoregressiveFlow",
    "Bernoulli",
    "Categorical",
    "ClassBlocks",
    "Codebook",
    "Columns",
    "ConditionalNormal",
    "ContinuousBernoulli",
    "ContinuousIVAE",
    "ConvGrid",
    "ConvLadder",
    "ConvNet",
    "DirichletMultinomial",
    "DirichletWeights",
    "DiscretizedLogistic",
    "Exact",
    "FacetModel",
    "FactorFill",
    "Flat",
    "GMMFlow",
    "GaussianMixture",
    "HeteroscedasticNormal",
    "Incomplete",
    "Input",
    "Likelihood",
    "LogNormal",
    "MLPLadder",
    "Mixture",
    "Multinomial",
    "NegativeBinomial",
    "NeighborMixture",
    "Normal",
    "Ordinal",
    "Poisson",
    "Prior",
    "ResNet",
    "ScaleSites",
    "SharedMLP",
    "SparseRows",
    "StandardNormal",
    "StridedConvNet",
    "StudentT",
    "VaDE",
    "VampPrior",
]
