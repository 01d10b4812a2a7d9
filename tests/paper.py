"""MFCVAE's objective written from the paper's formulas, without Pyro and without this library's
code.

Everything is plain tensor algebra on the parameters by name; tests of the other papers' formulas
take their layers and Normals from here. Numbers in comments are the paper's equations.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Normal

LOG_2PI = math.log(2 * math.pi)


def normal(head: Tensor) -> Normal:
    """The posterior that a network's output stands for: log-variances stay within 10."""
    loc, raw = head.chunk(2, -1)
    return Normal(loc, torch.exp(5 * torch.tanh(raw / 10)))


def linear(p: dict[str, Tensor], name: str, h: Tensor) -> Tensor:
    return h @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def encode(p: dict[str, Tensor], x: Tensor, J: int) -> list[tuple[Tensor, Tensor]]:
    """Eq. 74, 75: mean and standard deviation of each facet."""
    h, out = x, []
    for j in range(J):  # the first level flattens images, and then is what all are
        h = linear(p, f"encoder.backbones.{j}.{int(j == 0)}", h).clamp(min=0)
        q = normal(linear(p, f"encoder.rungs.{j}", h))
        out.append((q.loc, q.scale))
    return out


def decode(p: dict[str, Tensor], z: list[Tensor], alpha: list[float]) -> Tensor:
    """Eq. 78, 79, with each rung scaled as in Eq. 88: the logits of every pixel."""
    J = len(z)
    rungs = [
        alpha[j] * linear(p, f"model.decoder.rungs.{j}.0", z[j]).clamp(min=0) for j in range(J)
    ]
    h = rungs[-1]
    for j in reversed(range(1, J)):
        h = linear(p, f"model.decoder.backbones.{j}.0", h).clamp(min=0)
        h = torch.cat([h, rungs[j - 1]], -1)
    return linear(p, "model.decoder.backbones.0.0", h)


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
        quadratic = torch.einsum(
            "...ki,kij,...kj->...k", delta, torch.linalg.inv(covariance), delta
        )
    log_pz_c = -0.5 * quadratic - torch.log(scale).sum(-1) - 0.5 * d * LOG_2PI
    logits = p[f"model.facets.{name}.logits"]
    return log_pz_c, logits - torch.log(torch.exp(logits).sum())


def responsibilities(log_pz_c: Tensor, log_pc: Tensor) -> Tensor:
    """Eq. 59 and 60 from ``[L, B, K]`` and ``[K]``: q(c given x) ``[B, K]``, shared by all
    draws.
    """
    score = (log_pz_c + log_pc).mean(0)
    q_c = torch.exp(score - score.max(-1, keepdim=True).values)
    return q_c / q_c.sum(-1, keepdim=True)


def kl_terms(
    p: dict[str, Tensor],
    x: Tensor,
    noise: dict[str, Tensor],
    names: list[str],
    known: dict[str, Tensor] | None = None,
) -> dict[str, tuple[Tensor, Tensor]]:
    """The two KL terms of each facet in Eq. 14, estimated as in Eq. 58, summed over the batch.

    :param noise: standard normal draws ``[L, B, d]`` of every facet.
    :param known: clusters ``[B]`` that are known, by facet, -1 where not: q(c given x) is certain
        of them.
    """
    terms = {}
    for (mean, scale), name in zip(encode(p, x, len(names)), names, strict=True):
        log_q_z = (-0.5 * noise[name] ** 2 - torch.log(scale) - 0.5 * LOG_2PI).sum(-1)  # [L, B]
        log_pz_c, log_pc = mixture(p, name, mean + scale * noise[name])
        q_c = responsibilities(log_pz_c, log_pc)
        for b, k in enumerate((known or {}).get(name, [])):
            if k >= 0:
                q_c = q_c.index_put((torch.tensor(b),), torch.eye(len(log_pc), dtype=q_c.dtype)[k])
        kl_z = log_q_z.mean(0) - (q_c * log_pz_c.mean(0)).sum(-1)
        kl_c = torch.special.xlogy(q_c, q_c).sum(-1) - (q_c * log_pc).sum(-1)
        terms[name] = (kl_z.sum(), kl_c.sum())
    return terms


def negative_objective(
    p: dict[str, Tensor],
    x: Tensor,
    noise: dict[str, Tensor],
    names: list[str],
    alpha: list[float],
    known: dict[str, Tensor] | None = None,
    there: Tensor | float = 1.0,
) -> Tensor:
    """Minus Eq. 58 summed over the batch, its KL terms weighted by alpha (Eq. 89) and its rungs
    gated (Eq. 88).

    :param there: 1 for each entry of ``x`` ``[B, D]`` that is observed, and 0 for others, which the
        encoder sees as 0.
    """
    x = x * there
    posterior = encode(p, x, len(names))
    z = [mean + scale * noise[name] for (mean, scale), name in zip(posterior, names, strict=True)]
    logits = decode(p, z, alpha)  # [L, B, D]
    log_px_z = (there * (x * logits - torch.nn.functional.softplus(logits))).sum(-1)
    kl = kl_terms(p, x, noise, names, known)
    return (
        sum(a * (kl[name][0] + kl[name][1]) for a, name in zip(alpha, names, strict=True))
        - log_px_z.mean(0).sum()
    )
