"""Time of one training step: ours, a plain PyTorch loop of the same objective, and the networks
alone.

    python -m benchmarks.step_time --steps 60

All variants run interleaved in one process with the same threads, data and parameters' shapes;
medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import pyro
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from guides import VaDEGuide
from inference import Loss
from ppl_models import MFCVAE, GaussianMixture
from ppl_models.precision import network_precision

K, D, BATCH = 25, 5, 512
HALF_LOG_2PI = 0.9189385332046727


class PlainMFCVAE(nn.Module):
    """MFCVAE's Eq. 62 on the ladder of Table 4, written by hand without Pyro."""

    def __init__(self) -> None:
        super().__init__()
        self.b1, self.b2 = nn.Linear(784, 500), nn.Linear(500, 2000)
        self.r1, self.r2 = nn.Linear(500, 2 * D), nn.Linear(2000, 2 * D)
        self.up2, self.down2 = nn.Linear(D, 2000), nn.Linear(2000, 500)
        self.up1, self.down1 = nn.Linear(D, 500), nn.Linear(1000, 784)
        self.logits = nn.Parameter(torch.zeros(2, K))
        self.loc = nn.Parameter(torch.randn(2, K, D))
        self.raw_scale = nn.Parameter(torch.full((2, K, D), 0.054))

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h1 = torch.relu(self.b1(x))
        return self.r1(h1), self.r2(torch.relu(self.b2(h1)))

    def output(self, z1: Tensor, z2: Tensor) -> Tensor:
        h2 = torch.relu(self.down2(torch.relu(self.up2(z2))))
        return self.down1(torch.cat([h2, torch.relu(self.up1(z1))], -1))

    def forward(self, x: Tensor, dtype: torch.dtype | None) -> Tensor:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            heads = self.heads(x)
        heads = [head.float() for head in heads]
        loss, z = x.new_zeros(()), []
        for j, head in enumerate(heads):
            mean, raw = head.chunk(2, -1)
            half = 5 * torch.tanh(raw / 10)
            noise = torch.randn_like(mean)
            z_j = mean + half.exp() * noise
            log_q = (-0.5 * noise**2 - half - HALF_LOG_2PI).sum(-1)
            scale = nn.functional.softplus(self.raw_scale[j], beta=10)
            u = (z_j.unsqueeze(1) - self.loc[j]) / scale
            log_p_z = (-0.5 * u**2 - scale.log() - HALF_LOG_2PI).sum(-1)  # [B, K]
            log_p_c = torch.log_softmax(self.logits[j], -1)
            log_q_c = torch.log_softmax(log_p_z + log_p_c, -1)
            loss = loss + (log_q - (log_q_c.exp() * (log_p_z + log_p_c - log_q_c)).sum(-1)).sum()
            z.append(z_j)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            output = self.output(*z)
        return (loss + binary_cross_entropy_with_logits(output.float(), x, reduction="sum")) / len(
            x
        )

    def networks_only(self, x: Tensor, dtype: torch.dtype | None) -> Tensor:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            h1, h2 = self.heads(x)
            output = self.output(h1[:, :D], h2[:, :D])
        return output.float().mean()


def ours() -> Callable[[Tensor, torch.dtype | None], Tensor]:
    model = MFCVAE((784,), {"style": GaussianMixture(K, D), "digit": GaussianMixture(K, D)})
    return at_precision(Loss(model, VaDEGuide(model)))


def at_precision(loss: Loss) -> Callable[[Tensor, torch.dtype | None], Tensor]:
    """The loss as a function of a batch and its networks' precision."""

    def objective(x: Tensor, dtype: torch.dtype | None) -> Tensor:
        with network_precision(dtype):
            return loss(x)

    objective.parameters = loss.parameters  # type: ignore[attr-defined]
    return objective


def stepper(
    objective: Callable, parameters: Callable, dtype: torch.dtype | None, x: Tensor
) -> Callable[[], float]:
    optimizer = torch.optim.Adam(parameters(), lr=5e-4, fused=True)

    def step() -> float:
        started = time.perf_counter()
        loss = objective(x, dtype)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return time.perf_counter() - started

    return step


def interleaved_medians(
    steps: dict[str, Callable[[], float]], turns: int, untimed: int
) -> dict[str, float]:
    """Median seconds of each step over ``turns`` rounds of all of them, after ``untimed``
    rounds.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    with pyro.validation_enabled(False):
        for turn in range(untimed + turns):
            for name, step in steps.items():
                seconds = step()
                if turn >= untimed:
                    times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60, help="timed steps of each variant")
    args = parser.parse_args()
    pyro.set_rng_seed(0)
    x = torch.rand(BATCH, 784)
    steps = {}
    for precision, dtype in (("float32", None), ("bf16", torch.bfloat16)):
        plain, library = PlainMFCVAE(), ours()
        networks = PlainMFCVAE()
        steps[f"networks alone, {precision}"] = stepper(
            networks.networks_only, networks.parameters, dtype, x
        )
        steps[f"plain loop, {precision}"] = stepper(plain, plain.parameters, dtype, x)
        steps[f"ours, {precision}"] = stepper(library, library.parameters, dtype, x)
    medians = interleaved_medians(steps, args.steps, untimed=10)
    print(
        f"{BATCH} rows of 784, 2 facets of K={K}, d={D}; {torch.get_num_threads()} threads, "
        f"{args.steps} steps"
    )
    for name, median in medians.items():
        print(f"{name:26s} {1e3 * median:7.1f} ms")
    for precision in ("float32", "bf16"):
        print(
            f"ours / plain loop, {precision}: "
            f"{medians[f'ours, {precision}'] / medians[f'plain loop, {precision}']:.3f}"
        )
        print(
            f"ours / networks alone, {precision}: "
            f"{medians[f'ours, {precision}'] / medians[f'networks alone, {precision}']:.3f}"
        )
    print(f"ours bf16 / ours float32: {medians['ours, bf16'] / medians['ours, float32']:.3f}")


if __name__ == "__main__":
    main()
