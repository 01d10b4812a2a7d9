"""One SVI runner for every model and guide."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyro
import torch
from numpy.typing import ArrayLike
from pyro.infer import ELBO
from torch import Tensor
from tqdm.auto import tqdm

from guides.base import FacetGuide, evaluating
from inference.checkpoint import read_checkpoint, write_checkpoint
from inference.evaluation import mutual_information
from inference.objectives import Loss
from inference.schedules import Constant, Schedule, Weights
from ppl_models.base import FacetModel
from ppl_models.checks import check_count, check_one_of
from ppl_models.configurable import from_config, to_config
from ppl_models.data import as_data
from ppl_models.precision import network_precision

__all__ = ["SVIRunner"]

PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16}
# Rows that the terms of the ELBO and the mutual information are measured on at each logging interval.
WATCHED_ROWS = 2048

Callback = Callable[["SVIRunner", dict[str, Any]], None]


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
        self.seed = seed
        self.precision = precision
        self.optimizer = torch.optim.Adam((p for p in self.loss.parameters() if p.requires_grad), lr=lr, fused=True)
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        self._random_state = _seeded_state(seed)

    def fit(
        self,
        x: ArrayLike | Tensor,
        epochs: int,
        batch_size: int = 512,
        log_every: int = 1,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> SVIRunner:
        """Train for ``epochs`` passes over ``x``.

        Every ``log_every`` epochs a record goes to :attr:`history`: ``epoch``, ``step``, ``seconds``;
        ``objective`` (mean over the interval's steps, weights as scheduled); ``elbo``, ``reconstruction``,
        ``kl_z_NAME`` and ``kl_c_NAME`` (every weight at 1, on the first 2,048 rows); all in nats per datum;
        and ``mutual_information_NAME``, of x and the facet's cluster, in nats.

        :param x: ``[N, *x_shape]``, array or tensor.
        :param batch_size: at most this many rows a step; the last batch of an epoch may be smaller.
        :param callbacks: called with this runner and each new record, which they may add to.
        :param progress: show a bar.
        :raises ValueError: before training, if data or sizes do not fit; nothing is changed then.
        """
        for name, value in (("epochs", epochs), ("batch_size", batch_size), ("log_every", log_every)):
            check_count(name, value)
        data = as_data(x, self.model).to(self.device)
        steps_per_epoch = -(-len(data) // batch_size)
        weights = self.schedule.bind(self.model, steps_per_epoch, epochs * steps_per_epoch)
        with (
            self._own_randomness(),
            network_precision(PRECISIONS[self.precision]),
            tqdm(total=epochs, unit="epoch", disable=not progress, dynamic_ncols=True) as bar,
        ):
            self._check_first_step(data[:batch_size])
            with pyro.validation_enabled(False):
                for record in self._train(data, epochs, batch_size, log_every, weights, bar):
                    self.history.append(record)
                    bar.set_postfix(objective=f"{record['objective']:.2f}", elbo=f"{record['elbo']:.2f}")
                    for callback in callbacks:
                        callback(self, record)
        self.loss.eval()
        return self

    def _train(
        self, data: Tensor, epochs: int, batch_size: int, log_every: int, weights: Weights, bar: tqdm
    ) -> Iterator[dict[str, Any]]:
        """The loop itself: yields a record at each logging interval."""
        self.loss.train()
        started, steps_logged = time.perf_counter(), 0
        step = torch.zeros((), device=self.device, dtype=self.model.gates.dtype)
        total_loss = torch.zeros_like(step)
        for epoch in range(1, epochs + 1):
            for batch in _shuffled(data, batch_size):
                self.model.kl_weights, self.model.gates = weights(step)
                total_loss += self._step(batch)
                step += 1
            self.epoch += 1
            bar.update()
            if epoch % log_every == 0 or epoch == epochs:
                steps_done = epoch * -(-len(data) // batch_size)
                yield {
                    "epoch": self.epoch,
                    "step": steps_done,
                    "seconds": time.perf_counter() - started,
                    "objective": float(total_loss) / (steps_done - steps_logged),
                    **self._watch(data[:WATCHED_ROWS]),
                }
                steps_logged = steps_done
                total_loss.zero_()

    def _step(self, batch: Tensor) -> Tensor:
        loss = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _check_first_step(self, batch: Tensor) -> None:
        """One objective with all of Pyro's checks on; it changes neither parameters nor the stream of draws."""
        with torch.random.fork_rng(devices=_devices(self.device)), pyro.validation_enabled(True), torch.no_grad():
            loss = self.loss(batch)
        if not loss.isfinite():
            raise ValueError(
                f"the objective is {float(loss)} before the first step: check the scale of the data "
                "and the parameters that the model was given"
            )

    def _watch(self, rows: Tensor) -> dict[str, float]:
        with evaluating(self.loss), torch.random.fork_rng(devices=_devices(self.device)):
            torch.manual_seed(0)  # the same draws each time, so that records differ by training only
            terms = self.loss.terms(rows)
            terms |= {f"mutual_information_{name}": mi for name, mi in mutual_information(self.guide, rows).items()}
        return {name: float(value) for name, value in terms.items()}

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Run on this runner's own random streams, and give the caller's back afterwards."""
        devices = _devices(self.device)
        with torch.random.fork_rng(devices=devices):
            torch.random.set_rng_state(self._random_state["cpu"])
            for index in devices:
                torch.cuda.set_rng_state(
                    self._random_state.setdefault(str(index), _cuda_state(self.seed, index)), index
                )
            try:
                yield
            finally:
                self._random_state = {"cpu": torch.random.get_rng_state()}
                self._random_state |= {str(index): torch.cuda.get_rng_state(index) for index in devices}

    def save(self, folder: str | Path) -> Path:
        """Write ``config.json``, ``weights.safetensors`` and ``history.jsonl`` into ``folder``; returns it.

        Each file is complete or absent: it is written beside its place and moved there.
        """
        config = {
            "guide": to_config(self.guide),
            "schedule": to_config(self.schedule),
            "runner": {"lr": self.lr, "seed": self.seed, "precision": self.precision, "epoch": self.epoch},
        }
        history = "".join(json.dumps(record) + "\n" for record in self.history)
        return write_checkpoint(Path(folder), config, self.guide.state_dict(), history)

    @classmethod
    def load(
        cls, folder: str | Path, guide: FacetGuide | None = None, device: str | torch.device | None = None
    ) -> SVIRunner:
        """Build again what :meth:`save` wrote: ``runner.model`` and ``runner.guide`` hold the fitted parameters.

        The optimiser starts afresh. No pickled code is read.

        :param guide: the guide (and so the model) to fill, for parts of your own that a checkpoint cannot name.
        :raises FileNotFoundError: if a file is missing.
        :raises ValueError: if a file is truncated, foreign, or does not fit the guide; nothing is changed then.
        """
        config, state, history = read_checkpoint(Path(folder))
        try:
            guide = from_config(config["guide"]) if guide is None else guide
            schedule, settings = from_config(config["schedule"]), dict(config["runner"])
            epoch = settings.pop("epoch")
            _check_state(guide, state, folder)
        except KeyError as error:
            raise ValueError(f"{folder} is no checkpoint of this library: config.json lacks {error}") from error
        guide.load_state_dict(state)
        runner = cls(guide.model, guide, schedule=schedule, device=device, **settings)
        runner.history, runner.epoch = history, epoch
        runner.loss.eval()
        return runner

    def __repr__(self) -> str:
        return (
            f"SVIRunner({type(self.model).__name__}, {type(self.guide).__name__}, "
            f"lr={self.lr}, seed={self.seed}, precision={self.precision!r}, epoch={self.epoch})"
        )


def _shuffled(data: Tensor, batch_size: int) -> Iterable[Tensor]:
    order = torch.randperm(len(data), device=data.device)
    return (data[rows] for rows in order.split(batch_size))


def _devices(device: torch.device) -> list[int]:
    return [device.index or 0] if device.type == "cuda" else []


def _seeded_state(seed: int) -> dict[str, Tensor]:
    return {"cpu": torch.Generator().manual_seed(seed).get_state()}


def _cuda_state(seed: int, index: int) -> Tensor:
    return torch.Generator(f"cuda:{index}").manual_seed(seed).get_state()


def _check_state(guide: FacetGuide, state: dict[str, Tensor], folder: str | Path) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in guide.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected != found:
        differing = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise ValueError(
            f"the weights in {folder} do not fit the guide; they differ in {differing[:5]}"
            f"{' and others' if len(differing) > 5 else ''}: give `load` a guide built as it was when saved"
        )
