"""Embeddings: which data are taken for them, what the model sees, and what comes back."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.metrics import normalized_mutual_info_score

from facetvae.estimators import MultiFacetClustering
from facetvae.estimators.arrays import Reader
from facetvae.estimators.embeddings import EmbeddingReader, of_length_one
from facetvae.estimators.reading import reader_for
from lab.benchmarks import embeddings as measured
from lab.protocols.embeddings import drawn_embeddings
from lab.protocols.sources import labelings
from ppl_models import Normal
from tests.agreement import agreement

QUICK = {"epochs": 4, "random_state": 0}


def unit_rows(n: int = 60, width: int = 40, seed: int = 0) -> np.ndarray:
    """Rows of length one with a mean and unequal directions."""
    rng = np.random.default_rng(seed)
    x = (1 + rng.normal(size=(n, width))) * np.arange(1, width + 1) ** -0.5
    return x / np.linalg.norm(x, axis=1, keepdims=True)


# Which data are taken for embeddings.


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_of_length_one_are_embeddings(dtype: type) -> None:
    x = unit_rows().astype(dtype)
    assert type(reader_for(x, None, None)) is EmbeddingReader
    assert type(reader_for(torch.as_tensor(x), None, None)) is EmbeddingReader
    assert type(reader_for(x, None, Normal(0.1))) is Reader, "a likelihood declines"


def test_rows_normalized_in_16_bits_are_embeddings() -> None:
    x = 30 * unit_rows(500, 768).astype(np.float16)
    x /= np.sqrt(np.square(x).sum(1, dtype=np.float16, keepdims=True))
    assert of_length_one(x).all()


def test_rows_of_another_length_among_embeddings_are_told() -> None:
    x = unit_rows()
    x[3] = 0
    with pytest.warns(UserWarning, match=r"rows \[3\] of X have .* is read as a table"):
        assert type(reader_for(x, None, None)) is Reader
    x = encoder_rows()
    x[3] = 0
    with pytest.warns(UserWarning, match=r"rows \[3\] of X have .* is read as embeddings"):
        assert type(reader_for(x, None, None)) is EmbeddingReader


@pytest.mark.filterwarnings("ignore:rows .* have not the length one")
def test_other_data_are_not_embeddings() -> None:
    x = unit_rows()
    one_longer = np.concatenate([x, 1.01 * x[:1]])
    one_gap = np.where(x == x[3, 4], np.nan, x)
    whole, longer = np.eye(40, dtype=int), x.astype(np.longdouble)
    narrow, stack = unit_rows(60, 31), x.reshape(60, 5, 8)
    for other in (longer, 2 * x, one_longer, one_gap, whole, narrow, stack, x[:0]):
        assert type(reader_for(other, None, None)) is Reader


def encoder_rows() -> np.ndarray:
    """Rows of length one, as CLIP's are, with two labelings."""
    drawn = drawn_embeddings(400, (3, 2), (0.2, 0.1), width=512, common=0.5, decay=1.2, seed=3)
    return drawn.x


def rectified(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.maximum(x @ rng.normal(size=(x.shape[1], 512)), 0)


ALSO_EMBEDDINGS = {
    "longer": lambda x, rng: 7 * x,
    "of unequal lengths": lambda x, rng: x * np.exp(0.2 * rng.normal(size=(len(x), 1))),
    "the first columns": lambda x, rng: x[:, :400],
    "in 8 bits": lambda x, rng: (127 * x / np.abs(x).max()).round().astype(np.int8),
    "centered": lambda x, rng: x - x.mean(0),
    "standardized": lambda x, rng: (x - x.mean(0)) / x.std(0),
    "after a ReLU": lambda x, rng: rectified(x, rng),
}
NO_EMBEDDINGS = {
    "centered, few columns": lambda x, rng: (x - x.mean(0))[:, :100],
    "after a ReLU, few columns": lambda x, rng: rectified(x, rng)[:, :100],
    "after a ReLU, rounded": lambda x, rng: rectified(x, rng).round(),
    "of one sign and unequal": lambda x, rng: np.exp(20 * x + rng.normal(size=(len(x), 1))),
    "answers": lambda x, rng: (x / x.std(0)).round().clip(-2, 2),
    "beside a column": lambda x, rng: np.c_[x, 10 + 9 * rng.normal(size=len(x))],
    "few factors": lambda x, rng: 1 + rng.normal(size=(400, 9)) @ rng.normal(size=(9, 99)),
    "wide, of few factors": lambda x, rng: rng.normal(size=(400, 9)) @ rng.normal(size=(9, 512)),
    "heavy tails": lambda x, rng: rng.standard_t(3, (400, 20)) @ rng.normal(size=(20, 512)),
    "two labelings in a table": lambda x, rng: labelings(400, (3, 4), width=512, seed=0).x,
    "the same, never negative": lambda x, rng: labelings(400, (3, 4), width=512, seed=0).x + 2,
}


@pytest.mark.parametrize("how", [*ALSO_EMBEDDINGS, *NO_EMBEDDINGS])
def test_rows_of_other_lengths_are_embeddings_if_they_are_like_them(how: str) -> None:
    change = (ALSO_EMBEDDINGS | NO_EMBEDDINGS)[how]
    x = change(encoder_rows(), np.random.default_rng(0))
    assert (type(reader_for(x, None, None)) is EmbeddingReader) == (how in ALSO_EMBEDDINGS)


def test_rows_of_other_lengths_have_the_same_facets() -> None:
    """A density of rows seven times as long is lower by log 7 for each of 512 numbers."""
    x = encoder_rows()
    unit, longer = (
        MultiFacetClustering(1, n_clusters=3, random_state=0).fit(rows) for rows in (x, 7 * x)
    )
    assert normalized_mutual_info_score(unit.labels_[:, 0], longer.labels_[:, 0]) > 0.99
    drawn = np.linalg.norm(longer.sample(50)[0], axis=1)
    assert 5 < drawn.min() < drawn.max() < 8  # without the noise beside the components
    np.testing.assert_allclose(longer.score(7 * x), unit.score(x) - 512 * np.log(7), rtol=1e-3)
    with pytest.raises(ValueError, match="missing"):
        longer.predict(np.where(np.arange(512) == 3, np.nan, x))


# What the model sees.


def test_components_have_variance_one_and_go_back_to_length_one() -> None:
    x = unit_rows(400)
    encoding = EmbeddingReader().encoding(x, None)
    z = encoding.encode(x)
    assert z.shape == (400, 20)  # a component for 20 rows
    np.testing.assert_allclose(np.cov(z.T), np.eye(20), atol=1e-4)
    pca = PCA(20, svd_solver="full").fit(x)
    back = pca.inverse_transform(pca.transform(x))
    expected = back / np.linalg.norm(back, axis=1, keepdims=True)
    np.testing.assert_allclose(encoding.decode(z), expected, atol=1e-5)


def test_a_density_is_that_of_probabilistic_pca() -> None:
    """A standard normal of all components is, in the user's units, a normal with the covariance of
    probabilistic PCA (Tipping and Bishop, 1999), which SciPy has.
    """
    x = unit_rows(300)
    encoding = EmbeddingReader().encoding(x, None)
    W, s, noise = encoding.directions, encoding.scale, encoding.noise
    covariance = W.T * s**2 @ W + noise**2 * (np.eye(40) - W.T @ W)
    expected = multivariate_normal(encoding.loc, covariance).logpdf(x)
    z = encoding.encode(x).astype(float)
    standard = -0.5 * (z**2).sum(1) - z.shape[1] / 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(standard - encoding.log_volume(x), expected, atol=1e-3)


def test_equal_rows_and_few_are_encoded() -> None:
    x = unit_rows(60)
    for some in (x[:2], np.repeat(x[:1], 50, 0)):
        encoding = EmbeddingReader().encoding(some, None)
        assert np.isfinite(encoding.encode(x)).all()
        assert np.isfinite(encoding.log_volume(some)).all()


# Facets in them.


@pytest.mark.thorough
def test_two_labelings_of_drawn_embeddings_are_found() -> None:
    drawn = drawn_embeddings(300, (3, 2), (0.3, 0.2), width=64, decay=0.5, seed=1)
    found = MultiFacetClustering(epochs=2, random_state=0).fit(drawn.x)
    assert found.settings_["values"] == "embeddings"
    assert min(agreement(found.labels_.T, drawn.labels)) > 0.8


def test_facets_without_clusters_get_as_many_components_as_columns_would() -> None:
    found = MultiFacetClustering(2, n_clusters=2, **QUICK).fit(unit_rows(120))
    assert sum(found.settings_["n_latents"].values()) == 6  # a component for 20 rows


# What is returned.

Fitted = tuple[MultiFacetClustering, np.ndarray]


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    x = unit_rows(200).astype(np.float32)
    return MultiFacetClustering(2, n_clusters=2, n_latents=2, **QUICK).fit(x), x


def test_results_are_in_the_form_of_embeddings(fitted: Fitted) -> None:
    found, x = fitted
    drawn, clusters = found.sample(7)
    assert (drawn.shape, clusters.shape) == ((7, 40), (7, 2))
    assert of_length_one(drawn).all()
    assert found.predict(drawn).shape == (7, 2)
    assert np.array_equal(found.impute(x), x)  # no gaps
    assert found.transform(x.astype(np.float16)).shape[0] == 200


def test_a_score_is_in_units_of_the_rows(fitted: Fitted) -> None:
    """A normal with the covariance of the rows is near what few steps have learned; in other units
    it would be off by tens of nats.
    """
    found, x = fitted
    normal = multivariate_normal(x.mean(0), np.cov(x.T) + 1e-6 * np.eye(40))
    assert abs(found.score(x) - normal.logpdf(x).mean()) < 15


def test_later_rows_must_have_length_one(fitted: Fitted) -> None:
    found, x = fitted
    for wrong in (2 * x, np.where(np.arange(40) == 3, np.nan, x), 0 * x):
        for call in (found.predict, found.score, found.impute, found.partial_fit):
            with pytest.raises(ValueError, match="of X has the length"):
                call(wrong)


def test_later_calls_keep_the_encoding(fitted: Fitted) -> None:
    found, x = fitted
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again.predict(x), found.predict(x))
    assert again.score(x) == found.score(x)
    more = unit_rows(50, seed=1)
    assert again.partial_fit(more).labels_.shape == (50, 2)
    assert again.settings_["values"] == "embeddings"


# Simulated embeddings and the benchmark.


def test_shares_of_drawn_embeddings_are_as_asked() -> None:
    """Of the rows before they are divided by their length, which moves shares by a tenth."""
    drawn = drawn_embeddings(4000, (5, 3), (0.3, 0.1), width=64, common=0.2, seed=2)
    x = drawn.x - drawn.x.mean(0)
    for label, share in zip(drawn.labels, (0.3, 0.1), strict=True):
        means = np.stack([x[label == k].mean(0) for k in np.unique(label)])
        assert abs(np.square(means[label]).sum() / np.square(x).sum() - share) < 0.15 * share + 0.01


def test_methods_are_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = ("ours", "ours, told", "NrKmeans")  # slow, or of a package that is not needed
    rivals = [name for name in measured.METHODS if name not in elsewhere]
    flags = ["--methods", *rivals, "--rows", "120", "--out"]
    for last in (8, 9, 9):
        measured.main([*flags, str(tmp_path / "out.jsonl"), "--seeds", "7", str(last)])
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["seed"], line["method"]) for line in lines] == [
        (seed, name) for seed in (7, 8) for name in rivals
    ]
    assert all(line["rows"] == 120 for line in lines)
    assert "CLIP, residual KMeans" in capsys.readouterr().out
