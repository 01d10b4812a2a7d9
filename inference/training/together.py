"""Several similar runs trained as one program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import isfunction
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import DataLoader

from inference.checkpoints.periodic import Checkpoints
from inference.run import Callback, Run
from inference.training.data_source import data_source_for
from inference.training.loop import train
from inference.training.plan import FitPlan, check_callbacks
from ppl_models.given.checks import check_kind


def fit_together(
    runners: Sequence[Run],
    x: ArrayLike | Tensor,
    epochs: int,
    batch_size: int | None = None,
    log_every: int = 1,
    callbacks: Callable[[Run], Sequence[Callback]] = lambda runner: (),
    progress: bool = True,
    checkpoints: Checkpoints | None = None,
    **given: Any,
) -> None:
    """Train several similar runs as one program, for many seeds of small networks on one machine.

    The result has the same distribution as :meth:`SVIRunner.fit <inference.SVIRunner.fit>` of each
    of ``runners``, with other draws: parameters are stacked and the objective is mapped over them
    (``torch.vmap``), so that each of its operations is called once for all runs. Each run has its
    own networks, shuffling, draws, optimizer, history and callbacks, and can be saved, loaded or
    trained further alone. All random numbers except the shuffling come from the first runner's
    streams. Training ends before its last epoch if callbacks of all runs ask for it.

    :param runners: built alike except for parameters and seed: same model, guide, objective,
        schedule, precision, device, ``compile`` (not ``"xla"`` or ``"cuda graph"``), and number of
        steps taken. Each has its own optimizer and learning rate.
    :param x: data ``[N, *x_shape]`` for all runs, like the models' other inputs (``given``).
    :param callbacks: a function that returns a runner's callbacks, like those of
        :meth:`SVIRunner.fit <inference.SVIRunner.fit>`.
    :raises ValueError: before training, if data or sizes do not fit, or the runners differ in kind.
    :raises FloatingPointError: at a logging interval, if a run's guard stops it; see
        :class:`~inference.Guard`.

    Example:
        >>> import numpy as np
        >>> from guides import VaDEGuide
        >>> from inference import SVIRunner, fit_together
        >>> from ppl_models import VAE, SharedMLP
        >>> models = [VAE((6,), 2, network=SharedMLP((8,))) for _ in range(3)]
        >>> runners = [SVIRunner(m, VaDEGuide(m), seed=i) for i, m in enumerate(models)]
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> fit_together(runners, x, epochs=2, progress=False)
        >>> [runner.epoch for runner in runners]
        [2, 2, 2]
    """
    runners = list(
        check_kind("runners", runners, Iterable, "runners in a sequence, such as [runner]")
    )
    _check_alike(runners)
    if not callable(callbacks):
        raise ValueError(
            f"callbacks must be a function that returns a runner's callbacks, got {callbacks!r}"
        )
    each = [check_callbacks(callbacks(runner)) for runner in runners]
    own = [{id(callback) for callback in calls if not isfunction(callback)} for calls in each]
    if len(set().union(*own)) < sum(map(len, own)):
        raise ValueError(
            "two runners got the same callback, but its state belongs to one run: make one for each"
        )
    if isinstance(x, DataLoader):
        raise ValueError(
            "runs that are trained together take arrays, not a DataLoader: train each alone, with "
            "SVIRunner.fit"
        )
    source = data_source_for(runners[0].guide, runners[0].device, x, given, batch_size, None)
    how = (source, epochs, log_every, each, progress, checkpoints)
    train(FitPlan(runners, *how, together=True))


def _check_alike(runners: Sequence[Run]) -> None:
    if not runners:
        raise ValueError("there are no runners to train together")
    for runner in runners:
        check_kind("each of runners", runner, Run, "an SVIRunner")
    held = [id(p) for runner in runners for p in runner.loss.parameters()]
    if len(set(held)) < len(held):
        raise ValueError("two runners hold the same parameters: build a model and a guide for each")
    if runners[0].compile in ("xla", "cuda graph"):
        raise ValueError(
            f"compile={runners[0].compile!r} is for one run, but {len(runners)} are trained "
            "together: leave it out, or train each alone, with SVIRunner.fit"
        )
    lead, *others = (
        runner.description()
        | {"device": runner.device, "compile": runner.compile, "steps": (runner.epoch, runner.step)}
        for runner in runners
    )
    for i, other in enumerate(others, start=1):
        if differing := [what for what in lead if lead[what] != other[what]]:
            raise ValueError(
                f"runner {i} differs from the first one in its {' and '.join(differing)}: runs "
                "that are trained together may only differ in parameters, seeds and rates"
            )
