"""Figures of facets and clusters; `save_figures` writes all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from guides.base import FacetGuide
from inference.evaluation.clusters import latents_of_cluster, surest
from inference.figures.drawing import (
    _as_images,
    _draw_grid,
    image_rows,
    image_shape_of,
    new_figure,
    pixels,
    row_size,
    text_width,
)
from inference.figures.training import training_curves
from inference.randomness import seeded
from ppl_models.given.checks import check_path
from ppl_models.modes import evaluating

MAX_CLUSTERS = 25


def cluster_gallery(
    guide: FacetGuide,
    x: ArrayLike,
    facet: str,
    image_shape: Sequence[int] | None = None,
    columns: int = 10,
    max_clusters: int = MAX_CLUSTERS,
) -> Figure:
    """The data of highest probability in each cluster of one facet, a row each (MFCVAE, Fig. 4).

    Rows are sorted by the mean probability of their cluster's data, columns by each datum's own.

    :param x: data ``[N, *x_shape]``.
    :param image_shape: in which to draw a datum, ``[H, W]`` or ``[C, H, W]``; else ``x_shape``.
    :param max_clusters: most clusters to show, those with the surest data; none without data.

    Example:
        >>> import numpy as np
        >>> from facetvae import GaussianMixture, SharedMLP, VaDE, VaDEGuide
        >>> from inference.figures import cluster_gallery
        >>> guide = VaDEGuide(VaDE((1, 8, 8), GaussianMixture(3, 2), network=SharedMLP((8,))))
        >>> x = np.random.default_rng(0).random((20, 1, 8, 8))
        >>> figure = cluster_gallery(guide, x, "cluster", columns=5)
        >>> figure.get_suptitle()
        'cluster: the data that each cluster is surest of'
    """
    x = np.asarray(x)
    shape = image_shape_of(guide, image_shape, columns=columns, max_clusters=max_clusters)
    order, cluster, certainty = _ranked_clusters(guide, x, facet, max_clusters)
    rows = {}
    for k in order:
        rows[f"{k}  ({(cluster == k).sum()})"] = x[surest(cluster == k, certainty, columns)]
    title = f"{facet}: the data that each cluster is surest of"
    return image_rows(rows, shape, columns, title, "cluster (number of data)")


def facet_overview(
    guide: FacetGuide,
    x: ArrayLike,
    image_shape: Sequence[int] | None = None,
    rows: int = 8,
    columns: int = 8,
) -> Figure:
    """The same data grouped by each facet, side by side: its most certain clusters, a row each.

    :param rows: most clusters of each facet to show.

    Example:
        >>> import numpy as np
        >>> from facetvae import MFCVAE, GaussianMixture, MLPLadder, VaDEGuide
        >>> from inference.figures import facet_overview
        >>> facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)}
        >>> guide = VaDEGuide(MFCVAE((1, 8, 8), facets, network=MLPLadder((8, 8))))
        >>> x = np.random.default_rng(0).random((20, 1, 8, 8))
        >>> figure = facet_overview(guide, x, rows=4, columns=5)
        >>> [ax.get_title() for ax in figure.axes]
        ['grouped by style', 'grouped by digit']
    """
    x = np.asarray(x)
    shape = image_shape_of(guide, image_shape, rows=rows, columns=columns)
    facets = _clustered(guide)
    if not facets:
        raise ValueError(
            f"{type(guide.model).__name__} has no inferred clusters: there is nothing to group by"
        )
    members = {}
    for facet in facets:
        order, cluster, certainty = _ranked_clusters(guide, x, facet)
        # Clusters with enough data for a row come first.
        full = sorted(order, key=lambda k: (cluster == k).sum() < columns)
        members[facet] = [surest(cluster == k, certainty, columns) for k in full[:rows]]
    titles = {facet: f"grouped by {facet}" for facet in facets}
    width, height = row_size(shape, columns)
    figure, axes = new_figure(
        len(facets) * max(width + 0.5, text_width(titles.values(), 9)),
        height * max(map(len, members.values())) + 0.5,
        len(facets),
    )
    for (facet, title), ax in zip(titles.items(), axes.flat, strict=True):
        _draw_grid(ax, [_as_images(x[best], shape) for best in members[facet]], columns)
        ax.set_yticks([])
        ax.set_title(title, fontsize=9)
    return figure


def cluster_samples(
    guide: FacetGuide,
    x: ArrayLike,
    facet: str,
    image_shape: Sequence[int] | None = None,
    columns: int = 10,
    temperature: float = 1.0,
    hold_others: bool = False,
    seed: int = 0,
    max_clusters: int = MAX_CLUSTERS,
) -> Figure:
    """Draws from each cluster of one facet, and the whole prior of the others (MFCVAE, Fig. 6).

    Rows are the clusters of :func:`cluster_gallery`, in the same order.

    :param temperature: factor on the standard deviation within components.
    :param hold_others: draw the other facets' latents once, for all images (VLAC, Fig. 3).
    :param max_clusters: most clusters to show.

    Example:
        >>> import numpy as np
        >>> from facetvae import MFCVAE, GaussianMixture, MLPLadder, VaDEGuide
        >>> from inference.figures import cluster_samples
        >>> facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)}
        >>> guide = VaDEGuide(MFCVAE((1, 8, 8), facets, network=MLPLadder((8, 8))))
        >>> x = np.random.default_rng(0).random((20, 1, 8, 8))
        >>> figure = cluster_samples(guide, x, "digit", columns=5, temperature=0.5)
        >>> figure.get_suptitle()
        'digit: samples of each cluster, temperature 0.5'
    """
    shape = image_shape_of(guide, image_shape, columns=columns, max_clusters=max_clusters)
    order, _, _ = _ranked_clusters(guide, x, facet, max_clusters)
    model = guide.model
    with seeded(seed, model.gates.device), torch.no_grad(), evaluating(model):
        drawn = {
            name: prior.sample(1, temperature=temperature) for name, prior in model.priors.items()
        }
        held = drawn if hold_others else None
        clusters = model.draw_clusters(drawn) if hold_others else {}
        clusters.pop(f"c_{facet}", None)
        rows = {}
        for k in order:
            z = latents_of_cluster(model, facet, k, columns, temperature, held)
            beside = model.draw_given(columns, facet, k) | model.draw_clusters(z, facet, k)
            beside |= {name: each.expand(columns, -1) for name, each in clusters.items()}
            rows[str(k)] = model.decode(z, **beside).mean.cpu().numpy()
    title = f"{facet}: samples of each cluster, temperature {temperature:.2g}"
    return image_rows(rows, shape, columns, title, "cluster")


@torch.no_grad()
def facet_draws(
    guide: FacetGuide,
    x: ArrayLike,
    facet: str,
    image_shape: Sequence[int] | None = None,
    rows: int = 6,
    columns: int = 9,
    temperature: float = 1.0,
    seed: int = 0,
    **given: Any,
) -> Figure:
    """Data with one facet's latent drawn anew from its prior, others as inferred (VLAC, Fig. 2).

    Each row shows a datum, its reconstruction, and draws: what changes is what the facet encodes.

    :param rows: how many data to show, from the start of ``x``.
    :param given: inputs of the model other than x, one entry per datum.

    Example:
        >>> import numpy as np
        >>> from facetvae import MFCVAE, GaussianMixture, MLPLadder, VaDEGuide
        >>> from inference.figures import facet_draws
        >>> facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)}
        >>> guide = VaDEGuide(MFCVAE((1, 8, 8), facets, network=MLPLadder((8, 8))))
        >>> x = np.random.default_rng(0).random((20, 1, 8, 8))
        >>> figure = facet_draws(guide, x, "digit", rows=2, columns=3)
        >>> len(figure.axes[0].get_yticks())  # a row for each sample
        2
    """
    shape = image_shape_of(guide, image_shape, rows=rows, columns=columns)
    x, given = np.atleast_1d(x)[:rows], {name: values[:rows] for name, values in given.items()}
    model = guide.model
    prior = model.prior(facet)
    means = {name: q.mean for name, q in guide.posterior(x, **given).items()}
    beside = guide.decoder_given(x, given)
    with seeded(seed, model.gates.device), evaluating(model):
        drawn = prior.sample(columns, temperature=temperature)
        images = {}
        for i, datum in enumerate(x):
            z = {name: mean[i].expand(columns + 1, -1) for name, mean in means.items()}
            z[facet] = torch.cat([means[facet][i : i + 1], drawn])
            its = {name: values[i].expand(columns + 1) for name, values in beside.items()}
            if (own := f"c_{facet}") in its:  # a facet's latent comes with its cluster
                anew = model.draw_clusters(z)[own].argmax(-1)[1:]
                its[own] = torch.cat([beside[own][i : i + 1], anew])
            images[str(i)] = np.concatenate(
                [pixels(datum[None]), model.decode(z, **its).mean.cpu().numpy()]
            )
    title = f"{facet} drawn anew; at the left the datum and its reconstruction"
    return image_rows(images, shape, columns + 2, title, "datum", [2])


@torch.no_grad()
def facet_swaps(
    guide: FacetGuide,
    x: ArrayLike,
    facet: str,
    image_shape: Sequence[int] | None = None,
    pairs: int = 8,
    **given: Any,
) -> Figure:
    """Pairs of data and their reconstructions with one facet's latent exchanged (MFCVAE, Fig. 5).

    :param facet: the facet to exchange; the others stay.
    :param pairs: how many pairs to show, from the start of ``x``.
    :param given: inputs of the model other than x, one entry per datum.

    Example:
        >>> import numpy as np
        >>> from facetvae import MFCVAE, GaussianMixture, MLPLadder, VaDEGuide
        >>> from inference.figures import facet_swaps
        >>> facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)}
        >>> guide = VaDEGuide(MFCVAE((1, 8, 8), facets, network=MLPLadder((8, 8))))
        >>> x = np.random.default_rng(0).random((20, 1, 8, 8))
        >>> figure = facet_swaps(guide, x, "digit", pairs=2)
        >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
        ['datum', 'reconstruction', "with the other's digit"]
    """
    shape = image_shape_of(guide, image_shape, pairs=pairs)
    guide.model.prior(facet)  # which refuses an unknown one
    x = np.atleast_1d(x)
    if len(x) < 2:
        raise ValueError(f"a pair needs two data, got x of shape {x.shape}")
    x = x[: 2 * min(pairs, len(x) // 2)]  # a last datum without a partner is left out
    given = {name: values[: len(x)] for name, values in given.items()}
    means = {name: q.mean for name, q in guide.posterior(x, **given).items()}
    beside = guide.decoder_given(x, given)
    partner = torch.arange(len(x)).view(-1, 2).flip(-1).flatten()
    swapped = {name: z[partner] if name == facet else z for name, z in means.items()}
    own = f"c_{facet}"  # a facet's latent comes with its cluster
    theirs = {name: each[partner] if name == own else each for name, each in beside.items()}
    with evaluating(guide):
        rows = {
            "datum": x,
            "reconstruction": guide.model.decode(means, **beside).mean.cpu().numpy(),
            f"with the other's {facet}": guide.model.decode(swapped, **theirs).mean.cpu().numpy(),
        }
    return image_rows(
        rows, shape, len(x), f"{facet} exchanged within pairs", "", range(2, len(x), 2)
    )


def save_figures(
    folder: str | Path,
    guide: FacetGuide,
    x: ArrayLike,
    history: Sequence[Mapping[str, Any]] = (),
    image_shape: Sequence[int] | None = None,
    temperature: float = 1.0,
    **given: Any,
) -> list[Path]:
    """Write all figures that apply to this guide into ``folder`` as PNG files; return their paths.

    Of a facet with more than 25 clusters, ``clusters_FACET_all.png`` and ``samples_FACET_all.png``
    show all that have data (MFCVAE, Fig. 13 to 16 and 22 to 24).

    :param given: inputs of the model other than x, one entry per datum.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from facetvae import GaussianMixture, SharedMLP, VaDE, VaDEGuide
        >>> from inference.figures import save_figures
        >>> guide = VaDEGuide(VaDE((1, 8, 8), GaussianMixture(3, 2), network=SharedMLP((8,))))
        >>> x = np.random.default_rng(0).random((20, 1, 8, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in save_figures(folder, guide, x)]
        ['overview.png', 'clusters_cluster.png', 'samples_cluster.png']
    """
    folder = check_path("folder", folder)
    image_shape_of(guide, image_shape)  # check before creating the folder
    folder.mkdir(parents=True, exist_ok=True)
    facets = _clustered(guide)
    figures = {"overview": facet_overview(guide, x, image_shape)} if facets else {}
    for facet in facets:
        number = guide.model.inferred[facet].num_components
        shown = {"": MAX_CLUSTERS} | ({"_all": number} if number > MAX_CLUSTERS else {})
        for ending, most in shown.items():
            how: dict[str, Any] = {"image_shape": image_shape, "max_clusters": most}
            figures[f"clusters_{facet}{ending}"] = cluster_gallery(guide, x, facet, **how)
            how["temperature"] = temperature
            figures[f"samples_{facet}{ending}"] = cluster_samples(guide, x, facet, **how)
    if len(guide.model.priors) > 1:
        for name, figure_of in (("swap", facet_swaps), ("draws", facet_draws)):
            for facet in guide.model.priors:
                figures[f"{name}_{facet}"] = figure_of(guide, x, facet, image_shape, **given)
        for facet in facets:
            figures[f"samples_{facet}_others_held"] = cluster_samples(
                guide, x, facet, image_shape, temperature=temperature, hold_others=True
            )
    if history:
        figures["training"] = training_curves(history, list(guide.model.priors))
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=130)
    return paths


def _clustered(guide: FacetGuide) -> list[str]:
    """The facets with clusters to draw: those of more than one."""
    return [name for name, prior in guide.model.inferred.items() if prior.num_components > 1]


def _ranked_clusters(
    guide: FacetGuide, x: ArrayLike, facet: str, most: int = MAX_CLUSTERS
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """The surest clusters with data, ``most`` at most; each datum's, and how sure it is ``[N]``."""
    prior = guide.model.prior(facet)
    if facet not in _clustered(guide):
        raise ValueError(f"facet {facet!r} has no clusters to draw: its prior is {prior}")
    proba = guide.predict_proba(x)[facet]
    cluster, certainty = proba.argmax(-1), proba.max(-1)
    order = sorted(np.unique(cluster).tolist(), key=lambda k: -certainty[cluster == k].mean())
    return order[:most], cluster, certainty
