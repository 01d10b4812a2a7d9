"""Pictures of what was learned. Each function returns a new figure; `save_figures` writes them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from guides.base import FacetGuide, check_guide
from inference.randomness import seeded
from ppl_models.base import FacetModel, evaluating
from ppl_models.checks import check_count

__all__ = [
    "cluster_gallery",
    "cluster_samples",
    "facet_draws",
    "facet_overview",
    "facet_swaps",
    "save_figures",
    "training_curves",
]

FONT: dict[str, Any] = {"fontsize": 8}
MAX_CLUSTERS = 25


def cluster_gallery(
    guide: FacetGuide, x: ArrayLike, facet: str, image_shape: Sequence[int] | None = None, columns: int = 10
) -> Figure:
    """The data that each cluster of one facet is surest of, a cluster a row (MFCVAE, Fig. 4).

    Rows are sorted by the mean probability of the data assigned to them, columns by their own probability.

    :param x: data ``[N, *x_shape]``.
    :param image_shape: how to draw a datum, ``[H, W]``, ``[C, H, W]``; by default ``x_shape``.
    """
    x, shape = np.asarray(x), image_shape_of(guide, image_shape, columns=columns)
    order, cluster, certainty = _surest_clusters(guide, x, facet)
    rows = {}
    for k in order:
        rows[f"{k}  ({(cluster == k).sum()})"] = x[surest(cluster == k, certainty, columns)]
    title = f"{facet}: the data that each cluster is surest of"
    return image_rows(rows, shape, columns, title, "cluster (number of data)")


def facet_overview(
    guide: FacetGuide, x: ArrayLike, image_shape: Sequence[int] | None = None, rows: int = 8, columns: int = 8
) -> Figure:
    """The same data grouped by each facet, side by side: the surest clusters of each, a cluster a row.

    :param rows: clusters of each facet, at most.
    """
    x = np.asarray(x)
    shape = image_shape_of(guide, image_shape, rows=rows, columns=columns)
    facets = list(guide.model.inferred)
    if not facets:
        raise ValueError(
            f"{type(guide.model).__name__} has no clusters that are inferred: there is nothing to group by"
        )
    figure, axes = new_figure(len(facets) * (0.48 * columns + 0.5), 0.48 * rows + 0.5, 1, len(facets))
    for facet, ax in zip(facets, axes.flat, strict=True):
        order, cluster, certainty = _surest_clusters(guide, x, facet)
        full = sorted(order, key=lambda k: (cluster == k).sum() < columns)  # clusters that fill a row come first
        members = [surest(cluster == k, certainty, columns) for k in full[:rows]]
        _draw_grid(ax, [_as_images(x[best], shape) for best in members], columns)
        ax.set_yticks([])
        ax.set_title(f"grouped by {facet}", fontsize=9)
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
) -> Figure:
    """Draws from each cluster of one facet, the other facets from their whole prior (MFCVAE, Fig. 6).

    Rows are the clusters of :func:`cluster_gallery`, in its order.

    :param temperature: factor on the standard deviation within components.
    :param hold_others: draw the other facets' latents once, for all rows and columns (VLAC, Fig. 3).
    """
    shape = image_shape_of(guide, image_shape, columns=columns)
    order, _, _ = _surest_clusters(guide, x, facet)
    model = guide.model
    with seeded(seed, model.gates.device), torch.no_grad(), evaluating(model):
        drawn = {name: prior.sample(1, temperature=temperature) for name, prior in model.priors.items()}
        held = drawn if hold_others else None
        rows = {}
        for k in order:
            z = latents_of_cluster(model, facet, k, columns, temperature, held)
            rows[str(k)] = model.decode(z, **model.draw_given(columns, facet, k)).mean.cpu().numpy()
    title = f"{facet}: samples of each cluster, temperature {temperature:.2g}"
    return image_rows(rows, shape, columns, title, "cluster")


def latents_of_cluster(
    model: FacetModel,
    facet: str,
    cluster: int | None,
    n: int,
    temperature: float = 1.0,
    held: Mapping[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Latents ``[n, d]`` of every facet: of one from a cluster, of the others from their whole prior, or held.

    :param cluster: of ``facet``; ``None`` for its whole prior.
    :param held: latents ``[1, d]`` that the other facets have in every draw.
    """
    others = [name for name in model.priors if name != facet]
    if held is not None:
        z = {name: held[name].expand(n, -1) for name in others}
    else:
        z = {name: model.priors[name].sample(n, temperature=temperature) for name in others}
    return {**z, facet: model.prior(facet).sample(n, cluster, temperature)}


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
    """Data with one facet's latent drawn anew from its prior, the others as inferred (VLAC, Fig. 2).

    Each row holds a datum, its reconstruction, and then draws: what changes along a row is what the facet says.

    :param rows: the first data of ``x``.
    :param given: what the model takes beside x, one entry per datum.
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
            images[str(i)] = np.concatenate([pixels(datum[None]), model.decode(z, **its).mean.cpu().numpy()])
    title = f"{facet} drawn anew; at the left the datum and its reconstruction"
    return image_rows(images, shape, columns + 2, title, "datum", [2])


@torch.no_grad()
def facet_swaps(
    guide: FacetGuide, x: ArrayLike, facet: str, image_shape: Sequence[int] | None = None, pairs: int = 8, **given: Any
) -> Figure:
    """Pairs of data and their reconstructions with one facet's latent exchanged (MFCVAE, Fig. 5).

    :param facet: the facet that is exchanged; the others stay.
    :param pairs: the first data of ``x``, two by two.
    :param given: what the model takes beside x, one entry per datum.
    """
    shape = image_shape_of(guide, image_shape, pairs=pairs)
    guide.model.prior(facet)  # which refuses an unknown one
    x = np.atleast_1d(x)
    if len(x) < 2:
        raise ValueError(f"a pair takes two data, got x of shape {x.shape}")
    x = x[: 2 * min(pairs, len(x) // 2)]  # an odd one out has no partner
    given = {name: values[: len(x)] for name, values in given.items()}
    means = {name: q.mean for name, q in guide.posterior(x, **given).items()}
    beside = guide.decoder_given(x, given)
    partner = torch.arange(len(x)).view(-1, 2).flip(-1).flatten()
    swapped = {name: z[partner] if name == facet else z for name, z in means.items()}
    with evaluating(guide):
        rows = {
            "datum": x,
            "reconstruction": guide.model.decode(means, **beside).mean.cpu().numpy(),
            f"with the other's {facet}": guide.model.decode(swapped, **beside).mean.cpu().numpy(),
        }
    return image_rows(rows, shape, len(x), f"{facet} exchanged within pairs", "", range(2, len(x), 2))


def training_curves(history: Sequence[Mapping[str, Any]], facets: Sequence[str]) -> Figure:
    """Objective and ELBO, each facet's KL terms, and each facet's mutual information with x, over epochs.

    :param history: of a runner, or of several in turn.
    :raises ValueError: for an empty history.
    """
    if not history:
        raise ValueError("the history is empty: fit first, and give runner.history")
    epochs, series = training_series(history, facets)
    figure, axes = new_figure(10, 3.2, 1, 3)
    for ax, (label, lines) in zip(axes.flat, series.items(), strict=True):
        for name, values in lines.items():
            ax.plot(epochs, values, label=name, linewidth=1.2)
        label_axes(ax, "epoch", label)
        if lines:
            ax.legend(fontsize=7, frameon=False)
    axes.flat[0].set_ylim(elbo_range(history))
    return figure


def training_series(
    history: Sequence[Mapping[str, Any]], facets: Sequence[str]
) -> tuple[list[int], dict[str, dict[str, list[float]]]]:
    """What :func:`training_curves` draws: epochs, and for each of its axes the lines by name."""
    last = history[-1]
    kl = {f"{s}, {f}": f"kl_{s}_{f}" for f in facets for s in "zc"}
    information = {f: f"mutual_information_{f}" for f in facets}
    return _running_epochs(history), {
        "nats per datum": {
            "objective (negated)": [-r["objective"] for r in history],
            "ELBO": _column(history, "elbo"),
        },
        "KL, nats per datum": {line: _column(history, name) for line, name in kl.items() if name in last},
        "I(x; c), nats": {line: _column(history, name) for line, name in information.items() if name in last},
    }


def elbo_range(history: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Where an axis ends that shows the ELBO but for the first steps' lowest."""
    elbo = np.array(_column(history, "elbo"))
    return float(np.quantile(elbo, 0.1) - 0.05 * np.ptp(elbo)), float(elbo.max() + 0.1 * np.ptp(elbo))


def label_axes(ax: Axes, xlabel: str, ylabel: str) -> None:
    """Words at the axes, and the look of every plot here."""
    ax.set_xlabel(xlabel, **FONT)
    ax.set_ylabel(ylabel, **FONT)
    ax.tick_params(labelsize=7)
    ax.spines[["top", "right"]].set_visible(False)


def styles() -> Iterator[dict[str, Any]]:
    """Colours and markers that tell twenty lines apart."""
    colors = [*colormaps["tab20"].colors[::2], *colormaps["tab20"].colors[1::2]]  # type: ignore[attr-defined]
    return ({"color": c, "marker": m} for c, m in zip(cycle(colors), cycle("os^vDP*X<>dh"), strict=False))


def save_figures(
    folder: str | Path,
    guide: FacetGuide,
    x: ArrayLike,
    history: Sequence[Mapping[str, Any]] = (),
    image_shape: Sequence[int] | None = None,
    temperature: float = 1.0,
    **given: Any,
) -> list[Path]:
    """Draw everything that makes sense for this guide into ``folder`` as PNG files; returns their paths.

    :param given: what the model takes beside x, one entry per datum.
    """
    image_shape_of(guide, image_shape)  # before a folder is made
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"overview": facet_overview(guide, x, image_shape)} if guide.model.inferred else {}
    for facet in guide.model.inferred:
        figures[f"clusters_{facet}"] = cluster_gallery(guide, x, facet, image_shape)
        figures[f"samples_{facet}"] = cluster_samples(guide, x, facet, image_shape, temperature=temperature)
    if len(guide.model.priors) > 1:
        figures |= {f"swap_{facet}": facet_swaps(guide, x, facet, image_shape, **given) for facet in guide.model.priors}
        figures |= {
            f"draws_{facet}": facet_draws(guide, x, facet, image_shape, **given) for facet in guide.model.priors
        }
        for facet in guide.model.inferred:
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


def _surest_clusters(guide: FacetGuide, x: ArrayLike, facet: str) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Non-empty clusters, those first that are surest of their data; each datum's cluster and its probability."""
    guide.model.prior(facet)  # which refuses an unknown one
    if facet not in guide.model.inferred or guide.model.inferred[facet].num_components == 1:
        raise ValueError(f"facet {facet!r} has no clusters to draw: its prior is {guide.model.prior(facet)}")
    order, cluster, certainty = rank_clusters(guide.predict_proba(x)[facet])
    return order[:MAX_CLUSTERS], cluster, certainty


def rank_clusters(proba: np.ndarray) -> tuple[list[int], np.ndarray, np.ndarray]:
    """From probabilities ``[N, K]``: non-empty clusters, those first that are surest of their data; each datum's
    cluster and its probability."""
    cluster, certainty = proba.argmax(-1), proba.max(-1)
    return sorted(np.unique(cluster).tolist(), key=lambda k: -certainty[cluster == k].mean()), cluster, certainty


def surest(chosen: np.ndarray, certainty: np.ndarray, n: int) -> np.ndarray:
    """Indices of the ``n`` chosen data with the highest certainty, highest first."""
    members = np.flatnonzero(chosen)
    return members[np.argsort(-certainty[members], kind="stable")][:n]


def new_figure(width: float, height: float, rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    # A figure of its own, not pyplot's: no global state, no window, nothing to close.
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def image_rows(
    rows: Mapping[str, np.ndarray],
    shape: tuple[int, ...],
    columns: int,
    title: str,
    ylabel: str,
    lines: Sequence[int] = (),
) -> Figure:
    """Rows of images, each row labelled; over 13 rows they stand in two blocks side by side.

    :param lines: columns that a line stands before.
    """
    blocks = 1 if len(rows) <= 13 else 2
    height = ceil(len(rows) / blocks)
    figure, axes = new_figure(blocks * (0.48 * columns + 1.4), 0.48 * height + 0.7, 1, blocks)
    names = list(rows)
    for block, ax in enumerate(axes.flat):
        shown = names[block * height : (block + 1) * height]
        _draw_grid(ax, [_as_images(rows[name], shape) for name in shown], columns, lines)
        h = shape[-2] + 1
        ax.set_yticks([i * h + shape[-2] / 2 for i in range(len(shown))], shown, fontsize=7)
        ax.set_ylabel(ylabel if block == 0 else "", **FONT)
    figure.suptitle(title, fontsize=9)
    return figure


def _draw_grid(ax: Axes, rows: list[np.ndarray], columns: int, lines: Sequence[int] = ()) -> None:
    channels = rows[0].shape[3:]
    height, width = rows[0].shape[1:3]
    canvas = np.ones((len(rows) * (height + 1) - 1, columns * (width + 1) - 1, *channels))
    for i, row in enumerate(rows):
        for j, image in enumerate(row[:columns]):
            top, left = i * (height + 1), j * (width + 1)
            canvas[top : top + height, left : left + width] = image
    ax.imshow(canvas, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    for j in lines:
        ax.axvline(j * (width + 1) - 1, color="tab:orange", linewidth=1.5)
    ax.set_xticks([])
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _as_images(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``[n, *x_shape]`` to ``[n, H, W]`` or ``[n, H, W, C]`` with values in [0, 1]."""
    images = pixels(x).reshape(-1, *shape).clip(0, 1)
    return images if len(shape) == 2 else np.moveaxis(images, 1, -1)


def pixels(x: np.ndarray) -> np.ndarray:
    """8-bit images as values in [0, 1], as a decoder's are."""
    return x / 255 if x.dtype == np.uint8 else x


def image_shape_of(guide: FacetGuide, image_shape: Sequence[int] | None, **counts: Any) -> tuple[int, ...]:
    """How a datum of this guide's model is drawn.

    :param counts: of rows, columns and the like, to be looked at too.
    :raises ValueError: if something does not fit.
    """
    check_guide(guide)
    for name, value in counts.items():
        check_count(name, value)
    try:
        shape = tuple(image_shape if image_shape is not None else guide.model.x_shape)
    except TypeError:
        shape = ()
    if len(shape) not in (2, 3) or int(np.prod(shape)) != int(np.prod(guide.model.x_shape)):
        raise ValueError(
            f"data of shape {guide.model.x_shape} cannot be drawn as images of shape {shape or image_shape!r}: "
            "give image_shape=(height, width) or (channels, height, width)"
        )
    return shape


def _column(history: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [record.get(name, float("nan")) for record in history]


def _running_epochs(history: Sequence[Mapping[str, Any]]) -> list[int]:
    """Epochs that go on counting where one run's history follows another's."""
    epochs, offset, last = [], 0, 0
    for record in history:
        if record["epoch"] <= last:
            offset += last
        last = record["epoch"]
        epochs.append(offset + last)
    return epochs
