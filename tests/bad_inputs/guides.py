"""Guides."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from guides import (
    AmortizedGuide,
    Annealed,
    ClassifierGuide,
    CodebookGuide,
    ConditionalGuide,
    Enumerate,
    FlowGuide,
    GroupedGuide,
    GumbelSoftmax,
    InverseAutoregressive,
    LadderGuide,
    MarginalGuide,
    PointGuide,
    Refined,
    ScoreFunction,
    SimilarContentGuide,
    TableGuide,
    VaDEGuide,
)
from inference import export_predictions
from ppl_models import IVAE, MFCVAE, GaussianMixture, GMMFlow, VampPrior
from tests.bad_inputs.shared import (
    COUNT,
    INF,
    LABEL,
    NAN,
    TENSOR,
    D,
    X,
    codes,
    continuous_ivae,
    facet,
    guide,
    holed,
    ivae,
    ladder,
    mlvae,
    nvae,
    real,
    runner,
    tables,
    vlac,
)


def exported(of: Any = None, path: str = "guide.pt2", x: Any = X, **options: Any) -> Any:
    """What is to be refused."""
    return lambda: export_predictions(guide() if of is None else of(), path, x, **options)


def embedded(of: Any, **given: Any) -> Any:
    return lambda: of().embed(X, **given)


RULE = "must be a rule such as"
GUIDES = {
    "export_predictions": [
        ("type: guide", exported(runner), "guide must be a guide, such as runner.guide"),
        ("misfit: groups", exported(mlvae, group=LABEL), "GroupedGuide cannot be exported: the"),
        (
            "misfit: Refined",
            exported(lambda: VaDEGuide(facet(), family=Refined())),
            r"VaDEGuide cannot be exported with family=Refined\(...\), which takes steps",
        ),
        ("file: ending", exported(path="guide.pt"), "path must end in .pt2, .* got guide.pt"),
        ("file: no folder", exported(path="no/guide.pt2"), "there is no folder no: create it"),
        ("type: dtype", exported(dtype="float32"), "dtype must be one of .* got 'float32'"),
        ("unknown: dtype", exported(dtype=torch.int64), "dtype must be one of .* got torch.int64"),
        ("shape: x", exported(x=X[:, :4]), "but the model was built for"),
        ("missing: label", exported(ivae), "IVAE needs label= besides x"),
        ("unknown: option", exported(lable=LABEL), "takes .* besides x, got lable"),
    ],
    "VaDEGuide": [
        (
            "shape: label",
            lambda: guide()(TENSOR, label=torch.zeros(5, 3).long()),
            "a column for each",
        ),
        ("range: num_samples", lambda: VaDEGuide(facet(), num_samples=0), f"num_samples {COUNT}"),
        ("type: model", lambda: VaDEGuide(None), "model must be a model, such as .* got NoneType"),
        ("type: family", lambda: VaDEGuide(facet(), family="full"), r"family must be a family"),
        ("misfit: model", lambda: VaDEGuide(nvae().model), "such as ClassifierGuide"),
        (
            "misfit: VampPrior",
            lambda: VaDEGuide(one_vamp()) and VaDEGuide(one_vamp()),
            "another guide's posteri",
        ),
    ],
    "MarginalGuide": [
        ("type: num_samples", lambda: MarginalGuide(facet(), 2.0), f"num_samples {COUNT}, got 2.0")
    ],
    "AmortizedGuide": [
        (
            "type: conditional",
            lambda: AmortizedGuide(facet(), conditional="no"),
            "conditional must",
        ),
        (
            "type: discrete",
            lambda: AmortizedGuide(facet(), discrete="enumerate"),
            f"discrete {RULE}",
        ),
        (
            "misfit: VampPrior",
            lambda: AmortizedGuide(facet(VampPrior(2, 2, (D,))), conditional=True),
            "which a conditional guide does not have",
        ),
    ],
    "LadderGuide": [
        ("type: discrete", lambda: LadderGuide(vlac(), discrete=Enumerate), f"discrete {RULE}"),
        (
            "misfit: VampPrior",
            lambda: LadderGuide(facet(VampPrior(2, 2, (D,)))),
            "a VampPrior is made of q",
        ),
        ("misfit: marginal", lambda: ladder()(TENSOR, marginal=True), "use MarginalGuide or"),
    ],
    "ConditionalGuide": [
        ("misfit: model", lambda: ConditionalGuide(facet()), "is for IVAE, .* got MFCVAE: use"),
        ("type: model", lambda: ConditionalGuide({}), "model must be a model, .* got dict"),
    ],
    "SupervisedGuide": [
        (
            "range: infinite",
            lambda: VaDEGuide(facet(), label_weight=float("inf")),
            "label_weight .* got inf",
        ),
        ("nan: weight", lambda: VaDEGuide(facet(), label_weight=NAN), "label_weight .* got nan"),
        ("type: weight", lambda: VaDEGuide(facet(), label_weight="1"), "label_weight .* got '1'"),
    ],
    "ClassifierGuide": [
        ("misfit: model", lambda: ClassifierGuide(facet()), "is for NVAE, got MFCVAE: use"),
        ("range: weight", lambda: ClassifierGuide(nvae().model, 1, -1), "label_weight .* got -1"),
    ],
    "CodebookGuide": [
        ("misfit: model", lambda: CodebookGuide(facet()), "CodebookGuide is for VQVAE, got MFCVAE"),
        (
            "type: discrete",
            lambda: CodebookGuide(codes().model, 1, Enumerate()),
            "must be a GumbelSoftmax",
        ),
    ],
    "CodebookGuide.codes": [
        ("shape: x", lambda: codes().codes(np.zeros((2, 64))), r"for example x.reshape\(len\(x\)")
    ],
    "PointGuide": [
        ("misfit: model", lambda: PointGuide(facet()), "PointGuide is for facets without clusters"),
        ("type: model", lambda: PointGuide(3), "model must be a model, .* got int"),
    ],
    "FlowGuide": [
        ("misfit: VaDEGuide", lambda: VaDEGuide(a_flow()), "a flow has no encoder, it inverts"),
        ("misfit: model", lambda: FlowGuide(facet()), "FlowGuide is for GMMFlow, got MFCVAE"),
    ],
    "GroupedGuide": [
        ("misfit: model", lambda: GroupedGuide(facet()), "GroupedGuide is for MLVAE, got MFCVAE"),
        ("type: evidence", lambda: GroupedGuide(mlvae().model, 1, "product"), f"evidence {RULE}"),
        (
            "unknown: content",
            lambda: GroupedGuide(mlvae().model, content="all"),
            "content must be one of",
        ),
    ],
    "SimilarContentGuide": [
        ("range: penalty", lambda: SimilarContentGuide(mlvae().model, 1, -1), "penalty .* got -1"),
        ("nan: penalty", lambda: SimilarContentGuide(mlvae().model, 1, NAN), "penalty .* got nan"),
    ],
    "TableGuide": [
        ("empty: group", lambda: TableGuide(mlvae().model, []), "group is empty: give the group"),
        ("type: floats", lambda: TableGuide(mlvae().model, [0.0, 1.0]), "group must hold integers"),
        ("shape: group", lambda: TableGuide(mlvae().model, [[0, 1]]), r"group has shape \[1, 2\]"),
    ],
    "TableGuide.embed": [
        ("shape: rows", lambda: tables().embed(X[:3], group=[0, 0, 1]), "tables for 5 rows, got 3"),
        ("range: row", lambda: tables().embed(X[:1], group=[0], row=[5]), "numbers from 5 to 5"),
        ("misfit: groups", lambda: tables().embed(X, group=[0, 1, 1, 1, 1]), "use those groups"),
    ],
    "InverseAutoregressive": [
        ("range: num_layers", lambda: InverseAutoregressive(num_layers=0), f"num_layers {COUNT}"),
        (
            "type: num_features",
            lambda: InverseAutoregressive(num_features=1.5),
            f"num_features {COUNT}, got 1.5",
        ),
    ],
    "Refined": [
        ("type: family", lambda: Refined("full"), r"family must be a family, such as"),
        ("range: num_steps", lambda: Refined(num_steps=0), f"num_steps {COUNT}, got 0"),
        ("range: num_points", lambda: Refined(num_points=1), "integer of at least 2"),
        ("range: rate", lambda: Refined(rate=0), "must be a positive number, got 0"),
        (
            "misfit: reads_label",
            lambda: ConditionalGuide(IVAE((6,), 3, 2), family=Refined(), reads_label=False),
            r"leave reads_label=False out, or use Diagonal\(\)",
        ),
    ],
    "GumbelSoftmax": [
        ("type: hard", lambda: GumbelSoftmax(hard="no"), "hard must be True or False, got str"),
        ("range: temperature", lambda: GumbelSoftmax(0), "temperature must be a positive number"),
    ],
    "Annealed": [
        ("range: end", lambda: Annealed(1.0, 0.0), "end must be a positive number, got 0.0"),
        ("huge: start", lambda: Annealed(INF), "start must be a positive number, got inf"),
        ("type: steps", lambda: Annealed(steps=1e4), f"steps {COUNT}, got 10000.0"),
    ],
    "ScoreFunction": [
        ("unknown: baseline", lambda: ScoreFunction("mean"), "baseline must be one of"),
        ("misfit: two guides", lambda: twice(ScoreFunction()), "belongs to another guide: give"),
    ],
    "FacetGuide.embed": [
        ("missing: label", embedded(ivae), "IVAE needs label= besides x, with one entry"),
        ("unknown: given", embedded(guide, batch_sise=3), "got batch_sise: is that a"),
        ("shape: label", embedded(ivae, label=[0, 1]), r"label has shape \[2\], but"),
        ("range: label", embedded(ivae, label=LABEL + 1), "classes from 1 to 3, but .* 0"),
        ("type: label", embedded(ivae, label=LABEL / 2), "label must hold integers"),
        ("shape: vectors", embedded(continuous_ivae, label=X), r"\[5, 6\], but \[5, 3\] is needed"),
        ("nan: vectors", embedded(continuous_ivae, label=holed(NAN)[:, :3]), "label holds NaN"),
        ("missing: group", embedded(mlvae), "MLVAE needs group= besides x"),
    ],
    "FacetGuide.observed": [("shape: x", lambda: guide().observed(X[0], {}), r"x has shape \[6\]")],
    "FacetGuide.posterior": [
        ("huge: x", lambda: real().posterior(holed(1e300)), "beyond what torch.float32")
    ],
    "FacetGuide.reconstruct": [
        ("nan: x", lambda: guide().reconstruct(holed(NAN)), "NaN or infinite")
    ],
    "FacetGuide.predict_proba": [
        ("type: known", lambda: nvae().predict_proba(X, label=LABEL, known=LABEL), "5 booleans")
    ],
    "FacetGuide.predict": [
        ("range: label", lambda: nvae().predict(X, label=LABEL - 2), "or -1 where unknown")
    ],
}


def a_flow() -> GMMFlow:
    return GMMFlow((5,), GaussianMixture(3, 5))


@cache
def one_vamp() -> MFCVAE:
    return facet(VampPrior(2, 2, (D,)))


def twice(discrete: Any) -> Any:
    return [AmortizedGuide(facet(), discrete=discrete) for _ in range(2)]
