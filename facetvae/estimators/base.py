"""What every estimator needs for scikit-learn: data checks, and pickles without code."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from facetvae.estimators.arrays import Reader, View, real_numbers
from facetvae.estimators.defaults import FADE, Lengths, default_batch_size, default_dims
from facetvae.estimators.encoding import Encoding, EncodingModule, representable
from facetvae.estimators.mistaken import warn_of_mistaken
from facetvae.estimators.training import bound
from facetvae.table_rules.outliers import has_all_variance
from facetvae.table_rules.rows import has_missing, in_parts, is_missing, parts
from guides import FacetGuide
from inference.export import PRECISIONS, Predictions, write_program
from inference.progress import say
from inference.randomness import seeded, usable_device
from inference.runner import SVIRunner
from inference.schedules import Schedule
from ppl_models import FacetModel, Likelihood
from ppl_models.given.checks import (
    check_count,
    check_kind,
    check_one_of,
    check_positive,
    check_size,
)
from ppl_models.given.frames import Form, is_frame
from ppl_models.networks import Architecture
from ppl_models.warn import warn

#: A random state, as scikit-learn defines it.
RandomState = int | np.random.RandomState | None

# What scikit-learn's check accepts.
ACCEPTED: dict[str, Any] = {"allow_nd": True, "ensure_all_finite": "allow-nan"}
# The files of a pickled runner's checkpoint.
FILES = {"config.json", "weights.safetensors", "history.jsonl"}
# Draws of the latents in a score.
SCORE_DRAWS = 10

Fitted = TypeVar("Fitted", bound=Callable[..., Any])


def restore_on_error(fit: Fitted) -> Fitted:
    """A fit that fails, or is stopped, leaves the estimator as it was."""

    @wraps(fit)
    def whole(self: FacetEstimator, *args: Any, **options: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *args, **options)
        except BaseException:
            self.__dict__ = before
            raise

    return cast(Fitted, whole)


@dataclass(frozen=True)
class Chosen:
    """How to fit: the settings that all estimators have.

    :ivar epochs: ``None`` to use the estimator's own number of steps.
    :ivar view: how a start sees the data.
    :ivar deep: whether networks that begin as linear maps are trained; ``None``: where that pays.
    :ivar verbose: whether to show progress.
    """

    likelihood: Likelihood
    network: Architecture
    batch_size: int
    epochs: int | None
    learning_rate: float
    seed: int
    device: str
    view: View = field(default_factory=View)
    deep: bool | None = None
    verbose: bool = False

    def lengths(self, n: int, steps: Sequence[int]) -> Lengths:
        """Epochs of each phase for ``n`` data, at least one: as many as ``steps`` take, of each
        facet without mixtures and of all with them, or ``epochs`` in the same proportions.
        """
        steps_per_epoch = -(-n // self.batch_size)
        per_epoch = steps_per_epoch if self.epochs is None else sum(steps) / self.epochs
        *alone, together = (max(1, round(each / per_epoch)) for each in steps)
        fade_steps = max(1, int(FADE * min(alone[1:], default=1) * steps_per_epoch))
        return Lengths(tuple(alone), fade_steps, together)

    def runner(
        self,
        model: Callable[[Likelihood, Architecture], FacetModel],
        guide: Callable[[Any], FacetGuide],
        schedule: Schedule | None = None,
        slower: float = 1.0,
    ) -> SVIRunner:
        """A runner, ``slower`` than the learning rate, for a model built here from the seed."""
        with seeded(self.seed, torch.device("cpu")):
            built = guide(model(copy.deepcopy(self.likelihood), self.network))
        rate = self.learning_rate / slower
        return SVIRunner(built.model, built, None, rate, schedule, self.seed, self.device)


@dataclass(kw_only=True, eq=False, repr=False)
class FacetEstimator(BaseEstimator):
    """Base of the estimators: a runner's model and guide behind scikit-learn's methods.

    After ``fit`` they have ``runner_``, whose ``model`` and ``guide`` are the library's own,
    ``settings_``, the settings that were chosen from the data, ``encoding_``, how data are
    converted for the model, and ``n_features_in_``.

    A fitted model is pickled as a checkpoint, in JSON and safetensors, and is loaded on the CPU.
    """

    _leaves_rows_out: ClassVar[bool] = False

    likelihood: Likelihood | None = None
    network: Architecture | str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float = 1e-3
    random_state: RandomState = None
    device: str = "cpu"
    verbose: bool = False

    reader_: Reader = field(init=False)
    encoding_: Encoding = field(init=False)
    runner_: SVIRunner = field(init=False)
    settings_: dict[str, Any] = field(init=False)

    def _newly_checked(self, X: Any, *y: Any) -> Any:
        """Training data, and labels if there are any, as scikit-learn's check returns them."""
        self.reader_ = self._reader(X)
        return self._checked(X, *y, ensure_min_samples=2)

    def _reader(self, X: Any) -> Reader:
        """How training data are read."""
        return Reader(form=Form.of(X) if is_frame(X) else None)

    def _checked(self, X: Any, *y: Any, **options: Any) -> Any:
        """What scikit-learn's check makes of the data; its sums of huge numbers may overflow."""
        X = self.reader_.numbers(X)
        with np.errstate(over="ignore", invalid="ignore"):
            return validate_data(self, X, *y, **ACCEPTED, **self.reader_.accepts, **options)

    def _newly_encoded(self, X: np.ndarray) -> np.ndarray:
        """Validated training data, as the model takes them."""
        X = real_numbers(X)
        if all(is_missing(X[rows]).all() for rows in parts(X.shape[0])):
            raise ValueError("X has no observed entry: all are missing (NaN)")
        if self.likelihood is not None:
            what = "a likelihood, such as Bernoulli() or Normal(0.3)"
            check_kind("likelihood", self.likelihood, Likelihood, what)
        self.encoding_ = self.reader_.encoding(X, self.likelihood)
        if X.ndim > 2 and X.dtype.kind == "f":  # the largest number of each image
            _warn_of_variance(np.fmax.reduce(np.abs(X.reshape(len(X), -1)), 1)[:, None])
        elif self.encoding_.of_real_columns and not self._leaves_rows_out:
            _warn_of_variance(X)
        if X.ndim == 2:
            warn_of_mistaken(X, self.encoding_, getattr(self, "feature_names_in_", None))
        return self.encoding_.encode(X)

    def _chosen(
        self, x: np.ndarray, dim: int, network: Architecture, view: View | None = None
    ) -> Chosen:
        """The user's settings, and for the rest those chosen from the data, seen by ``view``."""
        view = view or View()
        if self._architecture is not None:
            what = "an architecture, such as MLPLadder() or SharedMLP()"
            check_kind("network", self._architecture, Architecture, what)
        usable_device(self.device)
        likelihood = self.likelihood or self.reader_.likelihood(x, self.encoding_, dim)
        size = default_batch_size(len(x)) if self.batch_size is None else self.batch_size
        return Chosen(
            self.reader_.completed(likelihood, x, self.encoding_, view.gaps),
            self._architecture or network,
            check_count("batch_size", size),
            None if self.epochs is None else check_count("epochs", self.epochs),
            check_positive("learning_rate", self.learning_rate),
            drawn_seed(self.random_state),
            self.device,
            view,
            verbose=self.verbose,
        )

    @property
    def _architecture(self) -> Any:
        """The user's; ``None`` for the default one."""
        return self.network

    def _dims_of(self, x: np.ndarray, first: str, second: str) -> tuple[int, int]:
        """Lengths of two latents, the user's or default ones."""
        default, given = default_dims(x.shape[1:], 2), vars(self)
        a, b = (check_size(n, default if given[n] is None else given[n]) for n in (first, second))
        return a, b

    def _later_data(self, X: Any) -> np.ndarray:
        """Data for a fitted estimator, in the user's units."""
        check_is_fitted(self)
        X = real_numbers(self._checked(X, reset=False))
        if X.shape[1:] != self.encoding_.x_shape:
            raise ValueError(
                f"X has data of shape {X.shape[1:]}, but the training data had "
                f"{self.encoding_.x_shape}"
            )
        self.reader_.check_gaps(X, self.encoding_, self.runner_.model.likelihood)
        floats = self.encoding_.values == "8-bit" and X.dtype.kind == "f"
        if floats and np.fmax.reduce(X, None) <= 1:
            warn(
                "X has values up to 1, and the training data had 8 bits, values up to 255: give it "
                "in the same units"
            )
        return X

    def encode(self, X: Any) -> np.ndarray:
        """``X`` as the model and guide of ``runner_`` take it: ``[N, *shape]``, float32 or, of
        8-bit images, uint8; mixed columns as codes. ``encoding_.decode`` converts numbers back.

        :param X: ``[N, ...]``, in the form and the units of the training data.
        :raises ValueError: if ``X`` does not fit the training data.
        """
        later = self._later_data(X)  # which says so if nothing was fitted
        return self.encoding_.encode(later)

    def _state_settings(self, chosen: Chosen, **settings: Any) -> None:
        """Store the chosen settings, and print them if asked to."""
        encoding = {"values": self.encoding_.values, "missing": self.encoding_.missing}
        if self.encoding_.unskewed is not None:
            encoding["unskewed"] = str(self.encoding_.unskewed)
        parts = {"likelihood": repr(chosen.likelihood), "network": repr(chosen.network)}
        self.settings_ = encoding | self.reader_.settings() | settings | parts
        self.settings_["batch_size"] = chosen.batch_size
        if self.verbose:
            print(f"{type(self).__name__}:")
            print(*(f"  {name}: {value}" for name, value in self.settings_.items()), sep="\n")

    def _state_later(self, name: str, value: Any) -> None:
        """Store what the fit itself has shown, and print it if asked to."""
        self.settings_[name] = value
        if self.verbose:
            print(f"  {name}: {value}")

    def _say(self, phase: str) -> None:
        """What the fit does next, if that is to be shown."""
        if self.verbose:
            say(f"{type(self).__name__} {phase}")

    def _precise(self) -> Any:
        """What rows are read by: the guide in float64, where the device has it, since in float32
        a row's result would depend on the number of rows in a call.
        """
        guide = self.runner_.guide
        return guide if self.runner_.device.type == "mps" else copy.deepcopy(guide).double()

    def _export(
        self,
        path: str | Path,
        dtype: torch.dtype,
        clusters: Mapping[str, ArrayLike] | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the fitted guide, from the user's units on, as a program."""
        check_is_fitted(self)
        guide = copy.deepcopy(self.runner_.guide).cpu().to(check_one_of("dtype", dtype, PRECISIONS))
        module = Predictions(guide, clusters, EncodingModule(self.encoding_))
        kind = torch.uint8 if self.encoding_.values == "8-bit" else dtype
        x = torch.zeros(2, *self.encoding_.x_shape, dtype=kind)
        write_program(module, path, x, about=about)

    def score(self, X: Any, y: Any = None) -> float:
        """The ELBO of ``X``, in nats per datum, in the user's units: a lower bound on the mean
        log-density, from ten draws of the latents, the same at each call.

        :param y: not used.
        :raises ValueError: if ``X`` does not fit the training data.
        """
        return self._bound(self._later_data(X))

    def _bound(self, X: np.ndarray, **given: Any) -> float:
        guide = self.runner_.guide
        value = bound(guide, self.encoding_.encode(X), SCORE_DRAWS, **given)
        if not isfinite(value):
            raise ValueError(
                f"the ELBO of X is {value} in single precision: X lies too far from the data that "
                f"{type(self).__name__} was fitted to"
            )
        if guide.model.likelihood.discrete:
            return value
        return value - float(self.encoding_.log_volume(X).mean())

    def impute(self, X: Any) -> Any:
        """``X`` with each missing entry filled by its mean given the others, or the most probable
        category, in the user's units; of a data frame one of the same kind and the dtypes of the
        training data. Of a column whose skewness was removed (``settings_["unskewed"]``) the mean
        is that of the transformed values, whose place in the user's units is nearer to the median.

        :param X: ``[N, ...]``, NaN where missing.
        :raises ValueError: if ``X`` does not fit the training data.
        """
        return self.reader_.returned(self._filled(self._later_data(X)), X)

    def _filled(self, X: np.ndarray, **given: Any) -> np.ndarray:
        if not has_missing(X):
            return X.copy()
        guide = self._precise()

        def filled(X: np.ndarray) -> np.ndarray:
            means = self.encoding_.decode(guide.reconstruct(self.encoding_.encode(X), **given))
            return np.where(is_missing(X), representable(means, X.dtype), X)

        return filled(X) if given else in_parts(filled, X)

    def _features(self, X: np.ndarray, facets: Sequence[str], **given: Any) -> np.ndarray:
        """Means of these facets' latents, side by side, in the data's precision."""
        guide = self._precise()

        def means(X: np.ndarray) -> np.ndarray:
            z = guide.embed(self.encoding_.encode(X), **given)
            precision = np.result_type(X.dtype, np.float32) if X.dtype.kind == "f" else np.float32
            return np.concatenate([z[name] for name in facets], 1).astype(precision)

        return means(X) if given else in_parts(means, X)

    def _feature_names(self, facets: Sequence[str]) -> np.ndarray:
        priors = self.runner_.model.priors
        names = [f"{name}_{i}" for name in facets for i in range(priors[name].dim)]
        return np.array(names, dtype=object)

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
            with _temporary_folder("pickle") as folder:
                state["runner_"].save(folder)
                state["runner_"] = {name: (folder / name).read_bytes() for name in sorted(FILES)}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "runner_" in state:
            state = state | {"runner_": _read(state["runner_"])}
        super().__setstate__(state)


def _warn_of_variance(X: np.ndarray) -> None:
    """Warn of rows ``[N, D]`` beside whose numbers all others' are nearly equal."""
    if len(rows := np.flatnonzero(has_all_variance(X))):
        warn(
            f"rows {rows.tolist()} of X have nearly all of a column's variance, beside which all "
            "others are nearly equal: drop them, or mark these entries as missing (NaN)"
        )


def _read(files: Any) -> SVIRunner:
    """The runner of a checkpoint."""
    whole = isinstance(files, dict) and files.keys() == FILES
    if not whole or not all(isinstance(content, bytes) for content in files.values()):
        raise ValueError(f"a pickled runner_ holds the bytes of {sorted(FILES)} and nothing else")
    # Building the networks draws random numbers.
    with _temporary_folder("unpickle") as folder, seeded(0, torch.device("cpu")):
        for name in FILES:
            (folder / name).write_bytes(files[name])
        return SVIRunner.load(folder)


@contextmanager
def _temporary_folder(purpose: str) -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot {purpose} a fitted estimator, because its checkpoint passes through the "
            f"temporary folder ({error.strerror}): make space there, or set TMPDIR to another",
        ) from error


def drawn_seed(random_state: RandomState) -> int:
    """A seed; with ``None``, from NumPy's global stream, as in scikit-learn."""
    if isinstance(random_state, np.random.Generator):
        raise ValueError("random_state is a Generator: give an integer or a RandomState")
    return int(check_random_state(random_state).randint(2**31 - 1))
