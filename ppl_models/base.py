"""What every model has: named facets, a decoder and a likelihood."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, nn

from ppl_models.distributions import Component, clamp_to_labels, one_hot_labels
from ppl_models.given.arrays import as_numbers, dense_tensor
from ppl_models.given.checks import check_kind, check_rows, check_shape, check_size, is_index
from ppl_models.given.sparse import SparseRows
from ppl_models.likelihood_base import Likelihood
from ppl_models.likelihoods import Bernoulli
from ppl_models.modes import evaluating, temporarily
from ppl_models.networks import Architecture, MLPLadder, SharedMLP
from ppl_models.networks.base import concatenate
from ppl_models.priors.base import Mixture, Prior
from ppl_models.program import Program, ScaleSites, site_scale


@dataclass(frozen=True)
class Input:
    """Something given beside x by a keyword, such as ``label``.

    :ivar required: whether the program needs it; else a guide may use it where it is given.
    :ivar decoded: whether the decoder reads it.

    Example:

    >>> from ppl_models import NVAE
    >>> NVAE((6,), num_classes=3, class_dim=2, shared_dim=2).inputs["label"]
    Input(required=True, decoded=True)
    """

    required: bool = True
    decoded: bool = False


class FacetModel(Program):
    """Base class of the generative programs: everything except the program itself.

    Model and guide are plain modules, which any torch optimizer trains. Their parameters enter
    Pyro's global store only where ``SVI`` asks for them, under names that no other program has.

    :param x_shape: shape of one sample, for example ``(784,)`` or ``(1, 28, 28)``.
    :param facets: the prior of each facet by name, ordered from shallow to deep.
    :param likelihood: p(x given z); ``Bernoulli()`` by default.
    :param network: the architecture; by default the ladder of MFCVAE's Table 4 with a rung per
        facet, or its shared architecture (Table 6) for a single facet.
    :raises ValueError: if ``x_shape`` or ``facets`` is malformed, or the network does not fit.

    :ivar gates: buffer ``[J]``: factor on each facet's input to the decoder (MFCVAE, Eq. 88).
    :ivar gated: whether the gates are applied, which takes some percent of a step at MNIST's size;
        if not, they must all be 1.
    """

    gates: Tensor
    gated: bool = True
    #: whether steps are a function of its parameters, which may be recorded and mapped
    recordable = True
    #: how many data a datum of a batch stands for, in the last call
    share: float = 1.0
    #: what is given besides x, by keyword
    inputs: ClassVar[Mapping[str, Input]] = {}
    #: facets whose latent is shared by all members of a group
    shared: tuple[str, ...] = ()
    #: facets whose cluster the decoder reads besides z, one-hot: :meth:`decode` takes ``c_NAME=``
    decoded_clusters: tuple[str, ...] = ()
    #: name of a suitable guide, for messages
    suitable_guide: ClassVar[str] = "VaDEGuide"

    def __init__(
        self,
        x_shape: Sequence[int],
        facets: Mapping[str, Prior],
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
    ) -> None:
        super().__init__()
        self.x_shape = check_shape(x_shape)
        self.facets = _check_facets(facets)
        for name, prior in self.priors.items():
            if prior.only_model not in ("", *(kind.__name__ for kind in type(self).__mro__)):
                raise ValueError(
                    f"facets: {name!r}: {type(prior).__name__} is the prior of {prior.only_model} "
                    f"alone: {type(self).__name__} takes a mixture, such as "
                    "GaussianMixture(10, 5), or StandardNormal(5)"
                )
        for name in self.decoded_clusters:
            if name not in self.mixtures:
                raise ValueError(
                    f"decoded_clusters names {name!r}: it is a tuple of facets with clusters, of "
                    f"{list(self.mixtures)}"
                )
        likelihood = Bernoulli() if likelihood is None else likelihood
        network = _default_network(len(facets)) if network is None else network
        example = "a likelihood, such as Bernoulli() or Normal(0.3)"
        self.likelihood: Likelihood = check_kind("likelihood", likelihood, Likelihood, example)
        example = "an architecture, such as MLPLadder() or SharedMLP()"
        self.network: Architecture = check_kind("network", network, Architecture, example)
        output_shape = self.likelihood.output_shape(self.x_shape)
        self.decoder = self.network.decoder(output_shape, self.decoder_dims)
        self.register_buffer("gates", torch.ones(len(facets)))

    @property
    def dims(self) -> tuple[int, ...]:
        """Length of each facet's latent vector, shallow to deep."""
        return tuple(prior.dim for prior in self.priors.values())

    @property
    def features_shape(self) -> tuple[int, ...]:
        """Shape of one sample as encoders read it."""
        return self.likelihood.features_shape(self.x_shape)

    @property
    def decoder_dims(self) -> tuple[int, ...]:
        """Number of features that the decoder reads of each facet."""
        clusters = {name: self.priors[name].num_components for name in self.decoded_clusters}
        return tuple(prior.dim + clusters.get(name, 0) for name, prior in self.priors.items())

    @property
    def takes(self) -> tuple[str, ...]:
        """Keywords of the inputs that the program needs."""
        return tuple(name for name, each in self.inputs.items() if each.required)

    @property
    def accepts(self) -> tuple[str, ...]:
        """Keywords of the inputs that a guide may use where they are given."""
        return tuple(name for name, each in self.inputs.items() if not each.required)

    @property
    def decodes(self) -> tuple[str, ...]:
        """Keywords of the inputs, and of the clusters, that the decoder reads."""
        clusters = (f"c_{name}" for name in self.decoded_clusters)
        return *(name for name, each in self.inputs.items() if each.decoded), *clusters

    @property
    def priors(self) -> dict[str, Prior]:
        """The facets' priors by name, shallow to deep."""
        return {name: prior for name, prior in self.facets.items() if isinstance(prior, Prior)}

    @property
    def mixtures(self) -> dict[str, Mixture]:
        """The facets with a discrete variable."""
        return {name: prior for name, prior in self.facets.items() if isinstance(prior, Mixture)}

    @property
    def inferred(self) -> Mapping[str, Prior]:
        """The facets whose discrete variable is inferred rather than given."""
        return self.mixtures

    @property
    def discrete(self) -> tuple[str, ...]:
        """The facets with a latent discrete site ``c_NAME``, whose KL is a separate term."""
        return tuple(self.inferred)

    def check_given(self, name: str, values: Any, n: int) -> Tensor:
        """Check a keyword's values for ``n`` samples, and convert them for the program.

        :raises ValueError: if it does not fit.
        """
        raise NotImplementedError(
            f"{type(self).__name__} takes {name}=: implement check_given to check it"
        )

    def by_facet(self, neighbors: Tensor | None) -> dict[str, dict[str, Tensor]]:
        """What the clusters of each facet are given, as its prior's ``component`` takes it.

        :param neighbors: numbers of neighbors in clusters, facets side by side.
        """
        if neighbors is None:
            return {}
        facets = self.neighborly
        parts = neighbors.split(list(facets.values()), -1)
        return {name: {"neighbors": each} for name, each in zip(facets, parts, strict=True)}

    @property
    def neighborly(self) -> dict[str, int]:
        """The number of clusters of each facet whose clusters may be given neighbors."""
        return {n: p.num_components for n, p in self.priors.items() if "neighbors" in p.accepts}

    def by_site(self, kl_weights: Tensor) -> dict[str, Tensor]:
        """Weights of KL(z_j) and KL(c_j), ``[J, 2]``, by the sites that they scale in model and
        guide (MFCVAE, Eq. 89).
        """
        names = [f"{letter}_{name}" for name in self.priors for letter in "zc"]
        return dict(zip(names, kl_weights.reshape(-1).unbind(), strict=True))

    @contextmanager
    def draws(self, num_samples: int) -> Iterator[None]:
        """A plate of L draws, each weighted by 1 / L: the average of MFCVAE's Eq. 58."""
        if check_size("num_samples", num_samples) == 1:
            yield
            return
        with pyro.plate("samples", num_samples, dim=-2), poutine.scale(scale=1 / num_samples):
            yield

    def decode(self, z: Mapping[str, Tensor], **given: Any) -> dist.TorchDistribution:
        """p(x given z), from latents ``[..., d_j]`` by facet: batch ``[...]``, event ``x_shape``.

        Also takes arrays, so that the output of a guide's ``embed`` can be decoded.

        :param given: what the decoder reads besides latents (``decodes``), ``[...]``.
        :raises ValueError: if a facet or another input is missing or unknown.
        """
        latents = self._latents(z)
        if set(given) != set(self.decodes):
            needed = " and ".join(f"{name}=" for name in self.decodes) or "nothing"
            raise ValueError(
                f"{type(self).__name__}.decode needs {needed} besides the latents, got "
                f"{list(given)}"
            )
        gates = self.gates if self.gated else None
        output = self.decoder(self.decoder_inputs(latents, **given), gates)
        return self.likelihood(output, len(self.x_shape))

    def log_joint(self, x: Tensor, z: Mapping[str, Tensor], **given: Any) -> Tensor:
        """log p(x, z given a label or the like), clusters summed out, in nats: ``[..., B]``.

        :param x: prepared data ``[B, *x_shape]``.
        :param z: latents ``[..., B, d_j]`` by facet; within a context of
            :class:`~ppl_models.ScaleSites` each facet's density is scaled.
        :param given: what the model takes besides x, checked, ``[B, ...]``.
        :raises ValueError: if that is missing, or a facet's latent is.
        """
        if missing := [name for name in self.takes if name not in given]:
            raise ValueError(f"{type(self).__name__} needs {missing[0]}= besides x and its latents")
        decoded = {name: given[name] for name in self.decodes if name in given}
        z, near = self._latents(z), self.by_facet(given.get("neighbors"))
        total = self.gates.new_zeros(())
        for name in self.priors:
            if name not in self.decoded_clusters:
                log_prior = self.log_prior(name, z[name], **given)
                total = total + site_scale(f"z_{name}") * log_prior
        joint = {
            name: site_scale(f"z_{name}")
            * self.priors[name].log_joint(z[name], **near.get(name, {}))
            for name in self.decoded_clusters
        }

        def log_density(clusters: Sequence[int]) -> Tensor:
            """log p(x, clusters given z), up to what does not depend on these."""
            known = {f"c_{name}": torch.tensor(k) for name, k in zip(joint, clusters, strict=True)}
            of_each = (each[..., k] for each, k in zip(joint.values(), clusters, strict=True))
            return sum(of_each, self.decode(z, **decoded, **known).log_prob(x))

        every = product(*(range(each.shape[-1]) for each in joint.values()))
        return total + torch.stack([log_density(each) for each in every]).logsumexp(0)

    def log_prior(
        self, name: str, z: Tensor, *, neighbors: Tensor | None = None, **given: Any
    ) -> Tensor:
        """log p(z_j) of one facet with its clusters summed out: ``[..., d] -> [...]``.

        :param neighbors: numbers of neighbors in the clusters; see :meth:`by_facet`.
        :param given: what the model takes besides x; in most models no prior depends on it.
        """
        return self.priors[name].log_prob(z, **self.by_facet(neighbors).get(name, {}))

    def _latents(self, z: Any) -> dict[str, Tensor]:
        if not isinstance(z, Mapping) or set(z) != set(self.priors):
            found = list(z) if isinstance(z, Mapping) else type(z).__name__
            raise ValueError(
                f"there must be a latent for each of the facets {list(self.priors)}, got {found}"
            )
        latents = {}
        for name in self.priors:
            convert = dense_tensor if isinstance(z[name], Tensor) else as_numbers
            latents[name] = latent = convert(z[name], name).to(self.gates)
            if latent.shape[-1:] != (dim := self.priors[name].dim,):
                found = list(latent.shape)
                raise ValueError(
                    f"the latent of facet {name!r} has shape {found}, not [..., {dim}]"
                )
        return latents

    def decoder_inputs(self, z: Mapping[str, Tensor], **given: Any) -> list[Tensor]:
        """The decoder's input from each facet: ``[..., decoder_dims[j]]``, in the facets' order."""
        clusters = {
            name: one_hot_labels(given[f"c_{name}"], self.priors[name].num_components, self.gates)
            for name in self.decoded_clusters
        }
        return [concatenate(z[n], clusters[n]) if n in clusters else z[n] for n in z]

    @torch.no_grad()
    def generate(
        self,
        n: int,
        facet: str | None = None,
        cluster: int | None = None,
        temperature: float = 1.0,
        **given: Any,
    ) -> Tensor:
        """Draw latents from the prior and return the means of p(x given z), ``[n, *x_shape]``
        (MFCVAE, Fig. 6).

        :param facet: the facet whose cluster is fixed; all others are drawn from their full prior.
        :param cluster: component of ``facet`` to draw from.
        :param temperature: factor on the standard deviation within each component.
        :param given: what the decoder reads besides, one entry per sample; drawn by default.
        :raises ValueError: for an unknown facet, a cluster out of range, or inputs that do not fit.
        """
        check_size("n", n)
        if (facet is None) != (cluster is None):
            raise ValueError(
                f"give facet and cluster together, or neither; got facet={facet!r}, "
                f"cluster={cluster!r}"
            )
        if facet is not None:
            K = self.prior(facet).num_components
            if not is_index(cluster, K):
                raise ValueError(f"facet {facet!r} has the clusters 0 to {K - 1}, got {cluster!r}")
        fixed = {name: values for name, values in given.items() if values is not None}
        if clusters := fixed.keys() & {f"c_{name}" for name in self.decoded_clusters}:
            raise ValueError(f"{min(clusters)} follows from z: choose it by facet= and cluster=")
        beside = self.draw_given(n, facet, cluster, fixed)
        z = {
            name: prior.sample(n, cluster if name == facet else None, temperature)
            for name, prior in self.priors.items()
        }
        with evaluating(self):
            return self.decode(z, **beside, **self.draw_clusters(z, facet, cluster)).mean

    def draw_clusters(
        self, z: Mapping[str, Tensor], facet: str | None = None, cluster: int | None = None
    ) -> dict[str, Tensor]:
        """The clusters that the decoder reads, drawn given the latents ``[n, d_j]``: ``[n, K]``.

        :param facet: the facet whose cluster is fixed at ``cluster``, if any.
        """
        found = {}
        for name in self.decoded_clusters:
            logits = self.priors[name].log_joint(z[name])
            if name == facet and cluster is not None:
                label = torch.full(logits.shape[:-1], cluster, device=logits.device)
                logits = clamp_to_labels(logits, label)
            found[f"c_{name}"] = Component(logits=logits).sample()
        return found

    def draw_given(
        self, n: int, facet: str | None = None, cluster: int | None = None, given: Any = None
    ) -> dict[str, Any]:
        """What the decoder reads besides latents, for ``n`` generated samples.

        :param facet: the facet whose cluster is fixed at ``cluster``, if any.
        :param given: inputs that the user fixed, so that they are not drawn.
        :raises ValueError: if that does not fit.
        """
        return dict(given or {})  # decode rejects these

    def prior(self, facet: str) -> Prior:
        """:raises ValueError: for an unknown name; the message lists the known ones."""
        if facet not in list(self.priors):
            raise ValueError(f"unknown facet {facet!r}: this model has {list(self.priors)}")
        return self.priors[facet]

    def __call__(self, x: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Run the program, on x in the likelihood's form; see :meth:`prepare`.

        :raises ValueError: if ``x`` is no batch of tensors ``[B, *x_shape]``.
        """
        if x is not None:
            _check_tensor(x)
            x = self.prepare(x)
        return super().__call__(x, *args, **kwargs)

    def plate(self, x: Tensor | None, size: int) -> AbstractContextManager:
        """The plate over observations: as many as ``x`` has, or ``size`` if nothing is observed.

        :raises ValueError: if ``x`` is not a batch ``[B, *x_shape]``.
        """
        if x is not None:
            _check_tensor(x)
            check_rows(x.shape, self.x_shape)
        return pyro.plate("data", size if x is None else len(x), dim=-1)

    @contextmanager
    def annealed(
        self, kl_weights: Tensor | None = None, gates: Tensor | None = None
    ) -> Iterator[None]:
        """Within this context KL(z_j) and KL(c_j) have the weights ``[J, 2]``, by ``poutine.scale``
        of their sites in model and guide, and the facets the gates ``[J]``; by default as they are.
        """
        scales = {} if kl_weights is None else self.by_site(kl_weights)
        opened = {} if gates is None else {"gates": gates, "gated": True}
        with ScaleSites(scales, required=False), temporarily(self, **opened):
            yield

    def prepare(self, x: Tensor | SparseRows) -> Tensor:
        """A batch in the likelihood's form (:meth:`Likelihood.prepare`) and the model's dtype."""
        given = x.dense() if isinstance(x, SparseRows) else x
        return self.likelihood.prepare(given, self.gates.dtype).to(self.gates.dtype)

    def seen(self, x: Tensor) -> Tensor:
        """A batch as encoders read it, ``[B, *features_shape]``: :meth:`Likelihood.features`."""
        return self.likelihood.features(self.prepare(x))


def _check_tensor(x: Any) -> None:
    check_kind("x", x, (Tensor, SparseRows), "a tensor, such as torch.as_tensor(x)")


def _check_facets(facets: Mapping[str, Prior]) -> nn.ModuleDict:
    example = 'such as {"digit": GaussianMixture(10, 5)}'
    check_kind("facets", facets, (Mapping, nn.ModuleDict), f"priors by name, {example}")
    if not facets:
        raise ValueError(f"facets is empty: give at least one, {example}")
    for name, prior in facets.items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"facet names must be valid Python names, got {name!r}")
        if not isinstance(prior, Prior):
            raise ValueError(
                f"facet {name!r} needs a prior, such as GaussianMixture(10, 5), got {prior!r}"
            )
    if len({id(prior) for prior in facets.values()}) < len(facets):
        raise ValueError(f"the facets {list(facets)} share a prior object: give each its own")
    try:
        return nn.ModuleDict(facets)
    except KeyError as error:
        raise ValueError(f"facet name not allowed: torch uses it itself ({error})") from error


def _default_network(num_facets: int) -> Architecture:
    if num_facets == 1:
        return SharedMLP()
    # Table 4's two widths, and a geometric ladder between them for more facets.
    return MLPLadder([round(500 * 4 ** (j / (num_facets - 1))) for j in range(num_facets)])
