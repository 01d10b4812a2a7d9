"""What rows are, and what they share: guides, data and runners.

Nothing here is changed by a call that fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from facetvae.describing import FacetClusters, FacetDescription, describe_clusters
from facetvae.explorer.explorer import Explorer
from guides import (
    ClassifierGuide,
    CodebookGuide,
    ConditionalGuide,
    FacetGuide,
    GroupedGuide,
    LadderGuide,
    TableGuide,
    VaDEGuide,
)
from inference import Loss, SVIRunner
from ppl_models import (
    CVAE,
    IVAE,
    MFCVAE,
    MLVAE,
    NVAE,
    VAE,
    VLAC,
    VQVAE,
    ContinuousIVAE,
    ConvGrid,
    GaussianMixture,
    MLPLadder,
    Normal,
    SharedMLP,
    StandardNormal,
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


#: Rows by what they are about: fault, call and message each, and the error's type where it is
#: another than ValueError.
Table = dict[str, list[tuple[Any, ...]]]


@dataclass(frozen=True)
class On:
    """A call with the folder of a saved run, and what is done to that folder before."""

    call: Callable[[Path], Any]
    damage: Callable[[Path], Any] | None = None


def at(name: str, call: Callable[[Path], Any], damage: Any = None) -> On:
    """A call with a path in that folder."""
    return On(lambda run: call(run / name), damage)


def rows(table: Table) -> list[Row]:
    return [row(about, *each) for about, faults in table.items() for each in faults]


def row(about: str, fault: str, call: Callable[[], Any] | On, message: str, *error: Any) -> Row:
    on = call if isinstance(call, On) else On(partial(_alone, call))
    return Row(about, fault, on.call, message, *error or [ValueError], on.damage)


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
def described(K: int = 2) -> FacetDescription:
    """Of K clusters of the rows of ``X``."""
    return describe_clusters(FacetClusters("kind", np.eye(K)[np.arange(len(X)) % K]), X)


@cache
def explorer() -> Explorer:
    return Explorer(guide(), X, labels={"u": np.arange(len(X)) % 2, "one": np.ones(len(X), int)})


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
    ("shape: one datum", np.zeros(D), r"x has shape \[6\], .* for a single sample give x\[None\]"),
    ("shape: images", np.zeros((5, 2, 3)), r"reshape it, for example x.reshape\(len\(x\), 6\)"),
    ("shape: plates", np.zeros((5, 2, 6)), r"stack the rows, as by x.reshape\(-1, 6\)"),
    ("shape: a number", np.float64(3.0), r"x has shape \[\]"),
    ("shape: ragged", [[0.1] * D, [0.1]], "x must be an array, with rows of equal shape"),
    (
        "type: binary uint8",
        np.zeros((5, D), dtype=np.uint8),
        r"x is uint8 with values up to 0, .* give binary data as",
    ),
    ("type: strings", np.array([["a"] * D] * 5), r"x must hold numbers, got ndarray of dtype <U1"),
    ("type: None", None, "x must hold numbers, got NoneType"),
    (
        "type: complex tensor",
        torch.zeros(5, D, dtype=torch.complex64),
        "x must be a dense tensor of real numbers, but is complex",
    ),
    ("type: sparse tensor", torch.zeros(5, D).to_sparse(), "but is of layout torch.sparse_coo"),
    (
        "nan: masked",
        np.ma.array(np.full((5, D), 0.5), mask=np.arange(5 * D).reshape(5, D) == 20),
        r"1 values that are NaN or infinite, the first at index \[3, 2\]",
    ),
    ("empty: no rows", np.zeros((0, D)), r"x is empty \(shape \[0, 6\]\)"),
    ("nan: NaN", holed(NAN), r"1 values that are NaN or infinite, the first at index \[3, 2\]"),
    (
        "range: above 1",
        holed(1.5),
        r"values in \[0.5, 1.5\], but the Bernoulli likelihood needs \[0.0, 1.0\]",
    ),
    ("range: 8 bits as int64", np.full((5, D), 200, dtype=np.int64), r"give 8-bit images as uint8"),
]

COUNT = "must be an integer of at least 1"
MANY = f"must be at most 100000000, got {HUGE}: it would not fit in memory"
