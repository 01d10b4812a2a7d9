"""The runner: what it records, what it restores, and that it learns."""

from __future__ import annotations

import copy
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyro.optim import ClippedAdam
from sklearn.datasets import make_blobs
from sklearn.mixture import GaussianMixture as SklearnMixture

from guides import VaDEGuide
from inference import (
    Constant,
    ProgressiveFadeIn,
    SVIRunner,
    WarmUp,
    cold_start,
    elbo,
    fit_mixtures,
    warm_start,
)
from inference.callbacks import Evaluate
from inference.initialization.mixtures import _covariances, _fitted, _in_common_if_likelier
from inference.metrics import cluster_accuracy
from inference.randomness import seeded
from inference.runner import DeadFacetWarning
from inference.schedules import Schedule, WeightFunction
from inference.training import loop
from ppl_models import (
    MFCVAE,
    FacetModel,
    GaussianMixture,
    MLPLadder,
    Normal,
    SharedMLP,
    StandardNormal,
    StridedConvNet,
    VaDE,
)
from ppl_models.modes import temporarily


def small(num_samples: int = 1) -> VaDEGuide:
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)}
    return VaDEGuide(MFCVAE((6,), facets, network=MLPLadder((8, 9))), num_samples)


def test_history_has_every_term_and_the_terms_add_up() -> None:
    guide = small()
    runner = SVIRunner(guide.model, guide).fit(
        torch.rand(40, 6), epochs=5, batch_size=16, log_every=2, progress=False
    )
    assert [record["epoch"] for record in runner.history] == [2, 4, 5]
    assert [record["step"] for record in runner.history] == [6, 12, 15]
    names = {"epoch", "step", "seconds", "objective", "elbo", "reconstruction"}
    names |= {
        f"{kind}_{f}" for kind in ("kl_z", "kl_c", "mutual_information") for f in ("style", "digit")
    }
    for record in runner.history:
        assert set(record) == names
        kl = sum(value for name, value in record.items() if name.startswith("kl_"))
        assert record["elbo"] == pytest.approx(record["reconstruction"] - kl, rel=1e-5)


@pytest.mark.parametrize(("mode", "label"), [(None, "training:"), ("replay", "training (replay):")])
def test_the_progress_bar_says_what_takes_the_steps(
    mode: str | None, label: str, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = small()
    SVIRunner(guide.model, guide, compile=mode).fit(torch.rand(40, 6), 2, 20)
    assert f"\r{label} 100%" in capsys.readouterr().err


def test_objective_and_elbo_part_where_weights_are_not_one() -> None:
    x = torch.rand(40, 6)
    guide = small()
    SVIRunner(guide.model, guide, schedule=Constant(0.0), lr=1e-9).fit(x, epochs=1, progress=False)
    record = (
        SVIRunner(guide.model, guide, schedule=Constant(0.0), lr=1e-9)
        .fit(x, 1, progress=False)
        .history[0]
    )
    # With every KL weight at 0 the objective is minus the reconstruction; the draws differ, so only
    # roughly.
    assert -record["objective"] == pytest.approx(record["reconstruction"], rel=0.05)
    assert record["elbo"] < record["reconstruction"] - 1


def test_schedules_give_the_papers_weights() -> None:
    """Of three facets the deepest is there from the start (Eq. 90 to 92)."""
    facets = {name: GaussianMixture(2, 2) for name in ("shallow", "middle", "deep")}
    model = MFCVAE((6,), facets, network=MLPLadder((4, 4, 4)))
    weights = ProgressiveFadeIn((3, 10, 10), fade_steps=1000).bind(model, 200, 4600)
    for step, *alpha in (
        (0, 0, 0, 1),
        (600, 0, 0, 1),
        (1100, 0, 0.5, 1),
        (3100, 0.5, 1, 1),
        (4599, 1, 1, 1),
    ):
        kl_weights, gates = weights(torch.tensor(float(step)))
        torch.testing.assert_close(gates, torch.tensor(alpha, dtype=torch.float32))
        torch.testing.assert_close(kl_weights, gates[:, None].expand(-1, 2))
    kl_weights, gates = WarmUp(10).bind(small().model, 1, 20)(torch.tensor(5.0))
    torch.testing.assert_close(kl_weights, torch.full((2, 2), 0.5))
    torch.testing.assert_close(gates, torch.ones(2))


def test_a_rate_that_is_set_is_that_of_the_next_steps() -> None:
    def run(given: float, later: float | None = None) -> SVIRunner:
        torch.manual_seed(0)
        guide = small()
        runner = SVIRunner(guide.model, guide, lr=given)
        runner.lr = later or runner.lr
        return runner.fit(torch.rand(40, 6), 2, 20, progress=False)

    changed, wanted = run(1e-6, 1e-2), run(1e-2)
    assert changed.lr == wanted.lr == 1e-2
    assert changed.history[-1]["objective"] == wanted.history[-1]["objective"]
    assert changed.history[-1]["objective"] != run(1e-6).history[-1]["objective"]
    with pytest.raises(ValueError, match="lr must be"):
        changed.lr = -1.0
    of_its_own = SVIRunner(
        (guide := small()).model, guide, optimizer=lambda p, lr: torch.optim.SGD(p, 1e-2)
    )
    assert of_its_own.lr == 1e-2


class Gated(Constant):
    """The same weights, with gates that are applied though they are 1."""

    gates_open = False


def test_a_schedule_with_a_bind_of_its_own_says_itself_that_gates_stay_open() -> None:
    class Halved(WarmUp):
        def bind(self, model: FacetModel, steps_per_epoch: int, total_steps: int) -> WeightFunction:
            weights = super().bind(model, steps_per_epoch, total_steps)
            return lambda step: (weights(step)[0], torch.full_like(model.gates, 0.5))

    class Longer(WarmUp):
        """Only the steps differ."""

    assert (WarmUp.gates_open, Longer.gates_open, Halved.gates_open) == (True, True, False)
    guide = small()
    runner = SVIRunner(guide.model, guide, schedule=Halved(1))
    runner.fit(torch.rand(20, 6), 1, 20, progress=False)
    assert guide.model.gates.tolist() == [0.5, 0.5]


def test_gates_that_stay_open_are_left_out() -> None:
    """Of the decoder's inputs, in training alone, where that is the same run."""

    def run(schedule: Schedule) -> tuple[SVIRunner, list[bool]]:
        torch.manual_seed(0)
        guide, gated = small(), []
        model = guide.model

        def note(decoder: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
            if decoder.training:
                gated.append(inputs[1] is not None)

        model.decoder.register_forward_pre_hook(note)
        model.gates = torch.tensor([0.5, 1.0])  # as if it came from another run
        runner = SVIRunner(model, guide, schedule=schedule, compile=None)
        return runner.fit(torch.rand(40, 6), 3, 20, progress=False), gated

    open_gates, without = run(Constant(2.0))
    gated, applied = run(Gated(2.0))
    assert not any(without)
    assert all(applied)
    assert [r["objective"] for r in open_gates.history] == [r["objective"] for r in gated.history]
    for runner in (open_gates, gated):
        assert runner.model.gated
        assert torch.equal(runner.model.gates, torch.ones(2))
    model = open_gates.model
    with temporarily(model, gated=False), model.annealed(gates=torch.zeros(2)):
        assert model.gated  # gates that are given are applied


def test_copies_that_a_callback_makes_are_as_the_run_was() -> None:
    """A copied runner goes on as the run does, and a copied guide has its gates."""
    x, kept = torch.rand(40, 6), []

    def copied(run: SVIRunner, record: dict[str, Any]) -> None:
        kept.append(copy.deepcopy(run))

    guide = small()
    runner = SVIRunner(guide.model, guide).fit(x, 2, 20, progress=False, callbacks=[copied])
    halfway = kept[0].fit(x, 1, 20, progress=False)
    torch.testing.assert_close(halfway.loss.state_dict(), runner.loss.state_dict(), rtol=0, atol=0)
    z = {name: torch.rand(3, 2) for name in ("style", "digit")}
    with halfway.model.annealed(gates=torch.zeros(2)):
        shut = halfway.model.decode(z).mean
    assert halfway.model.gated
    assert not torch.equal(shut, halfway.model.decode(z).mean)


@pytest.mark.filterwarnings("ignore::inference.schedules.AbruptFadeInWarning")
def test_a_copied_guide_is_faded_in_as_the_run_s_own() -> None:
    """Though the copy was made while the gates of the run were open, and left out."""
    x, kept = torch.rand(40, 6), []

    def faded(guide: VaDEGuide) -> float:
        fade_in = ProgressiveFadeIn((2, 2), fade_steps=2)
        runner = SVIRunner(guide.model, guide, schedule=fade_in, seed=3)
        return runner.fit(x, 4, 20, progress=False).history[-1]["objective"]

    def fade_in(run: SVIRunner, record: dict[str, Any]) -> None:
        kept.extend([copy.deepcopy(run.guide), faded(copy.deepcopy(run.guide))])

    guide = small()
    SVIRunner(guide.model, guide).fit(x, 1, 20, progress=False, callbacks=[fade_in])
    copied, within_the_callback = kept
    assert faded(copied) == within_the_callback == faded(guide)


@pytest.mark.filterwarnings("ignore::inference.schedules.AbruptFadeInWarning")
def test_facets_that_are_in_stay_in_where_epochs_get_longer() -> None:
    guide = small()
    runner = SVIRunner(guide.model, guide, schedule=ProgressiveFadeIn((2, 3), fade_steps=4))
    runner.fit(torch.rand(40, 6), 5, 20, progress=False)
    open_at = [guide.model.gates.tolist()]
    note = Evaluate(lambda run: open_at.append(run.model.gates.tolist()) or {})
    runner.fit(torch.rand(40, 6), 2, 2, progress=False, callbacks=[note])
    assert open_at == [[1, 1]] * 3
    # In the middle: two epochs of 2 steps were taken, so that the phase after the third ends at 14.
    weights = ProgressiveFadeIn((3, 5), fade_steps=10).bind_further(guide.model, 10, 64, 2, 4)
    for step, alpha in ((13, 0), (14, 0), (19, 0.5), (24, 1)):
        assert weights(torch.tensor(float(step)))[1].tolist() == pytest.approx([alpha, 1])

    class Halved(ProgressiveFadeIn):
        def bind(self, model: FacetModel, steps_per_epoch: int, total_steps: int) -> WeightFunction:
            return lambda step: (torch.ones(2, 2), torch.full((2,), 0.5))

    _, gates = Halved((1, 1)).bind_further(guide.model, 1, 2, 0, 0)(torch.tensor(0.0))
    assert gates.tolist() == [0.5, 0.5], "a bind of the user's counts"


@pytest.mark.filterwarnings("ignore::inference.schedules.AbruptFadeInWarning")
def test_a_finished_fade_in_does_not_bar_shorter_epochs() -> None:
    guide = small()
    runner = SVIRunner(guide.model, guide, schedule=ProgressiveFadeIn((1, 3), fade_steps=12))
    for size, epochs in ((10, 4), (40, 8), (40, 1)):
        runner.fit(torch.rand(40, 6), epochs, size, progress=False)
        assert guide.model.gates.tolist() == [1, 1]
    with pytest.raises(ValueError, match="a facet's fade-in would end at step 12, but its phase"):
        SVIRunner(guide.model, guide, schedule=runner.schedule).fit(torch.rand(40, 6), 9, 40)


def test_weights_may_be_numbers_of_numpy() -> None:
    for weight in (np.float32(0.5), {"z_style": np.float32(0.5)}):
        kl_weights, _ = Constant(weight).bind(small().model, 1, 1)(torch.tensor(0))
        assert 0.5 in kl_weights


def test_what_the_optimizer_does_not_have_is_refused() -> None:
    guide = small()
    runner = SVIRunner(guide.model, guide)
    runner.fit(torch.rand(8, 6), 1, progress=False)
    name, learned = next(iter(guide.encoder.named_parameters()))
    owner, _, own = name.rpartition(".")
    setattr(guide.encoder.get_submodule(owner), own, torch.nn.Parameter(learned.detach() + 1))
    with pytest.raises(ValueError, match=f"'guide.encoder.{name}' .* is not in the optimizer"):
        runner.fit(torch.rand(8, 6), 1, progress=False)
    SVIRunner(guide.model, guide).fit(torch.rand(8, 6), 1, progress=False)


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD, ClippedAdam({"lr": 1e-3})])
def test_what_was_frozen_learns_once_it_is_unfrozen(optimizer: Any) -> None:
    guide = small()
    guide.encoder.requires_grad_(False)
    runner = SVIRunner(guide.model, guide, optimizer=optimizer)
    before = copy.deepcopy(guide.encoder.state_dict())
    runner.fit(x := torch.rand(8, 6), 1, progress=False)
    torch.testing.assert_close(guide.encoder.state_dict(), before, rtol=0, atol=0)
    guide.encoder.requires_grad_(True)
    runner.fit(x, 1, progress=False)
    assert not any(torch.equal(p, before[name]) for name, p in guide.encoder.named_parameters())


def test_what_is_frozen_is_in_evaluation_mode() -> None:
    model = VaDE((1, 8, 8), GaussianMixture(3, 2), network=StridedConvNet((4, 5), hidden=6))
    guide = VaDEGuide(model)
    frozen = guide.encoder.requires_grad_(False)
    runner, before, modes = SVIRunner(model, guide), copy.deepcopy(frozen.state_dict()), []
    model.decoder.register_forward_pre_hook(
        lambda decoder, _: modes.append((decoder.training, {m.training for m in frozen.modules()}))
    )
    runner.fit(torch.rand(8, 1, 8, 8), 2, progress=False)
    torch.testing.assert_close(frozen.state_dict(), before, rtol=0, atol=0)
    assert (True, {False}) in modes
    frozen.requires_grad_(True)
    runner.fit(torch.rand(8, 1, 8, 8), 1, progress=False)
    assert (True, {True}) in modes


@pytest.mark.parametrize("mode", [None, "replay"])
def test_moments_follow_what_becomes_of_their_parameter(mode: str | None) -> None:
    """Between two fits a weight is laid out anew, or is not; then all are doubled."""
    ends, x = [], torch.rand(8, 6)
    for change in (torch.contiguous_format, torch.preserve_format):
        torch.manual_seed(0)
        guide = small()
        weight = guide.encoder.get_parameter("backbones.0.1.weight")
        weight.data = weight.data.T.contiguous().T
        runner = SVIRunner(guide.model, guide, compile=mode).fit(x, 9, progress=False)
        weight.data = weight.data.clone(memory_format=change)
        runner.fit(x, 9, progress=False)
        ends.append(weight.detach().clone())
    torch.testing.assert_close(*ends)
    guide.double()
    runner.fit(x, 1, progress=False)
    assert not torch.equal(weight, ends[1].double())


def test_uint8_data_stay_uint8_until_the_step() -> None:
    guide = small()
    runner = SVIRunner(guide.model, guide)
    seen: list[torch.dtype] = []
    runner.loss.register_forward_pre_hook(lambda _, batch: seen.append(batch[0].dtype))
    runner.fit(
        np.random.default_rng(0).integers(0, 256, (10, 6), dtype=np.uint8), epochs=2, progress=False
    )
    assert seen == [torch.uint8] * 3  # the check of the first step, and two steps


def test_fitting_on_continues_from_where_it_was() -> None:
    """Two calls see the schedule and the random streams of one."""
    x = torch.rand(40, 6)
    whole, halves = small(), small()
    halves.load_state_dict(whole.state_dict())
    runners = [SVIRunner(g.model, g, schedule=WarmUp(6), seed=3) for g in (whole, halves)]
    runners[0].fit(x, epochs=6, batch_size=20, progress=False)
    runners[1].fit(x, epochs=4, batch_size=20, progress=False).fit(
        x, epochs=2, batch_size=20, progress=False
    )
    assert [record["epoch"] for record in runners[1].history] == [1, 2, 3, 4, 5, 6]
    assert [record["step"] for record in runners[1].history] == [2, 4, 6, 8, 10, 12]
    torch.testing.assert_close(whole.state_dict(), halves.state_dict(), rtol=0, atol=0)


def test_loading_a_faded_in_run_and_fitting_on_keeps_the_facet_in(tmp_path: Path) -> None:
    x = torch.rand(40, 6)
    guide = small()
    with pytest.warns(UserWarning, match="abrupt"):
        SVIRunner(guide.model, guide, schedule=ProgressiveFadeIn((1, 2), 2)).fit(
            x, 3, 20, progress=False
        ).save(tmp_path)
    for runner in (SVIRunner.load(tmp_path), SVIRunner.load(tmp_path, guide=guide)):
        assert runner.step == 6
        with pytest.warns(UserWarning, match="abrupt"):
            runner.fit(x, epochs=1, batch_size=20, progress=False)
        assert torch.equal(runner.model.gates, torch.ones(2))


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_callbacks_cannot_change_training_nor_it_them(precision: str) -> None:
    x = torch.rand(40, 6)
    watched, alone = small(), small()
    alone.load_state_dict(watched.state_dict())
    seen = []

    def meddle(runner: SVIRunner, record: dict) -> None:
        elbo(runner.model, runner.guide, x, num_draws=2)
        torch.randn(5)
        seen.append(runner.guide.embed(x)["digit"])

    SVIRunner(watched.model, watched, precision=precision).fit(
        x, 2, 20, callbacks=[meddle], progress=False
    )
    SVIRunner(alone.model, alone, precision=precision).fit(x, 2, 20, progress=False)
    torch.testing.assert_close(watched.state_dict(), alone.state_dict(), rtol=0, atol=0)
    np.testing.assert_array_equal(seen[-1], watched.embed(x)["digit"])


def test_a_dead_facet_is_warned_of() -> None:
    guide = small()
    with pytest.warns(
        DeadFacetWarning, match="facet 'style' ended with .* so it encodes nothing about the data"
    ):
        SVIRunner(guide.model, guide, lr=1e-9).fit(
            torch.full((40, 6), 0.5), epochs=1, progress=False
        )


def test_sorted_data_are_watched_in_all_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.cat([torch.zeros(4000, 6), torch.ones(4000, 6)])
    guide = small()
    runner = SVIRunner(guide.model, guide)
    rows = []
    watch = loop._watch
    monkeypatch.setattr(loop, "_watch", lambda runner, r: (rows.append(r), watch(runner, r))[1])
    runner.fit(x, epochs=1, batch_size=4000, progress=False)
    assert abs(rows[0].x.mean().item() - 0.5) < 0.05  # 2,048 rows: deviation 0.011


def blobs(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    x, y = make_blobs(
        n, n_features=6, centers=4, cluster_std=0.05, center_box=(0, 1), random_state=2
    )
    return x.astype(np.float32), y


@pytest.mark.slow(2)
def test_learns_and_a_zero_rate_does_not() -> None:
    x, _ = blobs()
    gains = {}
    for lr in (1e-12, 3e-3):
        torch.manual_seed(0)
        model = VaDE((6,), GaussianMixture(6, 2), Normal(0.1), SharedMLP((32, 32)))
        guide = VaDEGuide(model)
        before, before_error = elbo(model, guide, x, num_draws=20)
        SVIRunner(model, guide, lr=lr).fit(x, epochs=20, batch_size=64, progress=False)
        after, after_error = elbo(model, guide, x, num_draws=20)
        gains[lr] = (after - before) / np.hypot(before_error, after_error)
    assert abs(gains[1e-12]) < 5
    assert gains[3e-3] > 20


@pytest.mark.slow(2)
def test_warm_start_finds_blobs() -> None:
    x, y = blobs()
    torch.manual_seed(0)
    model = VaDE((6,), GaussianMixture(6, 2), Normal(0.05), SharedMLP((32, 32)))
    guide = VaDEGuide(model)
    warm_start(SVIRunner(model, guide, lr=3e-3), x, epochs=100, batch_size=50, progress=False)
    assert isinstance(model.priors["cluster"], GaussianMixture)
    runner = SVIRunner(model, guide, lr=1e-3).fit(x, epochs=10, batch_size=64, progress=False)
    assert cluster_accuracy(y, guide.predict(x)["cluster"]) > 0.9
    # Four groups of equal size hold log 4 = 1.39 nats.
    assert runner.history[-1]["mutual_information_cluster"] > 1.2


def test_priors_are_put_back_also_after_an_error() -> None:
    guide = small()
    kept = dict(guide.model.priors)
    with pytest.raises(ValueError, match="x is empty"):
        warm_start(SVIRunner(guide.model, guide), np.zeros((0, 6)), epochs=1)
    assert all(guide.model.priors[name] is prior for name, prior in kept.items())


def test_cold_start_takes_the_means_of_a_mixture_fitted_to_draws_if_asked() -> None:
    x = torch.rand(300, 6)
    guide = small()
    style = guide.model.priors["style"]
    scale = style.scale.clone()
    cold_start(guide, x, seed=1, fit_to="draws")
    torch.testing.assert_close(style.scale, scale)
    torch.testing.assert_close(style.component().probs, torch.full((3,), 1 / 3))
    # Weighted by how many draws are nearest, the means' mean is that of the draws: the posterior's
    # own mean.
    q = guide.posterior(x)["style"]
    draws = q.rsample()
    nearest = torch.cdist(draws, style.loc.detach()).argmin(-1).bincount(minlength=3) / len(x)
    error = draws.std(0) / len(x) ** 0.5
    assert ((nearest @ style.loc.detach() - q.mean.mean(0)).abs() < 8 * error).all()
    assert torch.pdist(style.loc.detach()).min() > draws.std(0).min() / 2


def test_cold_start_takes_the_means_of_scikit_learns_mixture_of_the_posterior_means() -> None:
    """Of all rows, whose order is the seed's: the fit starts from k-means, which draws rows."""
    x, guide = torch.rand(300, 6), small()
    means = guide.embed(x)["style"].astype(np.float64)
    cold_start(guide, x, seed=1)
    with seeded(1, torch.device("cpu")):
        order = torch.randperm(300).numpy()
    fitted = SklearnMixture(3, covariance_type="diag", random_state=1).fit(means[order])
    np.testing.assert_allclose(guide.model.priors["style"].loc.detach(), fitted.means_, rtol=1e-5)
    kept = guide.model.priors["style"].loc.clone()
    cold_start(guide, x, max_rows=300, seed=1)
    torch.testing.assert_close(guide.model.priors["style"].loc, kept, rtol=0, atol=0)
    cold_start(guide, x, max_rows=50, seed=1)
    assert not torch.allclose(guide.model.priors["style"].loc, kept)


@pytest.mark.parametrize("covariance", ["diag", "full"])
def test_fit_mixtures_takes_means_covariances_and_weights(covariance: str) -> None:
    """The mixture's mean and variance are those of all posteriors together."""
    x = torch.rand(300, 6)
    model = MFCVAE((6,), {"a": GaussianMixture(3, 2, covariance)}, network=MLPLadder((8,)))
    guide = VaDEGuide(model)
    fit_mixtures(guide, x, seed=1)
    prior, q = model.priors["a"], guide.posterior(x)["a"]
    weights = prior.component().probs
    assert not torch.allclose(weights, torch.full((3,), 1 / 3), atol=1e-3)
    mean = weights @ prior.loc
    covariances = prior.scale_tril @ prior.scale_tril.mT
    spread = torch.einsum("k,kij->ij", weights, covariances) + torch.cov(
        prior.loc.mT, aweights=weights, correction=0
    )
    torch.testing.assert_close(mean, q.mean.mean(0), rtol=1e-3, atol=1e-4)
    total = torch.cov(q.mean.mT, correction=0) + q.variance.mean(0).diag()
    if covariance == "diag":
        spread, total = spread.diag(), total.diag()
    torch.testing.assert_close(spread, total, rtol=1e-3, atol=1e-4)


def test_full_covariances_start_in_common_where_bic_prefers_that() -> None:
    """Of two clusters along a line; with 40 rows each, and other widths, two are told apart."""
    rng = np.random.default_rng(0)
    kinds = []
    for widths in ((1.0, 1.0), (0.5, 2.0)):
        z = torch.as_tensor(
            np.concatenate([rng.normal(10 * k, w, (40, 2)) for k, w in enumerate(widths)])
        )
        prior = GaussianMixture(2, 2, "full")
        fitted = _in_common_if_likelier(_fitted(prior, z, "full", 0), prior, z, 0)
        kinds.append(fitted.covariance_type)
        own = [np.cov(part.T, bias=True) for part in z.numpy().reshape(2, 40, 2)]
        expected = own if kinds[-1] == "full" else [sum(own) / 2] * 2
        found = _covariances(fitted)[np.argsort(fitted.means_[:, 0])]
        np.testing.assert_allclose(found, np.stack(expected), rtol=1e-3, atol=1e-4)
    assert kinds == ["tied", "full"]


def test_standard_normal_facets_are_left_alone_by_the_starts() -> None:
    model = MFCVAE(
        (6,),
        {"plain": StandardNormal(2), "mixed": GaussianMixture(2, 2)},
        network=MLPLadder((8, 9)),
    )
    cold_start(VaDEGuide(model), torch.rand(50, 6))
    assert isinstance(model.priors["plain"], StandardNormal)


def test_elbo_is_at_weight_one_and_its_error_is_that_of_the_draws() -> None:
    guide = small()
    x = torch.rand(20, 6)
    at_one = elbo(guide.model, guide, x, num_draws=60)
    guide.model.gates = torch.tensor([0.0, 1.0])
    torch.manual_seed(7)
    again = elbo(guide.model, guide, x, num_draws=60)
    assert abs(at_one[0] - again[0]) < 6 * np.hypot(at_one[1], again[1])
    assert torch.equal(guide.model.gates, torch.tensor([0.0, 1.0]))
    few, many = (elbo(guide.model, guide, x, num_draws=n)[1] for n in (20, 180))
    assert few / many == pytest.approx(3, rel=0.6)


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused_wherever_it_appears(
    precision: torch.dtype, tmp_path: Path
) -> None:
    words = f"must be float32 or float64, but '.*gates' is {precision}: call guide.float"
    guide = small()
    runner = SVIRunner(guide.model, guide)
    runner.guide.to(precision)
    with pytest.raises(ValueError, match=words):
        runner.fit(torch.rand(10, 6), 1, progress=False)
    with pytest.raises(ValueError, match=words):
        runner.save(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match=r"must be float32 or float64, but '.*gates' is"):
        SVIRunner(guide.model, guide)


def test_weights_that_layers_share_are_saved_for_each(tmp_path: Path) -> None:
    guide = VaDEGuide(VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((6, 6))))
    squares = [
        [m for m in of.modules() if getattr(m, "weight", torch.empty(0)).shape == (6, 6)]
        for of in (guide.encoder, guide.model.decoder)
    ]
    squares[1][0].weight = squares[0][0].weight
    SVIRunner(guide.model, guide).save(tmp_path)
    loaded = SVIRunner.load(tmp_path).guide.state_dict()
    torch.testing.assert_close(loaded, guide.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("part", "value"), [("model.likelihood", Normal(0.1)), ("label_weight", 2.0)]
)
def test_what_was_changed_after_it_was_built_is_asked_for(
    part: str, value: Any, tmp_path: Path
) -> None:
    guide = VaDEGuide(VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,))))
    owner, _, name = part.rpartition(".")
    setattr(guide.get_submodule(owner), name, value)
    with pytest.warns(UserWarning, match=f"guide.{part} was changed after it was built"):
        SVIRunner(guide.model, guide).save(tmp_path)
    with pytest.raises(ValueError, match=rf"json: guide.{part} was changed .* \(guide=\)"):
        SVIRunner.load(tmp_path)
    assert SVIRunner.load(tmp_path, guide=guide).guide is guide


def test_a_class_of_ones_own_is_asked_for_and_nothing_is_called_damaged(tmp_path: Path) -> None:
    class Mine(GaussianMixture):
        pass

    guide = VaDEGuide(VaDE((6,), Mine(3, 2), network=SharedMLP((4,))))
    SVIRunner(guide.model, guide).save(tmp_path)
    with pytest.raises(ValueError, match=r"json: the checkpoint names '.*Mine'.* to `load`$"):
        SVIRunner.load(tmp_path)


def test_what_ended_processes_left_is_removed_by_the_next_save(tmp_path: Path) -> None:
    guide = small()
    node = platform.node()
    names = [
        ".weights.safetensors.999999999.tmp",
        f".config.json.{node}-999999999.tmp",
        f".history.jsonl.{'0' * 64}.{node}-999999999.tmp",
    ]
    others = [".weights.safetensors.moon-1.tmp", ".notes.txt.999999999.tmp", "notes.tmp"]
    for name in [*names, *others]:
        (tmp_path / name).write_text("mine")
    SVIRunner(guide.model, guide).save(tmp_path)
    run = ["card.md", "config.json", "history.jsonl", "weights.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*others, *run])
