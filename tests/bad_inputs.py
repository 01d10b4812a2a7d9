"""Wrong inputs, one a row: what is called with what, which error it gets, and which words are in
that.

A row names the public class, function or method that it is about and, before a colon, the kind of
its fault. A call must fail in under a second and leave objects and files as they were;
``test_bad_input.py`` sees to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sklearn.exceptions import NotFittedError
from torch.utils.data import DataLoader, TensorDataset

from examples import augmentation, identifiability, mfcvae, quickstart, shapes, vade
from examples import datasets as data
from examples.common import check_schedule, once, open_run_folder
from examples.sources import time_contrastive
from guides import (
    AmortizedGuide,
    Annealed,
    ClassifierGuide,
    CodebookGuide,
    ConditionalGuide,
    Enumerate,
    FacetGuide,
    FlowGuide,
    GroupedGuide,
    GumbelSoftmax,
    LadderGuide,
    MarginalGuide,
    PointGuide,
    RademacherHash,
    ScoreFunction,
    SimilarContentGuide,
    TableGuide,
    VaDEGuide,
)
from inference import (
    Checkpoints,
    Constant,
    CoolDown,
    Groups,
    Guard,
    GuideEnum_ELBO,
    ImportanceWeighted_ELBO,
    Loss,
    MeanField_ELBO,
    MeanFieldEnum_ELBO,
    ProgressiveFadeIn,
    Rows,
    ScoreFunction_ELBO,
    SVIRunner,
    WarmUp,
    cold_start,
    data_dependent_start,
    elbo,
    elbo_per_datum,
    fit_mixtures,
    fit_together,
    infer_tables,
    kl_by_dimension,
    learn_to_encode,
    mutual_information,
    neighbor_clusters,
    neighbor_start,
    select_model,
    standard_normal_priors,
    warm_start,
)
from inference.callbacks import (
    Draw,
    Evaluate,
    FitMixtures,
    JSONLines,
    ReduceOnPlateau,
    StopEarly,
    TensorBoard,
)
from inference.checkpoints.periodic import CheckpointWarning
from inference.diagnostics import (
    assert_unbiased,
    compare_estimators,
    exact_objective,
    gauss_hermite,
    gradient_moments,
    importance_weighted_bounds,
    log_importance_weights,
    loss_draws,
    pareto_k,
)
from inference.estimators import (
    ContentStyleTransformer,
    FacetClustering,
    MultiFacetClustering,
    SemiSupervisedClassifier,
)
from inference.evaluation.identifiability import (
    KeepIdentifiable,
    coinciding_components,
    condition_number,
    identifiability_matrix,
    natural_parameters,
)
from inference.exploring.explorer import Explorer
from inference.figures.classes import (
    class_latents,
    class_samples,
    class_traversals,
    kl_by_class,
    kl_of_blocks,
    latent_scatter,
    shared_latents,
    shared_traversals,
    traversed,
)
from inference.figures.comparisons import (
    grouped_boxes,
    grouped_curves,
    grouped_means,
    grouped_points,
    guide_comparison,
    score_panels,
)
from inference.figures.facets import (
    cluster_gallery,
    cluster_samples,
    facet_draws,
    facet_overview,
    facet_swaps,
    save_figures,
)
from inference.figures.groups import (
    evidence_reconstructions,
    group_generations,
    latent_interpolation,
    style_swaps,
)
from inference.figures.selection import selection_overview
from inference.figures.training import training_curves
from inference.metrics import (
    classifier_scores,
    cluster_accuracy,
    cluster_map,
    clustering_scores,
    held_out_correlation,
    mean_correlation,
    probe_accuracy,
)
from inference.runner import DeadFacetWarning
from inference.selection.agreement import (
    clusters_in_use,
    effective_clusters,
    match_facets,
    redundancy,
    stability,
)
from inference.selection.candidates import one_standard_error
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
    ClassBlocks,
    Codebook,
    ConditionalNormal,
    ContinuousBernoulli,
    ContinuousIVAE,
    ConvGrid,
    ConvLadder,
    ConvNet,
    DirichletWeights,
    DiscretizedLogistic,
    FacetModel,
    Flat,
    GaussianMixture,
    GMMFlow,
    HeteroscedasticNormal,
    Incomplete,
    MLPLadder,
    Normal,
    ResNet,
    SharedMLP,
    StandardNormal,
    StridedConvNet,
    VaDE,
    VampPrior,
)

D = 6
NAN, INF = float("nan"), float("inf")
HUGE = 10**12
KINDS = ("type", "shape", "range", "nan", "empty", "huge", "unknown", "missing", "misfit", "file")


@dataclass(frozen=True)
class Row:
    """One wrong input.

    :ivar about: public name, and the method where it is one: ``SVIRunner.fit``.
    :ivar fault: one of ``KINDS``, a colon, and what is given.
    :ivar call: what is called, with the folder of a saved run.
    :ivar message: regular expression of words in the error.
    :ivar error: the error's type.
    :ivar damage: what is done to that folder before.
    """

    about: str
    fault: str
    call: Callable[[Path], Any]
    message: str
    error: type[BaseException] = ValueError
    damage: Callable[[Path], Any] | None = None

    def __str__(self) -> str:
        return f"{self.about}, {self.fault}"


def of(about: str, *rows: tuple[Any, ...]) -> list[Row]:
    """Rows about one name: fault, call and message each, and the error's type where it is another
    than ValueError.
    """
    return [
        Row(about, fault, partial(_alone, call), message, *error)
        for fault, call, message, *error in rows
    ]


def _alone(call: Callable[[], Any], run: Path) -> Any:
    return call()


# What rows share; nothing here is changed by a call that fails.


@cache
def guide() -> VaDEGuide:
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)}
    return VaDEGuide(MFCVAE((D,), facets, network=MLPLadder((8, 9))))


def facet(prior: Any = None, name: Any = "digit") -> MFCVAE:
    return MFCVAE((D,), {name: prior or GaussianMixture(3, 2)}, network=SharedMLP((8,)))


@cache
def one_facet() -> VaDEGuide:
    return VaDEGuide(facet())


@cache
def vae() -> VaDEGuide:
    return VaDEGuide(VAE((D,), 2, network=SharedMLP((8,))))


def vlac() -> VLAC:
    return VLAC((D,), [2, 3], [1, 1], network=MLPLadder((8, 9)))


@cache
def ladder() -> LadderGuide:
    return LadderGuide(vlac())


@cache
def ivae() -> ConditionalGuide:
    return ConditionalGuide(IVAE((D,), 3, 2, network=SharedMLP((8,))))


@cache
def continuous_ivae() -> ConditionalGuide:
    return ConditionalGuide(ContinuousIVAE((D,), 3, 2, network=SharedMLP((8,))))


@cache
def explorer() -> Explorer:
    return Explorer(guide(), X, labels={"u": np.arange(len(X)) % 2, "one": np.ones(len(X), int)})


@cache
def labelled() -> Explorer:
    return Explorer(cvae(), X, {"label": np.arange(len(X)) % 3})


@cache
def cvae() -> ConditionalGuide:
    return ConditionalGuide(CVAE((D,), 3, 2, network=SharedMLP((8,))))


@cache
def nvae() -> ClassifierGuide:
    return ClassifierGuide(NVAE((D,), 3, 2, 2, network=SharedMLP((8,))))


@cache
def mlvae() -> GroupedGuide:
    return GroupedGuide(MLVAE((D,), 2, 2, network=SharedMLP((8,))))


@cache
def tables() -> TableGuide:
    return TableGuide(mlvae().model, [0, 0, 1, 1, 1])


@cache
def grid() -> ConvGrid:
    return ConvGrid((4, 5))


@cache
def codes() -> CodebookGuide:
    return CodebookGuide(VQVAE((1, 8, 8), 5, 3, network=grid()))


@cache
def real() -> VaDEGuide:
    """Of real data, and without a cluster."""
    return VaDEGuide(MFCVAE((D,), {"z": StandardNormal(2)}, Normal(0.5), SharedMLP((8,))))


SHARED = (
    guide,
    one_facet,
    vae,
    ladder,
    ivae,
    continuous_ivae,
    cvae,
    nvae,
    mlvae,
    tables,
    codes,
    real,
)


def holed(value: float, rows: int = 5) -> np.ndarray:
    x = np.full((rows, D), 0.5)
    x[min(3, rows - 1), 2] = value
    return x


X = holed(0.1)
TENSOR = torch.as_tensor(X, dtype=torch.float32)
LABEL = np.array([0, 1, 2, 0, 1])
Z = np.random.default_rng(0).normal(size=(8, 2))


@cache
def runner() -> SVIRunner:
    return SVIRunner(guide().model, guide())


def taught(schedule: Any = None) -> SVIRunner:
    """Whose guide learns clusters that it is given."""
    model = facet()
    return SVIRunner(model, VaDEGuide(model, label_weight=30), schedule=schedule)


def fit(
    of: Callable[[], FacetGuide] = guide, x: Any = X, schedule: Any = None, **options: Any
) -> SVIRunner:
    sizes = {"epochs": 4, "batch_size": 3, "progress": False}
    return SVIRunner(of().model, of(), schedule=schedule).fit(x, **{**sizes, **options})


def loss() -> Loss:
    return Loss(guide().model, guide())


# Data: what all that take them say alike, by fit, predict, embed and elbo.
DATA: list[tuple[str, Any, str]] = [
    (
        "shape: more columns",
        np.zeros((5, D + 1)),
        r"x has shape \[5, 7\], but the model was built for \[N, 6\]",
    ),
    ("shape: one datum", np.zeros(D), r"x has shape \[6\], .* for a single datum give x\[None\]"),
    ("shape: images", np.zeros((5, 2, 3)), r"reshape it, for example x.reshape\(len\(x\), 6\)"),
    ("shape: a number", np.float64(3.0), r"x has shape \[\]"),
    ("shape: ragged", [[0.1] * D, [0.1]], "x must be an array, with rows that are alike"),
    (
        "type: binary uint8",
        np.zeros((5, D), dtype=np.uint8),
        r"x is uint8 with values up to 0, .* give binary data as",
    ),
    ("type: strings", np.array([["a"] * D] * 5), r"x must hold numbers, got ndarray of dtype <U1"),
    ("type: None", None, "x must hold numbers, got NoneType"),
    ("type: Nones", [[None] * D], r"x must hold numbers, got list of dtype object"),
    (
        "type: complex",
        np.zeros((5, D), complex),
        "x must hold numbers, got ndarray of dtype complex128",
    ),
    ("empty: no rows", np.zeros((0, D)), r"x is empty \(shape \[0, 6\]\)"),
    ("nan: NaN", holed(NAN), r"1 values that are NaN or infinite, the first at index \[3, 2\]"),
    ("nan: infinity", holed(INF), r"NaN or infinite"),
    (
        "range: above 1",
        holed(1.5),
        r"values in \[0.5, 1.5\], but the Bernoulli likelihood needs \[0.0, 1.0\]",
    ),
    ("range: below 0", holed(-0.1), r"values in \[-0.1, 0.5\]"),
    ("range: 8 bits as int64", np.full((5, D), 200, dtype=np.int64), r"give 8-bit images as uint8"),
    ("huge: 1e30", holed(1e30), r"values in \[0.5, 1e\+30\], but the Bernoulli"),
]

COUNT = "must be an integer of at least 1"
MANY = f"must be at most 100000000, got {HUGE}: no memory holds so much"

PRIORS = [
    *of(
        "GaussianMixture",
        ("range: K 0", lambda: GaussianMixture(0, 2), f"num_components {COUNT}, got 0"),
        ("range: K -1", lambda: GaussianMixture(-1, 2), f"num_components {COUNT}, got -1"),
        ("type: K 2.0", lambda: GaussianMixture(2.0, 2), f"num_components {COUNT}, got 2.0"),
        ("type: K True", lambda: GaussianMixture(True, 2), f"num_components {COUNT}, got True"),
        ("type: K text", lambda: GaussianMixture("3", 2), f"num_components {COUNT}, got '3'"),
        ("huge: K", lambda: GaussianMixture(HUGE, 2), f"num_components {MANY}"),
        ("range: dim 0", lambda: GaussianMixture(3, 0), f"dim {COUNT}, got 0"),
        ("huge: dim", lambda: GaussianMixture(3, HUGE), f"dim {MANY}"),
        (
            "unknown: covariance",
            lambda: GaussianMixture(3, 2, covariance="tied"),
            r"\('diag', 'full'\)",
        ),
        ("type: covariance", lambda: GaussianMixture(3, 2, ["full"]), "covariance must be one of"),
        (
            "unknown: weights",
            lambda: GaussianMixture(3, 2, weights="fixed"),
            "weights must be one of",
        ),
        ("type: weights", lambda: GaussianMixture(3, 2, weights=[1, 2]), "weights must be one of"),
        (
            "range: scale",
            lambda: GaussianMixture(3, 2, scale=-1.0),
            "and must exceed 0.0001, got -1.0",
        ),
        ("nan: scale", lambda: GaussianMixture(3, 2, scale=NAN), "must exceed 0.0001, got nan"),
        ("huge: scale", lambda: GaussianMixture(3, 2, scale=INF), "must exceed 0.0001, got inf"),
        (
            "type: scale",
            lambda: GaussianMixture(3, 2, scale="0.1"),
            "must exceed 0.0001, got '0.1'",
        ),
    ),
    *of(
        "GaussianMixture.initialize",
        (
            "shape: loc",
            lambda: mixture().initialize(torch.zeros(2)),
            r"loc has shape \[2\], but \[3, 2\] is needed",
        ),
        ("nan: loc", lambda: mixture().initialize(torch.full((3, 2), NAN)), "loc holds NaN"),
        (
            "type: loc",
            lambda: mixture().initialize([[0.0, 0.0]] * 3),
            r"loc must be a tensor \[3, 2\], got list",
        ),
        (
            "range: covariances",
            lambda: mixture().initialize(None, -torch.eye(2).repeat(3, 1, 1)),
            "covariances must be positive definite",
        ),
        (
            "range: weights",
            lambda: mixture().initialize(weights=torch.tensor([0.5, 1, -0.5])),
            r"cannot be negative, got \[0.5, 1.0, -0.5\]",
        ),
    ),
    *of(
        "Prior.sample",
        ("range: n 0", lambda: mixture().sample(0), f"n {COUNT}, got 0"),
        ("huge: n", lambda: mixture().sample(HUGE), f"n {MANY}"),
        (
            "range: cluster",
            lambda: mixture().sample(2, 3),
            "has the components 0 to 2, got cluster=3",
        ),
        (
            "type: cluster",
            lambda: mixture().sample(2, 1.0),
            "has the components 0 to 2, got cluster=1.0",
        ),
        (
            "range: temperature",
            lambda: mixture().sample(2, temperature=-1),
            "must be at least 0, got -1",
        ),
    ),
    *of(
        "Prior.log_prob",
        (
            "shape: z",
            lambda: mixture().log_prob(np.zeros((5, 1))),
            r"z has shape \[5, 1\], .* \[..., 2\]",
        ),
    ),
    *of(
        "Mixture.set_weights",
        (
            "shape: weights",
            lambda: mixture().set_weights(torch.ones(2)),
            r"\[2\], but \[3\] is needed",
        ),
    ),
    *of(
        "StandardNormal",
        ("range: dim 0", lambda: StandardNormal(0), f"dim {COUNT}, got 0"),
        ("huge: dim", lambda: StandardNormal(HUGE), f"dim {MANY}"),
    ),
    *of(
        "StandardNormal.log_joint",
        ("shape: z", lambda: StandardNormal(2).log_joint(np.zeros((5, 3))), r"\[5, 3\], but"),
    ),
    *of(
        "VampPrior",
        ("range: K 0", lambda: VampPrior(0, 2, (D,)), f"num_components {COUNT}, got 0"),
        (
            "type: x_shape",
            lambda: VampPrior(2, 2, D),
            "x_shape is the shape of one datum, .* got 6",
        ),
        (
            "range: support",
            lambda: VampPrior(2, 2, (D,), support=(1, 0)),
            r"with low < high, got \(1, 0\)",
        ),
        (
            "nan: support",
            lambda: VampPrior(2, 2, (D,), support=(0, NAN)),
            r"with low < high, got \(0, nan\)",
        ),
        ("type: support", lambda: VampPrior(2, 2, (D,), support=1), r"with low < high, got 1"),
        (
            "missing: a guide",
            lambda: VampPrior(2, 2, (D,)).sample(1),
            "build one first, such as VaDEGuide",
        ),
    ),
    *of(
        "VampPrior.bind",
        (
            "shape: other data",
            lambda: VaDEGuide(facet(VampPrior(2, 2, (5,)))),
            r"built for data of shape \(5,\)",
        ),
    ),
    *of(
        "Flat",
        ("range: dim 0", lambda: Flat(0), f"dim {COUNT}, got 0"),
    ),
    *of(
        "Flat.sample",
        ("misfit: no draws", lambda: Flat(2).sample(1), "a flat prior has no draws"),
    ),
    *of(
        "Codebook",
        ("range: places 0", lambda: Codebook(3, 2, 0), f"places {COUNT}, got 0"),
        ("type: code_dim", lambda: Codebook(3, 1.5, 4), f"code_dim {COUNT}, got 1.5"),
    ),
    *of(
        "Codebook.sample",
        ("range: code", lambda: Codebook(3, 2, 4).sample(1, 3), "components 0 to 2, got cluster=3"),
    ),
    *of(
        "ClassBlocks",
        ("range: block_dim", lambda: ClassBlocks(3, 0), f"block_dim {COUNT}, got 0"),
        ("huge: K", lambda: ClassBlocks(HUGE, 2), f"num_components {MANY}"),
    ),
    *of(
        "ConditionalNormal",
        ("range: width", lambda: ConditionalNormal(2, 2, width=0), f"width {COUNT}, got 0"),
        ("type: label_dim", lambda: ConditionalNormal("u", 2), f"label_dim {COUNT}, got 'u'"),
    ),
    *of(
        "ConditionalNormal.latent",
        ("missing: u", lambda: ConditionalNormal(2, 2).latent(), "needs it: latent"),
    ),
    *of(
        "DirichletWeights",
        ("range: num_data", lambda: DirichletWeights(0), f"num_data {COUNT}, got 0"),
        (
            "range: alpha",
            lambda: DirichletWeights(9, -1),
            "concentration must be a positive .* got -1",
        ),
        (
            "nan: alpha",
            lambda: DirichletWeights(9, NAN),
            "concentration must be a positive .* got nan",
        ),
        (
            "type: alpha",
            lambda: DirichletWeights(9, "a"),
            "concentration must be a positive .* got 'a'",
        ),
    ),
]


@cache
def mixture() -> GaussianMixture:
    return GaussianMixture(3, 2)


LIKELIHOODS = [
    *of(
        "Normal",
        ("range: scale 0", lambda: Normal(0.0), "standard deviation and must be positive, got 0.0"),
        ("nan: scale", lambda: Normal(NAN), "must be positive, got nan"),
        ("huge: scale", lambda: Normal(INF), "must be positive, got inf"),
        ("type: scale", lambda: Normal("0.3"), "must be positive, got '0.3'"),
    ),
    *of(
        "Bernoulli",
        ("range: threshold", lambda: Bernoulli(1.0), r"threshold must be within \[0, 1\), got 1.0"),
        ("nan: threshold", lambda: Bernoulli(NAN), r"threshold must be within \[0, 1\), got nan"),
        (
            "type: threshold",
            lambda: Bernoulli("0.5"),
            r"threshold must be within \[0, 1\), got '0.5'",
        ),
    ),
    *of(
        "ContinuousBernoulli",
        (
            "range: x",
            lambda: embed(ContinuousBernoulli(), holed(2.0)),
            "ContinuousBernoulli .* needs",
        ),
    ),
    *of(
        "HeteroscedasticNormal",
        ("range: bound", lambda: HeteroscedasticNormal(0), "must be positive, got 0"),
        ("type: bound", lambda: HeteroscedasticNormal(None), "must be positive, got None"),
    ),
    *of(
        "Incomplete",
        (
            "type: no likelihood",
            lambda: Incomplete(0.3),
            "likelihood must be a likelihood, such as .* got float",
        ),
        ("misfit: twice", lambda: Incomplete(Incomplete(Normal(0.3))), "must be of single entries"),
        (
            "range: fill",
            lambda: Incomplete(Bernoulli(), 2),
            "fill must be a number that Bernoulli allows",
        ),
        (
            "nan: fill",
            lambda: Incomplete(Normal(0.3), NAN),
            "fill must be a number that Normal allows, .* nan",
        ),
        (
            "nan: infinity in x",
            lambda: embed(Incomplete(Bernoulli()), holed(INF)),
            "1 values that are infinite",
        ),
        (
            "range: x",
            lambda: embed(Incomplete(Bernoulli()), holed(2.0)),
            "the Bernoulli likelihood needs",
        ),
    ),
    *of(
        "DiscretizedLogistic",
        ("range: scale", lambda: DiscretizedLogistic(-1), "scale must be positive, got -1"),
        ("nan: scale", lambda: DiscretizedLogistic(NAN), "scale must be positive, got nan"),
        ("misfit: x", lambda: embed(DiscretizedLogistic(), X), "others than multiples of 1/255"),
    ),
    *of(
        "Likelihood.check",
        ("range: x", lambda: Bernoulli().check(torch.tensor([2.0])), r"needs \[0.0, 1.0\]"),
    ),
]


def embed(likelihood: Any, x: Any) -> Any:
    return VaDEGuide(MFCVAE((D,), {"z": StandardNormal(2)}, likelihood, SharedMLP((8,)))).embed(x)


NETWORKS = [
    *of(
        "MLPLadder",
        ("range: width 0", lambda: MLPLadder((8, 0)), f"each of widths {COUNT}, got 0"),
        ("huge: width", lambda: MLPLadder((8, HUGE)), f"each of widths {MANY}"),
        ("type: width", lambda: MLPLadder((8.5,)), f"each of widths {COUNT}, got 8.5"),
        ("unknown: activation", lambda: MLPLadder(activation="swish"), "activation must be one of"),
        ("unknown: merge", lambda: MLPLadder(merge="add"), "merge must be one of"),
        (
            "type: rungs",
            lambda: MLPLadder((8, 9), rungs=1),
            "rungs are levels of the ladder, .* got 1",
        ),
        (
            "type: rungs 0.0",
            lambda: MLPLadder((8, 9), rungs=[0.0]),
            r"rungs are levels .* got \[0.0\]",
        ),
        (
            "range: rungs",
            lambda: MLPLadder((8, 9), rungs=[2]),
            r"rungs are levels .* of 0 to 1 .* got \[2\]",
        ),
        (
            "misfit: order",
            lambda: MLPLadder((8, 9), rungs=[1, 0]),
            r"from shallow to deep: .* got \[1, 0\]",
        ),
        (
            "misfit: facets",
            lambda: MFCVAE((D,), {"z": StandardNormal(2)}, network=MLPLadder((8, 9))),
            "the ladder has 2 rungs",
        ),
    ),
    *of(
        "Architecture.encoder",
        (
            "misfit: components",
            lambda: MLPLadder((8, 9)).encoder((D,), (0, 4), (0, 3)),
            "all with heads",
        ),
    ),
    *of(
        "SharedMLP",
        ("empty: widths", lambda: SharedMLP(()), "widths must be a sequence of integers, such as"),
        ("unknown: init", lambda: SharedMLP(init="zeros"), "init must be one of"),
        (
            "type: activation",
            lambda: SharedMLP(activation=torch.nn.ReLU),
            "activation must be one of",
        ),
        ("misfit: no ladder", lambda: LadderGuide(facet()), r"MLPLadder\(rungs=\[1\]\) for one"),
    ),
    *of(
        "MLP",
        ("range: dropout", lambda: MLP(dropout=1.0), r"must be within \[0, 1\), got 1.0"),
        ("nan: dropout", lambda: MLP(dropout=NAN), r"must be within \[0, 1\), got nan"),
        ("type: dropout", lambda: MLP(dropout="some"), r"must be within \[0, 1\), got 'some'"),
    ),
    *of(
        "ConvLadder",
        (
            "type: widths",
            lambda: ConvLadder(64),
            "widths must be a sequence of integers, .* got 64",
        ),
        (
            "type: text",
            lambda: ConvLadder("64"),
            "widths must be a sequence of integers, .* got '64'",
        ),
        ("shape: no images", lambda: VAE((D,), 2, network=ConvLadder((4,))), "needs? images"),
    ),
    *of(
        "ConvGrid",
        (
            "shape: no images",
            lambda: Autoencoder((D,), 2),
            "needs images .* divide by 4, got x_shape",
        ),
        (
            "misfit: facets",
            lambda: MFCVAE((1, 8, 8), {"z": StandardNormal(3)}, network=grid()),
            "has 4 places",
        ),
    ),
    *of(
        "ConvNet",
        (
            "shape: odd image",
            lambda: VAE((1, 7, 8), 2, network=ConvNet()),
            "height and width divide by 4",
        ),
        ("range: hidden", lambda: ConvNet(hidden=0), f"hidden {COUNT}, got 0"),
        (
            "misfit: odd widths",
            lambda: ConvNet((8, 16, 32)),
            r"an even number of widths: \(8, 16, 32\)",
        ),
    ),
    *of(
        "StridedConvNet",
        ("range: hidden", lambda: StridedConvNet(hidden=-1), f"hidden {COUNT}, got -1"),
        ("huge: hidden", lambda: StridedConvNet(hidden=HUGE), f"hidden {MANY}"),
        ("shape: small", lambda: VAE((1, 8, 8), 2, network=StridedConvNet()), "divide by 16"),
    ),
    *of(
        "ResNet",
        (
            "misfit: one width",
            lambda: ResNet((16,)),
            r"for its first convolution and one for each block, got",
        ),
        ("shape: no images", lambda: VAE((D,), 2, network=ResNet((4, 5))), r"got x_shape=\(6,\)"),
    ),
    *of(
        "AutoregressiveFlow",
        (
            "range: num_layers",
            lambda: AutoregressiveFlow(num_layers=0),
            f"num_layers {COUNT}, got 0",
        ),
        (
            "misfit: VAE",
            lambda: VaDEGuide(VAE((D,), D, network=AutoregressiveFlow((8,), num_layers=1))),
            "take FlowGuide with GMMFlow",
        ),
    ),
]


MODELS = [
    *of(
        "MFCVAE",
        (
            "empty: x_shape",
            lambda: MFCVAE((), {"z": StandardNormal(2)}),
            "x_shape is the shape of one datum",
        ),
        (
            "range: x_shape",
            lambda: MFCVAE((0,), {"z": StandardNormal(2)}),
            r"shape of one datum, .* got \(0,\)",
        ),
        (
            "type: x_shape",
            lambda: MFCVAE(784, {"z": StandardNormal(2)}),
            "shape of one datum, .* got 784",
        ),
        (
            "type: x_shape 2.0",
            lambda: MFCVAE((2.0,), {"z": StandardNormal(2)}),
            r"one datum, .* got \(2.0,\)",
        ),
        (
            "huge: x_shape",
            lambda: MFCVAE((HUGE,), {"z": StandardNormal(2)}),
            "integers from 1 to 100000000",
        ),
        ("empty: facets", lambda: MFCVAE((D,), {}), "facets is empty: give at least one"),
        (
            "type: facets",
            lambda: MFCVAE((D,), [StandardNormal(2)]),
            "facets are priors by name, such as",
        ),
        (
            "range: name",
            lambda: facet(name="my digit"),
            "facet names must be valid Python names, got 'my digit'",
        ),
        ("type: name", lambda: facet(name=1), "facet names must be valid Python names, got 1"),
        ("misfit: name", lambda: facet(name="keys"), "torch uses it itself"),
        (
            "type: prior",
            lambda: facet(prior=(10, 5)),
            "facet 'digit' needs a prior, such as GaussianMixture",
        ),
        (
            "misfit: one prior",
            lambda: MFCVAE((D,), dict.fromkeys("ab", StandardNormal(2))),
            "share a prior object",
        ),
        (
            "type: likelihood",
            lambda: MFCVAE((D,), {"z": StandardNormal(2)}, "normal"),
            r"likelihood must be a likelihood, such as Bernoulli\(\) or Normal\(0.3\), got str",
        ),
        (
            "type: a class",
            lambda: MFCVAE((D,), {"z": StandardNormal(2)}, Bernoulli),
            "got the class Bernoulli itself",
        ),
        (
            "type: network",
            lambda: MFCVAE((D,), {"z": StandardNormal(2)}, None, (500, 2000)),
            "network must be an architecture, .* got tuple",
        ),
    ),
    *of(
        "FacetModel.decode",
        (
            "missing: facet",
            lambda: guide().model.decode({"digit": torch.zeros(1, 2)}),
            r"each of the facets \['style', 'digit'\], got \['digit'\]",
        ),
        (
            "type: z",
            lambda: guide().model.decode(torch.zeros(1, 4)),
            "each of the facets .* got Tensor",
        ),
        (
            "shape: z",
            lambda: guide().model.decode({"digit": Z, "style": Z[:, :1]}),
            r"facet 'style' has shape \[8, 1\], but \[..., 2\] is needed",
        ),
        (
            "type: text",
            lambda: guide().model.decode({"digit": Z, "style": "a"}),
            "must hold numbers",
        ),
        (
            "missing: label",
            lambda: cvae().model.decode({"z": Z}),
            "CVAE.decode needs label= beside",
        ),
        (
            "range: label",
            lambda: cvae().model.decode({"z": Z}, label=torch.full((8,), 3)),
            "label must be within 0 to 2",
        ),
    ),
    *of(
        "FacetModel.prior",
        (
            "unknown: facet",
            lambda: guide().model.prior("hue"),
            r"this model has \['style', 'digit'\]",
        ),
    ),
    *of(
        "FacetModel.generate",
        (
            "unknown: facet",
            lambda: guide().model.generate(1, "colour", 0),
            "unknown facet 'colour'",
        ),
        (
            "type: facet",
            lambda: guide().model.generate(1, ["digit"], 0),
            r"unknown facet \['digit'\]",
        ),
        ("range: cluster", lambda: guide().model.generate(1, "digit", 4), "clusters 0 to 3, got 4"),
        ("type: cluster", lambda: guide().model.generate(1, "digit", "2"), "0 to 3, got '2'"),
        ("type: 1.5", lambda: guide().model.generate(1, "digit", 1.5), "0 to 3, got 1.5"),
        (
            "missing: cluster",
            lambda: guide().model.generate(1, facet="digit"),
            "or neither; got facet=",
        ),
        ("range: n", lambda: guide().model.generate(0), f"n {COUNT}, got 0"),
        ("huge: n", lambda: guide().model.generate(HUGE), f"n {MANY}"),
        (
            "nan: temperature",
            lambda: guide().model.generate(1, temperature=NAN),
            "least 0, got nan",
        ),
        ("unknown: given", lambda: guide().model.generate(1, label=[1]), r"got \['label'\]"),
    ),
    *of(
        "VaDE",
        ("type: prior", lambda: VaDE((D,), StandardNormal(2)), "VaDE needs a mixture, such as"),
    ),
    *of(
        "VLAC",
        (
            "range: K 0",
            lambda: VLAC((D,), [0, 2], [1, 1]),
            f"each of num_components {COUNT}, got 0",
        ),
        (
            "shape: layers",
            lambda: VLAC((D,), [2, 3], [1]),
            r"must be equally many, got \(2, 3\) and \(1,\)",
        ),
        (
            "type: numbers",
            lambda: VLAC((D,), 3, 2),
            r"must be a sequence .* such as \(1, 5, 50, 1\), got 3",
        ),
        ("huge: dims", lambda: VLAC((D,), [2], [HUGE]), f"each of dims {MANY}"),
    ),
    *of(
        "VLAE",
        ("type: dims", lambda: VLAE((D,), 3), "dims must be a sequence of integers, .* got 3"),
        (
            "empty: dims",
            lambda: VLAE((D,), []),
            r"dims must be a sequence of integers, .* got \[\]",
        ),
    ),
    *of(
        "GMDGM",
        ("range: dim", lambda: GMDGM((D,), 3, 0), f"each of dims {COUNT}, got 0"),
        ("nan: scale", lambda: GMDGM((D,), 3, 2, scale=NAN), "must exceed 0.0001, got nan"),
    ),
    *of(
        "VAE",
        ("range: dim", lambda: VAE((D,), 0), f"each of dims {COUNT}, got 0"),
        ("type: x_shape", lambda: VAE("784", 2), "shape of one datum, .* got '784'"),
    ),
    *of(
        "IVAE",
        ("range: num_labels", lambda: IVAE((D,), 0, 2), f"num_labels {COUNT}, got 0"),
        ("huge: num_labels", lambda: IVAE((D,), HUGE, 2), f"num_labels {MANY}"),
        (
            "range: name",
            lambda: IVAE((D,), 3, 2, name="a b"),
            "facet names must be valid Python names, got 'a b'",
        ),
    ),
    *of(
        "ContinuousIVAE",
        ("range: label_dim", lambda: ContinuousIVAE((D,), 0, 2), f"label_dim {COUNT}, got 0"),
        ("type: dim", lambda: ContinuousIVAE((D,), 3, None), f"dim {COUNT}, got None"),
    ),
    *of(
        "CVAE",
        ("range: num_classes", lambda: CVAE((D,), -1, 2), f"num_classes {COUNT}, got -1"),
        (
            "type: network",
            lambda: CVAE((D,), 3, 2, network="mlp"),
            "network must be an architecture, .* got str",
        ),
    ),
    *of(
        "NVAE",
        ("range: shared_dim", lambda: NVAE((D,), 3, 2, 0), f"shared_dim {COUNT}, got 0"),
        (
            "range: alpha",
            lambda: NVAE((D,), 3, 2, 2, concentration=0),
            "concentration must be positive, .* got 0",
        ),
        (
            "type: alpha",
            lambda: NVAE((D,), 3, 2, 2, concentration="1"),
            "concentration must be positive, .* got '1'",
        ),
        ("huge: num_classes", lambda: NVAE((D,), HUGE, 2, 2), f"num_classes {MANY}"),
    ),
    *of(
        "MLVAE",
        ("range: content_dim", lambda: MLVAE((D,), 0, 2), f"content_dim {COUNT}, got 0"),
        ("type: style_dim", lambda: MLVAE((D,), 2, "2"), f"style_dim {COUNT}, got '2'"),
    ),
    *of(
        "VQVAE",
        ("range: num_codes", lambda: VQVAE((1, 8, 8), 0, 3), f"num_codes {COUNT}, got 0"),
        ("type: x_shape", lambda: VQVAE(64, 5, 3), "shape of one datum, .* got 64"),
        (
            "type: network",
            lambda: VQVAE((1, 8, 8), 5, 3, network=MLP()),
            "network must be a ConvGrid, .* got MLP",
        ),
    ),
    *of(
        "Autoencoder",
        ("type: code_dim", lambda: Autoencoder((1, 8, 8), "3"), f"code_dim {COUNT}, got '3'"),
        ("range: code_dim", lambda: Autoencoder((1, 8, 8), 0), f"code_dim {COUNT}, got 0"),
    ),
    *of(
        "GMMFlow",
        (
            "type: prior",
            lambda: GMMFlow((D,), StandardNormal(D)),
            "GMMFlow needs a mixture, such as",
        ),
        (
            "type: network",
            lambda: GMMFlow((D,), GaussianMixture(2, D), MLP()),
            "AutoregressiveFlow.*, got MLP",
        ),
        (
            "shape: dims",
            lambda: GMMFlow((D,), GaussianMixture(2, 5)),
            "its latents have 5, but x .* has 6",
        ),
    ),
]


GUIDES = [
    *of(
        "VaDEGuide",
        (
            "range: num_samples",
            lambda: VaDEGuide(facet(), num_samples=0),
            f"num_samples {COUNT}, got 0",
        ),
        ("huge: num_samples", lambda: VaDEGuide(facet(), num_samples=HUGE), f"num_samples {MANY}"),
        ("type: model", lambda: VaDEGuide(None), "model must be a model, such as .* got NoneType"),
        (
            "type: a runner",
            lambda: VaDEGuide(runner()),
            "model must be a model, such as .* got SVIRunner",
        ),
        ("misfit: model", lambda: VaDEGuide(nvae().model), "such as ClassifierGuide"),
        (
            "misfit: VampPrior",
            lambda: VaDEGuide(one_vamp()) and VaDEGuide(one_vamp()),
            "another guide's posteri",
        ),
        (
            "range: label_weight",
            lambda: VaDEGuide(facet(), label_weight=-1),
            "label_weight .* got -1",
        ),
    ),
    *of(
        "MarginalGuide",
        ("type: num_samples", lambda: MarginalGuide(facet(), 2.0), f"num_samples {COUNT}, got 2.0"),
        (
            "type: model",
            lambda: MarginalGuide(MFCVAE),
            "model must be a model, .* got the class MFCVAE itself",
        ),
    ),
    *of(
        "AmortizedGuide",
        (
            "type: discrete",
            lambda: AmortizedGuide(facet(), discrete="enumerate"),
            "discrete must be such as",
        ),
        (
            "misfit: VampPrior",
            lambda: AmortizedGuide(facet(VampPrior(2, 2, (D,))), conditional=True),
            "which a conditional guide does not have",
        ),
        (
            "type: model",
            lambda: AmortizedGuide("MFCVAE", conditional=True),
            "model must be a model, .* got str",
        ),
    ),
    *of(
        "LadderGuide",
        (
            "type: discrete",
            lambda: LadderGuide(vlac(), discrete=Enumerate),
            "discrete must be such as",
        ),
        (
            "misfit: VampPrior",
            lambda: LadderGuide(facet(VampPrior(2, 2, (D,)))),
            "a VampPrior is made of q",
        ),
        ("type: model", lambda: LadderGuide(guide()), "model must be a model, .* got VaDEGuide"),
        (
            "misfit: marginal",
            lambda: ladder()(TENSOR, marginal=True),
            "use MarginalGuide or AmortizedGuide",
        ),
    ),
    *of(
        "ConditionalGuide",
        (
            "misfit: model",
            lambda: ConditionalGuide(facet()),
            "is for IVAE, .* got MFCVAE: take VaDEGuide",
        ),
        ("type: model", lambda: ConditionalGuide({}), "model must be a model, .* got dict"),
    ),
    *of(
        "SupervisedGuide",
        (
            "range: infinite",
            lambda: VaDEGuide(facet(), label_weight=float("inf")),
            "label_weight .* got inf",
        ),
        ("nan: weight", lambda: VaDEGuide(facet(), label_weight=NAN), "label_weight .* got nan"),
        ("type: weight", lambda: VaDEGuide(facet(), label_weight="1"), "label_weight .* got '1'"),
    ),
    *of(
        "ClassifierGuide",
        (
            "misfit: model",
            lambda: ClassifierGuide(facet()),
            "is for NVAE, got MFCVAE: take VaDEGuide",
        ),
        ("range: weight", lambda: ClassifierGuide(nvae().model, 1, -1), "label_weight .* got -1"),
        ("type: weight", lambda: ClassifierGuide(nvae().model, 1, "1"), "label_weight .* got '1'"),
    ),
    *of(
        "CodebookGuide",
        ("misfit: model", lambda: CodebookGuide(facet()), "CodebookGuide is for VQVAE, got MFCVAE"),
        (
            "type: discrete",
            lambda: CodebookGuide(codes().model, 1, Enumerate()),
            "must be a GumbelSoftmax",
        ),
    ),
    *of(
        "CodebookGuide.codes",
        (
            "shape: x",
            lambda: codes().codes(np.zeros((2, 64))),
            r"for example x.reshape\(len\(x\), 1, 8",
        ),
    ),
    *of(
        "PointGuide",
        ("misfit: model", lambda: PointGuide(facet()), "PointGuide is for facets without clusters"),
        ("type: model", lambda: PointGuide(3), "model must be a model, .* got int"),
    ),
    *of(
        "FlowGuide",
        ("misfit: model", lambda: FlowGuide(facet()), "FlowGuide is for GMMFlow, .* got MFCVAE"),
    ),
    *of(
        "GroupedGuide",
        ("misfit: model", lambda: GroupedGuide(facet()), "GroupedGuide is for MLVAE, got MFCVAE"),
        (
            "type: evidence",
            lambda: GroupedGuide(mlvae().model, 1, "product"),
            "evidence must be such as",
        ),
        (
            "unknown: content",
            lambda: GroupedGuide(mlvae().model, content="all"),
            "content must be one of",
        ),
    ),
    *of(
        "SimilarContentGuide",
        ("range: penalty", lambda: SimilarContentGuide(mlvae().model, 1, -1), "penalty .* got -1"),
        ("nan: penalty", lambda: SimilarContentGuide(mlvae().model, 1, NAN), "penalty .* got nan"),
        ("type: penalty", lambda: SimilarContentGuide(mlvae().model, 1, "1"), "penalty .* got '1'"),
    ),
    *of(
        "TableGuide",
        (
            "empty: group",
            lambda: TableGuide(mlvae().model, []),
            "group is empty: the group of every row is needed",
        ),
        (
            "type: group",
            lambda: TableGuide(mlvae().model, ["a", "b"]),
            "group must hold numbers, got list",
        ),
        (
            "type: floats",
            lambda: TableGuide(mlvae().model, [0.0, 1.0]),
            "group must hold integers, got",
        ),
        (
            "shape: group",
            lambda: TableGuide(mlvae().model, [[0, 1]]),
            r"group has shape \[1, 2\], but",
        ),
    ),
    *of(
        "TableGuide.embed",
        ("shape: rows", lambda: tables().embed(X[:3], group=[0, 0, 1]), "tables for 5 rows, got 3"),
        ("range: row", lambda: tables().embed(X[:1], group=[0], row=[5]), "numbers from 5 to 5"),
        (
            "misfit: groups",
            lambda: tables().embed(X, group=[0, 1, 1, 1, 1]),
            "give it the same groups",
        ),
    ),
    *of(
        "GumbelSoftmax",
        ("range: temperature", lambda: GumbelSoftmax(0), "temperature must be positive, got 0"),
        ("nan: temperature", lambda: GumbelSoftmax(NAN), "temperature must be positive, got nan"),
        (
            "type: temperature",
            lambda: GumbelSoftmax("low"),
            "temperature must be positive, got 'low'",
        ),
    ),
    *of(
        "Annealed",
        (
            "range: end",
            lambda: Annealed(1.0, 0.0),
            "temperatures must be positive, got start=1.0, end=0.0",
        ),
        ("huge: start", lambda: Annealed(INF), "temperatures must be positive, got start=inf"),
        ("type: steps", lambda: Annealed(steps=1e4), f"steps {COUNT}, got 10000.0"),
    ),
    *of(
        "ScoreFunction",
        ("unknown: baseline", lambda: ScoreFunction("mean"), "baseline must be one of"),
        (
            "misfit: two guides",
            lambda: twice(ScoreFunction()),
            "of another guide: give each guide its own",
        ),
    ),
    *of(
        "RademacherHash",
        ("range: num_bits", lambda: RademacherHash((D,), 0), f"num_bits {COUNT}, got 0"),
        ("huge: num_bits", lambda: RademacherHash((D,), 25), "33554432 labels: 24 bits at most"),
        ("type: x_shape", lambda: RademacherHash(D, 2), "shape of one datum, .* got 6"),
        ("shape: x", lambda: RademacherHash((D,), 2)(X[:, :5]), r"the hash was built for \[N, 6\]"),
        ("nan: x", lambda: RademacherHash((D,), 2)(holed(NAN)), "x is empty, or holds NaN"),
        ("empty: x", lambda: RademacherHash((D,), 2)(X[:0]), r"x is empty, .* \(shape \[0, 6\]\)"),
    ),
    *of(
        "FacetGuide.embed",
        (
            "missing: label",
            lambda: ivae().embed(X),
            "IVAE needs label= beside x, with one entry per",
        ),
        (
            "unknown: given",
            lambda: guide().embed(X, batch_sise=3),
            "got batch_sise: is that a misspelt",
        ),
        (
            "shape: label",
            lambda: ivae().embed(X, label=[0, 1]),
            r"label has shape \[2\], but there are 5",
        ),
        (
            "range: label",
            lambda: ivae().embed(X, label=LABEL + 1),
            "classes from 1 to 3, but .* 0 to 2",
        ),
        ("type: label", lambda: ivae().embed(X, label=LABEL / 2), "label must hold integers"),
        (
            "type: names",
            lambda: ivae().embed(X, label=list("abcde")),
            "label must hold numbers, got list",
        ),
        (
            "shape: vectors",
            lambda: continuous_ivae().embed(X, label=X),
            r"\[5, 6\], but \[5, 3\] is needed",
        ),
        (
            "nan: vectors",
            lambda: continuous_ivae().embed(X, label=holed(NAN)[:, :3]),
            "label holds NaN",
        ),
        ("missing: group", lambda: mlvae().embed(X), "MLVAE needs group= beside x"),
        (
            "shape: group",
            lambda: mlvae().embed(X, group=[0]),
            r"group has shape \[1\], but there are 5",
        ),
    ),
    *of(
        "FacetGuide.observed",
        ("shape: x", lambda: guide().observed(X[0], {}), r"x has shape \[6\]"),
    ),
    *of(
        "FacetGuide.posterior",
        ("huge: x", lambda: real().posterior(holed(1e300)), "NaN or infinite"),
    ),
    *of(
        "FacetGuide.reconstruct",
        ("nan: x", lambda: guide().reconstruct(holed(NAN)), "NaN or infinite"),
    ),
    *of(
        "FacetGuide.predict_proba",
        (
            "type: known",
            lambda: nvae().predict_proba(X, label=LABEL, known=LABEL),
            "5 truth values",
        ),
    ),
    *of(
        "FacetGuide.predict",
        (
            "range: label",
            lambda: nvae().predict(X, label=LABEL - 2),
            "and -1 where it is not known",
        ),
    ),
]


@cache
def one_vamp() -> MFCVAE:
    return facet(VampPrior(2, 2, (D,)))


def twice(discrete: Any) -> Any:
    return [AmortizedGuide(facet(), discrete=discrete) for _ in range(2)]


SCHEDULES = [
    *of(
        "Constant",
        ("nan: weight", lambda: Constant(NAN), "weight must be a number of at least 0, got nan"),
        (
            "range: weight",
            lambda: Constant(-1.0),
            "weight must be a number of at least 0, got -1.0",
        ),
        (
            "type: weight",
            lambda: Constant({"z_digit": "2"}),
            "weight must be a number of at least 0, got '2'",
        ),
        (
            "unknown: site",
            lambda: fit(schedule=Constant({"z_hue": 2})),
            "there is no site 'z_hue' with a weight",
        ),
    ),
    *of(
        "WarmUp",
        ("range: steps", lambda: WarmUp(0), f"steps {COUNT}, got 0"),
        ("type: steps", lambda: WarmUp(10.0), f"steps {COUNT}, got 10.0"),
        (
            "misfit: run",
            lambda: fit(schedule=WarmUp(9)),
            "warm-up would end at step 9, but the run has 8 steps",
        ),
        (
            "huge: steps",
            lambda: fit(schedule=WarmUp(HUGE)),
            f"would end at step {HUGE}, but the run has 8 steps",
        ),
    ),
    *of(
        "CoolDown",
        ("range: start", lambda: CoolDown(0.5, 3), "start must be a number of at least 1, got 0.5"),
        ("huge: start", lambda: CoolDown(INF, 3), "start must be a number of at least 1, got inf"),
        (
            "misfit: run",
            lambda: fit(schedule=CoolDown(2, 9)),
            "cooling would end at step 9, but the run has 8",
        ),
    ),
    *of(
        "ProgressiveFadeIn",
        ("range: phase", lambda: ProgressiveFadeIn((0, 5)), f"each phase of epochs {COUNT}, got 0"),
        (
            "type: epochs",
            lambda: ProgressiveFadeIn(201),
            "has the length of each phase, .* got 201",
        ),
        (
            "empty: epochs",
            lambda: ProgressiveFadeIn(()),
            r"has the length of each phase, .* got \(\)",
        ),
        ("range: fade", lambda: ProgressiveFadeIn((5, 5), 0), f"fade_steps {COUNT}, got 0"),
        ("range: waiting", lambda: ProgressiveFadeIn((5,), 9, 2), r"within \[0, 1\], got 2"),
        ("type: waiting", lambda: ProgressiveFadeIn((5,), 9, "0"), r"within \[0, 1\], got '0'"),
        (
            "misfit: phase",
            lambda: fit(schedule=ProgressiveFadeIn((2, 2), 1000)),
            "a facet's fade-in would end at step 1000, but its phase has 4 steps",
        ),
        (
            "misfit: run",
            lambda: fit(schedule=ProgressiveFadeIn((2, 3), 5)),
            "the last phase would end at step 10, but the run has 8 steps",
        ),
        (
            "shape: phases",
            lambda: fit(schedule=ProgressiveFadeIn((4,), 2)),
            "has 1 phases, but the model has 2 facets",
        ),
    ),
]


OBJECTIVES = [
    *of(
        "Loss",
        ("type: model", lambda: Loss(guide(), guide()), "model must be a model, .* got VaDEGuide"),
        (
            "type: guide",
            lambda: Loss(guide().model, VaDEGuide),
            "guide must be a guide, .* got the class VaDEGuide",
        ),
        ("misfit: guide", lambda: Loss(facet(), guide()), "the guide was built for another model"),
        (
            "type: objective",
            lambda: Loss(guide().model, guide(), "elbo"),
            "must be an instance of an ELBO .* got 'elbo'",
        ),
        (
            "misfit: plates",
            lambda: Loss(*drawn_twice(), GuideEnum_ELBO(max_plate_nesting=1)),
            "give it max_plate_nesting",
        ),
    ),
    *of(
        "GuideEnum_ELBO",
        (
            "range: plates",
            lambda: GuideEnum_ELBO(max_plate_nesting=0),
            f"max_plate_nesting {COUNT}, got 0",
        ),
        (
            "type: plates",
            lambda: GuideEnum_ELBO(max_plate_nesting="1"),
            f"max_plate_nesting {COUNT}",
        ),
    ),
    *of(
        "MeanField_ELBO",
        (
            "range: particles",
            lambda: MeanField_ELBO(max_plate_nesting=1, num_particles=0),
            f"num_particles {COUNT}, got 0",
        ),
        (
            "misfit: guide",
            lambda: Loss(guide().model, guide(), MeanField_ELBO(max_plate_nesting=1)),
            "VaDEGuide enumerates its clusters, which MeanField_ELBO would score wrongly",
        ),
    ),
    *of(
        "MeanFieldEnum_ELBO",
        (
            "misfit: guide",
            lambda: Loss(guide().model, guide(), MeanFieldEnum_ELBO(max_plate_nesting=1)),
            "which MeanFieldEnum_ELBO would score wrongly",
        ),
    ),
    *of(
        "ScoreFunction_ELBO",
        (
            "misfit: guide",
            lambda: Loss(guide().model, guide(), ScoreFunction_ELBO(max_plate_nesting=1)),
            "which ScoreFunction_ELBO would score wrongly",
        ),
        ("nan: plates", lambda: ScoreFunction_ELBO(max_plate_nesting=NAN), "max_plate_nesting"),
    ),
    *of(
        "ImportanceWeighted_ELBO",
        ("range: draws", lambda: ImportanceWeighted_ELBO(0), f"num_draws {COUNT}, got 0"),
        ("huge: draws", lambda: ImportanceWeighted_ELBO(HUGE), f"num_draws {MANY}"),
    ),
]


def drawn_twice() -> tuple[FacetModel, VaDEGuide]:
    g = VaDEGuide(facet(), 2)
    return g.model, g


RUNS = [
    *of("SVIRunner.fit", *((fault, partial(fit, x=x), message) for fault, x, message in DATA)),
    *of(
        "SVIRunner",
        ("range: lr", lambda: run_with(lr=0.0), "lr must be a positive number, got 0.0"),
        ("nan: lr", lambda: run_with(lr=NAN), "lr must be a positive number, got nan"),
        ("huge: lr", lambda: run_with(lr=INF), "lr must be a positive number, got inf"),
        ("type: lr", lambda: run_with(lr="a"), "lr must be a positive number, got 'a'"),
        ("type: lr True", lambda: run_with(lr=True), "lr must be a positive number, got True"),
        (
            "type: seed",
            lambda: run_with(seed=1.5),
            "seed must be an integer from 0 to 4294967295, got 1.5",
        ),
        (
            "type: seed text",
            lambda: run_with(seed="1"),
            "seed must be an integer from 0 to 4294967295, got '1'",
        ),
        (
            "range: seed",
            lambda: run_with(seed=-1),
            "seed must be an integer from 0 to 4294967295, got -1",
        ),
        (
            "huge: seed",
            lambda: run_with(seed=10**30),
            "seed must be an integer from 0 to 4294967295, got 10000",
        ),
        (
            "unknown: device",
            lambda: run_with(device="gpu"),
            "device must be such as 'cpu' or 'cuda', got 'gpu'",
        ),
        (
            "type: device",
            lambda: run_with(device=1.5),
            "device must be such as 'cpu' or 'cuda', got 1.5",
        ),
        (
            "missing: device",
            lambda: run_with(device="cuda:99"),
            "device 'cuda:99' cannot be used here: ",
        ),
        ("misfit: device", lambda: run_with(device="meta"), "device 'meta' cannot be used here: "),
        (
            "type: schedule",
            lambda: run_with(schedule="warm"),
            r"schedule must be such as WarmUp\(1000\), got str",
        ),
        ("type: schedule class", lambda: run_with(schedule=WarmUp), "got the class WarmUp itself"),
        (
            "type: guard",
            lambda: run_with(guard="skip"),
            r"must be a Guard, such as Guard\('skip'\), got str",
        ),
        (
            "unknown: precision",
            lambda: SVIRunner(guide().model, guide(), precision="fp8"),
            "precision must be one",
        ),
        (
            "type: guide",
            lambda: SVIRunner(guide().model, None),
            "guide must be a guide, .* got NoneType",
        ),
        ("type: model", lambda: SVIRunner(None, guide()), "model must be a model, .* got NoneType"),
        (
            "misfit: model",
            lambda: SVIRunner(facet(), guide()),
            "the guide was built for another model",
        ),
        (
            "type: objective",
            lambda: SVIRunner(guide().model, guide(), GuideEnum_ELBO),
            "an instance of an ELBO",
        ),
    ),
    *of(
        "SVIRunner.fit",
        ("missing: label", lambda: fit(ivae), "IVAE needs label= beside x"),
        ("unknown: option", lambda: fit(epoch=3), "got epoch: is that a misspelt option"),
        (
            "shape: group",
            lambda: fit(mlvae, group=[0, 1]),
            r"group has shape \[2\], but there are 5 data",
        ),
        ("type: epochs", lambda: fit(epochs=None), f"epochs {COUNT}, got None"),
        ("huge: batch", lambda: fit(batch_size=HUGE), f"batch_size {MANY}"),
        (
            "type: data set",
            lambda: fit(x=TensorDataset(TENSOR)),
            r"give a DataLoader of it, such as DataLoader\(x, 512",
        ),
        (
            "empty: loader",
            lambda: loaded([]),
            "the DataLoader gives no batch: is its data set empty",
        ),
        (
            "missing: batch",
            lambda: loaded(X, collate_fn=lambda rows: None),
            "batches have no x, but .*: name it 'x'",
        ),
        (
            "empty: batch",
            lambda: loaded(X, collate_fn=lambda rows: ()),
            "batches have no x, but .*: name it 'x'",
        ),
        (
            "missing: batches",
            lambda: loaded(X, batch_sampler=Unkept()),
            "no batch, though its length says 3",
        ),
        (
            "missing: x of a loader",
            lambda: loaded([{1: x} for x in TENSOR]),
            r"batches have no x, but \['1'\]",
        ),
        (
            "nan: x of a loader",
            lambda: loaded(holed(NAN)),
            "x holds 1 values that are NaN or infinite",
        ),
        ("misfit: loader", lambda: loaded(X, of=ivae), "IVAE needs label= beside x"),
        (
            "type: callbacks",
            lambda: fit(callbacks=["a"]),
            "each of callbacks is called with .*, got 'a'",
        ),
        (
            "type: callback class",
            lambda: fit(callbacks=[StopEarly]),
            "each of callbacks is called with .* got <class",
        ),
        (
            "type: one callback",
            lambda: fit(callbacks=print),
            r"in a sequence, such as \[callback\], got <built-in",
        ),
        (
            "type: no callbacks",
            lambda: fit(callbacks=None),
            r"callbacks must be in a sequence, .* got None",
        ),
        (
            "type: batches",
            lambda: fit(batches="rows"),
            r"batches must be such as Groups\(\), got str",
        ),
        (
            "type: batches class",
            lambda: fit(batches=Rows),
            "batches must be such as .* got the class Rows itself",
        ),
        (
            "type: checkpoints",
            lambda: fit(checkpoints="new"),
            r"such as Checkpoints\('folder'\), got str",
        ),
        (
            "type: fabric",
            lambda: fit(fabric="x"),
            "fabric must be a Fabric of Lightning's, .* got 'x'",
        ),
        ("nan: parameters", lambda: fit(spoilt), "Real.., but found invalid values"),
    ),
    *of(
        "Rows",
        (
            "misfit: groups",
            lambda: fit(mlvae, group=LABEL, batches=Rows()),
            r"deal them by batches=Groups\(\)",
        ),
    ),
    *of(
        "Groups",
        ("missing: group", lambda: fit(batches=Groups()), "none were given: leave batches= out"),
        ("range: members", lambda: Groups(0), f"max_members {COUNT}, got 0"),
        ("type: members", lambda: Groups(2.5), f"max_members {COUNT}, got 2.5"),
    ),
    *of(
        "Guard",
        (
            "unknown: action",
            lambda: Guard("stopp"),
            r"action must be one of \('stop', 'skip', 'halve'\), got 'stopp'",
        ),
        ("range: norm", lambda: Guard(max_norm=-1), "max_norm must be a positive number, got -1"),
        ("nan: norm", lambda: Guard(max_norm=NAN), "max_norm must be a positive number, got nan"),
        ("type: norm", lambda: Guard(max_norm="1"), "max_norm must be a positive number, got '1'"),
        (
            "type: norm True",
            lambda: Guard(max_norm=True),
            "max_norm must be a positive number, got True",
        ),
    ),
    *of(
        "Evaluate",
        ("range: every", lambda: Evaluate(dict, 0), f"every {COUNT}, got 0"),
        (
            "type: measure of nothing",
            lambda: Evaluate(lambda runner: None)(runner(), {"epoch": 1}),
            "what measure returns must be numbers by name, got NoneType",
        ),
        (
            "type: measure",
            lambda: Evaluate("acc"),
            "measure must be a function that is called .* got 'acc'",
        ),
    ),
    *of(
        "FitMixtures",
        ("range: epoch", lambda: FitMixtures(X, 0), f"epoch {COUNT}, got 0"),
        ("range: restarts", lambda: FitMixtures(X, 1, restarts=0), f"restarts {COUNT}, got 0"),
        (
            "unknown: facet",
            lambda: fit(callbacks=[FitMixtures(X, 9, ["hue"])]),
            "unknown facet 'hue'",
        ),
        (
            "shape: few rows",
            lambda: fit(callbacks=[FitMixtures(X[:2], 9)]),
            "2 rows are too few to fit the 3 comp",
        ),
        (
            "nan: x",
            lambda: fit(callbacks=[FitMixtures(holed(NAN), 9)]),
            "1 values that are NaN or infinite",
        ),
    ),
    Row(
        "JSONLines",
        "file: a folder",
        lambda run: fit(callbacks=[JSONLines(run / "checkpoints")]),
        "checkpoints is a folder, and a file for records is needed",
    ),
    *of(
        "JSONLines",
        ("type: path", lambda: JSONLines(3), "str, bytes or os.PathLike object, not", TypeError),
        (
            "missing: folder",
            lambda: fit(callbacks=[JSONLines("new/a")]),
            "there is no folder new for a: make it",
        ),
    ),
    Row(
        "Draw",
        "file: no folder",
        lambda run: fit(callbacks=[Draw(run / "notes.txt", print, 1)]),
        "notes.txt is a file, and a folder for figures is needed",
    ),
    *of(
        "Draw",
        (
            "type: draw",
            lambda: Draw("new", "figure", 1),
            "draw must be a function that is called .* got 'figure'",
        ),
        ("range: every", lambda: Draw("new", print, 0), f"every {COUNT}, got 0"),
    ),
    *of(
        "StopEarly",
        (
            "type: measure",
            lambda: StopEarly(3),
            "measure must be a name in the record, such as 'elbo', got int",
        ),
        ("range: patience", lambda: StopEarly(patience=0), f"patience {COUNT}, got 0"),
        ("nan: threshold", lambda: StopEarly(threshold=NAN), "threshold must be a number, got nan"),
        (
            "type: threshold",
            lambda: StopEarly(threshold="a"),
            "threshold must be a number, got 'a'",
        ),
    ),
    Row(
        "TensorBoard",
        "file: no folder",
        lambda run: fit(callbacks=[tensorboard(run / "notes.txt")]),
        "notes.txt is a file, and a folder for events is needed",
    ),
    *of(
        "ReduceOnPlateau",
        ("range: factor", lambda: ReduceOnPlateau(2), r"factor must be within \(0, 1\), got 2"),
        ("nan: factor", lambda: ReduceOnPlateau(NAN), r"factor must be within \(0, 1\), got nan"),
        ("type: factor", lambda: ReduceOnPlateau("a"), r"factor must be within \(0, 1\), got 'a'"),
        ("range: patience", lambda: ReduceOnPlateau(patience=0), f"patience {COUNT}, got 0"),
        (
            "nan: threshold",
            lambda: ReduceOnPlateau(threshold=NAN),
            "threshold must be a number, got nan",
        ),
        (
            "type: threshold",
            lambda: ReduceOnPlateau(threshold="a"),
            "threshold must be a number, got 'a'",
        ),
    ),
    *of(
        "KeepIdentifiable",
        ("range: noise", lambda: KeepIdentifiable(0), "noise must be positive, got 0"),
        ("type: noise", lambda: KeepIdentifiable("some"), "noise must be positive, got 'some'"),
    ),
    *of(
        "natural_parameters",
        (
            "misfit: full",
            lambda: natural_parameters(GaussianMixture(3, 2, "full")),
            "got covariance='full'",
        ),
    ),
    *of(
        "condition_number",
        (
            "type: prior",
            lambda: condition_number(StandardNormal(2)),
            "a GaussianMixture, .* got Standard",
        ),
    ),
    *of(
        "identifiability_matrix",
        (
            "type: prior",
            lambda: identifiability_matrix(guide()),
            "GaussianMixture, .* got VaDEGuide",
        ),
    ),
    *of(
        "coinciding_components",
        ("nan: tolerance", lambda: coinciding_components(mixture(), NAN), "tolerance .* got nan"),
    ),
    *of(
        "fit_together",
        (
            "empty: runners",
            lambda: fit_together([], X, 1),
            "there are no runners to train together",
        ),
        (
            "type: guides",
            lambda: fit_together([guide()], X, 1),
            "each of runners must be an SVIRunner, got VaDEGuide",
        ),
        (
            "type: loader",
            lambda: fit_together([runner()], DataLoader(TENSOR), 1),
            "take data, no DataLoader: train",
        ),
        (
            "type: one runner",
            lambda: fit_together(runner(), X, 1),
            r"such as \[runner\], got SVIRunner",
        ),
        (
            "type: no callbacks",
            lambda: fit_together([runner()], X, 1, callbacks=lambda runner: None),
            "callbacks must be in a sequence, .* got None",
        ),
        (
            "misfit: one guide",
            lambda: fit_together([runner()] * 2, X, 1),
            "two runners hold the same param",
        ),
        (
            "misfit: kinds",
            lambda: fit_together([runner(), alone()], X, 1),
            "differs from the first one in its",
        ),
        (
            "type: callbacks",
            lambda: fit_together([runner()], X, 1, callbacks=[]),
            "callbacks must be a function",
        ),
        (
            "nan: x",
            lambda: fit_together([runner()], holed(NAN), 1, progress=False),
            "NaN or infinite",
        ),
        ("range: epochs", lambda: fit_together([runner()], X, 0), f"epochs {COUNT}, got 0"),
    ),
    *of(
        "cold_start",
        (
            "type: guide",
            lambda: cold_start(runner(), X),
            "guide must be a guide, such as runner.guide, got SVI",
        ),
        (
            "shape: few rows",
            lambda: cold_start(guide(), X[:3]),
            "3 rows are too few .* 4 components of facet 'd",
        ),
        ("range: max_rows", lambda: cold_start(guide(), X, 0), f"max_rows {COUNT}, got 0"),
        ("nan: x", lambda: cold_start(guide(), holed(NAN)), "NaN or infinite"),
        (
            "misfit: model",
            lambda: cold_start(ivae(), X),
            "IVAE is given label: its components learn",
        ),
    ),
    *of(
        "fit_mixtures",
        ("unknown: facet", lambda: fit_mixtures(guide(), X, facets=["hue"]), "unknown facet 'hue'"),
        (
            "type: facets",
            lambda: fit_mixtures(guide(), X, facets="digit"),
            r"such as \['digit'\], got 'digit'",
        ),
        (
            "misfit: facet",
            lambda: fit_mixtures(vae(), X, facets=["layer_1"]),
            "has no mixture to fit",
        ),
        ("empty: x", lambda: fit_mixtures(guide(), X[:0]), "x is empty"),
        (
            "type: guide",
            lambda: fit_mixtures(guide().model, X),
            "guide must be a guide, .* got MFCVAE",
        ),
    ),
    *of(
        "neighbor_clusters",
        ("range: num_clusters", lambda: neighbor_clusters(X, 0), f"num_clusters {COUNT}, got 0"),
        (
            "shape: few rows",
            lambda: neighbor_clusters(X[:5], 5, 3),
            "num_clusters=5 is too many for 5 data",
        ),
        (
            "shape: few neighbours",
            lambda: neighbor_clusters(X[:5], 2),
            "num_neighbors=10 is too many for 5 data",
        ),
        ("shape: a row", lambda: neighbor_clusters(X[0], 2), r"data \[N, ...\] are needed"),
        ("nan: x", lambda: neighbor_clusters(holed(NAN), 2, 2), "fill in what is missing"),
        ("type: x", lambda: neighbor_clusters([["a"]], 2), "x must hold numbers"),
    ),
    *of(
        "neighbor_start",
        (
            "type: runner",
            lambda: neighbor_start(guide(), X, 1),
            "runner must be an SVIRunner, got VaDEGuide",
        ),
        ("range: epochs", lambda: neighbor_start(runner(), X, 0), f"epochs {COUNT}, got 0"),
        (
            "misfit: guide",
            lambda: neighbor_start(runner(), X, 1),
            "take a VaDEGuide with a label_weight above 0",
        ),
        ("unknown: facet", lambda: neighbor_start(runner(), X, 1, "hue"), "unknown facet 'hue'"),
        (
            "misfit: no mixture",
            lambda: neighbor_start(SVIRunner(vae().model, vae()), X, 1),
            "none of the facets .* has a mixture",
        ),
        (
            "range: batch_size",
            lambda: neighbor_start(taught(), X, 1, batch_size=0),
            f"batch_size {COUNT}, got 0",
        ),
        (
            "range: log_every",
            lambda: neighbor_start(taught(), X, 1, log_every=0),
            f"log_every {COUNT}, got 0",
        ),
        ("unknown: option", lambda: neighbor_start(taught(), X, 1, bach_size=9), "bach_size"),
        (
            "misfit: label",
            lambda: neighbor_start(taught(), X, 1, label={"digit": [0] * len(X)}),
            "give one of both",
        ),
        (
            "misfit: run",
            lambda: neighbor_start(taught(WarmUp(99)), X, 1),
            "warm-up would end at step 99",
        ),
    ),
    *of(
        "warm_start",
        (
            "type: runner",
            lambda: warm_start(guide(), X, 1),
            "runner must be an SVIRunner, got VaDEGuide",
        ),
        (
            "range: restarts",
            lambda: warm_start(runner(), X, 1, restarts=0),
            f"restarts {COUNT}, got 0",
        ),
        ("range: epochs", lambda: warm_start(runner(), X, 0), f"epochs {COUNT}, got 0"),
        (
            "shape: few rows",
            lambda: warm_start(runner(), X[:2], 1),
            "2 rows are too few .* 3 components",
        ),
    ),
    *of(
        "data_dependent_start",
        ("range: rows", lambda: data_dependent_start(guide(), X, rows=0), f"rows {COUNT}, got 0"),
        (
            "shape: one row",
            lambda: data_dependent_start(guide(), X[:1]),
            "two rows or more: got rows=512",
        ),
        (
            "type: guide",
            lambda: data_dependent_start(None, X),
            "guide must be a guide, .* got NoneType",
        ),
    ),
    *of(
        "standard_normal_priors",
        ("type: model", lambda: standard_normal_priors(guide()).__enter__(), "got VaDEGuide"),
    ),
    *of(
        "infer_tables",
        (
            "misfit: model",
            lambda: infer_tables(facet(), X, LABEL, 1),
            "TableGuide is for MLVAE, got MFCVAE",
        ),
        (
            "shape: group",
            lambda: infer_tables(mlvae().model, X, LABEL[:2], 1),
            r"group has shape \[2\]",
        ),
        (
            "range: lr",
            lambda: infer_tables(mlvae().model, X, LABEL, 1, lr=-1),
            "lr must be a positive number, got -1",
        ),
    ),
    *of(
        "learn_to_encode",
        ("range: num_data", lambda: learn_to_encode(mlvae(), 0, 1), f"num_data {COUNT}, got 0"),
        ("huge: num_data", lambda: learn_to_encode(mlvae(), HUGE, 1), f"num_data {MANY}"),
        (
            "type: guide",
            lambda: learn_to_encode(guide(), 9, 1),
            "must be a GroupedGuide, .* got VaDEGuide",
        ),
        ("range: epochs", lambda: learn_to_encode(mlvae(), 9, -1), f"epochs {COUNT}, got -1"),
    ),
    *of(
        "elbo",
        (
            "range: draws",
            lambda: elbo(guide().model, guide(), X, 1),
            "num_draws must be at least 2 to give",
        ),
        ("huge: draws", lambda: elbo(guide().model, guide(), X, HUGE), f"num_draws {MANY}"),
        (
            "type: draws",
            lambda: elbo(guide().model, guide(), X, "9"),
            f"num_draws {COUNT}, got '9'",
        ),
        (
            "type: guide",
            lambda: elbo(guide().model, runner(), X),
            "guide must be a guide, .* got SVIRunner",
        ),
        (
            "misfit: model",
            lambda: elbo(facet(), guide(), X),
            "the guide was built for another model",
        ),
    ),
    *of(
        "elbo_per_datum",
        (
            "range: draws",
            lambda: elbo_per_datum(guide().model, guide(), X, 0),
            f"num_draws {COUNT}, got 0",
        ),
        (
            "huge: draws",
            lambda: elbo_per_datum(guide().model, guide(), X, HUGE),
            f"num_draws {MANY}",
        ),
        (
            "type: guide",
            lambda: elbo_per_datum(guide().model, runner(), X),
            "guide must be a guide, .* got SVIRunner",
        ),
        (
            "misfit: model",
            lambda: elbo_per_datum(facet(), guide(), X),
            "the guide was built for another model",
        ),
        ("nan: x", lambda: elbo_per_datum(guide().model, guide(), holed(NAN)), "NaN or infinite"),
        (
            "misfit: groups",
            lambda: elbo_per_datum(mlvae().model, mlvae(), X, group=LABEL),
            "for all members of a group, so that a datum has no ELBO of its own: take "
            "inference.elbo",
        ),
    ),
    *of(
        "mutual_information",
        (
            "type: guide",
            lambda: mutual_information(runner(), X),
            "guide must be a guide, .* got SVI",
        ),
        ("nan: x", lambda: mutual_information(guide(), holed(INF)), "NaN or infinite"),
    ),
    *of(
        "kl_by_dimension",
        (
            "type: guide",
            lambda: kl_by_dimension(vae().model, X),
            "guide must be a guide, .* got VAE",
        ),
        ("empty: x", lambda: kl_by_dimension(vae(), X[:0]), "x is empty"),
    ),
]


@cache
def spoilt() -> VaDEGuide:
    """Whose parameters are not finite."""
    g = VaDEGuide(facet())
    with torch.no_grad():
        g.model.mixtures["digit"].loc.fill_(NAN)
    return g


def run_with(**options: Any) -> SVIRunner:
    return SVIRunner(guide().model, guide(), **options)


def loaded(rows: Any, of: Callable[[], FacetGuide] = guide, **options: Any) -> SVIRunner:
    return fit(of, x=DataLoader(rows, **options), batch_size=None)


class Unkept:
    """A sampler that does not keep what its length promises."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        return iter([])


def tensorboard(folder: Path) -> TensorBoard:
    """As built where its package is not there, too."""
    with patch.dict(sys.modules, {"torch.utils.tensorboard": SimpleNamespace(SummaryWriter=None)}):
        return TensorBoard(folder)


@cache
def alone() -> SVIRunner:
    return SVIRunner(one_facet().model, one_facet())


CLUSTERS = {"a": LABEL}


def select(candidates: Any, x: Any = X, **options: Any) -> Any:
    return select_model(candidates, x, **options)


SELECTION = [
    *of(
        "select_model",
        (
            "empty: candidates",
            lambda: select({}),
            "candidates are functions of a seed, or fitted runs, by name",
        ),
        ("type: candidates", lambda: select([guide()]), r"by name, such as .* got \[VaDEGuide"),
        (
            "type: a guide",
            lambda: select({"a": guide()}),
            "candidate 'a' must be .* in a sequence, got VaDEGuide",
        ),
        (
            "type: models",
            lambda: select({"a": [facet()]}),
            "runners or guides in a sequence, got list",
        ),
        (
            "type: a number",
            lambda: select({"a": 3}),
            "candidate 'a' must be a function of a seed, .* got int",
        ),
        ("empty: runs", lambda: select({"a": []}), "runners or guides in a sequence, got list"),
        (
            "shape: numbers of runs",
            lambda: select({"a": [guide()], "b": [guide(), runner()]}),
            r"as many runs of each candidate are needed, got \{'a': 1, 'b': 2\}",
        ),
        (
            "type: what is built",
            lambda: select({"a": lambda seed: seed}),
            "'a' gives must be a fitted runner .* got int",
        ),
        (
            "empty: seeds",
            lambda: select({"a": lambda seed: guide()}, seeds=()),
            "different integers in a sequence",
        ),
        (
            "unknown: seeds twice",
            lambda: select({"a": [guide()]}, seeds=[1, 1]),
            r"different integers .* got \[1, 1\]",
        ),
        (
            "type: seeds",
            lambda: select({"a": [guide()]}, seeds=[0.5]),
            "each of seeds must be an integer from 0",
        ),
        (
            "range: draws",
            lambda: select({"a": [guide()]}, num_draws=0),
            f"num_draws {COUNT}, got 0",
        ),
        (
            "range: threshold",
            lambda: select({"a": [guide()]}, threshold=1),
            "at least 0 and below 1, got 1",
        ),
        ("shape: x", lambda: select({"a": [guide()]}, x=X[:, 1:]), r"x has shape \[5, 5\]"),
        ("type: x", lambda: select({"a": [guide()]}, x="x"), "x must hold numbers, got str"),
        (
            "nan: fitted",
            lambda: select({"a": [spoilt()]}),
            "candidate 'a' has parameters that are not finite",
        ),
    ),
    *of(
        "one_standard_error",
        (
            "shape: errors",
            lambda: one_standard_error([0, -1], [0]),
            "as many differences as errors are needed",
        ),
        ("nan: differences", lambda: one_standard_error([0, NAN], [0, 1]), "all finite, got"),
        (
            "range: no best",
            lambda: one_standard_error([-2, -1], [1, 1]),
            "to the best, which has 0",
        ),
        ("range: errors", lambda: one_standard_error([-2, 0], [-1, 1]), "and errors at least 0"),
        (
            "type: text",
            lambda: one_standard_error("a", [0]),
            "differences must hold numbers, got str",
        ),
    ),
    *of(
        "clusters_in_use",
        (
            "shape: proba",
            lambda: clusters_in_use([0.5, 0.5]),
            r"probabilities \[N, K\], got shape \[2\]",
        ),
        (
            "range: proba",
            lambda: clusters_in_use([[0.5, 0.1]]),
            "each row of proba must add up to 1",
        ),
        ("nan: proba", lambda: clusters_in_use([[NAN, 1.0]]), r"probabilities \[N, K\]"),
        (
            "range: threshold",
            lambda: clusters_in_use([[1.0]], -0.1),
            "a share of the data, .* got -0.1",
        ),
        (
            "type: threshold",
            lambda: clusters_in_use([[1.0]], "0.1"),
            "a share of the data, .* got '0.1'",
        ),
    ),
    *of(
        "effective_clusters",
        ("range: proba", lambda: effective_clusters([[-1.0, 2.0]]), r"probabilities \[N, K\]"),
        ("empty: proba", lambda: effective_clusters([[]]), r"got shape \[1, 0\]"),
    ),
    *of(
        "redundancy",
        (
            "shape: lengths",
            lambda: redundancy({"a": LABEL, "b": LABEL[1:]}),
            r"of the same data .* \[\(4,\), \(5,\)\]",
        ),
        ("type: an array", lambda: redundancy(LABEL), "what a guide's predict gives"),
        (
            "nan: clusters",
            lambda: redundancy({"a": X[:, 0], "b": LABEL}),
            "clusters of facet 'a' must be integers",
        ),
    ),
    *of(
        "match_facets",
        (
            "shape: numbers",
            lambda: match_facets(CLUSTERS, {**CLUSTERS, "b": LABEL}),
            "must have the same facets, or as",
        ),
        (
            "type: a guide",
            lambda: match_facets(CLUSTERS, guide()),
            "clusters by facet are needed of each run",
        ),
    ),
    *of(
        "stability",
        (
            "empty: one run",
            lambda: stability([CLUSTERS]),
            "agreement takes two runs or more, got 1",
        ),
        (
            "unknown: facet",
            lambda: stability([CLUSTERS, {"b": LABEL}]),
            "the same facets, .* where these are matched, got",
        ),
        (
            "type: arrays",
            lambda: stability([LABEL, LABEL]),
            "clusters by facet are needed of each run",
        ),
        (
            "shape: rows",
            lambda: stability([CLUSTERS, {"a": X}]),
            r"of the same data .* got shapes \[\(5,\), \(5, 6\)\]",
        ),
    ),
    *of(
        "selection_overview",
        (
            "type: runs",
            lambda: selection_overview({}),
            "must be a Selection, of inference.select_model, got dict",
        ),
    ),
]

METRICS = [
    *of(
        "cluster_accuracy",
        (
            "shape: lengths",
            lambda: cluster_accuracy([0, 1], [0, 1, 1]),
            r"got shapes \(2,\) and \(3,\)",
        ),
        ("empty: no data", lambda: cluster_accuracy([], []), "non-empty vectors"),
        (
            "unknown: method",
            lambda: cluster_accuracy([0], [0], "best"),
            'must be "majority" or "hungarian"',
        ),
        ("nan: labels", lambda: cluster_accuracy([0, NAN], [0, 1]), "labels hold NaN or infinity"),
        (
            "shape: map",
            lambda: cluster_accuracy([0], [0], map_from=([0], [0, 1])),
            r"\(1,\) and \(2,\)",
        ),
    ),
    *of(
        "cluster_map",
        (
            "shape: table",
            lambda: cluster_map([[0, 1]], [[0, 1]]),
            r"vectors of one length, got shapes \(1, 2\)",
        ),
    ),
    *of(
        "clustering_scores",
        ("type: None", lambda: clustering_scores(None, [0]), r"got shapes \(\) and \(1,\)"),
    ),
    *of(
        "probe_accuracy",
        (
            "shape: labels",
            lambda: probe_accuracy(Z, [0, 1], Z, [0, 1]),
            r"shapes \(8, 2\) and \(2,\)",
        ),
        (
            "shape: test",
            lambda: probe_accuracy(Z, [0, 1] * 4, Z[:, :1], [0, 1] * 4),
            r"\[N, 2\], as in",
        ),
        ("nan: z", lambda: probe_accuracy(holed(NAN), LABEL, X, LABEL), "latents hold NaN"),
    ),
    *of(
        "classifier_scores",
        (
            "unknown: label",
            lambda: classifier_scores(Z, [0, 1] * 4, [(Z, [2] * 8)]),
            r"lacks: \[2\]",
        ),
        ("empty: z", lambda: classifier_scores(Z[:0], [], []), r"are needed, got shapes \(0, 2\)"),
    ),
    *of(
        "mean_correlation",
        (
            "shape: columns",
            lambda: mean_correlation(np.ones((4, 2)), np.ones((4, 3))),
            r"\(4, 2\) and \(4, 3\)",
        ),
        (
            "range: constant",
            lambda: mean_correlation(np.ones((4, 2)), Z[:4]),
            "has a constant column",
        ),
        ("unknown: method", lambda: mean_correlation(Z, Z, "kendall"), 'method must be "pearson"'),
        ("nan: z", lambda: mean_correlation(Z, Z * NAN), "sources or latents hold NaN"),
        (
            "type: text",
            lambda: mean_correlation(Z, "latents"),
            "latents must hold numbers, got str",
        ),
    ),
    *of(
        "held_out_correlation",
        (
            "shape: too few",
            lambda: held_out_correlation(Z[:3], Z[:3]),
            "each half of the 3 data needs",
        ),
        (
            "range: variates",
            lambda: held_out_correlation(Z, Z, align=True, num_variates=3),
            "fewer than 3",
        ),
        ("empty: no data", lambda: held_out_correlation(Z[:0], Z[:0]), r"N >= 2, got \(0, 2\)"),
    ),
]


WEIGHTS = torch.zeros(4, 5)

DIAGNOSTICS = [
    *of(
        "exact_objective",
        (
            "misfit: guide",
            lambda: exact_objective(ladder().model, ladder(), TENSOR),
            "depend on one another",
        ),
        (
            "misfit: model",
            lambda: exact_objective(facet(), guide(), TENSOR),
            "built for another model",
        ),
        (
            "range: nodes",
            lambda: exact_objective(guide().model, guide(), TENSOR, 0),
            f"num_nodes {COUNT}",
        ),
        (
            "shape: x",
            lambda: exact_objective(guide().model, guide(), TENSOR[0]),
            r"x has shape \[6\]",
        ),
    ),
    *of(
        "gauss_hermite",
        ("huge: nodes", lambda: gauss_hermite(HUGE, 1), f"{HUGE} \\*\\* 1 nodes are too many"),
        ("huge: dim", lambda: gauss_hermite(30, HUGE), f"30 \\*\\* {HUGE} nodes are too many"),
        ("range: dim", lambda: gauss_hermite(3, 0), f"dim {COUNT}, got 0"),
    ),
    *of(
        "log_importance_weights",
        ("misfit: guide", lambda: log_importance_weights(ladder(), X, 3), "has no density of z"),
        (
            "range: draws",
            lambda: log_importance_weights(guide(), X, 0),
            f"num_draws {COUNT}, got 0",
        ),
        ("huge: draws", lambda: log_importance_weights(guide(), X, HUGE), f"num_draws {MANY}"),
        (
            "type: guide",
            lambda: log_importance_weights(guide().model, X, 3),
            "guide must be a guide",
        ),
    ),
    *of(
        "importance_weighted_bounds",
        ("range: sizes", lambda: importance_weighted_bounds(WEIGHTS, [5]), "draws, 4, got"),
        ("empty: sizes", lambda: importance_weighted_bounds(WEIGHTS, []), r"draws, 4, got \[\]"),
        ("type: sizes", lambda: importance_weighted_bounds(WEIGHTS, ["1"]), r"got \['1'\]"),
        ("shape: vector", lambda: importance_weighted_bounds(WEIGHTS[0], [1]), r"got shape \[5\]"),
    ),
    *of(
        "pareto_k",
        ("shape: few draws", lambda: pareto_k(WEIGHTS), "a tail needs at least 100 draws, got 4"),
        (
            "nan: weights",
            lambda: pareto_k(WEIGHTS * NAN),
            "without NaN, got shape .* with 20 of them",
        ),
        ("type: array", lambda: pareto_k(np.zeros((100, 2))), "must be a tensor .* got ndarray"),
    ),
    *of(
        "loss_draws",
        ("range: draws", lambda: loss_draws(loss(), TENSOR, 0), f"num_draws {COUNT}, got 0"),
        ("range: chunk", lambda: loss_draws(loss(), TENSOR, 3, chunk=0), f"chunk {COUNT}, got 0"),
        (
            "type: x",
            lambda: loss_draws(loss(), X, 3),
            r"x must be a tensor .* got ndarray: give torch.as_tensor",
        ),
    ),
    *of(
        "gradient_moments",
        (
            "range: chunk",
            lambda: gradient_moments(loss(), TENSOR, 3, chunk=0),
            f"chunk {COUNT}, got 0",
        ),
        (
            "type: loss",
            lambda: gradient_moments("loss", TENSOR, 3),
            "loss must be a module .* got str",
        ),
    ),
    *of(
        "compare_estimators",
        (
            "empty: losses",
            lambda: compare_estimators({}, TENSOR, loss()),
            "losses by name, .* got {}",
        ),
        (
            "type: reference",
            lambda: compare_estimators({"a": loss()}, TENSOR, 0.5),
            "reference must be",
        ),
        (
            "range: draws",
            lambda: compare_estimators({"a": loss()}, TENSOR, loss(), 0),
            f"num_draws {COUNT}",
        ),
    ),
    *of(
        "assert_unbiased",
        (
            "nan: draws",
            lambda: assert_unbiased(torch.tensor([0.0, NAN]), 0.0),
            "1 draws not finite",
        ),
        ("shape: table", lambda: assert_unbiased(torch.zeros(2, 2), 0.0), r"got shape \(2, 2\)"),
        (
            "range: power",
            lambda: assert_unbiased(torch.zeros(9), 0.0, power=1.5),
            r"within \(0, 1\), got 1.5",
        ),
        (
            "type: draws",
            lambda: assert_unbiased([0.0, 1.0], 0.0),
            r"must be a tensor \[n\], got list",
        ),
    ),
]


SHAPE = (2, 3)
KL = np.ones((5, 4))

FIGURES = [
    *of(
        "cluster_gallery",
        (
            "shape: image",
            lambda: cluster_gallery(guide(), X, "digit"),
            "cannot be drawn as images of shape",
        ),
        (
            "unknown: facet",
            lambda: cluster_gallery(guide(), X, "hue", SHAPE),
            "unknown facet 'hue'",
        ),
        (
            "type: guide",
            lambda: cluster_gallery(runner(), X, "digit", SHAPE),
            "guide must be a guide",
        ),
        (
            "type: image",
            lambda: cluster_gallery(guide(), X, "digit", 6),
            "cannot be drawn as images of shape 6",
        ),
        (
            "misfit: facet",
            lambda: cluster_gallery(vae(), X, "layer_1", SHAPE),
            "has no clusters to draw",
        ),
    ),
    *of(
        "facet_overview",
        ("range: rows", lambda: facet_overview(guide(), X, SHAPE, rows=0), f"rows {COUNT}, got 0"),
        (
            "misfit: model",
            lambda: facet_overview(vae(), X, SHAPE),
            "has no clusters that are inferred|nothing",
        ),
    ),
    *of(
        "cluster_samples",
        (
            "range: columns",
            lambda: cluster_samples(guide(), X, "digit", SHAPE, 0),
            f"columns {COUNT}, got 0",
        ),
        (
            "nan: temperature",
            lambda: cluster_samples(guide(), X, "digit", SHAPE, temperature=NAN),
            "at least 0, got nan",
        ),
    ),
    *of(
        "facet_draws",
        ("unknown: facet", lambda: facet_draws(guide(), X, "hue", SHAPE), "unknown facet 'hue'"),
        (
            "shape: x",
            lambda: facet_draws(guide(), np.float64(1), "digit", SHAPE),
            r"x has shape \[1\], but",
        ),
        (
            "type: columns",
            lambda: facet_draws(guide(), X, "digit", SHAPE, columns=2.5),
            f"columns {COUNT}",
        ),
    ),
    *of(
        "Explorer",
        ("type: guide", lambda: Explorer(runner(), X), "guide must be a guide"),
        ("shape: x", lambda: Explorer(guide(), X[:, 1:]), "x has shape|must have shape|x_shape"),
        (
            "unknown: given",
            lambda: Explorer(guide(), X, {"group": LABEL}),
            "if known, beside x, got group",
        ),
        (
            "shape: labels",
            lambda: Explorer(guide(), X, labels={"u": [1, 2]}),
            "label 'u' has shape",
        ),
        (
            "shape: image_shape",
            lambda: Explorer(guide(), X, image_shape=(2, 2)),
            "cannot be drawn as images",
        ),
    ),
    *of(
        "Explorer.clusters",
        ("unknown: facet", lambda: explorer().clusters("hue"), "unknown facet 'hue'"),
        (
            "misfit: no clusters",
            lambda: Explorer(vae(), X).clusters("layer_1"),
            "layer_1 has no clusters",
        ),
        ("range: columns", lambda: explorer().clusters("digit", 0), f"columns {COUNT}, got 0"),
    ),
    *of(
        "Explorer.knowledge",
        ("unknown: facet", lambda: explorer().knowledge("hue", "u"), "unknown facet 'hue'"),
        ("unknown: label", lambda: explorer().knowledge("digit", "v"), "label must be one of"),
        ("misfit: one value", lambda: explorer().knowledge("digit", "one"), "has one value only"),
    ),
    *of(
        "Explorer.swaps",
        ("range: row", lambda: explorer().swaps(0, len(X)), "there are the inputs 0 to"),
    ),
    *of(
        "Explorer.axes",
        ("unknown: facet", lambda: explorer().axes("hue", 0), "unknown facet 'hue'"),
        ("range: row", lambda: explorer().axes("digit", -1), "there are the inputs 0 to"),
    ),
    *of(
        "Explorer.moved",
        ("unknown: facet", lambda: explorer().moved("hue", 0, {}), "unknown facet 'hue'"),
        ("range: row", lambda: explorer().moved("digit", 1.5, {}), "there are the inputs 0 to"),
        (
            "range: latent",
            lambda: explorer().moved("digit", 0, {2: 0.0}),
            "has the latents 0 to 1, got 2",
        ),
        (
            "nan: value",
            lambda: explorer().moved("digit", 0, {0: NAN}),
            "has the latents 0 to 1, got 0 at nan",
        ),
        ("range: label", lambda: labelled().moved("z", 0, {}, 3), "label must be one of"),
    ),
    *of(
        "Explorer.samples",
        ("unknown: facet", lambda: explorer().samples("hue"), "unknown facet 'hue'"),
        ("range: cluster", lambda: explorer().samples("digit", 4), "choice must be one of"),
        ("range: n", lambda: explorer().samples("digit", 0, 0), f"n {COUNT}, got 0"),
        (
            "nan: temperature",
            lambda: explorer().samples("digit", 0, 1, NAN),
            "temperature is a factor on deviations",
        ),
        (
            "range: held",
            lambda: explorer().samples("digit", 0, held=len(X)),
            "there are the inputs 0 to",
        ),
    ),
    *of(
        "facet_swaps",
        ("unknown: facet", lambda: facet_swaps(guide(), X, "hue", SHAPE), "unknown facet 'hue'"),
        (
            "shape: one datum",
            lambda: facet_swaps(guide(), X[:1], "digit", SHAPE),
            "a pair takes two data",
        ),
        (
            "range: pairs",
            lambda: facet_swaps(guide(), X, "digit", SHAPE, -1),
            f"pairs {COUNT}, got -1",
        ),
    ),
    *of(
        "training_curves",
        (
            "empty: history",
            lambda: training_curves([], ["digit"]),
            "the history is empty: fit first",
        ),
    ),
    Row(
        "save_figures",
        "type: guide",
        lambda run: save_figures(run / "figures", runner(), X),
        "guide must be a guide",
    ),
    Row(
        "save_figures",
        "shape: image",
        lambda run: save_figures(run / "figures", guide(), X),
        "cannot be drawn as images",
    ),
    Row(
        "save_figures",
        "file: in the way",
        lambda run: save_figures(run / "config.json", guide(), X, image_shape=SHAPE),
        "config.json",
        FileExistsError,
    ),
    *of(
        "class_traversals",
        ("range: dimension", lambda: class_traversals(nvae(), 2, SHAPE), r"one of \(0, 1\), got 2"),
        (
            "misfit: model",
            lambda: class_traversals(guide(), 0, SHAPE),
            "MFCVAE has no latents of classes",
        ),
    ),
    *of(
        "class_latents",
        (
            "shape: dimension",
            lambda: class_latents(nvae(), [0, 1], 3),
            r"each of 3 classes, got \[0, 1\]",
        ),
        ("range: columns", lambda: class_latents(nvae(), 0, 0), f"columns {COUNT}, got 0"),
    ),
    *of(
        "shared_latents",
        ("range: dimension", lambda: shared_latents(nvae(), -1, 3), r"one of \(0, 1\), got -1"),
    ),
    *of(
        "shared_traversals",
        ("type: guide", lambda: shared_traversals(nvae().model, 0, SHAPE), "guide must be a guide"),
    ),
    *of(
        "traversed",
        (
            "shape: z",
            lambda: traversed(
                nvae(), {"shared": torch.zeros(3, 2, 1), "class": torch.zeros(3, 2, 6)}
            ),
            r"facet 'shared' has shape \[3, 2, 1\]",
        ),
    ),
    *of(
        "class_samples",
        (
            "misfit: model",
            lambda: class_samples(guide(), SHAPE),
            "MFCVAE has no classes that its decoder",
        ),
        (
            "range: scale",
            lambda: class_samples(nvae(), SHAPE, scale=-1),
            "must be at least 0, got -1",
        ),
    ),
    *of(
        "kl_by_class",
        ("shape: label", lambda: kl_by_class(KL, [0, 1], 2), r"got shapes \(5, 4\) and \(2,\)"),
        (
            "misfit: blocks",
            lambda: kl_by_class(KL, LABEL, 3),
            "4 latents, which are no blocks of block_dim=3",
        ),
        ("nan: kl", lambda: kl_by_class(KL * NAN, LABEL, 2), "kl holds NaN"),
    ),
    *of(
        "kl_of_blocks",
        ("empty: kl", lambda: kl_of_blocks({}), "kl is empty"),
    ),
    *of(
        "latent_scatter",
        ("shape: label", lambda: latent_scatter(Z, LABEL), r"got shapes \(8, 2\) and \(5,\)"),
        ("empty: z", lambda: latent_scatter(Z[:0], []), r"got shapes \(0, 2\) and \(0,\)"),
        ("range: rows", lambda: latent_scatter(X, LABEL, rows=0), f"rows {COUNT}, got 0"),
    ),
    *of(
        "grouped_boxes",
        ("empty: values", lambda: grouped_boxes({}, "", ""), "there is nothing to draw"),
        (
            "missing: setting",
            lambda: grouped_boxes({"a": {1: [0]}, "b": {}}, "", ""),
            "'b' has no values for 1",
        ),
    ),
    *of(
        "grouped_means",
        ("empty: values", lambda: grouped_means({"a": {}}, "", ""), "there is nothing to draw"),
    ),
    *of(
        "grouped_points",
        ("empty: points", lambda: grouped_points({}, "", ""), "there is nothing to draw"),
    ),
    *of(
        "grouped_curves",
        ("empty: curves", lambda: grouped_curves({}, "", ""), "there is nothing to draw"),
    ),
    *of(
        "guide_comparison",
        ("empty: bounds", lambda: guide_comparison({}, {}), "there is nothing to draw"),
    ),
    *of(
        "score_panels",
        ("empty: panels", lambda: score_panels({}), "there is nothing to draw"),
    ),
    *of(
        "style_swaps",
        ("type: guide", lambda: style_swaps(guide(), X, X, LABEL, SHAPE), "must be a GroupedGuide"),
        (
            "shape: group",
            lambda: style_swaps(mlvae(), X, X, LABEL[:3], SHAPE),
            r"group has shape \[3\]",
        ),
    ),
    *of(
        "latent_interpolation",
        (
            "shape: pair",
            lambda: latent_interpolation(mlvae(), X, SHAPE),
            r"a pair is two data, .* \(5, 6\)",
        ),
        ("range: steps", lambda: latent_interpolation(mlvae(), X[:2], SHAPE, 0), f"steps {COUNT}"),
    ),
    *of(
        "group_generations",
        (
            "range: draws",
            lambda: group_generations(mlvae(), X, LABEL, SHAPE, draws=0),
            f"draws {COUNT}",
        ),
        (
            "type: group",
            lambda: group_generations(mlvae(), X, list("aabbc"), SHAPE),
            "group must hold numb",
        ),
    ),
    *of(
        "evidence_reconstructions",
        ("nan: x", lambda: evidence_reconstructions(mlvae(), holed(NAN), SHAPE), "NaN or infinite"),
        ("type: guide", lambda: evidence_reconstructions(nvae(), X), "must be a GroupedGuide"),
    ),
]


# Files: of a saved run, of its checkpoints, of data.


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: int(keep * len(content))])

    return damage


def write(name: str, content: str | bytes) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return damage


def remove(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


def rewrite(change: Callable[[dict], Any]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        config = json.loads((run / "config.json").read_text())
        change(config)
        (run / "config.json").write_text(json.dumps(config))

    return damage


def change(part: str, to: Callable[[Any], Any]) -> Callable[[Path], None]:
    return rewrite(lambda config: config.update({part: to(config[part])}))


def having(**items: Any) -> Callable[[dict], dict]:
    return lambda part: {**part, **items}


def without(name: str) -> Callable[[dict], dict]:
    return lambda part: {key: value for key, value in part.items() if key != name}


def of_class(name: str) -> Callable[[Any], dict]:
    return lambda part: {"@class": f"inference.{name}"}


def reweigh(to: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        weights = load_file(run / "weights.safetensors")
        save_file(
            {name: to(tensor) for name, tensor in weights.items()}, run / "weights.safetensors"
        )

    return damage


def loads(
    fault: str,
    damage: Callable[[Path], Any] | None,
    message: str,
    error: type[Exception] = ValueError,
    **options: Any,
) -> Row:
    return Row("SVIRunner.load", fault, partial(SVIRunner.load, **options), message, error, damage)


LOADING = [
    loads("file: weights cut", cut("weights.safetensors", 0.5), "truncated or damaged"),
    loads("file: weights empty", cut("weights.safetensors", 0.0), "truncated or damaged"),
    loads(
        "file: weights of a pickle",
        write("weights.safetensors", b"\x80\x04." * 40),
        "truncated or damaged",
    ),
    loads("file: config cut", cut("config.json", 0.7), "truncated or damaged"),
    loads("file: config empty", cut("config.json", 0.0), "truncated or damaged"),
    loads("file: config no text", write("config.json", b"\xff\xfe\x00"), "truncated or damaged"),
    loads("file: history cut", cut("history.jsonl", 0.7), "truncated or damaged"),
    loads(
        "missing: weights",
        remove("weights.safetensors"),
        "weights.safetensors is missing",
        FileNotFoundError,
    ),
    loads("missing: config", remove("config.json"), "config.json is missing", FileNotFoundError),
    loads(
        "missing: history", remove("history.jsonl"), "history.jsonl is missing", FileNotFoundError
    ),
    loads("missing: folder", shutil.rmtree, "no checkpoint in", FileNotFoundError),
    loads("file: foreign json", write("config.json", '{"a": 1}'), "not a checkpoint of format"),
    loads("file: json list", write("config.json", "[1]"), "not a checkpoint of format"),
    loads(
        "file: other format",
        rewrite(lambda c: c.update(format=99)),
        "not a checkpoint of format 2: its format is 99",
    ),
    loads(
        "file: no guide",
        rewrite(lambda c: c.pop("guide")),
        "config.json is damaged: it lacks 'guide'",
    ),
    loads(
        "file: no schedule",
        rewrite(lambda c: c.pop("schedule")),
        "config.json is damaged: it lacks 'schedule'",
    ),
    loads(
        "file: no progress",
        rewrite(lambda c: c.pop("progress")),
        "config.json is damaged: it lacks 'progress'",
    ),
    loads(
        "file: progress a list",
        change("progress", lambda p: [1]),
        "progress must hold epoch and step, got list",
    ),
    loads(
        "file: no epoch",
        change("progress", without("epoch")),
        "config.json is damaged: progress lacks 'epoch'",
    ),
    loads(
        "file: epoch text",
        change("progress", having(epoch="1")),
        "progress must count, got '1' for 'epoch'",
    ),
    loads(
        "file: step negative",
        change("progress", having(step=-1)),
        "progress must count, got -1 for 'step'",
    ),
    loads(
        "file: runner null",
        change("runner", lambda r: None),
        "damaged: runner must hold lr .* got NoneType",
    ),
    loads(
        "file: no rate",
        change("runner", without("lr")),
        "config.json is damaged: runner lacks 'lr'",
    ),
    loads(
        "file: unknown option",
        change("runner", having(device="cpu")),
        "damaged: runner has an unknown 'device'",
    ),
    loads(
        "file: rate text",
        change("runner", having(lr="a")),
        "damaged: lr must be a positive number, got 'a'",
    ),
    loads(
        "file: seed null",
        change("runner", having(seed=None)),
        "config.json is damaged: seed must be an integer",
    ),
    loads(
        "file: guide null",
        change("guide", lambda g: None),
        "json is damaged: guide must be .* got NoneType",
    ),
    loads(
        "file: schedule text",
        change("schedule", lambda s: "warm"),
        "json is damaged: schedule must be .* got str",
    ),
    loads(
        "file: guard text",
        change("guard", lambda g: "skip"),
        "config.json is damaged: guard must be .* got str",
    ),
    loads(
        "file: guard as schedule",
        change("schedule", of_class("guard.Guard")),
        "schedule must be .* got Guard",
    ),
    loads(
        "file: schedule as guard",
        change("guard", of_class("schedules.Constant")),
        "guard must be .* got Constant",
    ),
    loads(
        "file: history of numbers",
        write("history.jsonl", "1\n2\n"),
        "history.jsonl is damaged: line 1 must hold",
    ),
    loads(
        "nan: weights",
        reweigh(lambda t: t * NAN),
        "the weights in .* are damaged: NaN, infinite or of another",
    ),
    loads(
        "type: weights",
        reweigh(torch.Tensor.long),
        "the weights in .* are damaged: NaN, infinite or of another",
    ),
    loads("type: guide", None, "guide must be a guide, such as .* got str", guide="x"),
    loads("type: schedule", None, "schedule must be such as .* got str", schedule="x"),
    loads(
        "unknown: device", None, "device must be such as 'cpu' or 'cuda', got 'gpu'", device="gpu"
    ),
    loads(
        "file: foreign class",
        rewrite(lambda c: c["guide"].update({"@class": "os.system"})),
        "'os.system', which is not part of this library, so it is not imported",
    ),
    loads(
        "file: not buildable",
        rewrite(lambda c: c["guide"].update({"@class": "inference.elbo"})),
        "not something a checkpoint may build",
    ),
    loads(
        "file: renamed class",
        rewrite(lambda c: c["guide"].update({"@class": "guides.vade.Gone"})),
        "which this version of the library lacks",
    ),
    loads(
        "file: other arguments",
        rewrite(lambda c: c["guide"].update({"temperature": 1})),
        "does not fit this version",
    ),
    loads(
        "file: wrong argument",
        rewrite(lambda c: c["guide"].update({"num_samples": 0})),
        f"num_samples {COUNT}, got 0",
    ),
    loads(
        "file: wrong rate",
        rewrite(lambda c: c["runner"].update(lr=-1)),
        "lr must be a positive number, got -1",
    ),
    loads(
        "file: unknown precision",
        rewrite(lambda c: c["runner"].update(precision="fp4")),
        "precision must be one of",
    ),
    loads(
        "shape: other sizes",
        rewrite(lambda c: c["guide"]["model"]["facets"]["digit"].update(num_components=5)),
        r"do not fit the guide; they differ in \['model.facets.digit.loc'",
    ),
    Row(
        "SVIRunner.load",
        "unknown: device for a guide of one's own",
        lambda run: SVIRunner.load(run, guide=one_facet(), device="gpu"),
        "device must be such as 'cpu' or 'cuda', got 'gpu'",
    ),
    Row(
        "SVIRunner.load",
        "misfit: guide",
        lambda run: SVIRunner.load(run, guide=vae()),
        "do not fit the guide; they differ",
    ),
    Row(
        "SVIRunner.load",
        "file: not a folder",
        lambda run: SVIRunner.load(run / "config.json"),
        "no checkpoint in",
        FileNotFoundError,
    ),
    Row(
        "SVIRunner.save",
        "file: in the way",
        lambda run: runner().save(run / "config.json"),
        "config.json",
        FileExistsError,
    ),
]


def resumed(run: Path, lr: float = 5e-4, **options: Any) -> None:
    """Go on from the checkpoints of the saved run, which was called in the same way but for
    options.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)  # says why a checkpoint is passed over
        saved_runner(lr).fit(
            X, **{**SIZES, "checkpoints": Checkpoints(run / "checkpoints", resume=True), **options}
        )


SIZES = {"epochs": 1, "batch_size": 3, "progress": False}
STATE, STORED, DIGESTS = (
    f"checkpoints/step-0000000002/{n}"
    for n in ("state.json", "tensors.safetensors", "digests.json")
)


def saved_runner(lr: float = 5e-4) -> SVIRunner:
    g = VaDEGuide(MFCVAE((D,), {"digit": GaussianMixture(3, 2)}, network=SharedMLP((8,))))
    return SVIRunner(g.model, g, lr=lr)


def saved(folder: Path) -> Path:
    """A run's folder: what ``save`` writes, the last checkpoint of the run, and a file of
    somebody's own.
    """
    fitted = saved_runner().fit(X, **SIZES, checkpoints=Checkpoints(folder / "checkpoints"))
    write("notes.txt", "mine")(folder)
    return fitted.save(folder)


def restate(change: Callable[[dict], Any]) -> Callable[[Path], None]:
    """Write another state into the checkpoint, its digest included."""

    def damage(run: Path) -> None:
        state = json.dumps(change(json.loads((run / STATE).read_text()))).encode()
        digests = json.loads((run / DIGESTS).read_text())
        write(STATE, state)(run)
        write(DIGESTS, json.dumps({**digests, "state.json": hashlib.sha256(state).hexdigest()}))(
            run
        )

    return damage


def resumes(
    fault: str, damage: Callable[[Path], Any], message: str = "no checkpoint in .* is whole"
) -> Row:
    return Row("Checkpoints", fault, resumed, message, ValueError, damage)


RESUMING = [
    resumes("file: state cut", cut(STATE, 0.5)),
    resumes("file: tensors cut", cut(STORED, 0.5)),
    resumes("file: digests cut", cut(DIGESTS, 0.5)),
    resumes("file: digests foreign", write(DIGESTS, "[]")),
    resumes("file: digests no text", write(DIGESTS, b"\xff\xfe")),
    resumes("file: state of another format", restate(lambda state: {**state, "format": 99})),
    resumes("file: state foreign", restate(lambda state: [1])),
    resumes("file: no call", restate(without("call"))),
    resumes("file: no progress", restate(without("progress"))),
    resumes("file: no runners", restate(without("runs"))),
    resumes(
        "file: no epoch",
        restate(lambda state: {**state, "progress": without("epoch")(state["progress"])}),
    ),
    resumes(
        "file: no history",
        restate(
            lambda state: {
                **state,
                "runs": [{**state["runs"][0], "run": without("history")(state["runs"][0]["run"])}],
            }
        ),
    ),
    resumes("file: too few runners", restate(having(runs=[]))),
    resumes("file: runners a number", restate(having(runs=3))),
    resumes("missing: tensors", remove(STORED)),
    resumes("missing: digests", remove(DIGESTS)),
    Row(
        "Checkpoints",
        "misfit: sizes",
        partial(resumed, batch_size=4),
        "another run, which differs in sizes",
    ),
    Row(
        "Checkpoints",
        "misfit: data",
        lambda run: saved_runner().fit(
            X[::-1].copy(), **SIZES, checkpoints=Checkpoints(run / "checkpoints", resume=True)
        ),
        "which differs in data",
    ),
    Row("Checkpoints", "misfit: rate", partial(resumed, lr=1e-3), "another run, which differs in"),
    Row(
        "Checkpoints.check",
        "misfit: not resumed",
        lambda run: Checkpoints(run / "checkpoints"),
        "go on from it with resume=True",
    ),
    Row(
        "Checkpoints",
        "file: no folder",
        lambda run: Checkpoints(run / "config.json"),
        "is a file, and a folder for check",
    ),
    *of(
        "Checkpoints",
        ("range: epochs", lambda: Checkpoints("new", epochs=0), f"epochs {COUNT}, got 0"),
        ("range: keep", lambda: Checkpoints("new", keep=0), f"keep {COUNT}, got 0"),
        (
            "range: seconds",
            lambda: Checkpoints("new", seconds=-1),
            "seconds must be a positive number, got -1",
        ),
        (
            "nan: seconds",
            lambda: Checkpoints("new", seconds=NAN),
            "seconds must be a positive number, got nan",
        ),
        (
            "type: seconds",
            lambda: Checkpoints("new", seconds="60"),
            "seconds must be a positive number, got '60'",
        ),
        (
            "type: resume",
            lambda: Checkpoints("new", resume="yes"),
            "resume must be True or False, got str",
        ),
    ),
]


def damaged_idx(run: Path) -> None:
    for split in ("train", "t10k"):
        for what in ("images-idx3", "labels-idx1"):
            write(f"MNIST/raw/{split}-{what}-ubyte", b"\x00\x00\x08")(run)


EXAMPLES = [
    Row(
        "mnist",
        "missing: folder",
        lambda run: data.mnist(run / "nowhere"),
        r"(?s)no MNIST in .*--data-root FOLDER",
        FileNotFoundError,
    ),
    Row(
        "mnist",
        "file: damaged",
        data.mnist,
        "a file in .* is not what it should be",
        damage=damaged_idx,
    ),
    Row(
        "fashion_mnist",
        "missing: folder",
        data.fashion_mnist,
        "no FashionMNIST in",
        FileNotFoundError,
    ),
    Row(
        "svhn",
        "missing: files",
        data.svhn,
        r"no SVHN in .*: train_32x32.mat and test_32x32.mat",
        FileNotFoundError,
    ),
    Row(
        "yale_faces",
        "missing: folder",
        data.yale_faces,
        "no faces in .*CroppedYale",
        FileNotFoundError,
    ),
    Row(
        "yale_faces",
        "file: damaged",
        data.yale_faces,
        r"yaleB01_P00A\+000E\+00.pgm cannot be read",
        damage=write("CroppedYale/yaleB01/yaleB01_P00A+000E+00.pgm", b"P5"),
    ),
    Row(
        "shapes3d",
        "file: foreign",
        partial(data.shapes3d, 1),
        "is not the original 3DShapes, or not whole",
        damage=write("3dshapes.h5", b"no HDF5"),
    ),
    *of(
        "shapes3d",
        (
            "range: configuration",
            lambda: data.shapes3d(3),
            "the configurations 1 and 2 here, got 3",
        ),
    ),
    *of(
        "load",
        (
            "unknown: name",
            lambda: data.load("imagenet"),
            r"name must be one of \('digits', .* got 'imagenet'",
        ),
    ),
    *of(
        "drawn_shapes",
        ("range: rows", lambda: data.drawn_shapes(rows=0), f"rows {COUNT}, got 0"),
        ("huge: rows", lambda: data.drawn_shapes(rows=HUGE), f"rows {MANY}"),
    ),
    *of(
        "some_rows",
        ("range: rows", lambda: data.some_rows(data.digits(), -1), f"rows {COUNT}, got -1"),
    ),
    *of(
        "coloured",
        (
            "range: num_hues",
            lambda: data.coloured(data.digits(), "c", 0),
            f"num_hues {COUNT}, got 0",
        ),
        (
            "shape: large",
            lambda: data.coloured(replace(data.digits(), image_shape=(64, 64)), "c"),
            "larger than 32",
        ),
    ),
    *of(
        "factor_grid",
        (
            "unknown: factor",
            lambda: shapes.factor_grid(colour=1),
            "no value 1 of a factor 'colour'",
        ),
        ("range: value", lambda: shapes.factor_grid(floor=10), "no value 10 of a factor 'floor'"),
    ),
    *of(
        "time_contrastive",
        ("range: rows", lambda: time_contrastive(0), f"per_segment {COUNT}, got 0"),
        ("type: dim", lambda: time_contrastive(5, dim=2.0), f"dim {COUNT}, got 2.0"),
    ),
    *of(
        "check_schedule",
        (
            "misfit: run",
            lambda: check_schedule(WarmUp(10**6), guide().model, data.digits(), 1, 64),
            "warm-up would end at step 1000000, but the run has 23",
        ),
    ),
    *of(
        "quickstart.parse",
        (
            "type: epochs",
            lambda: parsed(quickstart, "--epochs", "ten"),
            "invalid int value: 'ten'",
            SystemExit,
        ),
        (
            "range: epochs",
            lambda: parsed(quickstart, "--epochs", "0"),
            f"epochs {COUNT}, got 0",
            SystemExit,
        ),
        (
            "range: seed",
            lambda: parsed(quickstart, "--seed", "-1"),
            "seed must be .* 0 to .* got -1",
            SystemExit,
        ),
        (
            "huge: seed",
            lambda: parsed(quickstart, "--seed", "9" * 30),
            "seed must be .* 0 to .* got 999",
            SystemExit,
        ),
        (
            "unknown: device",
            lambda: parsed(quickstart, "--device", "gpu"),
            "device must be .* got 'gpu'",
            SystemExit,
        ),
        (
            "unknown: flag",
            lambda: parsed(quickstart, "--epoch", "3"),
            "unrecognized arguments",
            SystemExit,
        ),
    ),
    *of(
        "vade.parse",
        (
            "unknown: data",
            lambda: parsed(vade, "--dataset", "imagenet"),
            "invalid choice: 'imagenet'",
            SystemExit,
        ),
        ("missing: value", lambda: parsed(vade, "--lr"), "--lr: expected one argument", SystemExit),
        (
            "range: rate",
            lambda: parsed(vade, "--lr", "-1"),
            "lr must be a positive number, got -1.0",
            SystemExit,
        ),
        (
            "nan: rate",
            lambda: parsed(vade, "--lr", "nan"),
            "lr must be a positive number, got nan",
            SystemExit,
        ),
        (
            "range: rows",
            lambda: parsed(vade, "--batch-size", "-3"),
            f"batch_size {COUNT}, got -3",
            SystemExit,
        ),
    ),
    *of(
        "mfcvae.parse",
        (
            "type: seed",
            lambda: parsed(mfcvae, "--seed", "1.5"),
            "invalid int value: '1.5'",
            SystemExit,
        ),
        (
            "range: second epochs",
            lambda: parsed(mfcvae, "--epochs", "5", "0"),
            f"epochs {COUNT}, got 0",
            SystemExit,
        ),
        (
            "range: restarts",
            lambda: parsed(mfcvae, "--restarts", "-1"),
            "restarts must be .* at least 0",
            SystemExit,
        ),
        (
            "nan: weight",
            lambda: parsed(mfcvae, "--waiting-weight", "nan"),
            "weight must be .* at least 0",
            SystemExit,
        ),
    ),
    Row(
        "open_run_folder",
        "file: run.json cut",
        lambda run: opened(run, "--resume"),
        "run.json is damaged, or of another program",
        SystemExit,
        write("run.json", '{"data": "dig'),
    ),
    Row(
        "open_run_folder",
        "file: run.json foreign",
        lambda run: opened(run, "--resume"),
        r"run.json is damaged, or of another program \(it lacks 'flags'\)",
        SystemExit,
        write("run.json", '{"data": "digits"}'),
    ),
    Row(
        "open_run_folder",
        "type: run.json's flags",
        lambda run: opened(run, "--resume"),
        "flags must be a JSON object, got int",
        SystemExit,
        write("run.json", '{"data": "digits", "flags": 3, "settings": {}}'),
    ),
    Row(
        "once",
        "file: cut",
        lambda run: once(run / "results.json", {}, dict),
        "results.json is damaged, or of another program",
        SystemExit,
        write("results.json", '{"settings": {'),
    ),
    Row(
        "once",
        "file: foreign",
        lambda run: once(run / "results.json", {}, dict),
        "results.json is damaged, or of another program .it must hold settings, got list",
        SystemExit,
        write("results.json", "[1]"),
    ),
    *of(
        "identifiability.parse",
        (
            "range: rows",
            lambda: parsed(identifiability, "--per-segment", "0"),
            f"per_segment {COUNT}",
            SystemExit,
        ),
    ),
    *of(
        "augmentation.parse",
        (
            "unknown: flag",
            lambda: parsed(augmentation, "--sed", "1"),
            "unrecognized arguments",
            SystemExit,
        ),
    ),
]


def opened(out: Path, *flags: str) -> None:
    open_run_folder(*quickstart.parse([*flags, "--out", str(out)]), data.digits())


def parsed(example: Any, *flags: str) -> None:
    """An example's flags are read; what it says on its way out is in the error."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            example.parse(list(flags))
        except SystemExit as error:
            raise SystemExit(said.getvalue()) from error


# Estimators: as scikit-learn has it, options are looked at by fit. Data for them are random numbers
# of five columns.


def estimated(
    of: Callable[..., Any] = MultiFacetClustering, given: Any = None, **options: Any
) -> Any:
    """What is to be refused; some options are for ``fit``."""
    beside = {name: options.pop(name) for name in ("labels", "groups", "y") if name in options}
    x = table() if given is None else given
    if of is SemiSupervisedClassifier:
        beside.setdefault("y", np.arange(len(x)) % 2)
    return of(**{"epochs": 1, **options}).fit(x, **beside)


def table(value: float = 0.0, rows: int = 30) -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(rows, 5))
    x[3, 2] += value
    return x


@cache
def estimators() -> dict[type, Any]:
    """Fitted, of each kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeadFacetWarning)
        kinds = (MultiFacetClustering, SemiSupervisedClassifier, ContentStyleTransformer)
        return {kind: estimated(kind, random_state=0) for kind in kinds}


def facets(**options: Any) -> Callable[[], Any]:
    return lambda: estimated(MultiFacetClustering, **options)


def classifier(**options: Any) -> Callable[[], Any]:
    return lambda: estimated(SemiSupervisedClassifier, **options)


def grouped(**options: Any) -> Callable[[], Any]:
    return lambda: estimated(ContentStyleTransformer, **options)


def clusterer(estimator: Any = None, **options: Any) -> FacetClustering:
    return FacetClustering(
        MultiFacetClustering(2, epochs=1) if estimator is None else estimator, **options
    )


def sampled(*args: Any, **options: Any) -> Callable[[], Any]:
    return lambda: estimators()[MultiFacetClustering].sample(*args, **options)


# What all estimators say of their common options, of data to fit to, and of data beside those.
COMMON: list[tuple[Any, ...]] = [
    ("range: epochs", {"epochs": 0}, f"epochs {COUNT}, got 0"),
    ("type: epochs", {"epochs": 1.5}, f"epochs {COUNT}, got 1.5"),
    ("range: batch_size", {"batch_size": -3}, f"batch_size {COUNT}, got -3"),
    ("type: batch_size", {"batch_size": "16"}, f"batch_size {COUNT}, got '16'"),
    (
        "range: learning_rate",
        {"learning_rate": 0},
        "learning_rate must be a positive number, got 0",
    ),
    (
        "nan: learning_rate",
        {"learning_rate": NAN},
        "learning_rate must be a positive number, got nan",
    ),
    (
        "type: likelihood",
        {"likelihood": "normal"},
        "likelihood must be a likelihood, such as .* got str",
    ),
    ("type: likelihood class", {"likelihood": Normal}, "got the class Normal itself"),
    ("misfit: likelihood", {"likelihood": Bernoulli()}, "but the Bernoulli likelihood needs"),
    (
        "type: network",
        {"network": (64, 64)},
        "network must be an architecture, such as .* got tuple",
    ),
    (
        "misfit: network",
        {"network": ConvLadder((8, 16))},
        r"needs images \(channels, height, width\)",
    ),
    ("unknown: device", {"device": "gpu"}, "device must be such as 'cpu' or 'cuda', got 'gpu'"),
    ("type: random_state", {"random_state": "0"}, "'0' cannot be used to seed"),
    ("range: random_state", {"random_state": -1}, "Seed must be between 0 and"),
    (
        "empty: no rows",
        {"given": np.zeros((0, 5))},
        r"0 sample\(s\) .* while a minimum of 2 is required",
    ),
    (
        "empty: one row",
        {"given": table(rows=4)[:1]},
        r"1 sample\(s\) .* while a minimum of 2 is required",
    ),
    ("shape: one datum", {"given": table()[0]}, "Expected 2D array, got 1D array instead"),
    ("nan: infinity", {"given": table(INF)}, "Input X contains infinity"),
    (
        "type: strings",
        {"given": np.array([["a", "b"]] * 4)},
        "not compatible with arrays of bytes/strings",
    ),
    ("type: complex", {"given": table().astype(complex)}, "Complex data not supported"),
]
SEEN: list[tuple[str, Any, str]] = [
    (
        "nan: where fitted to none",
        table(NAN),
        r"X has missing entries \(NaN\), but the data that .* fitted to",
    ),
    ("shape: more columns", np.zeros((3, 6)), "X has 6 features, but .* is expecting 5 features"),
    (
        "shape: images",
        np.zeros((3, 5, 2)),
        r"data of shape \(5, 2\), but those fitted to had \(5,\)",
    ),
]


def on_seen_data(kind: type, x: Any) -> Any:
    return estimators()[kind].score(x, np.zeros(len(x), int))


def common(kind: type) -> list[Row]:
    """Rows for one kind of estimator."""
    options = [
        (fault, partial(estimated, kind, **given), message) for fault, given, message in COMMON
    ]
    seen = [(fault, partial(on_seen_data, kind, x), message) for fault, x, message in SEEN]
    return of(kind.__name__, *options, *[(f"{fault}, to score", *rest) for fault, *rest in seen])


ESTIMATORS = [
    *common(MultiFacetClustering),
    *common(SemiSupervisedClassifier),
    *common(ContentStyleTransformer),
    *of(
        "MultiFacetClustering.fit",
        ("range: facets 0", facets(facets=0), f"facets {COUNT}, got 0"),
        ("type: facets", facets(facets="style"), f"facets {COUNT}, got 'style'"),
        ("empty: facets", facets(facets=[]), "facets must be a number, or names that differ"),
        (
            "misfit: names twice",
            facets(facets=["a", "a"]),
            r"names that differ, .* got \['a', 'a'\]",
        ),
        ("huge: facets", facets(facets=HUGE), f"facets must be at most 100000000, got {HUGE}"),
        ("range: n_clusters", facets(n_clusters=0), f"n_clusters of 'facet_0' {COUNT}, got 0"),
        (
            "type: n_clusters",
            facets(n_clusters=[2, 2.5]),
            f"n_clusters of 'facet_1' {COUNT}, got 2.5",
        ),
        ("misfit: n_clusters", facets(n_clusters=[2, 2, 2]), "one for each of the 2 facets, got"),
        ("huge: n_clusters", facets(n_clusters=31), "is to have 31 clusters, but of 30 data"),
        ("range: n_latents", facets(n_latents=[3, -1]), f"n_latents of 'facet_1' {COUNT}, got -1"),
        ("misfit: n_latents", facets(n_latents=[3]), "one for each of the 2 facets, got"),
        ("huge: n_latents", facets(n_latents=HUGE), f"n_latents of 'facet_0' {MANY}"),
        ("misfit: rungs", facets(facets=3, network=MLPLadder((8, 9))), "3 facets"),
        ("shape: labels", facets(facets=1, labels=[0, 1]), "labels of 'facet_0' has shape"),
        (
            "type: labels",
            facets(facets=1, labels=[0.5] * 30),
            "labels of 'facet_0' must hold integers",
        ),
        (
            "range: labels",
            facets(facets=1, labels=[-2] * 30),
            "labels of 'facet_0' has classes from -2 to -2",
        ),
        (
            "huge: labels",
            facets(facets=1, labels=[10**8] * 30),
            "is to have 100000001 clusters, but of 30 data",
        ),
        (
            "missing: facet of labels",
            facets(labels=[0] * 30),
            "there are 2 facets: give labels by name, such as",
        ),
        (
            "unknown: facet of labels",
            facets(labels={"a": [0] * 30}),
            "given for 'a', but the facets are",
        ),
        (
            "misfit: labels",
            facets(n_clusters=2, labels={"facet_1": [0, 1, 2] * 10}),
            "'facet_1' has labels up to 2, but n_clusters=2: give 3",
        ),
    ),
    *of(
        "MultiFacetClustering.facet",
        (
            "unknown: name",
            lambda: estimators()[MultiFacetClustering].facet("digit"),
            "unknown facet 'digit'",
        ),
        (
            "range: number",
            lambda: estimators()[MultiFacetClustering].facet(2),
            "unknown facet 2: there are",
        ),
        (
            "type: number",
            lambda: estimators()[MultiFacetClustering].facet(True),
            "unknown facet True",
        ),
        (
            "missing: fit",
            lambda: MultiFacetClustering().facet(0),
            "is not fitted yet",
            NotFittedError,
        ),
    ),
    *of(
        "MultiFacetClustering.sample",
        ("range: n_samples", sampled(0), f"n_samples {COUNT}, got 0"),
        ("huge: n_samples", sampled(HUGE), f"n_samples {MANY}"),
        ("missing: cluster", sampled(2, facet=0), "give facet and cluster together, or neither"),
        ("missing: facet", sampled(2, cluster=0), "give facet and cluster together, or neither"),
        ("unknown: facet", sampled(2, facet="digit", cluster=0), "unknown facet 'digit'"),
        ("range: cluster", sampled(2, facet=0, cluster=-1), "has the clusters 0 to .* got -1"),
        ("type: cluster", sampled(2, facet=0, cluster=0.0), "has the clusters 0 to .* got 0.0"),
    ),
    *of(
        "FacetClustering.fit",
        (
            "type: estimator",
            lambda: clusterer(Normal(0.3)).fit(table()),
            "must be a MultiFacetClustering, got Normal",
        ),
        (
            "unknown: facet",
            lambda: clusterer(facet="digit").fit(table()),
            "unknown facet 'digit': there are",
        ),
        ("range: facet", lambda: clusterer(facet=-3).fit(table()), "unknown facet -3: there are"),
        (
            "type: random_state",
            lambda: clusterer(random_state="0").fit(table()),
            "'0' cannot be used to seed",
        ),
        (
            "missing: facet of labels",
            lambda: clusterer().fit(table(), labels=[0] * 30),
            "give labels by name",
        ),
        ("missing: fit", lambda: clusterer().predict(table()), "is not fitted yet", NotFittedError),
    ),
    *of(
        "SemiSupervisedClassifier.fit",
        (
            "misfit: one class",
            classifier(y=np.zeros(30, int)),
            "y has 1 class, and two at least are needed",
        ),
        (
            "misfit: no class",
            classifier(y=np.full(30, -1)),
            "y has 0 classes, and two at least are needed",
        ),
        ("type: y", classifier(y=np.linspace(0, 1, 30)), "Unknown label type: continuous"),
        (
            "type: '-1'",
            classifier(y=["a", "b", -1] * 10),
            "y has the string '-1': give strings and the number -1",
        ),
        ("shape: y", classifier(y=[0, 1]), "inconsistent numbers of samples"),
        ("nan: y", classifier(y=[0, 1, NAN] * 10), "Input y contains NaN"),
        ("missing: y", classifier(y=None), "requires y to be passed, but the target y is None"),
        ("range: class_dim", classifier(class_dim=0), f"class_dim {COUNT}, got 0"),
        ("type: shared_dim", classifier(shared_dim=2.0), f"shared_dim {COUNT}, got 2.0"),
        ("huge: shared_dim", classifier(shared_dim=HUGE), f"shared_dim {MANY}"),
        (
            "range: label_weight",
            classifier(label_weight=-1),
            "label_weight must be a number of at least 0, got -1",
        ),
    ),
    *of(
        "ContentStyleTransformer.fit",
        ("shape: groups", grouped(groups=[0, 1]), "group has shape"),
        ("type: groups", grouped(groups=["a"] * 30), "group must hold numbers"),
        ("nan: groups", grouped(groups=[NAN] * 30), "group must hold integers"),
        ("range: content_dim", grouped(content_dim=0), f"content_dim {COUNT}, got 0"),
        ("type: style_dim", grouped(style_dim="2"), f"style_dim {COUNT}, got '2'"),
        ("huge: style_dim", grouped(style_dim=HUGE), f"style_dim {MANY}"),
        (
            "shape: groups to transform",
            lambda: estimators()[ContentStyleTransformer].transform(table(), groups=[0]),
            "group has shape",
        ),
    ),
]


ROWS: list[Row] = [
    *PRIORS,
    *LIKELIHOODS,
    *NETWORKS,
    *MODELS,
    *GUIDES,
    *SCHEDULES,
    *OBJECTIVES,
    *RUNS,
    *SELECTION,
    *METRICS,
    *DIAGNOSTICS,
    *FIGURES,
    *LOADING,
    *RESUMING,
    *EXAMPLES,
    *ESTIMATORS,
]
