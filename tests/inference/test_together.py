"""Several runs in one program: each is as it would be alone, and stays its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch

from guides import FacetGuide, VaDEGuide
from inference import Constant, MeanField_ELBO, SVIRunner, fit_together
from inference.callbacks import Evaluate, JSONLines, ReduceOnPlateau
from inference.training.batching import Rows
from inference.training.data_source import data_source_for
from inference.training.loop import train
from inference.training.plan import FitPlan
from ppl_models import MFCVAE, MLP, GaussianMixture, MLPLadder, VaDE, VampPrior
from ppl_models.given.observed import Observed
from tests.catalog import (
    EACH,
    GAMMA_DRAWS,
    KINDS,
    convolutional,
    flow,
    given,
    ivae,
    network_scored_average_two_draws,
    two_facets,
)

pytestmark = pytest.mark.slow(20)


def runners(build: Callable[[], FacetGuide], n: int, **options: Any) -> list[SVIRunner]:
    made = []
    for seed in range(n):
        pyro.set_rng_seed(seed)
        guide = build().double()
        made.append(SVIRunner(guide.model, guide, seed=seed, **options))
    return made


def data(guide: FacetGuide, n: int = 12) -> torch.Tensor:
    return (255 * torch.rand(n, *guide.model.x_shape, dtype=torch.float64)).round() / 255


def parameters(runner: SVIRunner) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in runner.loss.named_parameters()}


def buffers(runner: SVIRunner) -> dict[str, torch.Tensor]:
    return dict(runner.guide.named_buffers())


def tensors(runner: SVIRunner) -> dict[str, torch.Tensor]:
    return parameters(runner) | buffers(runner)


# Batches of groups differ in size.
TOGETHER = [build for build in EACH if "mlvae" not in build.__name__]
ALONE = [two_facets, convolutional, network_scored_average_two_draws, *GAMMA_DRAWS]


@pytest.mark.parametrize("build", ALONE, ids=lambda f: f.__name__)
def test_one_run_in_the_program_is_that_run(build: Callable[[], FacetGuide]) -> None:
    """Mapped over a single run the draws are the same, epochs and logging included."""
    (alone,), (mapped,) = runners(build, 1), runners(build, 1)
    x, beside = data(alone.guide), given(alone.guide, 12)
    alone.fit(x, epochs=3, batch_size=5, log_every=2, progress=False, **beside)
    fit_together([mapped], x, epochs=3, batch_size=5, log_every=2, progress=False, **beside)
    torch.testing.assert_close(tensors(mapped), tensors(alone), rtol=1e-6, atol=1e-9)
    assert [{**record, "seconds": 0} for record in mapped.history] == [
        pytest.approx({**record, "seconds": 0}, rel=1e-5, abs=1e-7) for record in alone.history
    ]
    assert (mapped.epoch, mapped.step) == (alone.epoch, alone.step)


def test_runs_without_draws_end_where_they_end_alone() -> None:
    """A flow draws nothing, and a batch of all data has no order: three runs, three rates."""
    alone, together = (runners(flow, 3) for _ in range(2))
    for group in (alone, together):
        for runner, rate in zip(group, (1e-3, 5e-3, 2e-2), strict=True):
            runner.optimizer.param_groups[0]["lr"] = rate
    x = data(alone[0].guide)
    for runner in alone:
        runner.fit(x, epochs=20, progress=False)
    fit_together(together, x, epochs=20, progress=False)
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(tensors(other), tensors(one), rtol=1e-6, atol=1e-9)
        assert other.history[-1]["elbo"] == pytest.approx(one.history[-1]["elbo"], rel=1e-8)


def started_alike(n: int) -> list[SVIRunner]:
    """Runs whose networks are the same, so that all that differs is what happens in training."""
    group = runners(two_facets, n)
    for runner in group[1:]:
        runner.guide.load_state_dict(group[0].guide.state_dict())
    return group


def test_runs_differ_in_their_draws() -> None:
    """In a batch of all data nothing else can differ, in the first step."""
    group = started_alike(3)
    fit_together(group, data(group[0].guide), epochs=1, batch_size=12, progress=False)
    assert len({runner.history[0]["objective"] for runner in group}) == 3


def test_runs_differ_in_their_batches() -> None:
    group = started_alike(3)
    x = data(group[0].guide)
    orders = []

    class Recorded(Rows):
        def order(self, data: Observed, generator: torch.Generator | None = None) -> torch.Tensor:
            orders.append(super().order(data, generator))
            return orders[-1]

    together(group, x, 2, 5, Recorded())
    assert len(orders) == 6
    assert len({tuple(order.tolist()) for order in orders}) == 6
    assert all(sorted(order.tolist()) == list(range(12)) for order in orders)


def together(
    group: list[SVIRunner],
    x: torch.Tensor,
    epochs: int,
    batch_size: int,
    batches: Rows,
    **beside: Any,
) -> None:
    """As fit_together, with a way of dealing of the user's."""
    feed = data_source_for(group[0].guide, group[0].device, x, beside, batch_size, batches)
    plan = FitPlan(group, feed, epochs, 1, [[] for _ in group], progress=False, together=True)
    train(plan)


class AsTheyLie(Rows):
    """Rows in their order, so that dealing takes no random numbers."""

    def order(self, data: Observed, generator: torch.Generator | None = None) -> torch.Tensor:
        return torch.arange(len(data))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "build", [b for b in KINDS if b in TOGETHER and b not in GAMMA_DRAWS], ids=lambda f: f.__name__
)
def test_each_of_three_runs_is_as_it_is_alone(
    build: Callable[[], FacetGuide], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same batches and draws for all: parameters, buffers, histories."""
    alone, others = (
        [SVIRunner(runner.model, runner.guide, seed=0, lr=1e-2) for runner in runners(build, 3)]
        for _ in range(2)
    )
    x = data(alone[0].guide)
    beside = given(alone[0].guide, 12)
    for runner in alone:
        runner.fit(x, 3, 6, batches=AsTheyLie(), progress=False, **beside)
    mapped = torch.vmap
    monkeypatch.setattr(
        torch, "vmap", lambda *args, **options: mapped(*args, **{**options, "randomness": "same"})
    )
    together(others, x, 3, 6, AsTheyLie(), **beside)
    for one, other in zip(alone, others, strict=True):
        torch.testing.assert_close(parameters(other), parameters(one), rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(buffers(other), buffers(one), rtol=1e-5, atol=1e-8)
        for name in ("objective", "elbo"):
            assert other.history[-1][name] == pytest.approx(one.history[-1][name], rel=1e-5)


def test_each_run_is_its_own_afterwards(tmp_path: Path) -> None:
    """Optimizers, histories and checkpoints are apart, and a run goes on alone or with others as
    one that was alone.
    """
    group = runners(two_facets, 2)
    x = data(group[0].guide)
    fit_together(group, x, epochs=2, batch_size=5, progress=False)
    kept = parameters(group[1])
    group[0].fit(x, epochs=2, batch_size=5, progress=False)
    torch.testing.assert_close(parameters(group[1]), kept, rtol=0, atol=0)  # the other's alone
    storages = [
        p.untyped_storage().data_ptr() for runner in group for p in runner.loss.parameters()
    ]
    assert len(set(storages)) == len(storages)
    assert all(
        p.untyped_storage().nbytes() == p.nbytes
        for runner in group
        for p in runner.loss.parameters()
    )
    own = [id(buffer) for runner in group for buffer in runner.loss.buffers()]
    assert len(set(own)) == len(own)
    loaded = SVIRunner.load(group[1].save(tmp_path / "one"))
    assert loaded.history == group[1].history
    assert (group[0].epoch, group[1].epoch) == (4, 2)
    group[1].fit(x, epochs=2, batch_size=5, progress=False)
    fit_together(group, x, epochs=1, batch_size=5, progress=False)
    assert [record["epoch"] for record in group[1].history] == [1, 2, 3, 4, 5]
    state = [runner.optimizer.state_dict()["state"][0]["step"] for runner in group]
    assert state == [15, 15]


def test_callbacks_are_each_runs_own(tmp_path: Path) -> None:
    group = runners(two_facets, 3)

    def callbacks(runner: SVIRunner) -> list:
        measure = Evaluate(lambda runner: {"seed": runner.seed}, every=2)
        return [
            measure,
            ReduceOnPlateau(0.5, patience=1, threshold=1e9),
            JSONLines(tmp_path / f"{runner.seed}.jsonl"),
        ]

    fit_together(
        group, data(group[0].guide), epochs=5, batch_size=6, callbacks=callbacks, progress=False
    )
    for runner in group:
        assert [record.get("seed") for record in runner.history] == [
            None,
            runner.seed,
            None,
            runner.seed,
            None,
        ]
        lines = (tmp_path / f"{runner.seed}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == runner.history
        # Nothing counts as an improvement: the rate falls with every second record.
        assert runner.history[-1]["lr"] == pytest.approx(runner.lr / 4)


def test_what_is_frozen_stays_whatever_was_learned_before() -> None:
    group = runners(two_facets, 2)
    x = data(group[0].guide)
    for runner in group:
        runner.fit(x, epochs=1, progress=False)
        runner.model.facets["digit"].loc.requires_grad_(False)
    kept = [runner.model.facets["digit"].loc.clone() for runner in group]
    fit_together(group, x, epochs=3, progress=False)
    found = [runner.model.facets["digit"].loc for runner in group]
    torch.testing.assert_close(found, kept, rtol=0, atol=0)


def test_what_callbacks_put_in_place_of_parameters_is_trained_on() -> None:
    """As in a run of its own, which one run in the program is."""

    def replace(runner: SVIRunner, record: dict[str, Any]) -> None:
        for p in runner.model.decoder.parameters():
            p.data = p.data.clamp(-0.1, 0.1)

    (one,), (other,) = runners(two_facets, 1), runners(two_facets, 1)
    x = data(one.guide)
    one.fit(x, 3, 6, progress=False, callbacks=[replace])
    fit_together([other], x, 3, 6, callbacks=lambda runner: [replace], progress=False)
    torch.testing.assert_close(parameters(other), parameters(one), rtol=1e-6, atol=1e-8)


def test_callbacks_that_are_shared_are_refused() -> None:
    shared, group = ReduceOnPlateau(), runners(two_facets, 3)
    for first in (0, 1):
        with pytest.raises(ValueError, match="two runners got the same callback"):
            fit_together(
                group,
                data(group[0].guide),
                1,
                callbacks=lambda runner, first=first: [shared] if runner.seed >= first else [],
                progress=False,
            )


def other_schedule() -> list[SVIRunner]:
    return [*runners(two_facets, 1), *runners(two_facets, 1, schedule=Constant(2.0))]


def other_objective() -> list[SVIRunner]:
    return [*runners(ivae, 1), *runners(ivae, 1, objective=MeanField_ELBO(max_plate_nesting=1))]


def other_model() -> list[SVIRunner]:
    def wider() -> VaDEGuide:
        model = MFCVAE((6,), {"a": GaussianMixture(3, 2)}, network=MLPLadder((9,)))
        return VaDEGuide(model)

    return [*runners(two_facets, 1), *runners(wider, 1)]


def one_model_for_two() -> list[SVIRunner]:
    model = two_facets().double().model
    return [SVIRunner(model, VaDEGuide(model).double(), seed=seed) for seed in range(2)]


def one_is_frozen() -> list[SVIRunner]:
    group = runners(two_facets, 2)
    group[1].model.facets["digit"].loc.requires_grad_(False)
    return group


def one_is_ahead() -> list[SVIRunner]:
    group = runners(two_facets, 2)
    group[1].fit(data(group[1].guide), epochs=1, progress=False)
    return group


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (other_schedule, "runner 1 differs from the first one in its schedule"),
        (other_objective, "differs from the first one in its objective"),
        (other_model, "differs from the first one in its guide and model"),
        (one_is_ahead, "differs from the first one in its steps"),
        (one_model_for_two, "two runners hold the same parameters"),
        (one_is_frozen, "differs from the first one in its parameters that learn"),
        (
            lambda: [*runners(two_facets, 1), *runners(two_facets, 1, compile=None)],
            "differs from the first one in its compile",
        ),
        (
            lambda: runners(two_facets, 2, compile="xla"),
            "compile='xla' is for one run, but 2 are trained together",
        ),
    ],
    ids=["schedule", "objective", "model", "steps", "shared", "frozen", "compile", "xla"],
)
def test_runs_that_are_not_of_a_kind_are_refused(
    group: Callable[[], list[SVIRunner]], words: str
) -> None:
    made = group()
    before = [parameters(runner) for runner in made]
    with pytest.raises(ValueError, match=words):
        fit_together(made, torch.rand(8, 6), epochs=1, progress=False)
    torch.testing.assert_close([parameters(runner) for runner in made], before, rtol=0, atol=0)


def with_pseudo_inputs() -> VaDEGuide:
    guide = VaDEGuide(
        VaDE((6,), VampPrior(3, 2, (6,), support=(0, 1)), network=MLP((8,), dropout=0))
    )
    for p in guide.encoder.parameters():
        torch.nn.init.normal_(p)
    return guide


def test_priors_made_of_posteriors_read_their_own_encoder() -> None:
    """Though the program is written with the first run's VampPrior."""
    group, alone = runners(with_pseudo_inputs, 2), runners(with_pseudo_inputs, 2)
    x = data(group[0].guide, n=400)
    elbos = [float(runner.loss.terms(x)["elbo"].detach()) for runner in alone]
    fit_together(group, x, epochs=1, progress=False)
    for runner, elbo in zip(group, elbos, strict=True):
        assert -runner.history[0]["objective"] == pytest.approx(
            elbo, abs=abs(elbos[0] - elbos[1]) / 4
        )
