"""The card of a saved run, in Markdown: what it is, how it was trained, and its last record.

No program reads it.
"""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from inference.markdown import table
from inference.run import Run

OPENING = "A fitted model of FacetVAE: `SVIRunner.load(folder)` loads it. Bounds: nats per datum."
PACKAGES = ("torch", "pyro-ppl", "numpy")


def card_text(run: Run) -> str:
    """The card of a run."""
    model, guide = run.model, run.guide
    facets = [
        (name, str(prior.dim), str(getattr(prior, "num_components", 1)), _in_a_line(prior))
        for name, prior in model.priors.items()
    ]
    about = {
        "shape of a datum": model.x_shape,
        "likelihood": model.likelihood,
        "network": model.network,
        "posterior": guide.family,
        "parameters": sum({id(p): p.numel() for p in run.loss.parameters()}.values()),
        "epochs": run.epoch,
        "optimizer steps": run.step,
        "objective": type(run.loss.objective).__name__,
        "optimizer": type(run.optimizer).__name__,
        "learning rate": run.lr,
        "schedule": run.schedule,
        "seed": run.seed,
        "precision": run.precision,
        "device": run.device.type,
        **{name: version(name) for name in PACKAGES},
        "Python": platform.python_version(),
    }
    record = run.history[-1] if run.history else {}
    parts = [
        f"# {type(model).__name__} with {type(guide).__name__}",
        OPENING,
        table(("facet", "latents", "components", "prior"), facets),
        table(("", ""), [(name, _in_a_line(value)) for name, value in about.items()]),
        table(("last record", ""), [(name, _in_a_line(value)) for name, value in record.items()]),
    ]
    return "\n\n".join(parts) + "\n"


def _in_a_line(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
