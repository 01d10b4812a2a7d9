"""Data of which entries are missing, and clusters of which some are known.

Objectives are compared with the paper's formula on the same draws, in float64: the tolerance is
rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyro
import pytest
import torch
from torch.nn.functional import softplus

from guides import AmortizedGuide, MarginalGuide, VaDEGuide
from inference import Loss, SVIRunner, elbo, fit_mixtures, fit_together, warm_start
from inference.initialization.mixtures import _some_rows
from ppl_models import (
    MFCVAE,
    Bernoulli,
    GaussianMixture,
    HeteroscedasticNormal,
    Incomplete,
    MLPLadder,
    Normal,
    SharedMLP,
    VaDE,
)
from ppl_models.distributions import Component, clamp_to_labels
from ppl_models.given.labels import cluster_labels
from tests import paper
from tests.inference.test_objective import (
    BATCH,
    PIXELS,
    assert_equal_to,
    build,
    drawn_noise,
    value_and_gradient,
)

pytestmark = pytest.mark.slow(20)

NAN = float("nan")
SMALL = SharedMLP((32, 32))  # the default network has millions of weights


@pytest.mark.parametrize("weight", [0.0, 2.5])
@pytest.mark.parametrize("L", [1, 5])
def test_known_clusters_against_the_formula(L: int, weight: float) -> None:
    """By default they are no lesson; it is the log-responsibility of the known cluster."""
    model, guide = build(2, L)
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    label = {"facet1": np.array([3, -1, 0, -1, 2, 2])}
    noise = drawn_noise(guide, x, seed=3)
    parameters, names = dict(guide.named_parameters()), list(model.priors)
    bound = paper.negative_objective(parameters, x, noise, names, [1.0, 1.0], known=label)
    mean, scale = paper.encode(parameters, x, 2)[1]
    q = paper.responsibilities(*paper.mixture(parameters, "facet1", mean + scale * noise["facet1"]))
    learned = sum(q[b, k].log() for b, k in enumerate(label["facet1"]) if k >= 0)
    assert guide.label_weight == 0
    guide.label_weight = weight
    pyro.set_rng_seed(3)
    data = guide.observed(x, {"label": label})
    got = Loss(model, guide)(data.x, **data.given)
    every = list(parameters.values())
    want = (bound - weight * learned) / BATCH
    assert_equal_to(value_and_gradient(got, every), value_and_gradient(want, every))


@pytest.mark.parametrize("L", [1, 5])
def test_missing_entries_against_the_formula(L: int) -> None:
    model, guide = build(2, L)
    model.likelihood = Incomplete(Bernoulli())
    there = torch.rand(BATCH, PIXELS) > 0.4
    there[2] = False  # a datum of which nothing is known
    x = torch.rand(BATCH, PIXELS, dtype=torch.float64)
    noise = drawn_noise(guide, x * there, seed=3)
    parameters = dict(guide.named_parameters())
    want = (
        paper.negative_objective(
            parameters, x, noise, list(model.priors), [1.0, 1.0], there=there.double()
        )
        / BATCH
    )
    pyro.set_rng_seed(3)
    got = Loss(model, guide)(torch.where(there, x, NAN))
    every = list(parameters.values())
    assert_equal_to(value_and_gradient(got, every), value_and_gradient(want, every))


def test_known_clusters_hold_for_all_draws_of_a_component() -> None:
    logits = torch.randn(3, 4)
    q = Component(logits=clamp_to_labels(logits, torch.tensor([2, -1, 0])))
    np.testing.assert_allclose(q.probs[0], [0, 0, 1, 0])
    np.testing.assert_allclose(q.probs[2], [1, 0, 0, 0])
    torch.testing.assert_close(q.probs[1], logits[1].softmax(-1))


def test_a_likelihood_of_two_parameters_and_a_threshold_leave_missing_entries_out() -> None:
    x = torch.tensor([[0.2, NAN, 0.9]])
    output = torch.randn(1, 6)
    both, there = HeteroscedasticNormal(), [0, 2]
    whole = both(output, 1).base_dist.log_prob(torch.tensor([[0.2, 0.0, 0.9]]))
    torch.testing.assert_close(Incomplete(both)(output, 1).log_prob(x), whole[:, there].sum(-1))
    prepared = Incomplete(Bernoulli(threshold=0.5)).prepare(x)
    np.testing.assert_array_equal(prepared, [[0, np.nan, 1]])
    logits = output[:, :3]
    expected = (prepared * logits - softplus(logits))[:, there].sum(-1)
    torch.testing.assert_close(
        Incomplete(Bernoulli(threshold=0.5))(logits, 1).log_prob(prepared), expected
    )


def test_labels_of_one_facet_may_lack_some() -> None:
    label = pd.array([0, None, 1, 2], dtype="Int64")
    for given in (label, {"cluster": label}):
        known = cluster_labels("label", given, 4, {"cluster": 3})
        assert known.tolist() == [[0], [-1], [1], [2]]


def holed(n: int = 60) -> torch.Tensor:
    """Two groups, a third of the entries missing."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(n) % 2
    x = 2.0 * groups[:, None] - 1 + 0.3 * torch.randn(n, 6, generator=generator)
    return torch.where(torch.rand(n, 6, generator=generator) < 0.33, NAN, x)


def test_incomplete_data_through_the_whole_run() -> None:
    x = holed()
    pyro.set_rng_seed(0)
    model = VaDE((6,), GaussianMixture(2, 2), Incomplete(Normal(0.3)), SMALL)
    guide = VaDEGuide(model)
    warm_start(SVIRunner(model, guide, lr=3e-3), x, 60, batch_size=20, progress=False)
    runner = SVIRunner(model, guide, lr=1e-3).fit(x, 20, batch_size=20, progress=False)
    assert np.isfinite(runner.history[-1]["elbo"])
    found = guide.predict(x)["cluster"]
    agreement = (found == np.arange(60) % 2).mean()
    assert max(agreement, 1 - agreement) == 1
    filled = guide.reconstruct(x)
    truth = 2.0 * (torch.arange(60) % 2)[:, None].numpy() - 1
    assert np.abs(filled - truth)[x.isnan().numpy()].mean() < 0.3, "a mean of 0 would be off by 1"
    assert np.isfinite(elbo(model, guide, x, 2)[0])


@pytest.mark.thorough
def test_components_are_matched_to_the_labels() -> None:
    """Class k becomes component k: by chance it does in one of two runs, so both orders of the
    labels are asked for.
    """
    x = torch.where(holed().isnan(), 0.0, holed())
    for order in ([0, 1], [1, 0]):
        pyro.set_rng_seed(0)
        model = MFCVAE(
            (6,),
            {"a": GaussianMixture(2, 2), "b": GaussianMixture(2, 2)},
            Normal(0.3),
            MLPLadder((8, 9)),
        )
        guide = VaDEGuide(model)
        label = np.full(60, -1)
        label[:4] = [order[0], order[1]] * 2
        warm_start(
            SVIRunner(model, guide, lr=3e-3),
            x,
            40,
            batch_size=20,
            label={"b": label},
            progress=False,
        )
        SVIRunner(model, guide, lr=1e-3).fit(
            x, 20, batch_size=20, label={"b": label}, progress=False
        )
        assert (guide.predict(x)["b"] == np.array(order)[np.arange(60) % 2]).mean() > 0.9


class Identity(VaDEGuide):
    """Posteriors at the data themselves."""

    def posterior(self, x: Any, **given: Any) -> dict[str, Any]:
        z = torch.as_tensor(x).float()
        return {"cluster": torch.distributions.Normal(z, torch.full_like(z, 1e-3))}


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_classes_keep_their_own_widths_and_weights(covariance: str, order: list[int]) -> None:
    """A narrow class of one row in five and a wide one, all labels known, by either number."""
    rng = np.random.default_rng(0)
    wide = np.arange(1000) % 5 > 0
    x = np.where(
        wide[:, None], rng.normal([4.0, 0.0], 1.5, (1000, 2)), rng.normal(0, 0.1, (1000, 2))
    )
    label = np.where(wide, order[1], order[0])
    for seed in range(3):
        model = VaDE((2,), GaussianMixture(2, 2, covariance), Normal(0.3), MLPLadder((8,)))
        fit_mixtures(Identity(model), x, seed=seed, label=label, n_init=3)
        prior = model.mixtures["cluster"]
        components, weights = prior.components(), prior.component().probs
        assert components.stddev[order].mean(1).tolist() == pytest.approx([0.1, 1.5], rel=0.1)
        assert weights[order].tolist() == pytest.approx([0.2, 0.8], abs=0.02)


def test_every_row_with_a_label_has_its_part_in_a_fit() -> None:
    """With 10 of 60 rows chosen at random, two labeled ones would nearly always be left out."""
    guide = VaDEGuide(VaDE((6,), GaussianMixture(2, 2), Normal(0.3)))
    label = np.full(60, -1)
    label[[58, 59]] = [0, 1]
    x = torch.where(holed().isnan(), 0.0, holed())
    rows, known = _some_rows(x, guide, 10, label)
    assert 10 <= len(rows) <= 12
    assert sorted(known["cluster"][known["cluster"] >= 0]) == [0, 1]


@pytest.mark.thorough
def test_runs_side_by_side_take_labels() -> None:
    """Without a start, each run's components are the classes, in their order."""
    x = torch.where(holed().isnan(), 0.0, holed())
    label = np.arange(60) % 2
    runners = []
    for seed in range(3):
        pyro.set_rng_seed(seed)
        guide = VaDEGuide(VaDE((6,), GaussianMixture(2, 2), Normal(0.3), SMALL))
        runners.append(SVIRunner(guide.model, guide, lr=3e-3, seed=seed))
    fit_together(runners, x, 60, batch_size=20, label=label, progress=False)
    for runner in runners:
        assert (runner.guide.predict(x)["cluster"] == label).mean() > 0.9


def test_labels_are_for_guides_that_use_them() -> None:
    x = np.full((4, 6), 0.5)
    for build_guide in (MarginalGuide, AmortizedGuide):
        guide = build_guide(VaDE((6,), GaussianMixture(2, 2)))
        with pytest.raises(ValueError, match=r"VaDE takes .* besides x, got label"):
            guide.embed(x, label=np.zeros(4, int))
