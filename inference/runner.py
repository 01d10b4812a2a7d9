"""One SVI runner for every model and guide."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import ArrayLike
from pyro.infer import ELBO
from torch import Tensor
from torch.utils.data import DataLoader

from guides.base import FacetGuide
from inference.checkpoints.periodic import Checkpoints
from inference.checkpoints.saved_run import blamed_on, read_checkpoint, write_checkpoint
from inference.distributed import DataParallel, SingleProcess
from inference.guard import Guard
from inference.objectives import Loss
from inference.run import Callback, Run, check_part, check_settings
from inference.schedules import Schedule
from inference.training.batching import Batching
from inference.training.cuda_graph import CUDAGraphStep
from inference.training.data_source import data_source_for
from inference.training.loop import DeadFacetWarning, train
from inference.training.plan import FitPlan, check_callbacks
from inference.training.steps import SingleRunStep
from ppl_models.base import FacetModel
from ppl_models.configurable import from_config, to_config

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Callback", "DeadFacetWarning", "SVIRunner"]


class SVIRunner(Run):
    """Fits any model with any guide that suits it, by stochastic variational inference.

    The data lie on the device as they are (8-bit images as uint8); a step gathers a shuffled
    mini-batch there, takes one objective and one fused Adam step, and reads nothing back to the
    host.

    :param model: the generative program.
    :param guide: a guide built for ``model``.
    :param objective: any of Pyro's ELBOs; by default the one that suits the guide.
    :param lr: Adam's rate.
    :param schedule: weights of the terms over the steps; by default all 1, the ELBO.
    :param seed: of the shuffling and of every draw while fitting (the networks were drawn before:
        seed those with ``pyro.set_rng_seed``), from 0 to 2**32 - 1. The caller's random state is
        left as it was.
    :param device: where to train, such as ``"cpu"`` or ``"cuda"``; by default where the model is.
    :param precision: ``"float32"``, or ``"bf16"`` for networks under autocast; latents and
        densities stay float32.
    :param guard: what happens where an objective is no longer finite, and how long gradients may
        be; by default ``Guard()``, which stops.
    :raises ValueError: if the parts do not belong together or an option is unknown.

    :ivar history: one record per logging interval, see :meth:`fit`.
    :ivar epoch: passes over the data so far.
    :ivar step: optimiser steps so far; the schedule goes by them.
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

    def __init__(
        self,
        model: FacetModel,
        guide: FacetGuide,
        objective: ELBO | None = None,
        lr: float = 5e-4,
        schedule: Schedule | None = None,
        seed: int = 0,
        device: str | torch.device | None = None,
        precision: str = "float32",
        guard: Guard | None = None,
    ) -> None:
        super().__init__(
            Loss(model, guide, objective), lr, schedule, seed, device, precision, guard
        )

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
        capture: bool = False,
        **given: Any,
    ) -> SVIRunner:
        """Train for ``epochs`` passes over ``x``.

        Every ``log_every`` epochs a record goes to :attr:`history`: ``epoch``, ``step``,
        ``seconds``; ``objective`` (mean over the interval's steps, weights as scheduled); ``elbo``,
        ``reconstruction``, ``kl_z_NAME`` and ``kl_c_NAME`` (every weight at 1, gates as scheduled,
        on 2,048 rows drawn once); all in nats per datum; and ``mutual_information_NAME``, of x and
        the facet's cluster where it is inferred, in nats.

        A second call goes on where the first ended, the schedule and the random streams included.

        :param x: ``[N, *x_shape]``, array or tensor. A memory-mapped array stays in its file, of
            which batches are read. A PyTorch ``DataLoader`` gives batches of x alone, mappings with
            ``"x"`` and what the model takes, or x first and then that, in its order; what is left
            over, such as labels, is not used.
        :param batch_size: at most this many rows a step, or about as many on average where groups
            are dealt; the last batch of an epoch may be smaller. 512 where not given; a loader has
            its own.
        :param callbacks: called with this runner and each new record, which they may add to;
            whatever they draw or compute, training is the same, unless they set the model's
            parameters. One that sets ``runner.should_stop`` ends training after the record.
        :param progress: show a bar.
        :param batches: how data are dealt: :class:`~inference.Groups` for models that take groups,
            else :class:`~inference.Rows`. Where groups are dealt in parts, the history is of parts
            too.
        :param checkpoints: where to write the state of this call now and then, and to go on from;
            see :class:`~inference.Checkpoints`.
        :param fabric: of Lightning Fabric, launched, to train in several processes, each of which
            calls this; see :class:`~inference.distributed.DataParallel`. ``batch_size`` is of all
            together; the first process alone shows progress, calls back and writes checkpoints.
        :param capture: record the step as one CUDA graph and play it again, see
            :class:`~inference.training.cuda_graph.CUDAGraphStep`: for small networks on a CUDA
            device, whose steps take as long as their kernels take to be launched.
        :param given: what the model takes beside x, one entry per datum, such as ``label``.
        :raises ValueError: before training, if data or sizes do not fit; nothing is changed then.
        :raises FloatingPointError: at a logging interval, if the guard says so: a step's objective
            or gradient was not finite. Parameters are as they were before that step.
        """
        how = (batch_size, log_every, callbacks, progress, batches, checkpoints, fabric, capture)
        train(self.plan(x, epochs, *how, **given))
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
        capture: bool = False,
        **given: Any,
    ) -> FitPlan:
        """What :meth:`fit` would do with these arguments, validated; nothing is trained, and
        nothing changed.

        :raises ValueError: as :meth:`fit` does before training.
        """
        processes = SingleProcess() if fabric is None else DataParallel(fabric, self)
        step_type, calls = self._step_type(capture, fabric), [check_callbacks(callbacks)]
        source = data_source_for(self.guide, self.device, x, given, batch_size, batches)
        return FitPlan(
            [self], step_type, source, epochs, log_every, calls, progress, checkpoints, processes
        )

    def _step_type(self, capture: bool, fabric: Fabric | None) -> type[SingleRunStep]:
        if not capture:
            return SingleRunStep
        if self.device.type != "cuda" or fabric is not None:
            where = "several processes" if fabric is not None else f"the device is {self.device}"
            raise ValueError(
                f"capture=True is for one process on a CUDA device, and here {where}: leave it out"
            )
        return CUDAGraphStep

    def save(self, folder: str | Path) -> Path:
        """Write ``config.json``, ``weights.safetensors`` and ``history.jsonl`` into ``folder``;
        returns it.

        Each file is complete or absent: it is written beside its place and moved there.
        """
        config = {
            "guide": to_config(self.guide),
            "schedule": to_config(self.schedule),
            "runner": {"lr": self.lr, "seed": self.seed, "precision": self.precision},
            "guard": to_config(self.guard),
            "progress": {"epoch": self.epoch, "step": self.step},
        }
        history = "".join(json.dumps(record) + "\n" for record in self.history)
        return write_checkpoint(Path(folder), config, self.guide.state_dict(), history)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        guide: FacetGuide | None = None,
        objective: ELBO | None = None,
        schedule: Schedule | None = None,
        device: str | torch.device | None = None,
    ) -> SVIRunner:
        """Build again what :meth:`save` wrote: ``runner.model`` and ``runner.guide`` hold the
        fitted parameters.

        The optimiser and the random streams start afresh, and the objective is the guide's own
        unless given. No pickled code is read.

        :param guide: the guide (and so the model) to fill, for parts of your own that a checkpoint
            cannot name.
        :param schedule: likewise.
        :raises FileNotFoundError: if a file is missing.
        :raises ValueError: if a file is truncated, foreign, or does not fit the guide; nothing is
            changed then.
        """
        config, state, history = read_checkpoint(Path(folder))
        with blamed_on(Path(folder) / "config.json"):
            lr, seed, precision = check_settings(**config["runner"])
        guide = _part("guide", guide, config, folder)
        schedule = _part("schedule", schedule, config, folder)
        guard = _part("guard", None if "guard" in config else Guard(), config, folder)
        _check_state(guide, state, folder)
        runner = cls(guide.model, guide, objective, lr, schedule, seed, device, precision, guard)
        guide.to(state["model.gates"].dtype).load_state_dict(state)
        runner.history, runner.epoch, runner.step = (
            history,
            config["progress"]["epoch"],
            config["progress"]["step"],
        )
        runner.loss.eval()
        return runner

    def __repr__(self) -> str:
        return (
            f"SVIRunner({type(self.model).__name__}, {type(self.guide).__name__}, "
            f"lr={self.lr}, seed={self.seed}, precision={self.precision!r}, epoch={self.epoch})"
        )


def _part(name: str, own: Any, config: dict[str, Any], folder: str | Path) -> Any:
    """A part of a run: the user's own, else what the description says."""
    if own is not None:
        return check_part(name, own)
    built = from_config(config[name])
    with blamed_on(Path(folder) / "config.json"):
        return check_part(name, built)


def _check_state(guide: FacetGuide, state: dict[str, Tensor], folder: str | Path) -> None:
    """:raises ValueError: if weights are not the guide's, or no numbers to compute with."""
    expected = {name: tuple(tensor.shape) for name, tensor in guide.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected != found:
        differing = sorted(
            name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
        )
        raise ValueError(
            f"the weights in {folder} do not fit the guide; they differ in {differing[:5]}"
            f"{' and others' if len(differing) > 5 else ''}: give `load` a guide built as it was "
            "when saved"
        )
    kinds = {name: tensor.is_floating_point() for name, tensor in guide.state_dict().items()}
    if wrong := sorted(
        n for n, t in state.items() if t.is_floating_point() != kinds[n] or not t.isfinite().all()
    ):
        raise ValueError(
            f"the weights in {folder} are damaged: NaN, infinite or of another type in {wrong[:5]}"
        )
