"""Starting values of the mixtures: the paper's cold start, and a warm start for small data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from numpy.typing import ArrayLike
from sklearn.mixture import GaussianMixture as FittedMixture
from torch import Tensor

from guides.base import FacetGuide
from inference.randomness import seeded
from inference.runner import SVIRunner
from ppl_models.base import FacetModel
from ppl_models.data import as_data
from ppl_models.priors import GaussianMixture, StandardNormal

__all__ = ["cold_start", "fit_mixtures", "standard_normal_priors", "warm_start"]


def cold_start(guide: FacetGuide, x: ArrayLike | Tensor, max_rows: int = 20_000, seed: int = 0) -> None:
    """Place every mixture's means before any training (MFCVAE, D.4).

    A Gaussian mixture (scikit-learn's) is fitted to draws of z from the untrained encoder; only its means are taken,
    covariances and weights stay as the prior was built with.

    :param x: ``[N, *x_shape]``, with at least as many rows as the largest mixture has components.
    :param max_rows: rows of ``x`` used at most, chosen at random; the paper uses all.
    :param seed: of that choice, of the draws and of the fit.
    :raises ValueError: if ``x`` does not fit the model or has too few rows.
    """
    with seeded(seed, guide.model.gates.device):
        rows = _some_rows(x, guide.model, max_rows)
        draws = {name: q.sample().cpu() for name, q in guide.posterior(rows).items()}
    for name, prior in _gaussian_mixtures(guide.model).items():
        fitted = FittedMixture(prior.num_components, covariance_type="diag", random_state=seed).fit(draws[name].numpy())
        prior.initialize(loc=torch.as_tensor(fitted.means_))


def fit_mixtures(
    guide: FacetGuide, x: ArrayLike | Tensor, max_rows: int = 20_000, seed: int = 0, **options: Any
) -> None:
    """Fit every mixture to the posterior means of ``x``: means, covariances and weights.

    :param x: ``[N, *x_shape]``, with at least as many rows as the largest mixture has components.
    :param max_rows: rows of ``x`` used at most, chosen at random.
    :param seed: of that choice and of the fit.
    :raises ValueError: if ``x`` does not fit the model or has too few rows.
    :param options: for scikit-learn's ``GaussianMixture``, such as ``n_init``.
    """
    with seeded(seed, guide.model.gates.device):
        means = guide.embed(_some_rows(x, guide.model, max_rows))
    for name, prior in _gaussian_mixtures(guide.model).items():
        fitted = FittedMixture(
            prior.num_components, covariance_type=prior.covariance, random_state=seed, **options
        ).fit(means[name])
        covariances = torch.as_tensor(fitted.covariances_)
        prior.initialize(
            loc=torch.as_tensor(fitted.means_),
            covariances=covariances if prior.covariance == "full" else torch.diag_embed(covariances),
            weights=torch.as_tensor(fitted.weights_),
        )


def warm_start(
    runner: SVIRunner, x: ArrayLike | Tensor, epochs: int, seed: int = 0, restarts: int = 10, **fit_options: Any
) -> SVIRunner:
    """Train first with a standard normal in every mixture's place, then fit the mixtures to what was learned.

    On a few thousand data a mixture that is trained from the start collapses into one cluster; it does not if the
    latent space has taken shape before.

    :param runner: how to train: its guide, rate, schedule and seed.
    :param restarts: fits of each mixture, of which the likeliest is taken.
    :param fit_options: for :meth:`~inference.runner.SVIRunner.fit`, such as ``batch_size``.
    :returns: the runner, whose guide holds the model with its mixtures set.
    """
    with standard_normal_priors(runner.model):
        runner.fit(x, epochs, **fit_options)
    fit_mixtures(runner.guide, x, seed=seed, n_init=restarts)
    return runner


@contextmanager
def standard_normal_priors(model: FacetModel) -> Iterator[None]:
    """Within this context every mixture facet of ``model`` has a standard normal prior instead."""
    kept = _gaussian_mixtures(model)
    for name, prior in kept.items():
        model.facets[name] = StandardNormal(prior.dim).to(prior.loc)
    try:
        yield
    finally:
        for name, prior in kept.items():
            model.facets[name] = prior


def _gaussian_mixtures(model: FacetModel) -> dict[str, GaussianMixture]:
    return {name: prior for name, prior in model.priors.items() if isinstance(prior, GaussianMixture)}


def _some_rows(x: ArrayLike | Tensor, model: FacetModel, max_rows: int) -> Tensor:
    data = as_data(x, model)
    return data[torch.randperm(len(data))[:max_rows].to(data.device)]
