"""Several hosts, for real: network namespaces on one machine, each with an address of its own and a
link to a bridge, whose processes train one run on shards. One is killed, or its link is cut: what
the others say, and after how many seconds; then all start again and resume.

    python -m lab.benchmarks.several_hosts --hosts 2 4       # as root, with iproute2

`torchrun` starts a process on each host, as a user would. The run that was stopped must end with
the bits of one that was not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyro
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch.utils.data import DataLoader

from guides import VaDEGuide
from inference import Checkpoints, SVIRunner
from lab.run_lines import described_by
from ppl_models import VAE, Normal, SharedMLP

BRIDGE, TIMEOUT, EPOCHS = "facetvae0", 20, 30


def train(folder: Path) -> None:
    """What a host's process does; it has 2,000 rows, more or fewer by a few than the others."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    strategy = DDPStrategy(timeout=timedelta(seconds=TIMEOUT), process_group_backend="gloo")
    fabric = Fabric(accelerator="cpu", devices=1, num_nodes=size, strategy=strategy)
    fabric.launch()
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    model = VAE((50,), 5, Normal(0.2), SharedMLP((64,)))
    runner = SVIRunner(model, VaDEGuide(model))
    x = np.random.default_rng(rank).standard_normal((2000 + 30 * rank, 50), dtype=np.float32)
    kept = Checkpoints(folder / "checkpoints", resume=True)
    loader = DataLoader(torch.from_numpy(x), 32, shuffle=True)
    runner.fit(loader, EPOCHS, progress=False, fabric=fabric, checkpoints=kept)
    if fabric.is_global_zero:
        np.save(
            folder / "end.npy", torch.cat([p.flatten() for p in runner.guide.parameters()]).detach()
        )


def ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True)


@contextmanager
def network(hosts: int) -> Iterator[None]:
    """Namespaces fv0, fv1 and so on, of addresses 10.77.0.1, 10.77.0.2 and so on."""
    try:
        ip(f"link add {BRIDGE} type bridge")
        ip(f"link set {BRIDGE} up")
        for i in range(hosts):
            ip(f"netns add fv{i}")
            ip(f"link add fv{i} type veth peer name eth0 netns fv{i}")
            ip(f"link set fv{i} master {BRIDGE} up")
            ip(f"-n fv{i} addr add 10.77.0.{i + 1}/24 dev eth0")
            ip(f"-n fv{i} link set eth0 up")
            ip(f"-n fv{i} link set lo up")
        yield
    finally:
        for i in range(hosts):
            subprocess.run(["ip", "netns", "del", f"fv{i}"], check=False)
        subprocess.run(["ip", "link", "del", BRIDGE], check=False)


def start(hosts: int, folder: Path) -> list[subprocess.Popen]:
    folder.mkdir(exist_ok=True)
    started = []
    for i in range(hosts):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(hosts)]
        where = ["--node-rank", str(i), "--master-addr", "10.77.0.1", "--master-port", "29500"]
        command = [*torchrun, *where, "-m", "lab.benchmarks.several_hosts", "--train", str(folder)]
        with (folder / f"host-{i}.log").open("w") as log:
            environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
            inside = ["ip", "netns", "exec", f"fv{i}", *command]
            started.append(subprocess.Popen(inside, stdout=log, stderr=log, env=environment))
    return started


def stopped(hosts: int, folder: Path, how: str) -> None:
    """Stop the last host once the first checkpoints are there, and tell how the others end."""
    processes = start(hosts, folder)
    while not list((folder / "checkpoints").glob("step-*/digests.json")):
        time.sleep(0.1)
    last = hosts - 1
    if how == "killed":
        subprocess.run(f"ip netns pids fv{last} | xargs kill -9", shell=True, check=True)
    else:
        ip(f"link set fv{last} down")
    began = time.monotonic()
    for i, process in enumerate(processes):
        process.wait()
        log = (folder / f"host-{i}.log").read_text().splitlines()
        told = [line for line in log if "RuntimeError: another process" in line]
        text = told[0].split("RuntimeError: ")[-1] if told else "nothing"
        print(f"  host {i}: ended after {time.monotonic() - began:.1f} s: {text}", flush=True)
    if how != "killed":
        ip(f"link set fv{last} up")


def main() -> None:
    parser = described_by(__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--train", type=Path, help="what each process is started with")
    args = parser.parse_args()
    if args.train:
        return train(args.train)
    for hosts in args.hosts:
        with tempfile.TemporaryDirectory() as place, network(hosts):
            whole = Path(place) / "whole"
            failed = sum(process.wait() != 0 for process in start(hosts, whole))
            print(f"{hosts} hosts: {failed} failed", flush=True)
            for how in ("killed", "cut off"):
                print(f"{hosts} hosts, the last one {how}:", flush=True)
                stopped(hosts, folder := Path(place) / how.replace(" ", "-"), how)
                failed = sum(process.wait() != 0 for process in start(hosts, folder))
                same = np.array_equal(np.load(folder / "end.npy"), np.load(whole / "end.npy"))
                print(f"  resumed: {failed} failed; the same bits at the end: {same}", flush=True)


if __name__ == "__main__":
    main()
