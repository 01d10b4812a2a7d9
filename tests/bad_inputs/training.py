"""Schedules, objectives, and runs: the runner, its feeds, its starts and its callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from pyro.optim import Adam, ExponentialLR
from torch.utils.data import DataLoader, TensorDataset

from guides import FacetGuide, FlowGuide, VaDEGuide
from inference import (
    Constant,
    CoolDown,
    Groups,
    Guard,
    GuideEnum_ELBO,
    ImportanceWeighted_ELBO,
    Loss,
    MeanField_ELBO,
    MeanFieldEnum_ELBO,
    NeighborGraph,
    ProgressiveFadeIn,
    Rows,
    ScoreFunction_ELBO,
    SVIRunner,
    WarmUp,
    cluster_posterior,
    cold_start,
    data_dependent_start,
    elbo,
    elbo_per_datum,
    fit_mixtures,
    fit_neighbors,
    fit_together,
    image_graph,
    image_variants,
    infer_tables,
    kl_by_dimension,
    learn_to_encode,
    mutual_information,
    neighbor_clusters,
    plain_programs,
    random_affine,
    standard_normal_priors,
    warm_start,
)
from inference.callbacks import Draw, Evaluate, JSONLines, ReduceOnPlateau, StopEarly
from ppl_models import MFCVAE, FacetModel, GaussianMixture, GMMFlow, SharedMLP
from tests.bad_inputs.models import neighborly
from tests.bad_inputs.shared import (
    COUNT,
    DATA,
    INF,
    LABEL,
    NAN,
    TENSOR,
    X,
    at,
    facet,
    fit,
    guide,
    holed,
    ivae,
    mlvae,
    one_facet,
    runner,
    tables,
    vae,
)

SCHEDULES = {
    "Constant": [
        ("nan: weight", lambda: Constant(NAN), "weight must be a number of at least 0, got nan"),
        ("type: weight", lambda: Constant({"z_digit": "2"}), "weight must be a number of at least"),
        ("unknown: site", lambda: fit(schedule=Constant({"z_hue": 2})), "there is no site 'z_hue'"),
    ],
    "WarmUp": [
        ("range: steps", lambda: WarmUp(0), f"steps {COUNT}, got 0"),
        ("misfit: run", lambda: fit(schedule=WarmUp(9)), "warm-up would end at step 9, but the"),
    ],
    "CoolDown": [
        ("range: start", lambda: CoolDown(0.5, 3), "start must be a number of at least 1, got 0.5"),
        ("huge: start", lambda: CoolDown(INF, 3), "start must be a number of at least 1, got inf"),
        ("misfit: run", lambda: fit(schedule=CoolDown(2, 9)), "cooling would end at step 9, but"),
    ],
    "ProgressiveFadeIn": [
        ("range: phase", lambda: ProgressiveFadeIn((0, 5)), f"each of epochs {COUNT}, got 0"),
        ("type: epochs", lambda: ProgressiveFadeIn(201), "epochs must be a sequence of integers"),
        ("range: fade", lambda: ProgressiveFadeIn((5, 5), 0), f"fade_steps {COUNT}, got 0"),
        ("range: waiting", lambda: ProgressiveFadeIn((5,), 9, 2), r"within \[0, 1\], got 2"),
        (
            "misfit: phase",
            lambda: fit(schedule=ProgressiveFadeIn((2, 2), 1000)),
            "a facet's fade-in would end at step 1000, but its phase has 4 steps",
        ),
        ("misfit: run", lambda: fit(schedule=ProgressiveFadeIn((2, 3), 5)), "the last phase would"),
        (
            "shape: phases",
            lambda: fit(schedule=ProgressiveFadeIn((4,), 2)),
            "has 1 phases, but the model has 2 facets",
        ),
    ],
}


def scored_by(kind: Callable[..., Any]) -> Any:
    return lambda: Loss(guide().model, guide(), kind(max_plate_nesting=1))


OBJECTIVES = {
    "Loss": [
        ("type: model", lambda: Loss(guide(), guide()), "model must be a model, .* got VaDEGuide"),
        ("type: guide", lambda: Loss(guide().model, VaDEGuide), "guide must be a guide, .* got"),
        ("misfit: guide", lambda: Loss(facet(), guide()), "the guide was built for another model"),
        ("type: objective", lambda: Loss(guide().model, guide(), "elbo"), "must be an instance of"),
        (
            "misfit: plates",
            lambda: Loss(*drawn_twice(), GuideEnum_ELBO(max_plate_nesting=1)),
            "give it max_plate_nesting",
        ),
    ],
    "GuideEnum_ELBO": [
        (
            "range: plates",
            lambda: GuideEnum_ELBO(max_plate_nesting=0),
            f"max_plate_nesting {COUNT}, got 0",
        )
    ],
    "MeanField_ELBO": [
        (
            "range: particles",
            lambda: MeanField_ELBO(max_plate_nesting=1, num_particles=0),
            f"num_particles {COUNT}, got 0",
        ),
        (
            "misfit: guide",
            scored_by(MeanField_ELBO),
            "VaDEGuide enumerates its clusters, which MeanField_ELBO would score wrongly",
        ),
    ],
    "MeanFieldEnum_ELBO": [
        (
            "misfit: guide",
            scored_by(MeanFieldEnum_ELBO),
            "which MeanFieldEnum_ELBO would score wrongly",
        )
    ],
    "ScoreFunction_ELBO": [
        (
            "misfit: guide",
            scored_by(ScoreFunction_ELBO),
            "which ScoreFunction_ELBO would score wrongly",
        )
    ],
    "ImportanceWeighted_ELBO": [
        ("range: draws", lambda: ImportanceWeighted_ELBO(0), f"num_draws {COUNT}, got 0")
    ],
}


def drawn_twice() -> tuple[FacetModel, VaDEGuide]:
    g = VaDEGuide(facet(), 2)
    return g.model, g


@cache
def alone() -> SVIRunner:
    return SVIRunner(one_facet().model, one_facet())


def together(*of: Callable[[], Any], x: Any = X, **options: Any) -> Any:
    return lambda: fit_together([each() for each in of], x, 1, **options)


def bounds(of: Callable[[], Any], model: Any = None, **options: Any) -> Any:
    return lambda: elbo_per_datum(model() if model else of().model, of(), X, **options)


def inferred(group: Any = LABEL, **options: Any) -> Any:
    return lambda: infer_tables(mlvae().model, X, group, 1, **options)


@cache
def graph() -> NeighborGraph:
    return NeighborGraph(X, num_neighbors=2)


def near(strength: float = 1.0, schedule: Any = None) -> SVIRunner:
    model = facet(neighborly(strength))
    return SVIRunner(model, VaDEGuide(model), schedule=schedule)


def fit_near(
    of: Callable[[], Any] = near, x: Any = X, by: Callable[[], Any] = graph, **options: Any
) -> Any:
    return lambda: fit_neighbors(of(), x, by(), **{"epochs": 4, **options})


RUNS = {
    "SVIRunner": [
        (
            "misfit: an optimizer with a closure",
            lambda: run_with(optimizer=torch.optim.LBFGS),
            "LBFGS computes the loss several times a step, which the runner does not",
        ),
        (
            "misfit: a rate in the optimizer",
            lambda: run_with(optimizer=partial(torch.optim.SGD, lr=0.1)),
            "sets its optimizer's rate, so that lr=0.1 of the functools.partial would be lost",
        ),
        ("misfit: two precisions", lambda: two_precisions().fit(X, 1), "parameters must be of one"),
        ("type: optimizer", lambda: run_with(optimizer="Adam"), "a class such as torch.optim.SGD"),
        ("type: built", lambda: run_with(optimizer=BUILT), "must be called with parameters"),
        ("type: None", lambda: run_with(optimizer=lambda *_, lr: None), "must be called with para"),
        ("misfit: clips", lambda: run_with(optimizer=CLIPS), r"give guard=Guard\(max_norm=...\)"),
        (
            "misfit: decays",
            lambda: run_with(optimizer=DECAYS),
            "give the optimizer alone and the callback ReduceOnPlateau",
        ),
        ("range: lr", lambda: run_with(lr=0.0), "lr must be a positive number, got 0.0"),
        ("type: lr", lambda: run_with(lr="a"), "lr must be a positive number, got 'a'"),
        ("type: seed", lambda: run_with(seed=1.5), "seed must be an integer from 0 to 4294967295"),
        ("range: seed", lambda: run_with(seed=-1), "seed must be an integer from 0 to 4294967295"),
        ("unknown: device", lambda: run_with(device="gpu"), "device must be a name such as 'cpu'"),
        ("missing: device", lambda: run_with(device="cuda:99"), "device 'cuda:99' cannot be used"),
        ("misfit: device", lambda: run_with(device="meta"), "device 'meta' cannot be used here: "),
        ("type: schedule", lambda: run_with(schedule="warm"), r"schedule must be such as"),
        ("type: schedule class", lambda: run_with(schedule=WarmUp), "got the class WarmUp itself"),
        ("type: guard", lambda: run_with(guard="skip"), r"must be a Guard, such as"),
        ("unknown: precision", lambda: run_with(precision="fp8"), "precision must be one"),
        ("misfit: model", lambda: SVIRunner(facet(), guide()), "the guide was built for another"),
        ("type: objective", lambda: run_with(objective=GuideEnum_ELBO), "an instance of an ELBO"),
    ],
    "SVIRunner.fit": [
        *((fault, partial(fit, x=x), message) for fault, x, message in DATA),
        ("missing: label", lambda: fit(ivae), "IVAE needs label= besides x"),
        ("unknown: option", lambda: fit(epoch=3), "got epoch: is that a misspelled option"),
        ("shape: group", lambda: fit(mlvae, group=[0, 1]), r"group has shape \[2\], but there are"),
        ("type: epochs", lambda: fit(epochs=None), f"epochs {COUNT}, got None"),
        ("type: data set", lambda: fit(x=TensorDataset(TENSOR)), r"give a DataLoader of it, such"),
        ("empty: loader", lambda: loaded([]), "the DataLoader gives no batch: is its data set"),
        (
            "missing: batch",
            lambda: loaded(X, collate_fn=lambda rows: None),
            "batches have no x, only .*: name it 'x'",
        ),
        ("missing: length", lambda: loaded(X, batch_sampler=iter(())), "give fit steps_per_epoch="),
        ("misfit: steps", lambda: fit(steps_per_epoch=2), "steps_per_epoch is of a DataLoader"),
        ("missing: batches", lambda: loaded(X, batch_sampler=Unkept()), "gave 0 batches in a pass"),
        (
            "missing: x of a loader",
            lambda: loaded([{1: x} for x in TENSOR]),
            r"batches have no x, only \['1'\]",
        ),
        ("type: callbacks", lambda: fit(callbacks=["a"]), "each callback must be a function of"),
        ("type: one callback", lambda: fit(callbacks=print), r"be a sequence, such as"),
        ("type: batches", lambda: fit(batches="rows"), r"batches must be such as Groups\(\), got"),
        ("type: checkpoints", lambda: fit(checkpoints="new"), r"such as Checkpoints\('folder'\)"),
        ("type: fabric", lambda: fit(fabric="x"), "fabric must be a Lightning Fabric, .* got 'x'"),
        ("nan: parameters", lambda: fit(spoilt), r"not finite before the first step: .* is not"),
        ("shape: neighbors", lambda: told(np.ones((len(X), 2))), "neighbors of 'digit' has shape"),
        ("range: neighbors", lambda: told(-np.ones((len(X), 3))), "numbers that no count can be"),
        ("unknown: neighbors", lambda: told({"hue": SAID}), "neighbors is given for 'hue'"),
        ("misfit: neighbors", lambda: told(SAID, runner()), "this model has none"),
        (
            "misfit: neighbors of two facets",
            lambda: two_with_neighbors().embed(X, neighbors=SAID),
            "2 facets with a NeighborMixture: give them by facet",
        ),
    ],
    "Rows": [
        (
            "misfit: groups",
            lambda: fit(mlvae, group=LABEL, batches=Rows()),
            r"use batches=Groups\(\)",
        )
    ],
    "Groups": [
        ("missing: group", lambda: fit(batches=Groups()), "none were given: leave batches= out"),
        ("range: members", lambda: Groups(0), f"max_members {COUNT}, got 0"),
        (
            "misfit: tables",
            lambda: fit(tables, group=[0, 0, 1, 1, 1], batches=Groups(2)),
            "max_members=2 would split groups of up to 3 rows, but a guide of tables has one",
        ),
    ],
    "Guard": [
        ("unknown: action", lambda: Guard("stopp"), r"action must be one of \('stop', 'skip'"),
        ("range: norm", lambda: Guard(max_norm=-1), "max_norm must be a positive number, got -1"),
        ("type: norm", lambda: Guard(max_norm="1"), "max_norm must be a positive number, got '1'"),
    ],
    "Evaluate": [
        ("range: every", lambda: Evaluate(dict, 0), f"every {COUNT}, got 0"),
        (
            "type: measure of nothing",
            lambda: Evaluate(lambda runner: None)(runner(), {"epoch": 1}),
            "what measure returns must be numbers by name, got NoneType",
        ),
        ("type: measure", lambda: Evaluate("acc"), "measure must be a function that is called"),
    ],
    "JSONLines": [
        (
            "file: a folder",
            at("checkpoints", lambda path: fit(callbacks=[JSONLines(path)])),
            "checkpoints is a folder, but a file for records is needed",
        ),
        ("type: bytes", lambda: JSONLines(b"a.jsonl"), "path must be a path, .* got bytes"),
        (
            "missing: folder",
            lambda: fit(callbacks=[JSONLines("new/a")]),
            "there is no folder .*new for a: create it",
        ),
    ],
    "Draw": [
        (
            "file: no folder",
            at("notes.txt", lambda path: fit(callbacks=[Draw(path, print, 1)])),
            "notes.txt is a file, but a folder for figures is needed",
        ),
        ("type: draw", lambda: Draw("new", "figure", 1), "draw must be a function that is called"),
    ],
    "StopEarly": [
        ("type: measure", lambda: StopEarly(3), "measure must be a name in the record, such as"),
        ("range: patience", lambda: StopEarly(patience=0), f"patience {COUNT}, got 0"),
        ("type: threshold", lambda: StopEarly(threshold="a"), "threshold must be a number, got"),
    ],
    "ReduceOnPlateau": [
        ("range: factor", lambda: ReduceOnPlateau(2), r"factor must be within \(0, 1\), got 2"),
        ("type: factor", lambda: ReduceOnPlateau("a"), r"factor must be within \(0, 1\), got 'a'"),
        ("range: patience", lambda: ReduceOnPlateau(patience=0), f"patience {COUNT}, got 0"),
        ("type: threshold", lambda: ReduceOnPlateau(threshold="a"), "threshold must be a number"),
    ],
    "plain_programs": [
        ("type: guide", lambda: plain_programs(print, guide(), X), "guide must be a function or"),
        ("shape: y", lambda: plain_programs(print, print, X, y=X[:2]), "y must have an entry for"),
        ("empty: x", lambda: plain_programs(print, print, X[:0]), "x is empty"),
    ],
    "fit_together": [
        ("empty: runners", together(), "there are no runners to train"),
        ("type: guides", together(guide), "each of runners must be an"),
        (
            "type: loader",
            together(runner, x=DataLoader(TENSOR)),
            "take arrays, not a DataLoader: train",
        ),
        ("type: one runner", lambda: fit_together(runner(), X, 1), r"such as \[runner\], got"),
        (
            "type: no callbacks",
            together(runner, callbacks=lambda runner: None),
            "callbacks must be a sequence, .* got None",
        ),
        ("misfit: one guide", together(runner, runner), "two runners hold the"),
        ("misfit: kinds", together(runner, alone), "differs from the first one in its"),
        ("type: callbacks", together(runner, callbacks=[]), "callbacks must be a function"),
        ("nan: x", together(runner, x=holed(NAN), progress=False), "NaN or infinite"),
    ],
    "cold_start": [
        ("type: guide", lambda: cold_start(runner(), X), "guide must be a guide, such as"),
        ("shape: few rows", lambda: cold_start(guide(), X[:3]), "3 rows are too few .* 4"),
        ("range: max_rows", lambda: cold_start(guide(), X, 0), f"max_rows {COUNT}, got 0"),
        (
            "unknown: fit_to",
            lambda: cold_start(guide(), X, fit_to="modes"),
            r"fit_to must be one of \('means', 'draws'\), got 'modes'",
        ),
        ("nan: x", lambda: cold_start(guide(), holed(NAN)), "NaN or infinite"),
        ("misfit: model", lambda: cold_start(ivae(), X), "IVAE is given label: its components"),
    ],
    "fit_mixtures": [
        ("unknown: facet", lambda: fit_mixtures(guide(), X, facets=["hue"]), "unknown facet 'hue'"),
        (
            "type: facets",
            lambda: fit_mixtures(guide(), X, facets="digit"),
            r"such as \['digit'\], got 'digit'",
        ),
        (
            "misfit: facet",
            lambda: fit_mixtures(vae(), X, facets=["layer_1"]),
            "has no mixture to fit",
        ),
        ("empty: x", lambda: fit_mixtures(guide(), X[:0]), "x is empty"),
        ("type: guide", lambda: fit_mixtures(guide().model, X), "guide must be a guide, .* got"),
    ],
    "neighbor_clusters": [
        ("range: num_clusters", lambda: neighbor_clusters(X, 0), f"num_clusters {COUNT}, got 0"),
        ("shape: few rows", lambda: neighbor_clusters(X[:5], 5, 3), "num_clusters=5 is too many"),
        ("shape: few neighbors", lambda: neighbor_clusters(X[:5], 2), "num_neighbors=10 is too"),
        ("shape: a row", lambda: neighbor_clusters(X[0], 2), r"data \[N, ...\] are needed"),
        ("nan: x", lambda: neighbor_clusters(holed(NAN), 2, 2), "fill in what is missing"),
        ("type: x", lambda: neighbor_clusters([["a"]], 2), "x must hold numbers"),
    ],
    "NeighborGraph": [
        ("range: num_neighbors", lambda: NeighborGraph(X, 0), f"num_neighbors {COUNT}, got 0"),
        ("shape: few rows", lambda: NeighborGraph(X[:5]), "num_neighbors=10 is too many for 5"),
        ("range: dim", lambda: NeighborGraph(X, 2, 0), f"dim {COUNT}, got 0"),
        ("shape: a row", lambda: NeighborGraph(X[0], 2), r"data \[N, ...\] are needed"),
        ("nan: x", lambda: NeighborGraph(holed(NAN), 2), "fill in what is missing"),
        ("type: x", lambda: NeighborGraph([["a"]], 2), "x must hold numbers"),
        (
            "shape: variants",
            lambda: NeighborGraph(X, 2, variants=[X[:, :2]]),
            "are not other forms of those of the graph",
        ),
    ],
    "NeighborGraph.clusters": [
        ("range: K", lambda: graph().clusters(0), f"num_clusters {COUNT}, got 0"),
        ("huge: K", lambda: graph().clusters(len(X)), "num_clusters=.* is too many"),
    ],
    "NeighborGraph.counts_for": [
        ("shape: x", lambda: graph().counts_for(X[:, :2], np.eye(5)), "are not other forms")
    ],
    "image_graph": [
        ("shape: x", lambda: image_graph(X, 2), r"or \[N, C, H, W\] is needed, .*: reshape rows"),
        ("range: num_neighbors", lambda: image_graph(PICTURES, 0), f"num_neighbors {COUNT}"),
    ],
    "image_variants": [("shape: x", lambda: list(image_variants(X)), "reshape rows of pixels")],
    "random_affine": [("shape: x", lambda: random_affine(X), "reshape rows of pixels")],
    "fit_neighbors": [
        ("type: runner", fit_near(guide), "must be an SVIRunner"),
        ("type: graph", fit_near(by=lambda: X), "a NeighborGraph"),
        ("range: epochs", fit_near(epochs=0), f"epochs {COUNT}, got 0"),
        ("misfit: prior", fit_near(runner), "neighbors need a facet with a NeighborMix"),
        ("empty: graph", fit_near(by=dict), "no graph is given"),
        (
            "misfit: run",
            fit_near(partial(near, schedule=WarmUp(8)), epochs=10, every=2),
            "a larger every",
        ),
        (
            "misfit: strength",
            fit_near(partial(near, 0.0), learn_strength=False),
            "with a strength of",
        ),
        ("type: checkpoints", fit_near(checkpoints="folder"), "checkpoints must be such as"),
        ("unknown: facet", fit_near(by=lambda: {"hue": graph()}), "facet 'hue' takes no neighbors"),
        ("shape: x", fit_near(x=X[:4]), "joins 5 data, but x has 4"),
        ("type: augment", fit_near(augment=X), "augment must be a function"),
        ("shape: augment", fit_near(augment=lambda x, seed: x[:4]), "augment gives 4 data for 5"),
    ],
    "cluster_posterior": [
        (
            "misfit: prior",
            lambda: cluster_posterior(guide(), X, graph()),
            "neighbors need a facet with a NeighborMixture",
        )
    ],
    "warm_start": [
        ("type: runner", lambda: warm_start(guide(), X, 1), "runner must be an SVIRunner, got"),
        ("range: epochs", lambda: warm_start(runner(), X, 0), f"epochs {COUNT}, got 0"),
        ("shape: few rows", lambda: warm_start(runner(), X[:2], 1), "2 rows are too few .* 3"),
    ],
    "data_dependent_start": [
        (
            "misfit: flow",
            lambda: data_dependent_start(FlowGuide(GMMFlow((4,), GaussianMixture(2, 4))), X),
            "a flow's layers are called once for each coordinate",
        ),
        ("shape: one row", lambda: data_dependent_start(guide(), X[:1]), "two rows or more: got"),
        (
            "range: deviation",
            lambda: data_dependent_start(guide(), X, deviation=0.0),
            "deviation must be a positive number, got 0.0",
        ),
        ("type: guide", lambda: data_dependent_start(None, X), "guide must be a guide, .* got"),
    ],
    "standard_normal_priors": [
        ("type: model", lambda: standard_normal_priors(guide()).__enter__(), "got VaDEGuide"),
        (
            "unknown: facet",
            lambda: standard_normal_priors(guide().model, ["wheels"]).__enter__(),
            "'wheels'",
        ),
    ],
    "infer_tables": [
        ("misfit: model", lambda: infer_tables(facet(), X, LABEL, 1), "TableGuide is for MLVAE"),
        ("shape: group", inferred(LABEL[:2]), r"group has shape \[2\]"),
        ("range: lr", inferred(lr=-1), "lr must be a positive number, got -1"),
    ],
    "learn_to_encode": [
        ("range: num_data", lambda: learn_to_encode(mlvae(), 0, 1), f"num_data {COUNT}, got 0"),
        ("type: guide", lambda: learn_to_encode(guide(), 9, 1), "must be a GroupedGuide, .* got"),
        ("range: epochs", lambda: learn_to_encode(mlvae(), 9, -1), f"epochs {COUNT}, got -1"),
    ],
    "elbo": [
        ("range: draws", lambda: elbo(guide().model, guide(), X, 1), "num_draws .* at least 2"),
        ("type: draws", lambda: elbo(guide().model, guide(), X, "9"), "num_draws .* at least 2"),
        ("misfit: model", lambda: elbo(facet(), guide(), X), "the guide was built for another"),
    ],
    "elbo_per_datum": [
        (
            "misfit: inference mode",
            lambda: within_inference_mode(elbo_per_datum),
            "which torch.inference_mode.* rules out: call it outside",
        ),
        ("range: draws", bounds(guide, num_draws=0), f"num_draws {COUNT}, got 0"),
        ("type: guide", bounds(runner), "guide must be a guide, .* got SVIRunner"),
        ("misfit: model", bounds(guide, facet), "the guide was built for"),
        (
            "misfit: groups",
            bounds(mlvae, group=LABEL),
            "for all members of a group, so a datum has no ELBO of its own: use inference.elbo",
        ),
    ],
    "mutual_information": [
        ("type: guide", lambda: mutual_information(runner(), X), "guide must be a guide, .* got"),
        ("nan: x", lambda: mutual_information(guide(), holed(INF)), "NaN or infinite"),
    ],
    "kl_by_dimension": [
        ("type: guide", lambda: kl_by_dimension(vae().model, X), "guide must be a guide, .* got"),
        ("empty: x", lambda: kl_by_dimension(vae(), X[:0]), "x is empty"),
    ],
}


# Of images.
PICTURES = np.random.default_rng(0).random((5, 6, 6))


def two_with_neighbors() -> VaDEGuide:
    facets = {name: neighborly() for name in "ab"}
    return VaDEGuide(MFCVAE(X.shape[1:], facets, network=SharedMLP((8,))))


def told(counts: Any, run: SVIRunner | None = None) -> SVIRunner:
    return (run or near()).fit(X, 1, neighbors=counts)


# What neighbors say of three clusters.
SAID = np.ones((len(X), 3))


def within_inference_mode(function: Callable[..., Any]) -> Any:
    with torch.inference_mode():
        return function(guide().model, guide(), X)


def two_precisions() -> SVIRunner:
    model = facet()
    run = SVIRunner(model, VaDEGuide(model))
    model.double()
    return run


@cache
def spoilt() -> VaDEGuide:
    """Whose parameters are not finite."""
    g = VaDEGuide(facet())
    with torch.no_grad():
        g.model.mixtures["digit"].loc.fill_(NAN)
    return g


BUILT = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
CLIPS = Adam({"lr": 1e-2}, {"clip_norm": 1.0})
DECAYS = ExponentialLR({"optimizer": torch.optim.SGD, "optim_args": {"lr": 1.0}, "gamma": 0.9})


def run_with(**options: Any) -> SVIRunner:
    return SVIRunner(guide().model, guide(), **options)


def loaded(rows: Any, of: Callable[[], FacetGuide] = guide, **options: Any) -> SVIRunner:
    return fit(of, x=DataLoader(rows, **options), batch_size=None)


class Unkept:
    """A sampler that does not keep what its length promises."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[list[int]]:
        return iter([])
