"""Starting values of the networks, scaled by their outputs on data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from guides.base import FacetGuide, check_guide
from inference.randomness import seeded
from ppl_models.given.checks import check_count, check_positive
from ppl_models.modes import temporarily, training
from ppl_models.networks.flows import FlowDecoder


@torch.no_grad()
def data_dependent_start(
    guide: FacetGuide,
    x: ArrayLike | Tensor,
    rows: int = 512,
    seed: int = 0,
    deviation: float = 1.0,
    **given: Any,
) -> None:
    """Scale all layers so that outputs on data have mean 0 and variance 1, or another deviation.

    The within-layer step of Krahenbuhl et al., *Data-dependent Initializations of Convolutional
    Neural Networks* (2016), which MFCVAE's D.4 uses for convolutional ladders; their second step,
    between layers, is left out. The directions of the weights stay as they were drawn; each unit
    (or channel) is shifted by its mean and divided by its deviation, layer by layer in one pass.
    Batch normalization starts from the statistics of the same rows.

    :param x: ``[N, *x_shape]``, at least two rows.
    :param rows: number of rows of ``x``, chosen at random, to compute the statistics from.
    :param seed: of this choice and of the draws of z that the decoder sees.
    :param deviation: standard deviation of every unit's output, before its activation.
    :param given: inputs of the model other than x, one entry per datum.
    :raises ValueError: if the model is a flow, ``x`` does not fit it, fewer than two rows are
        requested or given, or ``deviation`` is not positive.

    Example:
        >>> import numpy as np
        >>> from facetvae import VAE, SharedMLP, VaDEGuide, data_dependent_start
        >>> guide = VaDEGuide(VAE((6,), 2, network=SharedMLP((8,))))
        >>> data_dependent_start(guide, np.random.default_rng(0).random((20, 6)))
    """
    check_guide(guide)
    model = guide.model
    if isinstance(model.decoder, FlowDecoder):
        raise ValueError(
            "a flow's layers are called once for each coordinate, and its outputs on data are z: "
            "train it from where it starts"
        )
    data = guide.observed(x, given)
    check_positive("deviation", deviation)
    if min(check_count("rows", rows), len(data)) < 2:
        raise ValueError(f"a variance needs two rows or more: got rows={rows} of {len(data)} data")
    with seeded(seed, model.gates.device):
        batch = data.to(model.gates.device)[torch.randperm(len(data))[:rows].to(model.gates.device)]
        with training(guide), _scaled_to_outputs(guide, deviation):
            heads = guide.encoder_output(batch.x, **batch.given)
            z = {name: guide.latent_posterior(name, head).sample() for name, head in heads.items()}
            beside = {name: batch.given[name] for name in model.decodes if name in batch.given}
            model.decode(z, **beside, **model.draw_clusters(z))


@contextmanager
def _scaled_to_outputs(guide: FacetGuide, wanted: float) -> Iterator[None]:
    """Within this context each layer that is called is scaled to outputs of this deviation."""
    of_flows = set(guide.layers.modules())
    parts = [part for part in guide.modules() if part not in of_flows]
    layers = [p for p in parts if isinstance(p, nn.Linear | nn.Conv2d | nn.ConvTranspose2d)]
    norms = [part for part in parts if isinstance(part, nn.BatchNorm1d)]
    with ExitStack() as until:
        for norm in norms:  # running statistics become those of the batch
            until.enter_context(temporarily(norm, momentum=1.0))
        for layer in layers:
            if layer.bias is not None:
                hook = layer.register_forward_hook(partial(_scale_to_output, wanted))
                until.callback(hook.remove)
        yield


def _scale_to_output(wanted: float, layer: Any, inputs: Any, output: Tensor) -> Tensor:
    """Scale the layer so that each unit has mean 0 and this deviation; returns its new output."""
    images = isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)
    flat = output.transpose(1, -1) if images else output  # [..., units]
    mean = flat.flatten(0, -2).mean(0)
    deviation = flat.flatten(0, -2).std(0)
    # A constant unit is only shifted, and scaled as the others.
    deviation = torch.where(deviation > 1e-6 * deviation.max(), deviation, 1.0) / wanted
    unit_axis = 1 if isinstance(layer, nn.ConvTranspose2d) else 0
    layer.bias.sub_(mean).div_(deviation)
    axes = [-1 if axis == unit_axis else 1 for axis in range(layer.weight.dim())]
    weight = layer.weight / deviation.view(axes)
    if is_parametrized(layer):
        layer.weight = weight  # the parametrization splits it into its parts
    else:
        layer.weight.copy_(weight)
    scaled = (flat - mean) / deviation
    return scaled.transpose(1, -1) if images else scaled
