"""How a guide handles clusters with a network: enumerated, relaxed, or drawn and scored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from math import log, prod
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from ppl_models.base import FacetModel
from ppl_models.configurable import Configurable, Options
from ppl_models.distributions import Component, RelaxedComponent
from ppl_models.given.checks import check_count, check_kind, check_one_of, check_positive
from ppl_models.modes import temporarily
from ppl_models.program import ENUMERATE

__all__ = ["Annealed", "Discrete", "Enumerate", "GumbelSoftmax", "Needs", "ScoreFunction"]


# Of baselines: how much of the average a new cost leaves, and the network's hidden units.
DECAY, HIDDEN = 0.9, 100


class DecayingAverage(nn.Module):
    """Exponentially decaying mean of past costs, independent of x.

    :param x_shape: shape of one sample.
    """

    def __init__(self, x_shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(()))
        self.average: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """The predicted cost of each sample of ``[B, *x_shape]``: ``[B]``, or a scalar for all."""
        return self.average

    def loss(self, guess: Tensor, cost: Tensor) -> Tensor:
        """A loss that trains the prediction ``guess`` on the actual costs ``[B]``."""
        if self.training:  # evaluation must not change the guide
            self.average.mul_(DECAY).add_((1 - DECAY) * cost.mean())
        return cost.new_zeros(())


class LearnedBaseline(nn.Module):
    """A network of x, trained by squared error; the gradient reaches no other parameters."""

    def __init__(self, x_shape: Sequence[int]) -> None:
        super().__init__()
        first, last = nn.Linear(prod(x_shape), HIDDEN), nn.Linear(HIDDEN, 1)
        self.network = nn.Sequential(nn.Flatten(), first, nn.ReLU(), last, nn.Flatten(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def loss(self, guess: Tensor, cost: Tensor) -> Tensor:
        return mse_loss(guess, cost, reduction="sum")


#: Baselines by name, as :class:`~guides.ScoreFunction` takes them.
BASELINES: dict[str, type[DecayingAverage | LearnedBaseline] | None] = {
    "none": None,
    "average": DecayingAverage,
    "learned": LearnedBaseline,
}


class Needs(Enum):
    """What an objective must do right for a guide; which ones do is known where objectives are."""

    #: any: it is a program of the user's, which may do anything
    ANY_OBJECTIVE = "any objective"
    #: every site is drawn with a gradient of its own
    NOTHING = "nothing"
    #: draws are shared among the members of a group
    GROUPING = "grouping"
    #: clusters are enumerated, with probabilities that follow from the draws of z
    ENUMERATION = "enumeration"
    #: clusters are enumerated, and no posterior depends on the draw of another site: a KL in
    #: closed form is right too
    FREE_ENUMERATION = "free enumeration"
    #: unknown classes are enumerated, known ones are given
    CLASSIFICATION = "classification"
    #: clusters are relaxed, so that their density is never to be asked for
    RELAXATION = "relaxation"
    #: clusters are drawn without a gradient of their own
    SCORING = "scoring"


class Discrete(Configurable, nn.Module):
    """Base of the ways to handle the sites ``c_NAME``.

    :cvar needs: what an objective must do with them; see :attr:`~guides.base.FacetGuide.needs`.
    """

    needs: Needs

    #: whether a guide has it, with whose steps it changes
    attached = False

    def check_free(self) -> None:
        """:raises ValueError: if another guide has it."""
        if self.attached:
            raise ValueError(
                f"this {type(self).__name__} belongs to another guide: give each guide its own"
            )

    def attach(self, model: FacetModel) -> None:
        """Build what depends on the model; called once by the guide."""
        self.attached = True

    @abstractmethod
    def sample(self, name: str, logits: Tensor, x: Tensor, downstream: Sequence[str]) -> Tensor:
        """Sample the cluster of facet ``name``: one-hot or relaxed, event ``[K]``.

        :param logits: of q(c given x), ``[B, K]``.
        :param downstream: other sites whose densities, in model or guide, depend on the value.
        """

    def at_step(self, step: Tensor) -> None:
        """Called with the number of each optimizer step before it."""

    def without_relaxation(self) -> AbstractContextManager:
        """Within this context draws follow the probabilities exactly."""
        return nullcontext()


class Enumerate(Discrete):
    """Sum over all clusters: no noise and no bias, at K times the work if z depends on c.

    Example:
        >>> import torch
        >>> from guides import AmortizedGuide, Enumerate
        >>> from ppl_models import GaussianMixture, VaDE
        >>> guide = AmortizedGuide(VaDE((20,), GaussianMixture(10, 5)), discrete=Enumerate())
        >>> guide.predict(torch.zeros(3, 20))["cluster"].shape
        (3,)
    """

    needs = Needs.FREE_ENUMERATION

    def attach(self, model: FacetModel) -> None:
        """Nothing changes, so several guides may have it."""

    def sample(self, name: str, logits: Tensor, x: Tensor, downstream: Sequence[str]) -> Tensor:
        return pyro.sample(f"c_{name}", Component(logits=logits), infer=ENUMERATE)


class Annealed(Options):
    """A temperature that decays geometrically from ``start`` to ``end`` over ``steps`` steps.

    A shorter run does not reach ``end``.

    :raises ValueError: if a temperature is not positive or ``steps`` is below 1.

    Example:
        >>> import torch
        >>> from guides import Annealed, GumbelSoftmax
        >>> temperature = Annealed(start=1.0, end=0.25, steps=100)
        >>> temperature(torch.tensor([0, 50, 100]))
        tensor([1.0000, 0.5000, 0.2500])
        >>> GumbelSoftmax(temperature)
        GumbelSoftmax(temperature=Annealed(start=1.0, end=0.25, steps=100), hard=False)
    """

    def __init__(self, start: float = 1.0, end: float = 0.3, steps: int = 10_000) -> None:
        self.start, self.end = check_positive("start", start), check_positive("end", end)
        self.steps = check_count("steps", steps)

    def __call__(self, step: Tensor) -> Tensor:
        done = (step / self.steps).clamp(max=1)
        return self.start * (done * log(self.end / self.start)).exp()


class GumbelSoftmax(Discrete):
    """Relaxed draws, differentiable in the probabilities, with the KL of c in closed form.

    The density of a relaxed draw and a categorical prior do not give a bound. Relaxed values are
    therefore only used in the expectations of the other sites, where they bias the value (soft) or
    the gradient (hard). The history and :func:`inference.elbo` report the ELBO of one-hot draws.

    :param temperature: positive, or :class:`Annealed`.
    :param hard: straight-through: one-hot values, relaxed gradients.
    :raises ValueError: if ``temperature`` is not positive.

    Example:
        >>> from guides import AmortizedGuide, GumbelSoftmax
        >>> from ppl_models import GaussianMixture, VaDE
        >>> model = VaDE((20,), GaussianMixture(10, 5))
        >>> AmortizedGuide(model, discrete=GumbelSoftmax(0.5, hard=True)).discrete
        GumbelSoftmax(temperature=0.5, hard=True)
    """

    needs = Needs.RELAXATION

    def __init__(self, temperature: float | Annealed = 0.5, hard: bool = False) -> None:
        super().__init__()
        self.schedule = temperature if isinstance(temperature, Annealed) else None
        first = check_positive("temperature", getattr(temperature, "start", temperature))
        self.hard = check_kind("hard", hard, bool, "True or False")
        self.register_buffer("temperature", torch.tensor(first))
        self.temperature: Tensor

    def sample(self, name: str, logits: Tensor, x: Tensor, downstream: Sequence[str]) -> Tensor:
        return pyro.sample(f"c_{name}", self.relaxed(logits))

    def relaxed(self, logits: Tensor) -> RelaxedComponent:
        """The choice with these logits ``[..., K]`` and relaxed draws."""
        return RelaxedComponent(logits, self.temperature, self.hard)

    def at_step(self, step: Tensor) -> None:
        if self.schedule is not None:
            self.temperature = self.schedule(step)

    def without_relaxation(self) -> AbstractContextManager:
        return temporarily(self, hard=True)

    def extra_repr(self) -> str:
        return f"temperature={self.schedule or float(self.temperature)}, hard={self.hard}"


class ScoreFunction(Discrete):
    """One drawn cluster, with the score function's gradient (REINFORCE): unbiased but noisy.

    :param baseline: of a draw's cost: ``"none"``, ``"average"`` of past ones, or ``"learned"``.
    :raises ValueError: if the baseline is unknown.

    Example:
        >>> import torch
        >>> from guides import AmortizedGuide, ScoreFunction
        >>> from ppl_models import GaussianMixture, VaDE
        >>> model = VaDE((20,), GaussianMixture(10, 5))
        >>> guide = AmortizedGuide(model, discrete=ScoreFunction("learned"))
        >>> guide.predict(torch.zeros(3, 20))["cluster"].shape
        (3,)
    """

    needs = Needs.SCORING

    def __init__(self, baseline: str = "average") -> None:
        super().__init__()
        self.baseline = check_one_of("baseline", baseline, BASELINES)

    def attach(self, model: FacetModel) -> None:
        super().attach(model)
        kind, shape = BASELINES[self.baseline], model.features_shape
        self.baselines = nn.ModuleDict({name: kind(shape) for name in model.mixtures if kind})

    def sample(self, name: str, logits: Tensor, x: Tensor, downstream: Sequence[str]) -> Tensor:
        infer: dict[str, Any] = {"downstream": frozenset(downstream)}
        if name in self.baselines:
            infer |= {"cost_baseline": self.baselines[name], "cost_baseline_input": x}
        return pyro.sample(f"c_{name}", Component(logits=logits), infer=infer)
