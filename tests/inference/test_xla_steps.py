"""Steps that XLA takes, many in one call, against steps through Pyro."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from guides import FacetGuide, VaDEGuide
from inference import Checkpoints, Guard, SVIRunner, WarmUp
from inference.training.recorder import Recorder, RecordingWarning
from tests import catalog
from tests.inference.test_recorded_steps import (
    SIZES,
    X,
    assert_same,
    assert_same_weights,
    start,
    trained,
)

pytest.importorskip("jax")
import jax
import jax.numpy as jnp

from inference.training.lowering import OPERATIONS
from inference.training.lowering import name as plain_name
from inference.training.program import is_random
from inference.training.recording import record
from inference.training.steps import Steps
from inference.training.xla import LOOPS, _draw
from ppl_models import GaussianMixture, Normal, SharedMLP, VaDE

aten = torch.ops.aten
# What XLA cannot have, or takes slower.
REFUSED = {
    "an operation": "has no form in JAX",
    "values": "what it draws depends on the values",
    "groups": "batches of groups of many sizes",
}


@pytest.mark.filterwarnings("error::inference.training.recorder.RecordingWarning")
@pytest.mark.slow(30)
def test_a_run_ends_as_one_through_pyro() -> None:
    """The same draws, up to rounding; test_every_model takes all."""
    build = catalog.two_facets
    assert_same(trained(build, None, None), trained(build, None, "xla"))


def refuse(recorder: Recorder, kind: str, why: str, said: list[str]) -> None:
    recorder.refused[kind] = why
    said.append(why)


@pytest.mark.thorough
@pytest.mark.parametrize("build", catalog.BUILDERS, ids=lambda build: build.__name__)
def test_every_model(build: Callable[[], FacetGuide]) -> None:
    """Those that XLA cannot have are replayed, with a word."""
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr(Recorder, "_refuse", lambda self, kind, why: refuse(self, kind, why, said))
        other = trained(build, None, "xla")
    assert_same(trained(build, None, None), other)
    assert all(any(known in why for known in REFUSED.values()) for why in said), said


def tiny(mode: str | None, **options: Any) -> SVIRunner:
    """Soon compiled; in double precision, as Adam makes whole steps of rounding."""
    return start(lambda: catalog.vade().double(), None, compile=mode, **options)


@pytest.mark.filterwarnings("error::inference.training.recorder.RecordingWarning")
def test_weights_move() -> None:
    a, b = (tiny(mode, schedule=WarmUp(5)).fit(X, 4, **SIZES) for mode in (None, "xla"))
    assert_same(a, b)


def test_data_that_have_a_gradient_are_only_data() -> None:
    x = X.clone().requires_grad_()
    a, b = (tiny(mode).fit(x, 3, **SIZES) for mode in (None, "xla"))
    assert_same(a, b)


@pytest.mark.filterwarnings("error::inference.training.recorder.RecordingWarning")
def test_how_many_steps_a_call_takes_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, with a smaller last batch, and with one loop for runs of equal models."""
    x = X.repeat(5, 1)  # eleven whole batches and four rows
    whole, loops = tiny("xla").fit(x, 3, **SIZES), len(LOOPS)
    for room in (64, 1, 4):
        monkeypatch.setattr("inference.training.recorder.STEPS", room)
        assert_same_weights(whole, tiny("xla").fit(x, 3, **SIZES), 0)
        assert room < 64 or len(LOOPS) == loops


@pytest.mark.filterwarnings("error::inference.training.recorder.RecordingWarning")
def test_a_guard_clips_by_the_norm_of_all() -> None:
    guard = Guard("skip", max_norm=0.5)
    assert_same(*(tiny(mode, guard=guard).fit(X, 4, **SIZES) for mode in (None, "xla")))


def test_a_run_resumes_bit_for_bit_within_a_pass(tmp_path: Path) -> None:
    x = X.repeat(10, 1)
    whole = tiny("xla").fit(x, 3, **SIZES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("inference.training.recorder.STEPS", 5)
        cut = Steps.take
        taken = []

        def stop(self: Steps, *arguments: Any) -> None:
            if len(taken) == 9:
                raise KeyboardInterrupt
            taken.append(cut(self, *arguments))

        patch.setattr(Steps, "take", stop)
        every = Checkpoints(tmp_path, seconds=1e-9)
        with pytest.raises(KeyboardInterrupt):
            tiny("xla").fit(x, 3, checkpoints=every, **SIZES)
    resumed = tiny("xla").fit(x, 3, checkpoints=Checkpoints(tmp_path, resume=True), **SIZES)
    assert resumed.history[0]["step"] == whole.history[0]["step"]
    assert_same_weights(whole, resumed, 0)


@pytest.mark.thorough
@pytest.mark.filterwarnings("error::inference.training.recorder.RecordingWarning")
def test_a_guard_sees_the_steps_of_a_call() -> None:
    """Entries that overflow in the objective are skipped, counted and learned nothing from; or the
    run stops with the same words at the same step, its parameters as before it.
    """
    x = X.repeat(5, 1)
    x[3] = 1e30

    def run(mode: str | None, guard: Guard) -> SVIRunner:
        pyro.set_rng_seed(0)
        model = VaDE((6,), GaussianMixture(3, 2), Normal(0.3), SharedMLP((8,)))
        return SVIRunner(model, VaDEGuide(model), guard=guard, compile=mode)

    one, other = (run(mode, Guard("skip")).fit(x, 4, **SIZES) for mode in (None, "xla"))
    assert [record["skipped"] for record in other.history] == [1, 1, 1, 1]
    assert_same_weights(one, other)
    one, other = (run(mode, Guard()) for mode in (None, "xla"))
    words = []
    for runner in (one, other):
        with pytest.raises(FloatingPointError, match="not finite at step") as caught:
            runner.fit(x, 4, **SIZES)
        words.append(str(caught.value))
    assert words[0] == words[1]
    assert_same_weights(one, other)


@pytest.mark.thorough
def test_what_a_callback_changes() -> None:
    """A rate, moments' decay, and a parameter that no longer learns."""

    def change(run: Any, record: dict[str, Any]) -> None:
        (group,) = run.optimizer.param_groups
        group["lr"] *= 0.7
        group["betas"] = (0.8, 0.99) if record["epoch"] == 2 else group["betas"]
        if record["epoch"] == 3:
            run.model.decoder.requires_grad_(False)

    one, other = (tiny(mode).fit(X, 5, callbacks=[change], **SIZES) for mode in (None, "xla"))
    assert_same(one, other)


# Where XLA does not take the steps.


def test_a_wrong_program_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exponential that is a tenth too large."""
    monkeypatch.setitem(OPERATIONS, "exp", lambda x: 1.1 * jnp.exp(x))
    monkeypatch.setattr("inference.training.xla.LOOPS", type(LOOPS)())
    with pytest.warns(RecordingWarning, match="XLA's results differ .*replayed"):
        other = tiny("xla").fit(X, 3, **SIZES)
    assert_same(tiny(None).fit(X, 3, **SIZES), other)


def test_draws_that_depend_on_parameters_are_replayed() -> None:
    with pytest.warns(RecordingWarning, match="what it draws depends on the values.*replayed"):
        trained(catalog.nvae_dirichlet_without_bias, None, "xla")


@pytest.mark.parametrize(
    ("draw", "is_shaped"),
    [
        (lambda x: torch.nn.functional.dropout(x), True),
        (lambda x: torch.rand_like(x), True),
        (lambda x: torch.bernoulli(x), False),
        (lambda x: torch.normal(x, 1.0), False),
    ],
    ids=["dropout", "rand_like", "bernoulli", "normal"],
)
def test_draws_may_depend_on_shapes_alone(
    draw: Callable[[Tensor], Tensor], is_shaped: bool
) -> None:
    program = record(lambda x: [draw(x)], [torch.rand(3)])
    (node,) = [node for node in program.graph.nodes if is_random(node)]
    if is_shaped:
        assert _draw(node)().shape == (3,)
        return
    with pytest.raises(ValueError, match="depends on the values"):
        _draw(node)


def test_a_loader_is_replayed() -> None:
    """And read in the order of steps, no batch ahead."""
    loader = DataLoader(TensorDataset(X), batch_size=7)
    with pytest.warns(RecordingWarning, match="data come from a loader"):
        other = tiny("xla").fit(loader, 3, progress=False)
    assert_same(tiny(None).fit(loader, 3, progress=False), other)


def test_another_optimizer_is_used() -> None:
    with pytest.warns(RecordingWarning, match="not fused Adam"):
        other = tiny("xla", optimizer=torch.optim.SGD).fit(X, 3, **SIZES)
    assert_same(tiny(None, optimizer=torch.optim.SGD).fit(X, 3, **SIZES), other)


# Operations by themselves, against PyTorch's.

A = torch.linspace(-2.0, 3.0, 24, dtype=torch.float64).reshape(4, 6)
B = torch.linspace(1.5, -1.0, 24, dtype=torch.float64).reshape(4, 6)
P, Y = A.abs() + 0.3, (B > 0).double()
ROWS = torch.tensor([2, 0])
S = torch.eye(4, dtype=torch.float64) + torch.tril(A[:, :4] / 9)
CASES: dict[Any, list[tuple[Any, ...]]] = {
    aten.abs.default: [(A,)],
    aten.add.Scalar: [(A, 2.0)],
    aten.add.Tensor: [(A, B)],
    aten.bitwise_and.Tensor: [(A > 0, B > 0)],
    aten.bitwise_not.default: [(A > 0,)],
    aten.bitwise_or.Tensor: [(A > 0, B > 0)],
    aten.clamp.default: [(A, -1.0, 1.0), (A, None, 0.5)],
    aten.clamp_max.Tensor: [(A, B)],
    aten.clamp_min.default: [(A, 0.0)],
    aten.div.Scalar: [(A, 3.0)],
    aten.div.Tensor: [(A, P)],
    aten.elu.default: [(A,), (A, 0.5)],
    aten.elu_backward.default: [(B, 0.5, 1.0, 1.0, False, A), (B, 1.0, 1.0, 1.0, True, A.expm1())],
    aten.eq.Tensor: [(A, A)],
    aten.exp.default: [(A,)],
    aten.expm1.default: [(A,)],
    aten.ge.Scalar: [(A, 0.0)],
    aten.gt.Tensor: [(A, B)],
    aten.isnan.default: [(A.log(),)],
    aten.le.Tensor: [(A, B)],
    aten.leaky_relu.default: [(A,), (A, 0.2)],
    aten.leaky_relu_backward.default: [(B, A, 0.2, False)],
    aten.lgamma.default: [(P,)],
    aten.log.default: [(P,)],
    aten.log1p.default: [(P,)],
    aten.logical_and.default: [(A > 0, B > 0)],
    aten.lt.Scalar: [(A, 0.0)],
    aten.maximum.default: [(A, B)],
    aten.minimum.default: [(A, B)],
    aten.mul.Tensor: [(A, B), (A > 0, -3.0)],
    aten.nan_to_num.default: [(A.log(),), (A.log(), 1.0)],
    aten.ne.Scalar: [(A, -2.0)],
    aten.neg.default: [(A,)],
    aten.pow.Tensor_Scalar: [(P, 2), (P, 0.5)],
    aten.reciprocal.default: [(P,)],
    aten.relu.default: [(A,)],
    aten.sgn.default: [(A,)],
    aten.sigmoid.default: [(A,)],
    aten.softplus.default: [(A,), (300 * A, 10.0)],
    aten.softplus_backward.default: [(B, A, 1, 20), (B, 300 * A, 10.0, 20)],
    aten.sqrt.default: [(P,)],
    aten.sub.Tensor: [(A, B)],
    aten.tanh.default: [(A,)],
    aten.tanh_backward.default: [(B, A.tanh())],
    aten.threshold_backward.default: [(B, A.relu(), 0)],
    aten.where.self: [(A > 0, A, B)],
    aten._log_softmax.default: [(A, -1, False), (A, 0, False)],
    aten._log_softmax_backward_data.default: [(B, A.log_softmax(0), 0, torch.float64)],
    aten._softmax.default: [(A, -1, False)],
    aten._softmax_backward_data.default: [(B, A.softmax(-1), -1, torch.float64)],
    aten.all.default: [(A > 0,)],
    aten.argmax.default: [(A, -1), (A, 0, True), (A,)],
    aten.linalg_vector_norm.default: [(A,), (A, 2)],
    aten.logsumexp.default: [(A, [1]), (A, [0, 1], True)],
    aten.mean.default: [(A,)],
    aten.mean.dim: [(A, [0], True)],
    aten.sum.default: [(A,)],
    aten.sum.dim_IntList: [(A, [1]), (A, [0, 1], True), (A, [])],
    aten.binary_cross_entropy_with_logits.default: [(A, Y, None, None, n) for n in range(3)],
    aten.addmm.default: [(A[0, :4], A, B.T.contiguous())],
    aten.bmm.default: [(A.reshape(2, 2, 6), B.reshape(2, 6, 2))],
    aten.diag_embed.default: [(A,)],
    aten.diagonal.default: [(A,), (A.reshape(2, 3, 4), 0, -2, -1)],
    aten.diagonal_backward.default: [(A, [4, 6, 6], 0, -2, -1)],
    aten.dot.default: [(A[0], B[0])],
    aten.mm.default: [(A, B.T.contiguous())],
    aten.t.default: [(A,)],
    aten.transpose.int: [(A, 0, 1)],
    aten.tril.default: [(A,), (A, -1)],
    aten._unsafe_view.default: [(A, [6, 4])],
    aten.cat.default: [([A, B], 1), ([A, B],)],
    aten.expand.default: [(A, [3, 4, 6]), (A[:, None], [-1, 5, -1])],
    aten.permute.default: [(A, [1, 0])],
    aten.select.int: [(A, 1, 2), (A, 0, -1)],
    aten.slice.Tensor: [(A, 1, 1, 5, 2), (A, 0, -3, 9223372036854775807), (A,)],
    aten.slice_backward.default: [(A[:2, :3], [2, 6], 1, 1, 6, 2), (A, [9, 6], 0, 5, 2**63 - 1, 1)],
    aten.split.Tensor: [(A, 4, 1), (A, 2)],
    aten.split_with_sizes.default: [(A, [1, 3, 2], 1)],
    aten.squeeze.dim: [(A[:, None], 1), (A, 0)],
    aten.stack.default: [([A, B], 1), ([A, B],)],
    aten.unbind.int: [(A,), (A, 1)],
    aten.unsqueeze.default: [(A, 0), (A, -1), (A, -2)],
    aten.view.default: [(A, [2, -1])],
    aten.index.Tensor: [(A, [ROWS]), (A, [None, ROWS]), (A, [ROWS, ROWS])],
    aten.index_add.default: [(A, 0, torch.tensor([2, 2]), B[:2]), (A, 1, ROWS, B[:, :2])],
    aten.index_put.default: [(A, [ROWS], B[:2]), (A, [torch.tensor([2, 2])], B[:2], True)],
    aten.index_select.default: [(A, 0, ROWS), (A, 1, ROWS)],
    aten._to_copy.default: [],
    aten.alias.default: [(A,)],
    aten.clone.default: [(A,)],
    aten.copy.default: [(A, B[0])],
    aten.detach.default: [(A,)],
    aten.new_zeros.default: [(A, [2, 3])],
}
# With arguments by keyword, whose values do not matter, or that change their arguments.
KEYWORDS: dict[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    aten.linalg_solve_triangular.default: [
        ((S, B), {"upper": False}),
        ((S.T.contiguous(), B), {"upper": True}),
    ],
    aten._to_copy.default: [((A,), {"dtype": torch.float32}), ((A > 0,), {"dtype": torch.float64})],
}
ELSEWHERE = {"empty_like", "getitem", "_fused_adam", "mkldnn::_linear_pointwise"}
ELSEWHERE |= {"_linalg_solve_ex"}
EACH = [(op, args, {}) for op, of in CASES.items() for args in of] + [
    (op, args, options) for op, of in KEYWORDS.items() for args, options in of
]


def test_every_operation_has_a_case() -> None:
    assert OPERATIONS.keys() - ELSEWHERE == {plain_name(op) for op, _, _ in EACH}


def test_solutions_of_several_linear_equations() -> None:
    equations, right = torch.stack([S + S.T, 3 * (S + S.T)]), torch.stack([B, B + 1])
    (found,) = OPERATIONS["_linalg_solve_ex"](equations.numpy(), right.numpy(), check_errors=False)
    np.testing.assert_allclose(found, torch.linalg.solve(equations, right), rtol=1e-5)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_products_by_onednn() -> None:
    op = torch.ops.mkldnn._linear_pointwise.default
    rows, weight = A.float(), B.float()
    for bias in (None, torch.ones(len(weight))):
        given = [None if each is None else each.numpy() for each in (rows, weight, bias)]
        found = OPERATIONS[plain_name(op)](*given, "none", [], "")
        assert np.allclose(found, op(rows, weight, bias, "none", [], "").numpy(), rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize(("op", "args", "options"), EACH, ids=lambda each: str(each)[:40])
def test_an_operation(op: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """In double precision; derivatives are operations of their own."""
    expected = op(*args, **options)
    with jax.enable_x64(True):
        given = jax.tree.map(_to_jax, args, is_leaf=lambda each: isinstance(each, Tensor))
        found = OPERATIONS[plain_name(op)](*given, **options)
    several = isinstance(expected, list | tuple)
    for now, then in zip(*((found, expected) if several else ([found], [expected])), strict=True):
        assert np.allclose(np.asarray(now), then.numpy(), equal_nan=True)
        assert now.shape == then.shape


def _to_jax(value: Any) -> Any:
    return jnp.asarray(value.detach().numpy()) if isinstance(value, Tensor) else value
