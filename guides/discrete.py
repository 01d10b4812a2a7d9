"""How a guide handles clusters whose probabilities a network gives: enumerated, relaxed, or drawn
and scored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf, log

import pyro
import torch
from torch import Tensor, nn

from guides.baselines import BASELINES
from guides.needs import Needs
from ppl_models.base import FacetModel
from ppl_models.checks import check_count, check_one_of, number
from ppl_models.configurable import Configurable, Options
from ppl_models.distributions import Component, RelaxedComponent
from ppl_models.program import ENUMERATE

__all__ = ["Annealed", "Discrete", "Enumerate", "GumbelSoftmax", "ScoreFunction"]


class Discrete(Configurable, nn.Module):
    """Handling of the sites ``c_NAME``.

    :cvar needs: what an objective must do with them; see :attr:`~guides.base.FacetGuide.needs`.
    """

    needs: Needs

    def attach(self, model: FacetModel) -> None:
        """Build what depends on the model; called once, by the guide."""

    @abstractmethod
    def sample(self, name: str, logits: Tensor, x: Tensor, downstream: Sequence[str]) -> Tensor:
        """Sample the cluster of facet ``name``: one-hot or relaxed, event ``[K]``.

        :param logits: of q(c given x), ``[B, K]``.
        :param downstream: other sites whose densities, in model or guide, depend on the value.
        """

    def at_step(self, step: Tensor) -> None:
        """Told the number of each optimiser step before it."""

    @contextmanager
    def without_relaxation(self) -> Iterator[None]:
        """Within this context draws follow the probabilities exactly."""
        yield


class Enumerate(Discrete):
    """Every cluster, weighted by its probability: no noise and no bias, at K times the work where z
    depends on c.
    """

    needs = Needs.FREE_ENUMERATION

    def sample(self, name: str, logits: Tensor, x: Tensor, downstream: Sequence[str]) -> Tensor:
        return pyro.sample(f"c_{name}", Component(logits=logits), infer=ENUMERATE)


class Annealed(Options):
    """A temperature that falls geometrically from ``start`` to ``end`` over the first ``steps``
    optimiser steps.

    In a shorter run it does not reach ``end``.

    :raises ValueError: if a temperature is not positive or ``steps`` is below 1.
    """

    def __init__(self, start: float = 1.0, end: float = 0.3, steps: int = 10_000) -> None:
        if not (0 < number(start) < inf and 0 < number(end) < inf):
            raise ValueError(f"temperatures must be positive, got start={start!r}, end={end!r}")
        self.start, self.end = start, end
        self.steps = check_count("steps", steps)

    def __call__(self, step: Tensor) -> Tensor:
        done = (step / self.steps).clamp(max=1)
        return self.start * (done * log(self.end / self.start)).exp()


class GumbelSoftmax(Discrete):
    """Relaxed draws that are differentiated by the probabilities, with the KL of c in closed form.

    The density of a relaxed draw is no bound together with a categorical prior, so the relaxed
    value stands only inside the other sites' expectations; there it biases their value (soft) or
    their gradient (hard). What the history and :func:`inference.elbo` report is drawn hard, and so
    the ELBO.

    :param temperature: positive, or :class:`Annealed`.
    :param hard: straight-through: one-hot values, relaxed gradients.
    :raises ValueError: if ``temperature`` is not positive.
    """

    needs = Needs.RELAXATION

    def __init__(self, temperature: float | Annealed = 0.5, hard: bool = False) -> None:
        super().__init__()
        start = temperature.start if isinstance(temperature, Annealed) else temperature
        if not 0 < number(start) < inf:
            raise ValueError(f"temperature must be positive, got {temperature!r}")
        self.schedule: Callable[[Tensor], Tensor] | None = (
            temperature if isinstance(temperature, Annealed) else None
        )
        self.hard = hard
        self.register_buffer("temperature", torch.tensor(float(start)))
        self.temperature: Tensor

    def sample(self, name: str, logits: Tensor, x: Tensor, downstream: Sequence[str]) -> Tensor:
        return pyro.sample(f"c_{name}", self.relaxed(logits))

    def relaxed(self, logits: Tensor) -> RelaxedComponent:
        """The choice with these logits ``[..., K]``, its draws relaxed."""
        return RelaxedComponent(logits, self.temperature, self.hard)

    def at_step(self, step: Tensor) -> None:
        if self.schedule is not None:
            self.temperature = self.schedule(step)

    @contextmanager
    def without_relaxation(self) -> Iterator[None]:
        kept, self.hard = self.hard, True
        try:
            yield
        finally:
            self.hard = kept

    def extra_repr(self) -> str:
        return f"temperature={self.schedule or float(self.temperature)}, hard={self.hard}"


class ScoreFunction(Discrete):
    """One drawn cluster, its probability's gradient from the score function (REINFORCE): unbiased,
    and noisy.

    :param baseline: subtracted from what a draw cost before it is scored: ``"none"``, ``"average"``
        (decaying mean of past costs) or ``"learned"`` (a network of x).
    :raises ValueError: for another baseline.
    """

    needs = Needs.SCORING

    def __init__(self, baseline: str = "average") -> None:
        super().__init__()
        self.baseline = check_one_of("baseline", baseline, BASELINES)

    def attach(self, model: FacetModel) -> None:
        if hasattr(self, "baselines"):
            raise ValueError(
                "this ScoreFunction holds the baselines of another guide: give each guide its own"
            )
        self.baselines = nn.ModuleDict(
            {name: BASELINES[self.baseline](model.x_shape) for name in model.mixtures}
        )

    def sample(self, name: str, logits: Tensor, x: Tensor, downstream: Sequence[str]) -> Tensor:
        baseline = self.baselines[name]
        infer = {
            "cost_baseline": baseline,
            "cost_baseline_input": x,
            "downstream": frozenset(downstream),
        }
        return pyro.sample(f"c_{name}", Component(logits=logits), infer=infer)
