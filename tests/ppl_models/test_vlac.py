"""VLAC's guide through the library: starts, and what falls out of it. Its formulas are in
statistical/test_vlac.py.
"""

from __future__ import annotations

import pytest
import torch

from guides import GumbelSoftmax, LadderGuide, VaDEGuide
from inference import Loss, SVIRunner, fit_mixtures, warm_start
from ppl_models import GMDGM, VAE, VLAC, VLAE, ConvLadder, MLPLadder, Normal, StandardNormal


def groups(n: int = 400) -> torch.Tensor:
    """Images of six kinds: three grays, with or without noise."""
    grays = torch.randint(3, (n, 1, 1, 1)) / 4
    return grays + 0.5 * torch.rand(n, 1, 8, 8) * torch.randint(2, (n, 1, 1, 1))


@pytest.mark.thorough
@pytest.mark.slow(5)
def test_clusters_are_taught_as_they_will_be_trained() -> None:
    """After a warm start the network knows the mixture's clusters, in either mode."""
    x = groups()
    model = VLAC((1, 8, 8), [1, 4], [2, 2], Normal(0.2), ConvLadder((6, 8)))
    guide = LadderGuide(model, discrete=GumbelSoftmax())
    warm_start(SVIRunner(model, guide, lr=3e-3), x, epochs=10, batch_size=50, progress=False)
    responsibilities = model.priors["layer_2"].log_joint(guide.embed(x)["layer_2"]).argmax(-1)
    for mode in (True, False):
        guide.train(mode)
        with torch.no_grad():
            taught = guide.classify(x)["layer_2"].argmax(-1)
        assert (taught == responsibilities).float().mean() > 0.8, f"training={mode}"
    runner = SVIRunner(model, guide, lr=1e-3).fit(x, epochs=2, batch_size=50, progress=False)
    assert runner.history[-1]["mutual_information_layer_2"] > 0.5


def test_fitting_mixtures_forgets_how_latents_differed_by_cluster() -> None:
    model = VLAC((6,), [2, 3], [2, 2], network=MLPLadder((8, 9)))
    guide = LadderGuide(model)
    for shift in guide.encoder.shifts.values():
        torch.nn.init.normal_(shift.weight)
    x = torch.rand(60, 6)
    fit_mixtures(guide, x, facets=["layer_2"])
    assert not guide.encoder.shifts["1"].weight.any()
    assert guide.encoder.shifts["0"].weight.any(), "the other layer's clusters stay"


def test_relatives_are_vlac_with_fewer_parts() -> None:
    vlae, gmdgm, vae = VLAE((6,), [2, 3]), GMDGM((6,), 4, 3), VAE((6,), 3)
    assert [list(model.mixtures) for model in (vlae, gmdgm, vae)] == [[], ["layer_1"], []]
    assert all(
        isinstance(prior, StandardNormal) for prior in (*vlae.priors.values(), *vae.priors.values())
    )
    # No clusters, no difference: VLAC's guide is VaDE's, parameter by parameter and draw by draw.
    ladder, plain = LadderGuide(vlae), VaDEGuide(vlae)
    plain.load_state_dict(ladder.state_dict())
    x, losses = torch.rand(5, 6), []
    for guide in (ladder, plain):
        torch.manual_seed(1)
        losses.append(Loss(vlae, guide)(x))
    assert torch.equal(*losses)
