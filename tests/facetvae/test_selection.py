"""Choosing facets and clusters: each datum's ELBO, agreement of seeds, clusters in use, and the
rule that chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy.special import logsumexp
from scipy.stats import norm

from facetvae.selection import select_model
from facetvae.selection.agreement import clusters_in_use, redundancy, stability
from facetvae.selection.candidates import FittedRun, Selection
from guides import FacetGuide, VaDEGuide
from inference import SVIRunner, elbo, elbo_per_datum, warm_start
from inference.evaluation import bounds
from lab.protocols.sources import labelings
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


# The choice.


def one_run(elbo: np.ndarray, facet: str = "a") -> FittedRun:
    cluster = {facet: np.arange(len(elbo)) % 2}
    return FittedRun(elbo, cluster, {facet: 2}, {facet: 0.7})


def made_up(elbos: dict[str, np.ndarray]) -> Selection:
    """Candidates with these ELBOs ``[S, N]``, and one facet."""
    return Selection({name: [one_run(row) for row in rows] for name, rows in elbos.items()})


@pytest.mark.parametrize(
    ("differences", "errors", "chosen"),
    [
        ([-3, -1, 0], [0.5, 0.5, 0], 2),
        ([-3, -1, 0], [0.5, 1.0, 0], 1),
        ([-3, -1, 0], [3.0, 0.1, 0], 0),
        ([0, -1, -3], [0, 2, 4], 0),
        ([-1, 0, -0.1], [0.9, 0, 0.2], 1),
        ([0], [0], 0),
    ],
)
def test_the_smallest_within_one_standard_error(
    differences: Sequence[float], errors: Sequence[float], chosen: int
) -> None:
    elbos = {  # of two data, whose mean difference has this standard error
        f"{i}": np.array([[d - error, d + error]])
        for i, (d, error) in enumerate(zip(differences, errors, strict=True))
    }
    assert made_up(elbos).chosen == f"{chosen}"


def test_differences_are_paired_and_have_both_errors() -> None:
    """Against the two parts written out for numbers made up: some data are hard for all."""
    rng = np.random.default_rng(0)
    hard = 10 * rng.normal(size=200)
    small = hard - 1 + 0.1 * rng.normal(size=(3, 200)) + np.array([[0.0], [0.3], [-0.3]])
    large = hard + 0.1 * rng.normal(size=(3, 200))
    selection = made_up({"small": small, "large": large})
    difference, error = selection.differences["small"]
    d = small - large
    by_datum, by_seed = d.mean(0), d.mean(1)
    assert difference == pytest.approx(d.mean())
    assert error == pytest.approx(np.sqrt(by_datum.var(ddof=1) / 200 + by_seed.var(ddof=1) / 3))
    assert error < 0.3 * hard.std() / np.sqrt(200), (
        "what each mean's own error would be is far larger"
    )
    assert selection.differences["large"] == (0, 0)
    assert (selection.best, selection.chosen) == ("large", "large")
    assert selection.elbo("small")[1] == pytest.approx(small.mean(1).std(ddof=1))


def test_a_selection_has_runs_that_can_be_compared() -> None:
    rows = np.zeros((2, 4))
    with pytest.raises(ValueError, match=r"equally many of each candidate.*'B': \(1, 4\)"):
        made_up({"A": rows, "B": rows[:1]})
    with pytest.raises(ValueError, match=r"on the same data, got .*'B': \(2, 3\)"):
        made_up({"A": rows, "B": rows[:, :3]})
    with pytest.raises(ValueError, match="candidate 'A' has no runs"):
        made_up({"A": rows[:0]})
    with pytest.raises(ValueError, match=r"got .* \{\}"):
        Selection({})
    with pytest.raises(ValueError, match=r"of candidate 'A' are \['a'\] in one run and \['b'\]"):
        Selection({"A": [one_run(rows[0]), one_run(rows[0], "b")]})
    rows[1, 2] = -np.inf
    with pytest.raises(ValueError, match=r"held-out datum 2 is -inf by candidate 'A' \(1 of 4"):
        made_up({"A": rows})


def test_a_small_candidate_that_cannot_be_told_from_the_best_is_chosen() -> None:
    rng = np.random.default_rng(1)
    hard = rng.normal(size=(1, 100))
    above = {"poor": -9, "small": -0.01, "large": 0.01}
    selection = made_up({k: hard + rng.normal(size=(4, 100)) + d for k, d in above.items()})
    assert selection.chosen == "small"
    lines = str(selection).splitlines()
    assert [line[:7].strip() for line in lines[1:4]] == ["poor", "* small", "large"]
    assert lines[-1].startswith("chosen: small, the smallest within one standard error of the best")


def test_one_seed_has_no_stability_and_no_error_over_seeds() -> None:
    d = np.random.default_rng(0).normal(size=(1, 100))
    selection = made_up({"a": d - 2, "b": np.zeros((1, 100))})
    assert selection.differences["a"][1] == pytest.approx(d.std(ddof=1) / 10)
    assert np.isnan(selection.stability("a")["a"]).all()
    assert np.isnan(selection.redundancy("a")).all()
    assert "nan" not in str(selection)


# Planted clusters.


def blobs() -> tuple[torch.Tensor, torch.Tensor]:
    """Three clusters in a plane, in five dimensions: what is trained on, too few for K = 12, and
    what is held out.
    """
    x = torch.as_tensor(labelings(600, (3,), (2,), width=5, seed=0).x, dtype=torch.float32) / 3
    return x[:150], x[400:]


def fitted(K: int, seed: int, x: torch.Tensor) -> SVIRunner:
    pyro.set_rng_seed(seed)
    guide = VaDEGuide(VaDE((5,), GaussianMixture(K, 2), Normal(0.15), SharedMLP((32,))))
    options = {"batch_size": 75, "progress": False, "log_every": 100}
    with pyro.validation_enabled(False):
        warm_start(SVIRunner(guide.model, guide, lr=1e-2, seed=seed), x, 80, seed=seed, **options)
        return SVIRunner(guide.model, guide, lr=2e-3, seed=seed).fit(x, 30, **options)


@pytest.mark.thorough
@pytest.mark.slow(4)
def test_the_planted_number_of_clusters_is_found() -> None:
    train, held_out = blobs()
    candidates = {f"K = {K}": [fitted(K, seed, train) for seed in (0, 1)] for K in (2, 3, 12)}
    selection = select_model(candidates, held_out)
    assert selection.chosen == "K = 3", str(selection)
    assert selection.stability("K = 3")["cluster"][0] > 0.95
    assert selection.by_facet("K = 3", "in_use")["cluster"] == (3, 0)


def test_fitted_guides_are_compared_as_runners_are() -> None:
    guides = [VaDEGuide(VaDE((6,), GaussianMixture(K, 2), network=SharedMLP((8,)))) for K in (2, 3)]
    x, state = np.random.default_rng(0).random((9, 6)), torch.get_rng_state()
    as_guides = select_model({"2": [guides[0]], "3": [guides[1]]}, x, num_draws=2)
    assert torch.equal(torch.get_rng_state(), state), "the caller's random state is left as it was"
    runners = [SVIRunner(guide.model, guide) for guide in guides]
    as_runners = select_model({"2": [runners[0]], "3": [runners[1]]}, x, num_draws=2)
    assert str(as_guides) == str(as_runners)
    assert as_guides.runs["3"][0].elbo.shape == (9,)
