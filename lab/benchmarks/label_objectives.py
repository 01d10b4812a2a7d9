"""Where N-VAE's simplified label term departs from the exact one (its Eq. 6 against Eq. 3).

python -m lab.benchmarks.label_objectives

The paper replaces KL(q(pi given x) || p(pi given y)) by -log q(y given x), saying that up to a
constant this is above it. For classifiers that give the right class more and more probability, the
table has the KL for the posterior of :class:`~guides.classifier.ClassifierGuide`, Dirichlet(alpha_p
+ q), for the paper's own Dirichlet(alpha_q * softmax) with two values of alpha_q, and -log q.
Nothing is trained or drawn.
"""

from __future__ import annotations

import torch
from torch.distributions import Dirichlet, kl_divergence

from lab.run_lines import described_by

CLASSES, CONCENTRATION = 10, 1.0  # alpha_p
RIGHT = (0.9999, 0.99, 0.9, 0.5, 0.1, 0.01, 1e-4, 1e-8)


def row(right: float) -> list[float]:
    """-log q and the KL for each posterior, in nats; the rest of q is spread over other classes."""
    rest = (1 - right) / (CLASSES - 1)
    q = torch.tensor([right] + [rest] * (CLASSES - 1), dtype=torch.float64)
    target = torch.full_like(q, CONCENTRATION)
    target[0] += 1
    total = CLASSES * CONCENTRATION + 1
    posteriors = (CONCENTRATION + q, total * q, 10 * total * q)
    kl = (kl_divergence(Dirichlet(p), Dirichlet(target)) for p in posteriors)
    return [float(-q[0].log()), *map(float, kl)]


def main() -> None:
    parser = described_by(__doc__)
    parser.parse_args()
    total = CLASSES * CONCENTRATION + 1
    names = ("-log q", "alpha_p + q", f"{total:g} softmax", f"{10 * total:g} softmax")
    print(f"{CLASSES} classes, alpha_p = {CONCENTRATION:g}; nats")
    print(f"{'rest':8s}{'q(right)':>10s}" + "".join(f"{name:>16s}" for name in names))
    for right in RIGHT:
        print(f"{'spread':8s}{right:10g}" + "".join(f"{value:16.4g}" for value in row(right)))


if __name__ == "__main__":
    main()
