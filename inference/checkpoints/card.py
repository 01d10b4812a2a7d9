"""The card of a run: what it is, how it was trained and what came of it, to read beside its files.

A card holds only numbers that were computed. No program reads it.
"""

from __future__ import annotations

import io
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from math import exp
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyro
import torch
from numpy.typing import ArrayLike
from scipy.stats import entropy
from torch import Tensor, nn

from inference.checkpoints.atomic_files import write_together
from inference.checkpoints.saved_run import CARD, WEIGHTS, read_config, weights_digest
from inference.describing.text import plain, table
from inference.evaluation.bounds import elbo
from inference.randomness import seeded
from inference.run import Run
from ppl_models.checks import check_kind, check_path
from ppl_models.columns import Columns
from ppl_models.plain import plain_array
from ppl_models.sparse import is_sparse, sparse_rows

__all__ = ["Drawn", "card_text", "write_card"]

# Draws of the latents in a bound.
DRAWS = 10
# Entries of a record that say when it was made.
WHEN = ("epoch", "step", "seconds")


class Drawn(Protocol):
    """What can be written as a picture, such as a figure of Matplotlib's."""

    def savefig(self, fname: Any, **options: Any) -> Any:
        """Write it into a file."""


def write_card(
    run: Run,
    folder: str | Path,
    x: ArrayLike | Tensor | None = None,
    about: Mapping[str, str] | None = None,
    figures: Mapping[str, Drawn] | None = None,
    **given: Any,
) -> Path:
    """Write the card of a run, ``card.md``, into the folder in which the run was saved; returns its
    path.

    ``SVIRunner.save`` writes one that says what the run itself knows: model, priors, networks,
    likelihood, versions, training, and the last record of its history. This one says more.

    :param run: the run that ``run.save(folder)`` has written.
    :param x: data, in the model's form, whose bound and clusters in use are computed and told.
    :param about: further sections, in Markdown, by their titles, which are plain text.
    :param figures: to be written as ``card_NAME.png`` beside it, and shown in it.
    :param given: inputs of the model other than x, one entry per datum.
    :raises FileNotFoundError: if no run was saved in the folder.
    :raises ValueError: if it was another one, ``x`` does not fit the model, or two figures have one
        file name; then nothing has changed.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from guides import VaDEGuide
        >>> from inference import SVIRunner, write_card
        >>> from ppl_models import GaussianMixture, SharedMLP, VaDE
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> runner, x = SVIRunner(model, VaDEGuide(model)), np.zeros((20, 6))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     card = write_card(runner, runner.save(folder), x)
        ...     card.name, "| rows | 20 |" in card.read_text()
        ('card.md', True)
    """
    check_kind("run", run, Run, "a runner, such as SVIRunner(model, guide)")
    folder = check_path("folder", folder)
    _check_saved(run, folder)
    names = [_file_name(name) for name in figures or {}]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"figures: two would be written as {twice[0]}: rename one of them")
    sections = {} if x is None else {"Data": _data(run, x, given)}
    files = {_file_name(name): _png(figure) for name, figure in (figures or {}).items()}
    shown = "\n\n".join(f"![{name}]({name})" for name in files)
    sections |= dict(about or {}) | ({"Figures": shown} if shown else {})
    files[CARD] = card_text(run, sections).encode()
    write_together({folder / name: content for name, content in files.items()})
    return folder / CARD


def card_text(run: Run, sections: Mapping[str, str] | None = None) -> str:
    """A run's card, in Markdown.

    :param sections: further ones by their titles.

    Example:
        >>> from guides import VaDEGuide
        >>> from inference import SVIRunner
        >>> from inference.checkpoints.card import card_text
        >>> from ppl_models import GaussianMixture, SharedMLP, VaDE
        >>> model = VaDE((6,), GaussianMixture(3, 2), network=SharedMLP((8,)))
        >>> print(card_text(SVIRunner(model, VaDEGuide(model))).splitlines()[0])
        # VaDE with VaDEGuide
    """
    own = {
        "Facets": _facets(run),
        "Model": _table(_model(run)),
        **_columns(run),
        "Training": _table(_training(run)),
        **_last_record(run),
    }
    parts = [f"# {_name(run.model)} with {_name(run.guide)}", _OPENING]
    parts += [
        f"## {plain(title)}\n\n{text}" for title, text in (own | dict(sections or {})).items()
    ]
    parts.append(f"## Versions\n\n{_table(_versions(), ('package', 'version'))}")
    return "\n\n".join(parts) + "\n"


_OPENING = (
    "A fitted model of FacetVAE. `SVIRunner.load(folder)`, of the package `inference`, rebuilds it "
    "from the files beside this one, and reads no code. All bounds are in nats per datum."
)


def _check_saved(run: Run, folder: Path) -> None:
    """:raises ValueError: if the folder holds another run."""
    files = read_config(folder).get("files", {})
    if files.get(WEIGHTS) != weights_digest(run.guide.state_dict()):
        raise ValueError(
            f"the run in {folder} has other weights than this one, so that a card of this one "
            "would be wrong there: save it first, with run.save(folder)"
        )


def _facets(run: Run) -> str:
    rows = [
        (name, str(prior.dim), str(getattr(prior, "num_components", 1)), _said(prior))
        for name, prior in run.model.priors.items()
    ]
    return table(("facet", "latents", "components", "prior"), rows)


def _model(run: Run) -> dict[str, Any]:
    parameters = {id(p): p.numel() for p in run.loss.parameters()}
    return {
        "shape of a datum": run.model.x_shape,
        "likelihood": _said(run.model.likelihood),
        "network": run.model.network,
        "posterior": _said(run.guide.family),
        "parameters": sum(parameters.values()),
    }


def _columns(run: Run) -> dict[str, str]:
    likelihood = run.model.likelihood
    if not isinstance(likelihood, Columns):
        return {}
    named = zip(likelihood.names, likelihood, strict=True)
    told = {name: _said(each) for name, each in named}
    return {"Columns": _table(told, ("column", "likelihood"))}


def _training(run: Run) -> dict[str, Any]:
    last = run.history[-1] if run.history else {}
    seconds = {"seconds, in the last call of fit": last["seconds"]} if "seconds" in last else {}
    return {
        "epochs": run.epoch,
        "optimiser steps": run.step,
        **seconds,
        "objective": type(run.loss.objective).__name__,
        "optimiser": type(run.optimizer).__name__,
        "learning rate": run.lr,
        "schedule": run.schedule,
        "seed": run.seed,
        "precision": run.precision,
        "device": run.device.type,
    }


def _last_record(run: Run) -> dict[str, str]:
    if not run.history:
        return {}
    record = {name: value for name, value in run.history[-1].items() if name not in WHEN}
    numbers = {n: v for n, v in record.items() if isinstance(v, int | float)}
    return {"Last record": _table(numbers, ("term", "nats per datum, or what it is a score in"))}


def _data(run: Run, x: ArrayLike | Tensor, given: Mapping[str, Any]) -> str:
    """The data's shape, their bound, and the clusters that they use."""
    with seeded(0, run.device):
        bound, error = elbo(run.model, run.guide, x, DRAWS, **given)
    rows, shape, dtype, missing = _facts(x)
    told = {
        "rows": rows,
        "shape of a datum": shape,
        "dtype": dtype,
        "missing entries": f"{100 * missing:.3g} %",
        "ELBO, nats per datum": f"{bound:.6g}, standard error {error:.2g} of {DRAWS} draws",
    }
    clusters = run.guide.predict_proba(x, **given) if run.model.inferred else {}
    for name, probabilities in clusters.items():
        shares = np.bincount(probabilities.argmax(-1), minlength=probabilities.shape[-1])
        told[f"clusters in use, {name}"] = (
            f"{int((shares > 0).sum())} of {len(shares)}, effectively {exp(entropy(shares)):.3g}"
        )
    return _table(told)


def _facts(x: ArrayLike | Tensor) -> tuple[int, tuple[int, ...], Any, float]:
    """How many data, the shape of each, their dtype, and the share of entries that are missing."""
    if is_sparse(x):
        rows = sparse_rows(x)
        return len(rows), (rows.num_columns,), rows.values.dtype, 0.0
    values = x.detach().cpu().numpy() if isinstance(x, Tensor) else plain_array(x, "x")
    missing = float(np.isnan(values).mean()) if values.dtype.kind == "f" else 0.0
    return len(values), values.shape[1:], values.dtype, missing


def _file_name(figure: str) -> str:
    plain = re.sub(r"[^\w-]+", "_", figure)
    return f"card_{plain}.png"


def _png(figure: Drawn) -> bytes:
    kept = io.BytesIO()
    figure.savefig(kept, format="png", dpi=130)
    return kept.getvalue()


def _versions() -> dict[str, str]:
    try:
        own = version("facetvae")
    except PackageNotFoundError:  # a copy of the files that was not installed
        own = "unknown"
    others = {"torch": torch.__version__, "pyro-ppl": pyro.__version__, "numpy": np.__version__}
    return {"facetvae": own, **others, "Python": platform.python_version()}


def _name(part: Any) -> str:
    return type(part).__name__


def _said(part: Any) -> str:
    """A part in a line; of a module with others within, all of them."""
    if isinstance(part, Columns):
        return f"Columns of {len(part.names)}, below"
    plain = isinstance(part, nn.Module) and not any(True for _ in part.children())
    return f"{_name(part)}({part.extra_repr()})" if plain else " ".join(repr(part).split())


def _table(entries: Mapping[str, Any], heads: Sequence[str] = ("", "")) -> str:
    return table(heads, [(name, _value(value)) for name, value in entries.items()])


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
