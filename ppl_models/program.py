"""What programs of models and guides share: given sites, weights of sites, and names in Pyro."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from math import prod
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.reparam.reparam import Reparam
from pyro.params.param_store import ParamStoreDict
from pyro.poutine.messenger import Messenger
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.scale_messenger import ScaleMessenger
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, nn
from torch.nn.functional import one_hot

from ppl_models.configurable import Configurable
from ppl_models.distributions import Component, KnownValue
from ppl_models.given.checks import check_kind
from ppl_models.warn import warn

#: Pyro is to sum over all values of a discrete site.
ENUMERATE = {"enumerate": "parallel"}

# Stands in Pyro's names between that of a module and that of its parameter.
DIVIDER = "$$$"
# Names by which programs are known to Pyro.
NAMES: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
# Parameters that the store has of programs, by their place in memory; others were loaded.
SHARED: WeakValueDictionary[int, nn.Parameter] = WeakValueDictionary()


class Given(Messenger):
    """Observe sites whose values the user gave. Unlike under ``poutine.condition`` they keep these
    where ``poutine.uncondition`` takes observations away, which is meant for data.

    :param values: by the site's name; ``None`` for a site that is not given.
    :param scored: whether their probabilities count; else they are masked, as by ``poutine.mask``.
    """

    def __init__(self, values: Mapping[str, Tensor | None], scored: bool = True) -> None:
        super().__init__()
        self.values, self.scored = values, scored

    def _pyro_sample(self, msg: dict[str, Any]) -> None:
        if (value := self.values.get(msg["name"])) is not None:
            msg["fn"], msg["value"], msg["is_observed"] = KnownValue(msg["fn"], value), value, True
            msg["infer"] = {k: v for k, v in msg["infer"].items() if k not in ENUMERATE}
            if not self.scored:
                msg["mask"] = value.new_zeros((), dtype=torch.bool)  # Pyro's graphs hide False


class ScaleSites(ScaleMessenger):
    """``poutine.scale`` of some sites, each by a factor of its own.

    A context for all programs that run within, such as model and guide in ``svi.step``: so one
    facet's KL has the weight w where its sites are scaled by w in both.

    :param scales: by the site's name, numbers or scalar tensors of at least 0; other sites stay as
        they are.
    :param required: whether programs that run within must have all of these sites.
    :raises ValueError: if ``scales`` is no mapping; at the end, if a required site was not met.

    Example:
        >>> import pyro
        >>> import pyro.distributions as dist
        >>> import torch
        >>> from pyro import poutine
        >>> from ppl_models import ScaleSites
        >>> def program():
        ...     return pyro.sample("z", dist.Delta(torch.tensor(0.0), log_density=-2.0))
        >>> with ScaleSites({"z": 0.5}):
        ...     print(poutine.trace(program).get_trace().log_prob_sum())
        tensor(-1.)
    """

    def __init__(self, scales: Mapping[str, Tensor | float], required: bool = True) -> None:
        Messenger.__init__(self)  # a factor of 0 is allowed, and no tensor is read
        self.scales = check_kind(
            "scales", scales, Mapping, 'factors by site, such as {"z_digit": 0.5}'
        )
        self.required, self.met = required, set[str]()

    def _process_message(self, msg: Any) -> None:
        if msg["type"] != "sample":
            return
        self.met.add(msg["name"])
        if msg["name"] in self.scales:
            self.scale = self.scales[msg["name"]]
            super()._process_message(msg)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        missed = [site for site in self.scales if site not in self.met]
        if self.required and kind is None and self.met and missed:
            known = sorted(self.met)
            raise ValueError(f"no program had the site {missed[0]!r} to scale: they have {known}")


def site_scale(site: str) -> Tensor | float:
    """The product of a site's factors in all contexts of :class:`ScaleSites` around the call."""
    around = (each.scales for each in _PYRO_STACK if isinstance(each, ScaleSites))
    return prod(scales[site] for scales in around if site in scales)


class _SummedByTheObjective(Messenger):
    """Refuses an objective that cannot sum over clusters that the guide leaves to it: one that
    would draw them from their prior, or of which they have different weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scales: set[float] = set()

    def _pyro_post_sample(self, msg: dict[str, Any]) -> None:
        replaying = (each for each in _PYRO_STACK if isinstance(each, ReplayMessenger))
        # A compiled objective replays parameters alone, and an autoguide's first call runs the
        # model within a replay of nothing.
        replayed = [each.trace for each in replaying if each.trace]
        infer, in_guide = msg["infer"], any(msg["name"] in trace for trace in replayed)
        if msg["is_observed"] or infer.get("enumerate") != "parallel" or not replayed or in_guide:
            return
        self.scales.add(float(msg["scale"]))
        if len(self.scales) > 1:
            raise ValueError(
                f"site {msg['name']!r} is not in the guide and has another weight than others that "
                "the objective is to sum out, which Pyro's cannot: leave clusters out of the model "
                "too, as by svi.step(x, marginal=True)"
            )
        if "_enumerate_dim" not in infer:
            raise ValueError(
                f"site {msg['name']!r} is not in the guide, and this objective does not enumerate "
                "it: take TraceEnum_ELBO, or leave clusters out of the model too, as by "
                "svi.step(x, marginal=True)"
            )


class Program(Configurable, nn.Module):
    """Base of models and guides: a Pyro program that is a module."""

    def own_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters that are this program's and no other's."""
        return self.named_parameters()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            # By a handler, such as that of SVI.step, that collects parameters and nothing else.
            if any(isinstance(each, TraceMessenger) and each.param_only for each in _PYRO_STACK):
                self.register()
                self.check_options(kwargs)
                stack.enter_context(_SummedByTheObjective())
            return super().__call__(*args, **kwargs)

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Refuse options that Pyro's SVI would give to model and guide alike, and cannot.

        :raises ValueError: if the model would be called with others than the guide.
        """

    def register(self) -> None:
        """Tell Pyro of the parameters, by names that no other program of this process has.

        The first program of a class is known by the class's name, further ones by a number behind
        it, in the order in which Pyro first asks. Values that the store has under these names,
        such as loaded ones, are taken over.

        :raises ValueError: if the store has a parameter of another shape under such a name.
        """
        store = pyro.get_param_store()
        name = _name_of(self, store)
        for own_name, parameter in self.own_parameters():
            if parameter.requires_grad:
                _share(store, f"{name}{DIVIDER}{own_name}", parameter)


def _name_of(program: nn.Module, store: ParamStoreDict) -> str:
    if program not in NAMES:
        kind = type(program).__name__
        for number in count():
            name = f"{kind}_{number}" if number else kind
            if _is_free(name, store):
                break
            _warn_if_loaded(name, store)
        NAMES[program] = name
    return NAMES[program]


def _warn_if_loaded(name: str, store: ParamStoreDict) -> None:
    """The values may be meant for the program that asks, and another one has the name."""
    if any(map(_was_loaded, _stored(name, store))):
        warn(
            f"the parameter store has loaded values of {name!r}, which another program that still "
            "exists is called: a new one does not get them. Delete the other one first, and what "
            "refers to it, such as its SVI"
        )


def _is_free(name: str, store: ParamStoreDict) -> bool:
    """Whether nobody has this name, and whoever had it is gone with what it left."""
    if name in NAMES.values():
        gc.collect()  # whoever has it may be gone but for a circle of references
    return name not in NAMES.values() and all(map(_was_loaded, _stored(name, store)))


def _stored(name: str, store: ParamStoreDict) -> Iterator[Tensor]:
    """The store's parameters of the program of this name."""
    return (store[key] for key in store if key.startswith(f"{name}{DIVIDER}"))


def _was_loaded(parameter: Tensor) -> bool:
    """Whether the store has it from elsewhere than a program of this process."""
    return SHARED.get(id(parameter)) is not parameter


def _take_over(name: str, stored: Tensor, parameter: nn.Parameter) -> None:
    if stored.shape != parameter.shape:
        raise ValueError(
            f"Pyro's parameter store has {name!r} with shape {list(stored.shape)}, and this "
            f"program's has {list(parameter.shape)}: it is another model's; call "
            "pyro.clear_param_store() first, or load what was saved from this model"
        )
    parameter.data.copy_(stored.detach())


def _share(store: ParamStoreDict, name: str, parameter: nn.Parameter) -> None:
    """Let the store's parameter of this name be this one, with loaded values, if any."""
    if name in store and store[name] is not parameter:
        if _was_loaded(store[name]):  # else something has replaced it in the program
            _take_over(name, store[name], parameter)
        store[name] = parameter
    if not parameter.is_contiguous():  # of which the store would keep a copy
        parameter.data = parameter.data.contiguous()
    pyro.param(name, parameter)
    SHARED[id(parameter)] = parameter


def index_clusters(model: Callable[..., Any]) -> Callable[..., Any]:
    """The same model with a site ``c_NAME_index``, integers ``[B]``, for each latent cluster.

    ``c_NAME`` stays as a one-hot site that follows from it. ``pyro.infer.infer_discrete`` needs
    this: it takes the axis of a one-hot value for that of a plate. Weights of terms do not apply to
    the new sites, and ``infer_discrete`` does not use weights.

    Example::

        by_number = poutine.condition(index_clusters(model), data=latents)
        infer_discrete(by_number, first_available_dim=-2, temperature=0)(x)

    :param model: a model, or a program made of one by Pyro's handlers.
    :raises ValueError: if that cannot be called.
    """
    if not callable(model):
        raise ValueError(f"model must be a program, such as MFCVAE(...), got {model!r}")
    return poutine.reparam(model, config=_index_of_cluster)


class _ClusterIndex(Reparam):
    """A one-hot choice made by number."""

    def apply(self, msg: Any) -> Any:
        component, name = msg["fn"], f"{msg['name']}_index"
        by_number = dist.Categorical(logits=component.logits)
        index = pyro.sample(name, by_number, infer=ENUMERATE)
        value = one_hot(index, component.event_shape[0]).to(component.logits)
        # Not 0 where the component's weights do not sum to 1.
        rest = component.log_prob(value) - by_number.log_prob(index)
        chosen = dist.Delta(value, log_density=rest, event_dim=1)
        return {"fn": chosen, "value": value, "is_observed": True}


def _index_of_cluster(site: Any) -> Reparam | None:
    is_cluster = isinstance(site["fn"], Component) and not site["is_observed"]
    return _ClusterIndex() if is_cluster and site["value"] is None else None
