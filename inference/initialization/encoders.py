"""Posteriors of ML-VAE that are learned after the model: tables for new data, or an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from guides.base import EVALUATION_BATCH, check_guide
from guides.grouped import GroupedGuide, TableGuide
from inference.randomness import seeded
from inference.runner import SVIRunner
from inference.schedules import Constant
from ppl_models.base import FacetModel
from ppl_models.given.checks import check_count, check_seed, check_size
from ppl_models.mlvae import MLVAE
from ppl_models.modes import evaluating, temporarily


def infer_tables(
    model: MLVAE,
    x: ArrayLike | Tensor,
    group: ArrayLike | Tensor,
    epochs: int,
    lr: float = 0.05,
    seed: int = 0,
    **options: Any,
) -> TableGuide:
    """Find posteriors of new data under a fitted model by optimization, as SVI (ML-VAE, 3.2) does.

    :param model: the fitted model, which is not changed.
    :param x: ``[N, *x_shape]``.
    :param group: ``[N]``, integers; they are unrelated to the groups of the training data.
    :param seed: of the first tables and of training.
    :param options: of :meth:`SVIRunner.fit <inference.SVIRunner.fit>`, such as ``batch_size``.
    :returns: a guide for these rows.
    :raises ValueError: if data or groups do not fit.

    Example:
        >>> import numpy as np
        >>> from facetvae import MLVAE, SharedMLP, infer_tables
        >>> model = MLVAE((6,), content_dim=2, style_dim=1, network=SharedMLP((8,)))
        >>> x, group = np.random.default_rng(0).random((4, 6)), [0, 0, 1, 1]
        >>> guide = infer_tables(model, x, group, epochs=2, progress=False)
        >>> {name: z.shape for name, z in guide.embed(x, group=group).items()}
        {'style': (4, 1), 'content': (4, 2)}
    """
    with seeded(check_seed("seed", seed), torch.device("cpu")):
        guide = TableGuide(model, group).to(model.gates.dtype)
    with frozen(model):
        SVIRunner(model, guide, lr=lr, seed=seed).fit(x, epochs, group=group, **options)
    return guide


def learn_to_encode(
    guide: GroupedGuide, num_data: int, epochs: int, lr: float = 1e-3, seed: int = 0, **options: Any
) -> None:
    """Train a guide's encoder on data of its model: SVI-Encode (ML-VAE, supplement 8, Eq. 17).

    The data are drawn from the model, each row a group of its own, and the encoder maximizes the
    likelihood given its latents, without their KL terms. No real data are needed.

    :param guide: the guide to train; its model is not changed.
    :param num_data: how many data are drawn, once.
    :param seed: of these draws and of training.
    :param options: options of :meth:`SVIRunner.fit <inference.SVIRunner.fit>`.
    :raises ValueError: if a number is below 1.

    Example:
        >>> from facetvae import MLVAE, GroupedGuide, SharedMLP, learn_to_encode
        >>> model = MLVAE((6,), content_dim=2, style_dim=1, network=SharedMLP((8,)))
        >>> learn_to_encode(GroupedGuide(model), num_data=50, epochs=2, progress=False)
    """
    check_guide(guide, GroupedGuide)
    check_count("epochs", epochs)
    model = guide.model
    ids = torch.arange(check_size("num_data", num_data))
    with seeded(seed, model.gates.device), torch.no_grad(), evaluating(model):
        z = {name: prior.sample(num_data) for name, prior in model.priors.items()}
        parts = ids.split(EVALUATION_BATCH)
        batches = ({name: latent[rows] for name, latent in z.items()} for rows in parts)
        x = torch.cat([model.decode(batch).sample() for batch in batches])
        x = x.clamp(*model.likelihood.support)
    with frozen(model):
        runner = SVIRunner(model, guide, lr=lr, schedule=Constant(0.0), seed=seed)
        runner.fit(x, epochs, group=ids, **options)


@contextmanager
def frozen(model: FacetModel) -> Iterator[None]:
    """Within this context the model is in evaluation mode and does not change."""
    learning = [p for p in model.parameters() if p.requires_grad]
    for p in learning:
        p.requires_grad_(False)
    with evaluating(model), temporarily(model, gates=model.gates):
        model.train = lambda mode=True: model  # type: ignore[method-assign]
        try:
            yield
        finally:
            del model.train
            for p in learning:
                p.requires_grad_(True)
