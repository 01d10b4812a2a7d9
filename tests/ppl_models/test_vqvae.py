"""The relaxed VQ-VAE and its autoencoder: objective written out, codes, and what is refused."""

from __future__ import annotations

import numpy as np
import pyro
import pytest
import torch
from torch.distributions import Normal as TorchNormal

from guides import Annealed, CodebookGuide, GumbelSoftmax, PointGuide, VaDEGuide
from inference import Loss, SVIRunner, elbo
from ppl_models import VAE, VQVAE, Autoencoder, ConvGrid, Normal

K, D, PLACES = 5, 3, 4
X = torch.rand(6, 1, 8, 8, dtype=torch.float64)


def build(num_samples: int = 1, **options: object) -> CodebookGuide:
    torch.manual_seed(0)
    return (
        CodebookGuide(VQVAE((1, 8, 8), K, D, Normal(0.4), ConvGrid((4, 5))), num_samples, **options)
        .double()
        .eval()
    )


def responsibilities(guide: CodebookGuide) -> torch.Tensor:
    """q(c given x) by the squared distance of the encoder's point to every code: ``[B, P, K]``."""
    points = guide.encoder(X)[0].reshape(len(X), D, PLACES).mT
    codes = guide.model.codebook.loc
    squared = (points[:, :, None] - codes).square().sum(-1)
    return torch.softmax(-squared / 2, -1)


def test_codes_are_as_probable_as_a_mixture_of_unit_normals_has_it() -> None:
    guide = build()
    logits = guide.model.codebook.log_affinity(guide.heads(X)["code"])
    torch.testing.assert_close(logits.softmax(-1), responsibilities(guide))


def test_a_place_of_the_row_is_a_place_of_the_grid() -> None:
    """A corner of the image moves the points of its own corner of the grid, and conversely."""
    torch.manual_seed(0)
    guide = CodebookGuide(VQVAE((1, 32, 32), K, D, Normal(0.4), ConvGrid((4, 5)))).eval()
    x = torch.rand(5, 1, 32, 32)
    changed = x.clone()
    changed[:, :, -4:, :4] += 5.0  # lowest row, first column: place 56
    moved = (guide.encoder(changed)[0] - guide.encoder(x)[0]).reshape(5, D, 64).norm(dim=1).mean(0)
    assert moved.argmax() == 56
    assert moved.reshape(8, 8)[:4, 4:].max() == 0
    z = torch.randn(1, D * 64)
    other = z.clone()
    other[:, 56::64] += 5.0
    image = (guide.model.decode({"code": other}).mean - guide.model.decode({"code": z}).mean).abs()[
        0, 0
    ]
    assert image[16:, :16].sum() > 0
    assert image[:8, 24:].max() == 0


@pytest.mark.parametrize("build", [VAE, Autoencoder])
def test_means_and_scales_of_a_place_are_its_own(build: type) -> None:
    torch.manual_seed(0)
    if build is VAE:
        guide = VaDEGuide(VAE((1, 32, 32), D * 64, Normal(0.4), network=ConvGrid((4, 5)))).eval()
    else:
        guide = PointGuide(Autoencoder((1, 32, 32), D, Normal(0.4), ConvGrid((4, 5)))).eval()
    x = torch.rand(5, 1, 32, 32)
    changed = x.clone()
    changed[:, :, -4:, :4] += 5.0
    (name,) = guide.model.priors
    before, after = (guide.posterior(each)[name] for each in (x, changed))
    for value in ("mean", "variance"):
        moved = (getattr(after, value) - getattr(before, value)).abs()
        moved = moved.reshape(5, D, 8, 8).norm(dim=1).mean(0)
        assert moved[:4].max() == moved[:, 4:].max() == 0
        assert (moved[-1, 0] > 0) == (build is VAE or value == "mean")


@pytest.mark.parametrize("num_samples", [1, 3])
def test_the_objective_is_reconstruction_at_relaxed_codes_and_the_exact_kl(
    num_samples: int,
) -> None:
    """Sonderby et al.: log p(x given relaxed codes) less sum over places of log K - H(q)."""
    guide = build(num_samples)
    q = responsibilities(guide)
    pyro.set_rng_seed(3)
    with pyro.validation_enabled(False):
        loss = Loss(guide.model, guide)(X)
    pyro.set_rng_seed(3)
    shape = (len(X), PLACES, K) if num_samples == 1 else (num_samples, len(X), PLACES, K)
    uniform = torch.rand(shape, dtype=torch.float64)
    relaxed = ((q.log() - (-uniform.log()).log()) / 0.5).softmax(-1)
    z = (relaxed @ guide.model.codebook.loc).mT.flatten(-2)
    mean = guide.model.decode({"code": z}).mean
    log_likelihood = TorchNormal(mean, torch.tensor(0.4).double()).log_prob(X).sum((-1, -2, -3))
    if num_samples > 1:
        log_likelihood = log_likelihood.mean(0)
    kl = (q * (q * K).log()).sum((-1, -2))
    torch.testing.assert_close(loss, (kl - log_likelihood).mean(), rtol=1e-10, atol=0)
    terms = Loss(guide.model, guide).terms(X)
    assert float(terms["kl_c_code"].detach()) == pytest.approx(float(kl.mean().detach()))


@pytest.mark.slow(2)
def test_what_is_reported_is_drawn_hard() -> None:
    """With cold draws the relaxed objective is the ELBO; with warm ones the report is."""
    guide = build(discrete=GumbelSoftmax(5.0))
    with torch.no_grad():
        guide.model.codebook.loc.mul_(3)
    x = X.repeat(8, 1, 1, 1)  # 800 draws of each row
    exact, error = elbo(guide.model, guide, x, num_draws=100)
    pyro.set_rng_seed(0)
    with torch.no_grad():
        relaxed = torch.stack([-Loss(guide.model, guide)(x) for _ in range(100)])
    cold, cold_error = elbo(guide.model, build_from(guide), x, num_draws=100)
    assert abs(exact - cold) < 4 * np.hypot(error, cold_error)
    assert abs(float(relaxed.mean()) - exact) > 4 * np.hypot(error, float(relaxed.std()) / 10)


def build_from(guide: CodebookGuide) -> CodebookGuide:
    other = CodebookGuide(guide.model, discrete=GumbelSoftmax(0.01)).double().eval()
    other.encoder.load_state_dict(guide.encoder.state_dict())
    return other


def test_reconstructions_are_of_the_nearest_codes_and_draws_of_any() -> None:
    guide = build()
    codes = guide.codes(X)
    np.testing.assert_array_equal(codes, responsibilities(guide).argmax(-1))
    z = guide.model.codebook.loc[torch.as_tensor(codes)].mT.flatten(-2)
    np.testing.assert_allclose(guide.reconstruct(X), guide.model.decode({"code": z}).mean.detach())
    drawn = guide.model.priors["code"].sample(400)
    assert len(np.unique(drawn[:, ::PLACES], axis=0)) == K
    assert torch.equal(
        guide.model.priors["code"].sample(2, cluster=1)[0].reshape(D, PLACES)[:, 2],
        guide.model.codebook.loc[1],
    )


def test_an_autoencoder_is_trained_by_its_reconstructions() -> None:
    torch.manual_seed(0)
    guide = PointGuide(Autoencoder((1, 8, 8), D, Normal(0.4), ConvGrid((4, 5)))).double().eval()
    mean = guide.model.decode({"code": guide.encoder(X)[0]}).mean
    log_likelihood = TorchNormal(mean, torch.tensor(0.4).double()).log_prob(X).sum((-1, -2, -3))
    torch.testing.assert_close(-Loss(guide.model, guide)(X), log_likelihood.mean())
    np.testing.assert_allclose(guide.reconstruct(X), mean.detach())


def test_temperatures_may_fall_while_training() -> None:
    guide = build(discrete=GumbelSoftmax(Annealed(1.0, 0.1, steps=4))).float()
    SVIRunner(guide.model, guide).fit(X.float(), epochs=5, progress=False)
    assert float(guide.discrete.temperature) == pytest.approx(0.1)
