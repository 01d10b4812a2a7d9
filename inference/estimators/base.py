"""What scikit-learn's conventions ask of every estimator here: checked data, fitted models that
pickle without code.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from guides import FacetGuide
from inference.estimators.data import (
    Encoding,
    completed,
    default_likelihood,
    encoding_of,
    is_missing,
)
from inference.estimators.defaults import Lengths, default_batch_size, lengths
from inference.evaluation.bounds import elbo
from inference.randomness import seeded, usable_device
from inference.runner import SVIRunner
from inference.schedules import Schedule
from ppl_models import FacetModel, Likelihood
from ppl_models.checks import check_count, check_kind, check_positive
from ppl_models.networks import Architecture

__all__ = ["Chosen", "FacetEstimator", "RandomState", "drawn_seed"]

#: What scikit-learn calls a random state.
RandomState = int | np.random.RandomState | None

# What scikit-learn's check of data lets through.
ACCEPTED: dict[str, Any] = {"allow_nd": True, "ensure_all_finite": "allow-nan"}
# Draws of the latents in a score.
SCORE_DRAWS = 10


@dataclass(frozen=True)
class Chosen:
    """How to fit: what every estimator lets a user choose.

    :ivar epochs: ``None`` where the estimator's own number of steps says it.
    """

    likelihood: Likelihood
    network: Architecture
    batch_size: int
    epochs: int | None
    learning_rate: float
    seed: int
    device: str

    def settings(self) -> dict[str, Any]:
        """To be read."""
        return {
            "likelihood": repr(self.likelihood),
            "network": repr(self.network),
            "batch_size": self.batch_size,
        }

    def lengths(self, n: int, steps: Sequence[int]) -> Lengths:
        """Of each phase, for ``n`` data; see :func:`~inference.estimators.defaults.lengths`."""
        return lengths(steps, -(-n // self.batch_size), self.epochs)

    def runner(
        self,
        model: Callable[[Likelihood, Architecture], FacetModel],
        guide: Callable[[Any], FacetGuide],
        schedule: Schedule | None = None,
    ) -> SVIRunner:
        """For a model that is built here, so that its networks follow the seed. The user's
        likelihood is copied.
        """
        with seeded(self.seed, torch.device("cpu")):
            built = guide(model(copy.deepcopy(self.likelihood), self.network))
        return SVIRunner(
            built.model, built, None, self.learning_rate, schedule, self.seed, self.device
        )


class FacetEstimator(BaseEstimator):
    """Base of the estimators: a runner's model and guide behind scikit-learn's methods.

    After ``fit`` they have ``runner_``, whose ``model`` and ``guide`` are the library's own,
    ``settings_``, which says what was chosen from the data, ``encoding_``, how data come to the
    model, and ``n_features_in_``.

    They pickle (and so go through joblib) without tensors on a device: a fitted model is written as
    a checkpoint is, in JSON and safetensors, and comes back on the CPU.
    """

    likelihood: Likelihood | None
    network: Architecture | None
    epochs: int | None
    batch_size: int | None
    learning_rate: float
    random_state: RandomState
    device: str
    verbose: bool
    encoding_: Encoding
    runner_: SVIRunner
    settings_: dict[str, Any]

    def _new_data(self, X: Any) -> np.ndarray:
        """Training data as the model takes them.

        :raises ValueError: if they are no array of numbers ``[N, ...]``, or fewer than two.
        """
        return self._newly_encoded(validate_data(self, X, **ACCEPTED, ensure_min_samples=2))

    def _newly_encoded(self, X: np.ndarray) -> np.ndarray:
        """Training data that were looked at, as the model takes them.

        :raises ValueError: if the likelihood is none.
        """
        if self.likelihood is not None:
            check_kind(
                "likelihood",
                self.likelihood,
                Likelihood,
                "a likelihood, such as Bernoulli() or Normal(0.3)",
            )
        self.encoding_ = encoding_of(X, self.likelihood)
        return self.encoding_.encode(X)

    def _chosen(self, x: np.ndarray, dim: int, network: Architecture) -> Chosen:
        """What the user asked for, and for the rest what the data ask for.

        :param dim: length of all latents together.
        :param network: where none was asked for.
        :raises ValueError: if a number is out of range, a part of a wrong kind, or the device not
            there.
        """
        likelihood = self.likelihood
        if self.network is not None:
            check_kind(
                "network",
                self.network,
                Architecture,
                "an architecture, such as MLPLadder() or SharedMLP()",
            )
        usable_device(self.device)
        if likelihood is None:
            likelihood = default_likelihood(self.encoding_.values, x, dim)
        return Chosen(
            completed(likelihood, x),
            network if self.network is None else self.network,
            default_batch_size(len(x))
            if self.batch_size is None
            else check_count("batch_size", self.batch_size),
            None if self.epochs is None else check_count("epochs", self.epochs),
            check_positive("learning_rate", self.learning_rate),
            drawn_seed(self.random_state),
            self.device,
        )

    def _seen_data(self, X: Any) -> np.ndarray:
        """Data of a fitted estimator, in the user's units.

        :raises ValueError: if they are of another shape than those that it was fitted to.
        """
        check_is_fitted(self)
        X = validate_data(self, X, **ACCEPTED, reset=False)
        if X.shape[1:] != self.encoding_.x_shape:
            raise ValueError(
                f"X has data of shape {X.shape[1:]}, but those fitted to had "
                f"{self.encoding_.x_shape}"
            )
        if not self.runner_.model.likelihood.takes_missing and is_missing(X).any():
            raise ValueError(
                f"X has missing entries (NaN), but the data that {type(self).__name__} was fitted "
                "to had none: fit it "
                "to some that have, or give a likelihood=Incomplete(...)"
            )
        return X

    def _encoded(self, X: Any) -> np.ndarray:
        X = self._seen_data(X)
        return self.encoding_.encode(X)

    def _state_settings(self, chosen: Chosen, **settings: Any) -> None:
        """Note what was chosen, and say so where that is asked for."""
        encoding = {"values": self.encoding_.values, "missing": self.encoding_.missing}
        self.settings_ = encoding | settings | chosen.settings()
        if self.verbose:
            print(
                f"{type(self).__name__}:",
                *(f"  {name}: {value}" for name, value in self.settings_.items()),
                sep="\n",
            )

    def _precise(self) -> FacetGuide:
        """The guide in float64, so that what is said of a datum does not depend on which others are
        asked for with it.

        In float32 sums round differently with the number of rows. (Where a device has no float64:
        as it is.)
        """
        guide = self.runner_.guide
        return guide if self.runner_.device.type == "mps" else copy.deepcopy(guide).double()

    def score(self, X: Any, y: Any = None) -> float:
        """The ELBO of ``X``, in nats per datum of the user's units: a lower bound on the mean
        log-density.

        It is estimated from ten draws of the latents, the same ones at each call.

        :param y: not used.
        """
        return self._bound(self._seen_data(X))

    def _bound(self, X: np.ndarray, **given: Any) -> float:
        model = self.runner_.model
        with seeded(0, self.runner_.device):
            bound, _ = elbo(
                model, self.runner_.guide, self.encoding_.encode(X), SCORE_DRAWS, **given
            )
        return (
            bound
            if model.likelihood.discrete
            else bound - float(self.encoding_.log_volume(X).mean())
        )

    def impute(self, X: Any) -> np.ndarray:
        """``X`` with each missing entry filled by its mean given the others, in the user's units.

        :param X: ``[N, ...]``, NaN where missing.
        """
        return self._filled(self._seen_data(X))

    def _filled(self, X: np.ndarray, **given: Any) -> np.ndarray:
        missing = is_missing(X)
        if not missing.any():
            return X
        means = self.encoding_.decode(
            self._precise().reconstruct(self.encoding_.encode(X), **given)
        )
        return np.where(missing, means, X).astype(X.dtype)

    def _features(self, X: np.ndarray, facets: Sequence[str], **given: Any) -> np.ndarray:
        """Means of these facets' latents, side by side, of the data's own precision."""
        z = self._precise().embed(self.encoding_.encode(X), **given)
        return np.concatenate([z[name] for name in facets], 1).astype(
            X.dtype if X.dtype.kind == "f" else np.float32
        )

    def _feature_names(self, facets: Sequence[str]) -> np.ndarray:
        dims = {name: self.runner_.model.priors[name].dim for name in facets}
        return np.array(
            [f"{name}{i}" for name, dim in dims.items() for i in range(dim)], dtype=object
        )

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "runner_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "runner_" in state:
            with tempfile.TemporaryDirectory() as folder:
                state["runner_"].save(folder)
                state["runner_"] = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "runner_" in state:
            with (
                tempfile.TemporaryDirectory() as folder,
                seeded(0, torch.device("cpu")),
            ):  # networks are drawn first
                for name, content in state["runner_"].items():
                    (Path(folder) / name).write_bytes(content)
                state = state | {"runner_": SVIRunner.load(folder)}
        super().__setstate__(state)


def drawn_seed(random_state: RandomState) -> int:
    """A seed; with ``None`` from NumPy's global stream, as scikit-learn has it.

    :raises ValueError: if that is no random state.
    """
    return int(check_random_state(random_state).randint(2**31 - 1))
