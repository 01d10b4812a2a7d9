"""What every example shares: its flags, its run folder, and scoring facets against labels."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from examples.datasets import Dataset
from guides import FacetGuide
from inference import SVIRunner
from inference.callbacks import Evaluate, JSONLines
from inference.figures import save_figures
from inference.metrics import clustering_scores, probe_accuracy

__all__ = ["add_training_flags", "build_parser", "fit_and_report", "format_scores", "open_run_folder", "score_facets"]


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


def add_training_flags(parser: argparse.ArgumentParser, **defaults: int | float) -> None:
    """The flags of examples that train on a choice of data sets; ``defaults`` for rate, batch and logging."""
    parser.add_argument("--dataset", choices=("mnist", "digits"), default="mnist")
    parser.add_argument("--lr", type=float, default=defaults["lr"], help="Adam's rate")
    parser.add_argument("--batch-size", type=int, default=defaults["batch_size"])
    parser.add_argument("--init", choices=("pytorch", "glorot_normal"), default="pytorch", help="of the networks")
    parser.add_argument("--precision", choices=("float32", "bf16"), default="float32", help="of the networks")
    parser.add_argument("--evaluate-every", type=int, default=defaults["evaluate_every"], help="epochs between scores")


def open_run_folder(args: argparse.Namespace) -> Path:
    """Create ``args.out`` and note there how the example was called."""
    args.out.mkdir(parents=True, exist_ok=True)
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
    (args.out / "arguments.json").write_text(json.dumps(arguments, indent=2) + "\n")
    return args.out


def fit_and_report(
    runner: SVIRunner, data: Dataset, out: Path, epochs: int, batch_size: int, evaluate_every: int
) -> dict[str, dict[str, float]]:
    """Train, then leave everything in ``out``: metrics by line, checkpoint, scores, figures."""

    def accuracies(runner: SVIRunner) -> dict[str, float]:
        return {f"accuracy_{facet}": score["accuracy"] for facet, score in score_facets(runner.guide, data).items()}

    callbacks = [Evaluate(accuracies, evaluate_every), JSONLines(out / "metrics.jsonl")]
    runner.fit(data.train, epochs=epochs, batch_size=batch_size, callbacks=callbacks)
    runner.save(out)
    scores = score_facets(runner.guide, data)
    for facet, accuracy in probe_facets(runner.guide, data, runner.seed).items():
        scores[facet]["probe"] = accuracy
    (out / "scores.json").write_text(json.dumps(scores, indent=2) + "\n")
    save_figures(out / "figures", runner.guide, data.test, runner.history, data.image_shape)
    print(format_scores(scores))
    return scores


def probe_facets(guide: FacetGuide, data: Dataset, seed: int) -> dict[str, float]:
    """How well a classifier reads the label from each facet's latent vector alone (MFCVAE, Table 1)."""
    train, test = guide.embed(data.train), guide.embed(data.test)
    return {
        facet: probe_accuracy(train[facet], data.train_labels, test[facet], data.test_labels, seed) for facet in train
    }


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
