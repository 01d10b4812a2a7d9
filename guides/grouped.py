"""Content inferred from all members of a group, style from each member (ML-VAE)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.distributions import kl_divergence

from guides.base import FacetGuide, Rows
from guides.discrete import Needs
from guides.evidence import Evidence, GroupMean, ProductOfNormals
from ppl_models.base import FacetModel
from ppl_models.distributions import diagonal_normal, mean_and_log_variance
from ppl_models.given.arrays import as_numbers
from ppl_models.given.checks import check_kind, check_one_of, number
from ppl_models.given.labels import as_groups, as_integers, group_sizes
from ppl_models.given.observed import Observed
from ppl_models.mlvae import CONTENT_DRAWS, MLVAE
from ppl_models.networks import Encoder


class GroupedGuide(FacetGuide):
    r"""q(content given the group) from all members' heads, q(style given x) from each alone.

    .. math:: q(C_G, S_G \mid X_G) = q(C_G \mid X_G) \prod_{i \in G} q(S_i \mid X_i)

    Groups may have any size, in training and later: ``embed(x, group=ids)`` uses all rows of a
    group; distinct ids give each row's own posterior.

    :param model: an :class:`~ppl_models.mlvae.MLVAE`.
    :param num_samples: L, the number of draws of content and style.
    :param evidence: how the members' Normals are combined; ``ProductOfNormals()`` by default.
    :param content: what gets its own draw of the content: ``"member"``, ``"group"`` or
        ``"untied"``; see :meth:`MLVAE.forward <ppl_models.mlvae.MLVAE.forward>`.
    :raises ValueError: if the model is not an MLVAE, or an option is unknown.

    Example:
        >>> import torch
        >>> from guides import GroupedGuide
        >>> from ppl_models import MLVAE
        >>> guide = GroupedGuide(MLVAE((20,), content_dim=4, style_dim=2))
        >>> content = guide.embed(torch.rand(3, 20), group=[0, 0, 1])["content"]
        >>> bool((content[0] == content[1]).all())
        True
    """

    kind = MLVAE
    model: MLVAE
    takes = ("group",)
    factorizes = False
    needs = Needs.GROUPING

    def __init__(
        self,
        model: FacetModel,
        num_samples: int = 1,
        evidence: Evidence | None = None,
        content: str = "member",
    ) -> None:
        super().__init__(model, num_samples)
        example = "a rule such as ProductOfNormals() or MixtureOfNormals()"
        evidence = ProductOfNormals() if evidence is None else evidence
        self.evidence: Evidence = check_kind("evidence", evidence, Evidence, example)
        self.content = check_one_of("content", content, CONTENT_DRAWS)

    @property
    def options(self) -> dict[str, Any]:
        return {**super().options, "content": self.content}

    def check_options(self, options: Mapping[str, Any]) -> None:
        super().check_options(options)
        if self.content == "untied" and options.get("content") != "untied":
            raise ValueError(
                "this guide gives each row a content of its own, and Pyro's SVI has to tell the "
                "model: svi.step(x, group=group, content='untied')"
            )

    def forward(
        self,
        x: Tensor,
        *,
        group: Tensor,
        num_samples: int | None = None,
        content: str = "group",
        size: float | None = None,
        row: Tensor | None = None,
    ) -> None:
        """The program.

        :param size: how many samples the batch represents, if not its number of rows.
        """
        model = self.model
        heads = self.heads(x, **({} if row is None else {"row": row}))
        with self.draws(num_samples):
            with model.contents(group, content):
                pyro.sample("z_content", self.content_posterior(heads["content"], group, content))
            with model.plate(None, len(group)):
                pyro.sample("z_style", self.latent_posterior("style", heads["style"]))
        self.press(heads["content"], group, len(group) if size is None else size)

    def press(self, head: Tensor, group: Tensor, size: float) -> None:
        """Add what the objective has besides the bound: nothing."""

    def content_posterior(
        self, head: Tensor, group: Tensor, content: str
    ) -> dist.TorchDistribution:
        """q(content given the group) from heads ``[B, 2 d]``: batch ``[B]``, members or slots."""
        if content == "untied":
            return diagonal_normal(head)
        rule = self.evidence.by_group if content == "group" else self.evidence.by_member
        return rule(*mean_and_log_variance(head), group)

    @torch.no_grad()
    def posterior(self, x: Rows, **given: Any) -> dict[str, dist.TorchDistribution]:
        """q(style given x) and q(content given the group) of rows: batch ``[N]``, event ``[d]``.

        :param x: ``[N, *x_shape]``.
        :param given: ``group``, ``[N]``.
        """
        data = self.observed(x, given)
        heads, group = self._all_heads(data), data.given["group"].to(self.model.gates.device)
        content = "untied" if self.content == "untied" else "member"
        style = self.latent_posterior("style", heads["style"])
        return {"style": style, "content": self.content_posterior(heads["content"], group, content)}


class SimilarContentGuide(GroupedGuide):
    r"""A VAE whose members of a group have similar contents (ML-VAE's supplement, 8, Eq. 18).

    Every row has its own content. The objective is reduced by the mean over groups of the mean
    symmetrized KL divergence of members' posteriors, paired in the order of the rows; groups of one
    have none. The history and :func:`inference.elbo` leave this penalty out.

    :param model: an :class:`~ppl_models.mlvae.MLVAE`.
    :param penalty: lambda, at least 0.
    :raises ValueError: if the model is not an MLVAE, or ``penalty`` is negative.

    Example:
        >>> import torch
        >>> from guides import SimilarContentGuide
        >>> from ppl_models import MLVAE
        >>> model = MLVAE((20,), content_dim=4, style_dim=2)
        >>> guide = SimilarContentGuide(model, penalty=10.0)
        >>> guide.embed(torch.rand(3, 20), group=[0, 0, 1])["content"].shape
        (3, 4)
    """

    def __init__(self, model: FacetModel, num_samples: int = 1, penalty: float = 1.0) -> None:
        if not 0 <= number(penalty) < float("inf"):
            raise ValueError(f"penalty must be a number of at least 0, got {penalty!r}")
        super().__init__(model, num_samples, content="untied")
        self.penalty = penalty

    def press(self, head: Tensor, group: Tensor, size: float) -> None:
        if self.adds:
            distances = self.distances(head, group)
            # A mean over groups; the rest of Eq. 18 is a mean over the samples of the batch.
            groups = (group_sizes(group, distances.dtype) > 0).sum()
            penalty = self.penalty * size / groups * distances.sum()
            pyro.factor("similarity", penalty, has_rsample=True)

    def distances(self, head: Tensor, group: Tensor) -> Tensor:
        """Mean symmetrized KL divergence over the pairs of each slot: ``[B]``, nats."""
        one = group.argsort(stable=True)
        other = one.roll(-1)  # the next one of its group; of the last row, the first row
        sizes = group_sizes(group, head.dtype)
        place = torch.arange(len(group), device=group.device)
        place = place - (sizes.cumsum(0) - sizes)[group[one]]
        paired = (place % 2 == 0) & (place + 1 < sizes[group[one]])
        p, q = diagonal_normal(head[one]), diagonal_normal(head[other])
        symmetric = 0.5 * (kl_divergence(p, q) + kl_divergence(q, p))
        each = torch.where(paired, symmetric, 0.0)
        pairs = (sizes / 2).floor().clamp_min(1)
        return torch.zeros_like(sizes).index_add(0, group[one], each) / pairs


class TableGuide(GroupedGuide):
    """q(content) with parameters per group and q(style) with parameters per row.

    It only covers the rows that it was built for: all of them in order, or some of them if their
    numbers are given as ``row=``. For new data, :func:`inference.infer_tables` fits new tables to
    the trained model.

    :param model: an :class:`~ppl_models.mlvae.MLVAE`.
    :param group: the group of every row, ``[N]``, integers.
    :param content: see :class:`~guides.grouped.GroupedGuide`.
    :raises ValueError: if ``group`` is no vector of integers; later, if rows have other groups.

    Example:
        >>> import torch
        >>> from guides import TableGuide
        >>> from ppl_models import MLVAE
        >>> group = [0, 0, 1, 1]
        >>> guide = TableGuide(MLVAE((20,), content_dim=4, style_dim=2), group)
        >>> guide.embed(torch.rand(4, 20), group=group)["style"].shape
        (4, 2)
        >>> guide.embed(torch.rand(1, 20), group=[1], row=[3])["style"].shape
        (1, 2)
    """

    def __init__(
        self, model: FacetModel, group: ArrayLike | Tensor, content: str = "member"
    ) -> None:
        super().__init__(model, evidence=GroupMean(), content=content)
        group = as_numbers(group, "group")
        if not group.numel():
            raise ValueError("group is empty: give the group of every row")
        groups = as_groups("group", group, group.numel())
        self.register_buffer("group_of_row", groups)
        self.group_of_row: Tensor
        sizes = {"style": len(groups), "content": int(groups.max()) + 1}
        self.tables = nn.ParameterDict(
            {name: 0.1 * torch.randn(sizes[name], self.head_size(name)) for name in model.priors}
        )

    def observed(self, x: Rows, given: Mapping[str, Any]) -> Observed:
        if isinstance(x, Observed):
            return x
        beside = dict(given)
        row = beside.pop("row", None)
        data = super().observed(x, beside)
        n = len(data)
        rows = self._all_rows(n) if row is None else as_rows(row, n, len(self.group_of_row)).cpu()
        ours, theirs = self.group_of_row.cpu()[rows], data.given["group"].cpu()
        together = len(torch.stack([ours, theirs]).unique(dim=1)[0])
        if not together == len(ours.unique()) == len(theirs.unique()):
            raise ValueError(
                "the rows were grouped in another way when TableGuide was built: use those groups"
            )
        return Observed(data.x, data.given | {"row": rows.to(data.x.device)})

    def _all_rows(self, n: int) -> Tensor:
        """The numbers of all rows, if there are ``n``."""
        if n != len(self.group_of_row):
            raise ValueError(
                f"TableGuide has tables for {len(self.group_of_row)} rows, got {n}: say which they "
                "are (row=), or fit new tables to new data (infer_tables)"
            )
        return torch.arange(n)

    def build_encoder(self) -> Encoder:
        return Encoder()

    def _prepared_heads(self, prepared: Tensor, **given: Tensor) -> dict[str, Tensor]:
        row = given["row"] if "row" in given else self._all_rows(len(prepared))
        content = self.tables["content"][self.group_of_row[row]]
        return {"style": self.tables["style"][row], "content": content}


def as_rows(values: ArrayLike | Tensor, n: int, rows: int) -> Tensor:
    """Row numbers ``[n]``, below ``rows``."""
    row = as_integers("row", values, n, "row number")
    if int(row.min()) < 0 or int(row.max()) >= rows:
        raise ValueError(
            f"row has numbers from {int(row.min())} to {int(row.max())}, but there are tables for "
            f"{rows} rows"
        )
    return row
