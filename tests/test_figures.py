"""What the figures show: which latents change along rows and columns, and which stay."""

from __future__ import annotations

from collections.abc import Mapping
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from guides import VaDEGuide
from inference.figures.facets import cluster_samples, facet_draws, facet_swaps
from ppl_models import MFCVAE, GaussianMixture, MLPLadder


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
