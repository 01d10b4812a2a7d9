"""Time of one training step of MFCVAE: this library's ways to take it, beside a plain PyTorch loop
of the same objective, the networks alone, and NumPyro where it is installed.

    python -m lab.benchmarks.step_time --steps 60 --out step_time.json
    python -m lab.benchmarks.step_time --size quickstart
    python -m lab.benchmarks.step_time --size table --variants "ours" "ours, replay" "NumPyro"

Every variant gathers a batch from the same data, computes objective and gradient, and takes Adam's
step, all from the same weights:

- networks alone: encoder, decoder and their backward pass
- plain loop: the objective written by hand, eager, with fused Adam, as this library has it; and
  with torch.compile around the objective
- ours: the steps of SVIRunner.fit's loop, with compile=None; "replay"; "xla", which takes all steps
  of a pass in one call; and, on a graphics card, "cuda graph"
- NumPyro: the marginal form of the model, jax.jit around SVI.update and the gathering

They take turns in one process, of several steps each, after one that is not timed. Medians over the
turns are printed with their quartiles, ratios within the same round likewise, and the seconds that
the first step took, recording and compiling included; PyTorch's compiler finds an empty cache. A
variant that cannot be had here is left out, with a sentence that says why.

Sizes: "mnist" (512 rows of 784, Table 4's networks), "quickstart" (64 rows of 64, the digit facet's
clusters known, as in examples.quickstart) and "table" (16 rows of 6). The last two use one thread
unless --threads says otherwise. --device cuda measures a graphics card, without NumPyro.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from examples import quickstart
from facetvae.datasets import digits
from guides import VaDEGuide
from inference import SVIRunner
from inference.randomness import synchronize
from inference.run import PRECISIONS
from lab.benchmarks.model_steps import FitSteps, Step, begin, in_turns, ratios, spread
from lab.benchmarks.plain_objectives import HALF_LOG_2PI, draw, log_joint, normal
from lab.run_lines import described_by
from ppl_models import MFCVAE, Bernoulli, GaussianMixture, MLPLadder, Normal
from ppl_models.given.observed import Observed

QUICKSTART = quickstart.Settings()


@dataclass(frozen=True)
class Size:
    """A model of two facets, and its batches.

    :ivar components: K of each facet.
    :ivar dims: d of each facet.
    :ivar scale: of a Normal likelihood; ``None`` for Bernoulli.
    :ivar label_weight: of the deep facet's known clusters; 0 if they are not known.
    :ivar batches: in a pass over the data.
    :ivar threads: ``None`` for PyTorch's default.
    :ivar steps: timed, of each variant.
    :ivar turn: steps of a turn.
    """

    features: int
    widths: tuple[int, int]
    components: tuple[int, int]
    dims: tuple[int, int]
    batch: int
    batches: int
    steps: int
    turn: int
    lr: float = 5e-4
    scale: float | None = None
    label_weight: float = 0.0
    threads: int | None = 1
    precisions: tuple[str, ...] = ("float32",)
    device: str = "cpu"

    def guide(self) -> VaDEGuide:
        pyro.set_rng_seed(0)
        facets = zip(("style", "digit"), self.components, self.dims, strict=True)
        model = MFCVAE(
            (self.features,),
            {name: GaussianMixture(K, d) for name, K, d in facets},
            likelihood=Bernoulli() if self.scale is None else Normal(self.scale),
            network=MLPLadder(self.widths),
        )
        return VaDEGuide(model, label_weight=self.label_weight).to(self.device)

    def data(self) -> tuple[Tensor, Tensor | None]:
        """Rows, and the clusters of the deep facet if they are known."""
        rows = self.batch * self.batches
        if not self.label_weight:
            x = torch.rand(rows, self.features, generator=torch.Generator().manual_seed(0))
            return x.to(self.device), None
        drawn = digits()
        x, labels = (
            torch.as_tensor(of)[:rows] for of in (drawn.train, drawn.train_labels["digit"])
        )
        return x.to(self.device), labels.to(self.device)


SIZES = {
    "mnist": Size(
        784, (500, 2000), (25, 25), (5, 5), batch=512, batches=16, steps=160, turn=16,
        threads=None, precisions=("float32", "bf16"),
    ),
    "quickstart": Size(
        64, QUICKSTART.widths, QUICKSTART.num_components, (QUICKSTART.dim, QUICKSTART.dim),
        batch=QUICKSTART.batch_size, batches=22, steps=880, turn=88, lr=QUICKSTART.lr,
        scale=QUICKSTART.scale, label_weight=30.0,
    ),
    "table": Size(
        6, (16, 16), (3, 4), (2, 3), batch=16, batches=16, steps=2000, turn=80, scale=0.5
    ),
}  # fmt: skip


class PlainMFCVAE(nn.Module):
    """MFCVAE's Eq. 62 on the ladder of Table 4, written by hand without Pyro."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        low, high = size.widths
        self.scale, self.label_weight, self.dims = size.scale, size.label_weight, size.dims
        self.b1, self.b2 = nn.Linear(size.features, low), nn.Linear(low, high)
        self.r1, self.r2 = (
            nn.Linear(width, 2 * d) for width, d in zip(size.widths, size.dims, strict=True)
        )
        self.up1, self.up2 = (
            nn.Linear(d, width) for width, d in zip(size.widths, size.dims, strict=True)
        )
        self.down1, self.down2 = nn.Linear(2 * low, size.features), nn.Linear(high, low)
        self.mixtures = nn.ModuleList(
            GaussianMixture(K, d) for K, d in zip(size.components, size.dims, strict=True)
        )

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h1 = torch.relu(self.b1(x))
        return self.r1(h1), self.r2(torch.relu(self.b2(h1)))

    def output(self, z1: Tensor, z2: Tensor) -> Tensor:
        h2 = torch.relu(self.down2(torch.relu(self.up2(z2))))
        return self.down1(torch.cat([h2, torch.relu(self.up1(z1))], -1))

    def forward(self, x: Tensor, label: Tensor | None, dtype: torch.dtype | None) -> Tensor:
        """Nats per datum.

        :param label: the deep facet's clusters.
        """
        with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
            heads = self.heads(x)
        loss, z = x.new_zeros(()), []
        for head, mixture, known in zip(heads, self.mixtures, (None, label), strict=True):
            z_j, log_q = draw(*normal(head.float()))
            log_p = log_joint(mixture, z_j)  # [B, K]
            log_q_c = torch.log_softmax(log_p, -1)
            if known is None:
                kl = log_q - (log_q_c.exp() * (log_p - log_q_c)).sum(-1)
            else:
                chosen = known.unsqueeze(-1)
                kl = log_q - (log_p + self.label_weight * log_q_c).gather(-1, chosen).squeeze(-1)
            loss = loss + kl.sum()
            z.append(z_j)
        with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
            output = self.output(*z)
        return (loss + self.misfit(output.float(), x)) / len(x)

    def misfit(self, output: Tensor, x: Tensor) -> Tensor:
        """-log p(x given z), summed over the batch."""
        if self.scale is None:
            return binary_cross_entropy_with_logits(output, x, reduction="sum")
        constant = x.numel() * (np.log(self.scale) + HALF_LOG_2PI)
        return 0.5 * ((output - x) / self.scale).square().sum() + constant

    def networks_only(self, x: Tensor, label: Tensor | None, dtype: torch.dtype | None) -> Tensor:
        with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
            heads = self.heads(x)
            output = self.output(*(h[:, :d] for h, d in zip(heads, self.dims, strict=True)))
        return output.float().mean()


def plain_copy(guide: VaDEGuide, size: Size) -> PlainMFCVAE:
    """The model written by hand, with the weights of a guide and its model."""
    plain = PlainMFCVAE(size).to(size.device)
    encoder, decoder = (
        [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        for network in (guide.encoder, guide.model.decoder)
    )
    names = ("b1", "b2", "r1", "r2", "up1", "up2", "down1", "down2")
    for name, layer in zip(names, [*encoder, *decoder], strict=True):
        getattr(plain, name).load_state_dict(layer.state_dict())
    for mixture, prior in zip(plain.mixtures, guide.model.priors.values(), strict=True):
        mixture.load_state_dict(prior.state_dict())
    return plain


# The variants: each is built from a size and a precision.


class Unavailable(Exception):
    """A variant cannot be had here; the message says why."""


class PlainLoop:
    """The steps of a loop that is written by hand."""

    def __init__(
        self, objective: Callable[..., Tensor], module: nn.Module, size: Size, precision: str
    ) -> None:
        self.objective, self.dtype = objective, PRECISIONS[precision]
        self.x, self.label = size.data()
        self.batch = size.batch
        self.parameters = list(module.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=size.lr, fused=True)
        self.batches = self.passes()

    def passes(self) -> Iterator[Tensor]:
        while True:
            rows = torch.randperm(len(self.x), device=self.x.device)
            yield from rows.split(self.batch)

    def __call__(self) -> None:
        rows = next(self.batches)
        label = None if self.label is None else self.label[rows]
        loss = self.objective(self.x[rows], label, self.dtype)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def wait(self) -> None:
        """Until the device has finished."""
        synchronize(self.x.device)


def networks_alone(size: Size, precision: str) -> Step:
    module = plain_copy(size.guide(), size)
    return PlainLoop(module.networks_only, module, size, precision)


def plain_loop(size: Size, precision: str) -> Step:
    module = plain_copy(size.guide(), size)
    return PlainLoop(module, module, size, precision)


def compiled_loop(size: Size, precision: str) -> Step:
    module = plain_copy(size.guide(), size)
    return PlainLoop(torch.compile(module), module, size, precision)


def ours(size: Size, precision: str, mode: str | None = None) -> FitSteps:
    guide, (x, label) = size.guide(), size.data()
    runner = SVIRunner(guide.model, guide, lr=size.lr, precision=precision, compile=mode)
    given = {} if label is None else {"label": {"digit": label}}
    return FitSteps(runner, Observed(x, given), size.batch)


def numpyro_loop(size: Size, precision: str, guide: VaDEGuide | None = None) -> Step:
    """:param guide: whose weights it starts from; by default those of all variants."""
    if size.device != "cpu":
        raise Unavailable("NumPyro is measured on the CPU alone")
    try:
        from lab.benchmarks.numpyro_step import NumPyroSteps
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"{error.name} is not installed: pip install 'facetvae[benchmarks]'"
        ) from error
    x, label = size.data()
    return NumPyroSteps(
        numpyro_weights(plain_copy(guide or size.guide(), size)),
        x.numpy(),
        None if label is None else label.numpy(),
        batch=size.batch,
        lr=size.lr,
        scale=size.scale,
        label_weight=size.label_weight,
        precision=precision,
    )


def numpyro_weights(plain: PlainMFCVAE) -> dict[str, np.ndarray]:
    """As arrays by name; a layer's ``[in, out]``."""
    state = {name: value.numpy() for name, value in plain.state_dict().items()}
    return {name: value.T if name.endswith(".weight") else value for name, value in state.items()}


VARIANTS: dict[str, Callable[[Size, str], Step]] = {
    "networks alone": networks_alone,
    "plain loop": plain_loop,
    "plain loop, torch.compile": compiled_loop,
    "ours": ours,
    "ours, replay": partial(ours, mode="replay"),
    "ours, xla": partial(ours, mode="xla"),
    "ours, cuda graph": partial(ours, mode="cuda graph"),
    "NumPyro": numpyro_loop,
}
COMPILED = "plain loop, torch.compile"
# Those that need what a machine may not have.
OPTIONAL = (COMPILED, "ours, cuda graph")


def begun(variant: str, size: Size, precision: str) -> tuple[Step, float]:
    """A variant after its first step, and those that its compiler waits for, and the seconds that
    these took.

    :raises Unavailable: if it cannot be had here.
    """
    try:
        step = VARIANTS[variant](size, precision)
        seconds = begin(step)
    except (RuntimeError, ValueError) as error:
        if variant not in OPTIONAL:
            raise
        raise Unavailable(str(error).strip().partition("\n")[0]) from error
    if isinstance(step, FitSteps) and step.refusal is not None:
        raise Unavailable(step.refusal)
    return step, seconds


def limit_jax(threads: int) -> None:
    """Use so many threads in JAX, too; only before its first computation in this process."""
    os.environ["NPROC"] = str(threads)
    if threads == 1:
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_multi_thread_eigen=false"


# Measuring and printing.


@dataclass(frozen=True)
class Settings:
    """What to measure, and how."""

    size: Size
    variants: Sequence[str]
    precisions: Sequence[str]
    steps: int
    turn: int


def measure(settings: Settings) -> dict[str, Any]:
    """Measure all variants in turns.

    :returns: ``seconds`` of a step and ``ratios`` (median and quartiles each), ``first_step``
        seconds, and why variants were ``left_out``; all by name.
    """
    steps, first, left_out = {}, {}, {}
    for precision, variant in product(settings.precisions, settings.variants):
        name = f"{variant}, {precision}"
        try:
            steps[name], first[name] = begun(variant, settings.size, precision)
        except Unavailable as reason:
            left_out[name] = str(reason)
    turns = max(1, settings.steps // settings.turn)
    times = in_turns(steps, turns, settings.turn, time.perf_counter)
    return {
        "seconds": {name: spread(of) for name, of in times.items()},
        "ratios": all_ratios(times, settings),
        "first_step": first,
        "left_out": left_out,
    }


def all_ratios(times: dict[str, list[float]], settings: Settings) -> dict[str, dict[str, float]]:
    """This library's variants over the others and over "ours"; and bf16 over float32."""
    pairs = {}
    ways = [name for name in settings.variants if name.startswith("ours")]
    others = [name for name in settings.variants if name == "ours" or name not in ways]
    for precision, one, other in product(settings.precisions, ways, others):
        if one != other:
            name = f"{one} / {other}, {precision}"
            pairs[name] = (f"{one}, {precision}", f"{other}, {precision}")
    for one in settings.variants:
        pairs[f"{one} bf16 / {one} float32"] = (f"{one}, bf16", f"{one}, float32")
    return {
        name: ratios(times[one], times[other])
        for name, (one, other) in pairs.items()
        if one in times and other in times
    }


def about(name: str, settings: Settings) -> dict[str, Any]:
    return {
        "size": name,
        "rows": settings.size.batch,
        "features": settings.size.features,
        "components": settings.size.components,
        "dims": settings.size.dims,
        "widths": settings.size.widths,
        "device": settings.size.device,
        "threads": torch.get_num_threads(),
        "steps": settings.steps,
        "turn": settings.turn,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def report(found: dict[str, Any]) -> None:
    for name, s in found["seconds"].items():
        median, low, high = (1e3 * s[key] for key in ("median", "low", "high"))
        first = found["first_step"][name]
        print(f"{name:34s} {median:9.3f} ms ({low:.3f} to {high:.3f}); first step {first:.2f} s")
    for name, reason in found["left_out"].items():
        print(f"{name} is left out: {reason}")
    for name, r in found["ratios"].items():
        print(f"{name}: {r['median']:.3f} ({r['low']:.3f} to {r['high']:.3f})")


def settings_of(args: argparse.Namespace) -> Settings:
    size = replace(SIZES[args.size], device=args.device)
    return Settings(
        size,
        args.variants,
        args.precisions or size.precisions,
        args.steps or size.steps,
        min(size.turn, args.steps or size.turn),
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = described_by(__doc__)
    parser.add_argument("--size", choices=list(SIZES), default="mnist")
    parser.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="VARIANT",
        help="; ".join(VARIANTS),
    )  # fmt: skip
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS))
    parser.add_argument("--steps", type=int, help="timed steps of each variant")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of PyTorch and of NumPyro")
    parser.add_argument(
        "--out", type=Path, help="write medians, quartiles and ratios to this JSON file"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse(arguments)
    settings = settings_of(args)
    if threads := args.threads or settings.size.threads:
        torch.set_num_threads(threads)
    limit_jax(torch.get_num_threads())
    described = about(args.size, settings)
    print(", ".join(f"{name} {value}" for name, value in described.items()), flush=True)
    with ExitStack() as stack:
        if COMPILED in settings.variants:
            from torch._inductor.utils import fresh_cache

            stack.enter_context(fresh_cache())
        found = measure(settings)
    report(found)
    if args.out is not None:
        args.out.write_text(json.dumps({"about": described, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
