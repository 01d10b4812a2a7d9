"""One of every model, and which objectives suit which guide: the lists that other tests go through."""

from __future__ import annotations

from collections.abc import Callable

from pyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO

from guides import FacetGuide, MarginalGuide, VaDEGuide
from inference import GuideEnum_ELBO
from ppl_models import (
    MFCVAE,
    Bernoulli,
    ContinuousBernoulli,
    GaussianMixture,
    MLPLadder,
    Normal,
    SharedMLP,
    StandardNormal,
    VaDE,
)


def two_facets() -> VaDEGuide:
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 3)}
    return VaDEGuide(MFCVAE((6,), facets, Bernoulli(), MLPLadder((8, 9))))


def three_facets_full_covariance_two_draws() -> VaDEGuide:
    facets = {name: GaussianMixture(3, 2, covariance="full") for name in ("shallow", "middle", "deep")}
    return VaDEGuide(
        MFCVAE((6,), facets, Normal(0.3), MLPLadder((8, 9, 10), merge="gated_add", init="glorot_normal")), 2
    )


def shared_network_images() -> VaDEGuide:
    facets = {"a": GaussianMixture(3, 2, weights="uniform"), "b": GaussianMixture(2, 2)}
    return VaDEGuide(MFCVAE((1, 4, 3), facets, ContinuousBernoulli(), SharedMLP((8, 9), activation="elu")))


def mixed_priors() -> VaDEGuide:
    facets = {"plain": StandardNormal(2), "clustered": GaussianMixture(3, 2)}
    return VaDEGuide(MFCVAE((6,), facets, Bernoulli(threshold=0.5), MLPLadder((8, 9))))


def vade() -> VaDEGuide:
    return VaDEGuide(VaDE((6,), GaussianMixture(4, 3), network=SharedMLP((8, 9))))


def plain_vae() -> VaDEGuide:
    return VaDEGuide(MFCVAE((6,), {"z": StandardNormal(3)}, network=SharedMLP((8, 9))))


def marginal_two_draws() -> MarginalGuide:
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 3, covariance="full")}
    return MarginalGuide(MFCVAE((6,), facets, Bernoulli(), MLPLadder((8, 9))), num_samples=2)


BUILDERS: list[Callable[[], FacetGuide]] = [
    two_facets,
    three_facets_full_covariance_two_draws,
    shared_network_images,
    mixed_priors,
    vade,
    plain_vae,
    marginal_two_draws,
]

# guide, objective, and what is said where the two do not suit each other (None where they do)
ENUMERATES = "enumerates its clusters"
PAIRS: list[tuple[Callable[[], FacetGuide], type, str | None]] = [
    (two_facets, GuideEnum_ELBO, None),
    (two_facets, TraceEnum_ELBO, None),
    (two_facets, Trace_ELBO, ENUMERATES),
    (two_facets, TraceMeanField_ELBO, ENUMERATES),
    (vade, GuideEnum_ELBO, None),
    (vade, TraceEnum_ELBO, None),
    (vade, Trace_ELBO, ENUMERATES),
    (three_facets_full_covariance_two_draws, GuideEnum_ELBO, None),
    (three_facets_full_covariance_two_draws, TraceEnum_ELBO, None),
    (three_facets_full_covariance_two_draws, Trace_ELBO, ENUMERATES),
    (marginal_two_draws, GuideEnum_ELBO, None),
    (marginal_two_draws, TraceEnum_ELBO, None),
    (marginal_two_draws, Trace_ELBO, None),
]
