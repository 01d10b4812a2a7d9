"""MFCVAE's objective written from the paper's formulas, without Pyro and without this library's code.

Everything is plain tensor algebra on the parameters by name. Numbers in comments are the paper's equations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)


def linear(p: dict[str, Tensor], name: str, h: Tensor) -> Tensor:
    return h @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def encode(p: dict[str, Tensor], x: Tensor, J: int) -> list[tuple[Tensor, Tensor]]:
    """Eq. 74, 75: mean and standard deviation of each facet."""
    h, out = x, []
    for j in range(J):
        h = linear(p, f"encoder.backbones.{j}.0", h).clamp(min=0)
        head = linear(p, f"encoder.rungs.{j}", h)
        d = head.shape[-1] // 2
        log_variance = 10 * torch.tanh(head[..., d:] / 10)
        out.append((head[..., :d], torch.exp(log_variance / 2)))
    return out


def decode(p: dict[str, Tensor], z: list[Tensor], alpha: list[float]) -> Tensor:
    """Eq. 78, 79, with each rung scaled as in Eq. 88: the logits of every pixel."""
    J = len(z)
    rungs = [alpha[j] * linear(p, f"model.decoder.rungs.{j}.0", z[j]).clamp(min=0) for j in range(J)]
    h = rungs[-1]
    for j in reversed(range(1, J)):
        h = linear(p, f"model.decoder.backbones.{j}.0", h).clamp(min=0)
        h = torch.cat([h, rungs[j - 1]], -1)
    return linear(p, "model.decoder.backbones.0", h)


def mixture(p: dict[str, Tensor], name: str, z: Tensor) -> tuple[Tensor, Tensor]:
    """log p(z given c) for every c ``[..., K]``, and log p(c) ``[K]`` (Eq. 1)."""
    loc, raw = p[f"model.facets.{name}.loc"], p[f"model.facets.{name}.raw_scale"]
    scale = 1e-4 + torch.log1p(torch.exp(10 * raw)) / 10
    lower = p.get(f"model.facets.{name}.lower")
    d = loc.shape[-1]
    delta = z.unsqueeze(-2) - loc
    if lower is None:
        quadratic = (delta**2 / scale**2).sum(-1)
    else:
        factor = torch.tril(lower, -1) + torch.diag_embed(scale)
        covariance = factor @ factor.mT
        quadratic = torch.einsum("...ki,kij,...kj->...k", delta, torch.linalg.inv(covariance), delta)
    log_pz_c = -0.5 * quadratic - torch.log(scale).sum(-1) - 0.5 * d * LOG_2PI
    logits = p[f"model.facets.{name}.logits"]
    return log_pz_c, logits - torch.log(torch.exp(logits).sum())


def negative_objective(
    p: dict[str, Tensor], x: Tensor, noise: dict[str, Tensor], names: list[str], alpha: list[float]
) -> Tensor:
    """Minus Eq. 58 summed over the batch, its KL terms weighted by alpha (Eq. 89).

    :param noise: standard normal draws ``[L, B, d]`` of every facet.
    """
    posterior = encode(p, x, len(names))
    z, bound = [], torch.zeros((), dtype=x.dtype)
    for j, name in enumerate(names):
        mean, scale = posterior[j]
        z_j = mean + scale * noise[name]
        log_q_z = (-0.5 * noise[name] ** 2 - torch.log(scale) - 0.5 * LOG_2PI).sum(-1)  # [L, B]
        log_pz_c, log_pc = mixture(p, name, z_j)
        score = (log_pz_c + log_pc).mean(0)  # Eq. 59: the exponent, up to a constant in c
        q_c = torch.exp(score - score.max(-1, keepdim=True).values)
        q_c = q_c / q_c.sum(-1, keepdim=True)  # Eq. 60
        terms = (
            (q_c * log_pz_c.mean(0)).sum(-1)
            + (q_c * log_pc).sum(-1)
            - log_q_z.mean(0)
            - torch.special.xlogy(q_c, q_c).sum(-1)
        )
        bound = bound + alpha[j] * terms.sum()
        z.append(z_j)
    logits = decode(p, z, alpha)  # [L, B, D]
    log_px_z = (x * logits - torch.nn.functional.softplus(logits)).sum(-1)
    return -(bound + log_px_z.mean(0).sum())
