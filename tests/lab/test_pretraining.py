"""VaDE's pre-training."""

from __future__ import annotations

import pytest
import torch

from guides import InverseAutoregressive, VaDEGuide
from lab.protocols.pretraining import _least_squares, autoencoder_start
from ppl_models import MFCVAE, VAE, Bernoulli, GaussianMixture, MLPLadder, Normal, SharedMLP
from ppl_models.likelihood_base import Likelihood
from ppl_models.networks import Architecture


@pytest.mark.parametrize(
    ("network", "likelihood"),
    [(MLPLadder((30, 40)), Normal(0.3)), (SharedMLP((30, 40)), Bernoulli())],
    ids=repr,
)
def test_an_autoencoder_start_lets_the_networks_reconstruct_and_leaves_the_rest(
    network: Architecture, likelihood: Likelihood
) -> None:
    """Data of two dimensions: means reconstruct them; variances and mixtures are as drawn."""
    x = (torch.rand(400, 2) @ torch.rand(2, 12)).div(2)
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)}
    guide = VaDEGuide(MFCVAE((12,), facets, likelihood, network))
    heads = [(h.weight.clone(), h.bias.clone()) for h in guide.encoder.rungs]
    mixture = guide.model.priors["digit"].loc.clone()
    autoencoder_start(guide, x, 150, lr=5e-3, batch_size=50, progress=False)
    error = (torch.as_tensor(guide.reconstruct(x)) - x).square().mean()
    assert error < 0.1 * x.var(0).mean()
    for head, (weight, bias) in zip(guide.encoder.rungs, heads, strict=True):
        assert not torch.equal(head.weight[:2], weight[:2])
        assert torch.equal(head.weight[2:], weight[2:])
        assert torch.equal(head.bias[2:], bias[2:])
    assert torch.equal(guide.model.priors["digit"].loc, mixture)


@pytest.mark.parametrize("likelihood", [Bernoulli(), Normal(0.3, bounded=True), Normal(2.0)])
def test_an_autoencoder_is_trained_by_the_squared_distance(likelihood: Likelihood) -> None:
    x, output = torch.rand(5, 6), torch.randn(5, 6)
    squares = (x - likelihood(output, 1).mean).square().sum(-1)
    density = _least_squares(likelihood)(output, 1).log_prob(x)
    torch.testing.assert_close(density.diff(), -squares.diff())


def test_what_is_no_mean_of_a_normal_is_refused() -> None:
    guide = VaDEGuide(VAE((6,), 2, network=SharedMLP((8,))), family=InverseAutoregressive())
    with pytest.raises(ValueError, match="an autoencoder gives means of Normals"):
        autoencoder_start(guide, torch.rand(20, 6), 1)
