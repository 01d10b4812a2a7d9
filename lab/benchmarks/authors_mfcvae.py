"""MFCVAE on MNIST by its authors' own model, to stand beside `lab.protocols.mfcvae`.

    OMP_NUM_THREADS=1 python -m lab.benchmarks.authors_mfcvae CHECKOUT --data-root DATA --seed 0 \\
        --out runs/authors-0

CHECKOUT is their repository, github.com/FabianFalck/mfcvae (MIT license; 9f1eca4 was run). Model,
loss, schedule and start are theirs, with the values of their `configs/mnist.yml`. This program has
their training loop (in the first epoch no step is taken), without its logging and pictures, and
scores clusters and probes as `lab.protocols.mfcvae` does. Distributions' arguments are not checked,
as a Bernoulli of gray values needs it with today's torch. A run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from facetvae.datasets import Dataset, some_rows
from inference.metrics import cluster_accuracy, probe_accuracy
from lab.protocols.datasets import load
from lab.run_lines import described_by, whole_lines

BATCH_SIZE, RATE = 512, 5e-4
FACETS = ("style", "digit")


def authors_model(checkout: Path, epochs: int, batches: int) -> Any:
    """Their model at the sizes of their configuration for MNIST.

    :raises SystemExit: if their modules are not in the folder.
    """
    if not (checkout / "mfcvae.py").is_file():
        raise SystemExit(
            f"there is no mfcvae.py in {checkout}: give a checkout of their repository"
        )
    sys.path.insert(0, str(checkout.resolve()))
    if importlib.util.find_spec("boilr") is None:  # of which they need this function alone
        parent, utils = types.ModuleType("boilr"), types.ModuleType("boilr.utils")
        utils.to_np = lambda values: values.detach().cpu().numpy()  # type: ignore[attr-defined]
        sys.modules |= {"boilr": parent, "boilr.utils": utils}
    return importlib.import_module("mfcvae").MFCVAE(
        in_dim=784,
        J_n_mixtures=2,
        z_j_dim_list=[5, 5],
        n_clusters_j_list=[25, 25],
        encode_layer_dims=[[500, "branch"], [2000, "branch"]],
        decode_layer_dims=[[500, "merge", 500], [2000, 500]],
        device=torch.device("cpu"),
        n_train_batches_per_epoch=batches,
        n_epochs_per_progressive_step=[epochs, epochs],
        n_batches_fade_in=15_000,
    )


def train(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, epoch: int) -> float:
    """An epoch; returns its mean loss, in nats per datum."""
    model.train()
    total = 0.0
    for number, order in enumerate(torch.randperm(len(x)).split(BATCH_SIZE)):
        batch = x[order]
        optimizer.zero_grad()
        x_hat, posteriors, draws = model.forward(batch, epoch, number)
        loss = model.compute_loss_5terms(batch, x_hat, posteriors, draws, epoch)[0]
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * len(batch)
    return total / len(x)


@torch.no_grad()
def encoded(model: Any, x: Tensor, epoch: int) -> dict[str, dict[str, Tensor]]:
    """Means and draws of the latents ``[N, d]``, by what reads them: of each facet, and of both."""
    model.eval()
    parts = [model.forward(part, epoch, 0)[1] for part in x.split(BATCH_SIZE)]
    means = [torch.cat([q[j].mean for q in parts]) for j in range(len(FACETS))]
    draws = [torch.cat([q[j].sample() for q in parts]) for j in range(len(FACETS))]
    return {
        name: dict(zip(FACETS, z, strict=True)) | {"joint": torch.cat(z, 1)}
        for name, z in (("probe_means", means), ("probe", draws))
    }


def accuracies(model: Any, data: Dataset, test: Tensor, epoch: int) -> dict[str, float]:
    """Of the test images' clusters, at posterior means, by facet."""
    means = encoded(model, test, epoch)["probe_means"]
    with torch.no_grad():
        found = model.compute_q_c_j_x([means[facet] for facet in FACETS])
    return {
        name: cluster_accuracy(data.test_labels["digit"], each.argmax(1).numpy())
        for name, each in zip(FACETS, found, strict=True)
    }


def probes(model: Any, data: Dataset, x: Tensor, test: Tensor, epoch: int, seed: int) -> Any:
    """How well a classifier predicts the digit from samples and means of the facets."""
    scores: dict[str, dict[str, float]] = {}
    train, held_out = encoded(model, x, epoch), encoded(model, test, epoch)
    for name, latents in train.items():
        for facet, z in latents.items():
            read = z.numpy(), data.train_labels["digit"]
            read += held_out[name][facet].numpy(), data.test_labels["digit"]
            scores.setdefault(facet, {})[name] = probe_accuracy(*read, seed)
    return scores


def keep(folder: Path, model: Any, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state | {"random": torch.get_rng_state()}, folder / "state.pt")


def go_on(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> int:
    """The number of epochs that the run in the folder has had, whose state is restored."""
    if not (folder / "state.pt").is_file():
        return 0
    state = torch.load(folder / "state.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    return int(state["epoch"])


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = described_by(__doc__)
    parser.add_argument("checkout", type=Path, help="their repository")
    parser.add_argument("--data-root", help="where MNIST is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=201, help="of each phase")
    parser.add_argument("--evaluate-every", type=int, default=20)
    parser.add_argument("--train-rows", type=int, help="most training images")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    torch.distributions.Distribution.set_default_validate_args(False)
    data = load("mnist", args.data_root)
    data = some_rows(data, args.train_rows or len(data.train))
    x, test = (
        torch.as_tensor(np.asarray(images, np.float32) / 255).flatten(1)
        for images in (data.train, data.test)
    )
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002 (their start draws from it)
    model = authors_model(args.checkout, args.epochs, -(-len(x) // BATCH_SIZE))
    model.initialize_fc_layers()
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=RATE)

    args.out.mkdir(parents=True, exist_ok=True)
    metrics = args.out / "metrics.jsonl"
    done, last = go_on(args.out, model, optimizer), 2 * args.epochs - 1
    if done:
        lines = [line for line in whole_lines(metrics.read_text()) if line["epoch"] <= done]
        metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    else:
        metrics.write_text("")
        model.initialize_p_z_c_params_with_gmm([(x, None)], "fc_vlae", -1, -1)
    for epoch in range(done + 1, last + 1):
        record: dict[str, Any] = {"epoch": epoch, "loss": train(model, optimizer, x, epoch)}
        scored = epoch % args.evaluate_every == 0 or epoch == last
        if scored:
            found = accuracies(model, data, test, epoch)
            record |= {f"accuracy_{name}": value for name, value in found.items()}
            print(record, flush=True)
        with metrics.open("a") as file:
            file.write(json.dumps(record) + "\n")
        if scored:  # after its line, which a run that goes on keeps
            keep(args.out, model, optimizer, epoch)

    scores = probes(model, data, x, test, last, args.seed)
    for name, value in accuracies(model, data, test, last).items():
        scores[name]["accuracy"] = value
    (args.out / "scores.json").write_text(json.dumps(scores, indent=2))
    print(json.dumps(scores, indent=2))


if __name__ == "__main__":
    main()
