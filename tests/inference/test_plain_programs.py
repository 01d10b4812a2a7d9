"""Functions, modules and autoguides in the runner, against exact posteriors and Pyro's own loop."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceEnum_ELBO, config_enumerate
from pyro.infer.autoguide import AutoNormal
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.distributions import constraints, kl_divergence

from inference import (
    Checkpoints,
    SVIRunner,
    WarmUp,
    elbo,
    elbo_per_datum,
    fit_together,
    plain_programs,
)

pytestmark = pytest.mark.usefixtures("an_empty_store")

X = 3 + torch.randn(40, generator=torch.Generator().manual_seed(0))


def model(x: Tensor) -> Tensor:
    loc = pyro.sample("loc", dist.Normal(0.0, 2.0))
    with pyro.plate("data", 40, subsample_size=len(x)):
        return pyro.sample("x", dist.Normal(loc, 1.0), obs=x)


def guide(x: Tensor) -> None:
    loc = pyro.param("belief.loc", torch.tensor(0.0))
    scale = pyro.param("belief.scale", torch.tensor(1.0), constraint=constraints.positive)
    pyro.sample("loc", dist.Normal(loc, scale))


@config_enumerate
def mixture(x: Tensor) -> None:
    locs = pyro.param("locs", torch.tensor([1.0, 5.0]))
    with pyro.plate("data", len(x)):
        c = pyro.sample("c", dist.Categorical(torch.ones(2)))
        pyro.sample("x", dist.Normal(locs[c], 0.5), obs=x)


def test_the_posterior_is_the_conjugate_one() -> None:
    precision = 1 / 4 + len(X)
    runner = SVIRunner(*plain_programs(model, guide, X), seed=0)
    for runner.lr in (0.1, 0.01, 0.001):
        runner.fit(X, 300, batch_size=40, progress=False, log_every=100)
    assert pyro.param("belief.loc").item() == pytest.approx(float(X.sum()) / precision, abs=0.02)
    assert pyro.param("belief.scale").item() == pytest.approx(precision**-0.5, rel=0.15)
    assert set(runner.history[0]) == {"epoch", "step", "seconds", "objective", "elbo"}


def test_steps_are_those_of_pyros_loop() -> None:
    """With the same draws, and SGD, of which the same gradients make the same steps."""
    programs = plain_programs(model, guide, X)
    runner = SVIRunner(*programs, lr=0.01, optimizer=torch.optim.SGD, seed=0)
    with runner.while_training():
        start = torch.get_rng_state()
    runner.fit(X, 3, batch_size=40, progress=False)
    found = {name: value.clone() for name, value in pyro.get_param_store().items()}
    pyro.clear_param_store()
    svi = SVI(model, guide, pyro.optim.SGD({"lr": 0.01 / 40}), Trace_ELBO())  # nats per datum
    guide(X)
    torch.set_rng_state(start)
    for _ in range(3):
        svi.step(X)
    for name, value in pyro.get_param_store().items():
        torch.testing.assert_close(found[name], value)


def test_discrete_sites_by_pyros_enumeration() -> None:
    def nothing(x: Tensor) -> None:
        pass

    x = torch.cat([torch.randn(50) / 2, 6 + torch.randn(50) / 2])
    programs = plain_programs(mixture, nothing, x)
    objective = TraceEnum_ELBO(max_plate_nesting=1)
    SVIRunner(*programs, objective=objective, lr=0.05).fit(x, 60, 50, progress=False)
    assert pyro.param("locs").tolist() == pytest.approx([0, 6], abs=0.4)


class Regression(PyroModule):
    """y ~ Normal(network(x), 0.1), with a network that has buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor, *, y: Tensor) -> None:
        mean = self.net(x)[:, 0]
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 0.1), obs=y)


def test_a_module_with_other_inputs_resumes_bit_for_bit(tmp_path: Path) -> None:
    x = torch.randn(60, 2)
    y = x.prod(-1)

    def run() -> SVIRunner:
        pyro.clear_param_store()
        pyro.set_rng_seed(1)
        programs = plain_programs(Regression(), lambda x, y: None, x, y=y)
        return SVIRunner(*programs, lr=0.01, seed=2)

    def stop(runner: Any, record: dict[str, Any]) -> None:
        if record["epoch"] == 3:
            raise KeyboardInterrupt

    whole = run().fit(x, 6, 20, progress=False, y=y)
    with pytest.raises(KeyboardInterrupt):
        run().fit(
            x, 6, 20, progress=False, checkpoints=Checkpoints(tmp_path), callbacks=[stop], y=y
        )
    again = run()
    given = {"checkpoints": Checkpoints(tmp_path, resume=True), "callbacks": [lambda *_: None]}
    again.fit(x, 6, 20, progress=False, y=y, **given)
    expected = whole.loss.state_dict()
    assert "guide.model.program.net.1.running_mean" in expected
    torch.testing.assert_close(again.loss.state_dict(), expected, rtol=0, atol=0)


def test_an_autoguide_is_saved_and_loaded(tmp_path: Path) -> None:
    fitted = SVIRunner(*plain_programs(model, AutoNormal(model), X), lr=0.05)
    fitted.fit(X, 20, 40, progress=False).save(tmp_path)
    loc = pyro.param("AutoNormal.locs.loc").item()
    pyro.clear_param_store()
    again = SVIRunner.load(tmp_path, guide=plain_programs(model, AutoNormal(model), X)[1])
    assert pyro.param("AutoNormal.locs.loc").item() == loc
    assert again.history == fitted.history


def test_long_calls_are_not_recorded_and_do_not_warn() -> None:
    runner = SVIRunner(*plain_programs(model, guide, X))
    with warnings.catch_warnings(action="error"):
        runner.fit(X, 500, batch_size=40, progress=False, log_every=500)
    asked = SVIRunner(runner.model, runner.guide, compile="replay")
    before = pyro.param("belief.loc").item()
    with pytest.warns(UserWarning, match="parameters are in Pyro's store.*through Pyro"):
        asked.fit(X, 3, batch_size=40, progress=False)
    assert pyro.param("belief.loc").item() != before


def test_objective_and_bound_are_of_a_datum_whatever_the_batch() -> None:
    """A plate of N data makes an objective of N, in every batch. Of a narrow posterior: within a
    tenth, draws included.
    """

    def narrow(x: Tensor) -> None:
        pyro.sample("loc", dist.Normal(pyro.param("at", torch.tensor(0.0)), 0.05))

    programs = plain_programs(model, narrow, X)
    runner = SVIRunner(*programs, lr=1e-6).fit(X, 40, batch_size=10, progress=False)
    found = [np.mean([each[name] for each in runner.history]) for name in ("objective", "elbo")]
    exact = -0.5 * np.log(2 * np.pi) - 0.5 * float((X**2 + 0.05**2).mean())
    exact -= float(kl_divergence(dist.Normal(0.0, 0.05), dist.Normal(0.0, 2.0))) / 40
    assert [*found, elbo(*programs, X, 50)[0]] == pytest.approx([-exact, exact, exact], rel=0.1)


def test_only_the_plate_of_rows_says_what_a_batch_stands_for() -> None:
    def model(x: Tensor) -> None:
        at = pyro.param("at", torch.tensor(0.0))
        with pyro.plate("rows", 40, subsample_size=len(x)), pyro.plate("pixels", 6, 3, dim=-2):
            pyro.sample("x", dist.Normal(at, 1.0), obs=x.expand(3, -1))
        pyro.sample("prior", dist.Normal(at, 1.0), obs=torch.tensor(0.0))

    programs = plain_programs(model, lambda x: None, X)
    SVIRunner(*programs, lr=1e-6).fit(X, 1, batch_size=10, progress=False)
    for rows in (10, 40):
        programs[0](X[:rows])
        assert programs[0].share == 40 / rows


def test_the_record_has_the_bound_that_is_trained() -> None:
    """Clusters that the objective sums out would otherwise be drawn from their prior."""

    programs = plain_programs(mixture, lambda x: None, X)
    runner = SVIRunner(*programs, objective=TraceEnum_ELBO(max_plate_nesting=1), lr=1e-6)
    last = runner.fit(X, 1, 40, progress=False).history[-1]
    assert last["elbo"] == pytest.approx(-last["objective"], rel=1e-3)
    assert elbo(*programs, X)[0] == pytest.approx(last["elbo"], rel=1e-3)


class Tutorial(nn.Module):
    """Model and guide as methods of a module, as in Pyro's tutorial of the VAE."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))

    def model(self, x: Tensor) -> None:
        pyro.module("net", self.net)
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(self.net(x), 1.0).to_event(1), obs=x)

    def guide(self, x: Tensor) -> None:
        pass


def test_a_methods_owner_is_saved_and_evaluated_with_its_buffers(tmp_path: Path) -> None:
    x, one = torch.randn(40, 2), Tutorial()
    runner = SVIRunner(*plain_programs(one.model, one.guide, x)).fit(x, 4, 10, progress=False)
    assert not one.net.training
    runner.save(tmp_path)
    expected = one.net(x)
    pyro.clear_param_store()
    other = Tutorial()
    SVIRunner.load(tmp_path, guide=plain_programs(other.model, other.guide, x)[1])
    assert torch.equal(other.net.eval()(x), expected)


def test_modules_are_found_behind_what_wraps_programs() -> None:
    """A part of a module of which another is not used, and wrapped functions."""
    one, inner = Tutorial(), nn.Linear(1, 1)
    one.unused = nn.Linear(2, 2)

    @config_enumerate
    def guide(x: Tensor) -> None:
        pyro.module("inner", inner)

    model = partial(Tutorial.model, one)
    found = plain_programs(model, guide, torch.randn(8, 2))[1].parts
    assert {id(each) for each in found} == {id(one.net), id(inner)}


def test_a_network_that_no_program_trains_is_left_alone() -> None:
    fixed = nn.Linear(1, 1)
    before = fixed.weight.clone()

    def shifted(x: Tensor) -> None:
        loc = pyro.param("loc", torch.tensor(0.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(loc + fixed(x[:, None])[:, 0], 1.0), obs=x)

    SVIRunner(*plain_programs(shifted, lambda x: None, X), lr=0.1).fit(X, 3, 40, progress=False)
    assert torch.equal(fixed.weight, before)


def test_integers_become_numbers_of_the_models_kind() -> None:
    net, x = nn.Linear(3, 1), torch.randint(0, 255, (40, 3), dtype=torch.uint8)

    def linear(x: Tensor, y: Tensor) -> None:
        pyro.module("net", net)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(net(x)[:, 0], 1.0), obs=y)

    y = np.zeros(40)
    SVIRunner(*plain_programs(linear, lambda x, y: None, x, y=y)).fit(x, 1, progress=False, y=y)


def test_a_parameter_that_comes_later_is_refused() -> None:
    late = []

    def model(x: Tensor) -> None:
        loc = pyro.param("late" if late else "loc", torch.tensor(0.0))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(loc, 1.0), obs=x)

    runner = SVIRunner(*plain_programs(model, lambda x: None, X))
    late.append(True)
    with pytest.raises(ValueError, match="the parameter 'late' is new since"):
        runner.fit(X, 1, progress=False)


def test_what_cannot_be_is_refused() -> None:
    programs = plain_programs(model, guide, X)
    with pytest.raises(ValueError, match="functions have none: leave it out, and scale their"):
        SVIRunner(*programs, schedule=WarmUp(3)).fit(X, 4, progress=False)
    with pytest.raises(ValueError, match="parameters are in Pyro's store"):
        fit_together([SVIRunner(*programs)], X, 2, progress=False)
    with pytest.raises(ValueError, match=r"no facets .* call them by pyro.infer.Predictive"):
        programs[1].predict(X)
    with pytest.raises(ValueError, match="neither program has a parameter that learns"):
        plain_programs(model, lambda x: pyro.sample("loc", dist.Normal(0.0, 1.0)), X)
    with pytest.raises(ValueError, match="the model observes nothing"):
        plain_programs(lambda x: pyro.sample("z", dist.Normal(0.0, 1.0)), guide, X)
    with pytest.raises(ValueError, match="the guide draws 'loc', which the model has not"):
        plain_programs(lambda x: pyro.sample("x", dist.Normal(0.0, 1.0), obs=x[0]), guide, X)
    with pytest.raises(ValueError, match="the runner uses the name 'group' itself"):
        plain_programs(model, guide, X, group=X)
    with pytest.raises(ValueError, match=r"could not be called with x, y=: .*unexpected keyword"):
        plain_programs(model, guide, X, y=X)
    with pytest.raises(ValueError, match="which have no bound of each datum: take elbo"):
        elbo_per_datum(*programs, X)
    with pytest.raises(ValueError, match="precision is of this library's networks"):
        SVIRunner(*programs, precision="bf16").fit(X, 1, progress=False)
    with pytest.raises(ValueError, match="plain_programs"):
        SVIRunner(model, guide)  # type: ignore[arg-type]
    pyro.clear_param_store()
    with pytest.raises(ValueError, match=r"another 'belief.loc' than .* call plain_programs again"):
        SVIRunner(*programs).fit(X, 1, progress=False)
