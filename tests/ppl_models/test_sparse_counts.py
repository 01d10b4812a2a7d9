"""Rows of counts in sparse matrices: as their dense form, without it; probabilities by SciPy's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pyro.infer import TraceEnum_ELBO
from scipy import sparse, stats

from guides import VaDEGuide
from inference import Checkpoints, SVIRunner, elbo
from inference.training.data_source import fingerprint
from ppl_models import (
    MFCVAE,
    MLP,
    Bernoulli,
    DirichletMultinomial,
    GaussianMixture,
    Multinomial,
    NegativeBinomial,
    Poisson,
)
from ppl_models.given.sparse import SparseRows, sparse_rows
from ppl_models.rising import log_rising_sums

D = 7


def counts(n: int = 40, d: int = D, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).poisson(0.6, (n, d)).astype(np.float32)
    x[3] = 0  # a text without words
    return x


def guide(likelihood: Any, d: int = D) -> VaDEGuide:
    torch.manual_seed(0)
    return VaDEGuide(
        MFCVAE((d,), {"topic": GaussianMixture(3, 2)}, likelihood, MLP((8,), dropout=0))
    )


# Rows of sparse matrices.


def repeated(x: np.ndarray) -> Any:
    """Each entry as two that add up to it."""
    rows, columns = np.nonzero(x)
    values = x[rows, columns]
    parts = np.concatenate([values - 1, np.ones_like(values)])
    return sparse.coo_array((parts, (np.tile(rows, 2), np.tile(columns, 2))), x.shape).tocsr()


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "csr_array": sparse.csr_array,
    "csr_matrix": sparse.csr_matrix,
    "csc": sparse.csc_array,
    "coo": sparse.coo_array,
    "int64": lambda x: sparse.csr_array(x.astype(np.int64)),
    "uint8": lambda x: sparse.csr_array(x.astype(np.uint8)),
    "bool": lambda x: sparse.csr_array(x > 0),
    "half": lambda x: torch.as_tensor(x).half().to_sparse_coo(),
    "repeated": repeated,
    "torch coo": lambda x: torch.as_tensor(x).to_sparse_coo(),
    "rows": lambda x: sparse_rows(sparse.csr_array(x)),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_dense_blocks_are_those_of_the_dense_matrix(form: Callable[[np.ndarray], Any]) -> None:
    x = counts().clip(0, 1) if form is FORMS["bool"] else counts()
    rows = sparse_rows(form(x)).astype(torch.float32)
    assert (rows.shape, len(rows), rows.ndim) == ((40, D), 40, 2)
    index = torch.tensor([5, 3, 3, 39, -1])
    for each in (slice(None), slice(2, 30), slice(30, 99), slice(4, 4), slice(0, 9, 2), index):
        np.testing.assert_array_equal(rows.dense(each), x[each])
    np.testing.assert_array_equal(rows.dense(index.view(1, 5)), x[index][None])
    mask = torch.arange(40) % 3 == 0
    np.testing.assert_array_equal(rows.dense(mask), x[mask.numpy()])
    some = rows[mask][np.array([4, 1])]
    np.testing.assert_array_equal(some.dense(), x[::3][[4, 1]])
    np.testing.assert_array_equal(some.tocsr().toarray(), x[::3][[4, 1]])
    np.testing.assert_array_equal(rows.tocsr().toarray(), x)
    assert rows[:0].tocsr().shape == (0, D)


def test_entries_are_shared_and_not_copied() -> None:
    matrix = sparse.csr_array(counts())
    rows = sparse_rows(matrix)
    assert rows.values.data_ptr() == matrix.data.ctypes.data
    assert rows.columns.data_ptr() == matrix.indices.ctypes.data
    assert rows[3:9].values.data_ptr() == matrix.data.ctypes.data
    twice = repeated(counts())
    before = twice.nnz
    sparse_rows(twice)
    assert twice.nnz == before  # the user's matrix stays as it is


def test_where_the_number_of_entries_is_not_read_back_the_rows_are_the_same() -> None:
    x = counts()
    rows = sparse_rows(sparse.csr_array(x))
    rows._entries = lambda *spans: SparseRows._padded(rows, *spans)  # type: ignore[method-assign]
    index = torch.tensor([5, 3, 39, 0])
    np.testing.assert_array_equal(rows.dense(index), x[index])
    np.testing.assert_array_equal(rows.dense(), x)
    np.testing.assert_array_equal(rows.dense(slice(3, 4)), x[3:4])


def test_programs_take_sparse_rows_as_the_dense_ones() -> None:
    """As Pyro's own SVI calls them."""
    x = counts()
    run = guide(Multinomial())
    losses = []
    for data in (sparse_rows(sparse.csr_array(x))[2:9], torch.as_tensor(x[2:9])):
        torch.manual_seed(1)
        losses.append(TraceEnum_ELBO(max_plate_nesting=1).loss(run.model, run, data))
    assert losses[0] == losses[1] > 0


def test_fingerprints_tell_the_entries() -> None:
    x = counts()
    one, same, other = (fingerprint(sparse_rows(form(x))) for form in (sparse.csr_array,) * 3)
    assert one == same
    x[5, 2] += 1
    assert fingerprint(sparse_rows(sparse.csr_array(x)))["all"] != other["all"]
    moved = fingerprint(sparse_rows(sparse.csr_array(x[:, ::-1])))
    assert moved["all"] != fingerprint(sparse_rows(sparse.csr_array(x)))["all"]


# The same model of the same data, dense and sparse.


@pytest.mark.parametrize(
    "likelihood", [Poisson, NegativeBinomial, Multinomial, DirichletMultinomial]
)
def test_sparse_and_dense_rows_train_to_the_same_weights(likelihood: Any) -> None:
    x = counts()
    fitted = []
    for data in (x, sparse.csr_array(x)):
        runner = SVIRunner(*_parts(likelihood()), seed=3)
        fitted.append(runner.fit(data, 3, 16, progress=False))
    torch.testing.assert_close(*(run.guide.state_dict() for run in fitted), rtol=0, atol=0)
    assert fitted[0].history[-1]["elbo"] == fitted[1].history[-1]["elbo"]
    model, own = fitted[1].model, fitted[1].guide
    matrix = sparse.csr_array(x)
    np.testing.assert_array_equal(own.embed(matrix)["topic"], own.embed(x)["topic"])
    np.testing.assert_array_equal(own.predict(matrix)["topic"], own.predict(x)["topic"])
    np.testing.assert_array_equal(own.reconstruct(matrix), own.reconstruct(x))
    torch.manual_seed(1)
    bound = elbo(model, own, matrix, 3)
    torch.manual_seed(1)
    assert bound == elbo(model, own, x, 3)


def _parts(likelihood: Any) -> tuple[Any, Any]:
    own = guide(likelihood)
    return own.model, own


def test_recorded_steps_and_several_runs_at_once_read_sparse_rows() -> None:
    from inference import fit_together

    matrix, x = sparse.csr_array(counts()), counts()
    runs = (
        SVIRunner(*_parts(DirichletMultinomial()), seed=3, compile=how).fit(
            matrix, 4, 16, progress=False
        )
        for how in (None, "replay")
    )
    torch.testing.assert_close(*(run.guide.state_dict() for run in runs), atol=1e-5, rtol=1e-4)
    both = []
    for data in (x, matrix):
        runners = [SVIRunner(*_parts(Multinomial()), seed=seed) for seed in (1, 2)]
        fit_together(runners, data, 2, 16, progress=False)
        both.append([run.guide.state_dict() for run in runners])
    torch.testing.assert_close(*both)


def test_a_stopped_run_is_continued_with_the_same_rows(tmp_path: Any) -> None:
    matrix = sparse.csr_array(counts())
    other = sparse.csr_array(counts(seed=1))
    runner = SVIRunner(*_parts(Multinomial()))
    runner.fit(matrix, 2, 16, progress=False, checkpoints=Checkpoints(tmp_path, epochs=1))
    again = Checkpoints(tmp_path, epochs=1, resume=True)
    with pytest.raises(ValueError, match=r"differs in data"):
        SVIRunner(*_parts(Multinomial())).fit(other, 4, 16, progress=False, checkpoints=again)
    SVIRunner(*_parts(Multinomial())).fit(matrix, 2, 16, progress=False, checkpoints=again)


def test_blocks_of_wide_rows_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppl_models.given.sparse.NUMBERS_AT_ONCE", 5 * D)
    own = guide(Multinomial())
    seen = []
    monkeypatch.setattr(own, "heads", lambda x: seen.append(len(x)) or type(own).heads(own, x))
    own.embed(sparse.csr_array(counts()))
    assert set(seen) == {5}


# Probabilities of a row given its total.


def log_probs(likelihood: Any, output: np.ndarray, x: np.ndarray) -> np.ndarray:
    likelihood = likelihood.double()
    return likelihood(torch.tensor(output), 1).log_prob(torch.tensor(x)).detach().numpy()


def softmax(output: np.ndarray) -> np.ndarray:
    p = np.exp(output - output.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def drawn() -> tuple[np.ndarray, np.ndarray]:
    """Counts with small, large and no totals, and outputs."""
    rng = np.random.default_rng(0)
    x = rng.poisson(np.array([0.2, 2.0, 300.0, 0.0, 5.0, 1.0])[:, None], (6, D)).astype(float)
    return x, 2 * rng.normal(size=(6, D))


def test_multinomial_probabilities() -> None:
    x, output = drawn()
    want = [
        stats.multinomial.logpmf(a, int(a.sum()), p)
        for a, p in zip(x, softmax(output), strict=True)
    ]
    np.testing.assert_allclose(log_probs(Multinomial(), output, x), want, atol=1e-10, rtol=1e-12)
    assert log_probs(Multinomial(), output, x)[3] == 0  # nothing counted: certain


@pytest.mark.parametrize("concentration", [0.5, 30.0, 1e6])
def test_dirichlet_multinomial_probabilities(concentration: float) -> None:
    x, output = drawn()
    likelihood = DirichletMultinomial(concentration=concentration).double()
    a = likelihood.concentration.item()  # the given one in 32 bits
    assert a == pytest.approx(concentration, rel=1e-5)
    found = log_probs(likelihood, output, x)
    want = [
        stats.dirichlet_multinomial.logpmf(row.astype(int), a * p, int(row.sum()))
        for row, p in zip(x, softmax(output), strict=True)
    ]
    np.testing.assert_allclose(found, want, atol=1e-10 * max(1, concentration), rtol=1e-10)
    assert found[3] == 0


@pytest.mark.parametrize("kind", [Multinomial, DirichletMultinomial])
def test_single_precision_tells_rows_of_ten_million_counts(kind: type) -> None:
    """Their log-probabilities differ by some nats, and are differences of numbers near 1e8, of
    which single precision has the tens.
    """
    rng = np.random.default_rng(0)
    n, output = 10_000_000, rng.normal(size=(40, 50)).astype(np.float32)
    p = softmax(output.astype(float))
    if kind is Multinomial:
        x = rng.multinomial(n, p)
        want = stats.multinomial.logpmf(x, n, p)
    else:
        x = rng.multinomial(n, np.stack([rng.dirichlet(100 * each) for each in p]))
        want = stats.dirichlet_multinomial.logpmf(x, 100 * p, n)
    found = kind()(torch.tensor(output), 1).log_prob(torch.tensor(x).float()).detach()
    assert want.std() > 3
    np.testing.assert_allclose(found, want, atol=0.5)


def test_gamma_functions_of_entries_that_are_zero_are_left_out() -> None:
    torch.manual_seed(0)
    x = torch.poisson(torch.full((2, 5, 9), 0.5)).double()
    start = (torch.rand(5, 9).double() + 0.1).requires_grad_()
    want = ((x + start).lgamma() - start.lgamma()).sum(-1)
    torch.testing.assert_close(log_rising_sums(x, start), want)
    weights = torch.rand(2, 5).double()
    (ours,) = torch.autograd.grad((weights * log_rising_sums(x, start)).sum(), start)
    torch.testing.assert_close(ours, torch.autograd.grad((weights * want).sum(), start)[0])
    assert torch.autograd.gradgradcheck(lambda a: log_rising_sums(x, a), start)
    mapped = torch.vmap(log_rising_sums, in_dims=(0, None))(x, start)
    torch.testing.assert_close(mapped, want)


def test_draws_have_the_mean_and_variance() -> None:
    torch.manual_seed(0)
    output = torch.tensor([[0.0, 1.0, -1.0, 2.0]])
    for likelihood in (Multinomial(total=50), DirichletMultinomial(total=50, concentration=10.0)):
        p = likelihood(output, 1)
        x = p.sample(torch.Size([20_000]))[:, 0]
        assert (x.sum(-1) == 50).all()
        error = (p.variance[0] / 20_000).sqrt()
        assert ((x.mean(0) - p.mean[0]).abs() < 5 * error).all()
        # Kurtosis within 5: the variance is known to about 1.4 %.
        torch.testing.assert_close(x.var(0), p.variance[0], rtol=0.07, atol=0)


def test_batches_shift_the_logits_and_are_not_described() -> None:
    x, output = drawn()
    codes = np.array([0.0, 1, 2, 1, 0, 2])[:, None]
    likelihood = Multinomial(num_batches=3, num_columns=D)
    offset = torch.randn(3, D)
    likelihood.offset.data = offset.clone()
    assert likelihood.output_shape((D + 1,)) == (D,)
    assert likelihood.features_shape((D + 1,)) == (D + 3,)
    coded = np.concatenate([x, codes], 1)
    shifted = output + offset.double().numpy()[codes[:, 0].astype(int)]
    want = log_probs(Multinomial(), shifted, x)
    np.testing.assert_allclose(log_probs(likelihood, output, coded), want, atol=1e-10)
    features = likelihood.features(torch.tensor(coded))
    assert features[:, D:].tolist() == np.eye(3)[codes[:, 0].astype(int)].tolist()
    p = likelihood(torch.tensor(output), 1)
    first = softmax(output + offset[0].numpy()) * likelihood.total
    np.testing.assert_allclose(p.mean[:, :-1].detach(), first, rtol=1e-6)
    assert not p.sample()[:, -1].any()
    assert p.sample().shape == (6, D + 1)


def test_fitted_likelihoods_begin_at_the_shares_of_each_batch() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(D), 2)
    codes = rng.integers(2, size=4000)
    x = np.concatenate([rng.multinomial(60, p[codes]), codes[:, None]], 1).astype(np.float32)
    for data in (torch.tensor(x), sparse_rows(sparse.csr_array(x))):
        likelihood = DirichletMultinomial(num_batches=2).fitted(data)
        assert likelihood.total == 60
        np.testing.assert_allclose(likelihood.offset.detach().exp(), p, atol=0.01)
    assert Multinomial().fitted(torch.tensor(x)).offset.shape == (1, D + 1)
    assert Multinomial(total=500.0).fitted(torch.tensor(x)).total == 500


def test_encoders_see_counts_at_a_typical_total() -> None:
    x = torch.tensor([[2.0, 2.0], [20.0, 20.0], [0.0, 0.0]])
    seen = Multinomial(total=8.0).features(x)
    torch.testing.assert_close(seen, torch.tensor([[5.0, 5.0], [5.0, 5.0], [1.0, 1.0]]).log())


# Refusals.

BROKEN = {
    "negative": (
        lambda x: np.where(x == 2, -1, x),
        "values such as -1, but Multinomial needs coun",
    ),
    "fractional": (lambda x: x / 2, "values such as 0.5, but Multinomial needs counts"),
    "nan": (lambda x: np.where(x == 2, np.nan, x), r"x holds \d+ stored values that are NaN"),
    "columns": (
        lambda x: x[:, 1:],
        re.escape("x has shape [40, 6], but the model was built for ["),
    ),
    "empty": (lambda x: x[:0], "x is empty"),
}


@pytest.mark.parametrize(("change", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_count_is_refused(change: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        guide(Multinomial()).embed(sparse.csr_array(change(counts())))


def test_rows_that_were_left_out_are_not_refused() -> None:
    for bad in (np.nan, -1.0):
        x = counts()
        x[1] = bad
        good = sparse_rows(sparse.csr_array(x))[np.arange(40) != 1]
        for likelihood in (Multinomial(), Poisson()):
            assert len(guide(likelihood).embed(good)["topic"]) == 39


def test_other_likelihoods_refuse_sparse_rows_in_a_sentence() -> None:
    matrix = sparse.csr_array(counts().clip(0, 1))
    for x in (matrix, sparse_rows(matrix)):
        with pytest.raises(ValueError, match=r"x is sparse \(.*\): give x.toarray\(\), or a likel"):
            guide(Bernoulli()).embed(x)


def test_codes_of_unknown_batches_are_refused() -> None:
    x = np.concatenate([counts(), np.full((40, 1), 2.0)], 1)
    own = guide(Multinomial(num_batches=2, num_columns=D), D + 1)
    for data in (x, sparse.csr_array(x)):
        with pytest.raises(ValueError, match="codes of batches, which are 0 to 1, but one is 2"):
            own.embed(data)
    x[:, -1] = 1
    np.testing.assert_allclose(
        own.embed(x)["topic"], own.embed(sparse.csr_array(x))["topic"], rtol=1e-6
    )
