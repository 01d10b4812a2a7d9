"""The estimators: scikit-learn's own checks of its conventions, and what these estimators promise
beside them.

Fits are short: how well the estimators do at length is for the benchmarks to say.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from scipy.stats import multivariate_normal
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.metrics import normalized_mutual_info_score as nmi
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_classifiers_classes, parametrize_with_checks

from facetvae.estimators import (
    ContentStyleTransformer,
    MultiFacetClustering,
    SemiSupervisedClassifier,
    UnstableFacetWarning,
    clustering,
    starts,
    strategies,
    training,
)
from facetvae.estimators.arrays import View
from facetvae.estimators.base import SCORE_DRAWS, Chosen
from facetvae.estimators.defaults import default_plain_network
from facetvae.estimators.encoding import encoding_of
from facetvae.estimators.facets import clusters_in_subspaces
from facetvae.estimators.linear_maps import fit_networks, set_linear, set_widths
from facetvae.estimators.posteriors import renumber
from facetvae.estimators.strategies import are_pictures, facets_found
from facetvae.estimators.training import LOOKS, StopConverged, converged
from facetvae.table_rules import outliers
from facetvae.table_rules.components import RESIDUAL_SHARE, residual_scale
from facetvae.table_rules.linear_model import FilledRows, linear_model
from facetvae.table_rules.outliers import Outliers
from facetvae.table_rules.subspaces import Subspaces, independent_subspaces
from guides import FacetGuide, VaDEGuide
from inference import elbo
from inference.randomness import seeded
from lab.protocols.sources import Labelings, labelings
from ppl_models import MFCVAE, Bernoulli, DiscretizedLogistic, MLPLadder, Normal, StandardNormal
from ppl_models.given.observed import Observed
from tests.agreement import agreement
from tests.global_state import unchanged

# Facets of fits this short have often learned nothing yet.
pytestmark = [
    pytest.mark.filterwarnings("ignore::inference.runner.DeadFacetWarning"),
    pytest.mark.slow(55),
]

NAN = float("nan")
CLASSIFIER = SemiSupervisedClassifier(epochs=6, learning_rate=3e-2, batch_size=32)
MINUS_ONE = {
    "check_classifiers_classes": "its labels are -1 and 1, and -1 stands for an unknown one"
}


def short(facets: Any = 2, **options: Any) -> MultiFacetClustering:
    """As it is given lengths of latents, it looks for no facets, which takes most of the time."""
    given = {"n_clusters": 2, "n_latents": 2, "epochs": 2, "random_state": 0}
    return MultiFacetClustering(facets, **{**given, **options})


# The cheapest of each class.
@parametrize_with_checks(
    [
        MultiFacetClustering(2, n_clusters=2, epochs=2, network=MLPLadder((8, 8))),
        CLASSIFIER,
        ContentStyleTransformer(epochs=2),
    ][:: 1 if os.environ.get("FACETVAE_THOROUGH") else 2],
    expected_failed_checks=lambda estimator: MINUS_ONE if estimator is CLASSIFIER else {},
)
def test_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


def test_classes_of_a_classifier_to_which_minus_one_is_no_class() -> None:
    """scikit-learn exempts its own such estimators by name: under one of these names ours passes,
    too.
    """
    check_classifiers_classes("SelfTrainingClassifier", clone(CLASSIFIER))


# Data.


@cache
def columns(n: int = 60) -> np.ndarray:
    """Two groups in five columns, of scales and places of their own."""
    x, _ = make_blobs(
        n, 5, centers=np.array([[-2.0] * 5, [2.0] * 5]), cluster_std=0.5, random_state=0
    )
    return x * [1, 10, 100, 1, 1] + [0, 0, 0, 50, 0]


def named() -> MultiFacetClustering:
    """With one latent for each facet, rounding decides nothing."""
    return short(("a", "b"), n_latents=1)


@cache
def fitted() -> MultiFacetClustering:
    return named().fit(columns())


def images(*shape: int) -> np.ndarray:
    """Bright and dark ones, 8-bit."""
    rng = np.random.default_rng(0)
    level = np.repeat([60.0, 190.0], 20).reshape(-1, *(1 for _ in shape))
    return rng.normal(level, 20, (40, *shape)).clip(0, 255).astype(np.uint8)


def test_data_frames_keep_their_names() -> None:
    frame = pd.DataFrame(columns(), columns=list("vwxyz"))
    found = named().set_output(transform="pandas").fit(frame)
    np.testing.assert_array_equal(found.labels_, fitted().labels_)
    z = found.transform(frame)
    assert list(z.columns) == list(found.get_feature_names_out())
    assert {name.rpartition("_")[0] for name in z.columns} == {"a", "b"}
    for estimator, y in (
        (found, None),
        (clone(CLASSIFIER), np.arange(60) % 2),
        (ContentStyleTransformer(epochs=1, random_state=0), None),
    ):
        estimator.fit(frame, y)
        assert list(estimator.feature_names_in_) == list("vwxyz")
        estimator.score(frame, y)  # a warning would be an error
        with pytest.raises(ValueError, match="feature names should match"):
            estimator.score(frame[list("zyxwv")], y)


def test_lists_and_memory_maps_are_as_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", columns())
    for x in (columns().tolist(), np.load(tmp_path / "x.npy", mmap_mode="r")):
        found = named().fit(x)
        np.testing.assert_array_equal(found.labels_, fitted().labels_)
        np.testing.assert_array_equal(found.predict_proba(x), fitted().predict_proba(columns()))


def test_data_are_encoded_as_the_guide_takes_them() -> None:
    want = fitted().encoding_.encode(columns())
    for x in (columns(), columns().tolist(), pd.DataFrame(columns())):
        np.testing.assert_array_equal(fitted().encode(x), want)
    assert want.dtype == np.float32
    z = fitted().runner_.guide.embed(want)
    z = np.concatenate([z[name] for name in fitted().facet_names_], 1)
    np.testing.assert_allclose(z, fitted().transform(columns()), atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_features_have_the_precision_of_the_data(dtype: str) -> None:
    x = columns().astype(dtype)
    assert short().fit_transform(x).dtype == dtype
    assert ContentStyleTransformer(epochs=1).fit_transform(x).dtype == dtype


@pytest.mark.parametrize(
    ("shape", "eight_bit"),
    [((16, 16), True), ((1, 16, 16), False), ((3, 16, 16), True), ((3, 7, 5), False)],
)
def test_stacks_of_images(shape: tuple[int, ...], eight_bit: bool) -> None:
    x = images(*shape) if eight_bit else images(*shape) / 255
    found = short().fit(x)
    assert found.settings_["values"] == ("8-bit" if eight_bit else "unit interval")
    assert ("ConvLadder" in found.settings_["network"]) == (len(shape) == 3 and shape[1] == 16)
    assert found.predict(x).shape == (40, 2)
    assert found.sample(30, noise=False)[0].shape == (30, *shape)
    with pytest.raises(ValueError, match="the training data had"):
        found.predict(x[..., :-1])


def test_images_of_8_bits_with_a_likelihood_that_was_chosen() -> None:
    """As everywhere in the library they are divided by 255, and go back to the user's units."""
    x = images(6)
    for likelihood in (DiscretizedLogistic(), Bernoulli(), Normal(0.1)):
        found = short(1, likelihood=likelihood, epochs=30, learning_rate=1e-2).fit(x)
        assert 60 < found.sample(50, noise=False)[0].mean() < 190
        np.testing.assert_allclose(
            found.predict_proba(x.astype(float)), found.predict_proba(x), atol=1e-5
        )
        with seeded(0, torch.device("cpu")):
            bound, _ = elbo(found.runner_.model, found.runner_.guide, x, SCORE_DRAWS)
        # Of a density the units are the user's; probabilities of 8-bit values have none.
        volume = 6 * np.log(255) if isinstance(likelihood, Normal) else 0.0
        assert found.score(x) == pytest.approx(bound - volume, abs=1e-6)


def test_missing_entries_are_filled_in_the_units_of_the_data() -> None:
    x = columns(120)
    holes = np.random.default_rng(0).random(x.shape) < 0.2
    holed = np.where(holes, NAN, x)
    second = x[:, 0] > 0
    center = np.where(second, 2.0, -2.0)[:, None] * [1, 10, 100, 1, 1] + [0, 0, 0, 50, 0]
    options = {"epochs": 20, "learning_rate": 5e-3, "random_state": 0, "batch_size": 20}
    for found in (
        short(1, **options).fit(holed),
        ContentStyleTransformer(**options).fit(holed),
        SemiSupervisedClassifier(**options).fit(holed, second),
    ):
        assert 0.15 < found.settings_["missing"] < 0.25
        filled = found.impute(holed)
        np.testing.assert_array_equal(filled[~holes], x[~holes])
        # Standard deviations of a column: its mean, instead of the group's, would be off by 0.97.
        assert np.abs((filled - center) / x.std(0))[holes].mean() < 0.4
        whole = found.impute(x)
        np.testing.assert_array_equal(whole, x)
        assert not np.shares_memory(whole, x)


def test_a_group_fills_what_one_of_it_lacks() -> None:
    """Content is seen by the others alone: of a datum without any entry the group's is filled
    in.
    """
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(50), 4)
    x = np.repeat(rng.normal(size=(50, 1)), 4, 0) * np.ones(4) + 0.1 * rng.normal(size=(200, 4))
    x[::20] = NAN  # the first of every fifth group
    found = ContentStyleTransformer(
        content_dim=1, style_dim=1, epochs=30, learning_rate=5e-3, random_state=0
    )
    found.fit(x, groups=groups)
    truth = x[1::20].mean(1)
    together = found.impute(x, groups=groups)[::20].mean(1)
    alone = found.impute(x)[::20].mean(1)
    assert np.abs(together - truth).mean() < 0.5 * np.abs(alone - truth).mean()


@pytest.mark.thorough
def test_few_or_poor_data_are_taken() -> None:
    """Fewer dimensions than subspaces are sought in: facets by depth, and no division by zero."""
    line = np.outer(np.random.default_rng(0).normal(size=40), np.arange(1.0, 5.0))
    empty_column = np.c_[line, np.full(40, NAN)]
    searching = partial(short, n_latents=None)
    for x, facets in ((columns()[:2], 3), (columns()[:3], 2), (empty_column, 2)):
        found = searching(facets).fit(x)
        assert np.isfinite(found.transform(x)).all()
    found = searching().fit(line)
    assert np.isfinite(found.transform(line)).all()
    assert found.settings_["start"] == "NeighborStrategy"
    assert short(n_latents=3).fit(columns()).settings_["start"] == "NeighborStrategy"
    assert searching().fit(columns()[:20] / 1e4 + 0.5).settings_["start"] == "LadderStrategy"
    assert searching().fit(columns()).settings_["start"] == "SubspaceStrategy"


# What is chosen.


def test_values_are_told_apart() -> None:
    x = columns()
    every: dict[str, tuple[Any, str]] = {
        "binary": (x > 0, "Bernoulli()"),
        "real": (x, "Normal(scale="),
        "unit interval": (1 / (1 + np.exp(-x / 100)).reshape(-1, 5, 1), "Normal(scale="),
        "8-bit": (images(5).reshape(-1, 5, 1), "Normal(scale="),
    }
    for values, (given, likelihood) in every.items():
        settings = short().fit(given).settings_
        assert settings["values"] == values
        assert settings["likelihood"].startswith(likelihood)
        assert settings["missing"] == 0
    for given in (
        (x > 0).astype(int),
        (x > 0).astype(float),
        np.where(x > 0, 1.0, NAN),
        (x > 0).astype(np.uint8),
    ):
        assert encoding_of(given, None).values == "binary"
    assert encoding_of(x, Normal(0.3)).values == "as given"


def test_images_whose_channels_are_last_are_not_taken_in_silence() -> None:
    x = np.random.default_rng(0).uniform(size=(20, 16, 12, 3)).astype("float32")
    with pytest.warns(UserWarning, match=r"16 channels and 12 x 3 pixels.*transpose\(0, 3, 1, 2\)"):
        encoding_of(x, None)
    for channels_first in (x.transpose(0, 3, 1, 2), x[:, :3, :, :1]):
        with warnings.catch_warnings(action="error"):
            encoding_of(channels_first, None)


@pytest.mark.thorough
def test_tables_within_bounds_are_columns_and_pictures_are_not() -> None:
    """Two labelings, scaled to [0, 1] or to bytes, and a cube without clusters; but digits, of
    which neighbors tell more clusters than subspaces do, from 0 to 1 or to 16.
    """
    x = drawn().x
    scaled = (x - x.min()) / np.ptp(x)
    cube, digit = np.random.default_rng(0).random((100, 4)), load_digits().data[:600]
    assert clusters_in_subspaces(cube)
    assert not clusters_in_subspaces(digit)
    assert not clusters_in_subspaces(np.where(scaled > 0.5, NAN, scaled)), "no row is complete"
    few, _, _ = two_groupings()
    given = (255 * (few - few.min()) / np.ptp(few)).astype(np.uint8)
    found = MultiFacetClustering(epochs=1, random_state=0).fit(given)
    assert found.settings_["values"] == "real"
    assert found.n_clusters_ == [2, 2]
    assert np.abs(found.sample(200)[0].mean(0) / given.mean(0) - 1).max() < 0.2
    np.testing.assert_array_equal(found.predict(given), found.labels_)
    encoding = encoding_of(digit, None)
    assert (encoding.values, encoding.encode(digit).max()) == ("intensities", 1)
    np.testing.assert_allclose(encoding.decode(encoding.encode(digit)), digit, atol=1e-5)
    assert encoding_of(digit[:, :15], None).values == "real", "too few for a picture"
    assert encoding_of(digit - 1, None).values == "real"
    assert encoding_of(digit / 16, None).values == "unit interval"


def test_rows_with_more_clusters_than_subspaces_show_are_pictures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If they are complete and wide, and these clusters, many in rows of up to 64 numbers, divide
    each facet's; whatever number of facets is asked for.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 16)) + 6 * rng.integers(2, size=(90, 1))
    two = facets_found((x - x.mean(0)) / x.std(0), 0, View())
    assert (two.numbers, two.combined, two.shared) == ([2], 2, 1)
    eight = replace(two, combined=8)
    assert are_pictures(eight, x, View())
    for found, rows in (
        (two, x),
        (replace(two, combined=7), x),
        (replace(eight, shared=0.3), x),
        (replace(eight, groups=[]), x),
        (eight, x[:, :15]),
        (eight, np.where(x == x[0, 3], NAN, x)),
    ):
        assert not are_pictures(found, rows, View())
    monkeypatch.setattr(clustering, "facets_found", lambda *given: eight)
    for facets in (None, 3):
        found = MultiFacetClustering(facets, n_clusters=2, epochs=1, random_state=0).fit(x)
        assert found.settings_["start"] == "NeighborStrategy"
        assert found.settings_["found"].startswith("neighbors tell more clusters than subspaces")
        assert len(found.facet_names_) == (facets or 2)
    sized = MultiFacetClustering(n_latents=3, n_clusters=2, epochs=1, random_state=0).fit(x)
    assert sized.settings_["start"] == "SubspaceStrategy"


@cache
def two_groupings() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A table, and two independent labelings of it: the second has the clearer clusters."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(2, size=(2, 120))
    centers = np.outer(a, [4, 4, 0, 0]) + np.outer(b, [0, 0, 8, 8])
    return centers + rng.normal(size=(120, 4)), a, b


@pytest.mark.thorough
def test_labels_choose_among_more_facets_than_are_wanted() -> None:
    x, a, b = two_groupings()
    known = np.where(np.arange(120) % 2 == 0, a, -1)
    told = MultiFacetClustering(1, n_init=2, epochs=2, random_state=0).fit(x, labels=known)
    assert (told.labels_[:, 0] == a).mean() > 0.9
    assert told.stability_[0] > 0.7
    first = MultiFacetClustering(1, epochs=2, random_state=0).fit(x)
    assert nmi(b, first.labels_[:, 0]) > 0.9, "the clearest"


@pytest.mark.parametrize(
    ("estimator", "given", "refused"),
    [
        (short(1), {}, {"labels": [1]}),
        (CLASSIFIER, {"y": np.arange(60) % 2}, {"y": [0]}),
        (ContentStyleTransformer(epochs=2), {"groups": np.arange(60) // 2}, {"groups": [1]}),
    ],
    ids=["clustering", "classifier", "content"],
)
def test_a_fit_that_is_refused_leaves_the_one_before(
    estimator: Any, given: dict[str, Any], refused: dict[str, Any]
) -> None:
    found = clone(estimator).set_params(random_state=0).fit(columns(), **given)
    read = found.transform if hasattr(found, "transform") else found.predict
    before, state = read(columns()), {n: v for n, v in vars(found).items() if n.endswith("_")}
    with pytest.raises(ValueError, match=r"labels|samples|group"):
        found.fit(1000 * columns()[:, :4], **refused)
    np.testing.assert_array_equal(read(columns()), before)
    assert {n: v for n, v in vars(found).items() if n.endswith("_")} == state


@pytest.mark.parametrize("output", ["pandas", "default"])
def test_what_transform_gives_is_the_users_choice_alone(output: str) -> None:
    frame = pd.DataFrame(np.exp(columns() / columns().std(0)), columns=list("abcde"))
    with sklearn.config_context(transform_output=output):
        found = short(1, n_latents=None).fit(frame)
        assert found.settings_["start"] == "ViewStrategy"
        found.predict(frame)
        kind = pd.DataFrame if output == "pandas" else np.ndarray
        assert type(found.transform(frame)) is kind
    asked = short(1).set_output(transform=output).fit(frame)
    assert type(asked.transform(frame)) is kind


def test_few_distinct_rows() -> None:
    rows = np.random.default_rng(0).normal(size=(5, 4))
    found = MultiFacetClustering(epochs=2, random_state=0).fit(np.repeat(rows, 20, 0))
    assert len(found.labels_) == 100


def test_an_outlying_row_may_be_the_only_one_with_a_gap() -> None:
    x = columns().copy()
    x[7] = [NAN, *x[7, 1:] + 1000]
    found = short().fit(x)
    assert found.outliers_[7]
    assert found.settings_["missing"] == pytest.approx(1 / x.size)
    assert (found.predict(x[:10]) == found.labels_[:10]).all()


@pytest.mark.parametrize("value", np.random.default_rng(0).normal(size=4))
def test_constant_columns_are_not_scaled(value: float) -> None:
    """Sums of so many equal numbers are rounded, so that their deviation is not 0."""
    x = np.full((1781, 2), value)
    assert x.std(0)[0] > 10 * np.finfo(float).eps * abs(value)
    np.testing.assert_array_equal(encoding_of(x, None).scale, 1)


def test_columns_are_standardized_each_by_itself_and_images_all_alike() -> None:
    x = np.c_[columns(), np.full(60, 7.0)]
    x[:3, 0] = NAN
    encoding = encoding_of(x, None)
    z = encoding.encode(x)
    np.testing.assert_allclose(np.nanmean(z, 0), 0, atol=1e-5)
    np.testing.assert_allclose(np.nanstd(z, 0), [1, 1, 1, 1, 1, 0], atol=1e-5)
    np.testing.assert_allclose(encoding.decode(z), x, atol=1e-3)
    logs = np.log(np.nanstd(x[:, :5], 0))
    observed = ~np.isnan(x[:, :5])
    np.testing.assert_allclose(encoding.log_volume(x), observed @ logs, atol=0.01)
    stack = np.random.default_rng(0).normal(5, 3, (20, 4, 4))
    assert encoding_of(stack, None).loc.shape == encoding_of(stack, None).scale.shape == (1,)


def test_residual_scale_is_that_of_probabilistic_pca() -> None:
    """Tipping and Bishop's closed form on data drawn from the model.

    The mean of m N squares has the standard error sigma^2 sqrt(2 / (m N)), and its root sigma /
    sqrt(2 m N): here 0.0021. Five of them are allowed; with one latent too few or too many it would
    be off by 0.3, or unstable.
    """
    rng, n, sigma = np.random.default_rng(0), 4000, 0.6
    loadings = np.linalg.qr(rng.normal(size=(8, 3)))[0] * 3
    x = rng.normal(size=(n, 3)) @ loadings.T + sigma * rng.normal(size=(n, 8))
    error = sigma / np.sqrt(2 * (8 - 3) * n)
    assert residual_scale(x, 3) == pytest.approx(sigma, abs=5 * error)
    assert residual_scale(x, 2) > sigma + 50 * error
    line = np.outer(x[:, 0], np.ones(8))  # nothing is left; of noise, all is
    assert residual_scale(line, 2) == pytest.approx(RESIDUAL_SHARE[0] * x[:, 0].std())
    noise = rng.normal(size=(n, 8))
    assert residual_scale(noise, 1) == pytest.approx(RESIDUAL_SHARE[1], abs=0.02)
    holed = np.where(rng.random(x.shape) < 0.1, NAN, x)
    assert residual_scale(holed, 3) == pytest.approx(sigma, rel=0.5), "roughly, of incomplete data"
    assert View().residual_scale(holed, 3) == residual_scale(holed, 3), "a start sees gaps, too"


def looks_taken(values: Iterable[float]) -> int:
    """0 if the values do not end the phase."""
    looks = list(values)
    return next((i for i in range(len(looks) + 1) if converged(looks[:i])), 0)


def test_a_phase_ends_when_its_measure_no_longer_rises() -> None:
    assert looks_taken(range(100)) == 0
    assert looks_taken([1.0] * 100) == LOOKS
    assert looks_taken(range(100, 0, -1)) == LOOKS, "nor if it falls"
    noise = np.random.default_rng(0).normal(size=(200, 100))
    assert np.median([looks_taken(row) for row in noise]) < 2 * LOOKS
    risen = [looks_taken(10 * (1 - np.exp(-np.arange(100) / 10)) + 0.1 * row) for row in noise]
    assert min(risen) > 20, "not before it has risen by 86 per cent"
    assert max(risen) < 90


def test_how_the_last_phase_ended_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "converged", lambda looks: True)
    options: dict[str, Any] = {"epochs": 4, "batch_size": 1}  # 60 steps an epoch
    found = short(**options).fit(columns())
    assert found.settings_["ended"] == "converged in 2 of 4 epochs"
    monkeypatch.setattr(training, "converged", lambda looks: False)
    found = short(**options).fit(columns())
    assert found.settings_["ended"] == "took all 4 of 4 epochs"


def test_the_state_with_the_best_held_out_bound_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the start and three looks; without held-out rows nothing says which is best."""
    runner = short().fit(columns()).runner_
    parameter = next(runner.loss.parameters())

    def kept(bounds: list[float], held_out: np.ndarray | None) -> int:
        """The epoch that is returned, whose state is kept."""
        looks, runner.epoch = iter(bounds), 0
        monkeypatch.setattr(training, "elbo", lambda *_: (next(looks), 0.0))
        stop, states = StopConverged(runner, held_out), [parameter[0].clone()]
        for epoch in range(1, 4):
            with torch.no_grad():
                parameter.add_(1)
            runner.epoch = epoch
            stop(runner, {"objective": 0.0})
            states.append(parameter[0].clone())
        epoch = stop.restore()
        assert torch.equal(states[epoch], parameter[0])
        return epoch

    assert kept([-3.0, -2.0, -1.0, -2.5], columns()) == 2
    assert kept([-1.0, -2.0, -3.0, -4.0], columns()) == 0
    assert kept([NAN, NAN, -3.0, NAN], columns()) == 2
    assert kept([NAN] * 4, columns()) == 0
    assert kept([], None) == 3


def test_score_is_in_the_units_of_the_data() -> None:
    """By a power of 2, which changes no digit: the same fit, and densities lower by the volume's
    factor.
    """
    small, large = (short().fit(factor * columns()) for factor in (1.0, 1024.0))
    np.testing.assert_array_equal(small.labels_, large.labels_)
    expected = small.score(columns()) - 5 * np.log(1024)
    assert large.score(1024 * columns()) == pytest.approx(expected, abs=1e-4)
    assert small.score(columns()) == small.score(columns())


# Subspaces.


@cache
def drawn() -> Labelings:
    """Three clusters and five, each on a circle; four would be a square, whose sides are
    independent of each other.
    """
    return labelings(400, (3, 5), seed=0)


def test_subspaces_are_those_that_the_data_were_drawn_from() -> None:
    """A mixture in each part finds one labeling, and nothing of the other."""
    x = drawn().x - drawn().x.mean(0)
    found = independent_subspaces(x, 4, 2, 0)
    assert sorted(found.dims) == [2, 2]
    z = found.sources(x)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(z.std(0), 1, atol=0.01)
    agreement = np.zeros((2, 2))
    for i, part in enumerate(np.split(z, [2], 1)):
        for j, y in enumerate(drawn().labels):
            mixture = GaussianMixture(len(np.unique(y)), n_init=3, random_state=0)
            agreement[i, j] = nmi(y, mixture.fit_predict(part))
    high = agreement > 0.9
    assert (high.sum(0) == 1).all()
    assert (high.sum(1) == 1).all()
    assert (high | (agreement < 0.2)).all()
    assert [len(part) for part in independent_subspaces(x, 4, 4, 0).maps] == [1] * 4


def test_posteriors_of_linear_maps_have_the_width_of_the_closed_form() -> None:
    """One latent that gives w times itself to each of D columns has the precision 1 + D (w /
    sigma)^2.
    """
    found = Subspaces(np.zeros(3), [np.full((1, 3), 1 / (3 * 0.8))])
    np.testing.assert_allclose(found.variances(0.5), [1 / (1 + 3 * (0.8 / 0.5) ** 2)])


def test_networks_start_as_the_maps_and_the_way_back_that_leaves_least() -> None:
    """Posterior means are the maps' values, and reconstructions the least-squares fit, to single
    precision; variances are those given, for all data.
    """
    x = ((drawn().x - drawn().x.mean(0)) / drawn().x.std(0)).astype(np.float32)
    found = independent_subspaces(x, 4, 2, 0)
    network = default_plain_network((10,), skip=True)
    facets = {name: StandardNormal(dim) for name, dim in zip("ab", found.dims, strict=True)}
    guide = VaDEGuide(MFCVAE((10,), facets, Normal(0.3), network))
    variances = np.linspace(0.05, 0.2, 4)
    set_widths(guide, variances)
    set_linear(guide, found, x)
    sources = found.sources(x)
    np.testing.assert_allclose(np.hstack([*guide.embed(x).values()]), sources, atol=1e-4)
    with torch.no_grad():
        widths = [q.variance for q in guide.encode(torch.as_tensor(x)).values()]
    np.testing.assert_allclose(
        torch.cat(widths, -1), np.broadcast_to(variances, (len(x), 4)), rtol=1e-4
    )
    fitted = LinearRegression().fit(sources, x).predict(sources)
    np.testing.assert_allclose(guide.reconstruct(x), fitted, atol=1e-4)


@pytest.mark.parametrize(("n", "loss"), [(2000, 0.4), (100, 1.0)])
def test_a_linear_model_describes_what_facets_leave(n: int, loss: float) -> None:
    """Data are drawn from three factors, of which a facet has one: the bound of new rows is near
    their density, which the 78 covariances of a normal that is fitted to 100 rows miss by 0.6.
    """
    rng = np.random.default_rng(0)
    z, loadings = rng.normal(size=(2 * n, 3)), rng.normal(size=(3, 12))
    sigma = np.geomspace(0.1, 0.5, 12)
    loadings *= np.sqrt((1 - sigma**2) / (loadings**2).sum(0))
    x = z @ loadings + sigma * rng.normal(size=(2 * n, 12))
    covariance = loadings.T @ loadings + np.diag(sigma**2)
    facet = np.linalg.solve(covariance, loadings[0])[None]
    facets = Subspaces(np.zeros(12), [facet / np.sqrt(facet @ covariance @ facet.T)])
    found = linear_model(complete(x[:n]), facets)
    density = multivariate_normal(np.zeros(12), covariance).logpdf(x[n:]).mean()
    assert density - loss < found.bound(complete(x[n:])) < density + 0.05
    for columns in map(complete, (np.c_[x, x[:, :3]], np.c_[x, np.zeros(2 * n)], x[:4])):
        own = Subspaces(np.zeros(columns.seen.shape[1]), [np.eye(1, columns.seen.shape[1])])
        assert np.isfinite(linear_model(columns, own).bound(columns)), "copies, constants, few rows"


def complete(x: np.ndarray) -> FilledRows:
    return FilledRows(x, x, np.ones(x.shape, bool))


def test_a_table_gets_the_noise_of_its_columns() -> None:
    """Known to about 1 / sqrt(2 N), 3 % here, and to what the factors take of it; one scale for all
    would be off by more than half in some columns.
    """
    drawn_data = labelings(600, (3,), dims=(2,), width=20, noise=0.5, seed=3)
    x = drawn_data.x * np.geomspace(0.1, 10, 20)
    found = MultiFacetClustering(epochs=1, random_state=0).fit(x)
    scale = found.runner_.model.likelihood.scale.numpy()
    known = 0.5 / drawn_data.x.std(0)
    np.testing.assert_allclose(scale, known, rtol=0.25)
    assert known.max() > 2 * known.min()


def test_networks_are_taught_the_maps() -> None:
    x = ((drawn().x - drawn().x.mean(0)) / drawn().x.std(0)).astype(np.float32)
    found = independent_subspaces(x, 4, 2, 0)
    network = default_plain_network((10,), skip=True)
    chosen = Chosen(Normal(0.3), network, 32, None, 3e-3, 0, "cpu")
    facets = {name: StandardNormal(dim) for name, dim in zip("ab", found.dims, strict=True)}
    guide = chosen.runner(partial(MFCVAE, (10,), facets), VaDEGuide).guide
    sources = found.sources(x)

    def error() -> float:
        means = np.hstack([*guide.embed(x).values()])
        return np.square(means - sources).mean(0).max()

    assert error() > 0.5, "of a variance of 1"
    fit_networks(guide, Observed(torch.as_tensor(x)), torch.as_tensor(sources), 15, chosen)
    assert error() < 0.05
    assert np.square(guide.reconstruct(x) - x).mean() < 0.2


@cache
def two_labelings() -> MultiFacetClustering:
    return MultiFacetClustering(2, n_clusters=[3, 5], epochs=2, random_state=0).fit(drawn().x)


def test_facets_are_the_labelings() -> None:
    agreement = np.array(
        [[nmi(y, found) for y in drawn().labels] for found in two_labelings().labels_.T]
    )
    assert ((agreement > 0.75).sum(0) == 1).all(), agreement
    assert ((agreement < 0.2).sum(0) == 1).all(), agreement


def test_another_seed_gives_another_fit() -> None:
    found, other = (short(random_state=seed).fit(columns()) for seed in (0, 1))
    assert not np.array_equal(other.transform(columns()), found.transform(columns()))


# Clusters.


def test_clusters_are_numbered_from_the_largest() -> None:
    x, _ = make_blobs([30, 90, 60], 5, centers=6 * np.eye(3, 5), cluster_std=0.5, random_state=0)
    found = short(1, n_clusters=6, epochs=4).fit(x)
    sizes = np.bincount(found.labels_[:, 0])
    assert (sizes > 0).all()
    assert (np.diff(sizes) <= 0).all()
    assert found.n_clusters_[0] == len(sizes) <= 6
    of_the_run = found.runner_.guide.predict(found.encode(x))["facet_0"]
    np.testing.assert_array_equal(of_the_run, found.labels_[:, 0])
    probabilities = found.predict_proba(x)
    assert probabilities.shape == (180, 1, len(sizes))
    np.testing.assert_allclose(probabilities.sum(-1), 1)
    np.testing.assert_array_equal(found.predict(x), found.labels_)


def test_components_take_their_moments_with_them() -> None:
    x, order = columns(), np.array([1, 0])
    found, other = named().fit(x), named().fit(x)
    renumber(other.runner_, other.runner_.model.mixtures["a"], order)
    for each in (found, other):
        each.partial_fit(x)
    ours, theirs = (each.runner_.model.mixtures["a"].loc.detach() for each in (found, other))
    torch.testing.assert_close(theirs, ours[order])


def test_samples_come_from_the_chosen_cluster() -> None:
    """After a fit this short about one in ten is put into a neighbor. Three in four are asked for:
    of draws that did not follow the choice one in three would be at most, and a share of 200 has a
    standard error of 0.035 or less.
    """
    found = two_labelings()
    for j in range(2):
        for k in range(found.n_clusters_[j]):
            x, clusters = found.sample(200, facet=j, cluster=k)
            assert (clusters[:, j] == k).all()
            assert len(np.unique(clusters[:, 1 - j])) > 1, "the other facet is free"
            assert (found.predict(x)[:, j] == k).mean() > 0.75
    x, clusters = found.sample(2000)
    shares = np.bincount(clusters[:, 0]) / 2000
    component = found.runner_.model.mixtures["facet_0"].component()
    weights = component.probs.detach().numpy()[: found.n_clusters_[0]]
    weights = weights / weights.sum()
    error = np.sqrt(weights * (1 - weights) / 2000)
    np.testing.assert_array_less(np.abs(shares - weights), 5 * error)
    np.testing.assert_allclose(x.mean(0), drawn().x.mean(0), atol=0.5)
    np.testing.assert_array_equal(found.sample(5)[0], found.sample(5)[0])
    assert not np.array_equal(found.sample(5)[0], found.sample(5, noise=False)[0])


# Labels.


def test_component_k_is_class_k() -> None:
    x, group = make_blobs(150, 5, centers=6 * np.eye(3, 5), random_state=0)
    truth = np.array([2, 0, 1])[group]
    labels = np.where(np.arange(150) < 15, truth, -1)
    found = short(1, n_clusters=None, epochs=5).fit(x, labels=labels)
    assert found.n_clusters_ == [3]
    assert (found.labels_[:, 0] == truth).mean() > 0.95
    assert (found.predict(x)[:, 0] == truth).mean() > 0.95


def test_labels_of_one_facet_leave_the_other_as_it_comes() -> None:
    found = short(("a", "b"), n_clusters=[None, 6], epochs=1)
    found.fit(drawn().x, labels={"b": drawn().labels[0], "a": np.full(400, -1)})
    assert found.n_clusters_[1] == 6
    assert (np.diff(np.bincount(found.labels_[:, 0])) <= 0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("facet", [0, 1])
def test_a_facet_gets_the_subspace_that_its_labels_lie_apart_in(facet: int) -> None:
    """With fifty known clusters, whichever facet they are given to; ``HELD_OUT`` takes none of
    these rows.
    """
    truth = drawn().labels[0]
    label = np.where(np.arange(400) % 8 == 0, truth, -1)
    found = short(n_clusters=5, epochs=4, learning_rate=2e-3)
    found.fit(drawn().x, labels={f"facet_{facet}": label})
    assert (found.labels_[:, facet] == truth).mean() > 0.6, "by chance a third at most"
    kept, held_out = found._split({"a": label}, 0)
    assert held_out is not None
    assert len(held_out) == 40
    assert (label[held_out] == -1).all()
    assert sorted([*kept, *held_out]) == list(range(400))


def test_y_is_not_for_clusterers() -> None:
    again = named().fit(columns(), np.arange(60) % 2)
    np.testing.assert_array_equal(again.predict_proba(columns()), fitted().predict_proba(columns()))


# As parts of scikit-learn.


def test_pipelines_and_searches() -> None:
    x, _ = make_blobs(200, 4, centers=5 * np.eye(4), cluster_std=0.4, random_state=0)
    pipeline = make_pipeline(StandardScaler(), short(1, n_clusters=4)).fit(x)
    assert pipeline.predict(x).shape == (200, 1)
    search = GridSearchCV(
        short(1, n_latents=3, epochs=4), {"n_clusters": [1, 4]}, cv=2, error_score="raise"
    ).fit(x)
    assert search.best_params_ == {"n_clusters": 4}, "by its own score"
    assert search.best_estimator_.predict(x).max() == 3


@pytest.mark.parametrize("form", ["polars", "mapping"])
def test_labels_go_through_a_search(form: str) -> None:
    labels: Any = {"b": np.where(np.arange(60) < 20, np.arange(60) % 2, -1)}
    if form != "mapping":
        labels = pytest.importorskip(form).DataFrame(labels)
    with config_context(enable_metadata_routing=True):
        own = short(("a", "b"), n_clusters=2).set_fit_request(labels=True)
        search = GridSearchCV(own, {"learning_rate": [1e-3]}, cv=2, error_score="raise")
        if form == "mapping":
            with pytest.raises(ValueError, match=r"search.* no mapping: give pandas.DataFrame\("):
                search.fit(columns(), labels=labels)
            return
        assert search.fit(columns(), labels=labels).best_estimator_.labels_.shape == (60, 2)


def every_fitted() -> list[tuple[Any, str]]:
    return [
        (fitted(), "predict_proba"),
        (clone(CLASSIFIER).fit(columns(), np.arange(60) // 30), "predict_proba"),
        (ContentStyleTransformer(epochs=1).fit(columns()), "transform"),
    ]


def test_fitted_estimators_are_written_and_copied() -> None:
    for estimator, method in every_fitted():
        with unchanged():
            pickle.loads(written := pickle.dumps(estimator))
        checkpoints = (b"torch._utils", b"torch.storage", b"_rebuild")
        assert not any(word in written for word in checkpoints)
        stream = io.BytesIO()
        joblib.dump(estimator, stream)
        stream.seek(0)
        y = np.arange(60) // 30
        said, score = getattr(estimator, method)(columns()), estimator.score(columns(), y)
        for again in (pickle.loads(written), joblib.load(stream), copy.deepcopy(estimator)):
            np.testing.assert_array_equal(getattr(again, method)(columns()), said)
            assert again.score(columns(), y) == score
        fresh = clone(estimator)
        assert repr(fresh.get_params(deep=False)) == repr(estimator.get_params(deep=False))
        with pytest.raises(NotFittedError):
            getattr(fresh, method)(columns())


def test_what_was_chosen_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = short(verbose=True).fit(columns())
    said = capsys.readouterr().out
    assert said.startswith("MultiFacetClustering:\n  values: real\n")
    assert all(f"  {name}: {value}\n" in said for name, value in found.settings_.items())


# The classifier and the transformer.


def test_labels_are_strings_and_most_are_unknown() -> None:
    x, group = make_blobs(240, 4, centers=4 * np.eye(3, 4), random_state=0)
    y = np.array(["low", "middle", "high"])[group]
    few = y.astype(object)
    few[24:] = -1
    options = {"epochs": 10, "learning_rate": 2e-2, "batch_size": 30, "random_state": 0}
    found = SemiSupervisedClassifier(**options).fit(x, few)
    assert list(found.classes_) == ["high", "low", "middle"]
    np.testing.assert_allclose(found.predict_proba(x).sum(1), 1, atol=1e-6)
    assert found.score(x, y) > 0.9
    numbers = np.where(np.arange(240) < 24, np.unique(y, return_inverse=True)[1], -1)
    as_numbers = SemiSupervisedClassifier(**options).fit(x, numbers)
    np.testing.assert_array_equal(found.classes_[as_numbers.predict(x)], found.predict(x))
    few[0] = -1
    first_unknown = SemiSupervisedClassifier(epochs=1).fit(x, few)
    assert list(first_unknown.classes_) == ["high", "low", "middle"]


def test_names_of_features_differ() -> None:
    found = short(facets=("a", "a1"), n_latents=11, n_clusters=2).fit(columns())
    assert len(set(found.get_feature_names_out())) == 22


@pytest.mark.parametrize("number", [2, 60])
def test_a_few_large_groups_train_for_as_many_steps(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("facetvae.estimators.grouped.STEPS", 60)
    found = ContentStyleTransformer(content_dim=1, style_dim=1, batch_size=10, random_state=0)
    found.fit(columns(), groups=np.arange(60) % number)
    assert found.runner_.step == 60


def test_groups_may_have_names_and_must_be_shared() -> None:
    """As in a search that has handed the groups to its splitter alone."""
    fast = ContentStyleTransformer(content_dim=1, style_dim=1, epochs=1, random_state=0)
    groups = np.arange(60) // 3
    named = np.array([f"person {group:02}" for group in groups])
    want = fast.fit_transform(columns(), groups=groups)
    for given in (named, pd.DataFrame({"who": named}), pd.DataFrame({"who": groups})):
        np.testing.assert_array_equal(fast.fit_transform(columns(), groups=given), want)
    with pytest.warns(UserWarning, match="no two rows share a group"):
        fast.fit(columns())


def test_members_of_a_group_share_their_content() -> None:
    groups = np.random.default_rng(0).permutation(np.arange(60) % 7) - 3
    estimator = ContentStyleTransformer(content_dim=2, style_dim=1, epochs=3, random_state=0)
    found = estimator.fit(columns(), groups=groups)
    z = found.transform(columns(), groups=groups)
    assert list(found.get_feature_names_out()) == ["content_0", "content_1", "style_0"]
    for group in range(-3, 4):
        content, style = z[groups == group, :2], z[groups == group, 2:]
        np.testing.assert_array_equal(content, np.broadcast_to(content[0], content.shape))
        assert len(np.unique(style, axis=0)) == len(style)
    alone = found.transform(columns())[:, :2]
    assert len(np.unique(alone, axis=0)) == 60, "each is its own group"
    np.testing.assert_array_equal(clone(found).fit_transform(columns(), groups=groups), z)
    assert found.score(columns(), groups=groups) != found.score(columns())


def test_groups_go_through_a_pipeline() -> None:
    groups = np.arange(60) % 6
    with sklearn.config_context(enable_metadata_routing=True):
        step = ContentStyleTransformer(content_dim=2, style_dim=1, epochs=2, random_state=0)
        step.set_fit_request(groups=True).set_transform_request(groups=True)
        pipeline = make_pipeline(StandardScaler(), step).fit(columns(), groups=groups)
        z = pipeline.transform(columns(), groups=groups)
    x = StandardScaler().fit_transform(columns())
    np.testing.assert_array_equal(z, clone(step).fit(x, groups=groups).transform(x, groups=groups))


def test_facets_are_counted_by_default() -> None:
    """Two labelings, one, and none."""
    rng = np.random.default_rng(0)
    found = MultiFacetClustering(epochs=1, random_state=0)
    two = found.fit(two_groupings()[0])
    assert two.n_clusters_ == [2, 2]
    assert two.settings_["found"].endswith("2 clusters in 2 columns, 2 clusters in 2 columns")
    groups = rng.integers(3, size=150)
    x = 6 * np.eye(3)[groups] @ rng.normal(size=(3, 8)) + rng.normal(size=(150, 8))
    one = found.fit(x)
    assert one.labels_.shape == (150, 1)
    assert nmi(groups, one.labels_[:, 0]) > 0.9
    none = found.fit(rng.normal(size=(300, 4)))
    assert not none.labels_.any()
    assert none.settings_["n_clusters"] == {"facet_0": 1}
    assert none.settings_["counted"] == {"facet_0": "no clusters beyond chance"}
    mixed = pd.DataFrame({"kind": rng.choice(list("abc"), 300), "size": rng.normal(size=300)})
    left = MultiFacetClustering(random_state=0).fit(mixed)
    assert left.settings_["model"] == "linear: no clusters", "not trained for them"


@pytest.mark.thorough
def test_a_facet_that_no_other_start_finds_is_reported() -> None:
    noise = np.random.default_rng(1).normal(size=(150, 5))
    found = short(1, n_clusters=3, n_init=3)
    with pytest.warns(UnstableFacetWarning, match=r"'facet_0' \(adjusted Rand index 0\.\d"):
        found.fit(noise)
    assert found.settings_["unstable"] == ["facet_0"]
    two = MultiFacetClustering(epochs=1, random_state=0, n_init=2).fit(two_groupings()[0])
    assert two.stability_.shape == (2,)
    assert two.stability_.min() > 0.7, "labelings are found again"
    assert two.settings_["unstable"] == []
    assert np.isnan(fitted().stability_).all()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::facetvae.estimators.UnstableFacetWarning")
def test_the_start_with_the_best_bound_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with the signs of all bounds turned the one with the worst, so that it is not the first
    both times; starts and their bounds are repeated by the seed.
    """
    bound, seen = starts.bound, []
    for sign in (1, -1):
        noted: dict[FacetGuide, float] = {}

        def turned(guide: FacetGuide, *how: Any, sign: int = sign, to: Any = noted) -> float:
            to[guide] = sign * bound(guide, *how)
            return to[guide]

        monkeypatch.setattr(starts, "bound", turned)
        found = short(n_clusters=3, n_init=3).fit(columns())
        assert found.runner_.guide is max(noted, key=noted.__getitem__)
        seen.append([sign * value for value in noted.values()])
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 3


def with_outliers(rows: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """The drawn table, in which some rows are spread over three times its range; and which they
    are.
    """
    x, rng = drawn().x[:rows].copy(), np.random.default_rng(0)
    which = rng.random(len(x)) < 0.03
    middle, half = (x.max(0) + x.min(0)) / 2, (x.max(0) - x.min(0)) / 2
    x[which] = middle + 3 * half * rng.uniform(-1, 1, (which.sum(), x.shape[1]))
    return x, which


def test_outlying_rows_are_left_out_and_marked_on_request() -> None:
    x, which = with_outliers()
    found = MultiFacetClustering(epochs=1, random_state=0, mark_outliers=True).fit(x)
    np.testing.assert_array_equal(found.outliers_, which)
    np.testing.assert_array_equal(found.labels_ == -1, np.stack([which, which], 1))
    np.testing.assert_array_equal(found.predict(x), found.labels_)
    assert found.n_clusters_ in ([3, 5], [5, 3])
    told = agreement(found.labels_[~which].T, (truth[~which] for truth in drawn().labels))
    assert min(told) > 0.9
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.predict(x), found.labels_)


def test_rows_that_were_left_out_are_those_that_are_marked() -> None:
    """Also where, once columns are scaled without them, others lie far as well."""
    x = np.random.default_rng(2).standard_t(2, size=(300, 3))
    found = short(1, epochs=1, mark_outliers=True).fit(x)
    assert found.outliers_.any()
    np.testing.assert_array_equal(found.labels_[:, 0] == -1, found.outliers_)
    assert (found.predict(x)[:, 0] == -1).sum() > found.outliers_.sum()
    found.partial_fit(x[:200])
    np.testing.assert_array_equal(found.labels_[:, 0] == -1, found.outliers_)


def test_outlying_rows_have_clusters_unless_they_are_to_be_marked() -> None:
    x, which = with_outliers(150)
    found = short().fit(x)
    assert found.labels_.min() == 0
    assert found.settings_["outliers"] == which.sum()


@pytest.mark.thorough
def test_rows_with_known_clusters_are_learned_from_and_keep_them() -> None:
    """Also where they are outlying, and outliers are marked."""
    x, which = with_outliers(150)
    found = short(("a", "b"), epochs=1)
    assert not found.fit(x, labels={"a": np.where(which, 0, -1)}).outliers_.any()
    label = np.full(len(x), -1)
    label[np.flatnonzero(which)[0]] = 1
    found.set_params(mark_outliers=True).fit(x, labels={"a": label})
    np.testing.assert_array_equal(found.labels_[:, 0] == -1, found.outliers_)
    assert (found.labels_[label == 1] >= 0).all()


def test_rows_of_later_batches_are_compared_with_those_of_the_fit() -> None:
    """A cluster that is rare in a batch is no outlier; a batch too small to compare has some."""
    rng = np.random.default_rng(0)
    rare = rng.random(1000) < 0.05
    x = rng.normal(size=(1000, 4)) + 10 * rare[:, None]
    found = short(1).fit(x)
    assert not found.outliers_.any()
    batch = rng.normal(size=(100, 4)) + 10 * (np.arange(100) < 4)[:, None]
    again = pickle.loads(pickle.dumps(found)).partial_fit(batch)
    assert again.outliers_.sum() == 0
    batch = rng.normal(size=(40, 4)) + 200 * (np.arange(40) == 3)[:, None]
    assert np.flatnonzero(found.partial_fit(batch).outliers_).tolist() == [3]


def test_rows_that_have_drifted_far_are_not_left_out_in_silence() -> None:
    x = columns() / [1, 10, 100, 1, 1]
    found = short(1).fit(x)
    before = found.labels_.copy()
    with pytest.raises(ValueError, match="all 60 rows of X lie far from those of the fit: fit an"):
        found.partial_fit(x + 30)
    np.testing.assert_array_equal(found.labels_, before)
    further = np.concatenate([x[:20], x[20:] + 30])
    with pytest.warns(UserWarning, match="40 of 60 rows of X lie far from those of the fit, and"):
        found.partial_fit(further)
    np.testing.assert_array_equal(found.outliers_, np.arange(60) >= 20)


def test_further_starts_need_rows_for_their_clusters_too() -> None:
    few = columns()[:20]
    with pytest.raises(ValueError, match=r"only \d+ of 20 data are used for a further start"):
        short(1, n_clusters=15, n_init=3).fit(few)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("counts", 8),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (("rounded", 3), ("ratings", 2), ("answers", 7))
        ),
    ],
)
def test_whole_numbers_are_no_clusters(kind: str, columns: int) -> None:
    rng = np.random.default_rng(0)
    x = {
        "counts": lambda: rng.poisson(0.6, (800, columns)),
        "rounded": lambda: np.round(rng.normal(size=(400, columns))),
        "ratings": lambda: rng.choice(5, (400, columns), p=[0.05, 0.1, 0.2, 0.35, 0.3]),
        "answers": lambda: rng.integers(1, 6, (400, columns)),
    }[kind]()
    assert facets_found((x - x.mean(0)) / x.std(0), 0, View()).number == 0
    grouped = np.round(rng.normal(size=(400, columns)) + 8 * rng.integers(0, 2, (400, 1)))
    assert facets_found((grouped - grouped.mean(0)) / grouped.std(0), 0, View()).numbers == [2]


# FilledRows among others, and rows that many others are equal or close to.
USUAL: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "few": lambda rng: rng.standard_cauchy((40, 3)),
    "integers": lambda rng: rng.poisson(3.0, (500, 4)).astype(float),
    "half": lambda rng: np.r_[rng.normal([10, 10, 5, 5], size=(300, 4)), np.zeros((300, 4))],
    "copies": lambda rng: np.r_[
        rng.normal(size=(300, 4)), np.repeat(rng.normal(size=(15, 4)) * 10 + 20, 20, 0)
    ],
    "a code": lambda rng: np.r_[rng.normal(size=(440, 4)), np.full((60, 4), -999.0)],
    "nearly equal": lambda rng: np.r_[
        rng.normal([10, 10, 5, 5], size=(300, 4)), 0.01 * rng.normal(size=(300, 4))
    ],
}


@pytest.mark.parametrize("kind", USUAL)
def test_rows_that_have_others_beside_them_are_no_outliers(kind: str) -> None:
    rng = np.random.default_rng(0)
    both = USUAL[kind](rng)
    x = (both - both.mean(0)) / both.std(0)
    usual = Outliers(x)
    assert usual.among(x).mean() < 0.01
    near = x[-1] + 1e-3 * rng.normal(size=x.shape[1])
    alone = x[-1] + 40 * np.ones(x.shape[1])
    told = usual.among(np.stack([near, alone])).tolist()
    assert told == [False, kind != "few"], "of tails so heavy no row is far"


def test_a_record_is_shared_by_more_rows_than_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outliers, "MOST_ROWS", 300)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 3))
    x[::60] = 30.0
    x[1] = -30.0
    found = MultiFacetClustering(1, n_clusters=2, n_latents=2, epochs=1, random_state=0).fit(x)
    assert found.outliers_[1]
    assert not found.outliers_[::60].any()
    assert not found.usual_.among(found.encode(x[::60])).any()


def test_equal_rows_are_a_cluster() -> None:
    both = USUAL["half"](np.random.default_rng(0))
    assert facets_found((both - both.mean(0)) / both.std(0), 0, View()).numbers == [2]


def test_a_fit_that_leaves_many_rows_out_says_so() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    x[::8] *= 1e3 * rng.uniform(1, 9, (25, 1))
    with pytest.warns(
        UserWarning, match="2[56] of 200 rows of X lie far from all others.*labels="
    ) as w:
        short(1).fit(x)
    assert {each.filename for each in w if "lie far" in str(each.message)} == {__file__}


@pytest.mark.thorough
def test_what_facets_leave_has_its_own_latent() -> None:
    """Two sources without clusters."""
    rng = np.random.default_rng(0)
    x = drawn().x + rng.normal(size=(400, 2)) @ rng.normal(size=(2, 10))
    found = MultiFacetClustering(epochs=5, random_state=0).fit(x)
    assert found.facet_names_ == ["facet_0", "facet_1"]
    dims = found.settings_["n_latents"]
    of_facets = dims["facet_0"] + dims["facet_1"]
    assert dims["rest"] >= 2
    assert found.transform(x).shape[1] == of_facets
    drawn_x, _ = found.sample(300, noise=False)
    # Without the rest, a draw's mean would lie in the facets' dimensions alone.
    kept = np.linalg.svd(drawn_x - drawn_x.mean(0), compute_uv=False)
    assert kept[of_facets] > 0.05 * kept[0]


@pytest.mark.thorough
def test_facets_that_are_asked_for_are_those_with_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two labelings, the one with the clearer clusters or with as many as asked for, and
    not both mixed.
    """
    counted: list[Any] = []

    def once(*given: Any) -> Any:
        counted.extend([] if counted else [facets_found(*given)])
        return counted[0]

    def fit(facets: Any, numbers: Any = None) -> MultiFacetClustering:
        options = {"n_clusters": numbers, "epochs": 1, "random_state": 0}
        return MultiFacetClustering(facets, **options).fit(drawn().x)

    monkeypatch.setattr(clustering, "facets_found", once)
    truth = dict(zip((3, 5), drawn().labels, strict=True))
    one = fit(("only",))
    assert one.settings_["start"] == "CountedStrategy"
    assert max(nmi(y, one.labels_[:, 0]) for y in truth.values()) > 0.95
    for numbers in ((3,), (5,), (3, 5), (5, 3)):
        found = two_labelings() if numbers == (3, 5) else fit(len(numbers), numbers)
        for K, labels in zip(numbers, found.labels_.T, strict=True):
            assert nmi(truth[K], labels) > 0.95, "the facet with as many clusters"
    assert fit(3, 2).settings_["start"] == "SubspaceStrategy"


def test_new_data_keep_the_clusters_numbers() -> None:
    x = drawn().x
    found = short(n_clusters=(3, 5), epochs=8).fit(x[:250])
    before, numbers = found.predict(x), found.n_clusters_
    rng = np.random.default_rng(0)
    drift = 0.3 * x.std(0) * rng.normal(size=x.shape[1])
    new = x[250:] + drift
    lost = (found.predict(new) != before[250:]).mean()
    score = found.score(new)
    found.partial_fit(new, epochs=10)
    assert found.labels_.shape == (150, 2)
    assert (found.labels_ != before[250:]).mean() < max(0.05, lost)
    assert found.score(new) > score
    assert found.n_clusters_ is numbers


def test_the_first_part_of_data_is_fitted_to() -> None:
    found = short(("a", "b"))
    assert found.partial_fit(columns()).labels_.shape == (60, 2)


def test_the_deepest_facet_of_images_starts_from_neighbors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three kinds of bars: neighbors tell them, and their number is theirs."""
    rng = np.random.default_rng(0)
    kind = rng.integers(3, size=300)
    x = np.full((300, 8, 8), 0.1)
    for row, k in enumerate(kind):
        x[row, 2 * k + 1 : 2 * k + 3] = 0.8
    x = (x + 0.05 * rng.normal(size=x.shape)).clip(0, 1)
    found = MultiFacetClustering(2, epochs=6, random_state=0).fit(x)
    assert found.settings_["start"] == "NeighborStrategy"
    assert found.settings_["n_clusters"]["facet_1"] == 3
    assert found.settings_["counted"]["facet_1"] == "clusters of neighbors"
    assert nmi(kind, found.labels_[:, 1]) > 0.9
    told = short(n_clusters=(2, 4), epochs=1).fit(x)
    assert told.settings_["n_clusters"] == {"facet_0": 2, "facet_1": 4}
    assert told.settings_["counted"]["facet_1"] == "as given"
    monkeypatch.setattr(training, "LONG", 0)
    with pytest.warns(UserWarning, match=r"up to 0 minutes .*: 3 passes over 270 rows") as warned:
        same = short(n_clusters=(2, 4), epochs=1).fit(x)
    assert warned[0].filename == __file__
    assert np.array_equal(same.labels_, told.labels_), "what is timed changes nothing"
    monkeypatch.undo()
    label = np.where(np.arange(300) % 10, -1, kind)
    known = short(n_clusters=None, epochs=1).fit(x, labels={"facet_1": label})
    assert known.settings_["start"] == "NeighborStrategy"


def test_facets_of_wide_tables_are_sought_in_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a warning that says in how many, and what to give."""
    monkeypatch.setattr(strategies, "MOST_WORK", 250 * 8**2)
    monkeypatch.setattr(strategies, "FEWEST_SEARCHED", 200)
    x = np.random.default_rng(0).normal(size=(300, 8))
    with pytest.warns(UserWarning, match=r"8 numbers a row .* in 250 of 300 rows: give"):
        strategies.facets_found(x, 0, View())
