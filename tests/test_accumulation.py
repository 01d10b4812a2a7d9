"""What examples.mlvae measures: on latents whose knowledge of the label is known, and on data that
are held out.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from examples.datasets import drawn_shapes
from examples.mlvae import Settings, evaluate, held_out
from guides import GroupedGuide, VaDEGuide
from ppl_models import MLP, MLVAE, VAE
from ppl_models.networks import Encoder

pytestmark = pytest.mark.slow(20)

CLASSES = 4
SETTINGS = replace(Settings(), evidence=(1, 5, 25), trials=2)


class Planted(Encoder):
    """Of x = (label, noise): a content that says the label with a deviation of 2, and a style that
    does not.
    """

    def __init__(self, facets: int) -> None:
        super().__init__()
        self.facets = facets

    def heads(self, x: Tensor, components: object = ()) -> list[Tensor]:
        label, noise = x[:, :1], x[:, 1:3]
        content = torch.cat([label + 2 * noise[:, :1], 2 * noise[:, 1:]], 1)
        wide, narrow = torch.full_like(noise, 2 * np.log(2.0)), torch.zeros_like(noise)
        parts = [torch.cat([x[:, 3:5], narrow], 1), torch.cat([content, wide], 1)]
        return parts[-self.facets :]


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(CLASSES), 60)
    return np.concatenate([label[:, None], rng.normal(size=(240, 5))], 1).astype(np.float32), label


def test_content_tells_more_with_more_images_and_style_tells_nothing() -> None:
    guide = GroupedGuide(MLVAE((6,), 2, 2, network=MLP((4,))))
    guide.encoder = Planted(2)
    guide.model.likelihood.support = (-100.0, 100.0)
    scores = evaluate(guide, *data(), SETTINGS, seed=0)
    content = [scores[f"content, {k}"] for k in SETTINGS.evidence]
    style = [scores[f"style, {k}"] for k in SETTINGS.evidence]
    accuracy = [score["accuracy"] for score in content]
    # A deviation of 2 / sqrt(25) = 0.4 around labels one apart, and as much again of the draw.
    assert accuracy[0] < accuracy[1] < accuracy[2]
    assert accuracy[2] > 0.45
    assert (
        content[2]["conditional_entropy"]
        < content[1]["conditional_entropy"]
        < content[0]["conditional_entropy"]
    )
    # Chance is 1 / 4 of 200 test draws: a deviation of 0.03.
    assert all(abs(score["accuracy"] - 1 / CLASSES) < 0.15 for score in style)
    assert all(score["conditional_entropy"] > np.log2(CLASSES) - 0.1 for score in style)


def test_the_baselines_evidence_adds_up_in_the_same_way() -> None:
    guide = VaDEGuide(VAE((6,), 2, network=MLP((4,))))
    guide.encoder = Planted(1)
    guide.model.likelihood.support = (-100.0, 100.0)
    scores = evaluate(guide, *data(), SETTINGS, seed=0)
    assert set(scores) == {f"latent, {k}" for k in SETTINGS.evidence}
    accuracy = [scores[f"latent, {k}"]["accuracy"] for k in SETTINGS.evidence]
    assert accuracy[0] < accuracy[1] < accuracy[2]


def test_groups_that_would_mix_classes_are_refused() -> None:
    guide = GroupedGuide(MLVAE((6,), 2, 2, network=MLP((4,))))
    with pytest.raises(ValueError, match="every k must divide the last one"):
        evaluate(guide, *data(), replace(SETTINGS, evidence=(2, 25)), seed=0)


@pytest.mark.parametrize(
    ("factor", "values"), [("object", {1, 3, 6, 8}), ("shape", {1, 3}), ("scale", {1, 3, 6})]
)
def test_held_out_values_are_never_trained_on(
    factor: str, values: set[int], shapes_drawn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(shapes_drawn))
    shapes = drawn_shapes(rows=400)
    assert shapes.train.shape == (300, 3, 32, 32)
    assert shapes.train.dtype == np.uint8
    seen, unseen = held_out(shapes, factor)
    assert set(np.unique(unseen.test_labels[factor])) == values
    for part in (seen.train_labels, seen.test_labels, unseen.train_labels):
        assert not set(np.unique(part[factor])) & values
    assert len(seen.test) + len(unseen.test) == len(shapes.test)
    assert len(seen.train) == len(seen.train_labels[factor])
