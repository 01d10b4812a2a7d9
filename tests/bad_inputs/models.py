"""Priors, likelihoods, networks and models."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyro
import torch
from pyro.distributions import Delta

from guides import LadderGuide, VaDEGuide
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
    Categorical,
    ClassBlocks,
    Codebook,
    Columns,
    ConditionalNormal,
    ContinuousBernoulli,
    ContinuousIVAE,
    ConvLadder,
    ConvNet,
    DirichletMultinomial,
    DirichletWeights,
    DiscretizedLogistic,
    FactorFill,
    Flat,
    GaussianMixture,
    GMMFlow,
    Incomplete,
    LogNormal,
    MLPLadder,
    Multinomial,
    NegativeBinomial,
    NeighborMixture,
    Normal,
    Ordinal,
    Poisson,
    ResNet,
    ScaleSites,
    SharedMLP,
    StandardNormal,
    StridedConvNet,
    StudentT,
    VaDE,
    VampPrior,
)
from ppl_models.given.sparse import sparse_rows
from tests.bad_inputs.shared import (
    COUNT,
    HUGE,
    INF,
    MANY,
    NAN,
    D,
    X,
    Z,
    codes,
    cvae,
    facet,
    grid,
    guide,
    holed,
    nvae,
)


def misspelled() -> None:
    with ScaleSites({"z_digti": 0.5}):
        pyro.sample("z_digit", Delta(torch.zeros(())))


def one_for_two() -> Columns:
    normal = Normal()
    return Columns({"a": normal, "b": normal})


def two_columns() -> Columns:
    return Columns({"age": Normal(), "city": Categorical(3)})


def mixture_of(*args: Any, **options: Any) -> Any:
    return lambda: GaussianMixture(3, 2, *args, **options)


PRIORS = {
    "GaussianMixture": [
        ("range: K 0", lambda: GaussianMixture(0, 2), f"num_components {COUNT}, got 0"),
        ("type: K 2.0", lambda: GaussianMixture(2.0, 2), f"num_components {COUNT}, got 2.0"),
        ("type: K True", lambda: GaussianMixture(True, 2), f"num_components {COUNT}, got True"),
        ("huge: K", lambda: GaussianMixture(HUGE, 2), f"num_components {MANY}"),
        ("range: dim 0", lambda: GaussianMixture(3, 0), f"dim {COUNT}, got 0"),
        ("unknown: covariance", mixture_of(covariance="tied"), r"\('diag', 'full'\)"),
        ("type: covariance", mixture_of(["full"]), "covariance must be one of"),
        ("unknown: weights", mixture_of(weights="fixed"), "weights must be one of"),
        ("range: scale", mixture_of(scale=-1.0), r"within \[0.0002, 1e\+10\]"),
        ("nan: scale", mixture_of(scale=NAN), r"1e\+10\], got nan"),
        ("type: scale", mixture_of(scale="0.1"), r"1e\+10\], got '0.1'"),
        ("type: dim array", lambda: GaussianMixture(3, np.array([2, 3])), f"dim {COUNT}, got arr"),
        (
            "misfit: covariances",
            lambda: GaussianMixture(2, 2, "full").place(
                covariances=torch.tensor([[1.0, 0.9], [0.5, 1.0]]).expand(2, 2, 2)
            ),
            "covariances must be symmetric",
        ),
    ],
    "NeighborMixture": [
        ("type: mixture", lambda: NeighborMixture(StandardNormal(2)), r"mixture must be such as"),
        ("range: strength", lambda: neighborly(-1.0), "at least 0, got -1.0"),
        ("nan: strength", lambda: neighborly(NAN), "at least 0, got nan"),
        ("type: strength", lambda: neighborly("1"), "at least 0, got '1'"),
    ],
    "GaussianMixture.place": [
        ("shape: loc", lambda: mixture().place(torch.zeros(2)), r"loc has shape \[2\], but"),
        ("nan: loc", lambda: mixture().place(torch.full((3, 2), NAN)), "loc holds NaN"),
        ("type: loc", lambda: mixture().place([[0.0, 0.0]] * 3), r"loc must be a tensor \[3"),
        (
            "range: covariances",
            lambda: mixture().place(None, -torch.eye(2).repeat(3, 1, 1)),
            "covariances must be positive definite",
        ),
        (
            "range: weights",
            lambda: mixture().place(weights=torch.tensor([0.5, 1, -0.5])),
            r"cannot be negative, got \[0.5, 1.0, -0.5\]",
        ),
    ],
    "Prior.sample": [
        ("range: n 0", lambda: mixture().sample(0), f"n {COUNT}, got 0"),
        ("range: cluster", lambda: mixture().sample(2, 3), "has the components 0 to 2, got"),
        (
            "range: temperature",
            lambda: mixture().sample(2, temperature=-1),
            "must be at least 0, got -1",
        ),
    ],
    "Prior.log_prob": [
        (
            "shape: z",
            lambda: mixture().log_prob(np.zeros((5, 1))),
            r"z has shape \[5, 1\], .* \[..., 2\]",
        )
    ],
    "Mixture.set_weights": [
        (
            "shape: weights",
            lambda: mixture().set_weights(torch.ones(2)),
            r"\[2\], but \[3\] is needed",
        )
    ],
    "StandardNormal": [("range: dim 0", lambda: StandardNormal(0), f"dim {COUNT}, got 0")],
    "StandardNormal.log_joint": [
        ("shape: z", lambda: StandardNormal(2).log_joint(np.zeros((5, 3))), r"\[5, 3\], but")
    ],
    "VampPrior": [
        ("range: K 0", lambda: VampPrior(0, 2, (D,)), f"num_components {COUNT}, got 0"),
        ("type: x_shape", lambda: VampPrior(2, 2, D), "x_shape is the shape of one sample, .* got"),
        ("range: support", lambda: VampPrior(2, 2, (D,), support=(1, 0)), r"with low < high, got"),
        ("missing: a guide", lambda: VampPrior(2, 2, (D,)).sample(1), "build one first, such as"),
    ],
    "VampPrior.bind": [
        (
            "shape: other data",
            lambda: VaDEGuide(facet(VampPrior(2, 2, (5,)))),
            r"built for data of shape \(5,\)",
        )
    ],
    "Flat": [("range: dim 0", lambda: Flat(0), f"dim {COUNT}, got 0")],
    "Flat.sample": [("misfit: no draws", lambda: Flat(2).sample(1), "a flat prior has no draws")],
    "Codebook": [
        ("range: places 0", lambda: Codebook(3, 2, 0), f"places {COUNT}, got 0"),
        ("type: code_dim", lambda: Codebook(3, 1.5, 4), f"code_dim {COUNT}, got 1.5"),
    ],
    "Codebook.sample": [
        ("range: code", lambda: Codebook(3, 2, 4).sample(1, 3), "components 0 to 2, got cluster=3")
    ],
    "ClassBlocks": [("range: block_dim", lambda: ClassBlocks(3, 0), f"block_dim {COUNT}, got 0")],
    "ConditionalNormal": [
        ("range: width", lambda: ConditionalNormal(2, 2, width=0), f"width {COUNT}, got 0"),
        ("type: label_dim", lambda: ConditionalNormal("u", 2), f"label_dim {COUNT}, got 'u'"),
    ],
    "ConditionalNormal.latent": [
        ("missing: u", lambda: ConditionalNormal(2, 2).latent(), "needs it: latent")
    ],
    "ConditionalNormal.log_joint": [
        ("misfit: no u", lambda: ConditionalNormal(2, 2).log_joint(Z), "z has no density under")
    ],
    "DirichletWeights": [
        ("range: num_data", lambda: DirichletWeights(0), f"num_data {COUNT}, got 0"),
        ("range: alpha", lambda: DirichletWeights(9, -1), "concentration must be a positive"),
    ],
}


@cache
def mixture() -> GaussianMixture:
    return GaussianMixture(3, 2)


def neighborly(strength: Any = 1.0) -> NeighborMixture:
    return NeighborMixture(mixture(), strength)


def plain(likelihood: Any = None, network: Any = None, x_shape: Any = (D,)) -> MFCVAE:
    return MFCVAE(x_shape, {"z": StandardNormal(2)}, likelihood, network)


LIKELIHOODS = {
    "Normal": [
        ("range: scale 0", lambda: Normal(0.0), "standard deviation and must be positive, got 0.0"),
        ("nan: scale", lambda: Normal(NAN), "must be positive, got nan"),
        ("type: scale", lambda: Normal("0.3"), "must be positive, got '0.3'"),
        ("empty: scale", lambda: Normal([]), r"must be positive, got \[\]"),
        ("range: a scale", lambda: Normal([0.3, 0.0]), r"must be positive, got \[0.3, 0.0\]"),
        ("shape: scale", lambda: VAE((3,), 2, Normal([0.3, 0.2])), r"scale has the shape \(2,\)"),
        ("type: learned", lambda: Normal(0.3, learned="yes"), "learned must be True or False, got"),
        ("nan: loc", lambda: Normal(loc=NAN), "loc is where the output is 0 and must be finite"),
        ("range: unit", lambda: Normal(unit=0.0), "unit must be a positive number, got 0.0"),
        ("misfit: bounded", lambda: Normal(0.3, bounded=True, loc=1.0), "a bounded mean lies in"),
    ],
    "StudentT": [
        ("range: df", lambda: StudentT(1.0), "df must be a number above 1, .* got 1.0"),
        ("range: scale", lambda: StudentT(scale=-1.0), "must be positive, got -1.0"),
    ],
    "LogNormal": [
        ("range: scale", lambda: LogNormal(0.0), "must be positive, got 0.0"),
        ("huge: loc", lambda: LogNormal(loc=INF), "must be finite, got inf"),
        ("range: x", lambda: LogNormal().check(torch.zeros(3)), "LogNormal needs positive ones"),
    ],
    "Poisson": [
        ("type: zero_inflated", lambda: Poisson(1), "zero_inflated must be True or False, got int"),
        ("range: unit", lambda: Poisson(unit=-1.0), "positive number, got -1.0"),
        (
            "range: negative count",
            lambda: Poisson().check(torch.tensor([3.0, -2.0])),
            "values such as -2, but Poisson needs counts",
        ),
    ],
    "NegativeBinomial": [
        ("type: zero_inflated", lambda: NegativeBinomial("yes"), "zero_inflated must be True or"),
        ("nan: loc", lambda: NegativeBinomial(loc=NAN), "must be finite, got nan"),
        (
            "range: broken count",
            lambda: NegativeBinomial().check(torch.tensor([0.5])),
            "values such as 0.5, but NegativeBinomial needs counts",
        ),
    ],
    "Multinomial": [
        ("range: batches", lambda: Multinomial(num_batches=0), f"num_batches {COUNT}, got 0"),
        ("type: columns", lambda: Multinomial(num_columns=2.5), f"num_columns {COUNT}, got 2.5"),
        ("nan: total", lambda: Multinomial(total=NAN), "total must be a positive number, got nan"),
        (
            "missing: columns",
            lambda: plain(Multinomial(num_batches=2)),
            "needs num_columns= for its offsets of 2 batches: give num_columns=5",
        ),
        (
            "shape: columns",
            lambda: plain(Multinomial(num_columns=5)),
            r"x_shape is \(6,\), but Multinomial has 5 columns: give x_shape=\(5,\)",
        ),
        (
            "shape: images",
            lambda: plain(Multinomial(), x_shape=(1, 4, 4)),
            r"Multinomial describes rows of columns, and x_shape is \(1, 4, 4\)",
        ),
        (
            "range: negative count",
            lambda: Multinomial().check(torch.tensor([[3.0, -2.0]])),
            "values such as -2, but Multinomial needs counts",
        ),
    ],
    "DirichletMultinomial": [
        (
            "range: concentration",
            lambda: DirichletMultinomial(concentration=0.0),
            "concentration must be a positive number, got 0.0",
        ),
        (
            "range: broken count",
            lambda: DirichletMultinomial().check(torch.tensor([[0.5]])),
            "values such as 0.5, but DirichletMultinomial needs counts",
        ),
    ],
    "Multinomial.output_shape": [
        (
            "shape: no column",
            lambda: Multinomial(2, 3).output_shape((1,)),
            r"Multinomial describes rows of columns, and x_shape is \(1,\)",
        )
    ],
    "Multinomial.check": [
        ("type: broken count", lambda: Multinomial().check(torch.tensor([0.5])), "needs counts")
    ],
    "Multinomial.check_sparse": [
        (
            "range: negative count",
            lambda: Multinomial().check_sparse(sparse_rows(torch.tensor([[-1.0]]).to_sparse_coo())),
            "values such as -1, but Multinomial needs counts",
        )
    ],
    "Likelihood.check_sparse": [
        (
            "range: negative count",
            lambda: Poisson().check_sparse(sparse_rows(torch.tensor([[-1.0]]).to_sparse_coo())),
            "values such as -1, but Poisson needs counts",
        )
    ],
    "SparseRows": [
        (
            "shape: three axes",
            lambda: sparse_rows(torch.zeros(2, 3, 4).to_sparse_coo()),
            r"x is sparse and has shape \[2, 3, 4\], but \[N, D\] is needed",
        )
    ],
    "Categorical": [
        ("range: one", lambda: Categorical(1), "num_categories must .* of at least 2, got 1"),
        ("type: number", lambda: Categorical(2.0), "num_categories must be an integer .* got 2.0"),
        (
            "missing: number",
            lambda: plain(Categorical()),
            r"Categorical\(\) does not know its categories",
        ),
        (
            "range: code",
            lambda: Categorical(3).check(torch.tensor([3.0])),
            r"values such as 3, but Categorical\(3\) needs the codes 0 to 2",
        ),
    ],
    "Ordinal": [
        ("range: one", lambda: Ordinal(1), "num_categories must .* of at least 2, got 1"),
        ("type: names", lambda: Ordinal(["low", "high"]), "num_categories must be an integer"),
        ("range: code", lambda: Ordinal(3).check(torch.tensor([0.5])), r"values such as 0.5, but"),
    ],
    "Columns": [
        ("empty: columns", lambda: Columns({}), "columns is empty: give at least one"),
        ("type: columns", lambda: Columns([Normal()]), "columns must be likelihoods by name"),
        ("type: name", lambda: Columns({1: Normal()}), "names of columns must be strings"),
        ("type: likelihood", lambda: Columns({"age": "normal"}), "column 'age' needs a likelihood"),
        ("misfit: rows", lambda: Columns({"n": Multinomial()}), "needs a likelihood of single"),
        (
            "misfit: likelihood",
            lambda: Columns({"age": Incomplete(Normal())}),
            "column 'age' needs a likelihood of single entries",
        ),
        ("misfit: one for two", one_for_two, r"\['a', 'b'\] share a likelihood object"),
    ],
    "Columns.output_shape": [
        (
            "misfit: x_shape",
            lambda: plain(two_columns()),
            r"x_shape is \(6,\), but there are 2 columns, \['age', 'city'\]: give x_shape=\(2,\)",
        ),
        (
            "missing: categories",
            lambda: Columns({"city": Categorical()}).output_shape((1,)),
            r"column 'city': Categorical\(\) does not know its categories",
        ),
    ],
    "Columns.check": [
        (
            "range: code",
            lambda: two_columns().check(torch.tensor([[1.0, 2.0], [NAN, 5.0]])),
            r"column 'city': x has values such as 5, but Categorical\(3\)",
        )
    ],
    "Bernoulli": [
        ("range: threshold", lambda: Bernoulli(1.0), r"threshold must be within \[0, 1\), got 1.0"),
        ("nan: threshold", lambda: Bernoulli(NAN), r"threshold must be within \[0, 1\), got nan"),
        ("type: threshold", lambda: Bernoulli("0.5"), r"threshold must be within \[0, 1\), got"),
    ],
    "ContinuousBernoulli": [
        (
            "range: x",
            lambda: embed(ContinuousBernoulli(), holed(2.0)),
            "ContinuousBernoulli .* needs",
        )
    ],
    "FactorFill": [
        ("shape: no matrix", lambda: FactorFill([1.0], [0.0], [1.0]), "finite, and noise above 0"),
        ("shape: loc", lambda: FactorFill([[1.0, 2.0]], [0.0], [1.0, 1.0]), "got the shapes"),
        ("range: noise", lambda: FactorFill([[1.0]], [0.0], [0.0]), "and noise above 0"),
        ("nan: weights", lambda: FactorFill([[NAN]], [0.0], [1.0]), "must be finite"),
    ],
    "Incomplete.features_shape": [
        (
            "misfit: data",
            lambda: Incomplete(Normal(0.3), FactorFill([[1.0]], [0.0], [1.0])).features_shape((6,)),
            "fill is of rows of 1 numbers, but x has the shape",
        )
    ],
    "Incomplete": [
        ("type: no likelihood", lambda: Incomplete(0.3), "likelihood must be a likelihood, such"),
        ("misfit: twice", lambda: Incomplete(Incomplete(Normal(0.3))), "must be of single entries"),
        (
            "misfit: table",
            lambda: Incomplete(Columns({"age": Normal()})),
            "must be of single entries .* which takes missing entries itself",
        ),
        ("range: fill", lambda: Incomplete(Bernoulli(), 2), "fill must be a number that Bernoulli"),
        ("nan: fill", lambda: Incomplete(Normal(0.3), NAN), "fill must be a number that Normal"),
        (
            "nan: infinity in x",
            lambda: embed(Incomplete(Bernoulli()), holed(INF)),
            "1 values that are infinite",
        ),
    ],
    "DiscretizedLogistic": [
        ("range: scale", lambda: DiscretizedLogistic(-1), "scale must be a positive number, got"),
        ("misfit: x", lambda: embed(DiscretizedLogistic(), X), "not multiples of 1/255"),
    ],
    "Likelihood.check": [
        ("range: x", lambda: Bernoulli().check(torch.tensor([2.0])), r"needs \[0.0, 1.0\]")
    ],
}


def embed(likelihood: Any, x: Any) -> Any:
    return VaDEGuide(plain(likelihood, SharedMLP((8,)))).embed(x)


NETWORKS = {
    "MLPLadder": [
        ("range: width 0", lambda: MLPLadder((8, 0)), f"each of widths {COUNT}, got 0"),
        ("type: width", lambda: MLPLadder((8.5,)), f"each of widths {COUNT}, got 8.5"),
        ("unknown: activation", lambda: MLPLadder(activation="swish"), "activation must be one of"),
        ("unknown: merge", lambda: MLPLadder(merge="add"), "merge must be one of"),
        ("range: layers", lambda: MLPLadder(layers_after_merge=-1), "an integer from 0 to 100"),
        ("type: rungs", lambda: MLPLadder((8, 9), rungs=1), "rungs are levels of the ladder"),
        ("range: rungs", lambda: MLPLadder((8, 9), rungs=[2]), r"rungs are levels .* of 0 to 1"),
        ("misfit: order", lambda: MLPLadder((8, 9), rungs=[1, 0]), r"from shallow to deep: .* got"),
        ("misfit: facets", lambda: plain(network=MLPLadder((8, 9))), "the ladder has 2 rungs"),
    ],
    "Architecture.encoder": [
        ("misfit: no levels", lambda: MLP().encoder((6,), [4], [3]), "MLP has no levels that"),
        ("misfit: no ladder", lambda: SharedMLP((4,)).encoder((6,), (4,), (3,)), "use a ladder"),
        (
            "misfit: components",
            lambda: MLPLadder((8, 9)).encoder((D,), (0, 4), (0, 3)),
            "all with heads",
        ),
    ],
    "SharedMLP": [
        ("empty: widths", lambda: SharedMLP(()), "widths must be a sequence of integers, such as"),
        ("unknown: init", lambda: SharedMLP(init="zeros"), "init must be one of"),
        ("type: activation", lambda: SharedMLP(activation=torch.nn.ReLU), "activation must be one"),
        ("misfit: no ladder", lambda: LadderGuide(facet()), r"MLPLadder\(rungs=\[1\]\) for one"),
    ],
    "MLP": [
        ("range: dropout", lambda: MLP(dropout=1.0), r"within \[0, 1\), got 1.0"),
        ("nan: dropout", lambda: MLP(dropout=NAN), r"within \[0, 1\), got nan"),
        ("type: dropout", lambda: MLP(dropout="some"), r"within \[0, 1\), got 'some'"),
        ("type: skip", lambda: MLP(skip="no"), "skip must be True or False, got str"),
    ],
    "ConvLadder": [
        ("type: widths", lambda: ConvLadder(64), "widths must be a sequence of integers, .* got"),
        ("shape: no images", lambda: VAE((D,), 2, network=ConvLadder((4,))), "needs? images"),
        ("shape: odd", lambda: ConvLadder((4, 5)).encoder((1, 14, 16), (4, 4)), "divide by 4"),
        ("shape: small", lambda: ConvLadder((4, 5, 6)).decoder((1, 8, 8), (2,) * 3), "leave 2 or"),
    ],
    "ConvGrid": [
        ("shape: no images", lambda: Autoencoder((D,), 2), "needs images .* divide by 4, got"),
        ("misfit: facets", lambda: plain(network=grid(), x_shape=(1, 8, 8)), "has 4 places"),
    ],
    "ConvNet": [
        (
            "shape: odd image",
            lambda: VAE((1, 7, 8), 2, network=ConvNet()),
            "height and width divide by 4",
        ),
        ("range: hidden", lambda: ConvNet(hidden=0), f"hidden {COUNT}, got 0"),
    ],
    "StridedConvNet": [
        ("range: hidden", lambda: StridedConvNet(hidden=-1), f"hidden {COUNT}, got -1"),
        ("shape: small", lambda: VAE((1, 8, 8), 2, network=StridedConvNet()), "divide by 16"),
    ],
    "ResNet": [
        ("misfit: one width", lambda: ResNet((16,)), "ResNet needs a first width and one for each"),
        ("shape: no images", lambda: VAE((D,), 2, network=ResNet((4, 5))), r"got x_shape=\(6,\)"),
    ],
    "AutoregressiveFlow": [
        ("range: num_layers", lambda: AutoregressiveFlow(num_layers=0), f"num_layers {COUNT}, got"),
        (
            "misfit: VAE",
            lambda: VaDEGuide(VAE((D,), D, network=AutoregressiveFlow((8,), num_layers=1))),
            "use FlowGuide with GMMFlow",
        ),
    ],
}


def generated(*args: Any, **options: Any) -> Any:
    return lambda: guide().model.generate(*args, **options)


def decoded(**latents: Any) -> Any:
    return guide().model.decode({"digit": Z, **latents})


MODELS = {
    "MFCVAE": [
        (
            "misfit: a prior of VQVAE",
            lambda: MFCVAE((6,), {"a": Codebook(4, 3, 1)}),
            "'a': Codebook is the prior of VQVAE alone: MFCVAE takes a mixture",
        ),
        (
            "misfit: a prior given u",
            lambda: MFCVAE((6,), {"a": ConditionalNormal(3, 3)}),
            "ConditionalNormal is the prior of ContinuousIVAE alone",
        ),
        ("empty: x_shape", lambda: plain(x_shape=()), "x_shape is the shape of"),
        ("type: x_shape", lambda: plain(x_shape=784), "shape of one sample, .* got 784"),
        ("huge: x_shape", lambda: plain(x_shape=(HUGE,)), "integers from 1 to 100000000"),
        ("empty: facets", lambda: MFCVAE((D,), {}), "facets is empty: give at least one"),
        ("type: facets", lambda: MFCVAE((D,), [StandardNormal(2)]), "facets must be priors"),
        ("range: name", lambda: facet(name="my digit"), "facet names must be valid Python names"),
        ("type: name", lambda: facet(name=1), "facet names must be valid Python names, got 1"),
        ("misfit: name", lambda: facet(name="keys"), "torch uses it itself"),
        ("type: prior", lambda: facet(prior=(10, 5)), "facet 'digit' needs a prior, such as"),
        (
            "misfit: one prior",
            lambda: MFCVAE((D,), dict.fromkeys("ab", StandardNormal(2))),
            "share a prior object",
        ),
        ("type: a class", lambda: plain(Bernoulli), "got the class Bernoulli itself"),
        (
            "type: network",
            lambda: plain(network=(500, 2000)),
            "network must be an architecture, .* got tuple",
        ),
    ],
    "FacetModel.log_joint": [
        (
            "missing: facet",
            lambda: guide().model.log_joint(X, {"digit": torch.zeros(1, 2)}),
            r"each of the facets \['style', 'digit'\], got \['digit'\]",
        ),
        (
            "missing: label",
            lambda: IVAE((6,), 3, 2).log_joint(X, {"label": torch.zeros(len(X), 2)}),
            "IVAE needs label= besides x and its latents",
        ),
    ],
    "FacetModel.decode": [
        ("missing: facet", lambda: decoded(), r"each of the facets \['style', 'digit'\], got"),
        ("shape: z", lambda: decoded(style=Z[:, :1]), r"facet 'style' has shape \[8, 1\], not"),
        ("type: text", lambda: decoded(style="a"), "must hold numbers"),
        ("missing: label", lambda: cvae().model.decode({"z": Z}), "CVAE.decode needs label="),
        (
            "range: label",
            lambda: cvae().model.decode({"z": Z}, label=torch.full((8,), 3)),
            "label must be within 0 to 2",
        ),
    ],
    "FacetModel.prior": [
        ("unknown: facet", lambda: guide().model.prior("hue"), r"this model has \['style'")
    ],
    "FacetModel.generate": [
        ("unknown: facet", generated(1, "color", 0), "unknown facet 'color'"),
        ("range: cluster", generated(1, "digit", 4), "clusters 0 to 3, got 4"),
        ("type: cluster", generated(1, "digit", "2"), "0 to 3, got '2'"),
        ("missing: cluster", generated(1, facet="digit"), "or neither; got facet="),
        ("range: n", generated(0), f"n {COUNT}, got 0"),
        ("nan: temperature", generated(1, temperature=NAN), "least 0, got nan"),
        ("unknown: given", generated(1, label=[1]), r"got \['label'\]"),
        ("misfit: label", lambda: nvae().model.generate(1, "class", 0, label=[2]), "both choose"),
    ],
    "VaDE": [
        ("type: prior", lambda: VaDE((D,), StandardNormal(2)), "prior must be a mixture, such as")
    ],
    "VLAC": [
        ("shape: layers", lambda: VLAC((D,), [2, 3], [1]), r"must be equally many, got \(2, 3\)"),
        ("type: numbers", lambda: VLAC((D,), 3, 2), r"must be a sequence .* such as \(1, 5, 50"),
    ],
    "VLAE": [
        ("type: dims", lambda: VLAE((D,), 3), "dims must be a sequence of integers, .* got 3")
    ],
    "GMDGM": [("range: dim", lambda: GMDGM((D,), 3, 0), f"each of dims {COUNT}, got 0")],
    "VAE": [("range: dim", lambda: VAE((D,), 0), f"each of dims {COUNT}, got 0")],
    "IVAE": [("range: num_labels", lambda: IVAE((D,), 0, 2), f"num_labels {COUNT}, got 0")],
    "ContinuousIVAE": [
        ("range: label_dim", lambda: ContinuousIVAE((D,), 0, 2), f"label_dim {COUNT}, got 0"),
        ("type: dim", lambda: ContinuousIVAE((D,), 3, None), f"dim {COUNT}, got None"),
    ],
    "CVAE": [("range: num_classes", lambda: CVAE((D,), -1, 2), f"num_classes {COUNT}, got -1")],
    "NVAE": [
        ("range: shared_dim", lambda: NVAE((D,), 3, 2, 0), f"shared_dim {COUNT}, got 0"),
        ("range: alpha", lambda: NVAE((D,), 3, 2, 2, concentration=0), "concentration must be"),
        ("type: alpha", lambda: NVAE((D,), 3, 2, 2, concentration="1"), "concentration must be"),
    ],
    "MLVAE": [
        ("range: content_dim", lambda: MLVAE((D,), 0, 2), f"content_dim {COUNT}, got 0"),
        ("type: style_dim", lambda: MLVAE((D,), 2, "2"), f"style_dim {COUNT}, got '2'"),
    ],
    "VQVAE": [
        ("misfit: guide", lambda: VaDEGuide(codes().model), "draws no codes, as VQVAE needs them"),
        ("range: num_codes", lambda: VQVAE((1, 8, 8), 0, 3), f"num_codes {COUNT}, got 0"),
        ("type: x_shape", lambda: VQVAE(64, 5, 3), "shape of one sample, .* got 64"),
        (
            "type: network",
            lambda: VQVAE((1, 8, 8), 5, 3, network=MLP()),
            "network must be a ConvGrid, .* got MLP",
        ),
    ],
    "Autoencoder": [
        ("type: code_dim", lambda: Autoencoder((1, 8, 8), "3"), f"code_dim {COUNT}, got '3'")
    ],
    "ScaleSites": [
        ("type: scales", lambda: ScaleSites(0.5), "scales must be factors by site, such as"),
        ("unknown: site", misspelled, "no program had the site 'z_digti' to scale: they have"),
    ],
    "GMMFlow": [
        ("type: prior", lambda: GMMFlow((D,), StandardNormal(D)), "prior must be a mixture, such"),
        (
            "misfit: VampPrior",
            lambda: GMMFlow((D,), VampPrior(2, D, (D,))),
            "posteriors are points, of which no components can be made",
        ),
        (
            "type: network",
            lambda: GMMFlow((D,), GaussianMixture(2, D), MLP()),
            "AutoregressiveFlow.*, got MLP",
        ),
        ("shape: dims", lambda: GMMFlow((D,), GaussianMixture(2, 5)), "its latents have 5, but x"),
    ],
}
