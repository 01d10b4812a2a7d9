"""What every example shares: its flags, its run folder, and scoring facets against labels."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from examples.datasets import Dataset
from guides import FacetGuide
from inference.metrics import clustering_scores

__all__ = ["build_parser", "format_scores", "open_run_folder", "score_facets"]


def build_parser(description: str | None, name: str) -> argparse.ArgumentParser:
    """The flags that all examples have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--smoke", action="store_true", help="sizes for a run of seconds, on data that needs no files")
    parser.add_argument("--data-root", type=Path, help="where data sets lie (default: $FACETVAE_DATA, else ./data)")
    parser.add_argument("--seed", type=int, default=0, help="of networks, shuffling and draws (default: 0)")
    parser.add_argument("--device", default="cpu", help='such as "cpu" or "cuda" (default: cpu)')
    parser.add_argument("--out", type=Path, default=Path("runs") / name, help=f"run folder (default: runs/{name})")
    return parser


def open_run_folder(args: argparse.Namespace) -> Path:
    """Create ``args.out`` and note there how the example was called."""
    args.out.mkdir(parents=True, exist_ok=True)
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    (args.out / "arguments.json").write_text(json.dumps(arguments, indent=2) + "\n")
    return args.out


def score_facets(guide: FacetGuide, data: Dataset) -> dict[str, dict[str, float]]:
    """Scores of every facet's test clusters against the labels: ``{facet: {score: value}}``."""
    train, test = guide.predict(data.train), guide.predict(data.test)
    return {
        facet: clustering_scores(data.test_labels, test[facet], map_from=(data.train_labels, train[facet]))
        for facet in test
    }


def format_scores(scores: dict[str, dict[str, float]]) -> str:
    """A table of scores, one facet a line."""
    columns = list(next(iter(scores.values())))
    rows = [f"{'facet':10s}" + "  ".join(columns)]
    for facet, values in scores.items():
        rows.append(f"{facet:10s}" + "  ".join(f"{values[name]:{len(name)}.3f}" for name in columns))
    return "\n".join(rows)
