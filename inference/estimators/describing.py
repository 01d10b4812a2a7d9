"""What a fitted estimator says of rows and of itself, in the form that it is described in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse
from scipy.special import softmax

from inference.describing import FacetClusters, FacetDescription
from inference.describing.text import table
from ppl_models.frames import is_frame

__all__ = ["card_sections", "clusters_found", "shown_columns"]


def clusters_found(
    facet: str, log_joint: np.ndarray, left_out: np.ndarray, stability: float
) -> FacetClusters:
    """A facet's clusters of rows.

    :param log_joint: log p(c, z) of its clusters at the means of its latents ``[N, K]``.
    """
    return FacetClusters(facet, softmax(log_joint, -1), log_joint, left_out, stability)


def shown_columns(rows: Any, names: Any) -> Any:
    """Rows with the user's own columns: a frame as it is; else numbers, by name if they have any.

    :param names: names of the training data's columns, or ``None``.
    """
    if is_frame(rows):
        return rows
    if issparse(rows):
        rows = rows.toarray()
    return rows if names is None else dict(zip(map(str, names), rows.T, strict=True))


def card_sections(
    settings: Mapping[str, Any],
    facets: Sequence[str],
    labels: np.ndarray,
    stability: np.ndarray,
    descriptions: Sequence[FacetDescription] = (),
) -> dict[str, str]:
    """What a card says of an estimator, by title.

    :param labels: clusters of the training data ``[N, J]``, -1 for none.
    :param stability: of each facet ``[J]``, NaN if there was one start.
    """
    heads = ("facet", "clusters", "rows of each", "stability (adjusted Rand index)")
    rows = [
        (name, str(len(np.unique(own[own >= 0]))), _sizes(own), _stability(stable))
        for name, own, stable in zip(facets, labels.T, stability, strict=True)
    ]
    told = {f"About {each.facet}": _as_section(each) for each in descriptions}
    chosen = [(str(name), " ".join(str(value).split())) for name, value in settings.items()]
    return {
        f"Clusters of the {len(labels)} rows that it was last fitted to": table(heads, rows),
        "Settings": table(("setting", "chosen"), chosen),
        **told,
    }


def _sizes(labels: np.ndarray) -> str:
    return ", ".join(map(str, np.bincount(labels[labels >= 0]).tolist()))


def _stability(value: float) -> str:
    return "one start" if np.isnan(value) else f"{value:.2f}"


def _as_section(description: FacetDescription) -> str:
    """Its page, without the title and with headings below that of a section."""
    _, _, text = description.to_markdown().partition("\n")
    return text.strip().replace("\n## ", "\n### ")
