"""Score pairs of finished runs of examples.identifiability_images once more, from their
checkpoints.

python -m benchmarks.rescore_pairs --data-root DATA runs/identifiability_images/VaDE
runs/identifiability_images/iVAE
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, median

from examples.datasets import load
from examples.identifiability_images import as_images, compare
from inference import SVIRunner


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", type=Path)
    parser.add_argument(
        "runs", nargs="+", type=Path, help="folders of one model each, with a folder for each seed"
    )
    args = parser.parse_args()
    for run in args.runs:
        settings = json.loads((run / "results.json").read_text())["settings"]
        data = as_images(load(settings["data"], args.data_root))
        latents = []
        for folder in sorted(run.glob("seed-*")):
            guide = SVIRunner.load(folder).guide
            given = {"label": data.test_labels["digit"]} if guide.takes else {}
            latents.append(guide.embed(data.test, **given)["z"])
        used = [int((z.std(0) > 0.1).sum()) for z in latents]
        print(f"{run.name}: coordinates whose posterior mean varies by more than 0.1: {used}")
        for name, values in compare(latents, places=1).items():
            spread = f"{min(values):.3f} to {max(values):.3f}"
            print(f"  {name:32s} median {median(values):.3f}, mean {mean(values):.3f}, {spread}")


if __name__ == "__main__":
    main()
