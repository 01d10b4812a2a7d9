"""Natural parameters, the matrix L of Eq. 2, and what is done where it is singular."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from guides import VaDEGuide
from inference import SVIRunner
from lab.identifiability import (
    IdentifiabilityWarning,
    KeepIdentifiable,
    coinciding_components,
    condition_number,
    identifiability_matrix,
)
from ppl_models import MLP, GaussianMixture, Normal, VaDE


def mixture(num_components: int, dim: int = 2) -> GaussianMixture:
    torch.manual_seed(0)
    prior = GaussianMixture(num_components, dim, scale=0.7)
    torch.nn.init.normal_(prior.loc)
    torch.nn.init.normal_(prior.raw_scale, 0.7, 0.3)
    return prior


def make_equal(prior: GaussianMixture, one: int = 0, other: int = 1) -> None:
    with torch.no_grad():
        prior.loc[other], prior.raw_scale[other] = prior.loc[one], prior.raw_scale[one]


def test_natural_parameters_are_those_of_the_exponential_family() -> None:
    """log p(z given u) is their product with (z, z^2), up to what does not depend on z (Eq. 1)."""
    prior = mixture(4)
    z = np.random.default_rng(0).normal(size=(2, 2))
    loc, scale = prior.loc.detach().numpy(), prior.scale.detach().numpy()
    density = norm(loc[:, None], scale[:, None]).logpdf(z).sum(-1)  # [K, 2]
    statistics = np.concatenate([z, z**2], -1)
    ours = prior.natural_parameters().detach().numpy() @ statistics.T
    np.testing.assert_allclose(ours[:, 0] - ours[:, 1], density[:, 0] - density[:, 1], rtol=1e-5)


def test_the_matrix_is_eq_2() -> None:
    prior = mixture(5)
    parameters = prior.natural_parameters().detach()
    columns = [parameters[k] - parameters[0] for k in range(1, 5)]
    L = identifiability_matrix(prior)
    assert torch.equal(L, torch.stack(columns, 1))
    assert condition_number(prior) == pytest.approx(np.linalg.cond(L.numpy()), rel=1e-9)


def test_too_few_or_too_equal_components_have_no_invertible_matrix() -> None:
    assert condition_number(mixture(4)) == float("inf")  # 2 d + 1 = 5 are needed
    assert condition_number(mixture(5)) < 1e4
    prior = mixture(5)
    make_equal(prior, 2, 4)
    assert condition_number(prior) == float("inf")
    assert coinciding_components(prior) == [4]
    assert coinciding_components(mixture(5)) == []


def blobs() -> tuple[torch.Tensor, torch.Tensor]:
    label = torch.arange(300) % 5
    torch.manual_seed(1)
    return torch.nn.functional.one_hot(label, 5).float() * 3 + 0.3 * torch.randn(300, 5), label


@pytest.mark.thorough
@pytest.mark.slow(2)
@pytest.mark.parametrize("num_components", [5, 9])
def test_two_equal_components_part_with_the_callback_and_never_without(num_components: int) -> None:
    """With 5 = 2 d + 1 components L is singular at the start; with 9 it is not, but the two stay
    one all the same.
    """
    x, _ = blobs()
    for callbacks, part in (([], False), ([KeepIdentifiable()], True)):
        prior = mixture(num_components)
        make_equal(prior)
        guide = VaDEGuide(VaDE((5,), prior, Normal(0.3), MLP((20,), dropout=0)))
        runner = SVIRunner(guide.model, guide, lr=3e-3, seed=0)
        if part:
            with pytest.warns(
                IdentifiabilityWarning, match=f"the parameters of 1 of {num_components}"
            ):
                runner.fit(x, epochs=30, batch_size=50, callbacks=callbacks, progress=False)
            assert runner.history[0]["perturbed_cluster"] == 1
            assert sum("perturbed_cluster" in record for record in runner.history) == 1, (
                "once was enough"
            )
            assert runner.history[-1]["condition_cluster"] < 1e6
        else:
            runner.fit(x, epochs=30, batch_size=50, callbacks=callbacks, progress=False)
        assert (coinciding_components(prior) == []) == part
