"""The end of a step: the guard's look at the gradient, and the optimizer's update."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from inference.randomness import seeded
from inference.training.nonfinite import SCHEDULED, NonFiniteTracker
from inference.training.recording import TensorFunction, agree, record, replay

#: Recorded updates, by what they have fixed; runs with equal models share them.
TensorFunctions = dict[Hashable, TensorFunction]

# Options of Adam that an update in one program can have, besides rates and moments' decay.
PLAIN = {
    "amsgrad": False,
    "maximize": False,
    "differentiable": False,
    "capturable": False,
    "decoupled_weight_decay": False,
}


class Update:
    """Takes one run's updates from its parameters' gradients, unless its guard skips them.

    Those by this library's own optimizer, fused Adam, are one recorded program, if ``programs`` are
    given; others go through the optimizer's ``step``.

    :param tracker: of the run's steps that are not finite.
    :param programs: where recorded updates are kept; ``None`` to record none.
    """

    def __init__(self, tracker: NonFiniteTracker, programs: TensorFunctions | None = None) -> None:
        self.run, self.tracker, self.programs = tracker.run, tracker, programs
        # What a step changes besides parameters, such as running statistics.
        self.changing = [
            (module, name)
            for module in self.run.loss.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if buffer.is_floating_point()
            and name not in module._non_persistent_buffers_set | SCHEDULED
        ]
        self.prepare()

    def prepare(self) -> None:
        """Look again at what callbacks may have changed: the optimizer, its options and state."""
        self.options = _options(self.run.optimizer) if self.programs is not None else None
        self.rate, self.rate_tensor = -1.0, torch.zeros((), dtype=torch.float64)
        self.state: dict[Hashable, list[Tensor]] = {}

    def snapshot(self) -> None:
        """Save what the next step may change."""
        self.before = [getattr(module, name).clone() for module, name in self.changing]

    def __call__(self, loss: Tensor, step: Tensor) -> Tensor:
        """Update the parameters, or skip and note the step if it is faulty.

        :returns: the objective, or 0 if the step was faulty.
        """
        gradients = [p.grad for p in self.tracker.parameters]
        has = tuple(gradient is not None for gradient in gradients)
        given = [gradient for gradient in gradients if gradient is not None]
        beside = [loss, step, *self.tracker.state, *self.buffers, *self.before]
        state = self.state_of(has)
        if state is None:
            kept, skipping = self._looked(_norms(*given), has, given, *beside)
            self._step(skipping)
            return kept
        inputs = [*beside, self.rate_now(), *given, *state]
        return self._program(has, inputs)(*inputs)[0]

    @property
    def buffers(self) -> list[Tensor]:
        return [getattr(module, name) for module, name in self.changing]

    def _looked(
        self, norms: Tensor, has: Sequence[bool], gradients: Sequence[Tensor], *beside: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The guard's look: the objective to count, and whether the step is skipped.

        :param norms: of the gradients.
        :param has: which parameters have one.
        """
        loss, step, *rest = beside
        state, both = rest[:3], rest[3:]
        buffers, before = both[: len(both) // 2], both[len(both) // 2 :]
        guard, norms = self.run.guard, _spread(norms, has, torch.zeros_like(loss))
        fault = guard.is_faulty(loss, norms)
        guard.clip(gradients, norms)
        skipping = self.tracker.note(fault, norms, step, *state)
        for buffer, earlier in zip(buffers, before, strict=True):
            buffer.copy_(torch.where(skipping, earlier, buffer))
        return torch.where(fault, 0.0, loss), skipping

    def _step(self, skipping: Tensor) -> None:
        """Take the optimizer's step, unless it is skipped."""
        optimizer = self.run.optimizer
        if optimizer.defaults.get("fused"):
            optimizer.found_inf = skipping.to(torch.float32)  # type: ignore[attr-defined]
            optimizer.step()
        elif not bool(skipping):  # a user's own optimizer, which cannot skip on the device
            optimizer.step()

    def detach(self) -> None:
        """Restore the optimizer to its original state."""
        if hasattr(self.run.optimizer, "found_inf"):
            del self.run.optimizer.found_inf

    # Recorded updates.

    def rate_now(self) -> Tensor:
        """The learning rate, which a program is given, as callbacks may change it."""
        rate = self.run.optimizer.param_groups[0]["lr"]
        if rate != self.rate:
            self.rate, self.rate_tensor = rate, torch.tensor(rate, dtype=torch.float64)
        return self.rate_tensor

    def state_of(self, has: tuple[bool, ...]) -> list[Tensor] | None:
        """Numbers of steps of the parameters with a gradient, these, and their moments; ``None`` if
        the update is not recorded, as the first one, before which there are no moments.
        """
        if self.options is None:
            return None
        if has not in self.state:
            parameters = [p for p, each in zip(self.tracker.parameters, has, strict=True) if each]
            states = [self.run.optimizer.state.get(p, {}) for p in parameters]
            if not states or not all(states):
                return None
            moments = [state[name] for name in ("exp_avg", "exp_avg_sq") for state in states]
            counts = torch.stack([state["step"] for state in states])
            for state, count in zip(states, counts, strict=True):
                state["step"] = count  # so that all are counted in one operation
            # Of no other parameters: their numbers of steps would be those before these had theirs.
            self.state = {has: [counts, *(p.detach() for p in parameters), *moments]}
        return self.state[has]

    def settings(self) -> Hashable:
        """What a recorded update has fixed, besides which parameters have a gradient."""
        assert self.options is not None
        guard = self.run.guard
        return (*self.options.items(), guard.action, guard.max_norm)

    def _program(self, has: tuple[bool, ...], inputs: Sequence[Tensor]) -> TensorFunction:
        assert self.programs is not None
        key = (has, self.settings())
        if key not in self.programs:
            self.programs[key] = self._recorded(self.function(has), inputs)
        return self.programs[key]

    def _recorded(self, function: TensorFunction, inputs: Sequence[Tensor]) -> TensorFunction:
        """The function's program; itself, where it cannot be recorded."""
        with seeded(0, inputs[0].device), suppress(Exception):  # what PyTorch has may change
            program = replay(record(function, inputs))
            if agree(function, program, inputs):
                return program
        return function

    def function(self, has: tuple[bool, ...]) -> Callable[..., Sequence[Tensor]]:
        """The update as a function that changes its tensors: objective, step, the tracker's state,
        buffers, these before the step, rate, gradients, and what :meth:`state_of` gives.
        """
        assert self.options is not None
        options: dict[str, Any] = dict(self.options)
        beside = 2 + len(self.tracker.state) + 2 * len(self.changing)
        P = sum(has)

        def update(*tensors: Tensor) -> list[Tensor]:
            rate, *given = tensors[beside:]
            gradients, counts, rest = given[:P], given[P], given[P + 1 :]
            parameters, first, second = (rest[i * P : (i + 1) * P] for i in range(3))
            with torch.no_grad():
                kept, skipping = self._looked(_norms(*gradients), has, gradients, *tensors[:beside])
                skipped = skipping.to(torch.float32)
                counts += 1
                torch._fused_adam_(
                    parameters, gradients, first, second, [], list(counts.unbind()),
                    lr=rate, amsgrad=False, maximize=False, found_inf=skipped, **options,
                )  # fmt: skip
                counts -= skipped
            return [kept]

        return update


def _norms(*gradients: Tensor) -> Tensor:
    """2-norms; on a CPU, by products with themselves, which take half the time."""
    if not gradients:
        return torch.zeros(0)
    if gradients[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(gradients))
    flat = (gradient.reshape(-1) for gradient in gradients)
    return torch.stack([each.dot(each) for each in flat]).sqrt()


def _spread(norms: Tensor, has: Sequence[bool], none: Tensor) -> Tensor:
    """Norms of all parameters: ``none`` of those without a gradient."""
    found = iter(norms.unbind())
    return norms if all(has) else torch.stack([next(found) if each else none for each in has])


def _options(optimizer: Optimizer) -> dict[str, float] | None:
    """Adam's, if a program can take its step in its place."""
    if type(optimizer) is not Adam or len(optimizer.param_groups) != 1:
        return None
    (group,) = optimizer.param_groups
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    plain = all(group.get(name, value) == value for name, value in PLAIN.items())
    wrapped = "step" in vars(optimizer) or any(hooks) or isinstance(group["lr"], Tensor)
    if not group["fused"] or not plain or wrapped:
        return None
    beta1, beta2 = group["betas"]
    decay, eps = group["weight_decay"], group["eps"]
    return {"beta1": beta1, "beta2": beta2, "weight_decay": decay, "eps": eps}
