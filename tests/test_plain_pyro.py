"""Pyro's own line: plain SVI with Pyro's objectives and optimizers trains every model and guide."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from pyro.optim import Adam, ClippedAdam, ExponentialLR, PyroOptim

from guides import FacetGuide, MarginalGuide, SimilarContentGuide, VaDEGuide
from inference import Checkpoints, GuideEnum_ELBO, Loss, SVIRunner
from ppl_models import (
    MFCVAE,
    MLVAE,
    VAE,
    Bernoulli,
    GaussianMixture,
    Likelihood,
    MLPLadder,
    Normal,
    SharedMLP,
    VaDE,
)
from tests.catalog import OBJECTIVES, PAIRS, given, two_facets

pytestmark = [pytest.mark.slow(30), pytest.mark.usefixtures("an_empty_store")]

N = 12
STEPS = 5  # in the first, a unit of a small network may pass no gradient on
CASES = [
    pytest.param(build, name, id=f"{build.__name__}-{name}")
    for build, _, suitable in PAIRS
    for name in sorted(suitable)
    if name.startswith("Pyro's")
]


def start(build: Callable[[], FacetGuide]) -> tuple[FacetGuide, torch.Tensor, dict[str, Any]]:
    pyro.set_rng_seed(0)
    guide = build()
    x = (255 * torch.rand(N, *guide.model.x_shape)).round() / 255
    return guide, x, given(guide, N)


def svi_of(guide: FacetGuide, lr: float = 1e-2) -> SVI:
    return SVI(guide.model, guide, Adam({"lr": lr}), TraceEnum_ELBO(max_plate_nesting=1))


def moved(guide: FacetGuide, train: Callable[[], Any]) -> set[str]:
    """Which parameters a training changes."""
    before = {name: p.detach().clone() for name, p in guide.named_parameters()}
    train()
    return {name for name, p in guide.named_parameters() if not torch.equal(p, before[name])}


@pytest.mark.parametrize(("build", "name"), CASES)
def test_plain_svi_moves_all_that_the_runner_moves(
    build: Callable[[], FacetGuide], name: str
) -> None:
    guide, x, beside = start(build)
    options = {**guide.options, **beside}
    svi = SVI(guide.model, guide, Adam({"lr": 1e-3}), OBJECTIVES[name](guide))

    def steps() -> None:
        for _ in range(STEPS):
            svi.step(x, **options)

    by_svi = moved(guide, steps)
    other, x, beside = start(build)
    runner = SVIRunner(other.model, other, OBJECTIVES[name](other), lr=1e-3)
    by_runner = moved(other, lambda: runner.fit(x, STEPS, N, progress=False, **beside))
    # Pyro's objectives know no baselines, which are no part of a model.
    learning = {name for name, p in other.named_parameters() if p.requires_grad}
    assert by_runner == {name for name in learning if not name.startswith("discrete.")}
    assert by_svi == by_runner


@pytest.mark.parametrize(("build", "name"), CASES)
def test_its_loss_is_the_runners_on_the_same_draws(
    build: Callable[[], FacetGuide], name: str
) -> None:
    guide, x, beside = start(build)
    guide, x = guide.double(), x.double()
    beside = {k: v.double() if v.is_floating_point() else v for k, v in beside.items()}
    objective = OBJECTIVES[name](guide)
    svi = SVI(guide.model, guide, Adam({"lr": 1e-9}), objective)
    pyro.set_rng_seed(1)
    ours = float(Loss(guide.model, guide, objective)(x, **beside).detach())
    pyro.set_rng_seed(1)
    theirs = svi.step(guide.model.prepare(x), **guide.options, **beside) / N
    assert theirs == pytest.approx(ours, abs=1e-10, rel=1e-10)


def test_two_models_of_a_class_trained_by_turns_end_as_they_would_alone() -> None:
    def run_of(seed: int) -> tuple[VaDEGuide, SVI, torch.Tensor]:
        pyro.set_rng_seed(seed)
        guide = two_facets()
        return guide, svi_of(guide), torch.rand(N, 6)

    def step(svi: SVI, x: torch.Tensor, number: int) -> None:
        pyro.set_rng_seed(number)
        svi.step(x)

    alone = []
    for seed in (0, 1):
        pyro.clear_param_store()
        guide, svi, x = run_of(seed)
        for number in range(10):
            step(svi, x, number)
        alone.append({name: p.detach().clone() for name, p in guide.named_parameters()})
    pyro.clear_param_store()
    runs = [run_of(seed) for seed in (0, 1)]
    for number in range(10):
        for _, svi, x in runs:
            step(svi, x, number)
    for (guide, _, _), then in zip(runs, alone, strict=True):
        assert all(torch.equal(p, then[name]) for name, p in guide.named_parameters())
    assert len({name.partition("$$$")[0] for name in pyro.get_param_store()}) == 4


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: ClippedAdam({"lr": 1e-2, "lrd": 0.99}),
        lambda: ExponentialLR(
            {"optimizer": torch.optim.SGD, "optim_args": {"lr": 1e-2}, "gamma": 0.9}
        ),
        lambda: Adam(lambda name: {"lr": 1e-2 if "decoder" in name else 1e-3}),
        lambda: Adam(lambda module, name: {"lr": 1e-2 if "MFCVAE" in module else 1e-3}),
    ],
    ids=["clipped", "scheduled", "by parameter", "by module"],
)
def test_pyros_optimizers(optimizer: Callable[[], Any]) -> None:
    guide, x, _ = start(two_facets)
    optim = optimizer()
    svi = SVI(guide.model, guide, optim, TraceEnum_ELBO(max_plate_nesting=1))

    def steps() -> None:
        for _ in range(3):
            svi.step(x)
            if hasattr(optim, "set_epoch") or hasattr(optim, "pt_scheduler_constructor"):
                optim.step()

    assert moved(guide, steps) == {name for name, _ in guide.named_parameters()}


def test_the_store_is_saved_and_loaded(tmp_path: Path) -> None:
    guide, x, _ = start(two_facets)
    svi = svi_of(guide)
    for _ in range(5):
        svi.step(x)
    pyro.get_param_store().save(str(tmp_path / "params"))
    trained = {name: p.detach().clone() for name, p in guide.named_parameters()}
    names = set(pyro.get_param_store())

    # Back to what was saved, in the same process and object; then cleared, and on from there.
    for _ in range(3):
        svi.step(x)
    pyro.get_param_store().load(str(tmp_path / "params"))
    still = svi_of(guide, lr=0.0)
    still.step(x)
    assert all(torch.equal(p, trained[name]) for name, p in guide.named_parameters())
    pyro.clear_param_store()
    still.step(x)
    assert all(torch.equal(p, trained[name]) for name, p in guide.named_parameters())
    assert set(pyro.get_param_store()) == names

    # Another object, as in another process.
    del guide, svi, still
    pyro.clear_param_store()
    pyro.set_rng_seed(5)
    fresh = two_facets()
    pyro.get_param_store().load(str(tmp_path / "params"))
    svi_of(fresh, lr=0.0).step(x)
    assert set(pyro.get_param_store()) == names
    assert all(torch.equal(p, trained[name]) for name, p in fresh.named_parameters())


def test_what_replaces_a_parameter_outlasts_a_step() -> None:
    """The store's values count where they were loaded, and no more."""
    guide, x, _ = start(two_facets)
    svi = svi_of(guide, lr=0.0)
    svi.step(x)
    others = {name: torch.full_like(p, 0.5) for name, p in guide.state_dict().items()}
    guide.load_state_dict(others, assign=True)
    rung = guide.encoder.rungs[0]
    guide.encoder.rungs[0] = torch.nn.Linear(rung.in_features, rung.out_features)
    expected = {name: p.detach().clone() for name, p in guide.named_parameters()}
    svi.step(x)
    assert all(torch.equal(p, expected[name]) for name, p in guide.named_parameters())
    assert all(any(p is own for own in guide.parameters()) for p in pyro.get_param_store().values())


def test_loaded_values_of_a_program_that_still_exists_are_told_of(tmp_path: Path) -> None:
    guide, x, _ = start(two_facets)
    svi_of(guide).step(x)
    pyro.get_param_store().save(str(tmp_path / "params"))
    pyro.clear_param_store()
    pyro.get_param_store().load(str(tmp_path / "params"))
    fresh = two_facets()
    with pytest.warns(UserWarning, match="has loaded values of '.*, .* does not get them"):
        fresh.register()
    guide.register()  # takes them over before any step
    assert pyro.get_param_store()["MFCVAE$$$facets.digit.loc"] is guide.model.priors["digit"].loc


@pytest.mark.parametrize("autoguide", [AutoNormal, AutoDelta])
def test_autoguides_of_the_latents_train_beside_enumerated_clusters(autoguide: Any) -> None:
    model = VaDE((6,), GaussianMixture(3, 2, scale=1.0), Normal(0.3), SharedMLP((8,)))
    guide = autoguide(poutine.block(model, hide=["c_cluster"]))
    svi = SVI(model, guide, Adam({"lr": 0.1}), TraceEnum_ELBO(max_plate_nesting=1))
    x = torch.rand(N, 6)
    losses = [svi.step(x) for _ in range(60)]
    assert sum(losses[-5:]) < sum(losses[:5])
    with pytest.raises(ValueError, match="cannot handle discrete sample site 'c_cluster'"):
        SVI(model, autoguide(model), Adam({"lr": 0.1}), Trace_ELBO()).step(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            torch.rand(6),
            r"x has shape \[6\], but the model was built for \[N, 6\]: .*give x\[None\]",
        ),
        (torch.rand(4, 5), r"shape \[4, 5\], but .* x_shape=\(5,\), or check the data"),
        (np.zeros((4, 6), np.float32), r"x must be a tensor, such as torch.as_tensor\(x\)"),
    ],
)
def test_what_is_no_batch_is_refused(x: Any, message: str) -> None:
    model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
    guide = VaDEGuide(model)
    with pytest.raises(ValueError, match=message):
        model(x)
    for objective in (TraceEnum_ELBO(max_plate_nesting=1), GuideEnum_ELBO(max_plate_nesting=1)):
        svi = SVI(model, guide, Adam({"lr": 1e-3}), objective)
        for use in (svi.step, svi.evaluate_loss):
            with pytest.raises(ValueError, match=message):
                use(x)


def test_a_store_of_another_shape_is_refused(tmp_path: Path) -> None:
    guide, x, _ = start(two_facets)
    svi_of(guide).step(x)
    pyro.get_param_store().save(str(tmp_path / "params"))
    del guide
    pyro.clear_param_store()
    pyro.get_param_store().load(str(tmp_path / "params"))
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 3)}
    other = VaDEGuide(MFCVAE((6,), facets, network=MLPLadder((16, 18))))
    with pytest.raises(ValueError, match=r"with shape \[.*it is another model's; call"):
        svi_of(other).step(x)


def test_parameters_enter_the_store_only_where_they_are_asked_for() -> None:
    guide, x, _ = start(two_facets)
    module = TraceEnum_ELBO(max_plate_nesting=1)(guide.model, guide)
    module(x).backward()
    assert all(p.grad is not None for p in module.parameters())
    SVIRunner(guide.model, guide).fit(x, 2, N, progress=False)
    assert not list(pyro.get_param_store())


def test_parameters_that_do_not_learn_stay() -> None:
    guide, x, _ = start(two_facets)
    guide.encoder.requires_grad_(False)
    svi = svi_of(guide)
    assert not [name for name in moved(guide, lambda: svi.step(x)) if name.startswith("encoder.")]


def marginal() -> MarginalGuide:
    return MarginalGuide(two_facets().model)


def test_what_cannot_work_says_so() -> None:
    pyro.set_rng_seed(0)
    x, adam = torch.rand(N, 6), Adam({"lr": 1e-2})
    two_draws = VaDEGuide(two_facets().model, num_samples=2)
    svi = SVI(two_draws.model, two_draws, adam, TraceEnum_ELBO(max_plate_nesting=2))
    with pytest.raises(ValueError, match=r"tell the model: svi.step\(x, num_samples=2\)"):
        svi.step(x)
    svi.step(x, num_samples=2)
    with pytest.raises(ValueError, match="num_samples must be an integer of at least 1, got 0"):
        two_draws.model(x, num_samples=0)
    guide = marginal()
    for objective in (Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO):
        svi = SVI(guide.model, guide, adam, objective(max_plate_nesting=1))
        with pytest.raises(ValueError, match=r"'c_style' is not in the guide, .* marginal=True"):
            svi.step(x)
        svi.step(x, marginal=True)
    SVI(guide.model, guide, adam, TraceEnum_ELBO(max_plate_nesting=1)).step(x)

    alike = SimilarContentGuide(MLVAE((6,), 2, 2))
    svi, group = SVI(alike.model, alike, adam, Trace_ELBO()), torch.arange(N) % 3
    with pytest.raises(ValueError, match=r"tell the model: .* content='untied'"):
        svi.step(x, group=group)
    svi.step(x, group=group, content="untied")
    with pytest.raises(TypeError, match="contents"):
        svi.step(x, group=group, content="untied", contents="untied")
    vade = VaDEGuide(VaDE((6,), GaussianMixture(3, 2)))
    svi = SVI(vade.model, vade, adam, TraceEnum_ELBO(max_plate_nesting=1))
    with pytest.raises(ValueError, match="label must be within 0 to 2, or -1 where unknown, got"):
        svi.step(x, label=torch.full((N, 1), 3))


def test_labels_of_one_facet_may_be_a_row() -> None:
    pyro.set_rng_seed(0)
    guide, x = VaDEGuide(VaDE((6,), GaussianMixture(3, 2))), torch.rand(N, 6)
    svi = SVI(guide.model, guide, Adam({}), TraceEnum_ELBO(max_plate_nesting=1))
    losses = []
    for label in (torch.arange(N) % 3, (torch.arange(N) % 3)[:, None]):
        pyro.set_rng_seed(1)
        losses.append(svi.evaluate_loss(x, label=label))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("likelihood", "dtype"),
    [
        (Bernoulli(threshold=0.5), torch.float32),
        (Normal(0.3), torch.uint8),
        (Normal(0.3), torch.float64),
        (Bernoulli(), torch.uint8),
    ],
    ids=repr,
)
def test_both_programs_see_the_same_x(likelihood: Likelihood, dtype: torch.dtype) -> None:
    """Data as they are, where both bring them to the likelihood's form."""
    pyro.set_rng_seed(0)
    model = VAE((6,), 2, likelihood)
    guide = VaDEGuide(model)
    x = (255 * torch.rand(N, 6)).to(torch.uint8)
    x = x if dtype == torch.uint8 else x.to(dtype) / 255
    svi, losses = SVI(model, guide, Adam({}), Trace_ELBO()), []
    for data in (x, model.prepare(x)):
        pyro.set_rng_seed(1)
        losses.append(svi.evaluate_loss(data))
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.SGD,
        partial(torch.optim.AdamW, weight_decay=0.1, fused=True),
        Adam({"lr": 1e-2}),
        ClippedAdam({"lr": 1e-2}),
        Adam(lambda name: {"lr": 1e-2 if "decoder" in name else 1e-3}),
        Adam(lambda module, name: {"lr": 1e-2 if module == "MFCVAE" else 1e-3}),
    ],
    ids=["SGD", "AdamW", "Pyro's Adam", "clipped", "by parameter", "by module"],
)
def test_the_runner_takes_other_optimizers(optimizer: Any, tmp_path: Path) -> None:
    def runner() -> tuple[SVIRunner, torch.Tensor]:
        guide, x, _ = start(two_facets)
        lr = 5e-4 if isinstance(optimizer, PyroOptim) else 1e-2
        return SVIRunner(guide.model, guide, lr=lr, optimizer=optimizer), x

    run, x = runner()
    sizes = {"epochs": 4, "batch_size": 5, "progress": False}
    changed = moved(run.guide, lambda: run.fit(x, **sizes))
    assert changed == {name for name, _ in run.guide.named_parameters()}
    assert run.lr == 1e-2, "the largest, of several"
    # Its checkpoints are resumed, and by no run with another optimizer.
    again, x = runner()
    again.fit(x, **sizes, checkpoints=Checkpoints(tmp_path))
    resumed, x = runner()
    resumed.fit(x, **sizes, checkpoints=Checkpoints(tmp_path, resume=True))
    states = [each.guide.state_dict() for each in (run, resumed)]
    torch.testing.assert_close(*states, rtol=0, atol=0)
    other = SVIRunner(run.model, run.guide, lr=1e-2, optimizer=torch.optim.Adadelta)
    with pytest.raises(ValueError, match=r"which differs in .*optimizer"):
        other.fit(x, **sizes, checkpoints=Checkpoints(tmp_path, resume=True))


def test_pyros_adam_in_the_runner_is_torchs() -> None:
    ends = []
    for optimizer in (None, Adam({"lr": 1e-2})):
        guide, x, _ = start(two_facets)
        run = SVIRunner(guide.model, guide, lr=1e-2, optimizer=optimizer)
        run.fit(x, 3, N, progress=False)
        ends.append(list(guide.parameters()))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)
