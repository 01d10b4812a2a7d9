"""Multi-Level Variational Autoencoder (Bouchacourt, Tomioka and Nowozin, AAAI 2018)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import pyro
from pyro import poutine
from torch import Tensor

from ppl_models.base import FacetModel, Input
from ppl_models.given.checks import check_one_of, check_size
from ppl_models.given.labels import as_groups, group_sizes
from ppl_models.likelihood_base import Likelihood
from ppl_models.networks import Architecture
from ppl_models.priors.plain import StandardNormal

#: What gets its own draw of the content; see :class:`~guides.GroupedGuide`.
CONTENT_DRAWS = ("member", "group", "untied")


class MLVAE(FacetModel):
    r"""Grouped observations: members of a group share a content, each has its own style.

    The generative process (3.2; Fig. 3b):

    * for each group G, a content :math:`C_G \sim \mathrm{Normal}(0, I)`;
    * for each observation i in it, a style :math:`S_i \sim \mathrm{Normal}(0, I)`,
    * and :math:`X_i \mid C_G, S_i \sim p(x \mid f(C_G, S_i))`.

    Groups are given as arbitrary integers, one per sample. The objective is the mean over groups of
    Eq. 3, divided by the mean group size, so that it is in nats per datum.

    :param x_shape: shape of one sample.
    :param content_dim: length of the content.
    :param style_dim: length of the style.
    :raises ValueError: if a size is below 1.

    Example:
        >>> import torch
        >>> from ppl_models import MLVAE
        >>> model = MLVAE((784,), content_dim=4, style_dim=2)
        >>> content, styles = torch.zeros(1, 4), torch.randn(5, 2)
        >>> model.decode({"content": content, "style": styles}).mean.shape
        torch.Size([5, 784])
    """

    inputs: ClassVar[Mapping[str, Input]] = {"group": Input()}
    suitable_guide = "GroupedGuide"
    shared = ("content",)

    def __init__(
        self,
        x_shape: Sequence[int],
        content_dim: int,
        style_dim: int,
        likelihood: Likelihood | None = None,
        network: Architecture | None = None,
    ) -> None:
        for name, value in (("content_dim", content_dim), ("style_dim", style_dim)):
            check_size(name, value)
        facets = {"style": StandardNormal(style_dim), "content": StandardNormal(content_dim)}
        super().__init__(x_shape, facets, likelihood, network)

    def forward(
        self,
        x: Tensor | None = None,
        *,
        group: Tensor,
        num_samples: int = 1,
        content: str = "group",
        **beside: Any,
    ) -> Tensor:
        """The program. Sites: ``z_content``, ``z_style`` ``[B, d]``, ``x`` ``[B, *x_shape]``.

        :param x: observed batch ``[B, *x_shape]``; without it, one is drawn for each row.
        :param group: the group of each row, numbered from 0, ``[B]``.
        :param num_samples: L; above 1, latents and x gain a leading axis of draws, weighted 1 / L.
        :param content: what gets its own draw of the content. ``"group"``: one draw for all
            members; ``z_content`` is then per group, in B slots of which the first are used.
            ``"member"``: each member has its own draw, weighted by one over the group's size
            (Algorithm 1, step 9), with the same expectation. ``"untied"``: each member is its own
            group.
        :param beside: keywords for the guide, which the model ignores.
        """
        with self.draws(num_samples):
            with self.contents(group, content):
                c = pyro.sample("z_content", self.priors["content"].latent())  # C_G ~ Normal(0, I)
            if content == "group":
                c = c[..., group, :]
            with self.plate(x, len(group)):
                s = pyro.sample("z_style", self.priors["style"].latent())  # S_i ~ Normal(0, I)
                # X_i | C_G, S_i
                return pyro.sample("x", self.decode({"content": c, "style": s}), obs=x)

    @contextmanager
    def contents(self, group: Tensor, content: str) -> Iterator[None]:
        """The plate of the contents: B slots, weighted according to ``content``."""
        sizes = group_sizes(group, self.gates.dtype)
        counted = {
            "group": lambda: poutine.mask(mask=sizes > 0),
            "member": lambda: poutine.scale(scale=1 / sizes[group]),
            "untied": nullcontext,
        }
        with (
            pyro.plate("contents", len(group), dim=-1),
            counted[check_one_of("content", content, CONTENT_DRAWS)](),
        ):
            yield

    def check_given(self, name: str, values: Any, n: int) -> Tensor:
        return as_groups(name, values, n)
