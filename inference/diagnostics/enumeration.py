"""The exact ELBO of a small Pyro program: sums over discrete latents, quadrature over Normals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import mul
from typing import Any

import torch
from pyro import poutine
from pyro.distributions import Delta, MultivariateNormal, Normal
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import _Subsample
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor
from torch.distributions import Independent

from inference.diagnostics.exact import gauss_hermite
from inference.diagnostics.programs import check_program, isolated, streams
from ppl_models.given.checks import check_count

__all__ = ["exact_elbo"]

# Runs of model and guide that are summed over, at most.
MAX_RUNS = 20_000

# Value and weight of the k-th point of a site's grid, given its distribution in the guide.
Point = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Latent:
    """One site of the guide and the points that stand for it.

    :ivar size: how many points.
    :ivar frames: the plates around it.
    :ivar point: of a distribution and an index, a value and its weight.
    """

    name: str
    size: int
    frames: frozenset
    point: Callable[[Any, int], Point]


def exact_elbo(
    model: Callable, guide: Callable, *args: Any, points: int = 20, **kwargs: Any
) -> Tensor:
    """The ELBO of a small model and guide without drawing: a scalar in nats, of all data together.

    Discrete sites of the guide are summed over, Normal ones integrated by Gauss-Hermite quadrature
    over their base noise, so that the result can be differentiated, through the noise and through
    the probabilities. Members of a plate share one grid, since their terms do not depend on one
    another; that they do not is checked.

    It costs a run of both programs for each point of the joint grid: ``points`` for each dimension
    of a Normal's event, the size of the support for a discrete site.

    Parameters that the store does not have yet start from their initial values, drawn with seed 0;
    to differentiate by parameters of the store, run the programs once before.

    >>> import pyro, torch
    >>> import pyro.distributions as dist
    >>> def model(x):
    ...     z = pyro.sample("z", dist.Normal(0.0, 1.0))
    ...     pyro.sample("x", dist.Normal(z, 1.0), obs=x)
    >>> def guide(x):
    ...     pyro.sample("z", dist.Normal(x / 2, 0.5**0.5))
    >>> x = torch.tensor(1.0)
    >>> round(float(exact_elbo(model, guide, x)), 4)  # log p(x): the guide is the posterior
    -1.5155
    >>> round(float(dist.Normal(0.0, 2**0.5).log_prob(x)), 4)
    -1.5155

    :param args: of model and guide, as are ``kwargs``.
    :param points: quadrature points a dimension.
    :raises ValueError: for a latent of the model that the guide lacks, a site that is neither
        discrete with a finite support nor Normal (nor a ``Delta``), a random subsample, a plate
        whose members depend on one another, a batch dimension without a plate, sites that come and
        go, or a grid of more than 20,000 points.
    """
    check_count("points", points)
    program = check_program(model, guide, exact_elbo, args, kwargs)
    device = program.device()
    with isolated(model, guide), streams(0, device):

        def run(values: dict[str, Callable[[Any], Point]]) -> tuple[_Chosen, Trace, Trace]:
            return _run(model, guide, args, kwargs, values)

        _, guide_trace, model_trace = run({})
        latents = [
            _latent(site, points)
            for site in guide_trace.nodes.values()
            if site["type"] == "sample" and not site["is_observed"]
        ]
        _check_covered(model_trace, latents)
        _check_runs(latents, points)
        _check_plates(run, latents, guide_trace)
        total = torch.zeros((), device=device)
        for chosen in product(*(range(latent.size) for latent in latents)):
            total = total + _weighted_terms(run, latents, chosen)
    return total


class _Chosen(Messenger):
    """Gives sites chosen values, and keeps the weights of these."""

    def __init__(self, values: dict[str, Callable[[Any], Point]]) -> None:
        super().__init__()
        self.values = values
        self.weights: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: dict) -> None:
        if msg["name"] in self.values and not msg["is_observed"]:
            msg["value"], self.weights[msg["name"]] = self.values[msg["name"]](msg["fn"])
            msg["done"] = True


def _run(
    model: Callable,
    guide: Callable,
    args: tuple,
    kwargs: dict,
    values: dict[str, Callable[[Any], Point]],
) -> tuple[_Chosen, Trace, Trace]:
    """Traces of guide and model with their log-probabilities, at these values."""
    chosen = _Chosen(values)
    with chosen:
        guide_trace = poutine.trace(guide).get_trace(*args, **kwargs)
    replayed = poutine.replay(model, trace=guide_trace)
    model_trace = poutine.trace(replayed).get_trace(*args, **kwargs)
    for trace in (guide_trace, model_trace):
        _check_subsamples(trace)
    guide_trace, model_trace = map(prune_subsample_sites, (guide_trace, model_trace))
    guide_trace.compute_log_prob()
    model_trace.compute_log_prob()
    return chosen, guide_trace, model_trace


def _weighted_terms(run: Callable, latents: list[Latent], indices: tuple[int, ...]) -> Tensor:
    """What one point of the grid adds to the ELBO."""
    values = {
        latent.name: lambda fn, latent=latent, k=k: latent.point(fn, k)
        for latent, k in zip(latents, indices, strict=True)
    }
    chosen, guide_trace, model_trace = run(values)
    total: Any = 0
    for sign, trace in ((1, model_trace), (-1, guide_trace)):
        for site in _terms(trace):
            frames = _frames(site)
            weights = (_weight(latent, frames, chosen) for latent in latents)
            weight = torch.as_tensor(reduce(mul, weights, 1.0)).to(site["log_prob"])
            # A point without weight does not count, even where its density is 0.
            log_prob = torch.where(weight > 0, site["log_prob"], torch.zeros_like(weight))
            total = total + sign * (weight * log_prob).sum()
    return total


def _weight(latent: Latent, frames: frozenset, chosen: _Chosen) -> Any:
    """Of a latent's point in a term: one that does not depend on the latent averages its points."""
    if latent.name not in chosen.weights:
        raise ValueError(f"site {latent.name!r} of the guide is not in every run")
    return chosen.weights[latent.name] if latent.frames <= frames else 1 / latent.size


def _terms(trace: Trace) -> Iterator[dict]:
    return (site for site in trace.nodes.values() if site["type"] == "sample")


def _frames(site: dict) -> frozenset:
    return frozenset((frame.name, frame.counter) for frame in site["cond_indep_stack"])


def _latent(site: dict, points: int) -> Latent:
    """The points of a guide's site."""
    fn, name = site["fn"], site["name"]
    planned = {frame.dim for frame in site["cond_indep_stack"] if frame.vectorized}
    for dim in range(-len(fn.batch_shape), 0):
        if fn.batch_shape[dim] > 1 and dim not in planned:
            raise ValueError(
                f"dimension {dim} of site {name!r} has {fn.batch_shape[dim]} entries and no plate: "
                "declare them with pyro.plate or .to_event"
            )
    base = fn
    while isinstance(base, Independent):
        base = base.base_dist
    if isinstance(fn, Delta):
        return Latent(name, 1, _frames(site), lambda fn, k: (fn.rsample(), torch.tensor(1.0)))
    if isinstance(base, Normal | MultivariateNormal):
        return _integrated(name, fn, _frames(site), points)
    if getattr(fn, "has_enumerate_support", False):
        size = len(fn.enumerate_support(expand=False))
        return Latent(name, size, _frames(site), _supported)
    if base is not fn and base.has_enumerate_support:
        raise ValueError(
            f"site {name!r} of the guide has independent discrete entries (.to_event), which are "
            "not enumerated: use a plate"
        )
    raise ValueError(
        f"site {name!r} of the guide is {type(base).__name__}: exact are Normal, MultivariateNormal"
        ", Delta and discrete sites with a finite support; give reference=, an ELBO that is known "
        "to be right, instead"
    )


def _supported(fn: Any, k: int) -> Point:
    value = fn.enumerate_support(expand=True)[k]
    return value, fn.log_prob(value).exp()


def _integrated(name: str, fn: Any, frames: frozenset, points: int) -> Latent:
    dim = fn.event_shape.numel()
    if points**dim > MAX_RUNS:
        _refuse_runs(points**dim, points)
    nodes, weights = gauss_hermite(points, dim)

    def point(fn: Any, k: int) -> Point:
        while isinstance(fn, Independent):
            fn = fn.base_dist
        noise = nodes[k].reshape(shape).to(fn.loc)
        if isinstance(fn, MultivariateNormal):
            return fn.loc + (fn.scale_tril @ noise.unsqueeze(-1)).squeeze(-1), weights[k]
        return fn.loc + fn.scale * noise, weights[k]

    shape = fn.event_shape
    return Latent(name, len(nodes), frames, point)


def _check_covered(model_trace: Trace, latents: list[Latent]) -> None:
    names = {latent.name for latent in latents}
    for site in _terms(model_trace):
        if not site["is_observed"] and site["name"] not in names:
            raise ValueError(
                f"latent {site['name']!r} of the model is not in the guide: the exact ELBO needs "
                "every latent in both"
            )


def _check_subsamples(trace: Trace) -> None:
    for site in trace.nodes.values():
        fn = site.get("fn")
        if isinstance(fn, _Subsample) and (fn.subsample_size or fn.size) < fn.size:
            raise ValueError(f"plate {site['name']!r} takes a random subsample: give it subsample=")


def _check_runs(latents: list[Latent], points: int) -> None:
    runs = math.prod(latent.size for latent in latents)
    if runs > MAX_RUNS:
        _refuse_runs(runs, points)


def _refuse_runs(runs: int, points: int) -> None:
    raise ValueError(
        f"the grid has {runs:,} points, at points={points} a dimension, and at most {MAX_RUNS:,} "
        "are summed over: take fewer points or fewer latents, or give reference=, an ELBO that is "
        "known to be right"
    )


def _check_plates(run: Callable, latents: list[Latent], guide_trace: Trace) -> None:
    """Move the first member of each plate: no other member's term may change."""
    values = {latent.name: guide_trace.nodes[latent.name]["value"].detach() for latent in latents}
    with torch.no_grad():
        before = _log_probs(run, values)
        for latent in latents:
            site = guide_trace.nodes[latent.name]
            for frame in site["cond_indep_stack"]:
                moved = {**values, latent.name: _moved(latent, site, frame)}
                for name, term in _log_probs(run, moved).items():
                    _check_term(latent.name, frame, name, before[name], term)


def _log_probs(run: Callable, values: dict[str, Tensor]) -> dict[tuple[str, bool], dict]:
    one = torch.tensor(1.0)
    fixed = {name: lambda fn, value=value: (value, one) for name, value in values.items()}
    _, guide_trace, model_trace = run(fixed)
    return {
        (site["name"], trace is model_trace): site
        for trace in (guide_trace, model_trace)
        for site in _terms(trace)
    }


def _moved(latent: Latent, site: dict, frame: Any) -> Tensor:
    """The site's value with another one at the plate's first member."""
    value, fn = site["value"].detach(), site["fn"]
    if latent.size > 1 and latent.point is _supported:
        support = fn.enumerate_support(expand=True)
        same = value == support[0]
        if fn.event_dim:  # of whole values: parts of a one-hot vector alone are outside the support
            same = same.flatten(-fn.event_dim).all(-1)[(..., *[None] * fn.event_dim)]
        other = torch.where(same, support[1], support[0])
    else:
        other = value + (1 if latent.size > 1 else 0)
    if not frame.vectorized:
        return other
    dim = value.dim() + frame.dim - fn.event_dim
    first = torch.arange(value.shape[dim], device=value.device) == 0
    return torch.where(first.reshape(-1, *[1] * (value.dim() - dim - 1)), other, value)


def _check_term(latent: str, frame: Any, name: tuple, before: dict, after: dict) -> None:
    """:raises ValueError: if a term of other members has changed."""
    old, new = before["log_prob"], after["log_prob"]
    inside = (frame.name, frame.counter) in _frames(before)
    if inside and not frame.vectorized:
        return
    if inside:
        size = old.shape[frame.dim] - 1
        old, new = old.narrow(frame.dim, 1, size), new.narrow(frame.dim, 1, size)
    if not torch.allclose(old, new, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise ValueError(
            f"site {name[0]!r} depends on {latent!r} of other members of plate {frame.name!r}: the "
            "exact ELBO needs members that do not depend on one another"
        )
