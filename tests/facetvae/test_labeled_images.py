"""Labels of some images reach the others by their neighbors."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import normalized_mutual_info_score as nmi

from facetvae import MultiFacetClustering
from facetvae.table_rules.known import named_after, spread_labels


def curves(rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Two circles around each other, which no distance to a center tells apart."""
    rng = np.random.default_rng(0)
    angle, label = rng.uniform(0, 2 * np.pi, rows), np.arange(rows) % 2
    circle = np.stack([np.cos(angle), np.sin(angle)], 1) * np.where(label, 1.0, 0.3)[:, None]
    return circle + 0.02 * rng.normal(size=circle.shape), label


def test_labels_spread_along_chains_of_neighbors() -> None:
    x, truth = curves()
    few = np.where(np.arange(200) < 4, truth, -1)
    assert (spread_labels(x, few, 0) == truth).all()


def test_labels_stay_as_given_and_reach_no_other_part() -> None:
    """Of three groups far apart one has no label; a wrong label stays that row's own."""
    rng = np.random.default_rng(1)
    x = np.repeat([[0.0, 0.0], [50.0, 0.0], [0.0, 50.0]], 30, 0) + rng.normal(size=(90, 2))
    label = np.full(90, -1)
    label[[0, 1, 2, 30, 31]] = 0, 0, 1, 1, 1
    spread = spread_labels(x, label, 0)
    assert spread[[0, 1, 2, 30, 31]].tolist() == [0, 0, 1, 1, 1]
    assert (spread[3:30] == 0).mean() > 0.75
    assert (spread[30:60] == 1).all()
    assert (spread[60:] == -1).all()


def test_clusters_are_named_after_labels() -> None:
    """Cluster 2 has two rows of class 0, cluster 0 one of class 1; no class is left for 1."""
    clusters = np.array([2, 2, 2, 0, 0, 1, 1, -1, -1])
    label = np.array([0, 0, 1, 1, -1, -1, -1, -1, 0])
    assert named_after(clusters, label).tolist() == [0, 0, 1, 1, 1, 2, 2, -1, 0]


def test_labels_of_few_digits_tell_the_others() -> None:
    """Of 600 digits a fifth is labeled: the rest share 0.85 with their kinds, where networks that
    learned them from labels alone had 0.78.
    """
    x, truth = (each[:600] for each in load_digits(return_X_y=True))
    label = np.where(np.random.default_rng(0).random(600) < 0.2, truth, -1)
    found = MultiFacetClustering(1, epochs=60, random_state=0).fit(x, labels={"facet_0": label})
    assert found.settings_["start"] == "NeighborStrategy"
    assert nmi(truth[label < 0], found.labels_[label < 0, 0]) > 0.82
    assert (found.labels_[label >= 0, 0] == label[label >= 0]).mean() > 0.92
