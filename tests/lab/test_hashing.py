"""Labels from a random projection, by their definition."""

from __future__ import annotations

import numpy as np
import torch

from lab.protocols.identifiability_images import RademacherHash


def test_labels_are_the_orthants_of_the_projection() -> None:
    """Eq. C.1 to C.3, bit by bit."""
    labels = RademacherHash((2, 3), num_bits=4, seed=1)
    signs = labels.projection.numpy()
    assert set(np.unique(signs)) == {-1.0, 1.0}
    x = np.random.default_rng(0).normal(size=(50, 2, 3))
    for row, label in zip(x, labels(x), strict=True):
        h = signs @ row.ravel()
        bits = 0.5 * (np.sign(h) + 1)
        assert label == sum(2**i * b for i, b in enumerate(bits))
    assert labels.num_labels == 16


def test_signs_are_fair_and_drawn_by_the_seed() -> None:
    """Of 100,000 signs the sum is 0 within five standard errors."""
    assert abs(RademacherHash((10_000,), 10, seed=3).projection.sum()) < 5 * np.sqrt(100_000)
    x = torch.randn(100, 30)
    one, same, other = (RademacherHash((30,), 5, seed)(x) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).mean() > 0.5
