"""Any Pyro program in the runner: functions, modules and Pyro's autoguides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from inspect import signature
from math import inf
from types import FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

import pyro
import torch
from numpy.typing import ArrayLike
from pyro import poutine
from pyro.infer import ELBO
from pyro.poutine import Trace
from pyro.poutine.messenger import Messenger
from torch import Tensor, nn

from guides.base import FacetGuide, Rows
from guides.discrete import Needs
from inference.objectives.direct import site_densities
from inference.runner import SVIRunner
from ppl_models.base import FacetModel, Input
from ppl_models.given.arrays import as_numbers
from ppl_models.given.observed import Observed
from ppl_models.likelihoods import Normal
from ppl_models.program import Program

# Names of inputs that something else than a program would take.
RESERVED = {*signature(SVIRunner.fit).parameters, "model", "guide", "group", "size", "kl_weights"}
NO_FACETS = (
    "functions have no facets to predict, decode or draw: call them by pyro.infer.Predictive, "
    "which finds their parameters in Pyro's store"
)


class _Watch(Messenger):
    """Notes how many data a datum of a batch stands for, by the plates of observations, and refuses
    parameters that no optimizer has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.share, self.known = 0, 1.0, None  # type: int, float, set[str] | None

    def _pyro_post_sample(self, msg: Any) -> None:
        for plate in msg["cond_indep_stack"] if msg["is_observed"] else ():
            if plate.size == self.rows and plate.full_size:
                self.share = max(self.share, plate.full_size / plate.size)

    def _pyro_post_param(self, msg: Any) -> None:
        if self.known is not None and msg["name"] not in self.known:
            raise ValueError(
                f"the parameter {msg['name']!r} is new since these programs were wrapped, so that "
                "nothing trains it: call plain_programs again, where they have it"
            )


class PlainModel(FacetModel):
    """A program of x ``[B, ...]`` without facets. Parameters stay in Pyro's store."""

    program: Callable[..., Any]
    recordable = False

    def __init__(self) -> None:
        Program.__init__(self)
        self.facets, self.likelihood, self.watch = nn.ModuleDict(), Normal(1.0), _Watch()
        self.network = self.decoder = None  # type: ignore[assignment]
        self.inputs: dict[str, Input] = {}  # type: ignore[misc]

    def __call__(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.watch.rows, self.watch.share = len(x), 1.0
        with self.watch:
            result = self.program(x.to(self.gates.dtype), *args, **kwargs)
        self.share = self.watch.share
        return result

    def check_given(self, name: str, values: Any, n: int) -> Tensor:
        found = as_numbers(values, name)
        if len(found) != n:
            raise ValueError(f"{name} must have an entry for each of {n} rows, got {len(found)}")
        return found.to(self.gates.dtype) if found.is_floating_point() else found

    def decode(self, z: Any, **given: Any) -> NoReturn:
        raise ValueError(NO_FACETS)


class PlainGuide(FacetGuide):
    """Its guide, and the parameters of both that no module of theirs has (``in_store``)."""

    program: Callable[..., Any]
    needs = Needs.ANY_OBJECTIVE
    deterministic, factorizes = True, False
    options: dict[str, Any] = {}  # noqa: RUF012
    max_plate_nesting = inf  # type: ignore[assignment]
    objective: ELBO | None = None

    def __init__(self, model: PlainModel) -> None:
        Program.__init__(self)
        self.model, self.family, self.watch = model, None, model.watch
        self.in_store: dict[str, Tensor] = {}

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        with self.watch:
            return self.program(x.to(self.model.gates.dtype), *args, **kwargs)

    def forward(self, x: Tensor, *args: Any, **options: Any) -> None:
        self(x, *args, **options)

    def adopt(self, x: Tensor, given: Any) -> None:
        """Call both programs, and take their parameters; errors are :func:`plain_programs`'s."""
        dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        self.model.register_buffer("gates", torch.ones(0, dtype=dtype))
        self.model.x_shape = tuple(x.shape[1:])
        data = self.observed(x, given)
        try:
            with poutine.trace(param_only=True) as found:
                guide = poutine.trace(self).get_trace(data.x, **data.given)
                replayed = poutine.replay(self.model, guide)
                model = poutine.trace(replayed).get_trace(data.x, **data.given)
        except Exception as error:  # of any kind
            inputs = ", ".join(["x", *(f"{name}=" for name in given)])
            raise ValueError(f"the programs could not be called with {inputs}: {error}") from error
        _check_sites(model, guide)
        sites = {name: site for name, site in found.trace.nodes.items() if site["type"] == "param"}
        stored = {name: site["value"].unconstrained() for name, site in sites.items()}
        ids, self.watch.known = {id(each) for each in stored.values()}, set(sites)
        modules = _reached([self.model.program, self.program], set())
        self.parts = nn.ModuleList(part for each in modules for part in _trained(each, ids))
        held = {id(each) for each in self.parameters()}
        self.in_store = {name: each for name, each in stored.items() if id(each) not in held}
        for name, parameter in self.in_store.items():
            self._parameters[name.replace(".", "/")] = parameter  # type: ignore[assignment]
        if not any(each.requires_grad for each in self.parameters()):
            raise ValueError(
                "neither program has a parameter that learns, by pyro.param or a module"
            )

    def observed(self, x: Rows, given: Any) -> Observed:
        now = dict(pyro.get_param_store().named_parameters())
        if gone := [name for name, each in self.in_store.items() if now.get(name) is not each]:
            raise ValueError(
                f"Pyro's store has another {gone[0]!r} than when these programs were wrapped, or "
                "none (pyro.clear_param_store?): call plain_programs again"
            )
        return super().observed(x, given)

    def heads(self, x: Tensor, **given: Tensor) -> NoReturn:
        raise ValueError(NO_FACETS)


def plain_programs(
    model: Callable[..., Any], guide: Callable[..., Any], x: ArrayLike | Tensor, **given: Any
) -> tuple[FacetModel, FacetGuide]:
    """A model and guide that are any Pyro programs, as :class:`~inference.SVIRunner` takes them:
    ``SVIRunner(*plain_programs(model, guide, x))``.

    Both are called once, with ``x``, as their parameters exist from then on. In training they are
    called with batches ``[B, ...]``, as by ``svi.step``: where latents are shared by all data, a
    program scales its plate (``pyro.plate("data", N, subsample_size=len(x))``), or ``batch_size``
    is the number of data; where each datum has one in the guide, its plate needs the rows' places
    (``subsample=row``, given as ``row=torch.arange(N)``; autoguides by ``create_plates=``). The
    objective is ``Trace_ELBO`` by default; discrete latents that only the model has need
    ``objective=TraceEnum_ELBO(...)``. It is in nats per datum, of N if a plate of the batch's rows
    says so (``poutine.scale`` does not); records hold it as ``elbo``. Parameters stay in Pyro's
    store, where ``pyro.infer.Predictive`` finds the fitted ones, and a guide that is wrapped again
    goes on from them. Checkpoints and saved runs hold them, with the buffers of the modules that
    the programs train and refer to, which end in evaluation mode. Steps are not recorded.

    :param model: a function or module, called with x and what is given besides.
    :param guide: the same, such as ``AutoNormal(model)``.
    :param x: some data ``[N, ...]``, in the precision to compute in; integers become floats.
    :param given: some of the programs' other inputs, one entry per datum, by keyword.
    :raises ValueError: if a program cannot be called, nothing is observed or can be learned, the
        guide draws what the model has not, or an input has a name that the runner uses (``group``).

    Example:
        >>> import pyro
        >>> import torch
        >>> from inference import SVIRunner, plain_programs
        >>> from pyro import distributions as dist
        >>> from pyro.infer.autoguide import AutoNormal
        >>> def model(x):
        ...     loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("data", len(x)):
        ...         return pyro.sample("x", dist.Normal(loc, 1.0), obs=x)
        >>> x = 3 + torch.randn(50)
        >>> runner = SVIRunner(*plain_programs(model, AutoNormal(model), x), lr=0.05)
        >>> runner = runner.fit(x, epochs=200, progress=False)
        >>> 2.5 < pyro.param("AutoNormal.locs.loc").item() < 3.5
        True
        >>> pyro.clear_param_store()
    """
    for name, each in {"model": model, "guide": guide}.items():
        if isinstance(each, Program) or not callable(each):
            raise ValueError(f"{name} must be a function or a module of Pyro's, got {each!r}")
    if taken := sorted(given.keys() & RESERVED):
        raise ValueError(f"the runner uses the name {taken[0]!r} itself: rename that input")
    wrapped = PlainModel()
    wrapped.program = model
    wrapped.inputs = dict.fromkeys(given, Input())  # type: ignore[misc]
    guided = PlainGuide(wrapped)
    guided.program, guided.takes = guide, tuple(given)
    guided.adopt(as_numbers(x), given)
    return wrapped, guided


def _check_sites(model: Trace, guide: Trace) -> None:
    """:raises ValueError: if nothing is observed, or the guide draws what the model has not."""
    known = dict(site_densities(model))
    if not any(site["is_observed"] for site in known.values()):
        raise ValueError("the model observes nothing: give all of its inputs, such as y=")
    for name, site in site_densities(guide):
        if name not in known and not (site["is_observed"] or site["infer"].get("is_auxiliary")):
            raise ValueError(
                f"the guide draws {name!r}, which the model has not: it has {[*known]}"
            )


def _reached(values: Iterable[Any], seen: set[int]) -> Iterator[nn.Module]:
    """The modules that programs refer to: their own, of methods, closures, partials, globals."""
    for value in values:
        if id(value) in seen or isinstance(value, type | ModuleType | Tensor):
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module):
            yield value
        elif isinstance(value, FunctionType):
            named = [value.__globals__.get(name) for name in value.__code__.co_names]
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # not filled yet
                    named.append(cell.cell_contents)
            yield from _reached(named, seen)
        elif isinstance(value, MethodType):
            yield from _reached([value.__func__, value.__self__], seen)
        elif isinstance(value, partial):
            yield from _reached([value.func, *value.args, *value.keywords.values()], seen)
        elif hasattr(value, "__dict__"):
            yield from _reached(vars(value).values(), seen)


def _trained(module: nn.Module, ids: set[int]) -> list[nn.Module]:
    """The largest parts all of whose parameters that learn are the programs'."""
    learning = [id(each) for each in module.parameters() if each.requires_grad]
    if learning and ids.issuperset(learning):
        return [module]
    return [part for each in module.children() for part in _trained(each, ids)]
