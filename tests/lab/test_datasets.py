"""The examples' data: what is drawn, colored or read, and what is said where it is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from PIL import Image
from sklearn.linear_model import RidgeClassifier

from facetvae.datasets import Dataset, digits, some_rows
from lab.protocols import shapes
from lab.protocols.datasets import colored, load, shapes3d, torchvision_datasets

pytestmark = pytest.mark.slow(25)


@pytest.fixture
def cached(shapes_drawn: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(shapes_drawn))
    monkeypatch.delenv("FACETVAE_DATA", raising=False)
    return shapes_drawn


def test_the_grid_is_the_originals() -> None:
    grid = shapes.factor_grid()
    assert len(grid) == 480_000
    # The original's rows run through all combinations, the last factor fastest.
    np.testing.assert_array_equal(
        grid[[0, 1, 15, 479_999]], [[0] * 6, [0] * 5 + [1], [0] * 4 + [1, 0], [9, 9, 9, 7, 3, 14]]
    )
    with pytest.raises(ValueError, match="no value 10 of a factor 'floor'"):
        shapes.factor_grid(floor=10)
    image = np.array([[0, 2, 10, 10], [4, 6, 10, 14]], np.uint8).reshape(1, 2, 4, 1)
    np.testing.assert_array_equal(shapes.halve(image)[0, :, :, 0], [[3, 11]])


@pytest.mark.parametrize(("configuration", "varying"), [(1, "floor"), (2, "wall")])
def test_configurations(cached: Path, configuration: int, varying: str) -> None:
    data = shapes3d(configuration)
    assert data.name == f"shapes3d-{configuration}-drawn"
    assert (data.train.shape, data.test.shape) == ((3840, 3, 32, 32), (960, 3, 32, 32))
    assert data.train.dtype == np.uint8
    assert set(data.train_labels) == {varying, "scale", "shape", "orientation"}
    for name, labels in data.train_labels.items():
        assert set(labels) == set(data.test_labels[name]) == set(range(shapes.FACTORS[name]))
    together = np.concatenate([data.train, data.test]).reshape(4800, -1)
    assert len(np.unique(together, axis=0)) == 4800, "two combinations look alike"


def test_drawing_is_deterministic_and_cached(
    tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = shapes.factor_grid(wall=5, object=6)
    path = cached / "facetvae" / "shapes-1.npy"
    written, geometry = path.read_bytes(), np.load(path)
    with monkeypatch.context() as patch:
        patch.setattr(shapes, "_draw_geometry", lambda: pytest.fail("drawn again"))
        first = shapes.draw(factors)
        np.testing.assert_array_equal(shapes.draw(factors), first)
    # The first and last scale and orientation, of every shape, are the same to the last byte.
    with monkeypatch.context() as patch:
        for factor in ("scale", "orientation"):
            patch.setitem(shapes.FACTORS, factor, 2)
        again = shapes._draw_geometry()
    assert again.tobytes() == geometry[::7, :, ::14].tobytes()
    # A cache that is not whole is drawn again.
    monkeypatch.setattr(shapes, "_draw_geometry", lambda: geometry)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "facetvae" / "shapes-1.npy"
    path.parent.mkdir()
    path.write_bytes(written[: len(written) // 2])
    np.testing.assert_array_equal(shapes.draw(factors[::400]), first[::400])
    assert path.read_bytes() == written
    assert [item.name for item in path.parent.iterdir()] == [path.name]


def test_without_a_cache_it_draws_all_the_same(
    tmp_path: Path, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = shapes.draw(shapes.factor_grid()[:2])
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # where no folder can be made
    monkeypatch.setattr(
        shapes, "_draw_geometry", lambda: np.load(cached / "facetvae" / "shapes-1.npy")
    )
    np.testing.assert_array_equal(shapes.draw(shapes.factor_grid()[:2]), expected)


@pytest.mark.parametrize(
    ("factor", "where"),
    [("floor", np.s_[-4:, :8]), ("wall", np.s_[:6, 28:36]), ("object", np.s_[30:34, 30:34])],
)
def test_hues_color_their_surface_and_nothing_else(cached: Path, factor: str, where: tuple) -> None:
    base = np.array([0, 3, 6, 4, 0, 7])
    changed = base.copy()
    changed[list(shapes.FACTORS).index(factor)] += 1
    a, b = shapes.draw(np.stack([base, changed])).astype(int)
    differs = np.abs(a - b).max(-1) > 0
    assert differs[where].all()
    others = {"floor": np.s_[:6], "wall": np.s_[-4:], "object": np.s_[:6]}[factor]
    assert not differs[others].any()


@pytest.mark.parametrize("factor", ["scale", "shape", "orientation"])
def test_geometric_factors_are_visible(cached: Path, factor: str) -> None:
    """A linear classifier reads each from pixels it was not fitted on."""
    grid = shapes.factor_grid(floor=1, wall=4, object=8)
    x = shapes.halve(shapes.draw(grid)).reshape(len(grid), -1) / 255
    y = grid[:, list(shapes.FACTORS).index(factor)]
    order = np.random.default_rng(0).permutation(len(grid))
    fit, held_out = order[:400], order[400:]
    score = RidgeClassifier(alpha=1.0).fit(x[fit], y[fit]).score(x[held_out], y[held_out])
    assert score > 0.8, score


def test_the_original_is_read_where_it_is_given(tmp_path: Path) -> None:
    """A file in the original's layout, with each row's number written into its pixels."""
    h5py = pytest.importorskip("h5py")
    rows = np.ravel_multi_index(
        shapes.factor_grid(wall=5, object=6).T, tuple(shapes.FACTORS.values())
    )
    with h5py.File(tmp_path / "3dshapes.h5", "w") as file:
        images = file.create_dataset("images", (480_000, 64, 64, 3), "uint8", chunks=(1, 64, 64, 3))
        for row in rows[:40]:
            images[row] = row // 48_000 * 20 + row % 15
    data = shapes3d(1, tmp_path)
    assert data.name == "shapes3d-1"
    marked = np.concatenate([data.train, data.test])
    labels = {
        name: np.concatenate([data.train_labels[name], data.test_labels[name]])
        for name in data.train_labels
    }
    known = np.flatnonzero((labels["floor"] == 0) & (labels["scale"] == 0) & (labels["shape"] < 2))
    np.testing.assert_array_equal(
        marked[known].reshape(len(known), -1).max(-1), labels["orientation"][known]
    )


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for name in ("train_32x32.mat", "test_32x32.mat"):
        (tmp_path / name).write_bytes(b"not one")
    with pytest.raises(ValueError, match="is not what it should be: get both files anew"):
        load("svhn", tmp_path)
    with pytest.raises(ValueError, match="larger than 32 x 32"):
        colored(replace(digits(), image_shape=(40, 40)), "large")


def test_colored_digits_are_their_labels_colors() -> None:
    data = colored(digits(), "color-digits")
    assert data.train.shape[1:] == (3, 32, 32)
    corner = data.train[:, :, 0, 0]
    ground = data.train_labels["background"]
    for hue in range(6):
        assert len(np.unique(corner[ground == hue], axis=0)) == 1, "one background, one color"
    assert len(np.unique(corner, axis=0)) == 6
    # Where the ink is full, the color is the ink's.
    full = digits().train.reshape(-1, 8, 8).argmax(axis=None)
    row, pixel = divmod(int(full), 64)
    ink = data.train[row, :, 4 * (pixel // 8), 4 * (pixel % 8)]
    same = data.train_labels["ink"] == data.train_labels["ink"][row]
    assert (
        data.train[same].max((2, 3)) >= 0.8 * ink
    ).all()  # few digits are written less than full
    # Labels are drawn apart from one another.
    for a, b in (("ink", "background"), ("ink", "digit")):
        table = np.histogram2d(
            data.train_labels[a], data.train_labels[b], bins=(6, 10 if b == "digit" else 6)
        )[0]
        assert table.min() > 0


def test_svhn_is_read_where_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"no SVHN in .*train_32x32.mat"):
        load("svhn", tmp_path)
    for split, n in (("train", 5), ("test", 3)):
        x = np.arange(32 * 32 * 3 * n, dtype=np.uint8).reshape(32, 32, 3, n)
        scipy.io.savemat(
            tmp_path / f"{split}_32x32.mat", {"X": x, "y": np.array([[10], [1], [9], [2], [5]])[:n]}
        )
    # The files above are not the originals, whose checksum torchvision asks for.
    monkeypatch.setattr(torchvision_datasets().SVHN, "_check_integrity", lambda self: True)
    data = load("svhn", tmp_path)
    assert isinstance(data, Dataset)
    assert (data.train.shape, data.test.shape) == ((5, 3, 32, 32), (3, 3, 32, 32))
    np.testing.assert_array_equal(data.train_labels["digit"], [0, 1, 9, 2, 5])


def written_cifar(folder: Path, rows: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """The six files of CIFAR-10's binary version, as its page describes them: a byte for the class,
    then 1,024 bytes of red, of green and of blue, row by row. Returns all images ``[N, 32, 32, 3]``
    and classes, those of the test file last.
    """
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(6 * rows, 32, 32, 3), dtype=np.uint8)
    y = rng.integers(10, size=6 * rows, dtype=np.uint8)
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    for i, name in enumerate(names):
        part = range(i * rows, (i + 1) * rows)
        planes = (x[row, :, :, channel].tobytes() for row in part for channel in range(3))
        heads = (bytes([y[row]]) for row in part)
        with (folder / name).open("wb") as file:
            for head in heads:
                file.write(head + next(planes) + next(planes) + next(planes))
    return x, y


def test_cifar_is_read_from_its_binary_version(tmp_path: Path) -> None:
    x, y = written_cifar(tmp_path / "cifar-10-batches-bin")
    data = load("cifar-10", tmp_path)
    assert (data.name, data.image_shape, data.train.dtype) == ("cifar-10", (3, 32, 32), np.uint8)
    np.testing.assert_array_equal(np.moveaxis(data.train, 1, -1), x[:15])
    np.testing.assert_array_equal(np.moveaxis(data.test, 1, -1), x[15:])
    np.testing.assert_array_equal(data.train_labels["object"], y[:15])
    np.testing.assert_array_equal(data.test_labels["object"], y[15:])


def test_cifar_is_read_from_folders_of_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(256, size=(4, 32, 32, 3), dtype=np.uint8)
    for image, name in zip(
        x, ("train/cat/1", "train/airplane/1", "test/cat/7", "test/airplane/2"), strict=True
    ):
        path = tmp_path / "cifar-10" / f"{name}.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(image).save(path)
    data = load("cifar-10", tmp_path)
    # Classes are numbered alphabetically, as CIFAR-10's own are.
    np.testing.assert_array_equal(data.train_labels["object"], [0, 1])
    np.testing.assert_array_equal(np.moveaxis(data.train, 1, -1), x[[1, 0]])
    np.testing.assert_array_equal(np.moveaxis(data.test, 1, -1), x[[3, 2]])


def test_what_is_not_cifar_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(FileNotFoundError, match="a pickle may run any code: it is not read"):
        load("cifar-10", tmp_path)
    written_cifar(tmp_path / "cifar-10-batches-bin")
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_4.bin"
    path.write_bytes(b"\x0a" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"data_batch_4.bin has a class 10, but .* are 0 to 9"):
        load("cifar-10", tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_4.bin has 9218 bytes, which is not a mult"):
        load("cifar-10", tmp_path)
    folders = tmp_path / "images"
    for name in ("train/cat", "test/dog"):
        path = folders / "cifar-10" / name / "1.png"
        path.parent.mkdir(parents=True)
        Image.new("RGB", (32, 31)).save(path)
    with pytest.raises(ValueError, match=r"other classes to train on, \['cat'\]"):
        load("cifar-10", folders)
    (folders / "cifar-10/test/dog").rename(folders / "cifar-10/test/cat")
    with pytest.raises(ValueError, match=r"1.png has 32 x 31 pixels"):
        load("cifar-10", folders)
    (folders / "cifar-10/train/cat/1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"no images in .*train: a folder for each group"):
        load("cifar-10", folders)


def write_idx(path: Path, values: np.ndarray) -> None:
    """A file in MNIST's format: two zeros, the type of bytes, the number of axes, their lengths,
    and the values.
    """
    lengths = b"".join(length.to_bytes(4, "big") for length in values.shape)
    path.write_bytes(bytes([0, 0, 8, values.ndim]) + lengths + values.tobytes())


@pytest.mark.parametrize(
    ("name", "kind", "of"),
    [("mnist", "MNIST", "digit"), ("fashion-mnist", "FashionMNIST", "article")],
)
def test_mnist_is_read_as_torchvision_reads_it(
    name: str, kind: str, of: str, tmp_path: Path
) -> None:
    raw, rng = tmp_path / kind / "raw", np.random.default_rng(0)
    raw.mkdir(parents=True)
    for split, n in (("train", 5), ("t10k", 3)):
        x, y = (rng.integers(10, size=shape, dtype=np.uint8) for shape in ((n, 28, 28), n))
        write_idx(raw / f"{split}-images-idx3-ubyte", x)
        write_idx(raw / f"{split}-labels-idx1-ubyte", y)
    data = load(name, tmp_path)
    assert data.name == name
    for train, x, labels in (
        (True, data.train, data.train_labels),
        (False, data.test, data.test_labels),
    ):
        theirs = getattr(torchvision_datasets(), kind)(tmp_path, train=train)
        np.testing.assert_array_equal(x, theirs.data.flatten(1).numpy())
        np.testing.assert_array_equal(labels[of], theirs.targets.numpy())
        assert (x.dtype, labels[of].dtype) == (np.uint8, np.int64)
    write_idx(raw / "t10k-labels-idx1-ubyte", np.arange(2, dtype=np.uint8))
    with pytest.raises(ValueError, match="get all four anew: 3 images and 2 labels"):
        load(name, tmp_path)


def test_folders_of_images_are_groups(tmp_path: Path) -> None:
    """Of 10, 3 and 1 images: the last has none to test with; hidden and other files are left out.
    A wide image is cut to its middle, one whose camera was turned is turned back.
    """
    counts = {"ann": 10, "bob": 3, "one": 1}
    for name, count in counts.items():
        (tmp_path / name).mkdir()
        for i in range(count):
            Image.new("RGB", (80, 80), (len(name), 10 * i, 0)).save(tmp_path / name / f"{i}.png")
    (tmp_path / "ann" / ".hidden.png").write_bytes(b"")
    (tmp_path / "ann" / "notes.txt").write_bytes(b"")
    (tmp_path / ".thumbnails").mkdir()
    (tmp_path / ".thumbnails" / "0.png").write_bytes(b"")
    wide = Image.new("RGB", (192, 64), (0, 0, 255))
    wide.paste((200, 100, 50), (64, 0, 128, 64))
    wide.save(tmp_path / "bob" / "2.png")
    turned = Image.new("RGB", (64, 64), (0, 0, 0))
    turned.paste((255, 255, 255), (0, 0, 32, 64))  # its left half
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees, clockwise
    turned.save(tmp_path / "bob" / "1.PNG", exif=exif)
    (tmp_path / "bob" / "1.png").unlink()
    data = load("folders", tmp_path)
    assert (data.name, data.image_shape, data.train.dtype) == ("folders", (3, 64, 64), np.uint8)
    assert data.train.shape == (10, 3, 64, 64)
    assert np.bincount(data.train_labels["group"]).tolist() == [8, 2]
    assert np.bincount(data.test_labels["group"]).tolist() == [2, 1]
    x = np.concatenate([data.train, data.test])
    group = np.concatenate([data.train_labels["group"], data.test_labels["group"]])
    greens = x[group == 0, 1]
    assert sorted(greens[:, 0, 0]) == list(range(0, 100, 10))
    assert (greens == greens[:, :1, :1]).all()
    plain, cut, upright = sorted(x[group == 1], key=lambda image: int(image.max()))
    assert (plain[0] == 3).all()
    assert (cut == np.array([200, 100, 50])[:, None, None]).all()
    assert (upright[:, :32] == 255).all()  # left is up
    assert (upright[:, 32:] == 0).all()


def test_faces_are_read_where_they_are_found(tmp_path: Path) -> None:
    """Two persons; light from 100 degrees or more, ambient light and damaged files are left out."""
    names = ["A+000E+00", "A-035E+15", "A+070E-35", "A-060E+20", "A+095E+00"]
    names += ["A+110E+15", "A-130E+20", "_Ambient"]
    for person in ("yaleB01", "yaleB39"):
        folder = tmp_path / "CroppedYale" / person
        folder.mkdir(parents=True)
        for i, name in enumerate(names):
            shade = Image.fromarray(np.full((192, 168), 10 * i + 5, np.uint8))
            shade.save(folder / f"{person}_P00{name}.pgm")
        (folder / f"{person}_P00A+020E+10.pgm.bad").write_bytes(b"")
    data = load("yale", tmp_path)
    assert (data.name, data.image_shape) == ("yale", (1, 64, 64))
    assert (len(data.train), len(data.test)) == (8, 2)
    assert data.train.dtype == np.uint8
    azimuth = np.concatenate([data.train_labels["azimuth"], data.test_labels["azimuth"]])
    assert sorted(azimuth) == sorted([0, -35, 70, -60, 95] * 2)
    images = np.concatenate([data.train, data.test])
    of_light = dict(zip([0, -35, 70, -60, 95], [5, 15, 25, 35, 45], strict=True))
    assert all(
        (image == of_light[angle]).all() for image, angle in zip(images, azimuth, strict=True)
    )
    assert set(data.test_labels["person"]) == {0, 1}
    (tmp_path / "CroppedYale" / "yaleB01" / "yaleB01_P00A+000E+00.pgm").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"yaleB01_P00A\+000E\+00.pgm cannot be read"):
        load("yale", tmp_path)


def test_some_rows_keep_their_labels() -> None:
    data = digits()
    few, fewer = some_rows(data, 50), some_rows(data, 50, test_rows=20)
    assert (len(few.train), len(few.test), len(fewer.test)) == (50, len(data.test), 20)
    np.testing.assert_array_equal(few.train, fewer.train)
    for images, label, whole, labels in (
        (fewer.train, fewer.train_labels, data.train, data.train_labels),
        (fewer.test, fewer.test_labels, data.test, data.test_labels),
    ):
        for image, digit in zip(images, label["digit"], strict=True):
            assert digit in labels["digit"][(whole == image).all(1)]
