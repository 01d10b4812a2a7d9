"""VaDE's pre-training: an autoencoder's weights."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from guides import FacetGuide, MarginalGuide, PointGuide, VaDEGuide
from inference import SVIRunner
from inference.randomness import seeded
from ppl_models import MFCVAE, Bernoulli, ContinuousBernoulli, Flat, Normal
from ppl_models.given.checks import check_kind, check_seed
from ppl_models.likelihood_base import Likelihood, rebuilt


def autoencoder_start(
    guide: FacetGuide,
    x: ArrayLike | Tensor,
    epochs: int,
    lr: float = 5e-4,
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: str = "float32",
    **fit_options: Any,
) -> None:
    """Train the networks as a deterministic autoencoder, by least squares: VaDE's pre-training
    (MFCVAE, D.5).

    The encoder's posterior means and the decoder take the weights of an autoencoder of the same
    architecture; posterior variances stay as they were drawn. Mixtures are not touched: fit them to
    the new latents with :func:`~inference.fit_mixtures`, as VaDE does.

    VaDE pre-trains in two stages. This is the second, of the whole network; the first, which trains
    one layer after another as a denoising autoencoder, is left out.

    :param guide: a ``VaDEGuide`` or ``MarginalGuide``.
    :param x: ``[N, *x_shape]``.
    :param lr: Adam's rate.
    :param seed: of the autoencoder's first weights and of the order of the data.
    :param device: where to train; by default the model's device.
    :param precision: of the networks, ``"float32"`` or ``"bf16"``.
    :param fit_options: for :meth:`~inference.runner.SVIRunner.fit`, such as ``batch_size`` and
        ``checkpoints``.
    :raises ValueError: if guide or likelihood is of another kind, or an argument does not fit.
    """
    check_kind("guide", guide, (VaDEGuide, MarginalGuide), "a VaDEGuide or a MarginalGuide")
    model = guide.model
    if len(guide.layers):
        raise ValueError(
            f"an autoencoder gives means of Normals, which {guide.family!r} would transform: start "
            "with family=Diagonal() or FullCovariance()"
        )
    with seeded(check_seed("seed", seed), torch.device("cpu")):
        flat = {name: Flat(prior.dim) for name, prior in model.priors.items()}
        likelihood = _least_squares(model.likelihood)
        autoencoder = MFCVAE(model.x_shape, flat, likelihood, model.network)
        points = PointGuide(autoencoder)
    device = model.gates.device if device is None else device
    runner = SVIRunner(autoencoder, points, lr=lr, seed=seed, device=device, precision=precision)
    runner.fit(x, epochs, **fit_options)
    _copy_weights(autoencoder.decoder, model.decoder)
    _copy_weights(points.encoder, guide.encoder)


def _least_squares(likelihood: Likelihood) -> Likelihood:
    """A Normal that reads the decoder's output as ``likelihood`` does, with minus the squared
    distance as its log-density, but for a constant.

    :raises ValueError: if the decoder's output is more than a mean.
    """
    if not isinstance(likelihood, Bernoulli | ContinuousBernoulli | Normal):
        raise ValueError(
            "an autoencoder is trained by least squares, so that the decoder must give a mean "
            f"alone, and not what {likelihood} needs: give the model a Bernoulli(), "
            "ContinuousBernoulli() or Normal(0.3)"
        )
    if isinstance(likelihood, Normal):
        unit = float(likelihood.unit) if likelihood.located else 1.0
        return rebuilt(likelihood, scale=0.5**0.5 * unit, learned=False)
    return Normal(0.5**0.5, bounded=True)


@torch.no_grad()
def _copy_weights(trained: nn.Module, network: nn.Module) -> None:
    """Copy by name; of a head for means and variances, the means, which come first."""
    into = network.state_dict()
    for name, value in trained.state_dict().items():
        part = into[name][: len(value)] if value.dim() else into[name]
        part.copy_(value)
