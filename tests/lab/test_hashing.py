"""Labels from a random projection, by their definition."""

from __future__ import annotations

import numpy as np
import torch

from guides import ConditionalGuide
from inference import SVIRunner
from lab.protocols.identifiability_images import RademacherHash
from ppl_models import IVAE, MLP, Normal


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


def test_a_model_learns_with_these_labels() -> None:
    labels = RademacherHash((6,), 2)
    x = torch.randn(64, 6)
    guide = ConditionalGuide(IVAE((6,), labels.num_labels, 2, Normal(0.5), MLP((8,))))
    prior = guide.model.prior("label")
    before, given = prior.loc.detach().clone(), labels(x)
    SVIRunner(guide.model, guide, lr=1e-2).fit(
        x, epochs=5, batch_size=16, progress=False, label=given
    )
    moved = (prior.loc.detach() - before).abs().amax(-1)
    present = np.bincount(given, minlength=labels.num_labels) > 0
    np.testing.assert_array_equal(
        moved.numpy() > 0.01, present
    )  # each label's component, and no other
