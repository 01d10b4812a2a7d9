"""Annealing: how the weights of each facet's KL terms, and its gate in the decoder, change over the
steps; once bound to a run, a function of the step that reads nothing back to the host.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor

from ppl_models.base import FacetModel
from ppl_models.configurable import Options
from ppl_models.given.checks import check_count, check_counts, number
from ppl_models.warn import warn

__all__ = [
    "AbruptFadeInWarning",
    "Constant",
    "CoolDown",
    "ProgressiveFadeIn",
    "Schedule",
    "WarmUp",
    "WeightFunction",
]

#: A function from the step to the weights of the KL terms ``[J, 2]`` and the gates ``[J]``.
WeightFunction = Callable[[Tensor], tuple[Tensor, Tensor]]


class AbruptFadeInWarning(UserWarning):
    """A facet is faded in so fast that it is likely to die."""


class Schedule(Options):
    """How weights change over a run.

    :cvar gates_open: whether all gates are 1 at every step, so that training leaves them out; a
        class that defines ``bind`` has to say so itself.
    """

    gates_open: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "bind" in vars(cls):
            cls.gates_open = vars(cls).get("gates_open", False)
            inherited = "bind_further" not in vars(cls)
            if inherited and cls.bind_further is not Schedule.bind_further:
                # A base's way to go on knows nothing of the ``bind`` that this class has.
                cls.bind_further = Schedule.bind_further  # type: ignore[method-assign]

    @abstractmethod
    def bind(self, model: FacetModel, steps_per_epoch: int, total_steps: int) -> WeightFunction:
        """The weights as a function of the step (a scalar tensor on the model's device).

        :param total_steps: steps of the whole run, including those of earlier calls of ``fit``.
        :raises ValueError: if the schedule does not fit the model or cannot finish within the run.
        """

    def bind_further(
        self, model: FacetModel, steps_per_epoch: int, total_steps: int, epoch: int, step: int
    ) -> WeightFunction:
        """The same for a run that goes on: its earlier epochs may have had other numbers of steps.

        :param epoch: how many epochs the run has had, in so many steps (``step``).
        :raises ValueError: as :meth:`bind`.
        """
        return self.bind(model, steps_per_epoch, total_steps)


class Constant(Schedule):
    """The same weights throughout: 1 gives the ELBO, above 1 a beta-VAE.

    :param weight: of every KL term, or of some by site, such as ``{"z_class": 2}`` (N-VAE, Eq. 7);
        the others stay at 1; at least 0.
    :raises ValueError: if a weight is negative; once bound, if the model has no such site.

    Example:
        >>> from inference import Constant
        >>> Constant(4.0)  # a beta-VAE
        Constant(weight=4.0)
        >>> Constant({"z_class": 2}).weight
        {'z_class': 2.0}
    """

    gates_open = True

    def __init__(self, weight: float | Mapping[str, float] = 1.0) -> None:
        self.weight = _checked("weight", weight, at_least=0)

    def bind(self, model: FacetModel, steps_per_epoch: int, total_steps: int) -> WeightFunction:
        kl_weights = _kl_weights(model, self.weight)
        gates = torch.ones_like(model.gates)
        return lambda step: (kl_weights, gates)


class WarmUp(Schedule):
    """Every KL term's weight rises linearly from 0 to 1 over the first ``steps`` steps.

    :param steps: at least 1.

    Example:
        >>> import torch
        >>> from facetvae import VAE, WarmUp
        >>> weights = WarmUp(100).bind(VAE((6,), 2), steps_per_epoch=10, total_steps=200)
        >>> kl_weights, gates = weights(torch.tensor(50))
        >>> kl_weights.tolist(), gates.tolist()
        ([[0.5, 0.5]], [1.0])
    """

    gates_open = True

    def __init__(self, steps: int) -> None:
        self.steps = check_count("steps", steps)

    def bind(self, model: FacetModel, steps_per_epoch: int, total_steps: int) -> WeightFunction:
        _check_end(self.steps, total_steps, "the warm-up")
        ones, gates = _kl_weights(model, 1.0), torch.ones_like(model.gates)
        return lambda step: (ones * (step / self.steps).clamp(max=1), gates)


class CoolDown(Schedule):
    r"""Weights fall from above 1 to 1 over the first ``steps`` steps, by one factor in each step.

    .. math:: \beta_t = \beta_0^{1 - t / T}

    So a latent learns only what no other can encode at a lower cost: without this, the style in
    ML-VAE would encode the group as well, which the content encodes once for all members.

    :param start: at least 1; of every KL term, or of some by site, ``{"z_style": 20}``, others 1.
    :param steps: T, at least 1.
    :raises ValueError: if a weight is below 1; once bound, if a site is unknown or a run too short.

    Example:
        >>> import torch
        >>> from facetvae import VAE, CoolDown
        >>> weights = CoolDown(16.0, 100).bind(VAE((6,), 2), steps_per_epoch=10, total_steps=200)
        >>> [round(weights(torch.tensor(step))[0][0, 0].item(), 3) for step in (0, 50, 100, 150)]
        [16.0, 4.0, 1.0, 1.0]
    """

    gates_open = True

    def __init__(self, start: float | Mapping[str, float], steps: int) -> None:
        self.start = _checked("start", start, at_least=1)
        self.steps = check_count("steps", steps)

    def bind(self, model: FacetModel, steps_per_epoch: int, total_steps: int) -> WeightFunction:
        _check_end(self.steps, total_steps, "the cooling")
        log_start, gates = _kl_weights(model, self.start).log(), torch.ones_like(model.gates)
        return lambda step: ((log_start * (1 - (step / self.steps).clamp(max=1))).exp(), gates)


class ProgressiveFadeIn(Schedule):
    r"""Train the deepest facet first, then fade in one after the other (MFCVAE, D.3, Eq. 88 to 92).

    Facet j's weight :math:`\alpha_j` multiplies its KL terms and its rung in the decoder: 1 for the
    deepest facet, and for each shallower one 0 until its phase starts, then rising linearly to 1
    within ``fade_steps``.

    :param epochs: length of each phase, starting with the deepest facet's; one entry per facet. The
        authors' code has (201, 201) for MNIST; the paper gives no number.
    :param fade_steps: optimizer steps from 0 to 1; the paper uses 15,000 for MNIST. Within a few
        hundred, a facet tends to die: its KL goes to 0 before the decoder has learned to use it.
    :param waiting_weight: weight of a facet's KL terms before its phase; 0 in the paper, with which
        its latents already encode much of what earlier facets do. Held to the prior (0.5 in Li et
        al., *Progressive learning and disentanglement*, 2020), they start from nothing.
    :raises ValueError: if a number is out of its range; once bound, if there is not a phase for
        each facet, or a fade-in or the whole does not fit into its phase or the run.

    Example:
        >>> import torch
        >>> from facetvae import MFCVAE, GaussianMixture, ProgressiveFadeIn
        >>> model = MFCVAE((6,), {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)})
        >>> schedule = ProgressiveFadeIn((10, 20), fade_steps=1000)
        >>> weights = schedule.bind(model, steps_per_epoch=100, total_steps=3000)
        >>> [weights(torch.tensor(step))[1].tolist() for step in (0, 1500, 3000)]
        [[0.0, 1.0], [0.5, 1.0], [1.0, 1.0]]
    """

    def __init__(
        self, epochs: Sequence[int], fade_steps: int = 15_000, waiting_weight: float = 0.0
    ) -> None:
        self.epochs = check_counts("epochs", epochs, "(201, 201)")
        self.fade_steps = check_count("fade_steps", fade_steps)
        if not 0 <= number(waiting_weight) <= 1:
            raise ValueError(f"waiting_weight must be within [0, 1], got {waiting_weight!r}")
        self.waiting_weight = waiting_weight

    def bind(self, model: FacetModel, steps_per_epoch: int, total_steps: int) -> WeightFunction:
        return self.bind_further(model, steps_per_epoch, total_steps, 0, 0)

    def bind_further(
        self, model: FacetModel, steps_per_epoch: int, total_steps: int, epoch: int, step: int
    ) -> WeightFunction:
        J = len(model.dims)
        if len(self.epochs) != J:
            phases = f"{len(self.epochs)} phases, but the model has {J} facets"
            raise ValueError(f"ProgressiveFadeIn has {phases}: give {J}")
        epochs = tuple(accumulate(self.epochs, initial=0))
        begins = [  # of the phases, in steps, and the last one's end
            round(e * step / epoch) if e < epoch else step + (e - epoch) * steps_per_epoch
            for e in epochs
        ]
        _check_end(begins[-1], total_steps, "the last phase")
        for j in range(1, J):
            if epochs[j + 1] <= epoch:  # the phase is over, and its facet is in
                begins[j] = min(begins[j], step - self.fade_steps)
            else:
                length = begins[j + 1] - begins[j]
                _check_end(self.fade_steps, length, "a facet's fade-in", "its phase")
        if J > 1 and self.fade_steps < 1000:
            warn(
                f"fade_steps={self.fade_steps} is abrupt: facets that fade in within fewer than "
                "about 1000 steps tend to die; watch their mutual information in the history",
                AbruptFadeInWarning,
            )
        # Shallow to deep; the deepest facet, which is last, is fully in before the first step.
        starts = [*begins[-2:0:-1], -self.fade_steps]
        start = torch.tensor(starts, dtype=model.gates.dtype, device=model.gates.device)

        def weights(step: Tensor) -> tuple[Tensor, Tensor]:
            alpha = ((step - start) / self.fade_steps).clamp(0, 1)
            kl_weight = torch.where(step < start, self.waiting_weight, alpha)
            return torch.stack((kl_weight, kl_weight), -1), alpha

        return weights


def _checked(name: str, weight: Any, at_least: float) -> Any:
    for value in weight.values() if isinstance(weight, Mapping) else (weight,):
        if not at_least <= number(value) < float("inf"):
            raise ValueError(f"{name} must be a number of at least {at_least:g}, got {value!r}")
    if isinstance(weight, Mapping):
        return {site: number(value) for site, value in weight.items()}
    return number(weight)


def _kl_weights(model: FacetModel, weight: float | Mapping[str, float]) -> Tensor:
    """``[J, 2]``: the same for all, or 1 except for the sites that are given."""
    if not isinstance(weight, Mapping):
        return model.gates.new_full((len(model.priors), 2), weight)
    known = [*(f"z_{name}" for name in model.priors), *(f"c_{name}" for name in model.discrete)]
    if unknown := [site for site in weight if site not in known]:
        raise ValueError(f"there is no site {unknown[0]!r} with a weight: this model has {known}")
    each = [[weight.get(f"{letter}_{name}", 1.0) for letter in "zc"] for name in model.priors]
    return model.gates.new_tensor(each).reshape(-1, 2)


def _check_end(end: int, total_steps: int, what: str, of: str = "the run") -> None:
    if end > total_steps:
        raise ValueError(
            f"{what} would end at step {end}, but {of} has {total_steps} steps, so its end would "
            "never be trained\n  Try one of:\n  - more epochs\n  - a shorter schedule\n"
            "  - smaller batches (more steps per epoch)"
        )
