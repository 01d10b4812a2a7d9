"""Data that are not in memory: from a loader or a mapped file, the run is the one that they give in
memory.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

from inference import Checkpoints, Rows, SVIRunner
from inference.training.data_source import InMemorySource, LoaderSource, data_source_for
from inference.training.faults import non_finite_terms
from tests.catalog import ivae, mlvae, nvae, nvae_partly_labeled_two_draws, two_facets, vade
from tests.inference.test_resuming import stopping

pytestmark = pytest.mark.slow(15)

X = torch.rand(22, 6, generator=torch.Generator().manual_seed(3))
LABELS = torch.arange(22) % 3


def runner(build: Any = two_facets, **options: Any) -> SVIRunner:
    pyro.set_rng_seed(0)
    guide = build()
    return SVIRunner(guide.model, guide, lr=1e-2, **options)


def shuffled(x: torch.Tensor = X, **options: Any) -> DataLoader:
    return DataLoader(TensorDataset(x), batch_size=8, shuffle=True, **options)


def parameters(of: SVIRunner) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(of.loss.parameters())


def same(one: SVIRunner, other: SVIRunner) -> bool:
    return torch.equal(parameters(one), parameters(other))


class InOrder(Rows):
    """Rows as they lie."""

    def order(self, data: Any, generator: torch.Generator | None = None) -> torch.Tensor:
        return torch.arange(len(data))


def test_a_loader_gives_the_run_that_the_same_batches_give_in_memory() -> None:
    loaded, held = runner(), runner()
    loaded.fit(DataLoader(TensorDataset(X), batch_size=8), epochs=3, progress=False)
    held.fit(X, epochs=3, batch_size=8, progress=False, batches=InOrder())
    assert same(loaded, held)
    assert [r["objective"] for r in loaded.history] == [r["objective"] for r in held.history]
    assert loaded.history[-1].keys() == held.history[-1].keys()
    assert loaded.step == 9


def test_a_loader_in_the_order_of_its_data_is_watched_in_all_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the rows that are drawn of the same data in memory; training is as before."""
    monkeypatch.setattr("inference.training.data_source.HELD_ROWS", 8)
    monkeypatch.setattr("inference.training.loop.WATCHED_ROWS", 8)
    x = X.sort(0).values
    loaded = runner().fit(DataLoader(TensorDataset(x), batch_size=5), epochs=2, progress=False)
    held = runner().fit(x, epochs=2, batch_size=5, progress=False, batches=InOrder())
    assert [r["elbo"] for r in loaded.history] == [r["elbo"] for r in held.history]
    assert same(loaded, held)


def test_each_pass_of_a_loader_has_an_order_of_its_own_that_the_seed_gives() -> None:
    feed = LoaderSource(shuffled(), two_facets(), torch.device("cpu"))
    first, again, other = (
        torch.cat([batch.x for batch in feed.batches(seed)]) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first.sort(0).values, X.sort(0).values)
    own = LoaderSource(shuffled(generator=torch.Generator()), two_facets(), torch.device("cpu"))
    assert torch.equal(*(torch.cat([batch.x for batch in own.batches(1)]) for _ in range(2)))
    ends = [runner(seed=seed).fit(shuffled(), epochs=2, progress=False) for seed in (0, 0, 1)]
    assert same(ends[0], ends[1])
    assert not same(ends[0], ends[2])


class Noisy(TensorDataset):
    """A data set that draws: what it gives depends on the random stream that it is asked under."""

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, ...]:
        return ((super().__getitem__(index)[0] + 0.1 * torch.rand(6)).clamp(0, 1),)


@pytest.mark.parametrize(("steps", "workers"), [(2, 0), (3, 0), (5, 0), (3, 2)])
def test_a_run_on_a_loader_goes_on_as_if_it_had_not_stopped(
    steps: int, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(**options: Any) -> SVIRunner:
        loader = DataLoader(Noisy(X), batch_size=8, shuffle=True, num_workers=workers)
        return runner().fit(loader, epochs=2, progress=False, **options)

    unbroken = fit()
    with monkeypatch.context() as patch:
        stopping(patch, steps)
        with pytest.raises(InterruptedError):
            fit(checkpoints=Checkpoints(tmp_path))
    assert same(unbroken, fit(checkpoints=Checkpoints(tmp_path, resume=True)))


class Varied(TensorDataset):
    """As Noisy, by NumPy's and Python's random numbers."""

    def __getitem__(self, index: Any) -> tuple[torch.Tensor, ...]:
        noise = 0.1 * np.random.random() + 0.1 * random.random()  # noqa: NPY002
        return ((super().__getitem__(index)[0] + noise).clamp(0, 1),)


def sampled(workers: int) -> DataLoader:
    sampler = RandomSampler(X, generator=torch.Generator().manual_seed(5))
    return DataLoader(Varied(X), batch_size=8, sampler=sampler, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_depends_on_the_seed_alone_whatever_draws(workers: int) -> None:
    """Samplers with their own generator, other libraries' streams; all are as before."""
    loader = sampled(workers)
    feed = LoaderSource(loader, two_facets(), torch.device("cpu"))

    def states() -> list[Any]:
        of_numpy = np.random.get_state()[1].tolist()  # noqa: NPY002
        return [of_numpy, random.getstate(), loader.sampler.generator.get_state().tolist()]

    before = states()
    passes = [torch.cat([batch.x for batch in feed.batches(seed)]) for seed in (1, 1, 2)]
    assert torch.equal(passes[0], passes[1])
    assert not torch.equal(passes[0].sort(0).values, passes[2].sort(0).values)
    assert states() == before


def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
    return {
        "x": torch.stack([x for x, _ in rows]),
        "label": torch.stack([label for _, label in rows]),
    }


def test_what_lies_beside_x() -> None:
    """In the model's order, by name, or more than it takes, as torchvision's data sets give."""
    labeled = TensorDataset(X, LABELS)
    device = torch.device("cpu")
    for loader in (
        DataLoader(labeled, batch_size=8),
        DataLoader(labeled, batch_size=8, collate_fn=collate),
    ):
        batches = list(LoaderSource(loader, ivae(), device).batches(0))
        assert torch.equal(torch.cat([batch.given["label"] for batch in batches]), LABELS)
    assert (
        next(LoaderSource(DataLoader(labeled, batch_size=8), two_facets(), device).batches(0)).given
        == {}
    )
    assert next(
        LoaderSource(DataLoader(X, batch_size=8), two_facets(), device).batches(0)
    ).x.shape == (8, 6)
    runner(ivae).fit(DataLoader(labeled, batch_size=8), epochs=1, progress=False)
    images = TensorDataset(torch.rand(12, 1, 8, 8), LABELS[:12])
    runner(nvae_partly_labeled_two_draws).fit(
        DataLoader(images, batch_size=6), epochs=1, progress=False
    )


def test_labels_that_a_model_can_do_without_are_given_by_name() -> None:
    """Those in a tuple are ignored, as data sets of images hold some."""
    device = torch.device("cpu")
    by_name = [{"x": x, "label": label} for x, label in zip(X, LABELS, strict=True)]
    named = LoaderSource(DataLoader(by_name, batch_size=8), vade(), device)
    assert torch.equal(next(named.batches(0)).given["label"].flatten(), LABELS[:8])
    in_a_tuple = DataLoader(TensorDataset(X, LABELS), batch_size=8)
    assert next(LoaderSource(in_a_tuple, vade(), device).batches(0)).given == {}


@pytest.mark.parametrize("mode", [None, "replay"])
def test_batches_of_known_labels_may_come_among_others(mode: str | None) -> None:
    x, label = X[:12], LABELS[:12].clone()
    label[[5, 7]] = -1  # in the second and third of four batches
    loader = DataLoader(TensorDataset(x, label), batch_size=3)
    one, other = (runner(nvae, compile=mode) for _ in range(2))
    one.fit(loader, epochs=2, progress=False)
    other.fit(x, epochs=2, batch_size=3, progress=False, batches=InOrder(), label=label)
    torch.testing.assert_close(parameters(one), parameters(other), rtol=1e-3, atol=1e-4)
    assert one.history[-1]["elbo"] == pytest.approx(other.history[-1]["elbo"], rel=1e-3)


@pytest.mark.parametrize("first", [True, False])
def test_batches_that_give_different_names_are_refused(first: bool) -> None:
    def some(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        x, label = (torch.stack(each) for each in zip(*rows, strict=True))
        labeled = torch.equal(x[0], X[0]) == first
        return {"x": x, "label": label} if labeled else {"x": x}

    loader = DataLoader(TensorDataset(X, LABELS), batch_size=8, collate_fn=some)
    one, other = ("label", "nothing") if first else ("nothing", "label")
    with pytest.raises(ValueError, match=f"the first one gave {one}, and another {other}"):
        runner(vade).fit(loader, epochs=1, progress=False)


def test_groups_of_a_loader_are_numbered_anew_where_batches_are_joined() -> None:
    groups = TensorDataset(X[:12], torch.tensor([5, 5, 5, 9, 5, 5, 2, 2, 2, 2, 2, 2]))
    feed = LoaderSource(DataLoader(groups, batch_size=6), mlvae(), torch.device("cpu"))
    assert feed.subset(12).given["group"].tolist() == [0, 0, 0, 1, 0, 0, 2, 2, 2, 2, 2, 2]
    runner(mlvae).fit(DataLoader(groups, batch_size=6), epochs=2, progress=False)


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from X


REFUSED = [
    (
        lambda: DataLoader(Endless(), batch_size=4),
        {},
        "has no length, which schedules and epochs need",
    ),
    (lambda: DataLoader(X[:, :5], batch_size=4), {}, r"x has shape \[4, 5\]"),
    (lambda: DataLoader(2 * X, batch_size=4), {}, "the Bernoulli likelihood needs"),
    (
        lambda: DataLoader([{"x": x, "group": 1} for x in X], batch_size=4),
        {},
        "if known, besides x, got group",
    ),
    (
        lambda: shuffled(num_workers=1, persistent_workers=True),
        {},
        "create it with persistent_workers=False",
    ),
    (
        shuffled,
        {"batch_size": 8},
        "a DataLoader gives its batches as they are: leave batch_size out",
    ),
    (shuffled, {"batches": Rows(), "label": LABELS}, "leave batches and label out"),
]


@pytest.mark.parametrize(
    ("loader", "options", "words"), REFUSED, ids=[words for *_, words in REFUSED]
)
def test_a_loader_that_does_not_fit_is_refused_before_training(
    loader: Any, options: dict, words: str
) -> None:
    untrained = runner()
    with pytest.raises(ValueError, match=words):
        untrained.fit(loader(), epochs=1, progress=False, **options)
    assert untrained.history == []
    assert same(untrained, runner())


def test_a_fault_is_found_again_in_a_loader() -> None:
    broken = runner()
    with torch.no_grad():
        broken.model.mixtures["digit"].loc.fill_(float("nan"))
    feed = data_source_for(broken.guide, broken.device, shuffled(), {}, None, None)
    with pyro.validation_enabled(False):
        assert {"kl_z_digit", "kl_c_digit"} <= set(non_finite_terms(broken, feed))


def mapped(path: Path, values: np.ndarray) -> np.memmap:
    file = np.memmap(path, dtype=values.dtype, mode="w+", shape=values.shape)
    file[:] = values
    file.flush()
    return np.memmap(path, dtype=values.dtype, mode="r", shape=values.shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_a_mapped_file_gives_the_run_that_its_values_give(dtype: type, tmp_path: Path) -> None:
    values = (
        (255 * X.numpy()).round().astype(dtype) if dtype is np.uint8 else X.numpy().astype(dtype)
    )
    one, other = runner(), runner()
    one.fit(mapped(tmp_path / "x", values), epochs=2, batch_size=8, progress=False)
    other.fit(values, epochs=2, batch_size=8, progress=False)
    assert same(one, other)
    assert one.guide.predict(mapped(tmp_path / "x", values)).keys() == {"style", "digit"}


def test_a_mapped_file_is_checked_and_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppl_models.given.observed.CHECKED_AT_ONCE", 30)  # five rows
    values = X.numpy().copy()
    feed = data_source_for(
        two_facets(), torch.device("cpu"), mapped(tmp_path / "x", values), {}, 8, None
    )
    assert isinstance(feed, InMemorySource)
    again = mapped(tmp_path / "y", values)
    assert two_facets().observed(again, {}).x.data_ptr() == again.ctypes.data
    wide = mapped(tmp_path / "z", np.tile(values, 2))[:, :6]
    assert two_facets().observed(wide, {}).x.data_ptr() == wide.ctypes.data
    assert torch.equal(
        two_facets().observed(values[::-1], {}).x, torch.as_tensor(values[::-1].copy())
    )
    with pytest.raises(
        ValueError, match=r"byte order of another machine: give x.astype\('float32'\)"
    ):
        two_facets().observed(values.astype(">f4"), {})
    values[17, 2] = np.nan
    values[3, 1] = np.inf
    with pytest.raises(
        ValueError, match=r"2 values that are NaN or infinite, the first at index \[3, 1\]"
    ):
        data_source_for(two_facets(), torch.device("cpu"), values, {}, 8, None)
    values[3, 1] = 0.5
    with pytest.raises(
        ValueError, match=r"1 values that are NaN or infinite, the first at index \[17, 2\]"
    ):
        data_source_for(two_facets(), torch.device("cpu"), values, {}, 8, None)


class Miscounted(IterableDataset):
    """Gives ten rows, whatever its length says."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(X[:10])


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
@pytest.mark.parametrize(("length", "found"), [(20, "5 batches"), (8, "more than 4 batches")])
def test_a_loader_must_give_as_many_batches_as_it_says(length: int, found: str) -> None:
    loader = DataLoader(Miscounted(length), batch_size=2)
    with pytest.raises(
        ValueError, match=f"gave {found} in a pass, but its length is {length // 2}"
    ):
        runner().fit(loader, epochs=3, progress=False)


class Dying(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> torch.Tensor:
        os._exit(9)


def test_a_dying_worker_is_named() -> None:
    loader = DataLoader(Dying(), batch_size=2, num_workers=1)
    with pytest.raises(RuntimeError, match="a worker process of the DataLoader ended") as caught:
        runner().fit(loader, epochs=1, progress=False)
    assert "\n" not in str(caught.value)
