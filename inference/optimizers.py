"""The optimizer of a run: fused Adam, or one of PyTorch's or Pyro's, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch
from pyro.optim import PyroLRScheduler, PyroOptim
from torch import Tensor
from torch.optim import Optimizer

from inference.objectives.loss import Loss

#: Called with parameters and ``lr=``, such as ``torch.optim.SGD``.
OptimizerFactory = Callable[..., Optimizer]


class Adam(torch.optim.Adam):
    """PyTorch's, made without importing its compiler, which takes seconds: PyTorch does so to keep
    this function out of it.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        add = Optimizer.add_param_group
        getattr(add, "__wrapped__", add)(self, param_group)


def build_optimizer(
    optimizer: OptimizerFactory | PyroOptim | None, loss: Loss, lr: float
) -> Optimizer:
    """The optimizer of the parameters of ``loss``, also of those that are frozen now.

    :param optimizer: fused Adam where not given. One of Pyro's brings its own rates.
    :raises ValueError: if it is neither, or one of Pyro's that does more than take steps, or fixes
        the rate, which is the runner's.
    """
    parameters = list(loss.parameters())
    if optimizer is None:
        return Adam(parameters, lr=lr, fused=True)
    if isinstance(optimizer, PyroOptim):
        return _of_pyro(optimizer, loss)
    if isinstance(optimizer, partial) and "lr" in optimizer.keywords:
        raise ValueError(
            f"the runner sets its optimizer's rate, so that lr={optimizer.keywords['lr']!r} of the "
            "functools.partial would be lost: give lr= to the runner, or set runner.lr, instead"
        )
    built = optimizer(parameters, lr=lr) if callable(optimizer) else optimizer
    if isinstance(built, Optimizer) and built is not optimizer:
        closure = signature(built.step).parameters.get("closure")
        if closure is not None and closure.default is Parameter.empty:
            raise ValueError(
                f"{type(built).__name__} computes the loss several times a step, which the runner "
                "does not: give one that takes a gradient, such as torch.optim.SGD"
            )
        return built
    raise ValueError(
        f"optimizer must be called with parameters and lr= and give one of torch's, got "
        f"{optimizer!r}: give a class such as torch.optim.SGD, or "
        "functools.partial(torch.optim.AdamW, weight_decay=0.1)"
    )


def _of_pyro(optimizer: PyroOptim, loss: Loss) -> Optimizer:
    if isinstance(optimizer, PyroLRScheduler):
        raise ValueError(
            f"{optimizer!r} schedules its rate by calls of its own step(): give the optimizer "
            "alone and the callback ReduceOnPlateau, or train with pyro.infer.SVI"
        )
    if any(optimizer.pt_clip_args.values() if isinstance(optimizer.pt_clip_args, dict) else ()):
        raise ValueError(
            f"the runner's guard clips gradients: instead of clip_args={optimizer.pt_clip_args} "
            "give guard=Guard(max_norm=...)"
        )
    groups = [
        {"params": [p], **_arguments(optimizer.pt_optim_args, type(program).__name__, name)}
        for program in (loss.model, loss.guide)
        for name, p in program.own_parameters()
    ]
    return optimizer.pt_optim_constructor(groups)


def _arguments(arguments: Any, module: str, name: str) -> dict[str, Any]:
    """A parameter's own, as Pyro's optimizers take them: by the names that plain SVI knows."""
    if not callable(arguments):
        return dict(arguments)
    both = len(signature(arguments).parameters) == 2
    return arguments(module, name) if both else arguments(f"{module}$$${name}")


def check_optimized(loss: Loss, optimizer: Optimizer) -> None:
    """:raises ValueError: naming a parameter that learns, but that the optimizer does not have."""
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, p in loss.named_parameters():
        if p.requires_grad and id(p) not in held:
            raise ValueError(
                f"parameter {name!r} requires a gradient but is not in the optimizer (it was added "
                "or replaced after the runner was built, as by load_state_dict(..., assign=True)): "
                "build a new runner, set requires_grad_(False), or leave assign= out"
            )


def load_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Restore moments, and settings that are numbers; flags and names stay the optimizer's own.

    :param state: what its ``state_dict`` returned.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {int(i): _laid_out(parameters[int(i)], of) for i, of in state["state"].items()}
    groups = []
    now = optimizer.state_dict()["param_groups"]
    for own, saved in zip(now, state["param_groups"], strict=True):
        flags = {name for name, v in own.items() if v is None or isinstance(v, bool | str)}
        kept = {name: v for name, v in saved.items() if name not in flags}
        pairs = {name: tuple(v) for name, v in kept.items() if isinstance(own.get(name), tuple)}
        groups.append(own | kept | pairs)  # JSON has no tuples
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _laid_out(parameter: Tensor, moments: Mapping[str, Any]) -> dict[str, Any]:
    """Moments in their parameter's memory layout, which fused steps rely on."""
    return {
        name: torch.empty_like(parameter).copy_(value)
        if isinstance(value, Tensor) and value.shape == parameter.shape
        else value
        for name, value in moments.items()
    }
