"""Posteriors without an encoder: a table of parameters for every row and every group (SVI; ML-VAE's
Fig. 3a).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from guides.evidence import GroupMean
from guides.grouped import GroupedGuide
from ppl_models.arrays import as_groups, as_integers, as_numbers
from ppl_models.base import FacetModel
from ppl_models.data import Observed
from ppl_models.networks import Encoder, NoEncoder

__all__ = ["TableGuide"]


class TableGuide(GroupedGuide):
    """q(content) with parameters per group and q(style) with parameters per row, without
    amortisation.

    It only covers the rows that it was built for: all of them in order, or some of them if their
    numbers are given as ``row=``. For new data, :func:`inference.infer_tables` fits new tables to
    the trained model.

    :param model: an :class:`~ppl_models.mlvae.MLVAE`.
    :param group: the group of every row, ``[N]``, integers.
    :param content: see :class:`~guides.grouped.GroupedGuide`; the table is the same for all
        options.
    :raises ValueError: if ``group`` is not a vector of integers; later, if rows are given with
        different groups.

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
        self,
        model: FacetModel,
        group: ArrayLike | Tensor,
        num_samples: int = 1,
        content: str = "member",
    ) -> None:
        super().__init__(model, num_samples, GroupMean(), content)
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

    def observed(self, x: ArrayLike | Tensor, given: Mapping[str, Any]) -> Observed:
        beside = dict(given)
        row = beside.pop("row", None)
        data = super().observed(x, beside)
        rows = (
            self._all_rows(len(data))
            if row is None
            else as_rows(row, len(data), len(self.group_of_row)).cpu()
        )
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
        return NoEncoder()

    def _prepared_heads(self, prepared: Tensor, **given: Tensor) -> dict[str, Tensor]:
        row = given["row"] if "row" in given else self._all_rows(len(prepared))
        return {
            "style": self.tables["style"][row],
            "content": self.tables["content"][self.group_of_row[row]],
        }


def as_rows(values: ArrayLike | Tensor, n: int, rows: int) -> Tensor:
    """Row numbers ``[n]``, below ``rows``.

    :raises ValueError: if the length is wrong, or values are not integers or are out of range.
    """
    row = as_integers("row", values, n, "row number")
    if int(row.min()) < 0 or int(row.max()) >= rows:
        raise ValueError(
            f"row has numbers from {int(row.min())} to {int(row.max())}, but there are tables for "
            f"{rows} rows"
        )
    return row
