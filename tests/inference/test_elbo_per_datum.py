"""Each datum's ELBO, and means of many rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy.special import logsumexp
from scipy.stats import norm

from guides import FacetGuide, VaDEGuide
from inference import elbo, elbo_per_datum
from inference.evaluation import bounds
from ppl_models import MFCVAE, DiscretizedLogistic, GaussianMixture, Normal, SharedMLP, VaDE
from tests.catalog import EACH, given, of_two


def some_data(guide: FacetGuide, n: int = 7) -> torch.Tensor:
    x = torch.rand(n, *guide.model.x_shape, dtype=torch.float64)
    return (255 * x).byte() if isinstance(guide.model.likelihood, DiscretizedLogistic) else x


@pytest.mark.parametrize("build", EACH, ids=lambda build: build.__name__)
def test_the_mean_over_data_is_the_elbo_on_the_same_draws(
    build: Callable[[], FacetGuide], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every guide, clusters enumerated, relaxed, drawn or summed out, in two batches;
    float64.
    """
    monkeypatch.setattr(bounds, "EVALUATION_BATCH", 4)
    guide = build().double()
    x, beside = some_data(guide), given(guide, 7)
    if guide.model.shared:
        with pytest.raises(
            ValueError, match="one latent of facet 'content' for all members of a group"
        ):
            elbo_per_datum(guide.model, guide, x, 3, **beside)
        return
    pyro.set_rng_seed(1)
    expected, _ = elbo(guide.model, guide, x, 3, **beside)
    pyro.set_rng_seed(1)
    by_datum = elbo_per_datum(guide.model, guide, x, 3, **beside)
    assert by_datum.shape == (7,)
    assert by_datum.mean() == pytest.approx(expected, rel=1e-10)
    assert len(np.unique(by_datum)) == 7


def test_each_datum_has_the_formulas_elbo() -> None:
    """MFCVAE's Eq. 71, written out in NumPy for the draws of z that the guide makes."""
    guide = VaDEGuide(of_two(Normal(0.25))).double()
    model = guide.model
    x = torch.rand(5, 6, dtype=torch.float64)
    pyro.set_rng_seed(2)
    with torch.no_grad():
        sites = poutine.trace(guide).get_trace(x).nodes
        z = {name: sites[f"z_{name}"]["value"] for name in model.priors}
        decoded = model.decode(z).mean.numpy()
    expected = norm.logpdf(x.numpy(), decoded, 0.25).sum(-1)
    for name, prior in model.mixtures.items():
        q = sites[f"z_{name}"]["fn"]
        value, loc, scale = (t.detach().numpy() for t in (z[name], prior.loc, prior.scale))
        log_weights = prior.logits.detach().log_softmax(-1).numpy()
        expected += logsumexp(
            log_weights + norm.logpdf(value[:, None], loc, scale).sum(-1), axis=-1
        )
        expected -= norm.logpdf(value, q.mean.detach().numpy(), q.stddev.detach().numpy()).sum(-1)
    pyro.set_rng_seed(2)
    np.testing.assert_allclose(elbo_per_datum(model, guide, x, 1), expected, rtol=1e-10)


def test_gates_of_training_are_not_those_of_the_elbo() -> None:
    guide = VaDEGuide(VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,))))
    x = torch.rand(5, 6)
    pyro.set_rng_seed(3)
    before = elbo_per_datum(guide.model, guide, x, 2)
    guide.model.gates.fill_(0.3)
    pyro.set_rng_seed(3)
    np.testing.assert_array_equal(elbo_per_datum(guide.model, guide, x, 2), before)
    assert guide.model.gates == 0.3


def test_means_of_a_million_rows_are_not_those_of_single_precision() -> None:
    proba = np.tile(np.float32([0.9, 0.1]), (1_000_000, 1))
    model = MFCVAE((3,), {"a": GaussianMixture(2, 1)}, network=SharedMLP((4,)))
    guide = VaDEGuide(model)
    guide.predict_proba = lambda x, **given: {"a": proba}
    assert bounds.mutual_information(guide, proba)["a"] == pytest.approx(0, abs=1e-6)
