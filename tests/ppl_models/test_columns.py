"""A likelihood a column: densities against SciPy's, the bound against quadrature, gaps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from torch import Tensor

from guides import AmortizedGuide, LadderGuide, VaDEGuide
from inference import Loss, SVIRunner
from ppl_models import (
    MFCVAE,
    MLP,
    VLAC,
    Bernoulli,
    Categorical,
    Columns,
    GaussianMixture,
    Incomplete,
    Likelihood,
    LogNormal,
    MLPLadder,
    NegativeBinomial,
    Normal,
    Ordinal,
    Poisson,
    SharedMLP,
    StandardNormal,
    StudentT,
)
from ppl_models.columns import numeric
from ppl_models.configurable import from_config, to_config

NAN = float("nan")


pytestmark = pytest.mark.usefixtures("float64")


def densities(likelihood: Likelihood, output: Tensor, x: Tensor) -> np.ndarray:
    """Of each value on its own: outputs ``[N, P]``, values ``[N]``."""
    return likelihood(output, 1).log_prob(x[:, None]).detach().numpy()


@pytest.mark.parametrize("kind", [Normal, StudentT, LogNormal])
def test_a_density_changes_with_the_unit_as_densities_do(kind: type[Likelihood]) -> None:
    """A column in grams and in kilograms: other numbers, the same model."""
    kilograms = torch.rand(50) + 0.5
    first, second = (kind().fitted(x) for x in (kilograms, 1000 * kilograms))
    output = torch.randn(50, 1)
    apart = densities(first, output, kilograms) - densities(second, output, 1000 * kilograms)
    np.testing.assert_allclose(apart, math.log(1000), atol=1e-10)
    assert torch.allclose(first.features(kilograms), second.features(1000 * kilograms))
    assert abs(first.features(kilograms).mean()) < 1e-12
    assert first.features(kilograms).std(correction=0) == pytest.approx(1)


def test_a_learned_scale_is_half_of_the_unit_and_stays_above_a_tenth() -> None:
    likelihood = Normal(unit=12.0)
    assert likelihood.scale.item() == pytest.approx(6.0)
    with torch.no_grad():
        likelihood.log_scale.fill_(-50.0)
    assert likelihood.scale.item() == pytest.approx(1.2)


def test_far_out_an_ordered_category_still_has_a_gradient() -> None:
    output = torch.tensor([[40.0]], dtype=torch.float32, requires_grad=True)
    log_p = Ordinal(3).float()(output, 1).log_prob(torch.zeros(1, 1))
    log_p.backward()
    assert log_p.item() == pytest.approx(-40.7, abs=0.1)
    assert output.grad.item() == pytest.approx(-1, abs=1e-6)


def test_a_whole_table_may_have_one_likelihood() -> None:
    """Parameters of an entry are as far apart as there are entries; encoders see the same order."""
    x = torch.tensor([[0.0, 2.0], [1.0, 1.0]])
    output = torch.randn(2, 6)
    p = Categorical(3)(output, 1)
    want = sum(
        torch.log_softmax(output[:, [d, d + 2, d + 4]], -1).gather(1, x[:, d, None].long())[:, 0]
        for d in range(2)
    )
    torch.testing.assert_close(p.log_prob(x), want)
    features = Categorical(3).features(x)
    assert features.tolist() == [[1, 0, 0, 0, 0, 1], [0, 0, 1, 1, 0, 0]]


# Columns of all kinds.


def columns() -> Columns:
    return Columns(
        {
            "age": Normal(loc=40.0, unit=12.0),
            "income": LogNormal(loc=10.0, unit=0.8),
            "delay": StudentT(3.0, loc=-2.0, unit=4.0),
            "member": Bernoulli(),
            "city": Categorical(3),
            "rating": Ordinal(5),
            "visits": Poisson(loc=1.0, unit=0.5),
            "orders": NegativeBinomial(True, loc=2.0, unit=1.0),
            "calls": NegativeBinomial(loc=0.5, unit=0.5),
        }
    )


def table(n: int = 12, gaps: bool = True) -> Tensor:
    rng = np.random.default_rng(0)
    x = np.stack(
        [
            rng.normal(40, 12, n),
            rng.lognormal(10, 0.8, n),
            -2 + 4 * rng.standard_t(3, n),
            rng.integers(2, size=n),
            rng.integers(3, size=n),
            rng.integers(5, size=n),
            rng.poisson(3, n),
            rng.poisson(8, n) * rng.integers(2, size=n),
            rng.poisson(2, n),
        ],
        1,
    )
    if gaps:
        x[np.arange(9), np.arange(9)] = NAN
        x[10] = NAN
    return torch.as_tensor(x)


def one_latent(likelihood: Likelihood | None = None) -> VaDEGuide:
    likelihood = columns() if likelihood is None else likelihood
    return VaDEGuide(
        MFCVAE((9,), {"z": StandardNormal(1)}, likelihood, MLP((8,), dropout=0))
    ).double()


def two_facets() -> VaDEGuide:
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 3)}
    return VaDEGuide(MFCVAE((9,), facets, columns(), MLPLadder((8, 9)))).double()


def test_what_is_in_a_gap_has_no_gradient() -> None:
    guide, x = one_latent(), table()
    p = guide.model.decode({"z": torch.randn(12, 1)})
    for value in (p.log_prob(x)[:10].sum(), guide.model.likelihood.misfit(p, x)):
        guide.zero_grad()
        value.backward(retain_graph=True)
        assert all(q.grad is None or q.grad.isfinite().all() for q in guide.parameters())


def test_draws_are_of_each_columns_kind() -> None:
    likelihood = columns()
    p = likelihood(torch.zeros(12), 1)
    draws = p.expand(torch.Size([20_000])).sample()
    likelihood.check(draws)
    error = draws.std(0) / math.sqrt(len(draws))
    means = [0, 3, 6, 7, 8]  # the others have modes, or tails without a fourth moment
    assert ((draws.mean(0) - p.mean)[means].abs() < 5 * error[means]).all()
    assert torch.allclose(draws.var(0)[means], p.variance.expand(9)[means], rtol=0.1)


def test_encoders_see_numbers_and_gaps() -> None:
    x = torch.tensor([[52.0, math.exp(10), 2, 1, 2, 4, 0, 0, NAN]])
    want = [1, 0, 1, 1, 0, 0, 1, 1, -2, -2, 0, *[0] * 8, 1]
    found = columns().features(x)
    torch.testing.assert_close(found, torch.tensor([want], dtype=found.dtype))
    assert columns().features_shape((9,)) == (len(want),)


def test_codes_of_eight_bits_are_codes() -> None:
    """Not brightnesses, which others divide by 255."""
    guide = one_latent()
    x = table(gaps=False)[:, 3:].round()
    whole = torch.cat([x.new_full((12, 3), 40.0), x], 1).round()
    eight_bits = whole.to(torch.uint8)
    np.testing.assert_array_equal(guide.embed(eight_bits)["z"], guide.embed(whole)["z"])


def test_numeric_fills_gaps_by_means() -> None:
    x = table()
    found = torch.cat(numeric(columns(), x), -1)
    assert found.shape == (12, 11)
    assert found.isfinite().all()
    age = (x[:, 0] - 40) / 12
    torch.testing.assert_close(found[10, 0], age.nanmean())
    shares = torch.stack([(x[:, 4] == k).double().sum() for k in range(3)]) / 10
    torch.testing.assert_close(found[10, 4:7], shares)


def test_every_parameter_learns() -> None:
    guide = two_facets()
    loss = Loss(guide.model, guide)
    loss(table()).backward()
    dead = [n for n, p in loss.named_parameters() if p.grad is None or not p.grad.any()]
    assert not dead


def trained(mode: str | None) -> SVIRunner:
    pyro.set_rng_seed(0)
    facets = {"a": GaussianMixture(3, 2)}
    guide = VaDEGuide(MFCVAE((9,), facets, columns(), SharedMLP((8, 9)))).double()
    runner = SVIRunner(guide.model, guide, lr=1e-2, compile=mode)
    return runner.fit(table(48), 6, 16, 5, progress=False)


def test_recorded_steps_end_as_those_through_pyro() -> None:
    one, other = trained(None), trained("replay")
    states = [run.guide.state_dict() for run in (one, other)]
    torch.testing.assert_close(*states, rtol=1e-6, atol=1e-6)
    values = [each["objective"] for each in one.history]
    assert np.isfinite(values).all()
    assert values[-1] < values[0]


def test_other_guides_take_columns() -> None:
    ladder = LadderGuide(VLAC((9,), [2, 3], [1, 2], columns(), MLPLadder((8, 9)))).double()
    assert Loss(ladder.model, ladder)(table()).isfinite()
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 3)}
    guide = AmortizedGuide(MFCVAE((9,), facets, columns(), MLPLadder((8, 9)))).double()
    assert guide.predict(table())["style"].shape == (12,)
    assert guide.reconstruct(table()).shape == (12, 9)


def test_descriptions_keep_the_columns_order() -> None:
    described = to_config(columns())
    assert to_config(from_config(described)) == described
    assert from_config(described).names == columns().names


def likelihood_of(columns: Columns, name: str) -> Any:
    return dict(zip(columns.names, columns, strict=True))[name]


def test_what_is_not_given_is_chosen_from_the_values() -> None:
    kinds = {
        "a": Normal(),
        "b": LogNormal(),
        "c": Categorical(),
        "d": NegativeBinomial(),
        "e": Normal(loc=3.0),
        "f": Bernoulli(),
    }
    x = table()[:, [0, 1, 4, 8, 0, 3]]
    with pytest.raises(ValueError, match=r"column 'c': Categorical\(\) does not know"):
        Columns(kinds).output_shape((6,))
    found = Columns(kinds).fitted(x)
    assert likelihood_of(found, "c").num_categories == 3
    age, visits = x[:, 0], x[:, 3]
    assert likelihood_of(found, "a").loc.item() == pytest.approx(age.nanmean().item())
    rows = visits[~visits.isnan()]
    assert likelihood_of(found, "d").unit.item() == pytest.approx(
        rows.log1p().std(correction=0).item()
    )
    assert likelihood_of(found, "e").loc.item() == 3.0
    again = found.fitted(2 * x)
    assert to_config(again) == to_config(found)


@pytest.mark.parametrize("likelihood", [Poisson(), NegativeBinomial(), Categorical(4), Ordinal(4)])
def test_small_integers_are_counts_and_codes_and_no_8_bit_images(likelihood: Likelihood) -> None:
    x = torch.tensor([[0, 3], [1, 2]], dtype=torch.uint8)
    likelihood.check(x)
    assert torch.equal(likelihood.prepare(x), x.float())


def test_gaps_are_filled_within_the_likelihood() -> None:
    x = torch.tensor([[NAN, 2.0]])
    assert Incomplete(LogNormal()).features(x).isfinite().all()
    assert Incomplete(Normal(1.0, loc=100.0, unit=2.0)).features(x)[0, 0] == 0
    with pytest.raises(ValueError, match="LogNormal needs positive ones"):
        Incomplete(LogNormal(), 0.0)
