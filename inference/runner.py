"""One SVI runner for every model and guide."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from numpy.typing import ArrayLike
from pyro.infer import ELBO
from pyro.poutine.util import is_validation_enabled
from torch import Tensor
from tqdm.auto import tqdm

from guides.base import FacetGuide
from inference.checkpoint import read_checkpoint, write_checkpoint
from inference.evaluation import mutual_information
from inference.objectives import Loss
from inference.randomness import cuda_index, seeded
from inference.schedules import Constant, Schedule, Weights
from ppl_models.base import FacetModel, evaluating
from ppl_models.checks import check_count, check_one_of
from ppl_models.configurable import from_config, to_config
from ppl_models.data import Observed, as_observed
from ppl_models.precision import network_precision

__all__ = ["DeadFacetWarning", "SVIRunner"]

PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16}
# Rows that the terms of the ELBO and the mutual information are measured on at each logging interval.
WATCHED_ROWS = 2048
# Below this many nats a facet that is fully in tells (next to) nothing about the data.
DEAD_BELOW = 0.01

Callback = Callable[["SVIRunner", dict[str, Any]], None]


class DeadFacetWarning(UserWarning):
    """A fitted facet tells nothing about the data."""


class SVIRunner:
    """Fits any model with any guide that suits it, by stochastic variational inference.

    The data lie on the device as they are (8-bit images as uint8); a step gathers a shuffled mini-batch there, takes
    one objective and one fused Adam step, and reads nothing back to the host.

    :param model: the generative program.
    :param guide: a guide built for ``model``.
    :param objective: any of Pyro's ELBOs; by default the one that suits the guide.
    :param lr: Adam's rate.
    :param schedule: weights of the terms over the steps; by default all 1, the ELBO.
    :param seed: of the shuffling and of every draw while fitting (the networks were drawn before: seed those
        with ``pyro.set_rng_seed``). The caller's random state is left as it was.
    :param device: where to train, such as ``"cpu"`` or ``"cuda"``; by default where the model is.
    :param precision: ``"float32"``, or ``"bf16"`` for networks under autocast; latents and densities stay float32.
    :raises ValueError: if the parts do not belong together or an option is unknown.

    :ivar history: one record per logging interval, see :meth:`fit`.
    :ivar epoch: passes over the data so far.
    :ivar step: optimiser steps so far; the schedule goes by them.
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
    ) -> None:
        if not lr > 0:
            raise ValueError(f"lr must be positive, got {lr}")
        check_one_of("precision", precision, PRECISIONS)
        self.model = model
        self.guide = guide
        self.loss = Loss(model, guide, objective)
        self.device = torch.device(device) if device is not None else model.gates.device
        self.loss.to(self.device)
        self.schedule = schedule if schedule is not None else Constant()
        self.lr = lr
        self.seed = index(seed)
        self.precision = precision
        self.optimizer = torch.optim.Adam((p for p in self.loss.parameters() if p.requires_grad), lr=lr, fused=True)
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        self.step = 0
        with seeded(self.seed, self.device):
            self._random_state = _random_state(self.device)

    def fit(
        self,
        x: ArrayLike | Tensor,
        epochs: int,
        batch_size: int = 512,
        log_every: int = 1,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        **given: Any,
    ) -> SVIRunner:
        """Train for ``epochs`` passes over ``x``.

        Every ``log_every`` epochs a record goes to :attr:`history`: ``epoch``, ``step``, ``seconds``;
        ``objective`` (mean over the interval's steps, weights as scheduled); ``elbo``, ``reconstruction``,
        ``kl_z_NAME`` and ``kl_c_NAME`` (every weight at 1, gates as scheduled, on 2,048 rows drawn once); all in nats
        per datum; and ``mutual_information_NAME``, of x and the facet's cluster where it is inferred, in nats.

        A second call goes on where the first ended, the schedule and the random streams included.

        :param x: ``[N, *x_shape]``, array or tensor.
        :param batch_size: at most this many rows a step; the last batch of an epoch may be smaller.
        :param callbacks: called with this runner and each new record, which they may add to; whatever they draw or
            compute, training is the same, unless they set the model's parameters.
        :param progress: show a bar.
        :param given: what the model takes beside x, one entry per datum, such as ``label``.
        :raises ValueError: before training, if data or sizes do not fit; nothing is changed then.
        :raises FloatingPointError: at a logging interval whose objective is no longer finite.
        """
        for name, value in (("epochs", epochs), ("batch_size", batch_size), ("log_every", log_every)):
            check_count(name, value)
        data = as_observed(x, given, self.model).to(self.device)
        steps = epochs * -(-len(data) // batch_size)
        weights = self.schedule.bind(self.model, steps // epochs, self.step + steps)
        watched = data[_some_rows(len(data), WATCHED_ROWS)]
        checks = is_validation_enabled()
        with self._while_training(), tqdm(total=epochs, unit="epoch", disable=not progress, dynamic_ncols=True) as bar:
            self._check_first_step(data[:batch_size], weights)
            with pyro.validation_enabled(False):
                for record in self._train(data, epochs, batch_size, log_every, weights, bar):
                    with network_precision(None), pyro.validation_enabled(checks), seeded(0, self.device):
                        record |= self._watch(watched)
                        self.history.append(record)
                        for callback in callbacks:
                            callback(self, record)
                    bar.set_postfix(objective=f"{record['objective']:.2f}", elbo=f"{record['elbo']:.2f}")
        self.loss.eval()
        self._warn_of_dead_facets()
        return self

    def _train(
        self, data: Observed, epochs: int, batch_size: int, log_every: int, weights: Weights, bar: tqdm
    ) -> Iterator[dict[str, Any]]:
        """The loop itself: yields the start of a record at each logging interval."""
        started, first, logged = time.perf_counter(), self.epoch, self.step
        step = torch.full_like(self.model.gates[0], self.step)
        total_loss = torch.zeros_like(step)
        for epoch in range(1, epochs + 1):
            self.loss.train()
            for batch in _shuffled(data, batch_size):
                self.model.kl_weights, self.model.gates = weights(step)
                self.guide.at_step(step)
                total_loss += self._step(batch)
                step += 1
                self.step += 1
            self.epoch = first + epoch
            bar.update()
            if epoch % log_every == 0 or epoch == epochs:
                objective = float(total_loss) / (self.step - logged)
                if not np.isfinite(objective):
                    raise FloatingPointError(
                        f"the objective became {objective} by epoch {self.epoch} (step {self.step}) at lr={self.lr}: "
                        "try a lower rate, and look at the scale of the data"
                    )
                seconds = time.perf_counter() - started
                yield {"epoch": self.epoch, "step": self.step, "seconds": seconds, "objective": objective}
                logged = self.step
                total_loss.zero_()

    def _step(self, batch: Observed) -> Tensor:
        loss = self.loss(batch.x, **batch.given)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _check_first_step(self, batch: Observed, weights: Weights) -> None:
        """One objective with all of Pyro's checks on; it changes neither parameters nor the stream of draws."""
        at_start = weights(torch.full_like(self.model.gates[0], self.step))
        checked = pyro.validation_enabled(True)
        with (
            seeded(0, self.device),
            checked,
            torch.no_grad(),
            evaluating(self.loss),
            self.model.weights_set_to(*at_start),
        ):
            loss = self.loss(batch.x, **batch.given)
        if not loss.isfinite():
            raise ValueError(
                f"the objective is {float(loss)} before the first step: check the scale of the data "
                "and the parameters that the model was given"
            )

    def _watch(self, rows: Observed) -> dict[str, float]:
        with evaluating(self.loss):
            terms = {name: float(value) for name, value in self.loss.terms(rows.x, **rows.given).items()}
            information = mutual_information(self.guide, rows.x, **rows.given)
        return terms | {f"mutual_information_{name}": nats for name, nats in information.items()}

    def _warn_of_dead_facets(self) -> None:
        """Say so if a facet that is fully in ended without telling anything about the data."""
        last = self.history[-1]
        for (name, prior), gate in zip(self.model.priors.items(), self.model.gates.tolist(), strict=True):
            measures = {"KL(z)": last[f"kl_z_{name}"] + last.get(f"kl_c_{name}", 0.0)}
            if name in self.model.inferred and prior.num_components > 1:
                measures["mutual information"] = last[f"mutual_information_{name}"]
            for measure, nats in measures.items():
                if gate == 1 and nats < DEAD_BELOW:
                    warnings.warn(
                        f"facet {name!r} ended with {measure} = {nats:.2g} nats, so it tells nothing about the data: "
                        "it has died, or has not learned yet; try a warm start, a slower fade-in or more epochs",
                        DeadFacetWarning,
                        stacklevel=3,
                    )
                    break

    @contextmanager
    def _while_training(self) -> Iterator[None]:
        """This runner's precision and random streams, and the caller's again afterwards."""
        with seeded(self.seed, self.device), network_precision(PRECISIONS[self.precision]):
            _set_random_state(self._random_state, self.device)
            try:
                yield
            finally:
                self._random_state = _random_state(self.device)

    def save(self, folder: str | Path) -> Path:
        """Write ``config.json``, ``weights.safetensors`` and ``history.jsonl`` into ``folder``; returns it.

        Each file is complete or absent: it is written beside its place and moved there.
        """
        config = {
            "guide": to_config(self.guide),
            "schedule": to_config(self.schedule),
            "runner": {"lr": self.lr, "seed": self.seed, "precision": self.precision},
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
        """Build again what :meth:`save` wrote: ``runner.model`` and ``runner.guide`` hold the fitted parameters.

        The optimiser and the random streams start afresh, and the objective is the guide's own unless given. No
        pickled code is read.

        :param guide: the guide (and so the model) to fill, for parts of your own that a checkpoint cannot name.
        :param schedule: likewise.
        :raises FileNotFoundError: if a file is missing.
        :raises ValueError: if a file is truncated, foreign, or does not fit the guide; nothing is changed then.
        """
        config, state, history = read_checkpoint(Path(folder))
        try:
            guide = from_config(config["guide"]) if guide is None else guide
            schedule = from_config(config["schedule"]) if schedule is None else schedule
            settings, progress = dict(config["runner"]), dict(config["progress"])
            _check_state(guide, state, folder)
        except KeyError as error:
            raise ValueError(f"{folder} is no checkpoint of this library: config.json lacks {error}") from error
        guide.to(state["model.gates"].dtype).load_state_dict(state)
        runner = cls(guide.model, guide, objective, schedule=schedule, device=device, **settings)
        runner.history, runner.epoch, runner.step = history, progress["epoch"], progress["step"]
        runner.loss.eval()
        return runner

    def __repr__(self) -> str:
        return (
            f"SVIRunner({type(self.model).__name__}, {type(self.guide).__name__}, "
            f"lr={self.lr}, seed={self.seed}, precision={self.precision!r}, epoch={self.epoch})"
        )


def _shuffled(data: Observed, batch_size: int) -> Iterable[Observed]:
    order = torch.randperm(len(data), device=data.x.device)
    return (data[rows] for rows in order.split(batch_size))


def _some_rows(n: int, at_most: int) -> Tensor:
    """The same rows for the same ``n``, spread over data that may be sorted."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[:at_most].sort().values


def _random_state(device: torch.device) -> list[Tensor]:
    index = cuda_index(device)
    return [torch.random.get_rng_state()] + ([] if index is None else [torch.cuda.get_rng_state(index)])


def _set_random_state(state: list[Tensor], device: torch.device) -> None:
    torch.random.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1], device)


def _check_state(guide: FacetGuide, state: dict[str, Tensor], folder: str | Path) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in guide.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected != found:
        differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise ValueError(
            f"the weights in {folder} do not fit the guide; they differ in {differing[:5]}"
            f"{' and others' if len(differing) > 5 else ''}: give `load` a guide built as it was when saved"
        )
