"""One SVI runner for every model and guide, and the training of several as one program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from pyro.infer import ELBO
from pyro.optim import PyroOptim
from torch import Tensor
from torch.utils.data import DataLoader

from guides.base import FacetGuide
from inference.checkpoints.card import card_text
from inference.checkpoints.periodic import Checkpoints
from inference.checkpoints.saved_run import CONFIG, blamed_on, read_run, write_run
from inference.distributed import DataParallel, SingleProcess
from inference.optimizers import OptimizerFactory
from inference.randomness import seeded
from inference.records import as_line
from inference.run import Callback, Guard, Run, check_part, check_precision
from inference.schedules import Schedule
from inference.training.batching import Batching
from inference.training.data_source import data_source_for
from inference.training.loop import DeadFacetWarning, train
from inference.training.plan import FitPlan, check_callbacks
from ppl_models.configurable import first_difference, from_config, to_config
from ppl_models.given.checks import check_kind, check_path
from ppl_models.warn import warn

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Callback", "DeadFacetWarning", "SVIRunner", "fit_together"]

CHANGED = (
    "guide.{part} was changed after it was built, which a saved run cannot describe: give `load` a "
    "guide that was changed alike (guide=), or build the model with what it has now"
)


class SVIRunner(Run):
    """Fits any model with any guide that suits it, by stochastic variational inference.

    The data stay on the device in their own type (8-bit images as uint8). Each step gathers a
    shuffled mini-batch there, computes one objective, takes one fused Adam step, and reads nothing
    back to the host.

    :param model: the generative program. Functions, modules of Pyro's and autoguides are taken as
        ``SVIRunner(*plain_programs(model, guide, x))``.
    :param guide: a guide built for ``model``.
    :param objective: any of Pyro's ELBOs; by default the one that suits the guide.
    :param lr: Adam's rate.
    :param schedule: weights of the ELBO's terms over the steps; by default all are 1.
    :param seed: of the shuffling and of every draw during fitting, from 0 to 2**32 - 1. Networks
        are initialized earlier: seed them with ``pyro.set_rng_seed``. The caller's random state is
        not changed.
    :param device: where to train, such as ``"cpu"`` or ``"cuda"``; by default the model's device.
    :param precision: ``"float32"``, or ``"bf16"`` to run the networks under autocast; latents and
        densities stay float32.
    :param guard: what to do when an objective is not finite, and the limit on the gradient's norm;
        by default ``Guard()``, which stops.
    :param optimizer: fused Adam by default; else a factory that is called with the parameters and
        ``lr=``, such as ``torch.optim.SGD`` or a ``functools.partial`` of one (without a rate), or
        one of Pyro's optimizers, which has its own rates. One that is not fused reads back to the
        host in each step whether the step was finite.
    :param compile: how a step is computed: ``"replay"`` records its operations once (half a second)
        and replays them without Pyro's handlers, with the same draws and, up to rounding, the same
        results; ``"xla"`` takes many steps in one call (seconds to compile, needs the extra
        ``xla``); ``"cuda graph"`` records whole steps on a CUDA device; ``None`` runs model and
        guide in every step. By default ``"auto"``: in calls of ``fit`` of 500 steps and more they
        are replayed, on a CUDA device captured, and of 4,000 and more, in float32 on a CPU, taken
        by XLA if JAX is there (``plan(...).recording`` says which), if all parts are this
        library's, Pyro's or PyTorch's. Others may do more in a step than operations on tensors, so
        with them every step runs through Pyro, with a ``RecordingWarning`` that names the part; ask
        for recording if their results depend on tensors, draws and fixed settings alone.
    :raises ValueError: if the parts do not fit together or an option is unknown.

    :ivar lr: the rate; setting it changes the rate of the next steps.
    :ivar history: one record for each logging interval; see :meth:`fit`.
    :ivar epoch: passes over the data so far.
    :ivar step: optimizer steps so far, which the schedule depends on.
    :ivar should_stop: set by a callback to end training after its record.

    Example:
        >>> import numpy as np
        >>> from guides import VaDEGuide
        >>> from inference import SVIRunner
        >>> from ppl_models import SharedMLP, GaussianMixture, VaDE
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> runner = SVIRunner(model, VaDEGuide(model), seed=1)
        >>> x = np.random.default_rng(0).random((20, 6))
        >>> runner.fit(x, epochs=2, progress=False)
        SVIRunner(VaDE, VaDEGuide, lr=0.0005, seed=1, precision='float32', epoch=2)
        >>> runner.history[-1]["step"], runner.guide.predict(x)["cluster"].shape
        (2, (20,))
    """

    def fit(
        self,
        x: ArrayLike | Tensor | DataLoader,
        epochs: int,
        batch_size: int | None = None,
        log_every: int = 1,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        batches: Batching | None = None,
        checkpoints: Checkpoints | None = None,
        fabric: Fabric | None = None,
        steps_per_epoch: int | None = None,
        **given: Any,
    ) -> SVIRunner:
        """Train for ``epochs`` passes over ``x``.

        Every ``log_every`` epochs a record is added to :attr:`history`. It holds ``epoch``,
        ``step``, ``seconds``; ``objective`` (mean over the interval's steps, with the scheduled
        weights); ``elbo``, ``reconstruction``, ``kl_z_NAME`` and ``kl_c_NAME`` (with every weight
        at 1 and the scheduled gates, on 2,048 rows drawn once, or with which the pass of a loader
        with an order of its own begins), all in nats per datum; and ``mutual_information_NAME``,
        between x and each inferred cluster, in nats.

        A second call continues where the first one ended, including the schedule and the random
        streams. Parts whose parameters are all frozen (``requires_grad_(False)``) are in evaluation
        mode meanwhile.

        :param x: ``[N, *x_shape]``, array or tensor. A memory-mapped array stays in its file and is
            read batch by batch. A PyTorch ``DataLoader`` yields x alone, mappings with ``"x"`` and
            the model's other inputs by name, or x followed by those that the model needs, in its
            order; further items are ignored. So labels that it can do without, which supervise it,
            are given in mappings.
        :param batch_size: rows in a step, at most, or on average when batches are made of groups;
            the last batch of an epoch may be smaller. By default 512; a loader has its own.
        :param callbacks: called with this runner and each new record, to which they may add
            entries. What they draw or compute does not affect training, unless they change the
            model's parameters. A callback that sets ``runner.should_stop`` ends training after the
            record.
        :param progress: whether to show a progress bar.
        :param batches: how to form batches: :class:`~inference.Groups` for models that take groups,
            else :class:`~inference.Rows`. If groups are split into parts, the history describes
            these parts.
        :param checkpoints: where to write the state of this call at intervals, and to resume from;
            see :class:`~inference.Checkpoints`.
        :param fabric: a launched Lightning Fabric, to train in several processes, each of which
            calls this method with the same arrays, or with a loader of its own rows; see
            :class:`~inference.distributed.DataParallel`. ``batch_size`` then counts the rows of all
            processes together, and a loader's those of its process. Only the first process shows
            progress, runs callbacks and writes checkpoints.
        :param steps_per_epoch: batches of a loader that count as an epoch, for one without a
            length; each epoch goes on in the stream where the last one ended. By default an epoch
            is a pass.
        :param given: further inputs of the model, one entry per datum, such as ``label``.
        :raises ValueError: before training, if data or sizes do not fit; then nothing has changed.
        :raises FloatingPointError: at a logging interval, if a step's objective or gradient was not
            finite and the guard stops the run. The parameters are those before that step.
        :raises RuntimeError: if another process of the run has ended or cannot be reached.
        """
        how = (batch_size, log_every, callbacks, progress, batches, checkpoints, fabric)
        plan = self.plan(x, epochs, *how, steps_per_epoch, **given)
        train(plan)
        return self

    def plan(
        self,
        x: ArrayLike | Tensor | DataLoader,
        epochs: int,
        batch_size: int | None = None,
        log_every: int = 1,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        batches: Batching | None = None,
        checkpoints: Checkpoints | None = None,
        fabric: Fabric | None = None,
        steps_per_epoch: int | None = None,
        **given: Any,
    ) -> FitPlan:
        """Validate the arguments of :meth:`fit` and return what it would do; nothing is trained or
        changed.

        :raises ValueError: as :meth:`fit` does before training.
        """
        processes = SingleProcess() if fabric is None else DataParallel(fabric, self.device)
        calls = [check_callbacks(callbacks)]
        how = (batch_size, batches, processes, steps_per_epoch)
        source = data_source_for(self.guide, self.device, x, given, *how)
        return FitPlan([self], source, epochs, log_every, calls, progress, checkpoints, processes)

    def save(self, folder: str | Path) -> Path:
        """Write ``config.json``, ``weights.safetensors`` and ``history.jsonl`` into ``folder``;
        returns it.

        At every moment the folder holds the earlier run or this one, also if the process is killed.
        ``config.json`` holds the digests of the other two files. ``card.md`` says in words and
        numbers what the run is; no program reads it.

        A warning names what was changed after the model and guide were built (``model.likelihood =
        ...``), which a description of how they are built does not hold; :meth:`load` then asks for
        the guide.

        :raises ValueError: if a parameter is neither float32 nor float64, or JSON cannot hold
            what a callback put into a record.
        """
        folder = check_path("folder", folder)
        check_precision(self.guide)
        config = {
            "guide": to_config(self.guide),
            "schedule": to_config(self.schedule),
            "runner": {"lr": self.lr, "seed": self.seed, "precision": self.precision},
            "guard": to_config(self.guard),
            "progress": {"epoch": self.epoch, "step": self.step},
        }
        if (part := self._changed(config["guide"])) is not None:
            config["changed"] = part
            warn(CHANGED.format(part=part))
        history = "".join(map(as_line, self.history))
        write_run(folder, config, self.guide.state_dict(), history, card_text(self))
        return folder

    def _changed(self, config: Any) -> str | None:
        """The part of the guide that is another in the one that ``load`` would build."""
        try:
            with seeded(0, torch.device("cpu")):
                built = from_config(config).to(self.model.gates.dtype)
        except ValueError:  # of the user's own parts, or made of functions: load asks for the guide
            return None
        with suppress(RuntimeError):  # other tensors: the parts differ, too
            built.load_state_dict(self.guide.state_dict())
        return first_difference(self.guide, built)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        guide: FacetGuide | None = None,
        objective: ELBO | None = None,
        schedule: Schedule | None = None,
        device: str | torch.device | None = None,
        optimizer: OptimizerFactory | PyroOptim | None = None,
    ) -> SVIRunner:
        """Rebuild the runner that :meth:`save` wrote: ``runner.model`` and ``runner.guide`` hold
        the fitted parameters.

        The optimizer and the random streams start anew, and the objective is the guide's default
        unless given. No pickled code is read, and the caller's random state is not changed.

        :param guide: the guide (with its model) to load the parameters into, if it has custom parts
            that a checkpoint cannot name, or was changed after it was built.
        :param schedule: the schedule, if it is a custom one.
        :param optimizer: for further training; a saved run does not hold it.
        :raises FileNotFoundError: if a file is missing.
        :raises ValueError: if a file is truncated, of another kind or of another save, or does not
            fit the guide; then nothing has changed.
        """
        folder = check_path("folder", folder)
        config, state, history = read_run(folder)
        if guide is None and "changed" in config:
            raise ValueError(f"{folder / CONFIG}: {CHANGED.format(part=config['changed'])}")
        with seeded(0, torch.device("cpu")):  # building draws numbers
            schedule = _part("schedule", schedule, config, folder)
            guard = _part("guard", None if "guard" in config else Guard(), config, folder)
            guide = _part("guide", guide, config, folder)
        _check_state(guide.state_dict(), state, folder)
        parts = {"schedule": schedule, "guard": guard, "device": device, "optimizer": optimizer}
        runner = cls(guide.model, guide, objective, **parts, **config["runner"])
        guide.to(state["model.gates"].dtype).load_state_dict(state)
        runner.history = history
        runner.epoch, runner.step = config["progress"]["epoch"], config["progress"]["step"]
        runner.loss.eval()
        return runner

    def __repr__(self) -> str:
        return (
            f"SVIRunner({type(self.model).__name__}, {type(self.guide).__name__}, "
            f"lr={self.lr}, seed={self.seed}, precision={self.precision!r}, epoch={self.epoch})"
        )


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


def _part(name: str, own: Any, config: dict[str, Any], folder: str | Path) -> Any:
    """A part of a run: the user's if given, else the one in the saved description."""
    if own is not None:
        return check_part(name, own)
    with blamed_on(Path(folder) / CONFIG):
        return check_part(name, from_config(config[name]))


def _check_state(
    guide: Mapping[str, Tensor], state: Mapping[str, Tensor], folder: str | Path
) -> None:
    """:raises ValueError: if the weights do not fit the guide's, or are not finite numbers."""
    expected, found = ({name: t.shape for name, t in each.items()} for each in (guide, state))
    if differing := sorted({name for name, _ in expected.items() ^ found.items()}):
        raise ValueError(
            f"the weights in {folder} do not fit the guide; they differ in {differing[:5]}"
            f"{' and others' if len(differing) > 5 else ''}: give `load` a guide built as it was "
            "when saved"
        )
    precision = state["model.gates"].dtype
    if precision.is_floating_point and precision not in (torch.float32, torch.float64):
        raise ValueError(
            f"the weights in {folder} are {precision}, but float32 or float64 is needed: save "
            "guide.float(), and give the runner precision='bf16' for faster networks"
        )
    real = precision if precision.is_floating_point else torch.float32
    if wrong := sorted(
        name
        for name, tensor in state.items()
        if tensor.dtype != (real if guide[name].is_floating_point() else guide[name].dtype)
        or not tensor.isfinite().all()
    ):
        raise ValueError(
            f"the weights in {folder} are damaged: NaN, infinite or of another type in {wrong[:5]}"
        )
