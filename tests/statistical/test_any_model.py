"""Our objectives on programs that are not ours: positive latents of an autoguide, and a discrete
latent of all data beside a plate.
"""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from elbocheck import check
from elbocheck.pyro import Program
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from inference import MeanField_ELBO, ScoreFunction_ELBO
from tests.draws_of import SEED

COUNTS = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)


def rates(x: Tensor) -> None:
    rate = pyro.sample("rate", dist.Gamma(torch.tensor(2.0).double(), 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("x", dist.Poisson(rate), obs=x)


def test_a_mean_field_objective_counts_what_a_transform_adds() -> None:
    """Pyro's own leaves the log-determinant out: the gradient is .6 of what it should be."""
    with pyro.get_param_store().scope():
        guide = AutoNormal(rates)
        elbo = MeanField_ELBO(max_plate_nesting=1, num_particles=20)
        report = check(Program(rates, guide, elbo, COUNTS), bias=0.2, gradient_bias=0.2, seed=SEED)
        assert report.verdict == "unbiased", str(report)


def shifted(x: Tensor) -> None:
    """A shift of all data, and a sign of each."""
    far = pyro.sample("far", dist.Bernoulli(torch.tensor(0.4).double()))
    with pyro.plate("data", len(x)):
        sign = pyro.sample("sign", dist.Bernoulli(torch.tensor(0.5).double()))
        pyro.sample("x", dist.Normal(far + 2 * sign, 1.0), obs=x)


def guesses(x: Tensor) -> None:
    far = pyro.param("far_logit", torch.tensor(0.3).double())
    pyro.sample("far", dist.Bernoulli(logits=far))
    signs = pyro.param("sign_logits", torch.tensor([0.1, -0.4, 0.8]).double())
    with pyro.plate("data", len(x)):
        pyro.sample("sign", dist.Bernoulli(logits=signs))


def test_a_score_function_objective_takes_a_latent_of_all_data() -> None:
    with pyro.get_param_store().scope():
        elbo = ScoreFunction_ELBO(max_plate_nesting=1, num_particles=20)
        program = Program(shifted, guesses, elbo, COUNTS)
        report = check(program, gradient_bias=0.5, bias=0.5, seed=SEED)
        assert report.verdict == "unbiased", str(report)
