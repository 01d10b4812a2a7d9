"""Threads of one process that train, predict and build models at the same time."""

from __future__ import annotations

import _thread
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from joblib import Parallel, delayed, parallel_backend
from sklearn.base import BaseEstimator
from sklearn.model_selection import GridSearchCV

from facetvae.estimators import MultiFacetClustering, SemiSupervisedClassifier
from guides import VaDEGuide
from inference import SVIRunner, elbo
from ppl_models import MFCVAE, GaussianMixture, MLPLadder
from ppl_models.modes import network_precision, run_network
from ppl_models.turns import exclusive, yield_lock
from tests.global_state import unchanged

X = torch.rand(60, 6, generator=torch.Generator().manual_seed(0))


def start(seed: int = 0) -> SVIRunner:
    pyro.set_rng_seed(seed)
    facets = {"shape": GaussianMixture(3, 2), "color": GaussianMixture(2, 2)}
    model = MFCVAE((6,), facets, network=MLPLadder((8, 8)))
    return SVIRunner(model, VaDEGuide(model), seed=seed)


def train(runner: SVIRunner, epochs: int = 2, **options: Any) -> None:
    runner.fit(X, epochs, batch_size=15, progress=False, **options)


def results(runner: SVIRunner) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    records = [{k: v for k, v in each.items() if k != "seconds"} for each in runner.history]
    return records, {n: t.numpy().tobytes() for n, t in runner.guide.state_dict().items()}


def in_threads(*functions: Callable[[], Any]) -> list[BaseException]:
    """Run all at the same time; returns what they raised."""
    raised: list[BaseException] = []

    def guarded(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread waits for ever"
    return raised


def small_clustering(seed: int) -> MultiFacetClustering:
    return MultiFacetClustering(2, n_clusters=2, epochs=1, random_state=seed)


def small_classifier(seed: int) -> SemiSupervisedClassifier:
    return SemiSupervisedClassifier(epochs=1, random_state=seed)


def test_four_fits_at_the_same_time_end_as_each_does_alone() -> None:
    """Three times, bit for bit, and the caller's state is as it was."""
    alone = [start(seed) for seed in range(4)]
    for runner in alone:
        train(runner)
    for _ in range(3):
        runners = [start(seed) for seed in range(4)]
        with unchanged():
            assert not in_threads(*(lambda r=r: train(r) for r in runners))
        assert [results(r) for r in runners] == [results(r) for r in alone]


def test_predictions_do_not_wait_until_a_fit_ends_and_do_not_change_it() -> None:
    alone, runner = start(), start()
    train(alone, epochs=6)
    expected, fitted = start(1).guide.predict_proba(X), start(1)
    served, reached = [], threading.Event()

    def serve() -> None:
        reached.wait()
        for _ in range(3):  # of another model, of a bound, and of the one that is being trained
            served.append((fitted.guide.predict_proba(X), runner.epoch))
            elbo(fitted.model, fitted.guide, X)
            runner.guide.predict(X)

    def train_slowly() -> None:
        train(runner, epochs=6, callbacks=[lambda run, record: reached.set()])

    with unchanged():
        assert not in_threads(train_slowly, serve)
    assert results(runner) == results(alone)
    for answer, epoch in served:
        assert epoch < 6, "a prediction waited until the fit had ended"
        assert all((answer[name] == expected[name]).all() for name in expected)


@pytest.mark.thorough
@pytest.mark.parametrize("build", [small_clustering, small_classifier])
def test_estimators_are_fitted_by_jobs_in_threads(build: Callable[[int], BaseEstimator]) -> None:
    table = np.random.default_rng(0).normal(size=(60, 4))
    labels = np.arange(60) % 2

    def predicted(seed: int) -> bytes:
        return build(seed).fit(table, labels).predict(table).tobytes()

    alone = [predicted(seed) for seed in range(3)]
    with unchanged():
        jobs = Parallel(3, backend="threading")
        assert jobs(delayed(predicted)(seed) for seed in range(3)) == alone


@pytest.mark.thorough
@pytest.mark.parametrize("build", [small_clustering, small_classifier])
def test_a_grid_search_in_threads_finds_what_it_finds_alone(
    build: Callable[[int], BaseEstimator],
) -> None:
    table = np.random.default_rng(0).normal(size=(60, 4))
    labels, choices = np.arange(60) % 2, {"learning_rate": [1e-3, 1e-2]}
    alone = GridSearchCV(build(0), choices, cv=2).fit(table, labels)
    with parallel_backend("threading"):
        search = GridSearchCV(build(0), choices, cv=2, n_jobs=2).fit(table, labels)
    assert (search.cv_results_["mean_test_score"] == alone.cv_results_["mean_test_score"]).all()


def test_models_that_are_built_meanwhile_do_not_disturb_a_fit() -> None:
    alone, runner = start(), start()
    train(alone)
    done = threading.Event()

    def build() -> None:
        while not done.is_set():
            VaDEGuide(MFCVAE((6,), {"shape": GaussianMixture(3, 2)}, network=MLPLadder((8,))))

    def fit() -> None:
        train(runner)
        done.set()

    assert not in_threads(fit, build)
    assert results(runner) == results(alone)


def test_a_fit_that_fails_lets_the_others_go_on() -> None:
    def fail(run: Any, record: Any) -> None:
        raise RuntimeError("on purpose")

    alone, runner, failing = start(), start(), start(1)
    train(alone)
    with unchanged():
        raised = in_threads(lambda: train(runner), lambda: train(failing, callbacks=[fail]))
    assert [str(error) for error in raised] == ["on purpose"]
    assert results(runner) == results(alone)
    train(failing)  # and it can be trained again


def test_a_run_that_is_being_trained_is_refused() -> None:
    runner = start()
    with pytest.raises(ValueError, match="is being trained already"):
        train(runner, callbacks=[lambda run, record: train(runner)])
    train(runner)


def test_a_turn_is_given_only_to_those_who_wait() -> None:
    """And the state within a turn is hidden from them."""
    seen = []

    def other() -> None:
        with exclusive():
            seen.append(pyro.poutine.util.is_validation_enabled())

    with exclusive(), pyro.validation_enabled(False):
        yield_lock()
        waits = threading.Thread(target=other)
        waits.start()
        while not seen:
            yield_lock()
        assert not pyro.poutine.util.is_validation_enabled()
    waits.join()
    assert seen == [True]


def test_an_interrupt_while_others_have_their_turn_leaves_the_turns_in_order() -> None:
    def other() -> None:
        with exclusive():
            _thread.interrupt_main()
            time.sleep(0.2)

    @exclusive()
    @exclusive()
    def interrupted() -> None:
        waits.start()
        while waits.is_alive():
            yield_lock()

    waits, done = threading.Thread(target=other), []
    kept = signal.signal(signal.SIGINT, signal.default_int_handler)  # workers of tests ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGINT, kept)
    waits.join()
    for _ in range(2):
        with exclusive():
            pass
    last = threading.Thread(target=exclusive()(lambda: done.append(1)))
    last.start()
    last.join(10)
    assert done


def _fit_in_a_child(results: Any) -> None:
    train(start(), epochs=1)
    results.put("done")


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork"
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_forked_during_another_threads_turn_can_train() -> None:
    inside, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with exclusive():
            inside.set()
            forked.wait(60)

    holds = threading.Thread(target=hold)
    holds.start()
    inside.wait()
    context = multiprocessing.get_context("fork")
    answer = context.Queue()
    child = context.Process(target=_fit_in_a_child, args=(answer,))
    child.start()
    assert answer.get(timeout=30) == "done"
    forked.set()
    child.join(30)
    holds.join(30)


def test_the_callers_autocast_and_no_grad_change_nothing() -> None:
    alone, cast, without = start(), start(), start()
    train(alone)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(cast)
    with torch.no_grad():
        train(without)
    assert results(cast) == results(alone) == results(without)


def test_networks_in_bfloat16_read_their_weights_in_every_step() -> None:
    """Within autocast torch would keep the weights that it has converted."""
    layer, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
    with torch.autocast("cpu", enabled=False), network_precision(torch.bfloat16):
        run_network(layer, x.device, x)
        with torch.no_grad():
            layer.weight.zero_()
        again = run_network(layer, x.device, x)
    assert torch.equal(again[0], layer.bias.bfloat16().float())


def test_inference_mode_is_refused() -> None:
    runner = start()
    with torch.inference_mode():
        with pytest.raises(ValueError, match=r"call it outside"):
            train(runner)
        with pytest.raises(ValueError, match=r"build the model outside"):
            start()
    train(runner)
