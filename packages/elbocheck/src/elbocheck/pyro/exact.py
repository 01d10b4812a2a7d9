"""The exact ELBO of a small Pyro program: sums over discrete latents, quadrature over others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial, reduce
from itertools import product
from operator import mul
from typing import Any

import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from pyro.poutine.subsample_messenger import _Subsample
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor

from elbocheck.arguments import check_count
from elbocheck.pyro.points import (
    Latent,
    Point,
    check_runs,
    frames_of,
    guide_latent,
    hidden_latent,
    supported,
    vectorized,
)

# Terms of a bound of several particles, at most.
MAX_TERMS = 2**22

# Points by the names of sites, given their distributions.
Values = dict[str, Callable[[Any], Point]]


def exact_elbo(
    model: Callable, guide: Callable, *args: Any, points: int = 20, **kwargs: Any
) -> Tensor:
    """The ELBO of a small model and guide without drawing: a scalar in nats, of all data together.

    Discrete sites of the guide are summed over; normal ones are integrated by Gauss-Hermite
    quadrature over their noise, and other densities of one dimension on a grid of their
    unconstrained values. The result can be differentiated, through noise, probabilities and
    densities. Discrete latents of the model that the guide lacks are summed out, those of a plate
    for each member. Members of a plate share one grid, since their terms do not depend on one
    another; that they do not is checked.

    It costs a run of both programs for each point of the joint grid: ``points`` for each dimension
    of a normal's event, four times as many for another density, the size of the support for a
    discrete site. Parameters that the store does not have yet start from their initial values; to
    differentiate by parameters of the store, run the programs once before.

    :param args: of model and guide, as are ``kwargs``.
    :param points: quadrature points a dimension.
    :raises ValueError: for a latent of the model that the guide lacks and that is not discrete, a
        random subsample, a plate whose members depend on one another, a batch dimension without a
        plate, sites that come and go, or a grid of more than 20,000 points.

    Example:
        >>> import pyro, torch
        >>> import pyro.distributions as dist
        >>> from elbocheck.pyro import exact_elbo
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
    """
    grid = _Grid(model, guide, args, kwargs, points)
    total: Any = 0
    for values in _choices(grid.latents):
        total = total + _weighted_terms(grid, values)
    return torch.as_tensor(total)


def exact_bound(
    model: Callable,
    guide: Callable,
    *args: Any,
    alpha: float = 0.0,
    num_particles: int = 2,
    points: int = 20,
    **kwargs: Any,
) -> Tensor:
    """The bound that :class:`pyro.infer.RenyiELBO` estimates (Li and Turner, 2016, Eq. 10), by
    quadrature over all of its particles: with ``alpha=0`` IWAE's.

    :raises ValueError: as :func:`exact_elbo`; for latents in a plate, or too many particles.
    """
    grid = _Grid(model, guide, args, kwargs, points)
    count = math.prod(latent.size for latent in grid.latents) ** num_particles
    if grid.hidden or any(latent.frames for latent in grid.latents) or count > MAX_TERMS:
        raise ValueError(
            f"a bound of {num_particles} particles is summed over for few latents, outside plates "
            f"and in the guide, and here are {count:,} terms: give reference="
        )
    logs, weights = [], []
    for values in _choices(grid.latents):
        chosen, guide_trace, model_trace = grid.run(values)
        logs.append(model_trace.log_prob_sum() - guide_trace.log_prob_sum())
        weights.append(reduce(mul, chosen.weights.values(), torch.ones(()).to(logs[-1])))
    log_w, weight = torch.stack(logs), torch.stack(weights)
    log_w = torch.where(weight > 0, log_w, torch.zeros_like(log_w))
    exponent = 1 - alpha
    summed, joint = exponent * log_w, weight
    for _ in range(num_particles - 1):
        summed = torch.logaddexp(summed[..., None], exponent * log_w)
        joint = joint[..., None] * weight
    return (joint * (summed - math.log(num_particles))).sum() / exponent


class _Chosen(Messenger):
    """Gives sites chosen values, and keeps the weights of these."""

    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values
        self.weights: dict[str, Tensor] = {}

    def _pyro_sample(self, msg: dict) -> None:
        if msg["name"] in self.values and not msg["is_observed"] and not msg["done"]:
            msg["value"], self.weights[msg["name"]] = self.values[msg["name"]](msg["fn"])
            msg["done"] = True


class _Grid:
    """The points that stand for a program's latents.

    :ivar latents: of the guide.
    :ivar hidden: those of the model alone, which are summed out.
    """

    def __init__(
        self, model: Callable, guide: Callable, args: tuple, kwargs: dict, points: int
    ) -> None:
        check_count("points", points)
        self.model, self.guide, self.args, self.kwargs = model, guide, args, kwargs
        _, guide_trace, model_trace = self.run({})
        own = [site for site in _terms(guide_trace) if not site["is_observed"]]
        self.latents = [guide_latent(site, points) for site in own]
        names = {latent.name for latent in self.latents}
        rest = [s for s in _terms(model_trace) if not s["is_observed"] and s["name"] not in names]
        self.hidden = [hidden_latent(site) for site in rest]
        check_runs(math.prod(latent.size for latent in (*self.latents, *self.hidden)), points)
        sites = {site["name"]: site for site in (*own, *rest)}
        if any(latent.frames for latent in (*self.latents, *self.hidden)):
            _check_plates(self, sites)

    def run(self, values: Values) -> tuple[_Chosen, Trace, Trace]:
        """Traces of guide and model with their log-probabilities, at these values."""
        with _Chosen(values) as chosen:
            guide_trace = poutine.trace(self.guide).get_trace(*self.args, **self.kwargs)
        with _Chosen(values):  # for the model's own latents
            replayed = poutine.replay(self.model, trace=guide_trace)
            model_trace = poutine.trace(replayed).get_trace(*self.args, **self.kwargs)
        for trace in (guide_trace, model_trace):
            _check_subsamples(trace)
        guide_trace, model_trace = map(prune_subsample_sites, (guide_trace, model_trace))
        guide_trace.compute_log_prob()
        model_trace.compute_log_prob()
        return chosen, guide_trace, model_trace


def _choices(latents: list[Latent]) -> Iterator[Values]:
    """Every way to choose a point of each latent."""
    for indices in product(*(range(latent.size) for latent in latents)):
        yield {latent.name: partial(latent.point, k) for latent, k in zip(latents, indices)}


def _weighted_terms(grid: _Grid, values: Values) -> Tensor:
    """What one point of the grid adds to the ELBO."""
    chosen, guide_trace, model_trace = grid.run({**values, **next(_choices(grid.hidden))})
    total: Any = 0
    terms = [(-1, site["log_prob"], frames_of(site)) for site in _terms(guide_trace)]
    if grid.hidden:
        terms += [(1, *term) for term in _summed_out(grid, values)]
    else:
        terms += [(1, site["log_prob"], frames_of(site)) for site in _terms(model_trace)]
    for sign, log_prob, frames in terms:
        weights = (_weight(latent, frames, chosen) for latent in grid.latents)
        weight = torch.as_tensor(reduce(mul, weights, 1.0)).to(log_prob)
        # A point without weight does not count, even where its density is 0.
        log_prob = torch.where(weight > 0, log_prob, torch.zeros_like(weight))
        total = total + sign * (weight * log_prob).sum()
    return total


def _summed_out(grid: _Grid, values: Values) -> list[tuple[Tensor, frozenset]]:
    """The model's terms with its own latents summed out: of each plate with some of them, for each
    member; and of all else.
    """
    outer = [latent for latent in grid.hidden if not latent.frames]
    plates: set[Any] = {latent.frames for latent in grid.hidden if latent.frames}
    if outer and any(latent.frames for latent in grid.latents):
        raise ValueError(
            f"{outer[0].name!r} of the model is summed out over a plate that has latents of the "
            "guide, which do not separate then: give reference="
        )
    found = []
    for at in _choices(outer):
        members, rest = [], None
        for frames in plates or {None}:
            inner = [latent for latent in grid.hidden if frames and latent.frames == frames]
            others = [latent for latent in grid.hidden if latent.frames and latent not in inner]
            still = next(_choices(others))
            each = []
            for chosen in _choices(inner):
                _, _, trace = grid.run({**values, **at, **still, **chosen})
                inside, outside = _parted(trace, frames, plates)
                each.append(inside)
                if rest is not None and not torch.allclose(rest, outside, rtol=1e-4, atol=1e-5):
                    raise ValueError(
                        f"what is outside of the plate of {inner[0].name!r} depends on it: give "
                        "reference="
                    )
                rest = outside
            if frames:
                unscaled, scale = torch.stack([one for one, _ in each]), each[0][1]
                members.append((scale * unscaled.logsumexp(0), frames))
        found.append((members, rest))
    if not outer:
        ((members, rest),) = found
        return [*members, (rest, frozenset())]
    scalars = [rest + sum(term.sum() for term, _ in members) for members, rest in found]
    return [(torch.stack(scalars).logsumexp(0), frozenset())]


def _parted(trace: Trace, frames: Any, plates: set) -> tuple[Any, Tensor]:
    """Of one plate each member's log-probability, as it is and what scales it; and the sum of what
    is in none of the plates.
    """
    inside: Any = 0
    outside: Any = torch.zeros(())
    scale: Any = 1.0
    for site in _terms(trace):
        own = vectorized(site)
        if frames and frames <= own:
            (frame,) = [f for f in site["cond_indep_stack"] if (f.name, f.counter) in frames]
            log_prob = scale_and_mask(site["unscaled_log_prob"], mask=site["mask"])
            dims = [d for d in range(-log_prob.dim(), 0) if d != frame.dim]
            inside = inside + (log_prob.sum(dims, keepdim=True) if dims else log_prob)
            scale = site["scale"]
        elif not any(plate <= own for plate in plates):
            outside = outside + site["log_prob"].sum()
    return (inside, scale), outside


def _weight(latent: Latent, frames: frozenset, chosen: _Chosen) -> Any:
    """Of a latent's point in a term: one that does not depend on the latent averages its points."""
    if latent.name not in chosen.weights:
        raise ValueError(f"site {latent.name!r} of the guide is not in every run")
    return chosen.weights[latent.name] if latent.frames <= frames else 1 / latent.size


def _terms(trace: Trace) -> Iterator[dict]:
    return (site for site in trace.nodes.values() if site["type"] == "sample")


def _check_subsamples(trace: Trace) -> None:
    for site in trace.nodes.values():
        fn = site.get("fn")
        if isinstance(fn, _Subsample) and (fn.subsample_size or fn.size) < fn.size:
            raise ValueError(
                f"plate {site['name']!r} takes a random subsample: give it subsample=, or give "
                "reference="
            )


def _check_plates(grid: _Grid, sites: dict[str, dict]) -> None:
    """Move the first member of each plate: no other member's term may change."""
    values = {name: site["value"].detach() for name, site in sites.items()}
    with torch.no_grad():
        before = _log_probs(grid, values)
        for latent in (*grid.latents, *grid.hidden):
            site = sites[latent.name]
            for frame in site["cond_indep_stack"]:
                moved = {**values, latent.name: _moved(latent, site, frame)}
                for name, term in _log_probs(grid, moved).items():
                    if frame.vectorized or latent in grid.latents:
                        _check_term(latent.name, frame, name, before[name], term)


def _log_probs(grid: _Grid, values: dict[str, Tensor]) -> dict[tuple[str, bool], dict]:
    one = torch.tensor(1.0)
    fixed: Values = {n: lambda _, v=v: (v, one) for n, v in values.items()}  # type: ignore[misc]
    _, guide_trace, model_trace = grid.run(fixed)
    return {
        (site["name"], trace is model_trace): site
        for trace in (guide_trace, model_trace)
        for site in _terms(trace)
    }


def _moved(latent: Latent, site: dict, frame: Any) -> Tensor:
    """The site's value with another one at the plate's first member."""
    value, fn = site["value"].detach(), site["fn"]
    if latent.size > 1 and latent.point is supported:
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
    inside = (frame.name, frame.counter) in frames_of(before)
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
