"""Gumbel-softmax against enumeration on a small VLAC: the same fitted posterior, clusters handled
in several ways.

    python -m lab.benchmarks.vlac_estimators --seed 0

Two layers of 4 and 8 clusters on the bundled 8x8 digits, trained by enumeration from a warm start;
then each estimator of its objective on 16 training data. Bias is against enumeration, in nats per
datum.
"""

from __future__ import annotations

import pyro
import torch
from elbocheck import compare_estimators
from elbocheck.pytorch import Program

from facetvae.datasets import digits
from guides import GumbelSoftmax, LadderGuide, ScoreFunction
from guides.discrete import Discrete
from inference import Loss, SVIRunner, warm_start
from lab.run_lines import described_by
from ppl_models import VLAC, MLPLadder, Normal

# Of each loss; a tenth as many of its gradient.
DRAWS = 5000


def handled(guide: LadderGuide, discrete: Discrete | None) -> Loss:
    """The same posterior, its clusters handled in another way."""
    twin = LadderGuide(guide.model, discrete=discrete)
    twin.encoder, twin.classifier = guide.encoder, guide.classifier
    return Loss(guide.model, twin)


def main() -> None:
    parser = described_by(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=60, help="of each stage")
    args = parser.parse_args()
    data = digits()
    pyro.set_rng_seed(args.seed)
    guide = LadderGuide(VLAC((64,), (4, 8), (3, 5), Normal(0.15), MLPLadder((64, 128))))
    options = {"batch_size": 64, "log_every": args.epochs, "progress": False}
    warm_start(
        SVIRunner(guide.model, guide, lr=1e-3, seed=args.seed), data.train, args.epochs, **options
    )
    runner = SVIRunner(guide.model, guide, lr=1e-3, seed=args.seed).fit(
        data.train, args.epochs, **options
    )
    print(
        {
            name: round(value, 2)
            for name, value in runner.history[-1].items()
            if name[:2] in ("el", "kl", "mu")
        }
    )
    losses = {"enumerated": handled(guide, None)}
    losses |= {f"Gumbel soft, {t}": handled(guide, GumbelSoftmax(t)) for t in (1.0, 0.5, 0.2)}
    losses |= {
        f"straight-through, {t}": handled(guide, GumbelSoftmax(t, hard=True)) for t in (1.0, 0.5)
    }
    losses["score function"] = handled(guide, ScoreFunction("none"))
    x = torch.as_tensor(data.train[:16])
    programs = {name: Program(loss, x) for name, loss in losses.items()}
    reports = compare_estimators(programs, programs["enumerated"], DRAWS, args.seed)
    columns = (
        "bias",
        "bias_error",
        "variance",
        "gradient_variance",
        "signal_to_noise",
        "cosine",
        "milliseconds",
    )
    print(f"{'':24s}" + "".join(f"{column:>20s}" for column in columns))
    for name, report in reports.items():
        print(f"{name:24s}" + "".join(f"{getattr(report, column):20.4g}" for column in columns))


if __name__ == "__main__":
    main()
