"""One of every model, and which objectives suit which guide: the lists that other tests go
through.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from pyro.infer import ELBO, Trace_ELBO, TraceEnum_ELBO, TraceMeanField_ELBO

from guides import (
    AmortizedGuide,
    Annealed,
    ClassifierGuide,
    CodebookGuide,
    ConditionalGuide,
    FacetGuide,
    FlowGuide,
    FullCovariance,
    GroupedGuide,
    GumbelSoftmax,
    InverseAutoregressive,
    LadderGuide,
    MarginalGuide,
    MixtureOfNormals,
    PointGuide,
    Refined,
    ScoreFunction,
    SimilarContentGuide,
    TableGuide,
    VaDEGuide,
)
from inference import (
    GuideEnum_ELBO,
    ImportanceWeighted_ELBO,
    MeanField_ELBO,
    MeanFieldEnum_ELBO,
    ScoreFunction_ELBO,
)
from ppl_models import (
    CVAE,
    GMDGM,
    IVAE,
    MFCVAE,
    MLP,
    MLVAE,
    NVAE,
    VAE,
    VLAC,
    VLAE,
    VQVAE,
    Autoencoder,
    AutoregressiveFlow,
    Bernoulli,
    Columns,
    ContinuousBernoulli,
    ContinuousIVAE,
    ConvGrid,
    ConvLadder,
    ConvNet,
    DirichletWeights,
    DiscretizedLogistic,
    FactorFill,
    GaussianMixture,
    GMMFlow,
    HeteroscedasticNormal,
    Incomplete,
    Likelihood,
    MLPLadder,
    NeighborMixture,
    Normal,
    Prior,
    ResNet,
    SharedMLP,
    StandardNormal,
    StridedConvNet,
    StudentT,
    VaDE,
    VampPrior,
)


def of_two(
    likelihood: Likelihood | None = None, digit: Callable[[], Prior] | None = None
) -> MFCVAE:
    """With two facets, on a ladder of two levels."""
    facets = {"style": GaussianMixture(3, 2), "digit": digit() if digit else GaussianMixture(4, 3)}
    return MFCVAE((6,), facets, likelihood or Bernoulli(), MLPLadder((8, 9)))


def two_facets() -> VaDEGuide:
    return VaDEGuide(of_two())


def neighbors() -> VaDEGuide:
    return VaDEGuide(of_two(digit=lambda: NeighborMixture(GaussianMixture(4, 3), 1.0)))


def neighbors_network() -> AmortizedGuide:
    return AmortizedGuide(of_two(digit=lambda: NeighborMixture(GaussianMixture(4, 3), 1.0)))


def full_posterior() -> VaDEGuide:
    return VaDEGuide(of_two(), family=FullCovariance())


def flow_posterior_two_draws() -> VaDEGuide:
    return VaDEGuide(of_two(), 2, family=InverseAutoregressive(2, (5,), 3))


def refined_posterior() -> VaDEGuide:
    return VaDEGuide(of_two(), family=Refined(FullCovariance(), num_steps=2, num_points=4))


def three_facets_full_covariance_two_draws() -> VaDEGuide:
    facets = {
        name: GaussianMixture(3, 2, covariance="full") for name in ("shallow", "middle", "deep")
    }
    return VaDEGuide(
        MFCVAE(
            (6,),
            facets,
            Normal(0.3),
            MLPLadder((8, 9, 10), merge="gated_add", init="glorot_normal"),
        ),
        2,
    )


def shared_network_images() -> VaDEGuide:
    facets = {"a": GaussianMixture(3, 2, weights="uniform"), "b": GaussianMixture(2, 2)}
    return VaDEGuide(
        MFCVAE((1, 4, 3), facets, ContinuousBernoulli(), SharedMLP((8, 9), activation="elu"))
    )


def mixed_priors() -> VaDEGuide:
    facets = {"plain": StandardNormal(2), "clustered": GaussianMixture(3, 2)}
    return VaDEGuide(MFCVAE((6,), facets, Bernoulli(threshold=0.5), MLPLadder((8, 9))))


def vade() -> VaDEGuide:
    return VaDEGuide(VaDE((6,), GaussianMixture(4, 3), network=SharedMLP((8, 9))))


def plain_vae() -> VaDEGuide:
    return VaDEGuide(MFCVAE((6,), {"z": StandardNormal(3)}, network=SharedMLP((8, 9))))


def marginal_two_draws() -> MarginalGuide:
    return MarginalGuide(
        of_two(digit=lambda: GaussianMixture(4, 3, covariance="full")), num_samples=2
    )


def vamp() -> VaDEGuide:
    facets = {
        "style": VampPrior(3, 2, (6,), support=(0, 1)),
        "digit": VampPrior(4, 3, (6,), weights="uniform"),
    }
    return VaDEGuide(MFCVAE((6,), facets, Bernoulli(), MLPLadder((8, 9))))


def dirichlet_weights() -> VaDEGuide:
    return VaDEGuide(
        VaDE((6,), GaussianMixture(4, 3, weights=DirichletWeights(100)), network=SharedMLP((8, 9)))
    )


def incomplete() -> VaDEGuide:
    fill = FactorFill(weights=[[1.0, 0.5, 0.0, -0.5, -1.0, 0.2]], loc=[0.1] * 6, noise=[0.3] * 6)
    return VaDEGuide(of_two(Incomplete(HeteroscedasticNormal(), fill)))


def columns() -> VaDEGuide:
    """Of kinds that take any numbers, as other models of this list do; `test_columns` has all."""
    kinds = {
        "length": Normal(),
        "weight": StudentT(loc=0.5, unit=0.3),
        "share": Normal(0.3, learned=True),
        "delay": StudentT(3.0, 0.5),
        "spread": HeteroscedasticNormal(),
        "height": Normal(0.3, loc=0.5, unit=0.3),
    }
    return VaDEGuide(of_two(Columns(kinds)))


def network_enumerated() -> AmortizedGuide:
    facets = {"plain": StandardNormal(2), "clustered": GaussianMixture(3, 2)}
    return AmortizedGuide(MFCVAE((6,), facets, network=MLPLadder((8, 9))))


def apart(guide: AmortizedGuide) -> AmortizedGuide:
    """Let latents depend on the cluster, which they do not at the start."""
    for shift in guide.shifts.values():
        torch.nn.init.normal_(shift.weight, std=0.7)
    return guide


def network_conditional_two_draws() -> AmortizedGuide:
    facets = {"style": GaussianMixture(3, 2, covariance="full"), "digit": GaussianMixture(4, 3)}
    model = MFCVAE((2, 3), facets, network=MLPLadder((8, 9), merge="gated_add"))
    return apart(AmortizedGuide(model, 2, conditional=True))


def network_relaxed() -> AmortizedGuide:
    return apart(AmortizedGuide(of_two(), 2, GumbelSoftmax(Annealed(steps=5)), conditional=True))


def network_straight_through() -> AmortizedGuide:
    discrete = GumbelSoftmax(0.7, hard=True)
    return AmortizedGuide(
        VaDE((6,), GaussianMixture(4, 3), network=SharedMLP((8, 9))), discrete=discrete
    )


def network_scored() -> AmortizedGuide:
    return apart(AmortizedGuide(of_two(), discrete=ScoreFunction("learned"), conditional=True))


def network_scored_average_two_draws() -> AmortizedGuide:
    model = VaDE((1, 2, 3), GaussianMixture(4, 3, covariance="full"), network=SharedMLP((8, 9)))
    return AmortizedGuide(model, 2, ScoreFunction())


def convolutional() -> VaDEGuide:
    facets = {
        "shape": GaussianMixture(3, 2, "full", "uniform"),
        "color": GaussianMixture(4, 3, "full", "uniform"),
    }
    return VaDEGuide(MFCVAE((3, 8, 12), facets, Normal(0.6), ConvLadder((4, 5))))


def convolutional_two_draws_skipping_a_level() -> VaDEGuide:
    facets = {"shallow": GaussianMixture(3, 2), "deep": GaussianMixture(4, 3)}
    return VaDEGuide(
        MFCVAE(
            (2, 16, 16), facets, Bernoulli(), ConvLadder((3, 4, 5), merge="gated_add", rungs=[0, 2])
        ),
        2,
    )


def convolutional_vamp() -> VaDEGuide:
    facets = {"a": VampPrior(3, 2, (1, 8, 8), support=(0, 1)), "b": GaussianMixture(2, 2)}
    return VaDEGuide(MFCVAE((1, 8, 8), facets, Bernoulli(), ConvLadder((3, 4))))


def vlac_relaxed() -> LadderGuide:
    model = VLAC((1, 16, 16), [1, 3, 4], [2, 3, 2], Normal(0.3), ConvLadder((4, 5, 6)))
    return LadderGuide(model, 2, GumbelSoftmax(0.7))


def vlac_enumerated() -> LadderGuide:
    return LadderGuide(VLAC((6,), [2, 3, 1], [2, 1, 2], network=MLPLadder((8, 9, 10))))


def vlac_scored() -> LadderGuide:
    return LadderGuide(
        VLAC((2, 3), [2, 3], [2, 3], network=MLPLadder((8, 9))), discrete=ScoreFunction("learned")
    )


def vlae() -> LadderGuide:
    return LadderGuide(VLAE((6,), [2, 3], network=MLPLadder((8, 9))))


def gmdgm() -> LadderGuide:
    return LadderGuide(GMDGM((6,), 4, 3), discrete=GumbelSoftmax(hard=True))


def vae() -> VaDEGuide:
    return VaDEGuide(VAE((6,), 3))


def ivae() -> ConditionalGuide:
    return ConditionalGuide(IVAE((6,), 3, 2, Normal(0.4), MLPLadder((8, 9), rungs=[1])))


def ivae_images_two_draws() -> ConditionalGuide:
    return ConditionalGuide(IVAE((1, 8, 8), 3, 2, network=ConvLadder((4, 5), rungs=[1])), 2)


def ivae_continuous_label() -> ConditionalGuide:
    return ConditionalGuide(ContinuousIVAE((2, 3), 3, 2, Normal(0.4), MLP((8, 9), dropout=0.2)))


def vade_convnet() -> VaDEGuide:
    model = VaDE(
        (1, 8, 8), GaussianMixture(3, 2), DiscretizedLogistic(), ConvNet((4, 5, 6, 7), hidden=8)
    )
    return VaDEGuide(model)


def ivae_resnet() -> ConditionalGuide:
    return ConditionalGuide(
        IVAE((2, 7, 6), 3, 2, Normal(0.4), ResNet((4, 5, 6, 7), init="glorot_normal")), 2
    )


def flow() -> FlowGuide:
    return FlowGuide(GMMFlow((6,), GaussianMixture(3, 6), AutoregressiveFlow((8,), num_layers=2)))


def vqvae_two_draws() -> CodebookGuide:
    return CodebookGuide(VQVAE((1, 8, 8), 5, 3, network=ConvGrid((4, 5))), 2)


def autoencoder() -> PointGuide:
    return PointGuide(Autoencoder((1, 8, 8), 3, Normal(0.3), ConvGrid((4, 5))))


def mlvae() -> GroupedGuide:
    return GroupedGuide(MLVAE((6,), 3, 2, network=MLP((8,), "tanh", dropout=0)))


def mlvae_one_draw_a_group_learned_variance() -> GroupedGuide:
    model = MLVAE((2, 8, 8), 3, 2, HeteroscedasticNormal(), StridedConvNet((4, 5), hidden=6))
    return GroupedGuide(model, 2, content="group")


def mlvae_mixture_of_normals() -> GroupedGuide:
    return GroupedGuide(MLVAE((6,), 3, 2, network=MLPLadder((8, 9))), 2, MixtureOfNormals())


def mlvae_tables() -> TableGuide:
    return TableGuide(
        MLVAE((6,), 3, 2, network=MLP((8,))), [0, 1, 1, 5, 5, 5, -2, 3, 3, 0, 9, 9], content="group"
    )


def mlvae_similar_contents() -> SimilarContentGuide:
    return SimilarContentGuide(MLVAE((6,), 3, 2, network=MLP((8,))), penalty=0.7)


def nvae() -> ClassifierGuide:
    return ClassifierGuide(NVAE((6,), 3, 2, 2, network=SharedMLP((8, 9))))


def nvae_partly_labeled_two_draws() -> ClassifierGuide:
    return ClassifierGuide(
        NVAE((1, 8, 8), 3, 2, 1, Normal(0.4), StridedConvNet((4, 5), hidden=6)), 2, 0.5
    )


def nvae_dirichlet_without_bias() -> ClassifierGuide:
    return ClassifierGuide(
        NVAE((6,), 3, 2, 2, network=MLP((8,)), concentration=1.0, class_bias=False)
    )


def cvae() -> ConditionalGuide:
    return ConditionalGuide(CVAE((6,), 3, 2, network=MLP((8,))))


BUILDERS: list[Callable[[], FacetGuide]] = [
    two_facets,
    neighbors,
    neighbors_network,
    full_posterior,
    flow_posterior_two_draws,
    refined_posterior,
    three_facets_full_covariance_two_draws,
    shared_network_images,
    mixed_priors,
    vade,
    plain_vae,
    marginal_two_draws,
    vamp,
    dirichlet_weights,
    incomplete,
    columns,
    network_enumerated,
    network_conditional_two_draws,
    network_relaxed,
    network_straight_through,
    network_scored,
    network_scored_average_two_draws,
    convolutional,
    convolutional_two_draws_skipping_a_level,
    convolutional_vamp,
    vlac_relaxed,
    vlac_enumerated,
    vlac_scored,
    vlae,
    gmdgm,
    vae,
    ivae,
    ivae_images_two_draws,
    ivae_continuous_label,
    vade_convnet,
    ivae_resnet,
    flow,
    vqvae_two_draws,
    autoencoder,
    mlvae,
    mlvae_one_draw_a_group_learned_variance,
    mlvae_mixture_of_normals,
    mlvae_tables,
    mlvae_similar_contents,
    nvae,
    nvae_partly_labeled_two_draws,
    nvae_dirichlet_without_bias,
    cvae,
]


#: One of each kind, for tests of what hardly depends on the model: clusters enumerated, drawn,
#: relaxed; networks of several forms; other likelihoods; labels, groups, and no latents at all.
KINDS: list[Callable[[], FacetGuide]] = [
    two_facets,
    neighbors,
    flow_posterior_two_draws,
    refined_posterior,
    vamp,
    dirichlet_weights,
    columns,
    network_relaxed,
    network_scored,
    convolutional,
    vlac_enumerated,
    gmdgm,
    ivae,
    flow,
    vqvae_two_draws,
    mlvae,
    nvae_partly_labeled_two_draws,
]


#: Those that most tests of every model take.
EACH = BUILDERS if os.environ.get("FACETVAE_THOROUGH") else KINDS


# Gamma variables, which torch.vmap draws anew for each, never the same for all.
GAMMA_DRAWS = (nvae_dirichlet_without_bias,)


def given(guide: FacetGuide, n: int) -> dict[str, torch.Tensor]:
    """What a model of this catalog takes beside ``n`` data."""
    if isinstance(guide.model, ContinuousIVAE):
        return {"label": torch.randn(n, guide.model.num_label_features)}
    values = {"label": torch.arange(n) % 3, "group": torch.arange(n) // 2 % 3}
    if guide.model.neighborly:
        return {"neighbors": torch.arange(4 * n).reshape(n, 4) % 5 / 2}
    if isinstance(guide, TableGuide):
        return {"group": guide.group_of_row[:n], "row": torch.arange(n)}
    if isinstance(guide.model, NVAE) and guide.num_samples == 2:
        values["known"] = torch.arange(n) % 2 == 0
        return {name: values[name] for name in ("label", "known")}
    return {name: values[name] for name in guide.model.takes}


OBJECTIVES: dict[str, Callable[[FacetGuide], ELBO]] = {
    "GuideEnum": lambda guide: GuideEnum_ELBO(max_plate_nesting=guide.max_plate_nesting),
    "MeanFieldEnum": lambda guide: MeanFieldEnum_ELBO(max_plate_nesting=guide.max_plate_nesting),
    "MeanField": lambda guide: MeanField_ELBO(max_plate_nesting=guide.max_plate_nesting),
    "ScoreFunction": lambda guide: ScoreFunction_ELBO(max_plate_nesting=guide.max_plate_nesting),
    "ImportanceWeighted": lambda guide: ImportanceWeighted_ELBO(3),
    # Pyro warns where an enumerating objective finds nothing to enumerate, which is no fault here.
    "Pyro's TraceEnum": lambda guide: TraceEnum_ELBO(
        max_plate_nesting=guide.max_plate_nesting, strict_enumeration_warning=False
    ),
    "Pyro's Trace": lambda guide: Trace_ELBO(max_plate_nesting=guide.max_plate_nesting),
    "Pyro's TraceMeanField": lambda guide: TraceMeanField_ELBO(
        max_plate_nesting=guide.max_plate_nesting
    ),
}

FREELY_ENUMERATED = {"MeanFieldEnum", "GuideEnum", "Pyro's TraceEnum"}
GROUPED = set(OBJECTIVES) - {"ScoreFunction", "ImportanceWeighted"}

# What is said of objectives that do not suit a guide, those that do, and the guides; each guide is
# tried with all objectives.
SUITABLE: list[tuple[str | None, set[str], list[Callable[[], FacetGuide]]]] = [
    (
        "enumerates its clusters",
        {"GuideEnum", "Pyro's TraceEnum"},
        [
            *(two_facets, neighbors, full_posterior, refined_posterior, flow_posterior_two_draws),
            *(vade, vamp, dirichlet_weights, incomplete, columns, vade_convnet),
            three_facets_full_covariance_two_draws,
        ],
    ),
    (
        "enumerates its clusters",
        FREELY_ENUMERATED,
        [*(neighbors_network, network_enumerated, network_conditional_two_draws), vlac_enumerated],
    ),
    (
        "draws relaxed clusters",
        {"MeanField", "Pyro's TraceMeanField"},
        [network_relaxed, network_straight_through, vlac_relaxed, vqvae_two_draws],
    ),
    (
        "draws clusters without a gradient",
        {"ScoreFunction", "Pyro's Trace"},
        [network_scored, network_scored_average_two_draws, vlac_scored],
    ),
    (
        "shares draws among the members of a group",
        GROUPED,
        [mlvae, mlvae_mixture_of_normals, mlvae_similar_contents],
    ),
    (
        "enumerates classes that are unknown",
        FREELY_ENUMERATED,
        [nvae, nvae_partly_labeled_two_draws, nvae_dirichlet_without_bias],
    ),
    (
        None,
        set(OBJECTIVES),
        [
            *(marginal_two_draws, vlae, ivae, ivae_continuous_label, flow, autoencoder),
            *(plain_vae, cvae),
        ],
    ),
]
PAIRS = [(build, said, suitable) for said, suitable, guides in SUITABLE for build in guides]
