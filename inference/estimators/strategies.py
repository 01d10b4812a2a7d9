"""How the clustering estimator fits: latents first, then mixtures in them, then all together."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from guides import FacetGuide, VaDEGuide
from inference.estimators.base import Chosen
from inference.estimators.convergence import STEPS_PER_LOOK, StopConverged, ended
from inference.estimators.data import residual_scale
from inference.estimators.defaults import Lengths, epochs_of, likeliest_number
from inference.estimators.divergence import blaming_divergence
from inference.estimators.subspaces import independent_subspaces, teach
from inference.initialization.mixtures import fit_mixtures
from inference.randomness import seeded
from inference.runner import SVIRunner
from inference.schedules import AbruptFadeInWarning, ProgressiveFadeIn, Schedule
from inference.training.loop import DeadFacetWarning
from ppl_models import MFCVAE, GaussianMixture, StandardNormal

__all__ = ["FitStrategy", "LadderStrategy", "SubspaceStrategy"]

# Fits of each mixture, of which the most likely one is kept.
RESTARTS = 10


@dataclass(frozen=True)
class FitStrategy(ABC):
    """A warm start and the training that follows, for any number of facets.

    :param names: names of the facets, shallow to deep.
    :param stops_early: whether phases end by convergence.

    :cvar covariance: of the mixtures' components.
    :ivar ended: how each phase ended.
    """

    covariance: ClassVar[Literal["diag", "full"]] = "diag"

    x_shape: tuple[int, ...]
    names: Sequence[str]
    chosen: Chosen
    lengths: Lengths
    stops_early: bool
    ended: dict[str, str] = field(default_factory=dict, init=False)

    @abstractmethod
    def latents(
        self, x: np.ndarray, held_out: np.ndarray | None, label: Mapping[str, np.ndarray]
    ) -> FacetGuide:
        """The facets' latents under a standard normal prior.

        :param label: known clusters, by facet; -1 where unknown.
        """

    def mixtures(
        self,
        x: np.ndarray,
        latents: FacetGuide,
        numbers: Mapping[str, int],
        label: Mapping[str, np.ndarray],
    ) -> SVIRunner:
        """A runner with the same networks and mixture priors, which are fitted to the latents."""
        dims = {name: prior.dim for name, prior in latents.model.priors.items()}
        with seeded(self.chosen.seed, torch.device("cpu")):  # their starting values are drawn
            priors = {
                name: GaussianMixture(numbers[name], dim, self.covariance)
                for name, dim in dims.items()
            }
        runner = self._runner(priors)
        runner.guide.encoder.load_state_dict(latents.encoder.state_dict())
        runner.model.decoder.load_state_dict(latents.model.decoder.state_dict())
        runner.model.likelihood.load_state_dict(latents.model.likelihood.state_dict())
        fit_mixtures(runner.guide, x, seed=self.chosen.seed, label=label or None, n_init=RESTARTS)
        return runner

    def together(
        self,
        runner: SVIRunner,
        x: np.ndarray,
        held_out: np.ndarray | None,
        label: Mapping[str, np.ndarray],
    ) -> None:
        """Train everything together, until that has converged."""
        self._fit("together", runner, x, held_out, self.lengths.together, label=label or None)

    def numbers(
        self, x: np.ndarray, latents: FacetGuide, chosen: Mapping[str, int | None]
    ) -> dict[str, int]:
        """How many clusters each facet has: the requested number, or the likeliest one given the
        latents.
        """
        z = latents.embed(x)
        return {
            name: k
            if k is not None
            else likeliest_number(z[name], self.covariance, self.chosen.seed)
            for name, k in chosen.items()
        }

    def _runner(self, facets: Mapping[str, Any], schedule: Schedule | None = None) -> SVIRunner:
        return self.chosen.runner(
            partial(MFCVAE, self.x_shape, facets), VaDEGuide, schedule=schedule
        )

    def _fit(
        self,
        phase: str,
        runner: SVIRunner,
        x: np.ndarray,
        held_out: np.ndarray | None,
        epochs: int,
        after: int = 0,
        **options: Any,
    ) -> None:
        """Train for so many epochs, or fewer if the phase converges.

        :param after: the step from which on it may.
        """
        every, callbacks = epochs, []
        if self.stops_early:
            every = min(epochs, epochs_of(STEPS_PER_LOOK, len(x), self.chosen.batch_size))
            callbacks = [StopConverged(held_out, after)]
        runner.fit(
            x,
            epochs,
            self.chosen.batch_size,
            every,
            progress=False,
            callbacks=callbacks,
            **options,
        )
        self.ended[phase] = ended(runner.epoch, epochs)


@dataclass(frozen=True)
class LadderStrategy(FitStrategy):
    """Facets at different depths of a ladder are faded in one after the other, the deepest first
    (MFCVAE, D.3).

    :param dims: length of each facet's latent vector.
    """

    dims: Mapping[str, int]

    def latents(
        self, x: np.ndarray, held_out: np.ndarray | None, label: Mapping[str, np.ndarray]
    ) -> FacetGuide:
        alone, fade_steps = self.lengths.alone, self.lengths.fade_steps
        schedule, faded_in = None, 0
        if len(self.names) > 1:
            schedule = ProgressiveFadeIn(alone, fade_steps)
            faded_in = sum(alone[:-1]) * -(-len(x) // self.chosen.batch_size) + fade_steps
        priors = {name: StandardNormal(dim) for name, dim in self.dims.items()}
        runner = self._runner(priors, schedule)
        with warnings.catch_warnings():
            # Expected with few epochs, which the user asked for; the last phase warns if a facet is
            # dead.
            for expected in (AbruptFadeInWarning, DeadFacetWarning):
                warnings.simplefilter("ignore", expected)
            self._fit("alone", runner, x, held_out, sum(alone), faded_in)
        return runner.guide


@dataclass(frozen=True)
class SubspaceStrategy(FitStrategy):
    """Facets are independent subspaces of the data.

    :param dim: length of all facets' latents together.
    """

    covariance = "full"
    dim: int

    def latents(
        self, x: np.ndarray, held_out: np.ndarray | None, label: Mapping[str, np.ndarray]
    ) -> FacetGuide:
        complete = np.nan_to_num(x)  # columns are standardised, so 0 is their mean
        found = independent_subspaces(complete, self.dim, len(self.names), self.chosen.seed)
        subspaces = found.given_to([label.get(name) for name in self.names], complete)
        dims = zip(self.names, subspaces.dims, strict=True)
        guide = self._runner({name: StandardNormal(dim) for name, dim in dims}).guide
        scale, most = residual_scale(x, self.dim), sum(self.lengths.alone)
        others = None if held_out is None else np.nan_to_num(held_out)
        with blaming_divergence(guide, complete, self.chosen.learning_rate):
            epochs = teach(
                guide, complete, subspaces, scale, most, self.chosen, others, self.stops_early
            )
        self.ended["subspaces"] = ended(epochs, most)
        return guide
