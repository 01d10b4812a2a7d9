"""What lab.protocols.mlvae measures: on latents whose knowledge of the label is known, and on data
that are held out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from guides import FacetGuide, GroupedGuide, VaDEGuide
from lab.protocols.accumulation import Encoded, Inferred, check_evidence, evaluate
from lab.protocols.datasets import drawn_shapes
from lab.protocols.mlvae import held_out, main, parts
from ppl_models import MLP, MLVAE, VAE, Normal
from ppl_models.networks import Encoder

pytestmark = pytest.mark.slow(20)

CLASSES = 4
EVIDENCE, TRIALS = (1, 5, 25), 2


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


@pytest.mark.thorough
@pytest.mark.parametrize("baseline", [False, True])
def test_content_tells_more_with_more_images_and_style_tells_nothing(baseline: bool) -> None:
    network = MLP((4,))
    guide: FacetGuide = GroupedGuide(MLVAE((6,), 2, 2, network=network))
    if baseline:
        guide = VaDEGuide(VAE((6,), 2, network=network))
    guide.encoder = Planted(len(guide.model.priors))
    guide.model.likelihood.support = (-100.0, 100.0)
    x, label = data()
    scores = evaluate(Encoded(guide, x), label, EVIDENCE, TRIALS, seed=0)
    content = [scores.pop(f"{'latent' if baseline else 'content'}, {k}") for k in EVIDENCE]
    accuracy = [score["accuracy"] for score in content]
    entropy = [score["conditional_entropy"] for score in content]
    # A deviation of 2 / sqrt(25) = 0.4 around labels one apart, and as much again of the draw.
    assert accuracy[0] < accuracy[1] < accuracy[2]
    assert accuracy[2] > 0.45
    assert entropy[2] < entropy[1] < entropy[0]
    # Chance is 1 / 4 of 200 test draws: a deviation of 0.03.
    assert set(scores) == (set() if baseline else {f"style, {k}" for k in EVIDENCE})
    assert all(abs(score["accuracy"] - 1 / CLASSES) < 0.15 for score in scores.values())
    assert all(s["conditional_entropy"] > np.log2(CLASSES) - 0.1 for s in scores.values())


def test_groups_are_parted_at_random_into_equal_parts() -> None:
    label = np.repeat([7, 3], [20, 9])
    part = parts(label, 6)
    sizes = {each: np.bincount(part[label == each]) for each in (7, 3)}
    assert [size for size in sizes[7] if size] == [5, 5, 5, 5]
    assert [size for size in sizes[3] if size] == [5, 4]
    assert len(np.unique(part)) == 6
    assert (np.diff(part[label == 7]) != 0).sum() > 6, "they are not blocks of rows"


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")  # a classifier of a hundred rows
def test_posteriors_that_are_fitted_to_images_tell_the_label_by_their_content() -> None:
    """A decoder x = (2 content, style), four contents 1.5 apart and noise of 0.3: an image tells
    its content, 3 apart in x, within 0.3, and its style nothing of it.
    """
    model = MLVAE((2,), 1, 1, Normal(0.3), MLP((4,), "relu", dropout=0))
    hidden, out = (part for part in model.decoder.modules() if isinstance(part, nn.Linear))
    with torch.no_grad():  # each latent is the difference of two rectified ones
        hidden.weight.copy_(torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]]))
        out.weight.copy_(torch.tensor([[0, 0, 2.0, -2], [1, -1, 0, 0]]))
        hidden.bias.zero_(), out.bias.zero_()
    label = np.repeat(np.arange(CLASSES), 50)
    rng = np.random.default_rng(0)
    truth = np.stack([2 * (1.5 * label - 2.25), rng.normal(size=200)], 1)
    x = (truth + 0.3 * rng.normal(size=truth.shape)).astype(np.float32)
    scores = evaluate(Inferred(model, x, epochs=200, seed=0), label, (1, 25), 1, seed=0)
    assert all(scores[f"content, {k}"]["accuracy"] > 0.95 for k in (1, 25))
    # Chance is 1 / 4 of 100 test rows: a deviation of 0.043.
    assert all(abs(scores[f"style, {k}"]["accuracy"] - 0.25) < 0.2 for k in (1, 25))


def test_groups_that_would_mix_classes_or_have_too_few_images_are_refused() -> None:
    label = data()[1]
    with pytest.raises(ValueError, match="every k must divide the last one"):
        check_evidence(label, (2, 25))
    with pytest.raises(ValueError, match=r"needs 62 images of each class, .* but one has 60"):
        check_evidence(label, (1, 31))
    assert check_evidence(label, (1, 30)) == 30


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


def test_folders_of_images_are_read_and_two_fifths_of_them_held_out(tmp_path: Path) -> None:
    """Five hues, 20 images in a folder each: --dataset folders, as for photographs of persons."""
    rng = np.random.default_rng(0)
    for hue in range(5):
        (tmp_path / "data" / f"{hue}").mkdir(parents=True)
        for i in range(20):
            x = np.zeros((80, 64, 3), np.uint8)
            top, left = rng.integers(0, 40, size=2)
            x[top : top + 20, left : left + 20, hue % 3] = 250 - 20 * hue
            Image.fromarray(x).save(tmp_path / "data" / f"{hue}" / f"{i}.png")
    out, where = tmp_path / "run", ["--dataset", "folders", "--data-root", str(tmp_path / "data")]
    main([*where, "--evidence", "1", "2", "--epochs", "1", "--out", str(out)])
    scores = json.loads((out / "scores.json").read_text())
    assert set(scores) == {"seen groups", "unseen groups"}
    assert set(scores["unseen groups"]) == {"content, 1", "content, 2", "style, 1", "style, 2"}
    assert len(list((out / "figures").glob("*.png"))) == 5
    with pytest.raises(ValueError, match=r"needs 10 images of each class, .* but one has 4"):
        main([*where, "--evidence", "1", "5", "--out", str(tmp_path / "none")])
    shutil.rmtree(tmp_path / "data" / "4")
    shutil.rmtree(tmp_path / "data" / "3")
    with pytest.raises(ValueError, match="folders has 3 groups, but 4 or more are needed"):
        main([*where, "--evidence", "1", "2", "--out", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
