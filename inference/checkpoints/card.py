"""The card of a run: what it is, how it was trained and what came of it, to read beside its files.

A card holds only numbers that were computed. No program reads it.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch
from torch import nn

from inference.checkpoints.atomic_files import write_together
from inference.checkpoints.saved_run import CARD, WEIGHTS, read_config, weights_digest
from inference.describing.text import plain, table
from inference.run import Run
from ppl_models.columns import Columns

__all__ = ["card_text", "write_card"]

# Entries of a record that say when it was made.
WHEN = ("epoch", "step", "seconds")


def write_card(run: Run, folder: Path, sections: Mapping[str, str]) -> Path:
    """Write the card of a run with further sections into the folder in which it was saved; returns
    its path.

    :param sections: in Markdown, by their titles.
    :raises FileNotFoundError: if no run was saved in the folder.
    :raises ValueError: if it was another one; then nothing has changed.
    """
    files = read_config(folder).get("files", {})
    if files.get(WEIGHTS) != weights_digest(run.guide.state_dict()):
        raise ValueError(
            f"the run in {folder} has other weights than this one, so that a card of this one "
            "would be wrong there: save it first, with run.save(folder)"
        )
    write_together({folder / CARD: card_text(run, sections).encode()})
    return folder / CARD


def card_text(run: Run, sections: Mapping[str, str] | None = None) -> str:
    """A run's card, in Markdown.

    :param sections: further ones by their titles.
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
