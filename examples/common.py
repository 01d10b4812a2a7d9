"""What the examples share: flags, data, scores of facets against labels, and the run's folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from facetvae import FacetGuide, SVIRunner
from facetvae.datasets import DATASETS, Dataset, digits, some_rows
from inference.figures import save_figures
from inference.metrics import cluster_accuracy, clustering_scores
from inference.randomness import usable_device
from ppl_models.given.checks import check_seed

SMOKE_ROWS = 380, 120  # training and test images
#: ``{facet: {label: {score: value}}}``
Scores = dict[str, dict[str, dict[str, float]]]
#: ``{row: {column: a value for each seed}}``
Table = dict[str, dict[str, list[float]]]


def parse(
    name: str,
    description: str | None,
    argv: list[str] | None,
    datasets: Sequence[str] = (),
    seeds: Sequence[int] = (),
) -> argparse.Namespace:
    """The flags of that example.

    :param datasets: what it can be run on, its default first; none for digits alone.
    :param seeds: by default, of an example with many runs, which has ``--seeds`` for ``--seed``.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m examples.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(dataset="digits", data_root=None)
    parser.add_argument("--smoke", action="store_true", help="a run of seconds, without files")
    if datasets:
        parser.add_argument("--dataset", choices=datasets, default=datasets[0])
        parser.add_argument(
            "--data-root", type=Path, help="where data are (default: $FACETVAE_DATA, else ./data)"
        )
    if seeds:
        parser.add_argument("--seeds", type=int, nargs="+", default=seeds, help="--smoke takes two")
    else:
        parser.add_argument("--seed", type=int, default=0, help="of all that is random")
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--out", type=Path, default=Path("runs", name), help="the run's folder")
    args = parser.parse_args(argv)
    if seeds and args.smoke:
        args.seeds = args.seeds[:2]
    try:
        for seed in args.seeds if seeds else [args.seed]:
            check_seed("seed", seed)
        usable_device(args.device)
    except ValueError as error:
        parser.error(str(error))
    if any(place.is_file() for place in (args.out, *args.out.parents)):
        parser.error(f"--out {args.out}: it, or a folder above it, is a file")
    return args


def load_data(args: argparse.Namespace) -> Dataset:
    """The data set that was asked for; in a smoke run a few hundred digits.

    :raises FileNotFoundError: if its files are not there, saying what is needed.
    """
    if args.smoke:
        return some_rows(digits(), *SMOKE_ROWS)
    return DATASETS[args.dataset](args.data_root)


def score_facets(guide: FacetGuide, data: Dataset) -> Scores:
    """Scores of every facet's test clusters against every label, and the accuracy of its training
    clusters (``accuracy_train``).
    """
    train, test = guide.predict(data.train), guide.predict(data.test)
    return {
        facet: {
            label: clustering_scores(
                data.test_labels[label], test[facet], (data.train_labels[label], train[facet])
            )
            | {"accuracy_train": cluster_accuracy(data.train_labels[label], train[facet])}
            for label in data.test_labels
        }
        for facet in test
    }


def format_scores(scores: Scores) -> str:
    """A line for each facet and label."""
    rows = {
        f"{facet:13s} {label}": row for facet, of in scores.items() for label, row in of.items()
    }
    one = {name: {score: [value] for score, value in row.items()} for name, row in rows.items()}
    return format_table(f"{'facet':13s} label", one)


def format_table(title: str, table: Table) -> str:
    """Means, with sample deviations in brackets where there are several values."""
    columns = list(max(table.values(), key=len))
    lines = [[title, *columns]]
    lines += [
        [name, *(_cell(row.get(each, [])) for each in columns)] for name, row in table.items()
    ]
    widths = [2 + max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{first:{widths[0]}s}" + "".join(map(str.rjust, cells, widths[1:]))
        for first, *cells in lines
    )


def _cell(values: Sequence[float]) -> str:
    spread = f" ({stdev(values):.2g})" if len(values) > 1 else ""
    return f"{mean(values):.4g}{spread}" if values else ""


def save_run(
    runner: SVIRunner, data: Dataset, scores: Mapping[str, Any], out: Path, **given: np.ndarray
) -> None:
    """Write the run into ``out``, so that ``facetvae explore`` finds it and its data: of data that
    it cannot load by their name, the test rows are written too.

    :param given: what the model takes beside x, of the test rows.
    """
    runner.save(out)
    write_json(out / "run.json", {"data": data.name})
    if data.name not in DATASETS:
        np.save(out / "test.npy", data.test)
    write_json(out / "scores.json", scores)
    save_figures(
        out / "figures", runner.guide, data.test, runner.history, data.image_shape, **given
    )
    print(f"look at it: facetvae explore {out}")


def write_json(path: Path, content: Any) -> None:
    """Write a file of a run, and its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
