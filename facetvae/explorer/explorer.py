"""Queries for exploring a fitted run, answered with arrays.

Posteriors are computed once, for all data, so that a query needs one decoder pass at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from facetvae.describing import FacetClusters, FacetDescription, describe_clusters
from facetvae.describing.columns import kinds_of
from facetvae.explorer.pictures import Pictures
from guides.base import FacetGuide, check_guide
from inference.evaluation.clusters import latents_of_cluster
from inference.randomness import seeded
from ppl_models import ClassBlocks, Flat
from ppl_models.given.checks import check_count, check_one_of, check_seed, is_index, number
from ppl_models.modes import evaluating

# Most latents to vary at once.
MAX_AXES = 16
# The largest number of the models' precision.
MAX_FLOAT = float(np.finfo(np.float32).max)
# How far latents can be varied beyond the data's range, as a share of that range.
MARGIN = 0.15


@dataclass(frozen=True)
class Axis:
    """A latent that can be varied: its index, its range, and the datum's value."""

    index: int
    low: float
    high: float
    value: float


class Explorer:
    """A fitted guide with some data, for exploration.

    A query that does not apply to the model, such as what the clusters of a plain VAE are about,
    raises a ``ValueError`` that explains why. Several threads may send queries.

    :param guide: a fitted guide of any model.
    :param x: data ``[N, *x_shape]``.
    :param given: inputs of the model other than x, one entry per datum. Without ``group``, each
        datum is a group of its own.
    :param labels: known labels of the data, integers ``[N]`` by name.
    :param image_shape: shape in which to draw a datum; see
        :class:`~facetvae.explorer.pictures.Pictures`.
    :param columns: names of the entries of a datum, to describe clusters with; by default those
        of a :class:`~ppl_models.columns.Columns`, if that is the likelihood.
    :raises ValueError: if data, labels, names or other inputs do not fit.

    :ivar facets: names of the facets, shallow to deep.
    :ivar num_classes: how many labels the decoder distinguishes; 0 if it reads none.

    Example:
        >>> import numpy as np
        >>> from facetvae import GaussianMixture, SharedMLP, VaDE, VaDEGuide
        >>> from facetvae.explorer import Explorer
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> explorer = Explorer(VaDEGuide(model), np.random.default_rng(0).random((20, 6)))
        >>> explorer.facets, explorer.samples("cluster", choice=0, n=4).shape
        (['cluster'], (4, 6))
    """

    def __init__(
        self,
        guide: FacetGuide,
        x: ArrayLike,
        given: Mapping[str, Any] | None = None,
        labels: Mapping[str, ArrayLike] | None = None,
        image_shape: Sequence[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        check_guide(guide)
        self.guide, self.model, self.x = guide, guide.model, np.asarray(x)
        self.facets, reads_labels = list(self.model.priors), "label" in self.model.decodes
        self.num_classes = int(getattr(self.model, "num_classes", 0)) if reads_labels else 0
        self.labels = {name: np.asarray(values) for name, values in (labels or {}).items()}
        for name, values in self.labels.items():
            if values.shape != (len(self.x),):
                raise ValueError(
                    f"label {name!r} has shape {values.shape}, but there are {len(self.x)} data"
                )
        self.columns = self._check_columns(columns)
        given = dict(given or {})
        if "group" in guide.takes:
            given.setdefault("group", np.arange(len(self.x)))
        means = guide.embed(self.x, **given)
        self._means = {name: torch.as_tensor(z) for name, z in means.items()}
        self._proba = guide.predict_proba(self.x, **given) if self.model.inferred else {}
        self._beside = guide.decoder_given(self.x, given)
        self.pictures = Pictures.of(self.x, image_shape)

    def choices(self, facet: str) -> list[int]:
        """What to draw of a facet: its clusters, the largest first, or labels of the decoder."""
        components = self.model.prior(facet).num_components
        if facet in self._proba:
            counts = np.bincount(self._proba[facet].argmax(-1), minlength=components)
            return np.argsort(-counts, kind="stable").tolist()
        return list(range(components if self._has_components(facet) else self.num_classes))

    def _has_components(self, facet: str) -> bool:
        clustered = facet in self.model.mixtures or facet in self.model.inferred
        return clustered and self.model.prior(facet).num_components > 1

    def about(self, facet: str, exemplars: int = 5) -> FacetDescription:
        """What tells a facet's clusters apart in the data shown, in the model's units, and how they
        go with the known labels; see :func:`~facetvae.describing.describe_clusters`.

        :param exemplars: most rows to name of each cluster.
        :raises ValueError: if the facet is unknown, or its clusters are not inferred.
        """
        prior = self.model.prior(facet)
        if not self._has_components(facet):
            raise ValueError(f"{facet} has no clusters: its prior is {type(prior).__name__}.")
        if facet not in self._proba:
            raise ValueError(
                f"The clusters of {facet} are given as labels and not inferred: there is none to "
                "judge."
            )
        typicality = None  # log p(c, z) at the means, if there is such a thing
        if not isinstance(prior, ClassBlocks):
            with torch.no_grad(), evaluating(self.guide):
                z = self._means[facet].to(self.model.gates)
                typicality = prior.log_joint(z).cpu().numpy()
        labels = {name: values.astype(str) for name, values in self.labels.items()}
        rows: Any = self.x
        if self.columns is not None:
            flat = self.x.reshape(len(self.x), -1)
            rows = dict(zip(self.columns, flat.T, strict=True))
        found = FacetClusters(facet, self._proba[facet], typicality)
        kinds = kinds_of(self.model.likelihood, self.columns)
        return describe_clusters(found, rows, labels, exemplars=exemplars, kinds=kinds)

    def swaps(self, facet: str, first: int, second: int) -> np.ndarray:
        """Two data with one facet exchanged, decoded.

        :returns: ``[2, 2, *x_shape]``: the facet of either datum by row, all else by column.
        :raises ValueError: if the facet is unknown, or a row does not exist.
        """
        self.model.prior(facet)
        pair = torch.tensor([self._check_row(row) for row in (first, second)])
        own, others = pair.repeat_interleave(2), pair.repeat(2)
        z = {name: means[own if name == facet else others] for name, means in self._means.items()}
        beside = {
            name: each[own if name == f"c_{facet}" else others]  # a cluster comes with its latent
            for name, each in self._beside.items()
        }
        data = self._decode(z, beside)
        return data.reshape(2, 2, *data.shape[1:])

    def axes(self, facet: str, row: int) -> list[Axis]:
        """The latents of a facet that can be varied for a datum (for N-VAE, those of its class); if
        there are many, those with the largest variance.

        :raises ValueError: if the facet is unknown, or the row does not exist.
        """
        self._check_row(row)
        prior, z = self.model.prior(facet), self._means[facet].numpy()
        candidates = np.arange(prior.dim)
        if isinstance(prior, ClassBlocks):
            own = int(self._beside["label"][row])
            candidates = candidates.reshape(prior.num_components, prior.block_dim)[own]
        telling = candidates[np.argsort(-z[:, candidates].var(0), kind="stable")[:MAX_AXES]]
        low, high = z.min(0), z.max(0)
        margin = np.maximum(MARGIN * (high - low), 1e-3)
        return [
            Axis(j, float(low[j] - margin[j]), float(high[j] + margin[j]), float(z[row, j]))
            for j in np.sort(telling).tolist()
        ]

    def moved(
        self, facet: str, row: int, values: Mapping[int, float]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """A datum decoded with some latents of a facet set to ``values``, by index.

        :returns: the datum ``[*x_shape]``, and the probabilities ``[K]`` of the clusters of the
            facet's latent, if it has any.
        :raises ValueError: if facet, row or latent does not exist, or a value is no finite float.
        """
        prior = self.model.prior(facet)
        z = {name: means[self._check_row(row)][None].clone() for name, means in self._means.items()}
        for j, value in values.items():
            if not is_index(j, prior.dim) or not abs(number(value)) <= MAX_FLOAT:
                raise ValueError(
                    f"facet {facet!r} has the latents 0 to {prior.dim - 1}, got {j!r} at {value!r}"
                )
            z[facet][0, j] = number(value)
        datum = self._decode(z, {name: each[[row]] for name, each in self._beside.items()})[0]
        if facet not in self.model.inferred or isinstance(prior, ClassBlocks):
            return datum, None
        with torch.no_grad(), evaluating(self.guide):
            return datum, prior.log_joint(z[facet]).softmax(-1)[0].cpu().numpy()

    def samples(
        self,
        facet: str,
        choice: int | None = None,
        n: int = 10,
        held: int | None = None,
        seed: int = 0,
    ) -> np.ndarray:
        """Draws ``[n, *x_shape]`` of one of a facet's :meth:`choices`, or of its whole prior.

        :param held: a row whose other parts are used in all draws; by default these are drawn, too.
        :raises ValueError: if facet, choice or row does not exist, or the prior has no draws.
        """
        check_count("n", n)
        check_seed("seed", seed)
        if isinstance(self.model.prior(facet), Flat):
            raise ValueError(
                f"{type(self.model).__name__} has no prior to draw from: it encodes and decodes "
                "alone."
            )
        if choice is not None:
            check_one_of("choice", choice, self.choices(facet))
        cluster = choice if self._has_components(facet) else None
        given, others, inferred = {}, None, {}
        if held is not None:
            row = [self._check_row(held)]
            others = {name: z[row].to(self.model.gates) for name, z in self._means.items()}
            decoded = [f"c_{name}" for name in self.model.decoded_clusters if name != facet]
            inferred = {name: self._beside[name][row * n] for name in decoded}
            if self.num_classes and cluster is None:
                given = {"label": self._beside["label"][row * n]}
        if choice is not None and cluster is None:
            given = {"label": torch.full((n,), choice)}
        with seeded(seed, self.model.gates.device), torch.no_grad(), evaluating(self.guide):
            z = latents_of_cluster(self.model, facet, cluster, n, held=others)
            clusters = self.model.draw_clusters(z, facet, cluster) | inferred
            return self._decode(z, self.model.draw_given(n, facet, cluster, given) | clusters)

    def _decode(self, z: Mapping[str, Tensor], beside: Mapping[str, Any]) -> np.ndarray:
        device = self.model.gates.device
        with torch.no_grad(), evaluating(self.guide):
            beside = {name: torch.as_tensor(each, device=device) for name, each in beside.items()}
            return self.model.decode(z, **beside).mean.cpu().numpy()

    def _check_columns(self, columns: Sequence[str] | None) -> tuple[str, ...] | None:
        if columns is None:
            return getattr(self.model.likelihood, "names", None)
        names, needed = tuple(map(str, columns)), int(np.prod(self.x.shape[1:]))
        if len(set(names)) < len(names) or len(names) != needed:
            raise ValueError(
                f"columns must be {needed} names that differ, one for each entry of a datum, got "
                f"{len(set(names))} in {len(names)}"
            )
        return names

    def _check_row(self, row: int) -> int:
        if not is_index(row, len(self.x)):
            raise ValueError(f"there are the inputs 0 to {len(self.x) - 1}, got {row!r}")
        return row
