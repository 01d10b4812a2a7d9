"""A measure of several runs over their epochs, as the paper draws it: every run, the mean and one
sample deviation (MFCVAE, Fig. 10, 12, 18 to 20).

python -m lab.benchmarks.draw_curves --measure accuracy_held_out_digit_digit \\
    --panel ladder runs/ladder-* --panel shared runs/shared-* --out curves.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.backend_bases import FigureCanvasBase

from lab.figures import run_curves
from lab.run_lines import whole_lines

__all__ = ["read_curve"]


def read_curve(run: Path, *measures: str) -> dict[int, float]:
    """A run's values of a measure by epoch, from its ``metrics.jsonl``; accuracies in percent.

    :param measures: of several the highest counts, as where any facet may have found the labels.
    :raises SystemExit: if the file is not there, or no record has a measure.
    """
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise SystemExit(
            f"there is no {path}: run folders of examples are needed, but for the quickstart's, "
            "which have none"
        )
    records = list(whole_lines(path.read_text()))
    found: dict[int, float] = {}
    for measure in measures:
        scale = 100 if measure.startswith("accuracy") else 1
        curve = {r["epoch"]: scale * r[measure] for r in records if measure in r}
        if not curve:
            names = sorted({name for record in records for name in record})
            raise SystemExit(f"{path} has no {measure!r}: it has {', '.join(names)}")
        found |= {epoch: max(value, found.get(epoch, value)) for epoch, value in curve.items()}
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--panel",
        nargs="+",
        action="append",
        required=True,
        metavar=("NAME", "RUN"),
        help="a panel's name and its run folders; once for each panel",
    )
    parser.add_argument(
        "--measure",
        nargs="+",
        required=True,
        help="as the run's records name it; of several the highest",
    )
    parser.add_argument("--ylabel", help="(default: the measure's name)")
    parser.add_argument("--out", type=Path, required=True, help="the picture")
    args = parser.parse_args(argv)
    for panel in args.panel:
        if len(panel) < 2:
            parser.error(f"--panel {panel[0]}: a name and at least one run folder are needed")
    names = [panel[0] for panel in args.panel]
    if twice := [name for name in names if names.count(name) > 1]:
        parser.error(f"--panel {twice[0]} is given twice: name all its run folders at once")
    if not args.out.parent.is_dir():
        parser.error(f"--out: there is no folder {args.out.parent}")
    args.out = args.out if args.out.suffix else args.out.with_suffix(".png")
    if args.out.suffix[1:].lower() not in (kinds := FigureCanvasBase.get_supported_filetypes()):
        parser.error(
            f"--out: {args.out.suffix!r} is no kind of picture: give one of {', '.join(kinds)}"
        )
    runs = {
        name: [read_curve(Path(folder), *args.measure) for folder in folders]
        for name, *folders in args.panel
    }
    unit = ", %" if args.measure[0].startswith("accuracy") else ""
    ylabel = args.ylabel or " or ".join(args.measure).replace("_", " ") + unit
    run_curves(runs, "epoch", ylabel).savefig(args.out, dpi=150)
    print(args.out)


if __name__ == "__main__":
    main()
