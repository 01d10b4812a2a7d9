"""The objective of each model written by hand in PyTorch, without Pyro: what model_costs holds the
library against.

Each function takes a guide, a batch and what is given beside it, and returns nats per datum.
Networks and the priors' parameters are the guide's and model's own, so what differs is what is
around them. Noise is drawn in the library's order, so that both objectives can be compared draw by
draw.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, one_hot, softplus

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)

# What the functions have in common.


def normal(head: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log standard deviation from a head ``[..., 2 d]``, the latter bounded as the library
    has it.
    """
    loc, raw = head.chunk(2, -1)
    return loc, 5 * torch.tanh(raw / 10)


def draw(loc: Tensor, log_scale: Tensor, draws: int = 1) -> tuple[Tensor, Tensor]:
    """z ``[(L,) ..., d]`` and log q(z), nats."""
    noise = torch.randn(
        (draws, *loc.shape) if draws > 1 else loc.shape, dtype=loc.dtype, device=loc.device
    )
    return loc + log_scale.exp() * noise, (-0.5 * noise**2 - log_scale - HALF_LOG_2PI).sum(-1)


def log_normal(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return (-0.5 * ((z - loc) / scale) ** 2 - scale.log() - HALF_LOG_2PI).sum(-1)


def log_standard(z: Tensor) -> Tensor:
    return (-0.5 * z**2 - HALF_LOG_2PI).sum(-1)


def kl_standard(loc: Tensor, log_scale: Tensor) -> Tensor:
    return (0.5 * (loc**2 + (2 * log_scale).exp() - 1) - log_scale).sum(-1)


def kl_normal(loc: Tensor, log_scale: Tensor, prior_loc: Tensor, prior_scale: Tensor) -> Tensor:
    ratio = (log_scale.exp() / prior_scale) ** 2 + ((loc - prior_loc) / prior_scale) ** 2
    return (0.5 * (ratio - 1) - log_scale + prior_scale.log()).sum(-1)


def component_scales(prior: Any) -> Tensor:
    """Standard deviations of a diagonal mixture, ``[K, d]``."""
    return 1e-4 + softplus(prior.raw_scale, beta=10.0)


def log_joint(prior: Any, z: Tensor) -> Tensor:
    """log p(z, c) of a diagonal mixture, ``[..., K]``."""
    return log_normal(
        z.unsqueeze(-2), prior.loc, component_scales(prior)
    ) + prior.logits.log_softmax(-1)


def relaxed(logits: Tensor, temperature: Tensor) -> Tensor:
    """Gumbel-softmax."""
    uniform = torch.rand(logits.shape, dtype=logits.dtype, device=logits.device)
    gumbel = -(-uniform.clamp_min(torch.finfo(logits.dtype).tiny).log()).log()
    return ((logits + gumbel) / temperature).softmax(-1)


def kl_uniform(logits: Tensor) -> Tensor:
    log_q = logits.log_softmax(-1)
    return (log_q.exp() * log_q).sum(-1) + math.log(logits.shape[-1])


def total(kl: Tensor, output: Tensor, x: Tensor, draws: int = 1) -> Tensor:
    """Nats per datum, of terms that are summed over the batch, and pixels that are Bernoulli."""
    pixels = binary_cross_entropy_with_logits(output, x.expand_as(output), reduction="sum")
    return (kl + pixels / draws) / len(x)


# The models'.


def mfcvae(guide: Any, x: Tensor) -> Tensor:
    """MFCVAE's Eq. 58 to 62 for any number of facets and draws; VaDE's with one facet."""
    model, L = guide.model, guide.num_samples
    kl, latents = x.new_zeros(()), []
    for head, prior in zip(guide.encoder(x), model.priors.values(), strict=True):
        z, log_q = draw(*normal(head), L)
        log_p = log_joint(prior, z)
        log_p = log_p.mean(0) if L > 1 else log_p
        log_q_c = log_p.log_softmax(-1)
        kl = kl + log_q.sum() / L - (log_q_c.exp() * (log_p - log_q_c)).sum()
        latents.append(z)
    return total(kl, model.decoder(latents, model.gates), x, L)


def vlae(guide: Any, x: Tensor) -> Tensor:
    """Plain layers, KL by the draws as the library has it; VAE's with one layer."""
    draws = [draw(*normal(head)) for head in guide.encoder(x)]
    kl = sum((log_q - log_standard(z)).sum() for z, log_q in draws)
    return total(kl, guide.model.decoder([z for z, _ in draws], guide.model.gates), x)


def vlac(guide: Any, x: Tensor) -> Tensor:
    """VLAC's Eq. 9 with relaxed clusters; GM-DGM's with one layer."""
    model = guide.model
    logits = dict(zip(model.mixtures, guide.classifier(x), strict=True))
    c = {name: relaxed(each, guide.discrete.temperature) for name, each in logits.items()}
    kl = sum(kl_uniform(each).sum() for each in logits.values())
    latents = []
    for head, (name, prior) in zip(
        guide.encoder(x, [c.get(name) for name in model.priors]), model.priors.items(), strict=True
    ):
        loc, log_scale = normal(head)
        if name in c:
            each = kl_normal(loc, log_scale, c[name] @ prior.loc, c[name] @ component_scales(prior))
        else:
            each = kl_standard(loc, log_scale)
        kl = kl + each.sum()
        latents.append(draw(loc, log_scale)[0])
    return total(kl, model.decoder(latents, model.gates), x)


def ivae(guide: Any, x: Tensor, label: Tensor) -> Tensor:
    """*I Don't Need u*'s Eq. 3: the prior's component is the label's."""
    (prior,) = guide.model.priors.values()
    features = one_hot(label, prior.num_components).to(x)
    (head,) = guide.encoder(torch.cat([x, features], 1))
    z, log_q = draw(*normal(head))
    kl = log_q - log_normal(z, prior.loc[label], component_scales(prior)[label])
    return total(kl.sum(), guide.model.decoder([z], guide.model.gates), x)


def continuous_ivae(guide: Any, x: Tensor, label: Tensor) -> Tensor:
    """The same with a network of u for the prior."""
    (prior,) = guide.model.priors.values()
    u = label.to(x)
    (head,) = guide.encoder(torch.cat([x, u], 1))
    z, log_q = draw(*normal(head))
    loc, log_scale = normal(prior.network(u))
    kl = log_q - log_normal(z, loc, log_scale.exp())
    return total(kl.sum(), guide.model.decoder([z], guide.model.gates), x)


def cvae(guide: Any, x: Tensor, label: Tensor) -> Tensor:
    """Encoder and decoder read the label, the prior does not."""
    features = one_hot(label, guide.model.num_classes).to(x)
    (head,) = guide.encoder(torch.cat([x, features], 1))
    z, log_q = draw(*normal(head))
    kl = log_q - log_standard(z)
    return total(kl.sum(), guide.model.decoder([torch.cat([features, z], 1)], guide.model.gates), x)


def gmm_flow(guide: Any, x: Tensor) -> Tensor:
    """-log p(x), *I Don't Need u*'s Eq. D.4."""
    (prior,) = guide.model.priors.values()
    z, log_determinant = guide.model.flow.invert(x)
    return -(log_joint(prior, z).logsumexp(-1) + log_determinant).mean()


def vqvae(guide: Any, x: Tensor) -> Tensor:
    """A relaxed code at each place of the grid."""
    model = guide.model
    book = model.codebook.loc
    (embedding,) = guide.encoder(x)
    points = embedding.unflatten(-1, (book.shape[1], -1)).mT
    logits = points @ book.T - 0.5 * (book**2).sum(-1)
    z = (relaxed(logits, guide.discrete.temperature) @ book).mT.flatten(1)
    return total(kl_uniform(logits).sum(), model.decoder([z], model.gates), x)


def autoencoder(guide: Any, x: Tensor) -> Tensor:
    """The reconstruction's likelihood alone."""
    return total(x.new_zeros(()), guide.model.decoder(guide.encoder(x), guide.model.gates), x)


def mlvae(guide: Any, x: Tensor, group: Tensor) -> Tensor:
    """ML-VAE's Algorithm 1: a product of Normals a group, of which each member draws for itself."""
    style_head, content_head = guide.encoder(x)
    loc, log_scale = normal(content_head)
    precision = (-2 * log_scale).exp()
    zeros = torch.zeros_like(loc)
    summed = zeros.index_add(0, group, precision)[group]
    loc = zeros.index_add(0, group, precision * loc)[group] / summed
    content, content_log_scale = draw(loc, -0.5 * summed.log())[0], -0.5 * summed.log()
    style_loc, style_log_scale = normal(style_head)
    style = draw(style_loc, style_log_scale)[0]
    ones = x.new_ones(len(group))
    sizes = torch.zeros_like(ones).index_add(0, group, ones)[group]
    kl = (kl_standard(loc, content_log_scale) / sizes).sum() + kl_standard(
        style_loc, style_log_scale
    ).sum()
    return total(kl, guide.model.decoder([style, content], guide.model.gates), x)


def nvae(guide: Any, x: Tensor, label: Tensor) -> Tensor:
    """N-VAE's Eq. 6 with every label known; the decoder sees the label and its own block of the
    classes' latents.
    """
    model, L = guide.model, guide.model.num_classes
    shared, heads = guide.encoder(x)
    of_class, logits = heads[:, :-L], heads[:, -L:]
    y = one_hot(label, L).to(x)
    kl, latents = len(x) * math.log(L), []
    for loc, log_scale in (normal(shared), normal(of_class)):
        kl = kl + kl_standard(loc, log_scale).sum()
        latents.append(draw(loc, log_scale)[0])
    lesson = logits.log_softmax(-1).gather(1, label[:, None]).sum()
    own = (y.unsqueeze(-1) * latents[1].unflatten(1, (L, -1))).flatten(1)
    output = model.decoder([latents[0], torch.cat([y, own], 1)], model.gates)
    return total(kl - guide.label_weight * lesson, output, x)
