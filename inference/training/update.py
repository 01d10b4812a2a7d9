"""The end of a step: the guard's look at the gradient, and the optimizer's update."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from inference.optimizers import Adam
from inference.run import Run
from inference.training.parts import SCHEDULED

# Options of Adam that an update in one program cannot have.
UNUSUAL = ("amsgrad", "maximize", "differentiable", "capturable", "decoupled_weight_decay")
MOMENTS = ("exp_avg", "exp_avg_sq")


class Update:
    """Takes one run's updates, unless its guard skips them.

    Those by this library's own optimizer, fused Adam, are operations on tensors alone, which can
    be recorded; others go through the optimizer's ``step``.

    :ivar options: Adam's, if the optimizer is that.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        device = run.device
        kind = torch.float64 if device.type == "cpu" else torch.float32  # as the kernels take it
        self.rate = torch.zeros((), dtype=kind, device=device)

    def look(self) -> None:
        """Look again at what callbacks may have changed: modules, optimizer, and its options."""
        self.parameters = dict(self.run.loss.named_parameters())
        norms = self.run.counters["fault_norms"]
        if len(norms) != len(self.parameters):
            self.run.counters["fault_norms"] = norms.new_zeros(len(self.parameters))
        # What an objective may change, such as running statistics.
        self.changing = {
            f"{path}.{name}": (module, name)
            for path, module in self.run.loss.named_modules()
            for name, buffer in module.named_buffers(recurse=False)
            if buffer.is_floating_point()
            and name not in module._non_persistent_buffers_set | SCHEDULED
        }
        self.options = _options(self.run.optimizer)
        self.states: dict[Hashable, dict[str, Tensor]] = {}
        for parameter in self.parameters.values():
            parameter.grad = None

    def now(self) -> dict[str, Tensor]:
        """What the objective may change, by name."""
        return {path: getattr(module, name) for path, (module, name) in self.changing.items()}

    def snapshot(self) -> dict[str, Tensor]:
        return {name: each.clone() for name, each in self.now().items()}

    def __call__(
        self, loss: Tensor, gradients: Mapping[str, Tensor], before: Mapping[str, Tensor]
    ) -> None:
        """Update the parameters, or skip and count the step if it is faulty.

        :param gradients: by parameter.
        :param before: the snapshot before the objective.
        """
        for name, parameter in self.parameters.items():
            parameter.grad = gradients.get(name)
        if self.options is not None and gradients:
            self.by_adam(self.state(tuple(gradients)) | self.now(), loss, gradients, before)
            return
        optimizer = self.run.optimizer
        limited, skipping = self._looked(self.run.counters | self.now(), loss, gradients, before)
        for name, gradient in limited.items():
            self.parameters[name].grad = gradient
        if optimizer.defaults.get("fused"):
            optimizer.found_inf = skipping.to(torch.float32)  # type: ignore[attr-defined]
            optimizer.step()
            del optimizer.found_inf  # type: ignore[attr-defined]
        elif not bool(skipping):  # a user's own optimizer, which cannot skip on the device
            optimizer.step()

    def by_adam(
        self,
        state: Mapping[str, Tensor],
        loss: Tensor,
        gradients: Mapping[str, Tensor],
        before: Mapping[str, Tensor],
    ) -> None:
        """Adam's update, by operations on these tensors alone.

        :param state: what :meth:`state` gives, which is changed.
        """
        with torch.no_grad():
            limited, skipping = self._looked(state, loss, gradients, before)
            skipped, counts = skipping.to(torch.float32), state["counts"]
            first, second = ([state[f"{of} {name}"] for name in gradients] for of in MOMENTS)
            counts += 1
            torch._fused_adam_(
                [state[name] for name in gradients], list(limited.values()), first, second, [],
                list(counts.unbind()), lr=state["rate"], amsgrad=False, maximize=False,
                found_inf=skipped, **(self.options or {}),
            )  # fmt: skip
            counts -= skipped

    def _looked(
        self,
        state: Mapping[str, Tensor],
        loss: Tensor,
        gradients: Mapping[str, Tensor],
        before: Mapping[str, Tensor],
    ) -> tuple[Mapping[str, Tensor], Tensor]:
        """The guard's look, which is counted: gradients within its limit, and whether to skip.

        :param state: the counters, and what the objective may have changed.
        """
        guard, norms = self.run.guard, _norms(gradients, self.parameters, like=loss)
        fault = ~(loss.isfinite() & norms.isfinite().all())
        skipping = fault | (state["faults"] > 0) if guard.action == "stop" else fault
        begins = fault & (state["first_fault"] < 0)
        for name, value in ("first_fault", state["step"]), ("fault_norms", norms):
            state[name].copy_(torch.where(begins, value, state[name]))
        state["faults"].add_(fault)
        state["total"].add_(torch.where(fault, 0.0, loss))
        state["step"].add_(1)
        for name, earlier in before.items():
            state[name].copy_(torch.where(skipping, earlier, state[name]))
        if guard.max_norm is not None:
            factor = (guard.max_norm / norms.norm()).clamp(max=1.0)
            gradients = {name: gradient * factor for name, gradient in gradients.items()}
        return gradients, skipping

    def state(self, has: tuple[str, ...]) -> dict[str, Tensor]:
        """All that a step reads and changes, by name: parameters, buffers, counters, the rate, and
        the moments of the parameters that have a gradient, with their number of updates.
        """
        self.rate.fill_(self.run.optimizer.param_groups[0]["lr"])
        if has not in self.states:
            states = [self._moments(self.parameters[name]) for name in has]
            counts = torch.stack([each["step"] for each in states])
            for each, count in zip(states, counts, strict=True):
                each["step"] = count  # so that all are counted in one operation
            held = self.run.tensors() | self.run.counters
            held |= {"rate": self.rate, "counts": counts}
            for moment in MOMENTS:
                held |= {f"{moment} {n}": of[moment] for n, of in zip(has, states, strict=True)}
            # Of no other parameters: their counts would be those before these had theirs.
            self.states = {has: {name: each.detach() for name, each in held.items()}}
        return self.states[has]

    def _moments(self, parameter: Tensor) -> dict[str, Tensor]:
        """As Adam makes them before its first step, in the parameter's type and layout of now, by
        which fused steps read them.
        """
        state = self.run.optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            for moment in MOMENTS:
                state[moment] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        for name in MOMENTS:
            if (of := state[name]).stride() != parameter.stride() or of.dtype != parameter.dtype:
                state[name] = torch.empty_like(parameter).copy_(of)
        return state

    def settings(self) -> Hashable:
        """What :meth:`by_adam` has fixed, besides which parameters have a gradient."""
        assert self.options is not None
        guard = self.run.guard
        return (*self.options.items(), guard.action, guard.max_norm)


def _norms(gradients: Mapping[str, Tensor], names: Mapping[str, Any], like: Tensor) -> Tensor:
    """2-norms, 0 without a gradient; on a CPU, by products with themselves, in half the time."""
    given, on_cpu = list(gradients.values()), like.device.type == "cpu"
    flat = [each.reshape(-1) for each in given] if on_cpu else []
    found = [each.dot(each) for each in flat] if on_cpu else torch._foreach_norm(given)
    by_name, zero = dict(zip(gradients, found, strict=True)), torch.zeros_like(like)
    norms = torch.stack([by_name.get(name, zero) for name in names])
    return norms.sqrt() if on_cpu else norms


def _options(optimizer: Optimizer) -> dict[str, Any] | None:
    """Adam's, if a program can take its step in its place."""
    ours = type(optimizer) in (Adam, torch.optim.Adam)
    if not ours or len(optimizer.param_groups) != 1:
        return None
    (group,) = optimizer.param_groups
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    unusual = any(group.get(name) for name in UNUSUAL) or isinstance(group["lr"], Tensor)
    wrapped = "step" in vars(optimizer) or any(hooks)
    if not group["fused"] or unusual or wrapped:
        return None
    beta1, beta2 = group["betas"]
    decay, eps = group["weight_decay"], group["eps"]
    return {"beta1": beta1, "beta2": beta2, "weight_decay": decay, "eps": eps}
