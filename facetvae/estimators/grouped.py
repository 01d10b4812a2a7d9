"""Features of what the members of a group share, and of what is each member's own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from facetvae.estimators.base import FacetEstimator, restore_on_error
from facetvae.estimators.defaults import STEPS, default_plain_network, epochs_of
from facetvae.estimators.training import check_trained
from guides import GroupedGuide
from inference.training.batching import Groups
from ppl_models import MLVAE
from ppl_models.given.frames import given, is_frame, native_columns
from ppl_models.given.labels import as_groups
from ppl_models.turns import exclusive
from ppl_models.warn import warn

# In the order of the features.
PARTS = ("content", "style")


@dataclass(kw_only=True, eq=False, repr=False)
class ContentStyleTransformer(TransformerMixin, FacetEstimator):
    """Features in two parts: the content of each datum's group, and the datum's own style (ML-VAE,
    :class:`~ppl_models.mlvae.MLVAE`).

    ``groups`` are given with the data, an integer or a string for each datum. In training they say
    which data share their content; in ``transform`` all members of a group contribute to its
    content. Without them each datum is a group by itself, of which ``fit`` warns. To pass them
    through a pipeline or a search, enable scikit-learn's metadata routing and request them:
    ``set_fit_request(groups=True)``, ``set_transform_request(groups=True)``.

    Settings that are not given are chosen from the data as in
    :class:`~facetvae.estimators.MultiFacetClustering`, and stored in ``settings_``.

    :param content_dim: length of the content.
    :param style_dim: length of the style.
    :param likelihood: such as ``ppl_models.Normal(0.3)``; the data are then used unchanged, except
        that 8-bit values are divided by 255.
    :param network: such as ``ppl_models.MLP((200,))``.
    :param epochs: passes over the data; by default about 4,000 optimizer steps.
    :param batch_size: by default about a twentieth of the data, between 16 and 512.
    :param learning_rate: Adam's learning rate.
    :param random_state: for networks, draws and shuffling.
    :param device: where to train, such as ``"cuda"``.
    :param verbose: whether to print the chosen settings, and show progress with the time left.

    Example:
        >>> import numpy as np
        >>> from facetvae.estimators import ContentStyleTransformer
        >>> X, groups = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) // 3
        >>> parts = ContentStyleTransformer(content_dim=2, style_dim=1, epochs=2, random_state=0)
        >>> parts.fit_transform(X, groups=groups).shape
        (60, 3)
    """

    content_dim: int | None = None
    style_dim: int | None = None

    @exclusive()
    @restore_on_error
    def fit(self, X: Any, y: Any = None, *, groups: Any = None) -> ContentStyleTransformer:
        """Learn what members of a group share.

        :param X: ``[N, D]``, or images; NaN where missing.
        :param y: not used.
        :param groups: the group of each datum, integers or strings ``[N]``.
        :raises ValueError: before training, if an argument does not fit.
        :raises FloatingPointError: if training diverges.
        """
        x = self._newly_encoded(self._newly_checked(X))
        content_dim, style_dim = self._dims_of(x, "content_dim", "style_dim")
        chosen = self._chosen(x, content_dim + style_dim, default_plain_network(x.shape[1:]))
        group = _groups(groups, len(x))
        sizes = group.bincount()
        if len(sizes) == len(x) > 1:
            warn(
                "no two rows share a group, so that content and style cannot be told apart: give "
                "fit(..., groups=), and request groups where a pipeline or a search calls fit"
            )
        at_once = Groups().per_batch(sizes, chosen.batch_size)
        epochs = chosen.epochs or epochs_of(STEPS, len(sizes), at_once)
        runner = chosen.runner(partial(MLVAE, x.shape[1:], content_dim, style_dim), GroupedGuide)
        self._state_settings(chosen, content_dim=content_dim, style_dim=style_dim, epochs=epochs)
        runner.fit(x, epochs, chosen.batch_size, epochs, progress=self.verbose, group=group)
        check_trained(runner.guide, x, self.learning_rate, group=group)
        self.runner_ = runner
        return self

    def fit_transform(self, X: Any, y: Any = None, *, groups: Any = None) -> np.ndarray:
        """:meth:`fit`, then :meth:`transform` of the same data and groups."""
        return self.fit(X, y, groups=groups).transform(X, groups=groups)

    def transform(self, X: Any, *, groups: Any = None) -> np.ndarray:
        """Means of content and style, side by side: ``[N, content_dim + style_dim]``.

        :param groups: the group of each datum, any integers or strings ``[N]``, also unseen ones.
        """
        X = self._later_data(X)
        return self._features(X, PARTS, group=_groups(groups, len(X)))

    def score(self, X: Any, y: Any = None, *, groups: Any = None) -> float:
        """The ELBO of ``X``, in nats per datum; see ``MultiFacetClustering.score``."""
        X = self._later_data(X)
        return self._bound(X, group=_groups(groups, len(X)))

    def impute(self, X: Any, *, groups: Any = None) -> Any:
        """``X`` ``[N, ...]`` with each missing entry (NaN) replaced by its mean given the observed
        entries of its group, in the user's units; see ``MultiFacetClustering.impute``.
        """
        x = self._later_data(X)
        return self.reader_.returned(self._filled(x, group=_groups(groups, len(x))), X)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the columns of :meth:`transform`, whatever ``input_features`` are."""
        check_is_fitted(self)
        return self._feature_names(PARTS)


def _groups(groups: Any, n: int) -> Tensor:
    """Numbers of groups ``[n]``, which are given as integers or strings; by default, one a row."""
    if groups is None:
        return torch.arange(n)
    if is_frame(groups) and groups.shape[1] == 1:
        groups = given("groups", native_columns(groups)[0][1]).values
    names = [] if isinstance(groups, Tensor) else list(groups)
    if any(name is None or isinstance(name, str) for name in names):
        if unnamed := [row for row, name in enumerate(names) if not isinstance(name, str)]:
            raise ValueError(
                "groups must be integers or strings, all of one kind and one a row; row "
                f"{unnamed[0]} has {names[unnamed[0]]!r}: convert it, or leave the row out"
            )
        groups = np.unique(names, return_inverse=True)[1]
    elif names and np.ndim(groups) == 1 and (gaps := given("groups", groups).gaps).any():
        raise ValueError(
            f"groups has no value in row {int(gaps.argmax())}: give each row a group, or leave "
            "rows without one out"
        )
    return as_groups("groups", groups, n)
