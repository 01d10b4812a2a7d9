"""Methods of guides, runs and estimators leave the process's state as they found it: when they
return, and when a layer, a callback or the disk fails in the middle. So do modes and gradients of
the modules that they use.

Every public name's example and every refused call are under the same check, in
``test_doctests.py`` and ``test_bad_input.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from facetvae.estimators import (
    ContentStyleTransformer,
    MultiFacetClustering,
    SemiSupervisedClassifier,
)
from facetvae.explorer import Explorer
from guides import FacetGuide, GroupedGuide, VaDEGuide
from inference import (
    Checkpoints,
    Guard,
    SVIRunner,
    WarmUp,
    cold_start,
    data_dependent_start,
    elbo,
    elbo_per_datum,
    fit_mixtures,
    fit_together,
    infer_tables,
    kl_by_dimension,
    learn_to_encode,
    mutual_information,
    standard_normal_priors,
    warm_start,
)
from inference.callbacks import StopEarly
from inference.checkpoints.periodic import CheckpointWarning
from ppl_models import MFCVAE, MLVAE, GaussianMixture, Normal, SharedMLP
from tests.drawing import Injected, failing_layers
from tests.global_state import unchanged

pytestmark = pytest.mark.filterwarnings("ignore::inference.runner.DeadFacetWarning")

X = np.random.default_rng(0).random((40, 6)).astype(np.float32)
GROUPS = np.arange(40) // 2
SIZES: dict[str, Any] = {"epochs": 2, "batch_size": 20, "progress": False}
NETWORK = SharedMLP((8,))
# A module that a call uses, and the call.
Prepared = tuple[nn.Module, Callable[[], Any]]


def guide() -> VaDEGuide:
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(4, 2)}
    return VaDEGuide(MFCVAE((6,), facets, Normal(0.3), NETWORK), label_weight=3)


def runner(**options: Any) -> SVIRunner:
    own = guide()
    return SVIRunner(own.model, own, lr=1e-3, **options)


def fit(callbacks: Any = (), **options: Any) -> Prepared:
    own = runner(**options)
    return own.guide, lambda: own.fit(X, callbacks=callbacks, **SIZES)


def loaded() -> Prepared:
    own = runner()
    loader = DataLoader(torch.from_numpy(X), batch_size=20)  # type: ignore[arg-type]
    return own.guide, lambda: own.fit(loader, 2, progress=False)


def together() -> Prepared:
    runs = [runner(seed=seed) for seed in (0, 1)]
    return runs[1].guide, lambda: fit_together(runs, X, **SIZES)


def of_guide(ask: Callable[[VaDEGuide], Any]) -> Callable[[], Prepared]:
    def prepare() -> Prepared:
        own = guide()
        return own, lambda: ask(own)

    return prepare


def of_runner(ask: Callable[[SVIRunner], Any]) -> Callable[[], Prepared]:
    def prepare() -> Prepared:
        own = runner()
        return own.guide, lambda: ask(own)

    return prepare


def of_explorer(ask: Callable[[Explorer], Any]) -> Callable[[], Prepared]:
    def prepare() -> Prepared:
        own = guide()
        explorer = Explorer(own, X, labels={"half": np.arange(40) % 2})
        return own, lambda: ask(explorer)

    return prepare


def grouped(ask: Callable[[GroupedGuide], Any]) -> Callable[[], Prepared]:
    def prepare() -> Prepared:
        own = GroupedGuide(MLVAE((6,), 2, 2, Normal(0.3), NETWORK))
        return own, lambda: ask(own)

    return prepare


def under_standard_normals(own: FacetGuide) -> None:
    with standard_normal_priors(own.model):
        own.reconstruct(X)


# What trains or prepares a network, by name: a function that prepares the call.
TRAINING: dict[str, Callable[[], Prepared]] = {
    "fit": fit,
    "fit in bf16": lambda: fit(precision="bf16"),
    "fit guarded": lambda: fit(guard=Guard("skip")),
    "fit with a schedule": lambda: fit(schedule=WarmUp(2)),
    "fit a loader": loaded,
    "fit_together": together,
    "cold_start": of_guide(lambda own: cold_start(own, X)),
    "fit_mixtures": of_guide(lambda own: fit_mixtures(own, X)),
    "data_dependent_start": of_guide(lambda own: data_dependent_start(own, X)),
    "standard_normal_priors": of_guide(under_standard_normals),
    "warm_start": of_runner(lambda own: warm_start(own, X, restarts=1, **SIZES)),
    "learn_to_encode": grouped(lambda own: learn_to_encode(own, 20, 2, progress=False)),
    "infer_tables": grouped(lambda own: infer_tables(own.model, X, GROUPS, 2, progress=False)),
}
# What asks a network.
ASKING: dict[str, Callable[[], Prepared]] = {
    "predict": of_guide(lambda own: own.predict(X)),
    "predict_proba": of_guide(lambda own: own.predict_proba(X)),
    "embed": of_guide(lambda own: own.embed(X)),
    "posterior": of_guide(lambda own: own.posterior(X)),
    "reconstruct": of_guide(lambda own: own.reconstruct(X)),
    "generate": of_guide(lambda own: own.model.generate(5)),
    "elbo": of_guide(lambda own: elbo(own.model, own, X, 3)),
    "elbo_per_datum": of_guide(lambda own: elbo_per_datum(own.model, own, X, 3)),
    "kl_by_dimension": of_guide(lambda own: kl_by_dimension(own, X)),
    "mutual_information": of_guide(lambda own: mutual_information(own, X)),
    "Explorer": of_guide(lambda own: Explorer(own, X)),
    "Explorer.swaps": of_explorer(lambda own: own.swaps("digit", 0, 1)),
    "Explorer.moved": of_explorer(lambda own: own.moved("digit", 0, {0: 0.1})),
    "Explorer.samples": of_explorer(lambda own: own.samples("digit", 0, held=1)),
}
CALLS = TRAINING | ASKING
# What draws from the caller's stream, and why.
DRAWS = {
    "elbo": "an estimate from draws, as those of Pyro's own objectives",
    "elbo_per_datum": "an estimate from draws, as those of Pyro's own objectives",
    "generate": "draws from the prior",
}


@contextmanager
def module_unchanged(module: nn.Module, modes: bool = False) -> Iterator[None]:
    """Within this context no part's hooks and no parameter's gradient flag may change.

    :param modes: whether training and evaluation modes are looked at, too.
    """

    def look() -> tuple[Any, ...]:
        parts = [vars(part) for part in module.modules()]
        hooks = [{name: len(own[name]) for name in own if name.endswith("_hooks")} for own in parts]
        return (
            hooks,
            ["train" in own for own in parts],
            [own["training"] for own in parts] if modes else [],
            {name: p.requires_grad for name, p in module.named_parameters()},
        )

    before = look()
    try:
        yield
    finally:
        assert look() == before, "a call changed hooks, gradients or modes of a module"


@pytest.mark.parametrize("name", CALLS)
def test_a_call_changes_nothing_else_also_if_a_layer_fails(name: str) -> None:
    but = ["torch's random stream"] if name in DRAWS else []
    module, call = CALLS[name]()
    with failing_layers() as calls, unchanged(but):
        call()
    assert calls[0]
    for nth in sorted({1, (calls[0] + 1) // 2, calls[0]}):
        module, call = CALLS[name]()
        module.train()
        kept = module_unchanged(module, modes=name in ASKING)
        with unchanged(but), kept, failing_layers(nth), pytest.raises(Injected):
            call()


def clustering() -> MultiFacetClustering:
    return MultiFacetClustering(
        1, n_clusters=3, n_latents=2, network=NETWORK, random_state=0, epochs=2
    )


ESTIMATORS: dict[str, tuple[Any, dict[str, Callable[[Any], Any]]]] = {
    "clustering": (
        lambda: clustering().fit(X),
        {
            "fit": lambda each: clustering().fit(X),
            "predict": lambda each: each.predict(X),
            "predict_proba": lambda each: each.predict_proba(X),
            "transform": lambda each: each.transform(X),
            "score": lambda each: each.score(X),
            "sample": lambda each: each.sample(4),
        },
    ),
    "classifier": (
        lambda: SemiSupervisedClassifier(network=NETWORK, epochs=2, random_state=0).fit(
            X, np.arange(40) % 2
        ),
        {
            "predict": lambda each: each.predict(X),
            "score": lambda each: each.score(X, np.arange(40) % 2),
        },
    ),
    "groups": (
        lambda: ContentStyleTransformer(network=NETWORK, epochs=2, random_state=0).fit(
            X, groups=GROUPS
        ),
        {
            "transform": lambda each: each.transform(X, groups=GROUPS),
            "score": lambda each: each.score(X, groups=GROUPS),
        },
    ),
}


@cache
def fitted(kind: str) -> Any:
    with unchanged():
        return ESTIMATORS[kind][0]()


@pytest.mark.parametrize(
    ("kind", "method"), [(kind, method) for kind in ESTIMATORS for method in ESTIMATORS[kind][1]]
)
def test_estimators(kind: str, method: str) -> None:
    each, ask = fitted(kind), ESTIMATORS[kind][1][method]
    with unchanged(), failing_layers() as calls:
        ask(each)
    for nth in sorted({1, (calls[0] + 1) // 2, calls[0]}):
        with unchanged(), failing_layers(nth), pytest.raises(Injected):
            ask(each)


class Faulty:
    """A callback that fails."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __call__(self, run: Any, record: Any) -> None:
        raise self.error("injected")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("checked", [False, True])
def test_a_callback_fails(error: type[BaseException], checked: bool, tmp_path: Path) -> None:
    own = runner()
    checkpoints = Checkpoints(tmp_path, 1) if checked else None
    with unchanged(), module_unchanged(own.guide), pytest.raises(error):
        own.fit(
            X, callbacks=[StopEarly("elbo", 5), Faulty(error)], checkpoints=checkpoints, **SIZES
        )
    runs = [runner(), runner(seed=1)]
    with unchanged(), module_unchanged(runs[0].guide), pytest.raises(error):
        fit_together(runs, X, callbacks=lambda run: [Faulty(error)], **SIZES)


def test_a_full_disk_while_saving_and_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = runner()
    with unchanged():
        own.fit(X, checkpoints=Checkpoints(tmp_path / "kept"), **SIZES)
        own.save(tmp_path / "run")
        SVIRunner.load(tmp_path / "run")
    again, checkpoints = runner(), Checkpoints(tmp_path / "kept", resume=True)
    with unchanged():
        again.fit(X, checkpoints=checkpoints, **SIZES)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with unchanged(), pytest.raises(OSError, match="No space"):
        own.save(tmp_path / "run")
    SVIRunner.load(tmp_path / "run")  # the earlier one, whole
    with (
        unchanged(),
        module_unchanged(own.guide),
        pytest.warns(CheckpointWarning, match="No space"),
    ):
        own.fit(X, checkpoints=Checkpoints(tmp_path / "other"), **SIZES)


def test_the_callers_modes_are_left_to_the_caller() -> None:
    for context in (torch.no_grad(), nullcontext()):
        own = guide()
        own.train()
        for training in (True, False):
            own.train(training)
            with context, unchanged(), module_unchanged(own, modes=True):
                own.predict(X)
                own.embed(X)
