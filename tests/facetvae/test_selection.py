"""Each datum's ELBO, agreement of seeds, and clusters in use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy.special import logsumexp
from scipy.stats import norm

from facetvae.selection.agreement import clusters_in_use, redundancy, stability
from guides import FacetGuide, VaDEGuide
from inference import elbo, elbo_per_datum
from inference.evaluation import bounds
from ppl_models import (
    MFCVAE,
    DiscretizedLogistic,
    GaussianMixture,
    MLPLadder,
    Normal,
    SharedMLP,
    VaDE,
)
from tests.catalog import EACH, given


def some_data(guide: FacetGuide, n: int = 7) -> torch.Tensor:
    x = torch.rand(n, *guide.model.x_shape, dtype=torch.float64)
    return (255 * x).byte() if isinstance(guide.model.likelihood, DiscretizedLogistic) else x


@pytest.mark.parametrize("build", EACH, ids=lambda build: build.__name__)
def test_the_mean_over_data_is_the_elbo_on_the_same_draws(
    build: Callable[[], FacetGuide], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every guide, clusters enumerated, relaxed, drawn or summed out, in two batches;
    float64.
    """
    monkeypatch.setattr(bounds, "EVALUATION_BATCH", 4)
    guide = build().double()
    x, beside = some_data(guide), given(guide, 7)
    if guide.model.shared:
        with pytest.raises(
            ValueError, match="one latent of facet 'content' for all members of a group"
        ):
            elbo_per_datum(guide.model, guide, x, 3, **beside)
        return
    pyro.set_rng_seed(1)
    expected, _ = elbo(guide.model, guide, x, 3, **beside)
    pyro.set_rng_seed(1)
    by_datum = elbo_per_datum(guide.model, guide, x, 3, **beside)
    assert by_datum.shape == (7,)
    assert by_datum.mean() == pytest.approx(expected, rel=1e-10)
    assert len(np.unique(by_datum)) == 7


def test_each_datum_has_the_formulas_elbo() -> None:
    """MFCVAE's Eq. 71, written out in NumPy for the draws of z that the guide makes."""
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 3)}
    guide = VaDEGuide(MFCVAE((6,), facets, Normal(0.25), MLPLadder((8, 9)))).double()
    model = guide.model
    x = torch.rand(5, 6, dtype=torch.float64)
    pyro.set_rng_seed(2)
    with torch.no_grad():
        sites = poutine.trace(guide).get_trace(x).nodes
        z = {name: sites[f"z_{name}"]["value"] for name in facets}
        decoded = model.decode(z).mean.numpy()
    expected = norm.logpdf(x.numpy(), decoded, 0.25).sum(-1)
    for name, prior in model.mixtures.items():
        q = sites[f"z_{name}"]["fn"]
        value, loc, scale = (t.detach().numpy() for t in (z[name], prior.loc, prior.scale))
        log_weights = prior.logits.detach().log_softmax(-1).numpy()
        expected += logsumexp(
            log_weights + norm.logpdf(value[:, None], loc, scale).sum(-1), axis=-1
        )
        expected -= norm.logpdf(value, q.mean.detach().numpy(), q.stddev.detach().numpy()).sum(-1)
    pyro.set_rng_seed(2)
    np.testing.assert_allclose(elbo_per_datum(model, guide, x, 1), expected, rtol=1e-10)


def test_gates_of_training_are_not_those_of_the_elbo() -> None:
    guide = VaDEGuide(VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,))))
    x = torch.rand(5, 6)
    pyro.set_rng_seed(3)
    before = elbo_per_datum(guide.model, guide, x, 2)
    guide.model.gates.fill_(0.3)
    pyro.set_rng_seed(3)
    np.testing.assert_array_equal(elbo_per_datum(guide.model, guide, x, 2), before)
    assert guide.model.gates == 0.3


# Partitions.


def test_the_same_clusters_by_other_numbers_agree_perfectly() -> None:
    rng = np.random.default_rng(0)
    cluster = rng.integers(5, size=300)
    runs = [{"digit": rng.permutation(5)[cluster]} for _ in range(4)]
    assert stability(runs) == {"digit": (pytest.approx(1), pytest.approx(0))}


def swapped_runs() -> list[dict[str, np.ndarray]]:
    """Two facets found by all of four runs, which change places in two of them, and a first run
    that found nothing.
    """
    rng = np.random.default_rng(0)
    first, second = rng.integers(3, size=500), rng.integers(4, size=500)
    straight, crossed = {"a": first, "b": second}, {"a": second, "b": first}
    failed = {name: rng.integers(3, size=500) for name in "ab"}
    return [failed, straight, crossed, crossed, straight]


def test_facets_that_changed_places_are_matched() -> None:
    # Of the ten pairs, six are of runs that agree; the four others agree by chance alone.
    matched = stability(swapped_runs())
    assert [mean for mean, _ in matched.values()] == pytest.approx([0.6, 0.6], abs=0.02)
    _, straight, *_ = swapped_runs()
    assert stability([{"a": straight["a"]}, {"z": straight["a"]}])["a"][0] == 1


def test_facets_that_repeat_one_another_are_redundant_and_independent_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(20, size=360), rng.integers(20, size=360)
    found = redundancy({"a": a, "b": b, "again": (a + 3) % 20})
    assert found["a", "again"] == pytest.approx(1)
    # So many clusters on so few data have a mutual information of half a nat by chance.
    assert abs(found["a", "b"]) < 0.05
    assert redundancy({"a": a}) == {}


def test_clusters_in_use() -> None:
    proba = np.eye(5)[[0] * 60 + [1] * 38 + [2] * 2]
    assert [clusters_in_use(proba, threshold) for threshold in (0, 0.01, 0.02, 0.5)] == [3, 3, 2, 1]


def test_means_of_a_million_rows_are_not_those_of_single_precision() -> None:
    proba = np.tile(np.float32([0.9, 0.1]), (1_000_000, 1))
    model = MFCVAE((3,), {"a": GaussianMixture(2, 1)}, network=SharedMLP((4,)))
    guide = VaDEGuide(model)
    guide.predict_proba = lambda x, **given: {"a": proba}
    assert bounds.mutual_information(guide, proba)["a"] == pytest.approx(0, abs=1e-6)
