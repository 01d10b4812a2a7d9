"""ML-VAE: how evidence adds up, Eq. 3 and 5 written out, groups of any kind, and its other
posteriors.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam
from scipy.special import logsumexp
from scipy.stats import norm
from torch import Tensor
from torch.distributions import Normal as TorchNormal
from torch.distributions import kl_divergence

from guides import Evidence, GroupedGuide, MixtureOfNormals, SimilarContentGuide, TableGuide
from guides.evidence import GroupMixture, product_of_normals
from inference import (
    Groups,
    Loss,
    MeanField_ELBO,
    Rows,
    SVIRunner,
    elbo,
    fit_together,
    infer_tables,
    learn_to_encode,
)
from ppl_models import MLP, MLVAE, HeteroscedasticNormal, Normal, StridedConvNet
from ppl_models.given.observed import Observed
from tests.paper import normal

X = torch.rand(9, 6, dtype=torch.float64)
GROUP = torch.tensor([0, 0, 1, 2, 2, 2, 2, 3, 3])  # of sizes 2, 1, 4, 2


def ragged(sizes: list[int], seed: int = 0) -> Tensor:
    """Groups of these sizes, their rows in random order."""
    group = torch.repeat_interleave(torch.tensor(sizes))
    return group[torch.randperm(len(group), generator=torch.Generator().manual_seed(seed))]


def dense_product(loc: np.ndarray, log_variance: np.ndarray, group: np.ndarray, g: int) -> tuple:
    """Eq. 7 for one group, in float64 and logs throughout."""
    members = group == g
    log_precision = logsumexp(-log_variance[members], axis=0)
    weights = np.exp(-log_variance[members] - log_precision)
    return (weights * loc[members]).sum(0), -log_precision


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 10.0, 60.0])
def test_the_product_of_normals_is_eq_7(dtype: torch.dtype, spread: float) -> None:
    """Groups of 1 to 1,000; variances of e^-60 to e^60, whose precisions overflow float32."""
    sizes = [1, 1000, 3, 1, 40, 2, 300]
    group = ragged(sizes)
    torch.manual_seed(1)
    loc, log_variance = (
        torch.randn(len(group), 4, dtype=dtype),
        spread * torch.randn(len(group), 4, dtype=dtype),
    )
    mean, log_var = product_of_normals(loc, log_variance, group)
    for g in range(len(sizes)):
        wanted = dense_product(
            loc.double().numpy(), log_variance.double().numpy(), group.numpy(), g
        )
        tolerance = 1e-12 if dtype == torch.float64 else 2e-5
        np.testing.assert_allclose(mean[g], wanted[0], rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(log_var[g], wanted[1], rtol=tolerance, atol=tolerance)
    assert not mean[len(sizes) :].any()
    assert not log_var[len(sizes) :].any()


def mixture(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    group = ragged([1, 4, 1000, 2])
    return (
        torch.randn(len(group), 2, dtype=dtype),
        torch.randn(len(group), 2, dtype=dtype).exp(),
        group,
    )


def test_the_mixture_of_normals_is_eq_1_of_the_supplement() -> None:
    loc, scale, group = mixture()
    value = torch.randn(len(group), 2, dtype=torch.float64)
    q = MixtureOfNormals().by_member(loc, 2 * scale.log(), group)
    ours = q.log_prob(value)
    for i in (0, 5, 500, 1006):
        members = (group == group[i]).numpy()
        each = norm(loc[members].numpy(), scale[members].numpy()).logpdf(value[i].numpy()).sum(-1)
        assert float(ours[i]) == pytest.approx(logsumexp(each) - math.log(members.sum()), rel=1e-10)
    by_group = MixtureOfNormals().by_group(loc, 2 * scale.log(), group)
    for g in range(4):
        row = int((group == g).nonzero()[0])
        moved = value.clone()
        moved[g] = value[row]
        assert float(by_group.log_prob(moved)[g]) == pytest.approx(float(ours[row]), rel=1e-10)
    standard = TorchNormal(torch.zeros(2).double(), 1.0).log_prob(value[4:]).sum(-1)
    torch.testing.assert_close(by_group.log_prob(value)[4:], standard)


def test_draws_of_the_mixture_have_its_moments() -> None:
    """Mean and second moment of 40,000 draws of each of two groups within five standard errors."""
    loc, scale, group = mixture()
    chosen = torch.tensor([1, 3]).repeat(40_000)
    torch.manual_seed(1)
    q = GroupMixture(loc, scale, group, chosen)
    draws = q.rsample()
    first = torch.stack([loc[group == g].mean(0) for g in (1, 3)])
    second = torch.stack([(loc**2 + scale**2)[group == g].mean(0) for g in (1, 3)])
    torch.testing.assert_close(q.mean[:2], first)
    torch.testing.assert_close(q.variance[:2], second - first**2)
    empty = GroupMixture(loc, scale, group, torch.tensor([4]))
    torch.testing.assert_close(empty.variance, torch.ones_like(empty.variance))
    far = GroupMixture(loc.float() + 1000, scale.float(), group, torch.tensor([1, 3]))
    torch.testing.assert_close(far.variance.double(), second - first**2, rtol=1e-3, atol=1e-4)
    for g in (1, 3):
        z, members = draws[chosen == g], group == g
        for power, wanted in (
            (1, loc[members].mean(0)),
            (2, (loc[members] ** 2 + scale[members] ** 2).mean(0)),
        ):
            error = (z**power).std(0) / 200
            assert (((z**power).mean(0) - wanted).abs() < 5 * error).all()


def build(
    evidence: Evidence | None = None, num_samples: int = 1, content: str = "member"
) -> GroupedGuide:
    torch.manual_seed(0)
    model = MLVAE((6,), 3, 2, Normal(0.4), MLP((8,), "tanh", dropout=0))
    return GroupedGuide(model, num_samples, evidence, content).double()


def by_hand(guide: GroupedGuide, draw: Callable[[], Tensor]) -> Tensor:
    """Minus the mean over groups of Eq. 3 by their mean size, at draws of content, then style."""
    q_style, q_member = map(normal, guide.encoder(X))
    precision = torch.stack([(q_member.variance[g == GROUP] ** -1).sum(0) for g in range(4)])
    weighted = torch.stack(
        [(q_member.loc / q_member.variance)[g == GROUP].sum(0) for g in range(4)]
    )
    q_group = TorchNormal(weighted / precision, precision**-0.5)
    c_noise = draw()
    L = guide.num_samples
    c = (
        (q_group.loc + q_group.scale * c_noise[..., :4, :])[..., GROUP, :]
        if guide.content == "group"
        else (q_group.loc[GROUP] + q_group.scale[GROUP] * c_noise)
    )
    s = q_style.loc + q_style.scale * draw()
    likelihood = TorchNormal(guide.model.decode({"content": c, "style": s}).base_dist.loc, 0.4)
    log_likelihood = (
        likelihood.log_prob(X.expand(L, *X.shape) if L > 1 else X).sum(-1).reshape(L, 9).mean(0)
    )
    standard = TorchNormal(torch.zeros(()).double(), 1.0)
    elbos = []
    for g in range(4):
        members = g == GROUP
        kl_style = kl_divergence(q_style, standard)[members].sum()
        kl_content = kl_divergence(q_group, standard)[g].sum()
        elbos.append(log_likelihood[members].sum() - kl_style - kl_content)
    return -torch.stack(elbos).mean() / (9 / 4)


@pytest.mark.parametrize("content", ["member", "group"])
@pytest.mark.parametrize("num_samples", [1, 3])
def test_the_objective_is_eq_5(content: str, num_samples: int) -> None:
    guide = build(num_samples=num_samples, content=content)
    loss = Loss(guide.model, guide, MeanField_ELBO(max_plate_nesting=guide.max_plate_nesting))
    pyro.set_rng_seed(3)
    with pyro.validation_enabled(False):
        ours = loss(X, group=GROUP)
    pyro.set_rng_seed(3)
    shape = (num_samples, 9) if num_samples > 1 else (9,)
    dims = iter((3, 2))
    expected = by_hand(guide, lambda: torch.randn(*shape, next(dims), dtype=torch.float64))
    torch.testing.assert_close(
        ours, expected, rtol=1e-6, atol=0
    )  # the likelihood's scale is of float32
    gradients = [torch.autograd.grad(value, list(guide.parameters())) for value in (ours, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
        assert one.abs().max() > 0


def test_order_and_numbers_of_groups_do_not_matter() -> None:
    guide = build()
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([-7, 10**12, 3, 0])[GROUP]
    z = guide.embed(X, group=GROUP)
    moved = guide.embed(X[order], group=ids[order].numpy())
    for name in z:
        np.testing.assert_allclose(moved[name], z[name][order], rtol=1e-12)
    for members in ([0, 1], [2], [3, 4, 5, 6]):
        assert np.ptp(z["content"][members], axis=0).max() < 1e-12
        alone = guide.embed(X[members], group=[5] * len(members))
        np.testing.assert_allclose(alone["content"], z["content"][members], rtol=1e-12)
    single = guide.embed(X, group=np.arange(9))
    np.testing.assert_allclose(single["style"], z["style"])
    assert np.abs(single["content"] - z["content"]).max() > 1e-3


def test_evidence_is_gathered_over_all_rows_whatever_their_number() -> None:
    """More rows than go through the networks at once."""
    guide = build().float()
    x, group = torch.rand(9000, 6), torch.arange(9000) % 3
    z = guide.embed(x, group=group)["content"]
    assert [len(np.unique(z[group == g], axis=0)) for g in range(3)] == [1, 1, 1]
    heads = guide.encoder(x[group == 1])[1].detach()
    log_variance = 10 * torch.tanh(heads[:, 3:] / 10)
    mean = (heads[:, :3] * (-log_variance).exp()).sum(0) / (-log_variance).exp().sum(0)
    np.testing.assert_allclose(z[1], mean, rtol=1e-4, atol=1e-6)


def test_program_shares_contents_within_groups() -> None:
    model = build().model
    x = model(group=GROUP)
    assert x.shape == (9, 6)
    with pyro.poutine.trace() as tracer:
        model(group=GROUP)
    drawn = tracer.trace.nodes["z_content"]
    assert drawn["value"].shape == (9, 3)
    assert drawn["mask"].tolist() == [True] * 4 + [False] * 5


# Batches


@pytest.mark.parametrize("max_members", [None, 3])
def test_every_row_is_dealt_once_and_no_group_is_cut_or_only_as_said(
    max_members: int | None,
) -> None:
    sizes = [1, 7, 2, 30, 3, 3, 1, 12]
    group = ragged(sizes)
    data = Observed(torch.arange(len(group))[:, None].float(), {"group": group})
    deals = list(Groups(max_members).batches(data, 10))
    rows = torch.cat([batch.x[:, 0] for batch in deals]).long()
    assert sorted(rows.tolist()) == list(range(len(group)))
    assert len(deals) == Groups(max_members).steps(data, 10)
    parts = []
    for batch in deals:
        local = batch.given["group"]
        assert sorted(local.unique().tolist()) == list(range(int(local.max()) + 1)), (
            "numbered from 0 on"
        )
        for g in local.unique():
            members = batch.x[local == g, 0].long()
            assert len(group[members].unique()) == 1, "rows of one group"
            parts.append((int(group[members[0]]), len(members)))
    found = {g: sorted(n for h, n in parts if h == g) for g in range(len(sizes))}
    for g, size in enumerate(sizes):
        assert sum(found[g]) == size
        if max_members is None:
            assert found[g] == [size]
        else:
            assert len(found[g]) == -(-size // max_members)
            assert max(found[g]) - min(found[g]) <= 1


def test_batches_of_groups_estimate_the_mean_over_groups_without_bias() -> None:
    """For any function of a group: the mean over batches of its sum by what the batch stands for
    (Eq. 5).

    Exact in every pass where batches have as many groups; dividing by the rows instead would weight
    groups by chance.
    """
    sizes = [1, 9, 2, 30, 3, 5, 1, 12]
    group = ragged(sizes)
    value = 1 + 0.1 * torch.randn(8)  # of each group
    data = Observed(torch.arange(len(group))[:, None].float(), {"group": group})
    wanted = float(value.sum() / len(group))
    by_rows = []
    for _ in range(20):
        estimates, others = [], []
        for batch in Groups().batches(data, 16):
            groups = group[batch.x[:, 0].long()].unique()
            assert len(groups) == 2
            estimates.append(float(value[groups].sum()) / batch.size)
            others.append(float(value[groups].sum()) / len(batch))
        assert np.mean(estimates) == pytest.approx(wanted, rel=1e-5)
        by_rows.append(np.mean(others))
    assert abs(np.mean(by_rows) - wanted) > 5 * np.std(by_rows) / math.sqrt(20)


def test_the_runner_deals_groups_and_can_be_told_how() -> None:
    guide = build().float()
    x, group = torch.rand(60, 6), ragged([20, 1, 30, 9])
    runner = SVIRunner(guide.model, guide).fit(
        x, epochs=2, batch_size=30, progress=False, group=group
    )
    assert runner.step == 4  # two batches of two groups
    runner.fit(
        x, epochs=1, batch_size=10, batches=Groups(max_members=5), progress=False, group=group
    )
    assert runner.step == 4 + 7  # 4 + 1 + 6 + 2 parts, two a batch
    with pytest.raises(ValueError, match="train each alone"):
        fit_together([SVIRunner(guide.model, guide)], x, 1, progress=False, group=group)
    assert repr(Groups(5)) == "Groups(max_members=5)"
    assert repr(Rows()) == "Rows()"


def test_an_elbo_is_of_whole_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some 4,096 rows are computed at once, in which no group is cut."""
    guide = build().float()
    group = torch.arange(10_000) % 7
    x = torch.rand(10_000, 6)
    seen = []
    loss = Loss.forward

    def counted(self: Loss, x: Tensor, size: float | None = None, **given: Tensor) -> Tensor:
        seen.append(len(given["group"].unique()))
        return loss(self, x, size, **given)

    monkeypatch.setattr(Loss, "forward", counted)
    elbo(guide.model, guide, x, num_draws=2, group=group)
    assert seen == [3, 3, 1] * 2, "parts of whole groups"
    parts = [part.given["group"] for part in Observed(x, {"group": group}).whole_groups(4096)]
    assert [len(part.unique()) for part in parts] == [3, 3, 1]


# Its other posteriors


def test_the_penalty_is_eq_18() -> None:
    guide = SimilarContentGuide(build().model, penalty=0.7).double()
    head = guide.encoder(X)[1]
    q = normal(head)

    def symmetric(i: int, j: int) -> Tensor:
        p, r = TorchNormal(q.loc[i], q.scale[i]), TorchNormal(q.loc[j], q.scale[j])
        return 0.5 * (kl_divergence(p, r) + kl_divergence(r, p)).sum()

    # Pairs (0, 1), (3, 4), (5, 6), (7, 8); the group of one has none.
    wanted = [
        symmetric(0, 1),
        torch.zeros(()),
        (symmetric(3, 4) + symmetric(5, 6)) / 2,
        symmetric(7, 8),
    ]
    torch.testing.assert_close(guide.distances(head, GROUP)[:4], torch.stack(wanted).to(head))
    values = []
    for penalty in (0.0, 0.7):
        guide.penalty = penalty
        pyro.set_rng_seed(0)
        with pyro.validation_enabled(False):
            values.append(Loss(guide.model, guide)(X, group=GROUP))
    # Eq. 18: the penalty is a mean over groups where the rest is a mean over rows.
    torch.testing.assert_close(values[1] - values[0], 0.7 * torch.stack(wanted).mean().to(X))
    # So it is over batches, of groups of one size or another.
    pressed = []
    for batch in Groups().batches(Observed(X, {"group": GROUP}), 5):
        parts = []
        for penalty in (0.0, 0.7):
            guide.penalty = penalty
            pyro.set_rng_seed(0)
            with pyro.validation_enabled(False):
                parts.append(
                    Loss(guide.model, guide)(batch.x, batch.size, group=batch.given["group"])
                )
        members = [guide.distances(guide.encoder(batch.x)[1], batch.given["group"])]
        pressed.append((parts[1] - parts[0], members[0].sum() / 2))
    for measured, wanted_sum in pressed:
        torch.testing.assert_close(measured, 0.7 * wanted_sum.to(X))
    # What is reported is without it.
    reports = []
    for penalty in (0.0, 5.0):
        guide.penalty = penalty
        pyro.set_rng_seed(1)
        terms = Loss(guide.model, guide).terms(X, group=GROUP)
        reports.append(
            (elbo(guide.model, guide, X, 3, group=GROUP)[0], float(terms["elbo"].detach()))
        )
    assert reports[0] == pytest.approx(reports[1])


def test_groups_do_not_matter_to_the_elbo_where_contents_are_untied() -> None:
    guide = build(content="untied")
    grouped, one_each = (
        elbo(guide.model, guide, X, num_draws=200, group=g) for g in (GROUP, torch.arange(9))
    )
    assert abs(grouped[0] - one_each[0]) < 5 * math.hypot(grouped[1], one_each[1])


@pytest.mark.thorough
@pytest.mark.slow(3)
def test_tables_are_fitted_and_inferred_for_new_data(tmp_path: Path) -> None:
    """Two contents, -2 and 2 in each pixel, and noise; the fitted model places new rows."""
    torch.manual_seed(0)
    group = torch.arange(200) % 20
    truth = torch.where(group % 2 == 0, -2.0, 2.0)
    x = truth[:, None] + 0.3 * torch.randn(200, 6)
    model = MLVAE((6,), 2, 1, Normal(0.3), MLP((16,), "tanh", dropout=0))
    guide = TableGuide(model, group)
    SVIRunner(model, guide, lr=0.02).fit(x, epochs=150, batch_size=100, progress=False, group=group)
    assert np.abs(guide.reconstruct(x, group=group) - truth[:, None].numpy()).mean() < 0.4
    svi = SVI(model, guide, Adam({}), Trace_ELBO())
    assert svi.evaluate_loss(x, group=group) == pytest.approx(
        svi.evaluate_loss(x, group=group, row=torch.arange(200)), rel=0.1
    ), "without numbers all rows, as embed has them"
    with pytest.raises(ValueError, match="tables for 200 rows, got 30: say which"):
        svi.evaluate_loss(x[:30], group=group[:30])
    before = copy.deepcopy(model.state_dict())
    new, ids = x[:30] + 0.1 * torch.randn(30, 6), group[:30] + 1000
    inferred = infer_tables(model, new, ids, epochs=150, batch_size=30, progress=False)
    assert np.abs(inferred.reconstruct(new, group=ids) - truth[:30, None].numpy()).mean() < 0.5
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(p.requires_grad for p in model.parameters())
    SVIRunner(model, guide).save(tmp_path / "run")
    loaded = SVIRunner.load(tmp_path / "run").guide
    np.testing.assert_array_equal(
        loaded.embed(x, group=group)["content"], guide.embed(x, group=group)["content"]
    )
    few = guide.embed(x[5:8], group=group[5:8], row=[5, 6, 7])
    np.testing.assert_allclose(few["style"], guide.embed(x, group=group)["style"][5:8])


@pytest.mark.thorough
@pytest.mark.slow(2)
def test_an_encoder_learns_from_what_the_model_draws() -> None:
    """SVI-Encode: reconstructions of the model's own draws come near."""
    torch.manual_seed(0)
    model = MLVAE((6,), 1, 1, Normal(0.1), MLP((16,), "tanh", dropout=0, init="glorot_uniform"))
    with torch.no_grad():
        for p in model.decoder.parameters():
            p.mul_(3)
    guide = GroupedGuide(model)
    x = model.generate(300)
    ids = torch.arange(300)
    errors = [np.abs(guide.reconstruct(x, group=ids) - x.numpy()).mean()]
    learn_to_encode(guide, 2000, epochs=20, lr=3e-3, batch_size=100, progress=False)
    errors.append(np.abs(guide.reconstruct(x, group=ids) - x.numpy()).mean())
    assert errors[1] < 0.3 * errors[0]


def test_a_model_is_left_as_it_is_by_what_learns_after_it() -> None:
    """Batch statistics, weights of the terms and mode too."""
    torch.manual_seed(0)
    model = MLVAE((1, 8, 8), 2, 2, Normal(0.3), StridedConvNet((4, 5), hidden=6))
    guide = GroupedGuide(model).train()
    before = copy.deepcopy(model.state_dict())
    x, ids = torch.rand(20, 1, 8, 8), torch.arange(20) // 4
    infer_tables(model, x, ids, epochs=2, progress=False)
    learn_to_encode(guide, 40, epochs=2, batch_size=20, progress=False)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert all(part.training for part in model.modules())
    assert "train" not in vars(model)


@pytest.mark.slow(1)
def test_a_content_that_few_draws_pay_for_is_not_dead() -> None:
    """Two groups of 3,000 whose contents tell them apart: 0.004 nats per datum, ten a group."""
    torch.manual_seed(0)
    group = torch.arange(6000) % 2
    x = torch.where(group == 0, -1.0, 1.0)[:, None] + 0.1 * torch.randn(6000, 6)
    guide = GroupedGuide(MLVAE((6,), 1, 1, Normal(0.3), MLP((8,), "tanh", dropout=0)))
    runner = SVIRunner(guide.model, guide, lr=0.02)
    with warnings.catch_warnings(record=True, action="always") as caught:
        runner.fit(x, epochs=60, batch_size=6000, progress=False, group=group)
    assert runner.history[-1]["kl_z_content"] < 0.01
    assert not [w for w in caught if "'content'" in str(w.message)]


def test_a_learned_variance_is_bounded() -> None:
    likelihood = HeteroscedasticNormal()
    output = torch.cat([torch.full((2, 6), 0.3), torch.full((2, 6), 1e3)], 1)
    p = likelihood(output, 1)
    assert (p.batch_shape, p.event_shape) == ((2,), (6,))
    torch.testing.assert_close(p.base_dist.scale, torch.full((2, 6), math.exp(2.5)))
    images = likelihood(torch.randn(2, 6, 4, 4), 3)
    assert images.event_shape == (3, 4, 4)
    model = MLVAE((3, 64, 64), 50, 50, likelihood, StridedConvNet())
    assert model.decode(
        {"style": torch.zeros(1, 50), "content": torch.zeros(1, 50)}
    ).event_shape == (3, 64, 64)


def test_the_papers_convolutional_network() -> None:
    encoder = StridedConvNet().encoder((3, 64, 64), [200])
    shapes = [
        tuple(m.weight.shape)
        for m in encoder.modules()
        if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)
    ]
    assert shapes == [
        (64, 3, 4, 4),
        (128, 64, 4, 4),
        (256, 128, 4, 4),
        (512, 256, 4, 4),
        (256, 512 * 16),
        (256, 512),
        (200, 512),
    ]
    decoder = StridedConvNet().decoder((6, 64, 64), [50, 50])
    deconvolutions = [
        tuple(m.weight.shape) for m in decoder.modules() if isinstance(m, torch.nn.ConvTranspose2d)
    ]
    assert deconvolutions == [(512, 256, 4, 4), (256, 128, 4, 4), (128, 64, 4, 4)]
