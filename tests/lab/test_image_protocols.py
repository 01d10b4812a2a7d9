"""Images as *I Don't Need u* (4.2) has them: pixels drawn from gray values, those that vary, and
how runs are started and made.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from facetvae.datasets import Dataset
from guides import MarginalGuide
from inference import SVIRunner
from lab.protocols.image_protocols import (
    PROTOCOLS,
    STANDS_FOR,
    Settings,
    binarized,
    drawn_anew,
    left_out,
    varying_pixels,
)
from ppl_models import MLP, Bernoulli, GaussianMixture, Incomplete, VaDE

pytestmark = pytest.mark.slow(15)
images = importlib.import_module("lab.protocols.identifiability_images")

EIGHT_BIT = np.random.default_rng(0).integers(256, size=(40, 1, 4, 4), dtype=np.uint8)
ALL = np.ones((1, 4, 4), bool)


def deviations_from_gray(drawn: np.ndarray, gray: np.ndarray) -> np.ndarray:
    """Mean of draws ``[S, ...]`` minus the gray value, in standard errors of a Bernoulli's mean."""
    error = np.sqrt(gray * (1 - gray) / len(drawn))
    return (drawn.mean(0) - gray) / np.where(error > 0, error, 1)


@pytest.mark.parametrize("scale", [1, 255])
def test_pixels_are_drawn_with_the_gray_value_as_mean_once_or_in_every_pass(scale: int) -> None:
    """4,000 draws of 16 gray values: within five standard errors, which are 0.008 at most; so a
    mean that is off by 0.05 would be found.
    """
    gray = np.linspace(0, 1, 16, dtype=np.float32).reshape(1, 4, 4)
    x = np.repeat((gray if scale == 1 else (255 * gray).round().astype(np.uint8))[None], 4000, 0)
    torch.manual_seed(0)
    loader = loader_of(x, batch_size=500)
    passes = [torch.cat([batch["x"] for batch in loader]).numpy() for _ in range(2)]
    for drawn in (binarized(x, seed=3), *passes):
        assert set(np.unique(drawn)) == {0, 1}
        assert np.abs(deviations_from_gray(drawn, x[0] / scale)).max() < 5
    np.testing.assert_array_equal(binarized(x, seed=3), binarized(x, seed=3))
    assert (binarized(x, seed=3) != binarized(x, seed=4)).any()
    assert (passes[0] != passes[1]).any()


def loader_of(
    x: np.ndarray, pixels: np.ndarray = ALL, batch_size: int = 16
) -> torch.utils.data.DataLoader:
    given = {"label": np.arange(len(x)) % 3}
    return drawn_anew(x, pixels, given, Settings(batch_size=batch_size))["x"]


def test_every_pass_has_each_image_once_with_its_label() -> None:
    x = np.zeros((40, 1, 4, 4), np.uint8)
    x[:, 0].reshape(40, 16)[np.arange(40), np.arange(40) % 3] = 255  # drawn as 1, the rest as 0
    batches = list(loader_of(x))
    assert [len(batch["x"]) for batch in batches] == [16, 16, 8]
    drawn, label = (torch.cat([batch[name] for batch in batches]) for name in ("x", "label"))
    assert torch.equal(drawn.flatten(1).argmax(1), label)
    assert drawn.sum() == 40
    assert not torch.equal(label, torch.arange(40) % 3), "in random order"


def test_pixels_that_vary_are_those_whose_deviation_is_above_the_threshold() -> None:
    """Authors' code: a deviation of 0.1 on the scale from 0 to 1, over the training images."""
    rng = np.random.default_rng(1)
    deviation = np.array([0.0, 0.05, 0.099, 0.101, 0.2, 0.3])
    x = rng.normal(size=(500, 1, 2, 3))
    x = (x - x.mean(0)) / x.std(0) * deviation.reshape(1, 1, 2, 3) + 0.5
    expected = np.array([False, False, False, True, True, True]).reshape(1, 2, 3)
    np.testing.assert_array_equal(varying_pixels(x, 0.1), expected)
    eight_bit = (255 * x.clip(0, 1)).round().astype(np.uint8)
    np.testing.assert_array_equal(varying_pixels(eight_bit, 0.15)[0, 1], [False, True, True])
    assert varying_pixels(x, 0.0).all()
    marked = left_out(eight_bit, expected)
    np.testing.assert_array_equal(np.isnan(marked).any(0), ~expected)
    np.testing.assert_allclose(marked[:, expected], eight_bit[:, expected] / 255, rtol=1e-6)


def test_pixels_left_out_are_in_no_likelihood() -> None:
    """The objective is that of the other pixels alone: the decoder's output for a pixel that is
    left out has no gradient.
    """
    pixels = ALL.copy()
    pixels[0, 0, :2] = False
    model = VaDE((1, 4, 4), GaussianMixture(3, 2), Incomplete(Bernoulli()), MLP((8,)), name="z")
    batch = next(iter(loader_of(EIGHT_BIT, pixels)))
    output = torch.zeros(len(batch["x"]), 1, 4, 4, requires_grad=True)
    density = model.likelihood(output, 3).log_prob(batch["x"])
    torch.testing.assert_close(density, torch.full_like(density, 14 * np.log(0.5)))
    density.sum().backward()
    assert torch.equal(output.grad[:, 0, 0, :2], torch.zeros(16, 2))
    assert (output.grad.flatten(1).abs() > 0).sum(1).eq(14).all()


def test_the_authors_start() -> None:
    """Means and log-variances Xavier-normal, of variance 2 / (d + K): the mean square of 4,000
    draws is within five of its standard errors, 2.2 %. Layers have a deviation of 0.1 on data.
    """
    authors = PROTOCOLS["authors"]
    torch.manual_seed(0)
    prior = GaussianMixture(40, 100)
    authors.prior(prior)
    for drawn in (prior.loc, 2 * prior.scale.log()):
        assert drawn.square().mean().item() == pytest.approx(2 / 140, rel=5 * (2 / 4000) ** 0.5)
        assert abs(drawn.mean().item()) < 5 * (2 / 140 / 4000) ** 0.5
    guide = MarginalGuide(
        VaDE((1, 4, 4), GaussianMixture(3, 2), Incomplete(Bernoulli()), MLP((8, 7)), name="z")
    )
    pixels = ALL.copy()
    pixels[0, 0, 0] = False
    x = left_out(EIGHT_BIT, pixels)
    authors.start(guide, x, {}, 0)
    found = []
    layers = [layer for layer in guide.encoder.modules() if isinstance(layer, nn.Linear)]
    hooks = [
        layer.register_forward_hook(lambda layer, given, output: found.append(output.std(0)))
        for layer in layers
    ]
    guide.posterior(x)
    assert len(hooks) == len(found) == 3
    # In evaluation nothing is dropped; the start was made in training mode.
    for deviation in found:
        torch.testing.assert_close(deviation, torch.full_like(deviation, 0.1), atol=0.03, rtol=0)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"lr": 5e-4, "num_components": 40, "least_deviation": 0.1}),
        (["--network", "convnet"], {"lr": 1e-4, "num_components": 40, "least_deviation": 0.0}),
        (["--network", "resnet"], {"least_deviation": 0.1, "dim": 50}),
        (["--dataset", "cifar-10"], {"lr": 5e-4, "num_components": 100, "least_deviation": 0.0}),
        (["--dataset", "svhn", "--network", "resnet"], {"lr": 2e-4, "num_components": 100}),
        (["--dim", "200", "--epochs", "7", "--seeds", "3"], {"dim": 200, "epochs": 7, "seeds": 3}),
        (["--smoke"], {"epochs": 2, "dim": 4, "lr": 5e-4, "least_deviation": 0.1}),
    ],
)
def test_the_authors_settings(flags: list[str], expected: dict[str, float]) -> None:
    """4.2: batches of 64, 200 epochs, 10 seeds, 40 components for MNIST and 100 for the others; the
    rates and the threshold are those of the authors' code.
    """
    args, settings = images.parse(["--protocol", "authors", *flags])
    assert args.models == ["VaDE", "iVAE, q(z|x)"]
    assert (settings.protocol, settings.batch_size) == ("authors", 64)
    assert {name: getattr(settings, name) for name in expected} == expected
    if not flags:
        assert (settings.epochs, settings.seeds, settings.dim) == (200, 10, 50)


def test_the_papers_protocol_is_what_it_was() -> None:
    args, settings = images.parse([])
    assert (args.models, settings) == (["VaDE", "iVAE"], Settings())
    _, grid = images.parse(["--protocol", "authors-grid"])
    assert (grid.epochs, grid.batch_size, grid.num_codes, grid.code_dim) == (400, 128, 128, 50)


def test_ivae_is_there_with_and_without_the_label_in_its_encoder() -> None:
    """Eq. 3 has q(z given x, u), the authors' code q(z given x). A hashed u (appendix C) replaces
    VaDE's q(u given x), in the factorization q(z given x) q(u given x).
    """
    settings = Settings(dim=2, hash_bits=2)
    reads = {
        name: images.MODELS[name]((1, 8, 8), Bernoulli(), settings, 0)[0].reads_label
        for name in ("iVAE", "iVAE, q(z|x)", "hashed u")
    }
    assert reads == {"iVAE": True, "iVAE, q(z|x)": False, "hashed u": False}


def test_both_measures_of_the_authors_are_computed() -> None:
    """Aligned, of 20 variates, and as they are; each in and out of sample."""
    latents = list(np.random.default_rng(0).normal(size=(3, 120, 21)))
    scores = images.compare(latents, places=1)
    assert {len(values) for values in scores.values()} == {3}
    assert set(PROTOCOLS["authors"].measures) <= set(scores)
    assert {"as they are, in sample", "as they are, out of sample"} <= set(scores)


def test_the_authors_runs_on_color_leave_latents_scores_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    shape = (3, 8, 8)
    x = rng.integers(256, size=(160, *shape), dtype=np.uint8)
    label = {"object": rng.integers(10, size=160)}
    drawn = Dataset("drawn", x, x[:80], label, {"object": label["object"][:80]}, shape)
    monkeypatch.setattr(images, "load_data", lambda name, args: drawn)
    monkeypatch.setattr(images, "DATASETS", (*images.DATASETS, "colors"))
    monkeypatch.setitem(STANDS_FOR, "colors", "cifar-10")
    flags = ["--protocol", "authors", "--dataset", "colors", "--models", "VaDE", "--smoke"]
    images.main([*flags, "--out", str(tmp_path / "run")])
    assert "median (mean)" in capsys.readouterr().out
    place = tmp_path / "run" / "VaDE"
    assert (place / "results.json").is_file()
    assert np.load(place / "seed-1" / "latents-2.npy").shape[0] == 80
    assert SVIRunner.load(place / "seed-0").epoch == 2
    assert {path.name for path in (tmp_path / "run" / "figures").iterdir()} == {
        "pairs.png",
        "training.png",
    }
