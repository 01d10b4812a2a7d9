"""Queries for exploring a fitted run, answered with arrays.

Posteriors are computed once, for all data, so that a query needs one decoder pass at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from facetvae.describing import FacetClusters, FacetDescription, describe_clusters
from facetvae.describing.columns import are_names, kinds_of
from facetvae.explorer.pictures import Pictures
from guides.base import FacetGuide, check_guide
from inference.evaluation.clusters import latents_of_cluster, rank_clusters, surest
from inference.metrics import clustering_scores, probe_accuracy
from inference.randomness import seeded
from ppl_models.columns import Columns
from ppl_models.given.checks import (
    check_count,
    check_kind,
    check_one_of,
    check_seed,
    is_index,
    number,
)
from ppl_models.modes import evaluating
from ppl_models.priors import ClassBlocks, Flat

__all__ = ["Axis", "Cluster", "Explorer", "Knowledge", "Moved"]

# Most latents to vary at once, and rows that a probe is trained and tested on.
MAX_AXES, PROBED_ROWS = 16, 1500
# Most parts to swap at once, which takes 2 to this power decoded data.
MAX_SWAPPED = 6
# The largest number of the models' precision.
MAX_FLOAT = float(np.finfo(np.float32).max)
# How far latents can be varied beyond the data's range, as a share of that range.
MARGIN = 0.15


@dataclass(frozen=True)
class Cluster:
    """One cluster of a facet: the number of its data, their mean probability, and the rows with the
    highest probability.
    """

    number: int
    count: int
    certainty: float
    rows: np.ndarray


@dataclass(frozen=True)
class Axis:
    """A latent that can be varied: its index, its range, and the datum's value."""

    index: int
    low: float
    high: float
    value: float


@dataclass(frozen=True)
class Moved:
    """A decoded datum ``[*x_shape]``, and the most probable cluster of its facet's latent."""

    datum: np.ndarray
    cluster: int | None
    probability: float | None


@dataclass(frozen=True)
class Knowledge:
    """How well a label is predicted from a facet: by a classifier from its latents, and from its
    clusters.

    :ivar probe: accuracy of the classifier on held-out data.
    :ivar chance: accuracy of always predicting the most common label.
    :ivar clustering: :func:`~inference.metrics.clustering_scores`; empty if clusters are not
        inferred.
    """

    probe: float
    chance: float
    clustering: dict[str, float]


class Explorer:
    """A fitted guide with some data, for exploration.

    A query that does not apply to the model, such as the clusters of a plain VAE, raises a
    ``ValueError`` that explains why. Several threads may send queries.

    :param guide: a fitted guide of any model.
    :param x: data ``[N, *x_shape]``.
    :param given: inputs of the model other than x, one entry per datum. Without ``group``, each
        datum is a group of its own. If another input is missing, only queries that need no
        posterior are available.
    :param labels: known labels of the data, integers ``[N]`` by name.
    :param image_shape: shape in which to draw a datum; see
        :class:`~facetvae.explorer.pictures.Pictures`.
    :param seed: of probes and their draws.
    :param columns: names of the entries of a datum, to describe clusters with; by default those
        of a :class:`~ppl_models.columns.Columns`, if that is the likelihood.
    :raises ValueError: if data, labels, names or other inputs do not fit.

    Example:
        >>> import numpy as np
        >>> from guides import VaDEGuide
        >>> from facetvae.explorer import Explorer
        >>> from ppl_models import GaussianMixture, SharedMLP, VaDE
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
        seed: int = 0,
        columns: Sequence[str] | None = None,
    ) -> None:
        check_guide(guide)
        check_seed("seed", seed)
        self.guide, self.model, self.x, self.seed = guide, guide.model, np.asarray(x), seed
        self.labels = {name: np.asarray(values) for name, values in (labels or {}).items()}
        for name, values in self.labels.items():
            if values.shape != (len(self.x),):
                raise ValueError(
                    f"label {name!r} has shape {values.shape}, but there are {len(self.x)} data"
                )
        self.columns = self._check_columns(columns)
        self._lock = RLock()
        self._given = dict(given or {})
        if "group" in guide.takes:
            self._given.setdefault("group", np.arange(len(self.x)))
        #: why there are no posteriors; ``None`` if there are
        self.refusal = self._look_at_data()
        self.pictures = Pictures.of(self.x, image_shape)

    def _look_at_data(self) -> str | None:
        """Compute the posteriors, which many queries use.

        :returns: what is missing for this, or ``None``.
        """
        self._means: dict[str, Tensor] = {}
        self._proba: dict[str, np.ndarray] = {}
        self._beside: dict[str, Tensor] = {}
        try:
            self._means = {
                name: torch.as_tensor(z)
                for name, z in self.guide.embed(self.x, **self._given).items()
            }
        except ValueError as error:
            missing = [
                name for name in self.guide.takes if name not in self._given or name == "group"
            ]
            if not missing:
                raise
            return f"{error}."
        if self.model.inferred:
            self._proba = self.guide.predict_proba(self.x, **self._given)
        self._beside = self.guide.decoder_given(self.x, self._given)
        return None

    # Contents

    @property
    def facets(self) -> list[str]:
        """Names of the facets, shallow to deep."""
        return list(self.model.priors)

    @property
    def parts(self) -> list[str]:
        """The inputs of the decoder: facets, and other inputs such as labels."""
        return [*self.facets, *self.model.decodes]

    def choices(self, facet: str) -> list[int]:
        """The choices for a facet's draws: its clusters, the largest first; if it has none, the
        labels that the decoder reads; or nothing.
        """
        prior = self.model.prior(facet)
        if facet in self._proba:
            counts = np.bincount(self._proba[facet].argmax(-1), minlength=prior.num_components)
            return np.argsort(-counts, kind="stable").tolist()
        if self._has_components(facet):
            return list(range(prior.num_components))
        return list(range(self.num_classes))

    def kind_of_choices(self, facet: str) -> str:
        """The kind of :meth:`choices`, in one word."""
        return "Clusters" if self._has_components(facet) else "Labels"

    @property
    def num_classes(self) -> int:
        """How many labels the decoder distinguishes; 0 if it reads none."""
        return int(getattr(self.model, "num_classes", 0)) if "label" in self.model.decodes else 0

    def _has_components(self, facet: str) -> bool:
        return (facet in self.model.mixtures or facet in self.model.inferred) and self._prior(
            facet
        ).num_components > 1

    def _prior(self, facet: str) -> Any:
        return self.model.prior(facet)

    # Queries

    def clusters(self, facet: str, columns: int = 10) -> list[Cluster]:
        """Clusters that have data, in order of their mean probability, each with the ``columns``
        rows of highest probability.

        :raises ValueError: if the facet is unknown, or its clusters are not inferred.
        """
        check_count("columns", columns)
        self._check_inferred(facet)
        order, cluster, certainty = rank_clusters(self._proba[facet])
        return [
            Cluster(
                k, int(own.sum()), float(certainty[own].mean()), surest(own, certainty, columns)
            )
            for k, own in ((k, cluster == k) for k in order)
        ]

    def about(self, facet: str) -> FacetDescription:
        """What tells a facet's clusters apart in the data shown, in the model's units, and how they
        go with the known labels; see :func:`~facetvae.describing.describe_clusters`.

        :raises ValueError: if the facet is unknown, or its clusters are not inferred.
        """
        self._check_inferred(facet)
        found = FacetClusters(facet, self._proba[facet], self._log_joint(facet))
        shown = (
            self.x if self.columns is None else dict(zip(self.columns, self._flat.T, strict=True))
        )
        labels = {
            name: values.astype(str)
            for name, values in self.labels.items()
            if not are_names(len(np.unique(values)), len(values))
        }
        return describe_clusters(found, shown, labels, kinds=self._kinds())

    def _kinds(self) -> dict[str, str]:
        """Kinds of columns that the likelihood knows, by the names shown."""
        likelihood = self.model.likelihood
        if self.columns is None or not isinstance(likelihood, Columns):
            return {}
        kinds = kinds_of(likelihood)
        named = zip(likelihood.names, self.columns, strict=True)
        return {shown: kinds[own] for own, shown in named if own in kinds}

    def mean_pictures(self, told: FacetDescription) -> np.ndarray:
        """A picture of the mean of each cluster that :meth:`about` describes; none if the entries
        of a datum have names.
        """
        means = [each["mean"] for each in told.clusters if "mean" in each]
        x = np.array(means, float).reshape(-1, *self.x.shape[1:])
        return self.pictures(x / 255 if self.x.dtype == np.uint8 else x) if means else x

    def _log_joint(self, facet: str) -> np.ndarray | None:
        """log p(c, z) at the means ``[N, K]``, if there is such a thing."""
        prior = self._prior(facet)
        if isinstance(prior, ClassBlocks):
            return None
        with self._asking():
            z = self._means[facet].to(self.model.gates)
            return prior.log_joint(z).cpu().numpy()

    def knowledge(self, facet: str, label: str) -> Knowledge:
        """How well ``label`` is predicted from draws of a facet's latent, on a part of the data, of
        which two thirds are for training.

        :raises ValueError: if the facet or label is unknown, or the label has only one value.
        """
        self._check_posterior()
        self._prior(facet)
        known = self.labels[check_one_of("label", label, self.labels)]
        rows = np.random.default_rng(self.seed).permutation(len(self.x))[:PROBED_ROWS]
        train, test = np.split(rows, [2 * len(rows) // 3])
        if len(test) == 0 or len(np.unique(known[train])) < 2:
            raise ValueError(
                f"label {label!r} has one value only in the data shown: there is nothing to tell "
                "apart"
            )
        z = self._draws[facet]
        accuracy = probe_accuracy(z[train], known[train], z[test], known[test], self.seed)
        values, counts = np.unique(known[train], return_counts=True)
        chance = float((known[test] == values[counts.argmax()]).mean())
        clusters = self._proba.get(facet)
        return Knowledge(
            accuracy,
            chance,
            {} if clusters is None else clustering_scores(known, clusters.argmax(-1)),
        )

    @cached_property
    def _draws(self) -> dict[str, np.ndarray]:
        with self._asking(self.seed):
            posterior = self.guide.posterior(self.x, **self._given)
            return {name: q.sample().cpu().numpy() for name, q in posterior.items()}

    def swaps(
        self, first: int, second: int, parts: Sequence[str] | None = None
    ) -> tuple[list[tuple[int, ...]], np.ndarray]:
        """Every combination of some :attr:`parts` of two data, decoded; all other parts are the
        first's.

        :param parts: the parts to swap, at most :data:`MAX_SWAPPED`; by default as many, from the
            first on.
        :returns: for each combination the row that each swapped part comes from, and data
            ``[2 ** len(parts), *x_shape]``.
        :raises ValueError: if a row or part does not exist, or if there are too many parts.
        """
        self._check_posterior()
        pair = [self._check_row(row) for row in (first, second)]
        swapped = self._check_swapped(self.parts[:MAX_SWAPPED] if parts is None else parts)
        combinations = list(product(pair, repeat=len(swapped)))
        chosen = dict.fromkeys(self.parts, torch.full((len(combinations),), first))
        chosen |= dict(zip(swapped, torch.tensor(combinations).T, strict=True))
        z = {name: self._means[name][chosen[name]] for name in self.facets}
        return combinations, self._decode(
            z, {name: self._beside[name][chosen[name]] for name in self.model.decodes}
        )

    def axes(self, facet: str, row: int, label: int | None = None) -> list[Axis]:
        """The latents of a facet that can be varied for a datum; if there are many, those with the
        largest variance.

        :param label: the label to decode with; for N-VAE, only the latents of this class are used.
        :raises ValueError: if the facet is unknown, or the row or label does not exist.
        """
        self._check_posterior()
        self._check_row(row)
        prior, z = self._prior(facet), self._means[facet].numpy()
        candidates = np.arange(prior.dim)
        if isinstance(prior, ClassBlocks):
            own = int(self._beside["label"][row]) if label is None else self._check_label(label)
            candidates = candidates.reshape(prior.num_components, prior.block_dim)[own]
        telling = candidates[np.argsort(-z[:, candidates].var(0), kind="stable")[:MAX_AXES]]
        low, high = z.min(0), z.max(0)
        margin = np.maximum(MARGIN * (high - low), 1e-3)
        return [
            Axis(j, float(low[j] - margin[j]), float(high[j] + margin[j]), float(z[row, j]))
            for j in np.sort(telling).tolist()
        ]

    def moved(
        self, facet: str, row: int, values: Mapping[int, float], label: int | None = None
    ) -> Moved:
        """A datum decoded with some latents of a facet set to ``values``, by index.

        :param label: the label to decode with instead of the datum's, if the decoder reads one.
        :raises ValueError: if the facet, row, latent or label does not exist, or a value is not a
            finite number in single precision.
        """
        self._check_posterior()
        dim = self._prior(facet).dim
        z = {name: means[self._check_row(row)][None].clone() for name, means in self._means.items()}
        for j, value in values.items():
            if not is_index(j, dim) or not abs(number(value)) <= MAX_FLOAT:
                raise ValueError(
                    f"facet {facet!r} has the latents 0 to {dim - 1}, got {j!r} at {value!r}"
                )
            z[facet][0, j] = number(value)
        beside = {name: each[row : row + 1] for name, each in self._beside.items()}
        if label is not None and "label" in beside:
            beside["label"] = torch.tensor([self._check_label(label)])
        datum = self._decode(z, beside)[0]
        if facet not in self.model.inferred or isinstance(self._prior(facet), ClassBlocks):
            return Moved(datum, None, None)
        with self._asking():
            proba = self._prior(facet).log_joint(z[facet]).softmax(-1)[0]
        return Moved(datum, int(proba.argmax()), float(proba.max()))

    def samples(
        self,
        facet: str,
        choice: int | None = None,
        n: int = 10,
        temperature: float = 1.0,
        held: int | None = None,
        seed: int = 0,
    ) -> np.ndarray:
        """Draws ``[n, *x_shape]`` of one of a facet's :meth:`choices`, or of its whole prior.

        :param temperature: factor on the standard deviation within components.
        :param held: a row whose other parts are used in all draws; by default they are drawn as
            well.
        :raises ValueError: if the facet, choice or row does not exist, or the prior cannot be drawn
            from.
        """
        check_count("n", n)
        check_seed("seed", seed)
        if not 0 <= number(temperature) <= MAX_FLOAT:
            raise ValueError(
                f"temperature is a factor on deviations and must be at least 0, got {temperature!r}"
            )
        if isinstance(self._prior(facet), Flat):
            raise ValueError(
                f"{type(self.model).__name__} has no prior to draw from: it encodes and decodes "
                "alone."
            )
        if choice is not None:
            check_one_of("choice", choice, self.choices(facet))
        cluster = choice if self._has_components(facet) else None
        given = {}
        if choice is not None and cluster is None:
            given = {"label": torch.full((n,), choice)}
        elif held is not None and self.num_classes and cluster is None:
            self._check_posterior()
            given = {"label": self._beside["label"][[self._check_row(held)] * n]}
        others = None
        if held is not None:
            self._check_posterior()
            others = {
                name: means[[self._check_row(held)]].to(self.model.gates)
                for name, means in self._means.items()
            }
        with self._asking(seed):
            z = latents_of_cluster(self.model, facet, cluster, n, temperature, others)
            return self._decode(z, self.model.draw_given(n, facet, cluster, given))

    # Helpers

    @contextmanager
    def _asking(self, seed: int | None = None) -> Iterator[None]:
        """Answer one query at a time, in evaluation mode, with draws from ``seed`` if given."""
        streams = nullcontext() if seed is None else seeded(seed, self.model.gates.device)
        with self._lock, torch.no_grad(), evaluating(self.guide), streams:
            yield

    def _decode(self, z: Mapping[str, Tensor], beside: Mapping[str, Any]) -> np.ndarray:
        device = self.model.gates.device
        with self._asking():
            beside = {name: torch.as_tensor(each, device=device) for name, each in beside.items()}
            return self.model.decode(z, **beside).mean.cpu().numpy()

    @property
    def _flat(self) -> np.ndarray:
        return self.x.reshape(len(self.x), -1)

    def _check_columns(self, columns: Sequence[str] | None) -> tuple[str, ...] | None:
        if columns is None:
            return getattr(self.model.likelihood, "names", None)
        names, needed = tuple(map(str, columns)), self._flat.shape[1]
        if len(set(names)) < len(names) or len(names) != needed:
            raise ValueError(
                f"columns must be {needed} names that differ, one for each entry of a datum, got "
                f"{len(set(names))} in {len(names)}"
            )
        return names

    def _check_posterior(self) -> None:
        if self.refusal is not None:
            raise ValueError(self.refusal)

    def _check_row(self, row: int) -> int:
        if not is_index(row, len(self.x)):
            raise ValueError(f"there are the inputs 0 to {len(self.x) - 1}, got {row!r}")
        return row

    def _check_label(self, label: int) -> int:
        if not is_index(label, self.num_classes):
            raise ValueError(
                f"label must be one of {tuple(range(self.num_classes))}, got {label!r}"
            )
        return label

    def _check_swapped(self, parts: Sequence[str]) -> Sequence[str]:
        for part in check_kind("parts", parts, (list, tuple), f"a list of some of {self.parts}"):
            check_one_of("part", part, self.parts)
        if not 1 <= len(set(parts)) == len(parts) <= MAX_SWAPPED:
            raise ValueError(
                f"Choose 1 to {MAX_SWAPPED} different parts to swap: each doubles the number of "
                f"pictures, got {len(parts)}."
            )
        return parts

    def _check_inferred(self, facet: str) -> None:
        prior = self._prior(facet)
        self._check_posterior()
        if facet in self._proba and prior.num_components > 1:
            return
        if self._has_components(facet):
            raise ValueError(
                f"The clusters of {facet} are given as labels and not inferred: there is none to "
                "judge."
            )
        raise ValueError(f"{facet} has no clusters: its prior is {type(prior).__name__}.")
