"""Architectures: what shapes they give and refuse, which facets see which levels, and how they start."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from guides import LadderGuide, VaDEGuide
from inference import Loss, SVIRunner, data_dependent_start
from ppl_models import MFCVAE, VLAC, ConvLadder, GaussianMixture, MLPLadder, Normal, SharedMLP, StandardNormal
from ppl_models.base import evaluating
from ppl_models.networks import Architecture


def facets(*dims: int) -> dict[str, StandardNormal]:
    return {f"z{j}": StandardNormal(d) for j, d in enumerate(dims)}


@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3)])
@pytest.mark.parametrize(
    ("recipe", "x_shape"),
    [
        (ConvLadder((4, 6)), (3, 16, 8)),
        (ConvLadder((4, 5, 6, 7), rungs=(1, 3)), (1, 32, 32)),
        (ConvLadder((4, 6), merge="gated_add", activation="relu"), (2, 8, 8)),
        (MLPLadder((4, 5, 6), rungs=(0, 2)), (2, 3)),
        (MLPLadder((4, 5, 6), merge="gated_add", rungs=(1, 2)), (7,)),
        (SharedMLP((4, 5)), (2, 3)),
    ],
    ids=repr,
)
def test_any_number_of_axes_is_a_batch(recipe: Architecture, x_shape: tuple[int, ...], batch: tuple[int, ...]) -> None:
    encoder, decoder = recipe.encoder(x_shape, (4, 6)).eval(), recipe.decoder(x_shape, (2, 3)).eval()
    assert [head.shape for head in encoder(torch.rand(*batch, *x_shape))] == [(*batch, 4), (*batch, 6)]
    z = [torch.randn(*batch, 2), torch.randn(*batch, 3)]
    assert decoder(z, torch.ones(2)).shape == (*batch, *x_shape)


def test_table_5s_sizes() -> None:
    """Table 5 on 32 x 32 x 3: layers, channels, kernels and strides as printed, but for what the docstring says."""
    recipe = ConvLadder((64, 128))
    encoder, decoder = recipe.encoder((3, 32, 32), (40, 4)), recipe.decoder((3, 32, 32), (20, 2))

    def convolutions(network: nn.Module) -> list[tuple[int, int, int, int]]:
        layers = [part for part in network.modules() if isinstance(part, nn.Conv2d | nn.ConvTranspose2d)]
        return [(part.in_channels, part.out_channels, part.kernel_size[0], part.stride[0]) for part in layers]

    assert convolutions(encoder.backbones) == [(3, 64, 4, 2), (64, 128, 4, 2)]
    assert convolutions(encoder.rungs) == [(64, 64, 4, 2), (64, 64, 4, 1), (128, 128, 4, 2), (128, 256, 4, 2)]
    heads = [rung[-1] for rung in encoder.rungs]
    assert [(head.in_features, head.out_features) for head in heads] == [(3136, 40), (1024, 4)]
    assert convolutions(decoder.backbones) == [(128, 3, 4, 2), (256, 128, 4, 2), (128, 64, 3, 1)]
    rungs = [part for part in decoder.rungs.modules() if isinstance(part, nn.Linear)]
    assert [(part.in_features, part.out_features) for part in rungs] == [(20, 16384), (2, 16384)]


def test_a_deep_latent_reaches_the_data_through_the_shallow_levels_only() -> None:
    """Cutting level 1 off cuts the deep facet off, and leaves the shallow one."""
    decoder = MLPLadder((8, 9)).decoder((5,), (2, 3))
    z = [torch.randn(4, 2, requires_grad=True), torch.randn(4, 3, requires_grad=True)]
    for parameter in decoder.backbones[1].parameters():
        parameter.data.zero_()
    decoder(z, torch.ones(2)).sum().backward()
    assert z[0].grad.any()
    assert not z[1].grad.any()


@pytest.mark.parametrize(("gates", "seen"), [((0.0, 1.0), [False, True]), ((1.0, 0.0), [True, False])])
def test_a_closed_gate_hides_its_facet(gates: tuple[float, float], seen: list[bool]) -> None:
    decoder = ConvLadder((4, 5)).decoder((1, 8, 8), (2, 3))
    z = [torch.randn(4, 2, requires_grad=True), torch.randn(4, 3, requires_grad=True)]
    decoder(z, torch.tensor(gates)).square().sum().backward()
    assert [bool(each.grad.any()) for each in z] == seen


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ConvLadder((4, 5)).encoder((64,), (4, 4)), "needs images"),
        (lambda: ConvLadder((4, 5)).encoder((1, 14, 16), (4, 4)), "divide by 4"),
        (lambda: ConvLadder((4, 5, 6)).decoder((1, 8, 8), (2, 2, 2)), "leave 2 or more"),
        (lambda: ConvLadder((4, 5)).decoder((1, 8, 8), (2,)), "2 rungs"),
        (lambda: MLPLadder((4, 5), rungs=(1, 0)), "from shallow to deep"),
        (lambda: MLPLadder((4, 5), rungs=(0, 2)), "of 0 to 1"),
        (lambda: MLPLadder((4, 5), rungs=()), "rungs are levels"),
        (lambda: SharedMLP((4, 5)).encoder((6,), (4, 4), (3, 0)), "use a ladder"),
        (lambda: LadderGuide(VLAC((6,), [2, 2], [1, 1], network=SharedMLP((4, 5)))), "use a ladder"),
    ],
)
def test_what_does_not_fit_is_refused(build: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()


def test_a_batch_of_one_trains() -> None:
    """5 rows in batches of 4 leave one, whose batch statistics at a level of 1 x 1 pixels do not exist."""
    model = MFCVAE((1, 4, 4), {"z": GaussianMixture(2, 2)}, Normal(0.3), ConvLadder((4,)))
    guide = VaDEGuide(model)
    runner = SVIRunner(model, guide).fit(torch.rand(5, 1, 4, 4), epochs=2, batch_size=4, progress=False)
    assert torch.isfinite(torch.tensor(runner.history[-1]["elbo"]))


def test_convolutions_lie_channels_last() -> None:
    for part in ConvLadder((4, 5)).encoder((3, 8, 8), (4, 4)).modules():
        if isinstance(part, nn.Conv2d):
            assert part.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "network", [ConvLadder((6, 8), init="glorot_normal"), MLPLadder((30, 40)), SharedMLP((30, 40))], ids=repr
)
def test_data_dependent_start_gives_every_layer_unit_variance(network: Architecture) -> None:
    """Krahenbuhl et al. (2016): measured layer by layer on the rows that it was done with."""
    torch.manual_seed(0)
    x = torch.rand(400, 3, 8, 8) * torch.rand(3, 1, 1) + torch.rand(3, 8, 8)
    model = MFCVAE((3, 8, 8), facets(2, 3), Normal(0.5), network)
    guide = VaDEGuide(model)
    data_dependent_start(guide, x, rows=400)
    measured = _output_moments(guide, x)
    assert len(measured) >= 7
    for mean, deviation in measured:
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=0.35, rtol=0)
        torch.testing.assert_close(deviation, torch.ones_like(deviation), atol=0.35, rtol=0)
    # The encoder sees the same rows, so there nothing but the order of sums differs; the decoder sees other draws.
    encoder = _output_moments(guide.encoder, x)
    for mean, deviation in encoder:
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-4, rtol=0)
        torch.testing.assert_close(deviation, torch.ones_like(deviation), atol=1e-4, rtol=0)
    # Batch normalisation starts from the same rows' statistics: evaluation gives what training gives.
    trained = encoder_means(guide, x)
    with evaluating(guide):
        for evaluated, mean in zip(encoder_means(guide, x), trained, strict=True):
            torch.testing.assert_close(evaluated, mean, atol=0.05, rtol=0.05)
    assert all(norm.momentum == 0.1 for norm in guide.modules() if isinstance(norm, nn.BatchNorm1d))


def test_data_dependent_start_keeps_directions_and_the_callers_randomness() -> None:
    guide = VaDEGuide(MFCVAE((6,), facets(2, 3), Normal(0.5), MLPLadder((7, 8))))
    before = guide.encoder.backbones[1][0].weight.detach().clone()
    x = torch.rand(30, 6)
    state = torch.random.get_rng_state()
    data_dependent_start(guide, x)
    assert torch.equal(torch.random.get_rng_state(), state)
    cosine = nn.functional.cosine_similarity(before, guide.encoder.backbones[1][0].weight.detach())
    torch.testing.assert_close(cosine, torch.ones(8))


def encoder_means(guide: VaDEGuide, x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [q.mean for q in guide.encode(x).values()]


def _output_moments(module: nn.Module, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Mean and deviation of each unit or channel of each layer's output, over rows (and pixels)."""
    moments = []

    def note(layer: nn.Module, inputs: object, output: Tensor) -> None:
        flat = output.movedim(1, -1).flatten(0, -2) if output.dim() == 4 else output.flatten(0, -2)
        moments.append((flat.mean(0).detach(), flat.std(0).detach()))

    layers = [part for part in module.modules() if isinstance(part, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    if isinstance(module, VaDEGuide):
        module.model.decode({name: q.sample() for name, q in module.encode(x).items()})
    else:
        module(x)
    for hook in hooks:
        hook.remove()
    return moments


def test_full_covariance_never_loses_its_cholesky_factor() -> None:
    """2,000 steps from the paper's initial values (variance 0.01, uniform weights) at ten times its rate."""
    torch.manual_seed(0)
    groups = torch.randn(5, 12)
    x = groups[torch.randint(5, (300,))] + 0.1 * torch.randn(300, 12)
    model = MFCVAE((12,), {"a": GaussianMixture(6, 4, "full", "uniform")}, Normal(0.6), MLPLadder((16,)))
    guide = VaDEGuide(model)
    runner = SVIRunner(model, guide, lr=3e-3).fit(x, epochs=200, batch_size=30, log_every=50, progress=False)
    assert runner.step == 2000
    factor = model.priors["a"].scale_tril
    assert factor.isfinite().all()
    torch.linalg.cholesky(factor @ factor.mT)
    assert not torch.allclose(factor.tril(-1), torch.zeros(()), atol=1e-3), "covariances stayed diagonal"
    assert Loss(model, guide)(x).isfinite()
