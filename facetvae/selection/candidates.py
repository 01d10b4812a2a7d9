"""How many facets and clusters: comparison of candidates on held-out data, without labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from facetvae.selection.agreement import (
    clusters_in_use,
    mean_and_deviation,
    redundancy,
    stability,
)
from guides.base import FacetGuide
from inference.evaluation.bounds import elbo_per_datum, mutual_information
from inference.randomness import seeded
from inference.runner import SVIRunner
from ppl_models.given.arrays import as_numbers
from ppl_models.given.checks import check_kind, check_size

__all__ = ["FittedRun", "Selection", "select_model"]

Fitted = SVIRunner | FacetGuide


@dataclass(frozen=True)
class FittedRun:
    """Measures of one fitted guide on held-out data.

    :ivar elbo: of each datum, ``[N]``, in nats.
    :ivar partitions: clusters ``[N]`` by facet.
    :ivar in_use: :func:`clusters_in_use` by facet.
    :ivar mutual_information: I(x; c) by facet, in nats.
    """

    elbo: np.ndarray
    partitions: dict[str, np.ndarray]
    in_use: dict[str, int]
    mutual_information: dict[str, float]

    @property
    def redundancy(self) -> float:
        """The highest :func:`redundancy` of two facets; NaN for fewer than two."""
        return max(redundancy(self.partitions).values(), default=math.nan)


@dataclass(frozen=True)
class Selection:
    """Candidates, from the smallest to the largest, and the one that the held-out data choose.

    ``str`` gives a table of means over seeds, with sample deviations in brackets (for differences,
    standard errors).

    :ivar runs: of each candidate, equally many, on the same data.
    :raises ValueError: if there are no runs or not equally many, on different numbers of data, with
        an ELBO that is not finite, or if a candidate's facets have other names for another seed.

    Example:
        >>> import numpy as np
        >>> from facetvae.selection import FittedRun, Selection
        >>> def run(elbo):
        ...     found = {"digit": np.array([0, 1, 0, 1])}
        ...     return FittedRun(np.array(elbo), found, {"digit": 2}, {"digit": 0.7})
        >>> runs = {"K = 2": [run([-9, -7, -8, -8])], "K = 3": [run([-9.5, -6, -8, -8])]}
        >>> selection = Selection(runs)
        >>> selection.best, selection.chosen  # the smaller one is within one standard error
        ('K = 3', 'K = 2')
    """

    runs: Mapping[str, Sequence[FittedRun]]

    def __post_init__(self) -> None:
        for name, runs in self.runs.items():
            _check_runs(name, runs)
        sizes = {name: (len(runs), *np.shape(runs[0].elbo)) for name, runs in self.runs.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(
                "runs must be equally many of each candidate, on the same data, got (runs, data) "
                f"{sizes}"
            )

    @property
    def best(self) -> str:
        """The candidate with the highest mean held-out ELBO over data and seeds."""
        return max(self.runs, key=lambda name: self._elbos(name).mean())

    @property
    def chosen(self) -> str:
        """The smallest candidate whose held-out ELBO is within one standard error of the best
        one's.
        """
        return next(name for name, (d, error) in self.differences.items() if d >= -error)

    @property
    def differences(self) -> dict[str, tuple[float, float]]:
        r"""Each candidate's held-out ELBO minus that of the best, in nats per datum, and its
        standard error.

        .. math:: \mathrm{error}^2 = \frac{1}{N} \mathrm{Var}_n\big[\bar d_{\cdot n}\big]
                  + \frac{1}{S} \mathrm{Var}_s\big[\bar d_{s \cdot}\big]

        for differences :math:`d_{sn}` of S seeds and N data. Data that are hard to describe are so
        for both candidates, which cancels in the difference. With one seed the second term is
        unknown and left out, so the error is too small.
        """
        best, found = self._elbos(self.best), {}
        for name in self.runs:
            d = self._elbos(name) - best
            means = d.mean(0), d.mean(1)
            squared = sum(each.var(ddof=1) / len(each) for each in means if len(each) > 1)
            found[name] = (min(float(d.mean()), 0.0), math.sqrt(squared))
        return found

    def elbo(self, name: str) -> tuple[float, float]:
        """Held-out ELBO of a candidate, nats per datum: mean over seeds and sample deviation."""
        return mean_and_deviation(self._elbos(name).mean(1))

    def stability(self, name: str) -> dict[str, tuple[float, float]]:
        """:func:`stability` of a candidate by facet; NaN for a single seed."""
        partitions = [run.partitions for run in self.runs[name]]
        if len(partitions) == 1:
            return dict.fromkeys(partitions[0], (math.nan, math.nan))
        return stability(partitions)

    def by_facet(self, name: str, what: str) -> dict[str, tuple[float, float]]:
        """``in_use`` or ``mutual_information`` of a candidate by facet: mean over seeds and
        deviation. Facets keep their own names, unlike those of :meth:`stability`.
        """
        rows = [getattr(run, what) for run in self.runs[name]]
        return {facet: mean_and_deviation([row[facet] for row in rows]) for facet in rows[0]}

    def redundancy(self, name: str) -> tuple[float, float]:
        """Highest redundancy of two facets: mean over seeds and deviation; NaN for fewer than two
        facets.
        """
        return mean_and_deviation([run.redundancy for run in self.runs[name]])

    def __str__(self) -> str:
        heads = "held-out ELBO", "to the best", "stability", "clusters in use", "I(x; c)"
        rows = [("", *heads, "redundancy"), *map(self._row, self.runs)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        best = f"the smallest within one standard error of the best, {self.best}"
        return "\n".join([*lines, f"chosen: {self.chosen}, {best}"])

    def _row(self, name: str) -> tuple[str, ...]:
        difference, error = self.differences[name]
        return (
            f"{'*' if name == self.chosen else ' '} {name}",
            _cell(*self.elbo(name), 2),
            f"{difference:.2f} ({error:.2f})",
            _cells(self.stability(name), 2),
            _cells(self.by_facet(name, "in_use"), 1),
            _cells(self.by_facet(name, "mutual_information"), 2),
            _cell(*self.redundancy(name), 2),
        )

    def _elbos(self, name: str) -> np.ndarray:
        """``[S, N]``."""
        return np.array([run.elbo for run in self.runs[name]], float)


def select_model(
    candidates: Mapping[str, Sequence[Fitted]],
    x: ArrayLike | Tensor,
    num_draws: int = 20,
    **given: Any,
) -> Selection:
    """Compare candidates, such as numbers of facets and clusters, on held-out data.

    The rule: choose the smallest candidate whose held-out ELBO is within one standard error of the
    best one's, where the error is that of their difference. The ELBO has all weights at 1, whatever
    weights a candidate was trained with. Agreement of seeds, clusters in use and redundant facets
    say whether the choice can be trusted.

    All candidates must have the same likelihood and the same form of x: otherwise their ELBOs bound
    different quantities. The comparison includes how well each posterior family fits its candidate.

    :param candidates: fitted runners or guides, one for each seed, by name, **from the smallest
        candidate to the largest**; equally many for each.
    :param x: held-out data, ``[N, *x_shape]``, without labels.
    :param num_draws: draws of the latents for the ELBO; their noise is part of the standard errors.
    :param given: inputs of the models other than x, one entry per datum.
    :raises ValueError: if candidates or numbers are invalid, the data do not fit, or a fitted
        parameter is not finite.

    Example:
        >>> import numpy as np
        >>> from guides import VaDEGuide
        >>> from inference import SVIRunner
        >>> from facetvae.selection import select_model
        >>> from ppl_models import VAE, SharedMLP
        >>> x = np.random.default_rng(0).random((40, 6))
        >>> def build(dim, seed):
        ...     model = VAE((6,), dim, network=SharedMLP((8,)))
        ...     runner = SVIRunner(model, VaDEGuide(model), seed=seed)
        ...     return runner.fit(x[:30], epochs=2, progress=False)
        >>> candidates = {f"{d} latents": [build(d, seed) for seed in (0, 1)] for d in (1, 2)}
        >>> select_model(candidates, x[30:], num_draws=5).chosen in candidates
        True
    """
    if not isinstance(candidates, Mapping) or not candidates:
        raise ValueError(
            'candidates must be lists of fitted runs by name, such as {"2 facets": runs}, got '
            f"{candidates!r:.60}"
        )
    guides = {name: _guides_of(name, fitted) for name, fitted in candidates.items()}
    check_size("num_draws", num_draws)
    as_numbers(x, "x")
    runs = {
        name: [_look_at(guide, x, num_draws, given) for guide in each]
        for name, each in guides.items()
    }
    return Selection(runs)


def _check_runs(name: str, runs: Sequence[FittedRun]) -> None:
    """Check one candidate's runs.

    :raises ValueError: if there are none, facets have other names for another seed, or data have no
        finite ELBO.
    """
    if not runs:
        raise ValueError(f"candidate {name!r} has no runs")
    for run in runs:
        if (faulty := np.flatnonzero(~np.isfinite(run.elbo))).size:
            raise ValueError(
                f"the ELBO of held-out datum {faulty[0]} is {run.elbo[faulty[0]]} by candidate "
                f"{name!r} ({faulty.size} of {len(run.elbo)} are not finite): leave such data out"
            )
        if set(run.partitions) != set(runs[0].partitions):
            raise ValueError(
                f"the facets of candidate {name!r} are {list(runs[0].partitions)} in one run and "
                f"{list(run.partitions)} in another: give them the same names for every seed"
            )


def _look_at(
    guide: FacetGuide, x: ArrayLike | Tensor, num_draws: int, given: Mapping[str, Any]
) -> FittedRun:
    with seeded(0, guide.model.gates.device):
        by_datum = elbo_per_datum(guide.model, guide, x, num_draws, **given)
    proba = guide.predict_proba(x, **given)
    return FittedRun(
        elbo=by_datum,
        partitions={name: each.argmax(-1) for name, each in proba.items()},
        in_use={name: clusters_in_use(each) for name, each in proba.items()},
        mutual_information=mutual_information(guide, x, **given),
    )


def _guides_of(name: str, candidate: Any) -> list[FacetGuide]:
    """:raises ValueError: if a candidate is no sequence of runs, or a run failed."""
    needed = "runners or guides in a sequence"
    check_kind(f"candidate {name!r}", candidate, Sequence, needed)
    for each in candidate:
        check_kind(f"each of candidate {name!r}", each, (SVIRunner, FacetGuide), needed)
    guides = [each.guide if isinstance(each, SVIRunner) else each for each in candidate]
    if not all(bool(value.isfinite().all()) for guide in guides for value in guide.parameters()):
        raise ValueError(
            f"candidate {name!r} has parameters that are not finite: its training failed, "
            "leave it out"
        )
    return guides


def _cell(mean: float, deviation: float, digits: int) -> str:
    if math.isnan(mean):
        return "-"
    spread = "" if math.isnan(deviation) else f" ({deviation:.{digits}f})"
    return f"{mean:.{digits}f}{spread}"


def _cells(values: Mapping[str, tuple[float, float]], digits: int) -> str:
    return ", ".join(_cell(*each, digits) for each in values.values()) or "-"
