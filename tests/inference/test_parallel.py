"""Several processes train what one process trains: the same objective and gradient, and nothing is
told twice.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from guides import FacetGuide
from inference import Checkpoints, Guard, SVIRunner, WarmUp
from inference.callbacks import JSONLines
from inference.checkpoints.periodic import CheckpointWarning
from inference.checkpoints.training_state import read
from inference.distributed import DataParallel, Shard
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
    total = sum(Rank(rank, size).shard(batch)[1] for rank in range(size))
    assert sum(loss for loss, _ in parts) / total == pytest.approx(whole, rel=1e-10)
    for i, gradient in enumerate(wanted):
        mean = sum(each[i] for _, each in parts) / total
        torch.testing.assert_close(mean, gradient, rtol=1e-8, atol=1e-10)


def run(
    rank_of: Any,
    folder: Path,
    sizes: dict[str, Any],
    seed: int = 0,
    noisy: bool = True,
    **options: Any,
) -> SVIRunner:
    """A run of one process, or of this one among several; its start is always drawn, as components
    that start in one place are told apart by rounding alone.
    """
    pyro.set_rng_seed(seed)
    guide = two_facets().double()
    runner = SVIRunner(guide.model, guide, lr=1e-2, seed=seed, **options)
    folder.mkdir(parents=True, exist_ok=True)
    calls = [lambda runner, record: record.update(called=1), JSONLines(folder / "metrics.jsonl")]
    x = torch.rand(26, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    sizes = {"batch_size": 8, "progress": False, **sizes}
    with pytest.MonkeyPatch.context() as patch:
        if not noisy:
            without_noise(patch)
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
    kept = Checkpoints(folder / "checkpoints", resume=resume) if checkpoints else None
    sizes = {"epochs": epochs, "checkpoints": kept}
    runner = run(fabric, folder, sizes, noisy=noisy, schedule=WarmUp(4), compile=mode)
    streams = [int(stream.long().sum()) for stream in runner.random_state]
    (folder / f"rank-{fabric.global_rank}.json").write_text(
        json.dumps(state(runner) | {"streams": streams})
    )


def states(folder: Path, size: int) -> list[Any]:
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.parametrize(("size", "mode"), [(2, None), (3, None), (2, "replay")])
def test_processes_end_where_one_process_ends(size: int, mode: str | None, tmp_path: Path) -> None:
    """Draws that are the same for all; batches of 8, 8, 8 and 2 rows."""
    launched(several, size, tmp_path / "many", False, False, False, 4, mode)
    ranks = states(tmp_path / "many", size)
    how = {"noisy": False, "schedule": WarmUp(4)}
    alone = state(run(None, tmp_path / "alone", {"epochs": 4}, **how))
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
    named = r'data: {"x"' if how == "data" else "runners: [[0, 0, 0, 0.0005]] and [[1, 0, 0"
    assert f"other data, parts or seeds than one another ({named}" in one


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


ROWS = torch.rand(22, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


class InTurn(IterableDataset):
    """Rows without indices, of which every process reads its own; a stream has no length."""

    def __init__(self, x: torch.Tensor, broken_after: int | None = None) -> None:
        self.x, self.broken_after, self.read = x, broken_after, 0

    def __iter__(self) -> Any:
        for row in self.x:
            if self.read == self.broken_after:
                raise OSError("the disk is gone")
            self.read += 1
            yield row


def shards_of(sizes: Sequence[int]) -> list[torch.Tensor]:
    return list(torch.arange(sum(sizes)).split(list(sizes)))


def together(shards: Sequence[torch.Tensor], batch: int) -> list[list[int]]:
    """The rows of the first batches of all shards, of the second ones, and so on."""
    batches = zip_longest(*(rows.split(batch) for rows in shards))
    return [torch.cat([rows for rows in of if rows is not None]).tolist() for of in batches]


def on_loader(loader: Any, fabric: Any, epochs: int = 3, **options: Any) -> SVIRunner:
    pyro.set_rng_seed(0)
    torch.set_num_threads(1)
    guide = two_facets().double()
    optimizer = partial(torch.optim.SGD, momentum=0.9)
    runner = SVIRunner(guide.model, guide, lr=1e-2, schedule=WarmUp(4), optimizer=optimizer)
    return runner.fit(loader, epochs, progress=False, fabric=fabric, **options)


def sharded(fabric: Any, folder: Path, sizes: Sequence[int], resume: bool, epochs: int) -> None:
    """Trains on this process's rows; leaves its state, or what went wrong."""
    with pytest.MonkeyPatch.context() as patch:
        without_noise(patch)
        patch.setattr(data_source, "HELD_ROWS", 1)
        own = ROWS[shards_of(sizes)[fabric.global_rank]]
        kept = Checkpoints(folder / "checkpoints", keep=9, resume=resume)
        try:
            with warnings.catch_warnings(
                record=True, action="always", category=CheckpointWarning
            ) as warned:
                runner = on_loader(DataLoader(own, 4), fabric, epochs, checkpoints=kept)
            found: Any = state(runner) | {"told": [str(each.message) for each in warned or ()]}
        except (RuntimeError, ValueError, OSError) as error:
            found = f"{type(error).__name__}: {error}"
    (folder / f"rank-{fabric.global_rank}.json").write_text(json.dumps(found))


@pytest.mark.parametrize("sizes", [(8, 8), (11, 3), (6, 6, 6, 4), (1, 9, 5, 2)])
def test_shards_train_what_one_process_trains_on_all_rows(
    sizes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three passes by momentum, whose steps are sums of gradients: a gradient that differed by a
    part in 1e12 would show. Where a shard has ended, the others' rows are the batch.
    """
    launched(sharded, len(sizes), tmp_path, sizes, False, 3)
    ranks = states(tmp_path, len(sizes))
    without_noise(monkeypatch)
    monkeypatch.setattr(data_source, "HELD_ROWS", 1)
    batches = together(shards_of(sizes), 4)
    alone = state(on_loader(DataLoader(ROWS, batch_sampler=batches), None))
    for rank in ranks:
        assert rank["step"] == 3 * len(batches)
        for name, values in alone["parameters"].items():
            assert rank["parameters"][name] == pytest.approx(values, rel=1e-12, abs=1e-14), name
        objectives = [record["objective"] for record in alone["history"]]
        assert [record["objective"] for record in rank["history"]] == pytest.approx(objectives)


def test_groups_of_shards_make_up_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group is in one shard; a shard of no rows counts nothing."""
    guide = mlvae().double()
    x, group = torch.rand(N, 6, dtype=torch.float64), torch.arange(N) // 3
    runner = SVIRunner(guide.model, guide)
    runner.loss.eval()
    without_noise(monkeypatch)
    whole, wanted = gradients(runner, guide.observed(x, {"group": group}), 1.0)
    found = []
    for rows, counts in ((slice(3), 3), (slice(3, N), 9), (slice(3), 0)):
        own = guide.observed(x[rows], {"group": group[rows] - group[rows].min()})
        shard = Shard(own.x, own.given, own.size, counts)
        found.append(gradients(runner, *Rank(0, 3).shard(shard)))
    assert sum(loss for loss, _ in found) / N == pytest.approx(whole, rel=1e-12)
    for i, gradient in enumerate(wanted):
        mean = sum(each[i] for _, each in found) / N
        torch.testing.assert_close(mean, gradient, rtol=1e-10, atol=1e-12)


def test_checkpoints_move_between_numbers_of_shards(tmp_path: Path) -> None:
    """The same number goes on bit for bit; another one is told what is kept."""
    launched(sharded, 2, tmp_path, (11, 7), False, 4)
    whole = states(tmp_path, 2)
    _, after_two, *_ = Checkpoints(tmp_path / "checkpoints", resume=True).written()
    for sizes in ((11, 7), (6, 6, 6)):
        folder = tmp_path / f"{len(sizes)}"
        shutil.copytree(after_two, folder / "checkpoints" / after_two.name)
        launched(sharded, len(sizes), folder, sizes, True, 4)
    assert states(tmp_path / "2", 2) == whole
    other = states(tmp_path / "3", 3)[0]
    assert other["step"] == 2 * 3 + 2 * 2
    assert other["history"][:2] == whole[0]["history"][:2]
    assert "loaders of their own: 2 wrote the checkpoint, and 3 go on" in other["told"][0]


def own_loaders(fabric: Any, folder: Path, how: str) -> None:
    rows, size = ROWS[:20], fabric.world_size
    own = rows[fabric.global_rank :: size]
    loaders: dict[str, Callable[[], Any]] = {
        "the same": lambda: DataLoader(rows, 4, shuffle=True),
        "a sampler": lambda: DataLoader(rows, 4, sampler=DistributedSampler(rows, size)),
        "Fabric's": lambda: fabric.setup_dataloaders(DataLoader(rows, 4, shuffle=True)),
        "broken": lambda: DataLoader(InTurn(own, 14 if fabric.global_rank else None), 4),
        "streams": lambda: DataLoader(InTurn(own), 4),
    }
    steps = 3 if how in ("broken", "streams") else None
    try:
        runner = on_loader(loaders[how](), fabric, steps_per_epoch=steps)
        found: Any = state(runner)
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    (folder / f"rank-{fabric.global_rank}.json").write_text(json.dumps(found))


@pytest.mark.parametrize("how", ["a sampler", "Fabric's", "streams"])
def test_loaders_of_own_rows(how: str, tmp_path: Path) -> None:
    launched(own_loaders, 2, tmp_path, how)
    one, other = states(tmp_path, 2)
    assert one == other
    assert one["step"] == 9


def test_loaders_of_the_same_rows_are_refused(tmp_path: Path) -> None:
    launched(own_loaders, 2, tmp_path, "the same")
    one, other = states(tmp_path, 2)
    assert one == other
    assert "the loaders of processes 0 and 1 begin with the same rows, which would count" in one


def test_a_process_that_ends_is_told_by_the_others(tmp_path: Path) -> None:
    launched(own_loaders, 2, tmp_path, "broken")
    one, other = states(tmp_path, 2)
    assert other == "OSError: the disk is gone"
    assert one.startswith("RuntimeError: another process of this run has ended, or its machine")


def test_an_epoch_of_a_stream_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    """Also where the run was stopped in between."""
    guide, loader = two_facets().double(), DataLoader(InTurn(ROWS), 8)
    source = LoaderSource(loader, guide, torch.device("cpu"), steps=2)
    passes = [torch.cat([batch.x for batch in source.batches(1, e, e)]) for e in range(3)]
    torch.testing.assert_close(torch.cat(passes), torch.cat([ROWS, ROWS]), rtol=0, atol=0)
    resumed = LoaderSource(loader, guide, torch.device("cpu"), steps=2)
    assert torch.equal(torch.cat([batch.x for batch in resumed.batches(1, 1, 1)]), passes[1])


def test_data_sets_are_told_the_epoch() -> None:
    data, told = TensorDataset(ROWS), []
    data.set_epoch = told.append  # type: ignore[attr-defined]
    on_loader(DataLoader(data, 8), None)
    assert told == [0, 0, 1, 2]  # the first rows, then each pass
