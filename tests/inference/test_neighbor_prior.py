"""A prior over neighbors: against the joint of all clusters, enumerated, and as data use it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy.sparse import csr_matrix
from scipy.special import logsumexp, softmax
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from guides import AmortizedGuide, LadderGuide, VaDEGuide
from inference import (
    Checkpoints,
    Loss,
    NeighborGraph,
    SVIRunner,
    cluster_posterior,
    fit_neighbors,
    image_graph,
    image_variants,
    neighbor_clusters,
    random_affine,
)
from inference.callbacks import ReduceOnPlateau, StopEarly
from inference.initialization import image_features
from inference.initialization.neighbor_training import likeliest_strength, mean_field
from ppl_models import (
    MFCVAE,
    DirichletWeights,
    GaussianMixture,
    MLPLadder,
    NeighborMixture,
    Normal,
    SharedMLP,
    StandardNormal,
    VaDE,
)

N, K = 5, 3


def small_graph(seed: int = 0, n: int = N) -> NeighborGraph:
    return NeighborGraph(np.random.default_rng(seed).normal(size=(n, 2)), num_neighbors=2)


def log_prior(weights: np.ndarray, log_pi: np.ndarray, strength: float) -> dict[tuple, float]:
    """log p(c_1, ..., c_N) of every c, by the definition."""
    n, found = len(weights), {}
    for c in product(range(K), repeat=n):
        edges = sum(weights[i, j] for i in range(n) for j in range(i) if c[i] == c[j])
        found[c] = log_pi[list(c)].sum() + strength * edges
    total = logsumexp(list(found.values()))
    return {c: value - total for c, value in found.items()}


def test_one_datums_clusters_are_conditionals_of_the_joint() -> None:
    graph, prior = small_graph(), NeighborMixture(GaussianMixture(K, 2), 1.25).double()
    log_pi = np.log([0.5, 0.3, 0.2])
    prior.mixture.set_weights(torch.tensor(np.exp(log_pi)))
    joint = log_prior(graph.weights.toarray(), log_pi, 1.25)
    for c in list(joint)[::7]:
        counts = torch.as_tensor(graph.counts(np.eye(K)[list(c)]))
        found = prior.component(counts).log_probs.detach().numpy()
        for i in range(N):
            each = np.array([joint[(*c[:i], k, *c[i + 1 :])] for k in range(K)])
            np.testing.assert_allclose(found[i], each - logsumexp(each), rtol=0, atol=1e-10)


def bound(q: np.ndarray, log_joint: np.ndarray, weights: np.ndarray, strength: float) -> float:
    """The bound of log sum over c of p(c) p(z given c), but for the prior's constant."""
    entropy = -(q * np.log(q)).sum()
    return float((q * log_joint).sum() + strength * (q * (weights @ q)).sum() / 2 + entropy)


def test_the_bound_is_short_of_the_evidence_by_the_divergence() -> None:
    """Both by enumeration; and mean field ends where no change of q raises the bound."""
    rng, graph, strength = np.random.default_rng(0), small_graph(), 1.25
    weights, log_pi = graph.weights.toarray(), np.log([0.5, 0.3, 0.2])
    density = rng.normal(size=(N, K))  # log p(z given c)
    log_z = logsumexp(
        [
            log_pi[list(c)].sum()
            + strength * sum(weights[i, j] for i in range(N) for j in range(i) if c[i] == c[j])
            for c in product(range(K), repeat=N)
        ]
    )
    joint = {
        c: value + density[range(N), c].sum()
        for c, value in log_prior(weights, log_pi, strength).items()
    }
    evidence = logsumexp(list(joint.values()))
    q = mean_field(density + log_pi, graph, strength)
    for each in (q, rng.dirichlet(np.ones(K), N)):
        divergence = sum(
            np.exp(log_q) * (log_q - (value - evidence))
            for c, value in joint.items()
            for log_q in [np.log(each[range(N), c]).sum()]
        )
        short = evidence - (bound(each, density + log_pi, weights, strength) - log_z)
        assert short == pytest.approx(divergence, abs=1e-10)
    best = bound(q, density + log_pi, weights, strength)
    for _ in range(50):
        other = q * np.exp(0.05 * rng.normal(size=q.shape))
        other /= other.sum(1, keepdims=True)
        assert bound(other, density + log_pi, weights, strength) < best + 1e-5


def model_and_guide() -> VaDEGuide:
    pyro.set_rng_seed(1)
    prior = NeighborMixture(GaussianMixture(K, 2, weights="uniform", scale=1.0), 1.25)
    return VaDEGuide(VaDE((4,), prior, network=SharedMLP((6,)))).double()


def by_hand(guide: VaDEGuide, x: Tensor, weights: Tensor, q_others: Tensor) -> Tensor:
    """The whole bound of N data, with z from the stream's state; each q follows its neighbors'."""
    model = guide.model
    z = poutine.trace(guide).get_trace(x).nodes["z_cluster"]["value"]
    posterior = guide.encode(x)["cluster"]
    log_joint = model.mixtures["cluster"].log_joint(z)
    q = (log_joint + 1.25 * weights @ q_others).softmax(-1)
    edges = 1.25 * (q * (weights @ q)).sum() / 2
    rows = model.decode({"cluster": z}).log_prob(x) - posterior.log_prob(z)
    return rows.sum() + (q * (log_joint - q.log())).sum() + edges


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_objectives_gradient_is_that_of_the_whole_bound(factor: float) -> None:
    """With each datum's neighbors at the fixed point; half of them would give another gradient."""
    guide, graph = model_and_guide(), small_graph()
    x = torch.rand(N, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = torch.as_tensor(graph.weights.toarray())
    pyro.set_rng_seed(7)
    z = poutine.trace(guide).get_trace(x).nodes["z_cluster"]["value"].detach()
    log_joint = guide.model.mixtures["cluster"].log_joint(z).detach()
    q = log_joint.softmax(-1)
    for _ in range(2000):
        q = (log_joint + 1.25 * weights @ q).softmax(-1)
    parameters = [p for p in guide.parameters() if p.requires_grad]
    pyro.set_rng_seed(7)
    whole = torch.autograd.grad(by_hand(guide, x, weights, q), parameters, allow_unused=True)
    loss = Loss(guide.model, guide)
    pyro.set_rng_seed(7)
    ours = torch.autograd.grad(
        -N * loss(x, neighbors=factor * weights @ q), parameters, allow_unused=True
    )
    differences = [
        float((a - b).abs().max()) for a, b in zip(whole, ours, strict=True) if a is not None
    ]
    assert len(differences) > 5
    if factor == 1:
        assert max(differences) < 1e-10
    else:
        assert max(differences) > 1e-3, "what the test would find"


def gibbs(weights: csr_matrix, strength: float, sweeps: int, seed: int) -> np.ndarray:
    """A draw of all clusters, one after the other given the others."""
    rng, n = np.random.default_rng(seed), weights.shape[0]
    c = rng.integers(K, size=n)
    for _ in range(sweeps):
        for i in range(n):
            row = slice(weights.indptr[i], weights.indptr[i + 1])
            counts = np.bincount(c[weights.indices[row]], weights.data[row], K)
            noise = rng.gumbel(size=K)
            c[i] = int((strength * counts + noise).argmax())
    return c


def test_the_strength_of_drawn_clusters_is_found() -> None:
    """Of six draws of 600 clusters at 1.5: an error of 0.03, so that 0.15 would be found."""
    x = np.random.default_rng(0).normal(size=(600, 2))
    graph = NeighborGraph(x, num_neighbors=4)
    draws = [np.eye(K)[gibbs(graph.weights, 1.5, 60, seed)] for seed in range(6)]
    found = [likeliest_strength(graph, each, np.zeros(K)) for each in draws]
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert error < 0.04
    assert abs(np.mean(found) - 1.5) < 4 * error
    alone = np.random.default_rng(0).integers(K, size=600)
    assert likeliest_strength(graph, np.eye(K)[alone], np.zeros(K)) < 0.3


def moons() -> tuple[np.ndarray, np.ndarray]:
    """Two half-moons."""
    x, label = make_moons(400, noise=0.05, random_state=0)
    return x - x.mean(0), label


def trained(
    epochs: int = 20,
) -> tuple[SVIRunner, np.ndarray, np.ndarray, np.ndarray, NeighborGraph]:
    """Of two groups, which overlap in the data and do not in what the graph was built from."""
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=400)
    x = label[:, None] * np.array([2.0, 0.0, 0.0]) - 1 + rng.normal(size=(400, 3))
    place = label[:, None] * 4 + rng.normal(size=(400, 2))
    graph = NeighborGraph(place)
    pyro.set_rng_seed(0)
    facets = {"group": NeighborMixture(GaussianMixture(2, 2, scale=1.0))}
    model = MFCVAE((3,), facets, Normal(0.9), SharedMLP((32,)))
    runner = SVIRunner(model, VaDEGuide(model), lr=5e-3)
    how = {"batch_size": 100, "progress": False, "log_every": 10}
    runner.fit(x, 40, label=graph.clusters(2), **how)
    fit_neighbors(runner, x, graph, epochs, every=10, **how)
    return runner, x, place, label, graph


def accuracy(label: np.ndarray, found: np.ndarray) -> float:
    return max((found == label).mean(), (found != label).mean())


def test_neighbors_tell_what_a_datum_does_not() -> None:
    """Alone, 84 % can be told (a distance of two deviations); their neighbors' are clear."""
    runner, x, place, label, graph = trained()
    assert runner.epoch == 60
    q = cluster_posterior(runner.guide, x, graph)
    assert accuracy(label, q.argmax(1)) > 0.96
    assert 0.75 < accuracy(label, runner.guide.predict(x)["group"]) < 0.9
    strength = runner.model.mixtures["group"].strength.item()
    assert strength > 0.5
    counts = graph.counts(q)
    told = runner.guide.predict(x, neighbors=counts)["group"]
    np.testing.assert_array_equal(told, q.argmax(1))
    # Nothing of a neighbor is a datum alone.
    none = runner.guide.predict_proba(x, neighbors=np.zeros_like(counts))["group"]
    np.testing.assert_allclose(none, runner.guide.predict_proba(x)["group"], atol=1e-6)
    new = graph.counts_for(place[:20], q)
    assert (new.argmax(1) == q[:20].argmax(1)).mean() > 0.9
    beside = graph.counts_for(np.concatenate([place[:20], place[:300] + 100]), q)[:20]
    np.testing.assert_allclose(beside, new, atol=1e-4, err_msg="whatever rows come together")


def test_an_encoder_learns_clusters_as_neighbors_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the columns are noise that other forms of a datum draw anew. What is trained on are
    these forms, with the most probable cluster of each datum given its neighbors.
    """
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=300)
    place = label[:, None] * 4 + rng.normal(size=(300, 2))
    x = np.hstack([label[:, None] * 3 - 1.5 + rng.normal(size=(300, 1)), rng.normal(size=(300, 5))])
    graph = NeighborGraph(place)
    pyro.set_rng_seed(0)
    facets = {
        "other": GaussianMixture(2, 1),
        "group": NeighborMixture(GaussianMixture(2, 2, scale=0.5)),
    }
    model = MFCVAE((6,), facets, Normal(1.0), SharedMLP((32,)))
    runner = SVIRunner(model, VaDEGuide(model, label_weight=10.0), lr=5e-3, seed=4)
    how = {"batch_size": 50, "progress": False, "log_every": 10}
    runner.fit(x, 5, label={"group": graph.clusters(2)}, **how)
    seen, fit = [], SVIRunner.fit

    def watched(self: SVIRunner, x: np.ndarray, epochs: int, **given: object) -> SVIRunner:
        seen.append((x, epochs, given["label"]))
        return fit(self, x, epochs, **given)

    def forms(x: np.ndarray, seed: int) -> np.ndarray:
        drawn = np.random.default_rng(seed).normal(size=(len(x), 5))
        return np.hstack([x[:, :1], drawn])

    monkeypatch.setattr(SVIRunner, "fit", watched)
    known = np.full((300, 2), -1)  # a column for each facet
    known[:9, 0] = label[:9]
    fit_neighbors(runner, x, graph, 6, every=3, hard=True, augment=forms, label=known, **how)
    assert [epochs for _, epochs, _ in seen] == [1] * 6
    assert len({each[0, 1] for each, _, _ in seen}) == 6, "another form each time"
    for each, _, given in seen:
        np.testing.assert_array_equal(each[:, 0], x[:, 0])
        np.testing.assert_array_equal(given["other"], known[:, 0])
    first, last = seen[0][2]["group"], seen[-1][2]["group"]
    assert seen[2][2]["group"] is first is not last is seen[3][2]["group"]
    assert accuracy(label, last) > 0.97, "neighbors tell more than the datum does"
    # The Bayes rule of the datum alone is right in Phi(1.5) = 93 %.
    assert accuracy(label, runner.guide.predict(x)["group"]) > 0.88


def test_callbacks_wait_over_all_parts_of_a_call() -> None:
    x = moons()[0] / 4 + 0.5
    model = VaDE((2,), NeighborMixture(GaussianMixture(2, 2)), network=SharedMLP((8,)))
    runner, graph = SVIRunner(model, VaDEGuide(model)), NeighborGraph(x)
    calls = [StopEarly(patience=3, threshold=1e9), ReduceOnPlateau(patience=1, threshold=1e9)]
    for epochs in (4, 8):  # a second call waits anew
        fit_neighbors(runner, x, graph, 20, every=1, callbacks=calls, progress=False)
        assert runner.epoch == epochs
    assert runner.history[3]["lr"] == runner.lr / 2


def test_known_clusters_count_among_neighbors() -> None:
    """Data that tell nothing of their group, half of which are known, beside others of theirs."""
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=300)
    x = rng.normal(size=(300, 3))
    graph = NeighborGraph(label[:, None] * 8 + rng.normal(size=(300, 2)))
    known = np.where(rng.random(300) < 0.5, label, -1)
    pyro.set_rng_seed(0)
    facets = {"group": NeighborMixture(GaussianMixture(2, 2, scale=1.0), strength=5.0)}
    model = MFCVAE((3,), facets, Normal(0.9), SharedMLP((8,)))
    runner = SVIRunner(model, VaDEGuide(model), lr=1e-3)
    given = {"label": {"group": known}}
    q = cluster_posterior(runner.guide, x, graph, **given)
    assert (q[known >= 0].argmax(1) == known[known >= 0]).all()
    assert (q.argmax(1) == label).mean() > 0.95
    fit_neighbors(runner, x, graph, 2, every=1, batch_size=100, progress=False, **given)
    assert model.mixtures["group"].strength > 0.5
    counts = graph.counts(cluster_posterior(runner.guide, x, graph, **given))
    assert (counts.argmax(1) == label).mean() > 0.9


def test_averaged_weights_stay_averaged() -> None:
    """Under Dirichlet weights the probabilities sum to less than 1, with neighbors as without."""
    inner = GaussianMixture(K, 2, weights=DirichletWeights(num_data=50))
    prior = NeighborMixture(inner, 0.5)
    alone, near = prior.component(), prior.component(torch.tensor([[4.0, 1.0, 0.0]]))
    assert near.log_probs.logsumexp(-1).item() == pytest.approx(
        alone.log_probs.logsumexp(-1).item(), abs=1e-6
    )
    assert near.log_probs.argmax() == 0


# Graphs.


def test_a_graph_has_the_weights_of_the_spectral_clusters() -> None:
    x, _ = moons()
    found = NeighborGraph(x).clusters(4)
    assert adjusted_rand_score(found, neighbor_clusters(x, num_clusters=4)) > 0.95
    weights = NeighborGraph(x, num_neighbors=4).weights
    assert abs(weights - weights.T).max() == 0
    assert weights.diagonal().max() == 0
    assert ((weights > 0).sum(1) >= 4).all()


def test_directions_of_what_comes_late_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In sorted data two clusters of the last third differ in a direction of their own."""
    monkeypatch.setattr("inference.initialization.graph.PCA_ROWS", 200)
    rng = np.random.default_rng(0)
    x = np.concatenate([5 * rng.normal(size=(400, 3)), np.zeros((200, 3))])
    late = np.where(np.arange(600) < 400, 0, 10 * (2 * (np.arange(600) % 2) - 1))
    x = np.concatenate([x, rng.normal(size=(600, 3)), late[:, None] + rng.normal(size=(600, 1))], 1)
    weights = NeighborGraph(x, num_neighbors=5, dim=4).weights.tocoo()
    ends = np.stack([weights.row, weights.col])
    edges = ends[:, (ends >= 400).all(0)]
    assert (edges[0] % 2 == edges[1] % 2).mean() > 0.99


def test_what_is_near_to_another_form_is_a_neighbor() -> None:
    """Ten points on a line; their other forms are shifted by five."""
    x = np.arange(10.0)[:, None] + 0.01 * np.random.default_rng(0).random((10, 1))
    graph = NeighborGraph(x, num_neighbors=3, variants=[x + 5])
    assert graph.weights[0, 5] > 0
    assert NeighborGraph(x, num_neighbors=3).weights[0, 5] == 0
    counts = graph.counts_for(x[:1], np.eye(10), variants=[x[:1] + 5])
    assert counts[0, 5] > 0
    assert counts[0, 0] > 0, "a datum that is new may lie where one of the graph's does"


def test_turned_images_are_neighbors() -> None:
    """Bars in twelve directions, three of each: neighbors differ by 15 degrees at most."""
    grid = np.stack(np.meshgrid(np.arange(16) - 7.5, np.arange(16) - 7.5), -1)
    angles = np.repeat(np.pi * np.arange(12) / 12, 3)
    shift = np.random.default_rng(0).uniform(-1, 1, len(angles))
    across = np.stack([-np.sin(angles), np.cos(angles)], -1)
    distance = np.einsum("hwc,nc->nhw", grid, across) - shift[:, None, None]
    images = torch.as_tensor(np.exp(-(distance**2) / 2)).float()
    graph = image_graph(images, num_neighbors=2)
    apart = abs((angles[:, None] - angles + np.pi / 2) % np.pi - np.pi / 2)
    weights = graph.weights.toarray()
    assert weights[apart < 0.27].sum() > 0.95 * weights.sum()
    assert weights[apart > 0.1].sum() > 0.3 * weights.sum(), "turned ones, too"
    assert image_features.oriented_gradients(images).shape == (36, 8 * 8 * 8)
    assert [tuple(each.shape) for each in image_variants(images)] == [(36, 1, 16, 16)] * 4


@pytest.mark.parametrize(
    ("only", "low", "high"),
    [("SHIFT", 0.0, 0.07), ("LOG_SCALE", np.exp(-0.15), np.exp(0.15)), ("TURN", -0.2, 0.2)],
)
def test_images_are_moved_each_by_its_own_map(
    only: str, low: float, high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By moments of an ellipse: its mean moves, its size or its angle changes, uniformly within
    what is allowed, and nothing else does; 400 draws come near to both ends.
    """
    for name in {"SHIFT", "LOG_SCALE", "TURN", "SHEAR"} - {only}:
        monkeypatch.setattr(image_features, name, 0.0)
    side = 32
    y, x = np.meshgrid(*[(np.arange(side) + 0.5) / side - 0.5] * 2, indexing="ij")
    image = np.exp(-((x / 0.15) ** 2) / 2 - ((y / 0.06) ** 2) / 2).astype(np.float32)
    moved = random_affine(np.tile(image, (400, 1, 1)), seed=3).numpy()
    weight = moved / moved.sum((1, 2), keepdims=True)
    mean = np.stack([(weight * x).sum((1, 2)), (weight * y).sum((1, 2))], 1)
    across, down = x - mean[:, :1, None], y - mean[:, 1:, None]
    xx, xy, yy = ((weight * each).sum((1, 2)) for each in (across**2, across * down, down**2))
    size = ((xx * yy - xy**2) / (0.15 * 0.06) ** 2) ** 0.25
    measured = {"SHIFT": abs(mean), "LOG_SCALE": size, "TURN": np.arctan2(2 * xy, xx - yy) / 2}
    for name, values in measured.items():
        if name == only:
            margin = 0.05 * (high - low)
            assert low - margin < values.min() < low + margin
            assert high - margin < values.max() < high + margin
        else:
            assert np.ptp(values) < 0.03, name
    again = random_affine(torch.as_tensor(image).expand(400, side, side), seed=3)
    np.testing.assert_array_equal(again, moved)


def test_oriented_gradients_are_what_they_say() -> None:
    """Pixel by pixel, by the definition: shares of eight directions, blurred, their roots."""
    image = np.random.default_rng(0).random((6, 9))
    padded = np.pad(image, 1)
    sobel = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
    shares = np.zeros((8, 6, 9))
    for i, j in np.ndindex(6, 9):
        part = padded[i : i + 3, j : j + 3]
        across, down = (part * sobel).sum(), (part * sobel.T).sum()
        away = np.arctan2(down, across) - 2 * np.pi * np.arange(8) / 8
        shares[:, i, j] = np.cos(away).clip(0) ** 2 * np.hypot(across, down)
    reach = np.arange(-5, 6)
    bell = np.exp(-(reach**2) / (2 * 1.5**2))
    wide = np.pad(shares, ((0, 0), (5, 5), (5, 5)))
    blurred = [
        [
            (wide[:, i : i + 11, j : j + 11] * np.outer(bell, bell)).sum((1, 2)) / bell.sum() ** 2
            for j in range(0, 9, 2)
        ]
        for i in range(0, 6, 2)
    ]
    expected = np.sqrt(np.moveaxis(np.array(blurred), -1, 0)).ravel()
    np.testing.assert_allclose(
        image_features.oriented_gradients(image[None])[0], expected, atol=1e-5
    )


@pytest.mark.parametrize("kind", [AmortizedGuide, LadderGuide])
def test_a_networks_posterior_is_multiplied_by_what_neighbors_say(kind: type) -> None:
    """q(c given x, neighbors) of its own draws and predictions: q(c given x) exp(strength n)."""
    pyro.set_rng_seed(0)
    prior = NeighborMixture(GaussianMixture(K, 2), 0.7)
    prior.mixture.set_weights(torch.tensor([0.5, 0.3, 0.2]))
    facets = {"plain": StandardNormal(2), "cluster": prior}
    guide = kind(MFCVAE((4,), facets, network=MLPLadder((6, 6)))).double()
    x = np.random.default_rng(0).random((7, 4))
    counts = np.random.default_rng(1).random((7, K)) * 5
    expected = softmax(np.log(guide.predict_proba(x)["cluster"]) + 0.7 * counts, 1)
    near = {"neighbors": torch.as_tensor(counts)}
    found = guide.predict_proba(x, neighbors=counts)["cluster"]
    np.testing.assert_allclose(found, expected, atol=1e-10)
    drawn = poutine.trace(guide).get_trace(torch.as_tensor(x), **near).nodes["c_cluster"]["fn"]
    np.testing.assert_allclose(drawn.probs.detach(), expected, atol=1e-10)
    runner = SVIRunner(guide.model, guide, seed=0)
    graph = NeighborGraph(x, num_neighbors=3)
    fit_neighbors(runner, x, graph, epochs=2, every=1, batch_size=4, progress=False)
    assert runner.epoch == 2
    assert np.isfinite(runner.history[-1]["elbo"])


def test_each_facet_has_its_own_graph() -> None:
    """And its own strength; what is given by facet or side by side is the same."""
    rng = np.random.default_rng(0)
    label = rng.integers(2, size=(2, 120))
    x = np.repeat(label.T * 2.0, 2, 1) + 0.3 * rng.normal(size=(120, 4))
    pyro.set_rng_seed(0)
    facets = {name: NeighborMixture(GaussianMixture(2, 2)) for name in ("left", "right")}
    model = MFCVAE((4,), facets, Normal(0.3), SharedMLP((16,)))
    runner = SVIRunner(model, VaDEGuide(model), seed=0)
    graphs = {"left": NeighborGraph(x[:, :2]), "right": NeighborGraph(rng.normal(size=(120, 2)))}
    known = {name: label[j] for j, name in enumerate(facets)}
    runner.fit(x, 60, batch_size=30, label=known, progress=False, log_every=60)
    fit_neighbors(runner, x, graphs, 2, every=1, batch_size=30, progress=False)
    strength = {name: prior.strength.item() for name, prior in model.mixtures.items()}
    assert strength["left"] > 1 > strength["right"] > -1e-6, "the right one's says nothing"
    counts = {name: graph.counts(np.eye(2)[known[name]]) for name, graph in graphs.items()}
    side_by_side = runner.guide.predict_proba(x, neighbors=np.hstack(list(counts.values())))
    np.testing.assert_equal(runner.guide.predict_proba(x, neighbors=counts), side_by_side)


@pytest.mark.parametrize(
    "options", [{}, {"hard": True, "augment": lambda x, seed: x * (0.8 + 0.2 * (seed % 2))}]
)
def test_training_with_neighbors_goes_on_after_a_stop(options: dict, tmp_path: Path) -> None:
    """Stopped in the second of three parts, it ends bit for bit as a run that was not."""

    class Stop(Exception):
        pass

    def stop(runner: SVIRunner, record: dict) -> None:
        if record["epoch"] == 5:
            raise Stop

    def fit(*callbacks: Callable) -> SVIRunner:
        pyro.set_rng_seed(0)
        model = VaDE((2,), NeighborMixture(GaussianMixture(2, 2)), network=SharedMLP((8,)))
        runner = SVIRunner(model, VaDEGuide(model), seed=0)
        x = moons()[0] / 4 + 0.5
        how = {"every": 2, "batch_size": 100, "progress": False, "log_every": 1, **options}
        kept = Checkpoints(tmp_path / "kept", resume=True) if callbacks else None
        return fit_neighbors(
            runner, x, NeighborGraph(x), 6, checkpoints=kept, callbacks=callbacks, **how
        )

    whole = fit()
    with pytest.raises(Stop):
        fit(stop)
    again = fit(lambda runner, record: None)
    assert again.epoch == 6
    torch.testing.assert_close(again.guide.state_dict(), whole.guide.state_dict(), rtol=0, atol=0)
    assert [r["objective"] for r in again.history] == [r["objective"] for r in whole.history]


@pytest.mark.parametrize("L", [1, 2])
def test_neighbors_weigh_where_clusters_are_summed_out(L: int) -> None:
    """With responsibilities given z the bounds of one draw are equal (Eq. 62 and 71); of two draws
    with responsibilities each, the sum over clusters is their mean.
    """
    pyro.set_rng_seed(0)
    prior = NeighborMixture(GaussianMixture(K, 2, scale=1.0), strength=1.0)
    facets = {"a": prior, "b": StandardNormal(2)}
    guide = VaDEGuide(MFCVAE((6,), facets, network=SharedMLP((8,)))).double()
    torch.nn.init.normal_(prior.mixture.loc)
    x, said = torch.rand(4, 6).double(), torch.tensor([[10.0, 0, 1]]).double().expand(4, 3)
    z = {name: q.sample(torch.Size([L])).squeeze(0) for name, q in guide.encode(x).items()}
    model = poutine.condition(guide.model, data={f"z_{name}": each for name, each in z.items()})
    traced = poutine.trace(model).get_trace(x, marginal=True, neighbors=said, num_samples=L)
    components = torch.distributions.Normal(prior.loc, prior.mixture.scale)
    share = (prior.logits.log_softmax(-1) + prior.strength * said).log_softmax(-1)
    joint = components.log_prob(z["a"].unsqueeze(-2)).sum(-1) + share
    summed = joint.logsumexp(-1)
    traced.compute_log_prob()
    torch.testing.assert_close(traced.nodes["z_a"]["unscaled_log_prob"], summed)
    expected = (
        guide.model.decode(z).log_prob(x)
        + summed
        + torch.distributions.Normal(0.0, 1.0).log_prob(z["b"]).sum(-1)
    )
    torch.testing.assert_close(guide.model.log_joint(x, z, neighbors=said), expected)
    torch.testing.assert_close(prior.log_prob(z["a"], neighbors=said), summed)


def test_a_ladder_climbs_with_the_clusters_that_neighbors_say() -> None:
    pyro.set_rng_seed(0)
    facets = {"low": NeighborMixture(GaussianMixture(K, 2), 5.0), "high": StandardNormal(2)}
    guide = LadderGuide(MFCVAE((4,), facets, network=MLPLadder((6, 6))))
    for parameter in guide.encoder.parameters():
        torch.nn.init.normal_(parameter)  # shifts of clusters begin at 0
    x = np.random.default_rng(0).random((6, 4))
    said = {"neighbors": 10 * np.eye(K)[[0, 1, 2, 0, 1, 2]]}
    np.testing.assert_array_equal(guide.predict(x, **said)["low"], [0, 1, 2, 0, 1, 2])
    differs = guide.predict(x)["low"] != guide.predict(x, **said)["low"]
    moved = abs(guide.embed(x, **said)["high"] - guide.embed(x)["high"]).max(1) > 1e-3
    np.testing.assert_array_equal(moved, differs)


def test_counts_of_several_facets_keep_their_fractions() -> None:
    """Beside whole numbers of another facet, and in double precision beside none."""
    facets = {name: NeighborMixture(GaussianMixture(2, 2)) for name in ("a", "b")}
    model = MFCVAE((4,), facets, network=MLPLadder((6, 6))).double()
    given = {"a": np.zeros((3, 2), int), "b": np.full((3, 2), 0.7)}
    expected = torch.tensor([[0, 0, 0.7, 0.7]] * 3, dtype=torch.float64)
    assert (model.check_given("neighbors", given, 3) == expected).all()
    assert (model.check_given("neighbors", {"b": given["b"]}, 3) == expected).all()
