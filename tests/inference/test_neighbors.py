"""Clusters of neighbors, and training that starts from them."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pyro
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors

from guides import VaDEGuide
from inference import NeighborGraph, SVIRunner, elbo, fit_mixtures, neighbor_clusters
from inference.initialization.graph import MANY, CellSearch, nearest_search
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, Normal, VaDE


def by_the_papers(rows: np.ndarray, K: int, k: int) -> np.ndarray:
    """Written from the papers, edge by edge and with every eigenvector."""
    n = len(rows)
    distance = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(-1))
    near = [sorted(set(range(n)) - {i}, key=lambda j, i=i: distance[i, j])[:k] for i in range(n)]
    last = [distance[i, near[i][-1]] for i in range(n)]
    affinity = np.zeros((n, n))
    for i in range(n):
        for j in near[i]:
            half = 0.5 * np.exp(-(distance[i, j] ** 2) / (last[i] * last[j]))
            affinity[i, j] += half
            affinity[j, i] += half
    degree = affinity.sum(1) + 0.1 * affinity.sum(1).mean()
    _, vectors = np.linalg.eigh(affinity / np.sqrt(np.outer(degree, degree)))
    leading = vectors[:, -K:]
    leading /= np.linalg.norm(leading, axis=1, keepdims=True)
    return KMeans(K, n_init=20, random_state=0).fit_predict(leading)


def test_against_the_papers_formulas() -> None:
    """Of three groups that touch, so that neither finds them without the graph's weights."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(center, 0.6, (50, 2)) for center in ((0, 0), (2, 0), (1, 2))])
    found = neighbor_clusters(x, 3, num_neighbors=7)
    assert adjusted_rand_score(found, by_the_papers(x, 3, 7)) == 1


def test_clusters_that_no_means_can_part() -> None:
    """Two moons; means alone get an adjusted Rand index near 0.25."""
    x, moon = make_moons(400, noise=0.05, random_state=0)
    assert adjusted_rand_score(moon, neighbor_clusters(x, 2)) == 1
    assert adjusted_rand_score(moon, KMeans(2, n_init=10, random_state=0).fit_predict(x)) < 0.5


def test_data_that_are_not_looked_at_have_no_cluster() -> None:
    x, moon = make_moons(400, noise=0.05, random_state=0)
    found = neighbor_clusters(x, 2, max_rows=300)
    seen = found >= 0
    assert seen.sum() == 300
    assert adjusted_rand_score(moon[seen], found[seen]) == 1


def test_what_is_alike_gives_the_same_clusters() -> None:
    x, _ = make_moons(100, noise=0.05, random_state=0)
    found = neighbor_clusters(x, 4)
    np.testing.assert_array_equal(found, neighbor_clusters(torch.tensor(x), 4))
    np.testing.assert_array_equal(found, neighbor_clusters(x.reshape(100, 1, 2), 4))
    assert found.shape == (100,)
    assert set(found) == {0, 1, 2, 3}


def test_data_that_lie_on_each_other() -> None:
    x = np.repeat(np.eye(3), 20, axis=0)
    found = neighbor_clusters(x, 3)
    assert adjusted_rand_score(np.repeat([0, 1, 2], 20), found) == 1


def test_copies_of_a_datum_do_not_cut_it_off_from_what_is_near() -> None:
    """Three data forty times over, and others around each of them."""
    rng = np.random.default_rng(0)
    centers = 10 * np.eye(3, 20)
    around = rng.normal(size=(90, 20))
    around *= 1.5 / np.linalg.norm(around, axis=1, keepdims=True)
    x = np.concatenate([centers.repeat(40, axis=0), centers.repeat(30, axis=0) + around])
    group = np.concatenate([np.repeat([0, 1, 2], 40), np.repeat([0, 1, 2], 30)])
    assert adjusted_rand_score(group, neighbor_clusters(x, 3)) == 1


def test_an_offset_changes_nothing() -> None:
    x, moon = make_moons(200, noise=0.05, random_state=0)
    assert adjusted_rand_score(moon, neighbor_clusters(x + 1e9, 2)) == 1


def two_groupings(n: int = 400) -> tuple[torch.Tensor, np.ndarray]:
    """Eight pixels in three patterns, and a slope that is another matter."""
    rng = np.random.default_rng(0)
    pattern = rng.integers(3, size=n)
    x = 0.8 * np.eye(3).repeat(2, axis=1)[pattern] @ np.eye(6, 8) + 0.02 * rng.normal(size=(n, 8))
    return torch.tensor(x, dtype=torch.float32), pattern


def start(label_weight: float, facets: tuple[str, ...] = ("style", "digit")) -> SVIRunner:
    pyro.set_rng_seed(0)
    priors = {name: GaussianMixture(3, 2) for name in facets}
    model = MFCVAE((8,), priors, Normal(0.3), MLPLadder((32,) * len(facets)))
    return SVIRunner(model, VaDEGuide(model, label_weight=label_weight), lr=3e-3)


@pytest.mark.filterwarnings("ignore::inference.runner.DeadFacetWarning")
def test_the_guide_learns_a_facets_clusters() -> None:
    x, pattern = two_groupings()
    runner, known = start(30.0), {"digit": neighbor_clusters(x, 3)}
    fit_mixtures(runner.guide, x, label=known)
    found = runner.fit(x, 10, 50, progress=False, label=known).guide.predict(x)
    assert adjusted_rand_score(pattern, found["digit"]) == 1
    assert adjusted_rand_score(pattern, found["style"]) < 0.9  # which was taught nothing


def test_the_elbo_is_without_the_lesson() -> None:
    x, _ = two_groupings(50)
    runner = start(30.0)
    label = {"digit": np.zeros(50, int)}
    values = []
    for weight in (30.0, 0.0):
        runner.guide.label_weight = weight
        pyro.set_rng_seed(1)
        values.append(elbo(runner.model, runner.guide, x, 5, label=label)[0])
    assert values[0] == values[1]


def test_one_hot_labels_teach_as_integers_do() -> None:
    runner = start(30.0, ("digit",))
    logits = torch.randn(4, 3)
    label = torch.tensor([0, 2, 1, 1])
    learned = []
    for given in (label, torch.eye(3)[label]):
        with pyro.poutine.trace() as trace, pyro.plate("data", 4):
            runner.guide.add_label_loss("label_loss", logits, given)
        learned.append(trace.trace.nodes["label_loss"]["fn"].log_factor)
    torch.testing.assert_close(learned[0], -30 * logits.log_softmax(-1)[range(4), label])
    torch.testing.assert_close(learned[0], learned[1])


def test_the_weight_is_kept_with_the_guide(tmp_path) -> None:
    model = VaDE((8,), GaussianMixture(3, 2), Normal(0.3))
    SVIRunner(model, VaDEGuide(model, label_weight=7.0)).save(tmp_path / "run")
    assert SVIRunner.load(tmp_path / "run").guide.label_weight == 7.0


@pytest.mark.parametrize("apart", [0.0, 8.0])
def test_clusters_are_counted(apart: float) -> None:
    """Four normals; one, if nothing is between them."""
    rng = np.random.default_rng(0)
    group = rng.integers(4, size=600)
    x = apart * np.eye(5)[group] + rng.normal(size=(600, 5))
    found = neighbor_clusters(x)
    if apart:
        assert adjusted_rand_score(group, found) > 0.95
    else:
        assert set(found) == {0}


@pytest.mark.parametrize(("number", "dim"), [(5, 1), (5, 4), (8, 4), (15, 2)])
def test_clusters_along_a_line_are_counted(number: int, dim: int) -> None:
    """Ten and more deviations apart: samples of their covariance are nearly a chain, too."""
    rng = np.random.default_rng(0)
    group = rng.integers(number, size=60 * number)
    x = rng.normal(size=(len(group), dim)) + 14 * group[:, None]
    found = neighbor_clusters(x)
    assert found.max() + 1 == number
    assert adjusted_rand_score(group, found) > 0.7


@pytest.mark.parametrize("draw", ["uniform", "normal", "standard_t"])
def test_bounds_and_tails_are_no_clusters(draw: str) -> None:
    """Of ten tables each; two or more of them in fewer than 9 % of tests, at a true rate of 5 %."""
    counts = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        shape = (400, int(rng.integers(3, 12)))
        x = rng.standard_t(4, shape) if draw == "standard_t" else getattr(rng, draw)(size=shape)
        counts.append(int(neighbor_clusters(x).max()) + 1)
    assert sum(count > 1 for count in counts) <= 1, counts


def clumps(rows: int = 3000, dim: int = 8) -> np.ndarray:
    rng = np.random.default_rng(0)
    center = rng.normal(size=(30, dim))
    return (center[rng.integers(30, size=rows)] + 0.4 * rng.normal(size=(rows, dim))).astype("f4")


def test_approximate_neighbors_are_nearly_all_of_the_nearest() -> None:
    pytest.importorskip("faiss")
    places = clumps()
    distance, neighbor = NearestNeighbors().fit(places).kneighbors(places[:500], 10)
    near, found = CellSearch(places).kneighbors(places[:500], 10)
    shared = [len(set(a) & set(b)) for a, b in zip(neighbor, found, strict=True)]
    assert np.mean(shared) > 9.5
    assert (found[:, 0] == range(500)).all()
    np.testing.assert_allclose(near[:, 0], distance[:, 0], atol=1e-3)
    assert (near[:, -1] > distance[:, -1] - 1e-3).all()


def test_cells_that_have_too_few_are_not_the_only_ones_searched() -> None:
    pytest.importorskip("faiss")
    lonely = np.repeat(np.arange(20.0)[:, None] * 100, 2, 1).astype("f4")
    places = np.concatenate([np.zeros((2000, 2), "f4"), lonely[1:]])
    search = CellSearch(places)
    _, found = search.kneighbors(lonely, 500)
    assert (found >= 0).all()


@pytest.mark.parametrize(("rows", "kind"), [(MANY, NearestNeighbors), (MANY + 1, CellSearch)])
def test_many_data_are_searched_in_cells(rows: int, kind: type) -> None:
    pytest.importorskip("faiss")
    assert type(nearest_search(clumps(rows, 2), None)) is kind


def test_without_faiss_neighbors_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert type(nearest_search(clumps(MANY + 1, 2), None)) is NearestNeighbors
    with pytest.raises(ImportError, match=r"pip install 'facetvae\[neighbors\]'"):
        NeighborGraph(clumps(100), approximate=True)


def test_a_search_in_cells_can_be_kept() -> None:
    pytest.importorskip("faiss")
    graph = NeighborGraph(clumps(500), approximate=True)
    again = pickle.loads(pickle.dumps(graph))
    new, q = clumps(500)[:5] + 0.1, np.eye(500)
    np.testing.assert_array_equal(again.counts_for(new, q), graph.counts_for(new, q))
