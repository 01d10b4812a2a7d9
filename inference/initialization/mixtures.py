"""Starting values of the mixtures: the paper's cold start, and a warm start for small data sets."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as FittedMixture
from threadpoolctl import threadpool_limits
from torch import Tensor

from guides.amortized import NetworkGuide
from guides.base import FacetGuide, check_guide, check_model
from inference.randomness import seeded
from inference.runner import SVIRunner
from ppl_models import Mixture, StandardNormal
from ppl_models.base import FacetModel
from ppl_models.given.checks import check_count, check_kind, check_one_of
from ppl_models.given.observed import Observed
from ppl_models.given.sparse import SparseRows
from ppl_models.modes import evaluating, training
from ppl_models.priors.base import Data
from ppl_models.turns import yield_lock

# In which clusters are taught: steps and passes over the data, at most, and rows of a step.
STEPS, PASSES, BATCH_SIZE = 400, 100, 256


def cold_start(
    guide: FacetGuide,
    x: ArrayLike | Tensor,
    max_rows: int | None = None,
    seed: int = 0,
    fit_to: str = "means",
) -> None:
    """Set mixtures' means before training (MFCVAE, D.4); a VampPrior gets the data nearest to them.

    A Gaussian mixture (scikit-learn's) is fitted to the latents that the untrained encoder gives.
    Only its means are used; covariances and weights stay as they are.

    The paper says that these latents are sampled from q(z given x). The authors' code fits to
    posterior means, of all training data, and so does the default here. It matters: an untrained
    posterior is far wider than the spread of its means, so that means fitted to draws lie as far
    apart as the draws do, while the data, whose clusters are read at the posterior means, all lie
    between them. On MNIST (Table 3's sizes, before the first step) the data use all 25 clusters of
    a facet after a fit to means, and effectively one to three after a fit to draws.

    :param x: ``[N, *x_shape]``, with at least as many rows as the largest mixture has components.
    :param max_rows: most rows of ``x`` to use, chosen at random; by default all, as in the paper.
    :param seed: of the choice of rows, the draws and the fit.
    :param fit_to: ``"means"`` of the posteriors, or one draw of each (``"draws"``).
    :raises ValueError: if ``x`` does not fit or has too few rows, or ``fit_to`` is unknown.

    Example:
        >>> import numpy as np
        >>> from facetvae import GaussianMixture, SharedMLP, VaDE, VaDEGuide, cold_start
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> before = model.mixtures["cluster"].loc.clone()
        >>> cold_start(VaDEGuide(model), np.random.default_rng(0).random((20, 6)))
        >>> bool((model.mixtures["cluster"].loc == before).all())
        False
    """
    check_guide(guide)
    drawn = check_one_of("fit_to", fit_to, ("means", "draws")) == "draws"
    _check_clusters_are_inferred(guide.model)
    with seeded(seed, guide.model.gates.device):
        rows, _ = _some_rows(x, guide, max_rows)
        check_enough(rows.x, guide.model.mixtures)
        posterior = guide.posterior(rows.x)
        latents = {name: q.sample() if drawn else q.mean for name, q in posterior.items()}
    for name, prior in guide.model.mixtures.items():
        fitted = _fitted(prior, latents[name], "diag", seed)
        prior.place(torch.as_tensor(fitted.means_), data=_data(guide, prior, rows, latents[name]))


def fit_mixtures(
    guide: FacetGuide,
    x: ArrayLike | Tensor,
    max_rows: int = 20_000,
    seed: int = 0,
    facets: Sequence[str] | None = None,
    label: Any = None,
    **options: Any,
) -> None:
    """Fit every mixture to the posteriors of ``x``: means, covariances and weights.

    Clusters are found among the posterior means (scikit-learn's mixture). The mean of its data's
    posterior variances is added to each component's covariance: this maximizes the ELBO, given
    these clusters. So a coordinate of the latents that the data do not use keeps its posterior's
    width. Of posteriors with full covariances only the variances count. Components of full
    covariance start with one in common if BIC prefers it.

    A VampPrior takes the data nearest to the fitted means as its pseudo-inputs, and the weights. A
    guide with a network for q(c given x) is then trained on the responsibilities, while its latents
    stay (nearly) the same: with a random network the clusters would be lost within an epoch.

    If labels are given, a facet's clusters are matched to them (Hungarian, by the labeled data)
    and fitted once more, by one step from the means of each class's data, so that component k is
    class k.

    :param x: ``[N, *x_shape]``, with at least as many rows as the largest mixture has components.
    :param max_rows: most rows of ``x`` to use, chosen at random; all labeled rows are used.
    :param seed: of the choice of rows and the fit.
    :param facets: names of the facets to fit; by default all that have a mixture.
    :param label: known clusters of some data, as :class:`~ppl_models.mfcvae.MFCVAE` takes them.
    :raises ValueError: if ``x`` does not fit the model or has too few rows, or a facet is unknown.
    :param options: for scikit-learn's ``GaussianMixture``, such as ``n_init``.

    Example:
        >>> import numpy as np
        >>> from facetvae import GaussianMixture, SharedMLP, VaDE, VaDEGuide, fit_mixtures
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> before = model.mixtures["cluster"].loc.clone()
        >>> fit_mixtures(VaDEGuide(model), x, n_init=5)
        >>> bool((model.mixtures["cluster"].loc == before).all())
        False
    """
    check_guide(guide)
    mixtures = chosen_mixtures(guide.model, facets)
    with seeded(seed, guide.model.gates.device):
        rows, known = _some_rows(x, guide, max_rows, label)
        check_enough(rows.x, mixtures)
        posterior = guide.posterior(rows.x)
    for name, prior in mixtures.items():
        means, variances = posterior[name].mean, posterior[name].variance
        fitted = _fitted(prior, means, getattr(prior, "covariance", "diag"), seed, **options)
        fitted = _in_common_if_likelier(fitted, prior, means, seed, **options)
        if name in known:
            start = _class_means(fitted, means.double().cpu().numpy(), known[name])
            # Only one step is taken.
            with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
                fitted = _fitted(prior, means, fitted.covariance_type, seed, **options | start)
        proba = torch.as_tensor(fitted.predict_proba(means.double().cpu().numpy())).to(variances)
        sizes = proba.sum(0).clamp_min(torch.finfo(variances.dtype).tiny)
        within = (proba.mT @ variances) / sizes.unsqueeze(-1)  # on average in each component
        prior.place(
            torch.as_tensor(fitted.means_),
            _covariances(fitted).to(means) + torch.diag_embed(within),
            torch.as_tensor(fitted.weights_),
            data=_data(guide, prior, rows, means),
        )
    if isinstance(guide, NetworkGuide):
        _teach_clusters(guide, rows, mixtures, seed)


def warm_start(
    runner: SVIRunner,
    x: ArrayLike | Tensor,
    epochs: int,
    seed: int = 0,
    restarts: int = 10,
    label: Any = None,
    **fit_options: Any,
) -> SVIRunner:
    """Train first with standard normals instead of mixtures, then fit these to the latents.

    On a few thousand data, a mixture that is trained from the start collapses into one cluster; it
    does not if the latent space has taken shape first.

    :param runner: the runner to train, with its guide, rate, schedule and seed.
    :param restarts: fits of each mixture, of which the most likely one is kept.
    :param label: known clusters of some data; see :func:`fit_mixtures`.
    :param fit_options: for :meth:`~inference.runner.SVIRunner.fit`, such as ``batch_size``.
    :returns: the runner, whose model has the fitted mixtures.
    :raises ValueError: before training, if an argument does not fit.

    Example:
        >>> import numpy as np
        >>> from facetvae import GaussianMixture, SVIRunner, SharedMLP, VaDE, VaDEGuide, warm_start
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> runner, x = SVIRunner(model, VaDEGuide(model)), np.random.default_rng(0).random((20, 6))
        >>> warm_start(runner, x, epochs=2, progress=False).fit(x, epochs=2, progress=False).epoch
        4
    """
    check_kind("runner", runner, SVIRunner, "an SVIRunner")
    _check_clusters_are_inferred(runner.model)
    check_count("restarts", restarts)
    check_enough(runner.guide.observed(x, {"label": label}).x, runner.model.mixtures)
    with standard_normal_priors(runner.model):
        runner.fit(x, epochs, **fit_options)
    fit_mixtures(runner.guide, x, seed=seed, label=label, n_init=restarts)
    return runner


@contextmanager
def standard_normal_priors(
    model: FacetModel, facets: Sequence[str] | None = None
) -> Iterator[None]:
    """Within this context every mixture facet of ``model`` has a standard normal prior instead.

    :param facets: these mixtures alone.
    :raises ValueError: if the model has no such mixture.

    Example:
        >>> from facetvae import GaussianMixture, SharedMLP, VaDE, standard_normal_priors
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> with standard_normal_priors(model):
        ...     type(model.priors["cluster"]).__name__
        'StandardNormal'
        >>> type(model.priors["cluster"]).__name__
        'GaussianMixture'
        >>> with standard_normal_priors(model, []):
        ...     type(model.priors["cluster"]).__name__
        'GaussianMixture'
    """
    check_model(model)
    kept = chosen_mixtures(model, facets)
    if decoded := sorted(kept.keys() & set(model.decoded_clusters)):
        raise ValueError(
            f"the decoder reads the cluster of {decoded[0]!r}, which a standard normal has not, as "
            "in a warm start: train with the mixtures, after fit_mixtures"
        )
    for name, prior in kept.items():
        model.facets[name] = StandardNormal(prior.dim).to(model.gates)
    try:
        yield
    finally:
        model.facets.update(kept)


def _teach_clusters(
    guide: NetworkGuide, rows: Observed, facets: Collection[str], seed: int
) -> None:
    """Train q(c given x) on the responsibilities of new mixtures at the posterior mean of z.

    What distinguished the old clusters' latents does not help the new ones, so they all start the
    same way, from the mixture. In training mode batches are normalized by their own statistics.
    """
    steps = min(STEPS, ceil(PASSES * len(rows) / BATCH_SIZE))
    teacher = copy.deepcopy(guide)
    for name in facets:
        guide.forget_clusters(name)
    # Those of the networks that read x, without those of the clusters' shifts.
    parameters = [p for name, p in guide.own_parameters() if "shifts." not in name]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    device = rows.x.device
    with seeded(seed, device), torch.enable_grad(), evaluating(teacher), training(guide):
        for _ in range(steps):
            batch = rows[torch.randint(len(rows), (BATCH_SIZE,), device=device)].x
            with torch.no_grad():
                targets = teacher.heads(batch)
            heads = guide.heads(batch)
            distances = [
                _distance_to_mixture(guide, teacher, name, head, targets[name])
                if name in facets
                else (head - targets[name]).square().sum(-1).mean()
                for name, head in heads.items()
            ]
            optimizer.zero_grad(set_to_none=True)
            torch.stack(distances).sum().backward()
            optimizer.step()
            yield_lock()
    optimizer.zero_grad(set_to_none=True)


def _distance_to_mixture(
    guide: NetworkGuide, teacher: NetworkGuide, name: str, head: Tensor, target_head: Tensor
) -> Tensor:
    """Distance of a facet's head from the teacher's latents and the mixture's responsibilities."""
    with torch.no_grad():
        target = teacher.latent_posterior(name, target_head)
        responsibilities = guide.model.priors[name].log_joint(target.mean).softmax(-1)
    q = guide.latent_given(name, head, None)
    distance = (q.mean - target.mean).square() + (q.stddev.log() - target.stddev.log()).square()
    cross_entropy = -(responsibilities * guide.cluster_logits(name, head).log_softmax(-1)).sum(-1)
    return (distance.sum(-1) + cross_entropy).mean()


def _check_clusters_are_inferred(model: FacetModel) -> None:
    if model.takes:
        raise ValueError(
            f"{type(model).__name__} is given {' and '.join(model.takes)}: its components learn in "
            "training and cannot start from clusters found in the latents"
        )


def chosen_mixtures(model: FacetModel, facets: Sequence[str] | None) -> dict[str, Mixture]:
    """The mixtures among ``facets``, or all of the model's.

    :raises ValueError: if a facet is unknown or has no mixture, or the model's clusters are given.
    """
    _check_clusters_are_inferred(model)
    if facets is None:
        return model.mixtures
    if isinstance(facets, str):
        raise ValueError(
            f"facets must be a sequence of names, such as [{facets!r}], got {facets!r}"
        )
    for name in facets:
        if not isinstance(model.prior(name), Mixture):
            raise ValueError(
                f"facet {name!r} has no mixture to fit: the mixtures are {list(model.mixtures)}"
            )
    return {name: model.mixtures[name] for name in facets}


def check_enough(rows: Any, mixtures: Mapping[str, Mixture]) -> None:
    for name, prior in mixtures.items():
        if len(rows) < max(prior.num_components, 2):
            raise ValueError(
                f"{len(rows)} rows are too few to fit the {prior.num_components} components of "
                f"facet {name!r}: give at least as many, and two"
            )


# On one thread: its products take microseconds, and a second thread makes them slower.
@threadpool_limits.wrap(limits=1, user_api="blas")
def _fitted(prior: Mixture, z: Tensor, covariance: str, seed: int, **options: Any) -> FittedMixture:
    kind = {"covariance_type": covariance, "random_state": seed}
    with warnings.catch_warnings():  # of latents that have not come apart yet
        warnings.filterwarnings("ignore", "Number of distinct clusters")
        # In float32, components of few similar data have a singular covariance.
        return FittedMixture(prior.num_components, **kind, **options).fit(z.double().cpu().numpy())


def _in_common_if_likelier(
    fitted: FittedMixture, prior: Mixture, z: Tensor, seed: int, **options: Any
) -> FittedMixture:
    """Of full covariances, the mixture or one with a covariance for all components, whichever has
    the lower BIC: few rows do not tell many covariances.
    """
    if fitted.covariance_type != "full":
        return fitted
    start = {"means_init": fitted.means_, "weights_init": fitted.weights_, "n_init": 1}
    common, rows = _fitted(prior, z, "tied", seed, **options | start), z.double().cpu().numpy()
    return common if common.bic(rows) < fitted.bic(rows) else fitted


def _covariances(fitted: FittedMixture) -> Tensor:
    """``[K, d, d]``."""
    found = torch.as_tensor(fitted.covariances_)
    if fitted.covariance_type == "tied":
        return found.expand(fitted.n_components, -1, -1)
    return torch.diag_embed(found) if fitted.covariance_type == "diag" else found


def _class_means(fitted: FittedMixture, z: np.ndarray, label: np.ndarray) -> dict[str, Any]:
    """Options of a second fit from the means of each class's data, each with the weight and the
    covariance of the component that has most of it: component k is class k, the rest have no label.

    The fit takes one step only, because further steps would follow the density alone. It may take
    more if a class has a single labeled datum, whose position says little.

    :param z: latents ``[N, d]``.
    :param label: integers ``[N]`` below K; -1 where unknown.
    """
    classes, counts = np.unique(label[label >= 0], return_counts=True)
    certainty = np.stack([fitted.predict_proba(z[label == k]).sum(0) for k in classes])
    _, matched = linear_sum_assignment(certainty, maximize=True)
    numbers = np.arange(fitted.n_components)
    order = np.empty_like(numbers)  # which component comes to each place
    order[classes] = matched
    order[np.setdiff1d(numbers, classes)] = np.setdiff1d(numbers, matched)
    means, precisions = fitted.means_[order], fitted.precisions_
    means[classes] = [z[label == k].mean(0) for k in classes]
    return {
        "means_init": means,
        "weights_init": fitted.weights_[order],
        "precisions_init": precisions if fitted.covariance_type == "tied" else precisions[order],
        "n_init": 1,
        **({"max_iter": 1} if counts.min() > 1 else {}),
    }


def _data(guide: FacetGuide, prior: Mixture, rows: Observed, z: Tensor) -> Data | None:
    """What a prior that may be made of data is given; sparse rows become dense only for such."""
    if not isinstance(rows.x, SparseRows):
        return guide.model.seen(rows.x), z
    return (guide.model.seen(rows.x.dense()), z) if prior.uses_posterior else None


def _some_rows(
    x: ArrayLike | Tensor, guide: FacetGuide, max_rows: int | None, label: Any = None
) -> tuple[Observed, dict[str, np.ndarray]]:
    """Random rows on the model's device (``None``: all, in any order), prepared unless they are
    sparse, and their labels for each facet that has any.
    """
    model = guide.model
    data = guide.observed(x, {"label": label})
    max_rows = len(data) if max_rows is None else check_count("max_rows", max_rows)
    order = torch.randperm(len(data))
    labels = data.given.get("label", torch.full((len(data), len(model.mixtures)), -1)).cpu()
    left_out = order[max_rows:]
    chosen = torch.cat([order[:max_rows], left_out[(labels[left_out] >= 0).any(1)]])
    rows = data.x[chosen.to(data.x.device)].to(model.gates.device)
    rows = rows if isinstance(rows, SparseRows) else model.prepare(rows)
    columns = zip(model.mixtures, labels[chosen].numpy().T, strict=True)
    return Observed(rows), {name: column for name, column in columns if (column >= 0).any()}
