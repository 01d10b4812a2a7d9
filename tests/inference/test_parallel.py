"""Several processes train what one process trains: the same objective and gradient, and nothing is
told twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from guides import FacetGuide
from inference import Checkpoints, Guard, SVIRunner, WarmUp
from inference.callbacks import JSONLines
from inference.checkpoints.training_state import read
from inference.distributed import DataParallel
from inference.training import data_source
from inference.training.data_source import LoaderSource, data_source_for
from ppl_models.given.observed import Observed
from tests.catalog import EACH, given, mlvae, mlvae_similar_contents, two_facets

pytestmark = pytest.mark.slow(15)

lightning_fabric = pytest.importorskip("lightning_fabric", reason="needs facetvae[parallel]")

N = 12


class Rank(DataParallel):
    """One of several processes, as far as it goes without the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw is the same for all rows, whichever process a row is in."""
    for name, value in (("randn", 0.3), ("rand", 0.4)):
        monkeypatch.setattr(
            torch, name, lambda *shape, v=value, **o: torch.full(_shape(shape), v, **_kept(o))
        )
    monkeypatch.setattr(
        torch, "multinomial", lambda p, n, replacement: p.argmax(-1, keepdim=True).expand(-1, n)
    )


def _shape(shape: tuple) -> tuple:
    return tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape


def _kept(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name in {"dtype", "device"}}


def gradients(
    runner: SVIRunner, batch: Observed, counts: float
) -> tuple[float, list[torch.Tensor]]:
    """The weighed objective of a part and its gradient, 0 where nothing counts."""
    runner.optimizer.zero_grad(set_to_none=False)
    loss = counts * runner.loss(batch.x, batch.size, **batch.given)
    loss.backward()
    return float(loss.detach()), [
        torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in runner.loss.parameters()
    ]


# What is said of similar contents is said of pairs of groups, which parts of a batch tear apart.
SUMS = [build for build in EACH if build is not mlvae_similar_contents]


@pytest.mark.parametrize("size", [3, 13])
@pytest.mark.parametrize("build", SUMS, ids=lambda f: f.__name__)
def test_parts_make_up_the_whole(
    build: Callable[[], FacetGuide], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In evaluation mode and float64; 13 processes are more than there are rows."""
    guide = build().double()
    x = (255 * torch.rand(N, *guide.model.x_shape, dtype=torch.float64)).round() / 255
    runner = SVIRunner(guide.model, guide)
    data = guide.observed(x, given(guide, N))
    batch = (
        next(data_source_for(guide, runner.device, x, given(guide, N), N, None).batches(0))
        if "group" in data.given
        else data
    )
    runner.loss.eval()
    without_noise(monkeypatch)
    whole, wanted = gradients(runner, batch, 1.0)
    parts = [gradients(runner, *Rank(rank, size).shard(batch)) for rank in range(size)]
    assert sum(loss for loss, _ in parts) / size == pytest.approx(whole, rel=1e-10)
    for i, gradient in enumerate(wanted):
        mean = sum(each[i] for _, each in parts) / size
        torch.testing.assert_close(mean, gradient, rtol=1e-8, atol=1e-10)


def run(
    rank_of: Any, folder: Path, sizes: dict[str, Any], seed: int = 0, **options: Any
) -> SVIRunner:
    """A run of one process, or of this one among several."""
    pyro.set_rng_seed(seed)
    guide = two_facets().double()
    runner = SVIRunner(guide.model, guide, lr=1e-2, seed=seed, **options)
    folder.mkdir(parents=True, exist_ok=True)
    calls = [lambda runner, record: record.update(called=1), JSONLines(folder / "metrics.jsonl")]
    x = torch.rand(26, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sizes = {"batch_size": 8, "progress": False, **sizes}
    return runner.fit(x, callbacks=calls, fabric=rank_of, **sizes)


def state(runner: SVIRunner) -> dict[str, Any]:
    parameters = {name: p.detach().flatten().tolist() for name, p in runner.loss.named_parameters()}
    rates = [group["lr"] for group in runner.optimizer.param_groups]
    history = [{**record, "seconds": 0} for record in runner.history]
    return {"parameters": parameters, "history": history, "rates": rates, "step": runner.step}


def launched(work: Callable[..., Any], size: int, *arguments: Any) -> Any:
    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=size, strategy="ddp_fork")
    return fabric.launch(work, *arguments)


def several(
    fabric: Any,
    folder: Path,
    noisy: bool,
    checkpoints: bool,
    resume: bool,
    epochs: int,
    mode: str | None = "auto",
) -> None:
    """What each process does; it leaves its state in a file."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        if not noisy:
            without_noise(patch)
        kept = Checkpoints(folder / "checkpoints", resume=resume) if checkpoints else None
        sizes = {"epochs": epochs, "checkpoints": kept}
        runner = run(fabric, folder, sizes, schedule=WarmUp(4), compile=mode)
        streams = [int(stream.long().sum()) for stream in runner.random_state]
    (folder / f"rank-{fabric.global_rank}.json").write_text(
        json.dumps(state(runner) | {"streams": streams})
    )


def states(folder: Path, size: int) -> list[Any]:
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.parametrize(("size", "mode"), [(2, None), (3, None), (2, "replay")])
def test_processes_end_where_one_process_ends(
    size: int, mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draws that are the same for all; batches of 8, 8, 8 and 2 rows."""
    launched(several, size, tmp_path / "many", False, False, False, 4, mode)
    ranks = states(tmp_path / "many", size)
    without_noise(monkeypatch)
    alone = state(run(None, tmp_path / "alone", {"epochs": 4}, schedule=WarmUp(4)))
    for rank in ranks:
        assert rank["step"] == alone["step"] == 16
        for name, values in alone["parameters"].items():
            assert rank["parameters"][name] == pytest.approx(values, rel=1e-6, abs=1e-9), name
        assert rank["history"] == [pytest.approx(record, rel=1e-6) for record in alone["history"]]
    assert len((tmp_path / "many" / "metrics.jsonl").read_text().splitlines()) == 4, (
        "the first process alone writes"
    )


def test_processes_draw_what_no_other_draws(tmp_path: Path) -> None:
    launched(several, 3, tmp_path, True, False, False, 1)
    ranks = states(tmp_path, 3)
    assert len({tuple(rank["streams"]) for rank in ranks}) == 3
    assert ranks[0]["parameters"] == ranks[1]["parameters"] == ranks[2]["parameters"]
    assert ranks[0]["history"] == ranks[1]["history"]


def test_checkpoints_move_between_numbers_of_processes(tmp_path: Path) -> None:
    """Three resume bit for bit what three were stopped at; one, or two, go on as well."""
    launched(several, 3, tmp_path / "unbroken", True, True, False, 6)
    whole = states(tmp_path / "unbroken", 3)
    written = Checkpoints(tmp_path / "unbroken" / "checkpoints", resume=True).written()
    assert [path.name for path in written] == ["step-0000000020", "step-0000000024"]
    assert [len(streams) for streams in read(written[0])["random"]] == [1, 1, 1]
    for size in (1, 2, 3):
        folder = tmp_path / f"by-{size}"
        (folder / "checkpoints").mkdir(parents=True)
        written[0].rename(folder / "checkpoints" / written[0].name)
        launched(several, size, folder, True, True, True, 6)
        (folder / "checkpoints" / written[0].name).rename(written[0])
        ranks = states(folder, size)
        assert all(rank["step"] == 24 for rank in ranks)
        assert [record["epoch"] for record in ranks[0]["history"]] == [1, 2, 3, 4, 5, 6]
        assert (ranks[0]["parameters"] == whole[0]["parameters"]) == (size == 3)
        assert all(rank["parameters"] == ranks[0]["parameters"] for rank in ranks)


def failing(fabric: Any, folder: Path) -> None:
    """The first process halves the rate and asks for the end; a fault in one holds all."""
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    guide = two_facets()
    runner = SVIRunner(guide.model, guide, guard=Guard("skip"))
    original, taken = runner.loss.forward, []

    def forward(*args: Any, **options: Any) -> torch.Tensor:
        taken.append(1)
        broken = (
            fabric.global_rank == 1 and len(taken) == 3
        )  # the first one is the check before the first step
        return original(*args, **options) * (float("nan") if broken else 1.0)

    def slower(runner: SVIRunner, record: dict[str, Any]) -> None:
        runner.optimizer.param_groups[0]["lr"] /= 2
        runner.should_stop = record["epoch"] == 2

    runner.loss.forward = forward  # type: ignore[method-assign]
    runner.fit(
        torch.rand(16, 6), epochs=5, batch_size=4, progress=False, fabric=fabric, callbacks=[slower]
    )
    (folder / f"rank-{fabric.global_rank}.json").write_text(json.dumps(state(runner)))


def test_what_one_process_meets_holds_for_all(tmp_path: Path) -> None:
    launched(failing, 2, tmp_path)
    one, other = states(tmp_path, 2)
    assert one == other
    assert [record.get("skipped") for record in one["history"]] == [1, None]
    assert one["rates"] == [5e-4 / 4]
    assert one["step"] == 8


def apart(fabric: Any, folder: Path, how: str) -> None:
    """Called otherwise in one process than in the other; each leaves what it was told."""
    torch.set_num_threads(1)
    rank = fabric.global_rank
    pyro.set_rng_seed(0)
    guide = two_facets()
    runner = SVIRunner(guide.model, guide, seed=rank if how == "seed" else 0)
    x = torch.rand(16, 6, generator=torch.Generator().manual_seed(rank if how == "data" else 0))

    def refuses(runner: SVIRunner, record: dict[str, Any]) -> None:
        raise OSError("no room for a figure")

    callbacks = [refuses] if how == "callback" else []
    try:
        runner.fit(x, epochs=1, batch_size=4, progress=False, fabric=fabric, callbacks=callbacks)
    except Exception as error:
        (folder / f"rank-{rank}.json").write_text(json.dumps(f"{type(error).__name__}: {error}"))


@pytest.mark.parametrize("how", ["seed", "data"])
def test_processes_that_are_called_apart_are_refused(how: str, tmp_path: Path) -> None:
    launched(apart, 2, tmp_path, how)
    one, other = states(tmp_path, 2)
    assert one == other
    assert "the processes called fit with other data, parts or seeds than one another" in one


def test_what_fails_in_the_first_process_ends_all(tmp_path: Path) -> None:
    launched(apart, 2, tmp_path, "callback")
    assert states(tmp_path, 2) == [
        "OSError: no room for a figure",
        "RuntimeError: the first process ended with OSError: no room for a figure",
    ]


def test_groups_stay_whole() -> None:
    guide = mlvae()
    x, beside = torch.rand(N, 6), {"group": torch.arange(N) // 2 % 3}
    batch = next(data_source_for(guide, torch.device("cpu"), x, beside, N, None).batches(0))
    parts = [Rank(rank, 2).shard(batch)[0] for rank in range(2)]
    assert sorted(len(part) for part in parts) == [4, 8]
    assert sorted(len(part.given["group"].unique()) for part in parts) == [1, 2]


def test_a_fabric_that_was_not_launched_is_refused() -> None:
    guide = two_facets()
    fabric = lightning_fabric.Fabric(accelerator="cpu", devices=1)
    with pytest.raises(ValueError, match=r"call fabric.launch\(\) before the model is built"):
        SVIRunner(guide.model, guide).fit(torch.rand(4, 6), epochs=1, fabric=fabric)


class Counted(TensorDataset):
    """Rows that count how often each is read, in worker processes as well."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.read = torch.zeros(len(tensors[0]), dtype=torch.int64).share_memory_()

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, ...]:
        self.read[index] += 1
        return super().__getitem__(index)


class Drawn(TensorDataset):
    """Each row is drawn when it is read."""

    def __getitem__(self, index: Any) -> torch.Tensor:
        return torch.rand(6, dtype=torch.float64)


class InTurn(IterableDataset):
    """Rows without indices."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __iter__(self) -> Any:
        return iter(self.x)


ROWS = torch.rand(22, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def halved(items: list[tuple[torch.Tensor]]) -> torch.Tensor:
    """A collate_fn: half of each row."""
    return torch.stack([x for (x,) in items]) / 2


def first_alone(items: list[tuple[torch.Tensor]]) -> torch.Tensor:
    """A collate_fn: one row of several items."""
    return items[0][0][None]


def reading(fabric: Any, folder: Path, workers: int) -> None:
    """Trains on a loader; leaves its state, and how often it read each row."""
    torch.set_num_threads(1)
    pyro.set_rng_seed(0)
    guide, rows = two_facets().double(), Counted(ROWS)
    sizes = {"batch_size": 8, "num_workers": workers}
    loader = DataLoader(rows, shuffle=True, collate_fn=halved, **sizes)
    with pytest.MonkeyPatch.context() as patch:
        without_noise(patch)
        patch.setattr(data_source, "HELD_ROWS", 1)
        runner = SVIRunner(guide.model, guide, lr=1e-2)
        runner.fit(loader, epochs=3, progress=False, fabric=fabric)
    rank = 0 if fabric is None else fabric.global_rank
    (folder / f"rank-{rank}.json").write_text(
        json.dumps(state(runner) | {"read": int(rows.read.sum())})
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_process_reads_its_own_items_alone(workers: int, tmp_path: Path) -> None:
    """Besides the first batch, which all read (workers, two ahead): 3 passes over batches of 8,
    8 and 6 rows.
    """
    for size in (1, 3):
        (tmp_path / f"{size}").mkdir()
    reading(None, tmp_path / "1", 0)
    (alone,) = states(tmp_path / "1", 1)
    launched(reading, 3, tmp_path / "3", workers)
    ranks = states(tmp_path / "3", 3)
    assert alone["read"] == 8 + 3 * 22
    first = range(8, 22 + 1) if workers else [8]
    own = [3 + 3 + 2, 3 + 3 + 2, 2 + 2 + 2]
    assert all(rank["read"] - 3 * each in first for rank, each in zip(ranks, own, strict=True))
    for rank in ranks:
        assert rank["history"] == [pytest.approx(record, rel=1e-6) for record in alone["history"]]
        for name, values in alone["parameters"].items():
            assert rank["parameters"][name] == pytest.approx(values, rel=1e-6, abs=1e-9), name


def sources(loader: DataLoader, size: int, build: Any = two_facets) -> list[LoaderSource]:
    guide = build().double()
    ranks = [Rank(rank, size) for rank in range(size)]
    return [LoaderSource(loader, guide, torch.device("cpu"), rank) for rank in ranks]


class Backwards(Sampler):
    """Batches of 4 from a random place backwards: it draws in each batch."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        for _ in range(5):
            start = int(torch.randint(22, ()))
            yield tuple((start - i) % 22 for i in range(4))


LOADERS: dict[str, Callable[[], DataLoader]] = {
    "in order": lambda: DataLoader(TensorDataset(ROWS), 8),
    "shuffled": lambda: DataLoader(TensorDataset(ROWS), 8, shuffle=True),
    "the last left out": lambda: DataLoader(TensorDataset(ROWS), 8, shuffle=True, drop_last=True),
    "a generator of its own": lambda: DataLoader(
        TensorDataset(ROWS), 8, shuffle=True, generator=torch.Generator()
    ),
    "weighted": lambda: DataLoader(
        TensorDataset(ROWS), 8, sampler=WeightedRandomSampler([1.0] * 22, 30)
    ),
    "batches of its own": lambda: DataLoader(TensorDataset(ROWS), batch_sampler=Backwards()),
    "workers": lambda: DataLoader(TensorDataset(ROWS), 8, shuffle=True, num_workers=1),
}


# Processes that start processes take their time.
@pytest.mark.parametrize(
    ("kind", "size"),
    [(kind, size) for kind in LOADERS for size in (2, 9)[: 1 + (kind != "workers")]],
)
def test_parts_of_a_loaders_batches_are_those_of_one_process(kind: str, size: int) -> None:
    """With nine processes some have no row of a batch, and read its first, which does not count."""
    loader = LOADERS[kind]()
    (alone,) = sources(loader, 1)
    parted = sources(loader, size)
    assert not alone.in_parts
    assert all(source.in_parts for source in parted)
    batches = zip(alone.batches(1), *(source.batches(1) for source in parted), strict=True)
    for whole, *parts in batches:
        sharded = [each.processes.shard(part) for each, part in zip(parted, parts, strict=True)]
        weights = [counts for _, counts in sharded]
        own = [part.x for part, counts in sharded if counts]
        assert sum(weights) == pytest.approx(size)
        for rank, x in enumerate(own):
            torch.testing.assert_close(x, whole.x[rank::size], rtol=0, atol=0)
        assert sum(map(len, own)) == len(whole)


def test_what_a_data_set_draws_differs_between_processes() -> None:
    ours, theirs = sources(DataLoader(Drawn(ROWS), 8), 2)
    first, again, other = (
        torch.cat([part.x for part in source.batches(1)]) for source in (ours, ours, theirs)
    )
    assert torch.equal(first, again)
    assert not set(first.flatten().tolist()) & set(other.flatten().tolist())


def test_whole_batches_are_read_where_parts_cannot_be() -> None:
    """Rows without indices, groups, whole batches as items, and rows that no item makes alone."""
    grouped = TensorDataset(ROWS, torch.arange(22) // 2)
    for loader, build in (
        (DataLoader(InTurn(ROWS), 8), two_facets),
        (DataLoader(grouped, 8), mlvae),
        (DataLoader(ROWS.split(8), None), two_facets),
        (DataLoader(TensorDataset(ROWS), 8, collate_fn=first_alone), two_facets),
    ):
        one, other = sources(loader, 2, build)
        assert not one.in_parts
        for first, second in zip(one.batches(1), other.batches(1), strict=True):
            torch.testing.assert_close(first.x, second.x, rtol=0, atol=0)


def test_rows_that_are_no_longer_items_are_refused() -> None:
    def all_but_long(items: list) -> torch.Tensor:
        return torch.stack([x for (x,) in items])[: 2 if len(items) < 4 else None]

    _, last = sources(DataLoader(TensorDataset(ROWS), 8, collate_fn=all_but_long), 2)
    with pytest.raises(ValueError, match="collate_fn made 2 rows of 3 items"):
        list(last.batches(1))
