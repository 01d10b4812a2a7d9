"""Draw docs/graphs/*.svg, the models' graphs as Pyro sees them.

    python docs/draw_graphs.py

Needs Graphviz and its Python package (``pip install graphviz``), which nothing else here does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyro
import torch

from ppl_models import IVAE, MFCVAE, MLVAE, NVAE, VLAC, FacetModel, GaussianMixture, VaDE

FOLDER = Path(__file__).parent / "graphs"


def cases() -> dict[str, tuple[FacetModel, dict[str, Any] | list[dict[str, Any]]]]:
    """A small model of each paper by the picture's name, and what it takes beside four data."""
    label, group = torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 1, 1])
    some = {"label": label, "known": torch.tensor([True, True, False, False])}
    facets = {"style": GaussianMixture(4, 2), "digit": GaussianMixture(5, 3)}
    nvae = NVAE((6,), 3, 2, 2, concentration=1.0)
    return {
        "mfcvae": (MFCVAE((6,), facets), {}),
        "vade": (VaDE((6,), GaussianMixture(5, 3)), {}),
        "ivae": (IVAE((6,), 3, 2), {"label": label}),
        "vlac": (VLAC((6,), [3, 4, 1], [2, 2, 2]), {}),
        "mlvae": (MLVAE((6,), 3, 2), {"group": group}),
        "nvae": (nvae, [{"label": label}, some]),
    }


def draw(name: str, folder: Path = FOLDER) -> Any:
    """Write one picture, and return Graphviz's description of it."""
    model, given = cases()[name]
    x = torch.full((4, *model.x_shape), 0.5)
    return pyro.render_model(model, (x,), given, filename=str(folder / f"{name}.svg"))


if __name__ == "__main__":
    for name in cases():
        draw(name)
        print(f"{FOLDER / name}.svg")
