"""What every model and guide promises, asked of each one in the catalog."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pyro import poutine

from guides import FacetGuide, VaDEGuide
from inference import Loss, SVIRunner, elbo
from ppl_models import (
    MFCVAE,
    Autoencoder,
    ClassBlocks,
    Codebook,
    ConditionalNormal,
    Flat,
    GaussianMixture,
    MLPLadder,
)
from tests.catalog import BUILDERS, OBJECTIVES, PAIRS, columns, given

# Priors that are no density of z alone, or that nothing can be drawn from.
WITHOUT_DENSITY, WITHOUT_DRAWS = (ConditionalNormal, Codebook, Flat), (Flat,)
every_model = pytest.mark.parametrize("build", BUILDERS, ids=lambda f: f.__name__)


def data(guide: FacetGuide, n: int = 7) -> torch.Tensor:
    x = (
        255 * torch.rand(n, *guide.model.x_shape)
    ).round() / 255  # which 8-bit likelihoods take, too
    if guide.model.likelihood.takes_missing:
        x[:, 1] = torch.where(torch.arange(n) % 2 == 0, float("nan"), x[:, 1])
    return x


@every_model
def test_program_draws_data_without_observing_any(build: Callable[[], FacetGuide]) -> None:
    guide = build()
    if any(isinstance(prior, WITHOUT_DRAWS) for prior in guide.model.priors.values()):
        with pytest.raises(NotImplementedError):
            guide.model()
        return
    trace = poutine.trace(guide.model).get_trace(**(given(guide, 5) or {"size": 5}))
    assert trace.nodes["x"]["value"].shape == (5, *guide.model.x_shape)
    for name, prior in guide.model.priors.items():
        assert trace.nodes[f"z_{name}"]["value"].shape == (5, prior.dim)
        discrete = name in guide.model.mixtures or isinstance(prior, Codebook | ClassBlocks)
        assert (f"c_{name}" in trace.nodes) == discrete


@every_model
def test_every_parameter_learns(build: Callable[[], FacetGuide]) -> None:
    guide = build()
    loss = Loss(guide.model, guide)
    loss(data(guide), **given(guide, 7)).backward()
    dead = [
        n
        for n, p in loss.named_parameters()
        if p.requires_grad and (p.grad is None or not p.grad.any())
    ]
    assert not dead, f"no gradient reaches {dead}"


@every_model
@pytest.mark.parametrize("n", [1, 7])
def test_predictions_have_the_promised_shapes(build: Callable[[], FacetGuide], n: int) -> None:
    guide = build()
    x, beside = data(guide, n), given(guide, n)
    priors, mixtures = guide.model.priors, guide.model.inferred
    assert {k: v.shape for k, v in guide.embed(x, **beside).items()} == {
        k: (n, p.dim) for k, p in priors.items()
    }
    proba = guide.predict_proba(x, **beside)
    assert {k: v.shape for k, v in proba.items()} == {
        k: (n, p.num_components) for k, p in mixtures.items()
    }
    for name, cluster in guide.predict(x, **beside).items():
        np.testing.assert_allclose(proba[name].sum(-1), 1, rtol=1e-5)
        np.testing.assert_array_equal(cluster, proba[name].argmax(-1))
    for name, q in guide.posterior(x, **beside).items():
        assert (q.batch_shape, q.event_shape) == ((n,), (priors[name].dim,))
    assert guide.reconstruct(x, **beside).shape == x.shape


@every_model
def test_decode_and_generate(build: Callable[[], FacetGuide]) -> None:
    model = build().model
    z = {name: torch.randn(2, 5, prior.dim) for name, prior in model.priors.items()}
    beside = {name: torch.arange(5) % 3 for name in model.decodes}
    p = model.decode(z, **beside)
    if beside:
        with pytest.raises(ValueError, match=r"decode needs label= besides the latents, got \[\]"):
            model.decode(z)
    assert (p.batch_shape, p.event_shape) == ((2, 5), model.x_shape)
    if any(isinstance(prior, WITHOUT_DRAWS) for prior in model.priors.values()):
        with pytest.raises(ValueError, match="has no draws"):
            model.generate(4)
        return
    assert model.generate(4).shape == (4, *model.x_shape)
    for name, prior in model.inferred.items():
        cluster = prior.num_components - 1
        assert model.generate(3, facet=name, cluster=cluster, temperature=0.5).shape == (
            3,
            *model.x_shape,
        )


@every_model
def test_temperature_zero_gives_the_components_mean(build: Callable[[], FacetGuide]) -> None:
    for prior in build().model.mixtures.values():
        draws = prior.sample(3, cluster=1, temperature=0.0)
        torch.testing.assert_close(draws, prior.loc[1].detach().expand(3, -1))


@every_model
def test_log_joint_sums_to_the_density(build: Callable[[], FacetGuide]) -> None:
    for prior in build().double().model.priors.values():
        if isinstance(prior, WITHOUT_DENSITY):
            continue
        z = prior.sample(20).unflatten(0, (4, 5))  # where the density does not underflow
        assert prior.log_joint(z).shape == (4, 5, prior.num_components)
        torch.testing.assert_close(prior.log_joint(z).exp().sum(-1).log(), prior.log_prob(z))


@every_model
def test_save_and_load_give_the_same_predictions(
    build: Callable[[], FacetGuide], tmp_path: Path
) -> None:
    guide = build()
    x, beside = data(guide), given(guide, 7)
    runner = SVIRunner(guide.model, guide).fit(x, epochs=2, batch_size=4, progress=False, **beside)
    loaded = SVIRunner.load(runner.save(tmp_path / "run"))
    assert repr(loaded.guide) == repr(guide)
    assert loaded.history == runner.history
    latents = guide.embed(x, **beside)
    np.testing.assert_equal(loaded.guide.embed(x, **beside), latents)
    # What a guide gives, the model takes.
    assert guide.model.decode(latents, **guide.decoder_given(x, beside)).batch_shape == (7,)
    for name, z in latents.items():
        if not isinstance(prior := guide.model.priors[name], WITHOUT_DENSITY):
            assert prior.log_joint(z).shape == (7, prior.num_components)
    # Loading is saving's inverse: written again, the weights are the same bytes.
    again = loaded.save(tmp_path / "again")
    name = "weights.safetensors"
    assert (again / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


@every_model
def test_training_is_reproducible_and_leaves_the_callers_randomness(
    build: Callable[[], FacetGuide],
) -> None:
    guide = build()
    other = copy.deepcopy(guide)
    x, beside = data(guide), given(guide, 7)
    before = torch.random.get_rng_state()
    SVIRunner(guide.model, guide, seed=4).fit(x, epochs=2, batch_size=4, progress=False, **beside)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.randn(3)  # another state of the caller's stream makes no difference
    SVIRunner(other.model, other, seed=4).fit(x, epochs=2, batch_size=4, progress=False, **beside)
    torch.testing.assert_close(guide.state_dict(), other.state_dict(), rtol=0, atol=0)


@every_model
@pytest.mark.parametrize("training", [True, False])
def test_evaluation_changes_nothing(build: Callable[[], FacetGuide], training: bool) -> None:
    guide = build().train(training)
    x, beside = data(guide), given(guide, 7)
    before = copy.deepcopy(guide.state_dict())
    mean, error = elbo(guide.model, guide, x, num_draws=3, **beside)
    guide.predict(x, **beside)
    if not isinstance(guide.model, Autoencoder):
        guide.model.generate(2)
    assert np.isfinite(mean)
    assert (error < 1e-5 * abs(mean)) == guide.deterministic
    assert all(part.training == training for part in guide.modules())
    torch.testing.assert_close(guide.state_dict(), before, rtol=0, atol=0)


@every_model
def test_repr_tells_the_parts(build: Callable[[], FacetGuide]) -> None:
    guide = build()
    text = repr(guide)
    assert type(guide).__name__ in text
    for name, prior in guide.model.priors.items():
        assert name in text
        assert f"dim={prior.dim}" in text


@every_model
def test_works_in_float64_and_bf16(build: Callable[[], FacetGuide]) -> None:
    guide = build()
    x, beside = data(guide), given(guide, 7)
    runner = SVIRunner(guide.model, guide, precision="bf16").fit(
        x, epochs=1, progress=False, **beside
    )
    assert np.isfinite(runner.history[0]["elbo"])
    assert all(p.dtype == torch.float32 for p in guide.parameters())
    guide.double()
    assert Loss(guide.model, guide)(x.double(), **beside).dtype == torch.float64
    images = torch.randint(0, 256, (5, *guide.model.x_shape), dtype=torch.uint8)
    assert all(z.dtype == np.float64 for z in guide.embed(images, **given(guide, 5)).values())


@pytest.mark.parametrize(
    "build", [b for b in BUILDERS if b is not columns], ids=lambda f: f.__name__
)
def test_uint8_images_equal_the_same_values_as_floats(build: Callable[[], FacetGuide]) -> None:
    guide = build()
    x = torch.randint(0, 256, (5, *guide.model.x_shape), dtype=torch.uint8)
    beside = given(guide, 5)
    embedded = guide.embed(x.float() / 255, **beside)
    np.testing.assert_equal(embedded, guide.embed(x, **beside))


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("build", "refusal", "suitable"), PAIRS, ids=lambda value: getattr(value, "__name__", "")
)
def test_pairs_of_guide_and_objective(
    build: Callable[[], FacetGuide], refusal: str | None, suitable: set[str], objective: str
) -> None:
    guide = build()
    elbo_object = OBJECTIVES[objective](guide)
    if objective in suitable:
        loss = Loss(guide.model, guide, elbo_object)(data(guide), **given(guide, 7))
        loss.backward()
        assert loss.isfinite()
        runner = SVIRunner(guide.model, guide, objective=elbo_object)
        assert np.isfinite(
            runner.fit(data(guide), 1, progress=False, **given(guide, 7)).history[-1]["objective"]
        )
    else:
        with pytest.raises(ValueError, match=refusal):
            Loss(guide.model, guide, elbo_object)


def test_a_facet_may_be_called_class(tmp_path: Path) -> None:
    guide = VaDEGuide(
        MFCVAE((6,), {"class": GaussianMixture(2, 2), "shared": GaussianMixture(2, 2)})
    )
    runner = SVIRunner(guide.model, guide, precision="bf16")
    assert repr(SVIRunner.load(runner.save(tmp_path)).guide) == repr(guide)


def test_a_float64_run_is_loaded_as_one(tmp_path: Path) -> None:
    guide = BUILDERS[0]().double()
    runner = SVIRunner(guide.model, guide).fit(data(guide), epochs=1, progress=False)
    loaded = SVIRunner.load(runner.save(tmp_path))
    assert loaded.model.gates.dtype == torch.float64
    for name, z in guide.embed(data(guide)).items():
        assert z.dtype == loaded.guide.embed(data(guide))[name].dtype


def test_two_models_share_nothing() -> None:
    first, second = BUILDERS[0](), BUILDERS[0]()
    kept = copy.deepcopy(second.state_dict())
    SVIRunner(first.model, first).fit(data(first), epochs=2, progress=False)
    torch.testing.assert_close(second.state_dict(), kept, rtol=0, atol=0)


def test_uniform_weights_stay_uniform() -> None:
    prior = GaussianMixture(4, 2, weights="uniform")
    prior.place(weights=torch.tensor([0.7, 0.1, 0.1, 0.1]))
    assert not prior.logits.requires_grad
    torch.testing.assert_close(prior.component().probs, torch.full((4,), 0.25))


def test_sizes_may_be_arrays(tmp_path: Path) -> None:
    model = MFCVAE(
        np.array([6]), {"z": GaussianMixture(np.int64(3), 2)}, network=MLPLadder(np.array([8]))
    )
    runner = SVIRunner(model, VaDEGuide(model))
    assert repr(SVIRunner.load(runner.save(tmp_path)).guide) == repr(runner.guide)
