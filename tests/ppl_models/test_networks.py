"""Architectures: what shapes they give and refuse, which facets see which levels, and how they
start.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from guides import VaDEGuide
from inference import SVIRunner, data_dependent_start
from ppl_models import (
    MFCVAE,
    MLP,
    ConvLadder,
    ConvNet,
    GaussianMixture,
    MLPLadder,
    Normal,
    ResNet,
    SharedMLP,
    StandardNormal,
)
from ppl_models.modes import evaluating
from ppl_models.networks import Architecture, Ladder
from ppl_models.networks.images import _Block


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
        (MLPLadder((4, 5, 6), rungs=(1, 2), layers_after_merge=2), (7,)),
        (ConvLadder((4, 6), layers_after_merge=1), (2, 8, 8)),
        (SharedMLP((4, 5)), (2, 3)),
        (MLP((4, 5, 6)), (2, 3)),
        (MLP((4, 5, 6), skip=True), (2, 3)),
        (ConvNet((3, 4, 5, 6), hidden=7), (2, 12, 8)),
        (ResNet((3, 4, 5, 6)), (1, 7, 9)),
    ],
    ids=repr,
)
def test_any_number_of_axes_is_a_batch(
    recipe: Architecture, x_shape: tuple[int, ...], batch: tuple[int, ...]
) -> None:
    encoder, decoder = (
        recipe.encoder(x_shape, (4, 6)).eval(),
        recipe.decoder(x_shape, (2, 3)).eval(),
    )
    assert [head.shape for head in encoder(torch.rand(*batch, *x_shape))] == [
        (*batch, 4),
        (*batch, 6),
    ]
    z = [torch.randn(*batch, 2), torch.randn(*batch, 3)]
    assert decoder(z, torch.ones(2)).shape == (*batch, *x_shape)


def test_table_5s_sizes() -> None:
    """Table 5 on 32 x 32 x 3, as printed, but for what the docstring says."""
    recipe = ConvLadder((64, 128))
    encoder, decoder = recipe.encoder((3, 32, 32), (40, 4)), recipe.decoder((3, 32, 32), (20, 2))

    def convolutions(network: nn.Module) -> list[tuple[int, int, int, int]]:
        return [
            (part.in_channels, part.out_channels, part.kernel_size[0], part.stride[0])
            for part in layers(network, nn.Conv2d, nn.ConvTranspose2d)
        ]

    assert convolutions(encoder.backbones) == [(3, 64, 4, 2), (64, 128, 4, 2)]
    assert convolutions(encoder.rungs) == [
        (64, 64, 4, 2),
        (64, 64, 4, 1),
        (128, 128, 4, 2),
        (128, 256, 4, 2),
    ]
    assert linear_layers(encoder.rungs) == [(3136, 40), (1024, 4)]
    assert convolutions(decoder.backbones) == [(128, 3, 4, 2), (256, 128, 4, 2), (128, 64, 3, 1)]
    assert linear_layers(decoder.rungs) == [(20, 16384), (2, 16384)]


def layers(network: nn.Module, *kinds: type[nn.Module]) -> list[nn.Module]:
    """In the order in which they are built."""
    return [module for module in network.modules() if isinstance(module, kinds)]


def linear_layers(network: nn.Module) -> list[tuple[int, int]]:
    """``(inputs, outputs)`` of each."""
    return [(layer.in_features, layer.out_features) for layer in layers(network, nn.Linear)]


def test_eq_79s_decoder_and_that_of_the_authors() -> None:
    """Eq. 79: ``[z_2's features, z_1's] -> x``. The authors' backbone on MNIST is the list 500,
    merge, 500 of widths: the module that they build has a layer of 500 x 500 after the merge.
    """
    papers = MLPLadder().decoder((784,), (5, 5))
    authors = MLPLadder(merge="gated_add", layers_after_merge=1).decoder((784,), (5, 5))
    assert linear_layers(papers.backbones) == [(1000, 784), (2000, 500)]
    assert linear_layers(authors.backbones) == [(500, 500), (500, 784), (2000, 500)]
    for decoder in (papers, authors):
        assert linear_layers(decoder.rungs) == [(5, 500), (5, 2000)]


def test_the_authors_decoder_is_what_it_says() -> None:
    """Written out: the rung enters by a tenth, then a ReLU layer, then the data."""
    decoder = MLPLadder((8, 9), merge="gated_add", layers_after_merge=1).decoder((6,), (2, 3))
    weights, z = decoder.state_dict(), [torch.randn(4, 2), torch.randn(4, 3)]

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].mT + weights[f"{name}.bias"]

    upper = linear("backbones.1.0", linear("rungs.1.0", z[1]).relu()).relu()
    joined = upper + 0.1 * linear("rungs.0.0", z[0]).relu()
    x = linear("backbones.0.1.0", linear("backbones.0.0.0", joined).relu())
    torch.testing.assert_close(decoder(z, torch.ones(2)), x)


@pytest.mark.parametrize(("merge", "joined"), [("concatenate", 2), ("gated_add", 1)])
def test_layers_follow_each_merge_and_nothing_else(merge: str, joined: int) -> None:
    """Four levels with facets on three: the deepest joins nothing, and so does level 2."""
    ladder = MLPLadder((4, 5, 6, 7), merge=merge, rungs=(0, 1, 3), layers_after_merge=2)
    shallow, middle, deep = map(linear_layers, ladder.decoder((3,), (2, 2, 2)).backbones)
    assert shallow == [(4 * joined, 4), (4, 4), (4, 3)]
    assert middle == [(5 * joined, 5), (5, 5), (5, 4)]
    assert deep == [(7, 6), (6, 5)]


@pytest.mark.parametrize(
    ("gates", "seen"), [((0.0, 1.0), [False, True]), ((1.0, 0.0), [True, False])]
)
def test_a_closed_gate_hides_its_facet(gates: tuple[float, float], seen: list[bool]) -> None:
    decoder = ConvLadder((4, 5)).decoder((1, 8, 8), (2, 3))
    z = [torch.randn(4, 2, requires_grad=True), torch.randn(4, 3, requires_grad=True)]
    decoder(z, torch.tensor(gates)).square().sum().backward()
    assert [bool(each.grad.any()) for each in z] == seen


def test_a_batch_of_one_trains() -> None:
    """5 rows in batches of 4 leave one, which has no batch statistics at 1 x 1 pixels."""
    model = MFCVAE((1, 4, 4), {"z": GaussianMixture(2, 2)}, Normal(0.3), ConvLadder((4,)))
    guide = VaDEGuide(model)
    runner = SVIRunner(model, guide).fit(
        torch.rand(5, 1, 4, 4), epochs=2, batch_size=4, progress=False
    )
    assert torch.isfinite(torch.tensor(runner.history[-1]["elbo"]))


def test_convolutions_lie_channels_last() -> None:
    for part in ConvLadder((4, 5)).encoder((3, 8, 8), (4, 4)).modules():
        if isinstance(part, nn.Conv2d):
            assert part.weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "network",
    [ConvLadder((6, 8), init="glorot_normal"), MLPLadder((30, 40)), SharedMLP((30, 40))],
    ids=repr,
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
    # The encoder sees the same rows, so there nothing but the order of sums differs; the decoder
    # sees other draws.
    encoder = _output_moments(guide.encoder, x)
    for mean, deviation in encoder:
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-4, rtol=0)
        torch.testing.assert_close(deviation, torch.ones_like(deviation), atol=1e-4, rtol=0)
    # Batch normalization starts from the same rows' statistics: evaluation gives what training
    # gives.
    trained = encoder_means(guide, x)
    with evaluating(guide):
        torch.testing.assert_close(encoder_means(guide, x), trained, atol=0.05, rtol=0.05)
    assert all(norm.momentum == 0.1 for norm in guide.modules() if isinstance(norm, nn.BatchNorm1d))


def test_data_dependent_start_gives_every_layer_the_deviation_that_is_asked_for() -> None:
    torch.manual_seed(0)
    x = torch.rand(300, 6)
    guide = VaDEGuide(MFCVAE((6,), facets(2, 3), Normal(0.5), MLPLadder((7, 8))))
    data_dependent_start(guide, x, deviation=0.1)
    for mean, deviation in _output_moments(guide.encoder, x):
        torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-4, rtol=0)
        torch.testing.assert_close(deviation, torch.full_like(deviation, 0.1), atol=1e-4, rtol=0)


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

    noted = layers(module, nn.Linear, nn.Conv2d, nn.ConvTranspose2d)
    hooks = [layer.register_forward_hook(note) for layer in noted]
    if isinstance(module, VaDEGuide):
        module.model.decode({name: q.sample() for name, q in module.encode(x).items()})
    else:
        module(x)
    for hook in hooks:
        hook.remove()
    return moments


def test_the_mlp_is_that_of_table_a_2() -> None:
    encoder, decoder = MLP().encoder((1, 28, 28), [100]), MLP().decoder((1, 28, 28), [50])
    sizes = [(784, 512), (512, 384), (384, 256), (256, 256), (256, 100)]
    assert linear_layers(encoder) == sizes
    assert linear_layers(decoder) == [(50, 256), (256, 256), (256, 384), (384, 512), (512, 784)]
    for network in (encoder, decoder):
        kinds = [
            type(layer).__name__ for layer in layers(network, nn.Linear, nn.LeakyReLU, nn.Dropout)
        ]
        assert kinds == ["Linear", "LeakyReLU"] * 2 + ["Dropout"] + ["Linear", "LeakyReLU"] * 2 + [
            "Linear"
        ]
        assert {layer.negative_slope for layer in layers(network, nn.LeakyReLU)} == {0.1}
        assert [layer.p for layer in layers(network, nn.Dropout)] == [0.1]


@pytest.mark.parametrize("x_shape", [(1, 28, 28), (3, 32, 32)])
def test_the_convnet_is_that_of_table_a_3(x_shape: tuple[int, ...]) -> None:
    channels, w = x_shape[0], x_shape[1]
    encoder, decoder = ConvNet().encoder(x_shape, [100]), ConvNet().decoder(x_shape, [50])
    shapes = [tuple(layer.weight.shape) for layer in layers(encoder, nn.Conv2d, nn.Linear)]
    assert shapes == [
        (8, channels, 3, 3),
        (16, 8, 3, 3),
        (32, 16, 3, 3),
        (64, 32, 3, 3),
        (64, 64, w // 4, w // 4),
        (64, 64),
        (100, 64),
    ]
    assert len(layers(encoder, nn.MaxPool2d)) == 2
    shapes = [
        tuple(layer.weight.shape)
        for layer in layers(decoder, nn.Conv2d, nn.ConvTranspose2d, nn.Linear)
    ]
    assert shapes == [
        (64, 50),
        (64, 64),
        (64, 64, w // 4, w // 4),
        (64, 32, 4, 4),
        (32, 16, 3, 3),
        (16, 8, 4, 4),
        (channels, 8, 3, 3),
    ]
    kinds = [
        type(layer).__name__
        for layer in layers(decoder, nn.Linear, nn.LeakyReLU, nn.ConvTranspose2d, nn.ELU)
    ]
    assert kinds == ["Linear", "LeakyReLU", "Linear"] + ["ConvTranspose2d", "ELU"] * 4


@pytest.mark.parametrize(
    ("x_shape", "sides"), [((1, 28, 28), (28, 14, 7, 4, 2, 1)), ((3, 32, 32), (32, 16, 8, 4, 2, 1))]
)
def test_the_resnet_is_that_of_table_a_4(x_shape: tuple[int, ...], sides: tuple[int, ...]) -> None:
    encoder, decoder = ResNet().encoder(x_shape, [100]), ResNet().decoder(x_shape, [50])
    seen: dict[str, list[tuple[int, ...]]] = {"in": [], "out": []}
    for key, network in (("in", encoder), ("out", decoder)):
        for block in layers(network, _Block):
            block.register_forward_hook(
                lambda _, args, out, key=key: seen[key].append(tuple(out.shape[1:]))
            )
    encoder(torch.rand(2, *x_shape))
    decoder([torch.randn(2, 50)], torch.ones(1))
    widths = (16, 32, 64, 128, 256, 512)
    assert seen["in"] == [(w, side, side) for w, side in zip(widths[1:], sides[1:], strict=True)]
    assert seen["out"] == [
        (w, side, side) for w, side in zip(widths[-2::-1], sides[-2::-1], strict=True)
    ]


def test_weights_are_normalized_and_start_as_they_are_drawn() -> None:
    """A weight is its length times its direction, so the gradient by the direction is across it."""
    torch.manual_seed(0)
    network = ResNet((4, 5, 6), init="glorot_normal")
    convolution = network.encoder((1, 8, 8), [4]).trunk[1].first
    assert set(dict(convolution.named_parameters())) == {
        "bias",
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
    }
    assert float(convolution.weight.detach().std()) == pytest.approx(
        (2 / ((4 + 5) * 9)) ** 0.5, rel=0.2
    )  # Glorot's
    assert not convolution.bias.any()
    convolution(torch.rand(2, 4, 8, 8)).square().sum().backward()
    direction = convolution.parametrizations.weight.original1
    across = (direction * direction.grad).flatten(1).sum(1) / (
        direction.norm() * direction.grad.norm()
    )
    assert across.abs().max() < 1e-6


@pytest.mark.parametrize(
    ("network", "images"), [(MLP((8,)), False), (ConvNet((4, 5)), True), (ResNet((4, 5)), True)]
)
def test_labels_are_planes_only_where_images_are_read(network: Architecture, images: bool) -> None:
    x, features = torch.rand(3, 2, 4, 4), torch.rand(3, 5)
    joined = network.join(x, features)
    assert joined.shape[1:] == ((7, 4, 4) if images else (37,))
    if images:
        assert torch.equal(joined[:, 2:, 1, 3], features)
    else:
        assert torch.equal(joined[:, 32:], features)


def test_a_ladder_of_ones_own_needs_no_layer_after_the_merge() -> None:
    """Unless it is asked for one; it is then named."""
    parts = {name: getattr(MLPLadder, name) for name in ("up", "head", "rung", "down")}
    own = type("Own", (Ladder,), parts)
    decoder = own((8, 9)).decoder((6,), (2, 3))
    assert decoder([torch.zeros(4, 2), torch.zeros(4, 3)], torch.ones(2)).shape == (4, 6)
    with pytest.raises(NotImplementedError, match="Own has no layer for layers_after_merge=1"):
        own((8, 9), layers_after_merge=1).decoder((6,), (2, 3))


def test_dropout_of_an_mlp_is_between_its_hidden_units() -> None:
    """Not of the data, of the latents or of what is decoded, however few layers there are."""
    for widths in ((8,), (8, 9), (8, 9, 10, 11)):
        network = MLP(widths, dropout=0.5)
        for part in (network.features((6,))[0], network.picture(2, (6,))):
            kinds = [type(each).__name__ for each in part if not isinstance(each, nn.Flatten)]
            assert kinds.index("Dropout") > 0, kinds
