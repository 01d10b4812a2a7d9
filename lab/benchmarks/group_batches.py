"""What batching groups costs: a million data in a hundred thousand ragged groups against the steps
that they are for.

python -m lab.benchmarks.group_batches

An epoch's batching (shuffling, laying out, cutting into batches and gathering the rows) against the
time that steps of ML-VAE's MNIST network take for as many batches, and the memory that it
takes over that of the data.
"""

from __future__ import annotations

import argparse
import resource
import time
from itertools import islice
from statistics import median

import torch

from guides import GroupedGuide
from inference import Groups, Loss, Rows
from ppl_models import MLP, MLVAE
from ppl_models.given.observed import Observed


def ragged(rows: int, groups: int) -> torch.Tensor:
    """Groups of geometric sizes, the mean being ``rows / groups``, in random order."""
    weights = torch.distributions.Exponential(1.0).sample((groups,))
    extra = torch.multinomial(weights, rows - groups, replacement=True)
    group = torch.cat([torch.arange(groups), extra])
    return group[torch.randperm(rows)]


def peak() -> float:
    """Largest memory of the process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60, help="timed, of the many of an epoch")
    args = parser.parse_args()
    torch.manual_seed(0)
    data = Observed(
        torch.randint(0, 256, (args.rows, 784), dtype=torch.uint8),
        {"group": ragged(args.rows, args.groups)},
    )
    sizes = data.given["group"].bincount()
    megabytes = data.x.nbytes / 2**20
    print(
        f"{args.rows} rows, groups of {int(sizes.min())} to {int(sizes.max())}, {megabytes:.0f} "
        "MiB of data"
    )
    guide = GroupedGuide(MLVAE((784,), 10, 10, network=MLP((500,), "tanh", dropout=0)))
    loss = Loss(guide.model, guide)
    optimizer = torch.optim.Adam(loss.parameters(), fused=True)
    before = peak()
    for name, way in (("by groups", Groups()), ("by rows", Rows())):
        started = time.perf_counter()
        batches = sum(1 for _ in way.batches(data, args.batch_size))
        seconds = time.perf_counter() - started
        print(
            f"{name}: {batches} batches dealt in {seconds:.2f} s, {1e3 * seconds / batches:.3f} "
            "ms a batch"
        )
    print(f"memory of dealing: {peak() - before:.0f} MiB at its highest")
    times = []
    for batch in islice(Groups().batches(data, args.batch_size), args.steps):
        started = time.perf_counter()
        value = loss(batch.x, batch.size, **batch.given)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()
        times.append(time.perf_counter() - started)
    print(f"a step: {1e3 * median(times):.2f} ms (median of {len(times)})")


if __name__ == "__main__":
    main()
