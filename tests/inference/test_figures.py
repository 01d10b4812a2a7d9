"""What the figures show: which latents change along rows and columns, and which stay."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from facetvae.describing import FacetClusters, describe_clusters
from facetvae.describing.figure import describe_figure
from facetvae.explorer import Pictures
from guides import VaDEGuide
from inference import cold_start
from inference.figures import cluster_gallery, save_figures, training_curves
from inference.figures.drawing import image_rows
from inference.figures.facets import cluster_samples, facet_draws, facet_swaps
from lab.figures.classes import kl_by_class, latent_scatter
from lab.figures.comparisons import grouped_boxes, grouped_curves
from ppl_models import MFCVAE, GaussianMixture, MLPLadder, SharedMLP


@pytest.fixture
def guide() -> VaDEGuide:
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)}
    return VaDEGuide(MFCVAE((2, 3), facets, network=MLPLadder((8, 9))))


X = np.random.default_rng(0).random((12, 2, 3))


class Decoded:
    """Notes the latents of everything that is decoded."""

    def __init__(self, model: MFCVAE) -> None:
        self.z: list[dict[str, Tensor]] = []
        self.decode = model.decode

    def __call__(self, z: Mapping[str, Tensor]) -> torch.distributions.Distribution:
        self.z.append({name: torch.as_tensor(each).clone() for name, each in z.items()})
        return self.decode(z)


def decoded_by(guide: VaDEGuide, figure: object, **options: object) -> list[dict[str, Tensor]]:
    noted = Decoded(guide.model)
    with patch.object(guide.model, "decode", noted):
        figure(guide, X, "style", **options)  # type: ignore[operator]
    return noted.z


def test_a_facet_drawn_anew_leaves_the_others_as_inferred(guide: VaDEGuide) -> None:
    means = guide.posterior(X)
    rows = decoded_by(guide, facet_draws, rows=4, columns=5)
    assert len(rows) == 4
    for i, z in enumerate(rows):
        torch.testing.assert_close(z["digit"], means["digit"].mean[i].expand(6, -1))
        torch.testing.assert_close(z["style"][0], means["style"].mean[i])  # the reconstruction
        assert torch.equal(z["style"][1:], rows[0]["style"][1:]), (
            "each column is one draw, for all rows"
        )
        assert len(z["style"].unique(dim=0)) == 6


def test_samples_with_the_others_held_differ_in_their_facet_alone(guide: VaDEGuide) -> None:
    rows = decoded_by(guide, cluster_samples, columns=5, hold_others=True)
    others = torch.cat([z["digit"] for z in rows])
    assert len(others.unique(dim=0)) == 1
    assert all(len(z["style"].unique(dim=0)) == 5 for z in rows)
    free = decoded_by(guide, cluster_samples, columns=5)
    assert all(len(z["digit"].unique(dim=0)) == 5 for z in free)


def test_samples_come_from_the_rows_cluster(guide: VaDEGuide) -> None:
    with torch.no_grad():
        guide.model.priors["style"].loc.copy_(torch.tensor([[-50.0, 0], [0, 50], [50, 0]]))
    rows = decoded_by(guide, cluster_samples, columns=20)
    for z in rows:
        nearest = torch.cdist(z["style"], guide.model.priors["style"].loc.detach()).argmin(-1)
        assert len(nearest.unique()) == 1


def test_swaps_exchange_one_facet_within_pairs(guide: VaDEGuide) -> None:
    kept, swapped = decoded_by(guide, facet_swaps, pairs=3)
    assert torch.equal(swapped["digit"], kept["digit"])
    assert torch.equal(swapped["style"], kept["style"][[1, 0, 3, 2, 5, 4]])


@pytest.fixture
def many() -> VaDEGuide:
    """With forty clusters, which start from the data."""
    guide = VaDEGuide(MFCVAE((2, 3), {"shape": GaussianMixture(40, 6)}, network=MLPLadder((8,))))
    cold_start(guide, MANY)
    return guide


MANY = np.random.default_rng(0).random((400, 2, 3))


def names_of_rows(figure: Figure) -> list[str]:
    return [text.get_text() for ax in figure.axes for text in ax.get_yticklabels()]


def test_all_clusters_are_shown_if_asked_and_else_the_25_surest(
    many: VaDEGuide, tmp_path: Path
) -> None:
    used = sorted({str(k) for k in many.predict(MANY)["shape"]}, key=int)
    assert len(used) > 25
    for draw in (cluster_gallery, cluster_samples):
        few, full = (
            names_of_rows(draw(many, MANY, "shape", columns=2, **options))
            for options in ({}, {"max_clusters": 40})
        )
        assert len(few) == 25
        assert full[:25] == few
        assert sorted((name.split()[0] for name in full), key=int) == used
    assert {path.stem for path in save_figures(tmp_path, many, MANY)} == {
        "overview",
        *(f"{kind}_shape{part}" for kind in ("clusters", "samples") for part in ("", "_all")),
    }


def test_two_hundred_rows_are_four_blocks_of_fifty() -> None:
    rows = {str(k): np.zeros((2, 2, 3)) for k in range(200)}
    figure = image_rows(rows, (2, 3), 2, "", "")
    assert [len(ax.get_yticks()) for ax in figure.axes] == [50] * 4
    assert names_of_rows(figure) == list(rows)


def test_a_facet_of_one_cluster_has_no_figures_of_clusters(tmp_path: Path) -> None:
    facets = {"one": GaussianMixture(1, 2), "two": GaussianMixture(2, 2)}
    guide = VaDEGuide(MFCVAE((1, 4, 4), facets, network=SharedMLP((4,))))
    drawn = save_figures(tmp_path, guide, np.random.default_rng(0).random((20, 1, 4, 4)))
    names = {path.stem for path in drawn}
    assert {"overview", "clusters_two", "samples_two", "swap_one"} <= names
    assert not {name for name in names if name.startswith(("clusters_one", "samples_one"))}


def test_records_without_a_finite_elbo_are_left_out_of_the_axis() -> None:
    """Such as steps that a guard skips leave."""
    last = {"epoch": 3, "step": 3, "objective": 3.0, "elbo": -3.0}
    history = [{**last, "epoch": 1, "elbo": -np.inf}, {**last, "epoch": 2, "elbo": np.nan}, last]
    low, high = training_curves(history, []).axes[0].get_ylim()
    assert low < -3 < high
    assert all(np.isfinite(training_curves(history[:2], []).axes[0].get_ylim()))


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_only_gray_and_colors_are_drawn_as_images(channels: int, tmp_path: Path) -> None:
    model = MFCVAE((channels, 4, 4), {"a": GaussianMixture(3, 2)}, network=SharedMLP((8,)))
    x = np.zeros((9, channels, 4, 4))
    with pytest.raises(ValueError, match="height, width\\) with 1 or 3 channels"):
        save_figures(tmp_path / "figures", VaDEGuide(model), x)
    assert not (tmp_path / "figures").exists()
    with pytest.raises(ValueError, match=r"cannot be drawn .* with 1 or 3 channels"):
        Pictures.of(x, (channels, 4, 4))


def _described(clusters: int) -> Figure:
    group = np.arange(4 * clusters) % clusters
    X = {"size": np.random.default_rng(0).normal(size=len(group))}
    return describe_figure(describe_clusters(FacetClusters("a", np.eye(clusters)[group]), X))


def _rows(n: int, *shape: int) -> Figure:
    rows = {f"the one called {k}": np.zeros((2, *shape)) for k in range(n)}
    return image_rows(rows, shape, 2, "a title of some words", "what the rows are")


CROWDED = {
    "an image": lambda: _rows(1, 8, 8),
    "wide images": lambda: _rows(6, 1, 64),
    "tall images": lambda: _rows(2, 64, 2),
    "clusters": lambda: _described(25),
    "classes": lambda: latent_scatter(np.eye(60), np.arange(60)),
    "boxes": lambda: grouped_boxes({f"the method {k}": {1: [0.0, 1.0]} for k in range(9)}, "", ""),
    "curves": lambda: grouped_curves({"": {f"at {k}": ([1], [2]) for k in range(40)}}, "", ""),
    "KL": lambda: kl_by_class(np.ones((2, 1)), np.arange(2), 1),
}


@pytest.mark.parametrize("name", CROWDED)
def test_all_text_is_within_the_figure_and_labels_are_apart(name: str) -> None:
    figure = CROWDED[name]()
    figure.draw_without_rendering()
    shown, size = figure.get_tightbbox(), figure.get_size_inches()
    assert min(shown.min) > -0.02
    assert (shown.max < size + 0.02).all()
    for ax in figure.axes:
        places = [text.get_window_extent() for text in ax.get_yticklabels() if text.get_text()]
        for one, other in pairwise(sorted(places, key=lambda place: place.y0)):
            assert other.y0 > one.y0 + 0.7 * one.height
