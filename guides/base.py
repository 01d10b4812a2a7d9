"""The base of all guides: an encoder, and the methods that users call on a fitted guide."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from guides.discrete import Discrete, Needs
from guides.families import Diagonal, Family
from ppl_models.base import FacetModel
from ppl_models.distributions import Component, one_hot_labels
from ppl_models.given.checks import check_kind, check_size, number
from ppl_models.given.observed import Observed, as_observed
from ppl_models.modes import evaluating, temporarily
from ppl_models.networks import Encoder
from ppl_models.posteriors import normal_points
from ppl_models.program import Program, site_scale
from ppl_models.vqvae import VQVAE

#: Rows as users give them, or as they were checked.
Rows = ArrayLike | Tensor | Observed
# Batch size outside training.
EVALUATION_BATCH = 4096


class FacetGuide(Program):
    """Base of the guides: an encoder gives one q(z given x) per facet; predictions use its mean.

    The guide holds the model; parameters are shared, so ``guide.to(device)`` moves both.

    :param model: the generative program.
    :param num_samples: L, the number of draws of z per sample in the objective.
    :param family: of q(z_j given x), see :mod:`guides.families`; diagonal Normals by default.
    :raises ValueError: if ``num_samples`` is below 1, or the model takes other keywords besides x.
    """

    #: keywords, besides x, that the posterior is conditioned on, as in the models of this guide
    takes: tuple[str, ...] = ()
    #: optional keywords that the posterior uses, among those that the model accepts
    accepts: tuple[str, ...] = ()
    #: the kind of model whose posterior it is
    kind: type[FacetModel] = FacetModel
    #: whether z is a point given x, so that its KL does not measure information
    deterministic = False
    #: whether it adds to the bound what it may add, such as a penalty
    adds = True
    #: whether q(c given x) is free, as the clusters need that the decoder reads besides z
    infers_clusters = False

    def __init__(
        self, model: FacetModel, num_samples: int = 1, family: Family | None = None
    ) -> None:
        super().__init__()
        check_model(model)
        if not isinstance(model, self.kind):
            raise ValueError(
                f"{type(self).__name__} is for {self.kind.__name__}, got {type(model).__name__}: "
                f"use {model.suitable_guide}"
            )
        family = Diagonal() if family is None else family
        self.family = check_kind("family", family, Family, "a family, such as FullCovariance()")
        diagonal = isinstance(family, Diagonal)
        if not diagonal and any(prior.uses_posterior for prior in model.priors.values()):
            raise ValueError(
                "a VampPrior is made of diagonal posteriors: leave family out, or use another "
                f"prior, got {family!r}"
            )
        if set(model.takes) != set(self.takes):
            needed, taken = (
                " and ".join(names) or "nothing" for names in (model.takes, self.takes)
            )
            raise ValueError(
                f"{type(model).__name__} takes {needed} besides x and {type(self).__name__} takes "
                f"{taken}: use a guide that suits the model, such as {model.suitable_guide}"
            )
        if isinstance(model, VQVAE) and not issubclass(self.kind, VQVAE):
            raise ValueError(
                f"{type(self).__name__} draws no codes, as {type(model).__name__} needs them: use "
                f"{model.suitable_guide}"
            )
        if model.decoded_clusters and not self.infers_clusters:
            raise ValueError(
                f"{type(model).__name__}'s decoder reads a cluster besides z, so that x says more "
                f"of it than z does, which {type(self).__name__} rules out (MFCVAE, Theorem 2): "
                "use AmortizedGuide"
            )
        self.model = model
        self.num_samples = check_size("num_samples", num_samples)
        self.adds = True  # its own, since new attributes would be recorded anew
        layers = {name: self.family.layers(prior.dim) for name, prior in model.priors.items()}
        self.layers = nn.ModuleDict({name: each for name, each in layers.items() if each})
        self.encoder = self.build_encoder()
        for name, prior in model.priors.items():
            prior.bind(partial(self._encode_facet, name), model.features_shape)

    def own_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All but the model's."""
        named = self.named_parameters()
        return ((name, parameter) for name, parameter in named if not name.startswith("model."))

    def register(self) -> None:
        self.model.register()  # whose values the posterior rests on
        super().register()

    def check_options(self, options: Mapping[str, Any]) -> None:
        if self.num_samples > 1 and options.get("num_samples") is None:
            raise ValueError(
                f"this guide draws num_samples={self.num_samples} times, and Pyro's SVI has to "
                f"tell the model: svi.step(x, num_samples={self.num_samples})"
            )

    @property
    def needs(self) -> Needs:
        """What an objective must do with the guide's discrete sites."""
        return Needs.NOTHING

    @property
    def factorizes(self) -> bool:
        """Whether q(z given x) is the product of the facets' :meth:`latent_posterior`."""
        return True

    @property
    def reads(self) -> tuple[str, ...]:
        """Keywords, among those that it takes, that q(z given x) is computed from."""
        return self.takes

    @property
    def options(self) -> dict[str, Any]:
        """Keywords that both programs are called with, besides the data."""
        return {"num_samples": self.num_samples}

    @abstractmethod
    def forward(self, x: Tensor, *args: Any, **options: Any) -> None:
        """The program: draw every latent site of the model given ``x`` ``[B, *x_shape]``.

        Keywords of every guide: ``num_samples``, L, by default the guide's own; ``marginal``,
        whether the model omits its clusters; and what model and guide take besides x.
        """

    @property
    def max_plate_nesting(self) -> int:
        """Plates around the deepest site: observations, and draws if there are several."""
        return 1 if self.num_samples == 1 else 2

    def at_step(self, step: Tensor) -> None:
        """Called by the runner before each optimizer step, for guides that change in training."""
        if isinstance(discrete := getattr(self, "discrete", None), Discrete):
            discrete.at_step(step)

    @contextmanager
    def without_relaxation(self) -> Iterator[None]:
        """Within this context draws follow the posterior exactly and nothing is added, so that the
        ELBO is a bound.
        """
        discrete = getattr(self, "discrete", None)
        exact = discrete.without_relaxation() if isinstance(discrete, Discrete) else nullcontext()
        with exact, temporarily(self, adds=False):
            yield

    # The encoder and the layout of its output.

    def build_encoder(self) -> Encoder:
        """The network that reads x, with a head of :meth:`head_size` numbers per facet."""
        return self.model.network.encoder(
            self.model.features_shape, [self.head_size(name) for name in self.model.priors]
        )

    def head_size(self, name: str) -> int:
        """Size of the encoder's head for a facet."""
        return self.family.head_size(self.model.priors[name].dim)

    def latent_posterior(self, name: str, head: Tensor) -> dist.TorchDistribution:
        """q(z_j given x) from the encoder's ``[..., size]``, of which it reads the first numbers:
        batch ``[...]``, event ``[d]``.
        """
        size = self.family.head_size(self.model.priors[name].dim)
        return self.family.posterior(head[..., :size], getattr(self.layers, name, None))

    def cluster_logits(self, name: str, head: Tensor, **near: Tensor) -> Tensor:
        """Logits of q(c_j given x) from the encoder's output: ``[..., size] -> [..., K]``.

        Here from the posterior mean of z: MFCVAE's Eq. 12, with one point as the expectation.

        :param near: what the facet's clusters are given, as of
            :meth:`~ppl_models.base.FacetModel.by_facet`.
        """
        z = self.latent_posterior(name, head).mean
        return self.model.priors[name].log_joint(z, **near)

    def heads(self, x: Tensor, **given: Tensor) -> dict[str, Tensor]:
        """The encoder's output ``[B, size]`` by facet, perhaps improved by the family."""
        encoded = self.encoder_output(x, **given)
        dims = {name: prior.dim for name, prior in self.model.priors.items()}
        return self.family.improved(encoded, dims, partial(self._bound, x, given))

    def encoder_output(self, x: Tensor, **given: Tensor) -> dict[str, Tensor]:
        """The encoder's output for a batch on the device, by facet: ``[B, size]``."""
        return self._prepared_heads(self.model.seen(x), **given)

    def _bound(
        self, x: Tensor, given: Mapping[str, Tensor], heads: Mapping[str, Tensor], num_points: int
    ) -> Tensor:
        """The bound of each datum at these heads, with clusters summed out, ``[B]`` in nats, by
        fixed points, at least twice as many as latents: fewer tell little of a covariance.
        """
        total = x.new_zeros((), dtype=self.model.gates.dtype)
        dims = [self.model.priors[name].dim for name in heads]
        num_points = max(num_points, 2 * sum(dims))
        noise = normal_points(num_points, sum(dims), next(iter(heads.values()))).split(dims, -1)
        z = {}
        for (name, head), points in zip(heads.items(), noise, strict=True):
            q = self.latent_posterior(name, head)
            z[name] = q.from_noise(points.unsqueeze(1).expand(-1, *q.batch_shape, -1))
            total = total - site_scale(f"z_{name}") * q.log_prob(z[name])
        with evaluating(self.model):
            return (total + self.model.log_joint(self.model.prepare(x), z, **given)).mean(0)

    def encode(self, x: Tensor, **given: Tensor) -> dict[str, dist.TorchDistribution]:
        """q(z_j given x) for a batch on the device: batch ``[B]``, event ``[d]`` each."""
        heads = self.heads(x, **given).items()
        return {name: self.latent_posterior(name, head) for name, head in heads}

    def _prepared_heads(self, prepared: Tensor, **given: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.model.priors, self.encoder(prepared), strict=True))

    def _encode_facet(self, name: str, prepared: Tensor) -> dist.TorchDistribution:
        """Posterior of one facet at pseudo-inputs, prepared; these are no batch of data, so
        that batch normalization uses its running statistics.
        """
        with evaluating(self.encoder):
            return self.latent_posterior(name, self._prepared_heads(prepared)[name])

    def draws(self, num_samples: int | None) -> AbstractContextManager:
        """A plate of this number of draws, or by default the guide's own."""
        return self.model.draws(self.num_samples if num_samples is None else num_samples)

    def draw_latents(
        self, x: Tensor, num_samples: int | None, **given: Tensor
    ) -> dict[str, Tensor]:
        """Sample the sites ``z_NAME``, each ``[(L,) B, d]``, within the data plate."""
        posterior = self.encode(x, **given)
        with self.draws(num_samples):
            return {name: pyro.sample(f"z_{name}", q) for name, q in posterior.items()}

    # Methods for users of a fitted guide. All run in evaluation mode, without gradients, in
    # batches; what model and guide take besides x is given by keyword, one entry per sample.

    def observed(self, x: Rows, given: Mapping[str, Any]) -> Observed:
        """Data with what model and guide take besides x, checked; these as they are, if they were.

        :raises ValueError: if something does not fit.
        """
        accepts = [name for name in self.accepts if name in self.model.accepts]
        return x if isinstance(x, Observed) else as_observed(x, given, self.model, accepts)

    @torch.no_grad()
    def posterior(self, x: Rows, **given: Any) -> dict[str, dist.TorchDistribution]:
        """q(z_j given x) for every facet: batch ``[N]``, event ``[d]``.

        :param x: ``[N, *x_shape]``, array or tensor, on any device.
        :raises ValueError: if ``x`` or a keyword does not fit the model.
        """
        heads = self._all_heads(self.observed(x, given)).items()
        return {name: self.latent_posterior(name, head) for name, head in heads}

    def embed(self, x: Rows, **given: Any) -> dict[str, np.ndarray]:
        """Posterior means of every facet's latent vector: ``{name: [N, d]}``."""
        return {name: q.mean.cpu().numpy() for name, q in self.posterior(x, **given).items()}

    @torch.no_grad()
    def predict_proba(self, x: Rows, **given: Any) -> dict[str, np.ndarray]:
        """Probability of every cluster, for facets with inferred ones: ``{name: [N, K]}``.

        Uses the guide's own rule, see :meth:`cluster_logits`.
        """
        data = self.observed(x, given)
        heads, near = self._all_heads(data), self.model.by_facet(data.given.get("neighbors"))
        with evaluating(self):
            logits = {
                name: self.cluster_logits(name, heads[name], **near.get(name, {}))
                for name in self.model.inferred
            }
        return {name: each.softmax(-1).cpu().numpy() for name, each in logits.items()}

    def predict(self, x: Rows, **given: Any) -> dict[str, np.ndarray]:
        """Most probable cluster, for each facet whose clusters are inferred: ``{name: [N]}``."""
        return {name: proba.argmax(-1) for name, proba in self.predict_proba(x, **given).items()}

    @torch.no_grad()
    def reconstruct(self, x: ArrayLike | Tensor, **given: Any) -> np.ndarray:
        """Mean of p(x given z) at the posterior means: ``[N, *x_shape]``."""
        data, parts = self.observed(x, given), []
        z = {name: torch.as_tensor(means) for name, means in self.embed(data).items()}
        beside = self.decoder_given(data, {})
        with evaluating(self):
            for rows in torch.arange(len(next(iter(z.values())))).split(EVALUATION_BATCH):
                latents = {name: means[rows] for name, means in z.items()}
                given = {name: values[rows] for name, values in beside.items()}
                parts.append(self.model.decode(latents, **given).mean)
        return torch.cat(parts).cpu().numpy()

    def decoder_given(self, x: Rows, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """What the decoder reads besides latents, for these data and keywords: ``[N, ...]``."""
        data = self.observed(x, given)
        found = {name: data.given[name] for name in self.model.decodes if name in data.given}
        clusters = self.predict(data) if self.model.decoded_clusters else {}
        return found | {f"c_{n}": torch.as_tensor(clusters[n]) for n in self.model.decoded_clusters}

    def _all_heads(self, data: Observed) -> dict[str, Tensor]:
        """The encoder's output for all data, some at a time."""
        parts = []
        with evaluating(self):
            for batch in data.split(EVALUATION_BATCH):
                there = batch.to(self.model.gates.device)
                parts.append(self.heads(there.x, **there.given))
        return {name: torch.cat([part[name] for part in parts]) for name in self.model.priors}


def check_model(model: Any) -> None:
    """:raises ValueError: if ``model`` is not a model, for example a runner or a guide."""
    what = "a model, such as MFCVAE(...), or one that plain_programs makes of functions"
    check_kind("model", model, FacetModel, what)


def check_guide(guide: Any, kind: type[FacetGuide] = FacetGuide) -> None:
    """:raises ValueError: if ``guide`` is not a guide of this kind, for example a runner."""
    what = "guide" if kind is FacetGuide else kind.__name__
    check_kind("guide", guide, kind, f"a {what}, such as runner.guide")


class SupervisedGuide(FacetGuide):
    r"""Base of guides that may add :math:`w \log q(c \mid x)` of known classes to the objective.

    By the bound alone, which has few nats at stake, q(c given x) learns a known class late. With w
    above 0 the objective is a looser bound than the ELBO; ``elbo`` and the history's terms leave
    the term out. A schedule's weights do not apply to it.

    :param label_weight: w, at least 0.
    :raises ValueError: if the weight is negative or not a number.
    """

    def __init__(
        self,
        model: FacetModel,
        num_samples: int = 1,
        label_weight: float = 0.0,
        family: Family | None = None,
    ) -> None:
        if not 0 <= number(label_weight) < float("inf"):
            raise ValueError(f"label_weight must be a number of at least 0, got {label_weight!r}")
        super().__init__(model, num_samples, family)
        self.label_weight = label_weight

    def add_label_loss(self, site: str, logits: Tensor, label: Tensor) -> None:
        """Add the term of one facet, within the data plate.

        :param logits: logits of q(c given x), ``[B, K]``, up to a constant.
        :param label: integers ``[B]``, -1 where unknown, which adds nothing; or one-hot.
        """
        if self.adds and self.label_weight:
            one_hot = label.is_floating_point()
            known = 1.0 if one_hot else label >= 0
            classes = one_hot_labels(
                label if one_hot else label.clamp_min(0), logits.shape[-1], logits
            )
            log_q = Component(logits=logits).log_prob(classes)
            pyro.factor(site, -self.label_weight * known * log_q, has_rsample=True)
