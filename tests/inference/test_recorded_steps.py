"""Steps whose objective and gradient are recorded and replayed, against steps through Pyro."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch

from guides import FacetGuide, VaDEGuide
from inference import Checkpoints, Guard, ProgressiveFadeIn, SVIRunner, WarmUp, fit_together
from inference.schedules import Schedule
from inference.training.recorder import Recorder, RecordingWarning
from inference.training.recording import agree, record, recorded
from ppl_models import MFCVAE, Normal
from ppl_models.networks import dense
from tests.catalog import EACH, OBJECTIVES, PAIRS, given, mlvae, of_two, two_facets
from tests.test_contract import data

# Objectives that read values back to the host cannot be recorded; the others with one guide each.
READING = {name for name in OBJECTIVES if name.startswith("Pyro's")}
RECORDABLE = {name: b for b, _, names in reversed(PAIRS) for name in sorted(names - READING)}


def start(build: Callable[[], FacetGuide], objective: str | None, **options: Any) -> SVIRunner:
    pyro.set_rng_seed(0)
    guide = build()
    chosen = None if objective is None else OBJECTIVES[objective](guide)
    return SVIRunner(guide.model, guide, chosen, lr=1e-2, **options)


def trained(build: Callable[[], FacetGuide], objective: str | None, mode: str | None) -> SVIRunner:
    """In double precision: Adam makes whole steps of a gradient that is nothing but rounding, such
    as that of a bias before a normalization.
    """
    runner = start(lambda: build().double(), objective, compile=mode)
    beside = given(runner.guide, 12)
    size = {} if "group" in beside else {"batch_size": 6}
    torch.manual_seed(1)
    return runner.fit(data(runner.guide, 12), epochs=2, progress=False, **size, **beside)


def numbers(runner: SVIRunner) -> dict[str, torch.Tensor]:
    return {name: t.double() for name, t in runner.loss.state_dict().items()}


def assert_same(
    one: SVIRunner, other: SVIRunner, tolerance: float = 1e-4, of_records: float = 1e-4
) -> None:
    """Parameters, buffers and records, up to rounding that Adam may enlarge."""
    assert_same_weights(one, other, tolerance)
    for a, b in zip(one.history, other.history, strict=True):
        for name in a.keys() - {"seconds"}:
            assert b[name] == pytest.approx(a[name], rel=of_records, abs=of_records), name


def assert_same_weights(one: SVIRunner, other: SVIRunner, tolerance: float = 1e-4) -> None:
    for (name, a), b in zip(numbers(one).items(), numbers(other).values(), strict=True):
        assert (a - b).norm() <= tolerance * (1 + a.norm()), name


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """The gradients' programs: one for each shape of a batch, and each time they are dropped."""
    made: list[None] = []
    original = Recorder._gradient
    monkeypatch.setattr(
        Recorder, "_gradient", lambda *given: (made.append(None), original(*given))[1]
    )
    return made


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> list[Recorder]:
    made = []
    original = Recorder.__init__

    def noted(self: Recorder, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(Recorder, "__init__", noted)
    return made


def recorded_shapes(recorder: Recorder) -> int:
    """Shapes of batches whose gradient has a program."""
    return sum(kind == "replay" for kind, *_ in recorder.programs)


@pytest.mark.parametrize("build", EACH, ids=lambda build: build.__name__)
def test_a_replayed_run_ends_as_one_through_pyro(
    build: Callable[[], FacetGuide], recorders: list[Recorder]
) -> None:
    """The same draws, up to rounding."""
    assert_same(trained(build, None, None), trained(build, None, "replay"))
    (recorder,) = recorders
    assert not recorder.refused
    group = given(start(build, None).guide, 12).get("group", torch.zeros(1, dtype=torch.long))
    equal = len(group.unique(return_counts=True)[1].unique()) == 1
    assert recorded_shapes(recorder) == equal


@pytest.mark.parametrize(
    ("objective", "build"), RECORDABLE.items(), ids=lambda each: getattr(each, "__name__", each)
)
def test_a_program_repeats_objective_and_gradient(
    build: Callable[[], FacetGuide], objective: str
) -> None:
    """Each objective; Pyro's own read values to the host."""
    runner = start(build, objective)
    guide = runner.guide
    beside = given(guide, 6)
    parameters, buffers = dict(runner.loss.named_parameters()), dict(runner.loss.named_buffers())

    def function(*tensors: torch.Tensor) -> list[torch.Tensor]:
        x, *rest = tensors
        learning = [p.detach().requires_grad_() for p in rest[: len(parameters)]]
        named = dict(zip([*parameters, *buffers], learning + rest[len(parameters) :], strict=True))
        loss = torch.func.functional_call(runner.loss, named, (x,), beside)
        gradients = torch.autograd.grad(loss, learning, allow_unused=True)
        return [loss.detach(), *(g for g in gradients if g is not None)]

    examples = [data(guide, 6).to(torch.float32), *parameters.values(), *buffers.values()]
    with pyro.validation_enabled(False):
        program = record(function, examples)
        assert agree(function, program.run, examples)


def small(mode: str | None, **options: Any) -> SVIRunner:
    return start(two_facets, None, compile=mode, **options)


X = torch.rand(14, 6, generator=torch.Generator().manual_seed(3))
SIZES: dict[str, Any] = {"batch_size": 6, "progress": False}


def test_a_smaller_last_batch_has_a_program_of_its_own(recorders: list[Recorder]) -> None:
    assert_same(small(None).fit(X, 3, **SIZES), small("replay").fit(X, 3, **SIZES))
    assert [recorded_shapes(recorder) for recorder in recorders] == [2]


def test_a_call_chooses_by_its_number_of_steps() -> None:
    """In 3 steps a pass; the plan says what it chose."""
    runner = small("auto")
    assert runner.plan(X, 166, **SIZES).recording.executor is None
    assert runner.plan(X, 167, **SIZES).recording.executor == "replay"
    assert small(None).plan(X, 1000, **SIZES).recording.executor is None
    assert runner.plan(X, 1333, **SIZES).recording.executor == "replay"


def test_a_long_call_is_compiled_where_jax_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(**options: Any) -> str | None:
        return small("auto", **options).plan(X, 1334, **SIZES).recording.executor

    if importlib.util.find_spec("jax"):
        assert chosen() == "xla"
    assert chosen(precision="bf16") == "replay"
    monkeypatch.setitem(sys.modules, "jax", None)
    assert chosen() == "replay"


@functools.cache
def through_pyro() -> SVIRunner:
    return small(None).fit(X, 200, log_every=200, **SIZES)


ABSENT: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "JAX": lambda patch: patch.setitem(sys.modules, "jax", None),
    "TorchScript": lambda patch: patch.delattr(torch.jit, "CompilationUnit"),
    "oneDNN": lambda patch: patch.setattr(torch.ops, "mkldnn", None),
    "tracing": lambda patch: patch.setitem(sys.modules, "torch.fx.experimental.proxy_tensor", None),
}


@pytest.mark.thorough
@pytest.mark.parametrize("what", ABSENT)
def test_a_fit_ends_the_same_without(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """600 steps, by default and without a warning, whatever recorded steps rest on is gone."""
    expected = through_pyro()
    ABSENT[what](monkeypatch)
    found = small("auto").fit(X, 200, log_every=200, **SIZES)
    monkeypatch.undo()
    assert_same(expected, found, 1e-3, 1e-3)


@pytest.mark.parametrize(
    "schedule", [WarmUp(5), ProgressiveFadeIn((1, 2), 4)], ids=["warm-up", "fade-in"]
)
@pytest.mark.filterwarnings("ignore::inference.schedules.AbruptFadeInWarning")
def test_weights_move_and_nothing_is_recorded_anew(schedule: Schedule, built: list[None]) -> None:
    a, b = (small(mode, schedule=schedule).fit(X, 4, **SIZES) for mode in (None, "replay"))
    assert_same(a, b)
    assert len(built) == 2


def test_what_a_callback_changes_is_recorded_anew(built: list[None]) -> None:
    """A parameter that no longer learns, and a setting of the guide."""

    def freeze(run: Any, record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            run.model.facets["digit"].loc.requires_grad_(False)
        if record["epoch"] == 3:
            run.guide.label_weight = 7.0

    label = torch.arange(14)[:, None] % 3 * torch.ones(1, 2, dtype=torch.long)

    def run(mode: str | None) -> SVIRunner:
        return small(mode).fit(X, 4, callbacks=[freeze], label=label, **SIZES)

    assert_same(run(None), run("replay"))
    assert len(built) == 6


def test_networks_in_bfloat16(recorders: list[Recorder]) -> None:
    a, b = (small(mode, precision="bf16").fit(X, 3, **SIZES) for mode in (None, "replay"))
    for one, other in zip(a.history, b.history, strict=True):
        assert other["objective"] == pytest.approx(one["objective"], rel=1e-2)
    assert not recorders[-1].refused


def test_a_guard_sees_replayed_steps() -> None:
    """Entries that overflow in the objective are skipped, counted and learned nothing from."""
    x = X.clone()
    x[3] = 1e30

    def build() -> FacetGuide:
        return VaDEGuide(of_two(Normal(0.3)))

    one, other = (
        start(build, None, guard=Guard("skip"), compile=mode).fit(x, 4, **SIZES)
        for mode in (None, "replay")
    )
    assert [record["skipped"] for record in other.history] == [1, 1, 1, 1]
    assert_same_weights(one, other)


def test_an_objective_that_reads_values_goes_on_through_pyro(recorders: list[Recorder]) -> None:
    with pytest.warns(RecordingWarning, match=r"cannot be recorded for 'replay' .*leave compile="):
        run = start(two_facets, "Pyro's TraceEnum", compile="replay").fit(X, 2, **SIZES)
    assert_same(start(two_facets, "Pyro's TraceEnum", compile=None).fit(X, 2, **SIZES), run)
    assert not recorded_shapes(recorders[-1])


def test_a_model_that_counts_its_calls_is_not_recorded(recorders: list[Recorder]) -> None:
    """Its program would repeat one call for ever."""

    class Counting(VaDEGuide):
        calls = 0

        def forward(self, x: torch.Tensor, **options: Any) -> None:
            self.calls += 1
            super().forward(x * self.calls, **options)

    def build() -> FacetGuide:
        return Counting(two_facets().model)

    with pytest.warns(RecordingWarning, match="something besides its tensors"):
        start(build, None, compile="replay").fit(X, 1, **SIZES)


def test_a_model_that_changes_slowly_is_not_recorded() -> None:
    """So slowly that a few calls of it agree: a program would stay with the first one."""

    class Fading(VaDEGuide):
        noise = 1.0

        def forward(self, x: torch.Tensor, **options: Any) -> None:
            self.noise -= 1e-6
            super().forward(x + self.noise, **options)

    with pytest.warns(RecordingWarning, match="it changes settings of its own in each step"):
        start(lambda: Fading(two_facets().model), None, compile="replay").fit(X, 1, **SIZES)


def test_a_replayed_run_resumes_bit_for_bit(tmp_path: Path) -> None:
    def stop(run: Any, record: dict[str, Any]) -> None:
        if record["epoch"] == 2:
            raise KeyboardInterrupt

    whole = small("replay").fit(X, 5, **SIZES)
    with pytest.raises(KeyboardInterrupt):
        small("replay").fit(X, 5, checkpoints=Checkpoints(tmp_path), callbacks=[stop], **SIZES)
    again = Checkpoints(tmp_path, resume=True)
    resumed = small("replay").fit(X, 5, checkpoints=again, callbacks=[lambda *_: None], **SIZES)
    assert_same_weights(whole, resumed, 0)
    with pytest.raises(ValueError, match="differs in callbacks and steps by"):
        small(None).fit(X, 5, checkpoints=again, **SIZES)


@pytest.mark.parametrize(
    ("sizes", "programs"), [((4,) * 6, 1), ((4,) * 5, 2), ((2, 7, 3, 5, 1, 6), 0)], ids=str
)
def test_batches_of_equal_groups_are_recorded(
    sizes: tuple[int, ...], programs: int, recorders: list[Recorder]
) -> None:
    """In batches of two groups, with a program of its own for a single last one."""
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    x = data(start(mlvae, None).guide, len(group))
    one, other = (
        start(lambda: mlvae().double(), None, compile=mode).fit(
            x, 3, 8, group=group, progress=False
        )
        for mode in (None, "replay")
    )
    assert_same(one, other)
    assert recorded_shapes(recorders[-1]) == programs


class CountsSteps(torch.optim.Adam):
    """Another optimizer, whose own step must be called."""

    taken = 0

    def step(self, closure: Any = None) -> Any:
        type(self).taken += 1
        return super().step(closure)


def test_updates_are_recorded_for_fused_adam_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    original = torch.optim.Adam.step
    monkeypatch.setattr(
        torch.optim.Adam, "step", lambda self, *a, **k: (steps.append(1), original(self, *a, **k))
    )
    small("replay").fit(X, 4, **SIZES)
    assert not steps
    CountsSteps.taken = 0
    small("replay", optimizer=CountsSteps).fit(X, 4, **SIZES)
    assert CountsSteps.taken == 12


@pytest.mark.thorough
@pytest.mark.parametrize("guard", [Guard(), Guard("skip", max_norm=0.5), Guard("halve")], ids=str)
def test_recorded_updates_are_the_optimizers_own(guard: Guard) -> None:
    """From the same gradients bit for bit, whatever a callback does to rate and moments' decay."""

    def change(run: SVIRunner, record: dict[str, Any]) -> None:
        (group,) = run.optimizer.param_groups
        group["lr"] *= 0.7
        group["betas"] = (0.8, 0.99) if record["epoch"] == 2 else group["betas"]

    def run(record_updates: bool) -> SVIRunner:
        runner = small("replay", guard=guard)
        if not record_updates:
            runner.optimizer.register_step_post_hook(lambda *_: None)
        return runner.fit(X, 5, callbacks=[change], **SIZES)

    assert_same_weights(run(True), run(False), 0)


class ShiftsWhole(VaDEGuide):
    """Its shift has no gradient in a smaller last batch."""

    def __init__(self, model: MFCVAE) -> None:
        super().__init__(model)
        self.shift = torch.nn.Parameter(torch.zeros(6))

    def encode(self, x: torch.Tensor, **given: Any) -> dict[str, Any]:
        return super().encode(x + self.shift if len(x) == 6 else x, **given)


def test_parameters_learn_in_steps_of_their_own() -> None:
    """Each counts its own steps, whichever have a gradient in a step."""
    runs = []
    for mode in (None, "replay"):
        run = start(lambda: ShiftsWhole(two_facets().model), None, compile=mode)
        runs.append(run.fit(X, 4, 6, log_every=4, progress=False))
        state = run.optimizer.state
        taken = {name: int(state[p]["step"]) for name, p in run.loss.named_parameters()}
        assert taken.pop("guide.shift") == 4 * (len(X) // 6)
        assert set(taken.values()) == {run.step}
    assert_same_weights(*runs)


def test_runs_that_are_trained_together() -> None:
    def group(mode: str | None) -> list[SVIRunner]:
        pyro.set_rng_seed(0)
        guides = [two_facets() for _ in range(3)]
        runs = [SVIRunner(g.model, g, seed=i, compile=mode) for i, g in enumerate(guides)]
        fit_together(runs, X, 3, 6, progress=False)
        return runs

    for one, other in zip(group(None), group("replay"), strict=True):
        assert_same(one, other)


def test_without_jax_steps_are_replayed(
    monkeypatch: pytest.MonkeyPatch, recorders: list[Recorder]
) -> None:
    monkeypatch.delitem(sys.modules, "inference.training.xla", raising=False)
    monkeypatch.delitem(sys.modules, "inference.training.lowering", raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.warns(RecordingWarning, match=r"jax is not installed; pip install .*replayed"):
        other = small("xla").fit(X, 3, **SIZES)
    assert_same(small(None).fit(X, 3, **SIZES), other)
    assert recorded_shapes(recorders[-1]) == 2


def test_without_what_recording_rests_on_steps_run_through_pyro(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "inference.training.tape", raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils._python_dispatch", None)
    with pytest.warns(RecordingWarning, match="_python_dispatch is not installed.*through Pyro"):
        other = small("replay").fit(X, 3, **SIZES)
    assert_same(small(None).fit(X, 3, **SIZES), other)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_large_products_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer and the product of its weight's gradient are taken by it, small ones are not."""
    monkeypatch.setattr(dense, "mkl_is_slower", lambda: True)
    product = torch.ops.mkldnn._linear_pointwise.default

    def function(x: torch.Tensor, *parameters: torch.Tensor) -> list[torch.Tensor]:
        weight, bias = (p.detach().requires_grad_() for p in parameters)
        layer = dense.Linear(*reversed(weight.shape))
        held = {"weight": weight, "bias": bias}
        hidden = torch.func.functional_call(layer, held, (x,)).relu()
        loss = (hidden + torch.randn_like(hidden)).square().mean()
        return [loss.detach(), *torch.autograd.grad(loss, [weight, bias])]

    large = [torch.rand(64, 128), torch.rand(256, 128), torch.rand(256)]
    small = [torch.rand(6, 8), torch.rand(4, 8), torch.rand(4)]
    for examples, taken in ((large, 2), (small, 0)):
        program = recorded(function, examples)
        assert [node.target for node in program.graph.nodes].count(product) == taken
        results = []
        for run in (function, program.run):
            torch.manual_seed(0)
            results.append(list(run(*examples)))
        torch.testing.assert_close(*results, rtol=0, atol=0)
