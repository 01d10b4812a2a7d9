"""Time of one training step on the convolutional ladder: ours, and a plain PyTorch loop of the same
objective.

    python -m lab.benchmarks.conv_step_time --steps 30

Both on channels-last tensors and on PyTorch's default layout, in float32 and with networks in
bfloat16. All variants run interleaved in one process with the same threads, data and parameters'
shapes; medians are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pyro
import torch
from torch import Tensor, nn

from guides import VaDEGuide
from inference import Loss
from lab.benchmarks.model_steps import at_precision, interleaved_medians, stepper
from lab.benchmarks.plain_objectives import HALF_LOG_2PI
from ppl_models import MFCVAE, ConvLadder, GaussianMixture, Normal

BATCH, SCALE = 150, 0.6
K, D = (60, 20), (20, 2)


class PlainConvMFCVAE(nn.Module):
    """MFCVAE's Eq. 62 on the ladder of Table 5 with full covariances and uniform weights, written
    without Pyro.
    """

    def __init__(self, widths: tuple[int, int]) -> None:
        super().__init__()
        a, b = widths
        self.b1, self.b2 = self.conv(3, a, 4, 2), self.conv(a, b, 4, 2)
        self.r1 = nn.Sequential(
            self.conv(a, a, 4, 2), self.conv(a, a, 4, 1), nn.Flatten(), nn.Linear(49 * a, 2 * D[0])
        )
        self.r2 = nn.Sequential(
            self.conv(b, b, 4, 2),
            self.conv(b, 2 * b, 4, 2),
            nn.Flatten(),
            nn.Linear(8 * b, 2 * D[1]),
        )
        self.up2 = nn.Sequential(
            nn.Linear(D[1], 128 * b),
            nn.ELU(),
            nn.BatchNorm1d(128 * b),
            nn.Unflatten(1, (2 * b, 8, 8)),
        )
        self.down2 = nn.Sequential(
            nn.ConvTranspose2d(2 * b, b, 4, 2, 1),
            nn.ELU(),
            nn.BatchNorm2d(b),
            self.conv(b, a, 3, 1),
        )
        self.up1 = nn.Sequential(
            nn.Linear(D[0], 256 * a),
            nn.ELU(),
            nn.BatchNorm1d(256 * a),
            nn.Unflatten(1, (a, 16, 16)),
        )
        self.down1 = nn.ConvTranspose2d(2 * a, 3, 4, 2, 1)
        self.loc = nn.ParameterList(torch.randn(k, d) for k, d in zip(K, D, strict=True))
        self.raw_scale = nn.ParameterList(
            torch.full((k, d), 0.054) for k, d in zip(K, D, strict=True)
        )
        self.lower = nn.ParameterList(torch.zeros(k, d, d) for k, d in zip(K, D, strict=True))

    @staticmethod
    def conv(channels_in: int, channels_out: int, kernel: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels_in, channels_out, kernel, stride, 1),
            nn.ELU(),
            nn.BatchNorm2d(channels_out),
        )

    def forward(self, x: Tensor, dtype: torch.dtype | None) -> Tensor:
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            h1 = self.b1(x)
            heads = [self.r1(h1), self.r2(self.b2(h1))]
        loss, z = x.new_zeros(()), []
        for j, head in enumerate(heads):
            mean, raw = head.float().chunk(2, -1)
            half = 5 * torch.tanh(raw / 10)
            noise = torch.randn_like(mean)
            z_j = mean + half.exp() * noise
            log_q = (-0.5 * noise**2 - half - HALF_LOG_2PI).sum(-1)
            factor = self.lower[j].tril(-1) + torch.diag_embed(
                nn.functional.softplus(self.raw_scale[j], beta=10)
            )
            mixture = torch.distributions.MultivariateNormal(
                self.loc[j], scale_tril=factor, validate_args=False
            )
            log_p_z = mixture.log_prob(z_j.unsqueeze(1))  # [B, K]
            log_q_c = torch.log_softmax(log_p_z, -1)
            log_k = torch.log(torch.tensor(float(K[j])))
            loss = loss + (log_q - (log_q_c.exp() * (log_p_z - log_k - log_q_c)).sum(-1)).sum()
            z.append(z_j)
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            output = self.down1(torch.cat([self.down2(self.up2(z[1])), self.up1(z[0])], 1))
        error = (output.float() - x) / SCALE
        return (loss + 0.5 * error.square().sum()) / len(x)


def ours(
    widths: tuple[int, int], layout: torch.memory_format
) -> Callable[[Tensor, torch.dtype | None], Tensor]:
    facets = {
        name: GaussianMixture(k, d, "full", "uniform")
        for name, k, d in zip("ab", K, D, strict=True)
    }
    model = MFCVAE((3, 32, 32), facets, Normal(SCALE), ConvLadder(widths))
    loss = Loss(model, VaDEGuide(model))
    return at_precision(loss.to(memory_format=layout))  # type: ignore[call-overload]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each variant")
    parser.add_argument(
        "--widths", type=int, nargs=2, default=(64, 128), help="channels of the two levels"
    )
    args = parser.parse_args()
    pyro.set_rng_seed(0)
    widths = tuple(args.widths)
    variants = {}
    for layout_name, layout in (
        ("channels last", torch.channels_last),
        ("default layout", torch.contiguous_format),
    ):
        x = torch.rand(BATCH, 3, 32, 32).to(memory_format=layout)
        for precision, dtype in (("float32", None), ("bf16", torch.bfloat16)):
            plain = PlainConvMFCVAE(widths).to(memory_format=layout)  # type: ignore[call-overload]
            library = ours(widths, layout)
            variants[f"plain loop, {layout_name}, {precision}"] = stepper(
                plain, plain.parameters, dtype, x
            )
            variants[f"ours, {layout_name}, {precision}"] = stepper(
                library, library.parameters, dtype, x
            )
    medians = interleaved_medians(variants, args.steps, untimed=3)
    print(
        f"{BATCH} images, facets of K={K}, d={D}, widths {widths}; {torch.get_num_threads()} "
        "threads"
    )
    for name, median in medians.items():
        print(f"{name:42s} {1e3 * median:8.1f} ms")
    for name in medians:
        if name.startswith("ours"):
            print(
                f"{name} over the plain loop: "
                f"{medians[name] / medians[name.replace('ours', 'plain loop')]:.3f}"
            )


if __name__ == "__main__":
    main()
