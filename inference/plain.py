"""Any Pyro program in the runner: functions, modules and Pyro's autoguides."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NoReturn

import pyro
import torch
from numpy.typing import ArrayLike
from pyro import poutine
from torch import Tensor, nn

from guides.base import FacetGuide, Rows
from guides.discrete import Needs
from ppl_models.base import FacetModel, Input
from ppl_models.given.arrays import as_numbers
from ppl_models.given.observed import Observed
from ppl_models.likelihoods import Normal
from ppl_models.program import Program

__all__ = ["plain_programs"]

NO_FACETS = (
    "functions have no facets to predict, decode or draw: call them by pyro.infer.Predictive, "
    "which finds their parameters in Pyro's store"
)


class PlainModel(FacetModel):
    """A program of x ``[B, ...]`` without facets. Parameters stay in Pyro's store."""

    program: Callable[..., Any]
    recordable = False

    def __init__(self) -> None:
        Program.__init__(self)
        self.facets, self.likelihood = nn.ModuleDict(), Normal(1.0)
        self.network = self.decoder = None  # type: ignore[assignment]
        self.inputs: dict[str, Input] = {}  # type: ignore[misc]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.program(*args, **kwargs)

    def check_given(self, name: str, values: Any, n: int) -> Tensor:
        found = as_numbers(values, name)
        if len(found) != n:
            raise ValueError(
                f"{name} must have an entry for each of the {n} rows, got {len(found)}"
            )
        return found

    def decode(self, z: Any, **given: Any) -> NoReturn:
        raise ValueError(NO_FACETS)


class PlainGuide(FacetGuide):
    """Its guide, and the parameters of both that no module of theirs has (``in_store``)."""

    program: Callable[..., Any]
    needs = Needs.ANY_OBJECTIVE
    deterministic, factorizes = True, False
    options: dict[str, Any] = {}  # noqa: RUF012
    max_plate_nesting = inf  # type: ignore[assignment]

    def __init__(self, model: PlainModel) -> None:
        Program.__init__(self)
        self.model, self.family = model, None
        self.in_store: dict[str, Tensor] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.program(*args, **kwargs)

    def forward(self, x: Tensor, *args: Any, **options: Any) -> None:
        self.program(x, *args, **options)

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
    is the number of data. The objective is ``Trace_ELBO`` by default, in nats per datum; records
    hold ``elbo`` alone. Parameters stay in Pyro's store, so that ``pyro.infer.Predictive`` finds
    the fitted ones, and checkpoints and saved runs hold them, too. Networks with buffers must be
    parts of a program that is a module. Steps are not recorded.

    :param model: a function or module, called with x and what is given besides.
    :param guide: the same, such as ``AutoNormal(model)``.
    :param x: some data ``[N, ...]``, in the precision to compute in; integers become floats.
    :param given: some of the programs' other inputs, one entry per datum, by keyword.
    :raises ValueError: if a program cannot be called, or has no parameters to learn.

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
    wrapped = PlainModel()
    wrapped.program = model
    wrapped.inputs = dict.fromkeys(given, Input())  # type: ignore[misc]
    guided = PlainGuide(wrapped)
    guided.program, guided.takes = guide, tuple(given)
    rows = as_numbers(x)
    wrapped.x_shape = tuple(rows.shape[1:])
    dtype = rows.dtype if rows.is_floating_point() else torch.get_default_dtype()
    wrapped.register_buffer("gates", torch.ones(0, dtype=dtype))
    data = guided.observed(rows, given)
    with poutine.trace(param_only=True) as found:
        latents = poutine.trace(guide).get_trace(data.x, **data.given)
        poutine.replay(model, latents)(data.x, **data.given)
    known = {id(each) for each in guided.parameters()}
    for site in found.trace.nodes.values():
        parameter = site["value"].unconstrained() if site["type"] == "param" else None
        if parameter is not None and id(parameter) not in known:
            guided.in_store[site["name"]] = parameter
            guided._parameters[site["name"].replace(".", "/")] = parameter
    if not any(each.requires_grad for each in guided.parameters()):
        raise ValueError("neither program has a parameter that learns, by pyro.param or a module")
    return wrapped, guided
