"""The explorer: what it answers for every model, what its command refuses, and every view in a real
browser.
"""

from __future__ import annotations

import json
import pickle
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from facetvae import command, estimators
from facetvae.datasets import digits
from facetvae.explorer import data
from facetvae.explorer.explorer import Explorer
from facetvae.explorer.pictures import Pictures
from guides import ConditionalGuide, FacetGuide, TableGuide, VaDEGuide
from inference import SVIRunner, warm_start
from ppl_models import (
    IVAE,
    MFCVAE,
    MLP,
    Autoencoder,
    Categorical,
    Columns,
    GaussianMixture,
    Normal,
    SharedMLP,
    VaDE,
)
from tests import chromium
from tests.catalog import EACH, autoencoder, cvae, given, mlvae_tables, nvae, two_facets

pytest.importorskip("dash", reason="needs facetvae[explore]")
from facetvae.explorer import page as explore_page
from facetvae.explorer import serve
from facetvae.explorer import views as explore_views

N = 12


def explorer_of(guide: FacetGuide, **options: Any) -> Explorer:
    x = (255 * torch.rand(N, *guide.model.x_shape)).round() / 255
    beside = {name: values for name, values in given(guide, N).items() if name != "known"}
    return Explorer(
        guide, x.numpy(), **{"given": beside, "labels": {"half": np.arange(N) % 2}, **options}
    )


# What is asked, without a browser


@pytest.mark.parametrize("build", EACH, ids=lambda build: build.__name__)
def test_every_model_answers_or_says_in_a_sentence_why_not(build: Callable[[], FacetGuide]) -> None:
    explorer = explorer_of(build())
    model = explorer.model
    for facet in explorer.facets:
        data = explorer.swaps(facet, 1, 0)
        assert data.shape == (2, 2, *model.x_shape)
        assert np.isfinite(data).all()
        axes = explorer.axes(facet, 3)
        assert all(axis.low < axis.value < axis.high for axis in axes)
        still = explorer.moved(facet, 3, {axis.index: axis.value for axis in axes})[0]
        np.testing.assert_allclose(still, explorer.swaps(facet, 3, 3)[0, 0], rtol=1e-4, atol=1e-6)
        told = answer(
            lambda facet=facet: explorer.samples(
                facet, next(iter(explorer.choices(facet)), None), 3
            )
        )
        assert isinstance(told, str) == isinstance(model, Autoencoder)
        told = answer(lambda facet=facet: explorer.about(facet))
        assert isinstance(told, str) != (
            facet in model.inferred and model.priors[facet].num_components > 1
        )
    views = [explore_views.clusters_view(explorer, f, explorer.about) for f in explorer.facets]
    views += [
        explore_views.sample_rows(explorer, f, explorer.choices(f)[:2], 2, 0)
        for f in explorer.facets
    ]
    views += [
        explore_views.swap_table(explorer, explorer.facets[0], 0, 1),
        explore_views.slider_list(explorer, explorer.facets[0], 0),
    ]
    assert all(view is not None for view in views)
    assert explore_page.build_app(explorer, "run", {}).layout() is not None


def answer(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except ValueError as error:
        return str(error)


def test_what_a_facet_is_about_is_said_of_its_columns_and_labels() -> None:
    explorer = explorer_of(two_facets(), columns=[f"pixel {j}" for j in range(6)])
    told = explorer.about("digit")
    found = explorer.guide.predict(explorer.x)["digit"]
    assert {each["cluster"]: each["size"] for each in told.clusters} == {
        k: int((found == k).sum()) for k in np.unique(found)
    }
    assert {each["column"] for each in told.columns} == set(explorer.columns or ())
    (label,) = told.metadata
    assert (label["column"], set(label["shares"])) == ("half", {"0", "1"})
    page = str(explore_views.clusters_view(explorer, "digit", explorer.about))
    assert "pixel 3" in page
    assert "What the clusters explain of each known label" in page


def test_columns_of_a_table_may_be_shown_by_other_names() -> None:
    rng = np.random.default_rng(0)
    likelihood = Columns({"a": Normal(), "b": Categorical(3)})
    network = SharedMLP((8,))
    model = VaDE((2,), GaussianMixture(3, 2), likelihood=likelihood, network=network)
    x = np.stack([rng.normal(size=40), rng.integers(0, 3, 40)], 1)
    told = Explorer(VaDEGuide(model), x, columns=["Age", "City"]).about("cluster")
    kinds = {each["column"]: each["kind"] for each in told.columns}
    assert kinds == {"Age": "numbers", "City": "categories"}
    assert Explorer(VaDEGuide(model), x).about("cluster").rows == 40


def test_labels_that_are_numbers_are_categories() -> None:
    told = explorer_of(two_facets(), labels={"kind": np.arange(N) % 3}).about("digit")
    assert set(told.metadata[0]["shares"]) == {"0", "1", "2"}


def test_pixels_are_not_told_of() -> None:
    model = MFCVAE((1, 8, 8), {"digit": GaussianMixture(3, 2)}, network=SharedMLP((8,)))
    x = (255 * np.random.default_rng(0).random((30, 1, 8, 8))).astype(np.uint8)
    explorer = Explorer(VaDEGuide(model), x)
    page = str(explore_views.clusters_view(explorer, "digit", explorer.about))
    assert "of each column" not in page


def test_a_swap_takes_each_facet_from_the_input_that_it_names() -> None:
    explorer = explorer_of(two_facets())
    z = {name: torch.as_tensor(means) for name, means in explorer.guide.embed(explorer.x).items()}
    data = explorer.swaps("digit", 4, 7).reshape(4, -1)
    for (digit, style), datum in zip(product((4, 7), repeat=2), data, strict=True):
        with torch.no_grad():
            expected = explorer.model.decode(
                {"style": z["style"][style], "digit": z["digit"][digit]}
            ).mean
        np.testing.assert_allclose(datum, expected.numpy(), rtol=1e-5)
    page = str(explore_views.swap_table(explorer, "digit", 4, 7))
    assert page.count("className='swap'") == 4
    assert "Choose an input" in str(explore_views.swap_table(explorer, "digit", 4, None))


def test_a_moved_latent_moves_alone() -> None:
    explorer = explorer_of(two_facets())
    z = {
        name: torch.as_tensor(means[[5]])
        for name, means in explorer.guide.embed(explorer.x).items()
    }
    z["digit"][0, 2] = 1.7
    datum, found = explorer.moved("digit", 5, {2: 1.7})
    with torch.no_grad():
        np.testing.assert_allclose(datum, explorer.model.decode(z).mean[0].numpy(), rtol=1e-5)
        proba = explorer.model.priors["digit"].log_joint(z["digit"]).softmax(-1)[0]
    np.testing.assert_allclose(found, proba.numpy(), rtol=1e-5)


def test_held_samples_differ_in_their_facet_alone() -> None:
    explorer = explorer_of(two_facets())
    z = torch.as_tensor(explorer.guide.embed(explorer.x)["style"][[6]])
    with torch.no_grad():
        explorer.model.priors["digit"].raw_scale.fill_(-20)  # hardly any spread about the means
        means = explorer.model.priors["digit"].loc[[2]]
        expected = explorer.model.decode({"style": z, "digit": means}).mean.numpy()
    np.testing.assert_allclose(
        explorer.samples("digit", 2, 3, held=6), expected.repeat(3, 0), atol=0.05
    )
    assert len(np.unique(explorer.samples("digit", 2, 3), axis=0)) > 1, (
        "others are drawn where none is held"
    )
    np.testing.assert_array_equal(
        explorer.samples("digit", 2, 3, seed=4), explorer.samples("digit", 2, 3, seed=4)
    )


def test_a_label_that_the_decoder_reads_is_swapped_and_a_choice() -> None:
    explorer = explorer_of(cvae())
    assert explorer.choices("z") == [0, 1, 2]
    z = torch.as_tensor(explorer.guide.embed(explorer.x, **given(explorer.guide, N))["z"])
    explorer.model.eval()
    with torch.no_grad():  # row 1 has label 1
        expected = explorer.model.decode({"z": z[[0]]}, label=torch.tensor([1])).mean
    np.testing.assert_allclose(explorer.swaps("z", 0, 1)[0, 1], expected[0].numpy(), rtol=1e-5)
    classes = explorer_of(nvae())
    own = given(classes.guide, N)["label"]
    for row in range(3):
        assert [axis.index for axis in classes.axes("class", row)] == [
            2 * int(own[row]),
            2 * int(own[row]) + 1,
        ], "the latents of that class alone"


def test_data_that_are_no_images_are_drawn_as_bars() -> None:
    pictures = Pictures.of(np.array([[-1.0, 0.0, 1.0]]))
    (picture,) = pictures(np.array([[-1.0, 0.0, 1.0]]))
    ink = (picture == np.array([31, 94, 102])).all(-1)
    third = picture.shape[1] // 3
    top, bottom = np.split(ink, 2)
    assert not top[:, :third].any()
    assert bottom[:, : third - 1].all()
    assert not bottom[:, 2 * third :].any()
    assert top[:, 2 * third : -1].all()
    assert Pictures.of(np.zeros((2, 3, 8, 8))).shape == (3, 8, 8)
    holed = np.array([[-1.0, np.nan, 1.0]])
    (alike,) = Pictures.of(holed)(holed)
    np.testing.assert_array_equal(alike, picture, err_msg="a gap is drawn as 0")
    assert Pictures.of(np.full((1, 3), np.nan))(np.full((1, 3), np.nan)).shape == (
        1,
        *picture.shape,
    )
    gray = np.array([[[0, 51], [255, 1]]], np.uint8)
    np.testing.assert_array_equal(Pictures.of(gray)(gray), gray)


# The command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two facets, fitted briefly to the digits, as an example leaves them."""
    torch.manual_seed(0)
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(12, 3)}
    guide = VaDEGuide(MFCVAE((64,), facets, Normal(0.2), SharedMLP((32,))))
    runner = warm_start(
        SVIRunner(guide.model, guide, lr=1e-2), digits().train, 5, batch_size=64, progress=False
    )
    folder = runner.save(tmp_path_factory.mktemp("runs") / "two facets")
    (folder / "run.json").write_text(json.dumps({"data": "digits", "flags": {}, "settings": {}}))
    return folder


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    port = [] if "--port" in argv else ["--port", "0"]
    with pytest.raises(SystemExit) as stop:
        command.main(["explore", *argv, *port, "--no-browser"])
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.count("\n") == 1, "one line"
    return said


def test_what_cannot_be_explored_is_said_in_a_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no folder" in refusal(capsys, str(tmp_path / "nowhere"))
    assert "config.json is missing" in refusal(capsys, str(tmp_path))
    copied = shutil.copytree(run, tmp_path / "run")
    for content, words in {
        '{"data": "mnist"}': "no MNIST in",
        '{"data": "sources"}': "give them as --data FILE.npy",
        '{"flags": 1}': "does not say which data",
        "[" * 100_000: "does not say which data",
    }.items():
        (copied / "run.json").write_text(content)
        assert words in refusal(capsys, str(copied), "--data-root", str(tmp_path))
    (copied / "run.json").unlink()
    assert "no run.json" in refusal(capsys, str(copied))
    np.save(tmp_path / "short.npy", np.zeros((5, 63)))
    assert "are not the run's, which is of (64,)" in refusal(
        capsys, str(copied), "--data", str(tmp_path / "short.npy")
    )
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    assert "cannot be read as an array" in refusal(
        capsys, str(copied), "--data", str(tmp_path / "objects.npy")
    )
    np.save(tmp_path / "scalar.npy", np.array(0.5))
    for flag in ("--data", "--label"):
        others = [] if flag == "--data" else ["--data", str(tmp_path / "short.npy")]
        np.save(tmp_path / "short.npy", np.zeros((5, 64)))
        assert "holds a single number" in refusal(
            capsys, str(copied), *others, flag, str(tmp_path / "scalar.npy")
        )
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%s, 64), }\n"
    for name, content in {
        "pickle": pickle.dumps([1]),
        "zip": b"PK\x03\x04" + bytes(100),
        "open": b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + b"(" * len(header),
        "long": b"\x93NUMPY\x01\x00" + (len(header) + 97).to_bytes(2, "little")
        + header % (b"9" * 99),
    }.items():  # fmt: skip
        (tmp_path / f"{name}.npy").write_bytes(content)
        assert "cannot be read as an array" in refusal(
            capsys, str(copied), "--data", str(tmp_path / f"{name}.npy")
        )
    assert "there is no file" in refusal(capsys, str(copied), "--data", "/dev/zero")
    assert "there is no folder" in refusal(capsys, "x" * 5000)
    np.save(tmp_path / "nan.npy", np.full((5, 64), np.nan))
    assert "NaN" in refusal(capsys, str(copied), "--data", str(tmp_path / "nan.npy"))
    assert "there is no such file, and the labels of the data are ['digit']" in refusal(
        capsys, str(run), "--label", "x"
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "give another --port" in refusal(
            capsys, str(run), "--port", str(taken.getsockname()[1])
        )


def asked(*argv: str) -> dict[str, Any]:
    args = vars(command.parser().parse_args(["describe", *argv]))
    return {name: value for name, value in args.items() if name != "do"}


def shown(run: Path, *flags: str) -> Explorer:
    return data.open_run(**asked(str(run), *flags)).explorer


def test_the_runs_own_data_are_found_and_cut(run: Path) -> None:
    explorer = shown(run, "--rows", "50", "--seed", "3")
    assert explorer.x.shape == (50, 64)
    assert explorer.pictures.shape == (8, 8)
    rows = np.sort(np.random.default_rng(3).permutation(360)[:50])
    np.testing.assert_array_equal(explorer.x, digits().test[rows])
    np.testing.assert_array_equal(explorer.labels["digit"], digits().test_labels["digit"][rows])


def test_own_data_and_labels_are_shown(tmp_path: Path) -> None:
    guide = ConditionalGuide(IVAE((6,), 3, 2, Normal(0.4), MLP((8,))))
    SVIRunner(guide.model, guide).save(tmp_path / "run")
    x, label = np.random.default_rng(0).random((20, 6)), np.arange(20) % 3
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "label.npy", label)
    flags = ["--data", str(tmp_path / "x.npy")]
    with pytest.raises(data.Refused, match="needs label="):
        shown(tmp_path / "run", *flags)
    explorer = shown(tmp_path / "run", *flags, "--label", str(tmp_path / "label.npy"))
    np.testing.assert_allclose(sorted(explorer.x[:, 0]), sorted(x[:, 0]))
    np.testing.assert_array_equal(np.sort(explorer.labels["label"]), np.sort(label))


def test_names_of_columns_are_read_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = two_facets()
    SVIRunner(guide.model, guide).save(tmp_path / "run")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((20, 6)))
    names = tmp_path / "names.txt"
    flags = ["--data", str(tmp_path / "x.npy"), "--columns", str(names)]
    for content, words in (
        (b"\xff\xfe", "cannot be read as text"),
        (b"a\nb\n", "columns must be 6 names that differ"),
        (None, "there is no file"),
    ):
        names.unlink(missing_ok=True)
        if content is not None:
            names.write_bytes(content)
        assert words in refusal(capsys, str(tmp_path / "run"), *flags)
    names.write_text("a\nb\n c c\nd\ne\n\nf\n")
    assert shown(tmp_path / "run", *flags).columns == ("a", "b", "c c", "d", "e", "f")


def test_the_demo_leaves_a_run_that_can_be_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one epoch."""
    brief = partial(estimators.MultiFacetClustering, epochs=1)
    monkeypatch.setattr(estimators, "MultiFacetClustering", brief)
    command.main(["demo", "--out", str(tmp_path / "demo")])
    said = "digit: normalized mutual information of its clusters with the digit: 0."
    assert said in capsys.readouterr().out
    assert shown(tmp_path / "demo").facets == ["style", "digit"]


# The page in a browser


@contextmanager
def served(run: Path, *flags: str) -> Iterator[str]:
    """The address of the run's page."""
    with serve.serving(data.open_run(**asked(str(run), *flags)), 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield serve.address_of(server)
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def address(run: Path) -> Iterator[str]:
    with served(run, "--rows", "200") as found:
        yield found


def test_other_sites_names_for_this_machine_are_refused(address: str) -> None:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    with urlopen(address) as answer:
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    with pytest.raises(HTTPError, match="403") as caught:
        urlopen(Request(address, headers={"Host": "elsewhere.example:80"}))
    caught.value.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("selenium", reason="needs selenium")
    if missing := chromium.missing():
        pytest.skip(f"no {' and '.join(missing)} found: apt-get install chromium chromium-driver")
    with chromium.started() as driver:
        yield driver


def test_every_view_in_a_browser_that_reaches_nothing_else(browser: Any, address: str) -> None:
    page = chromium.Page(browser, address)
    assert page.wait("#Clusters .strip", None), "the page opens with a gallery"
    page.choose("facet", "style")
    assert page.text("#heading").startswith("style")
    page.choose("facet", "digit")
    assert page.wait("#Clusters .row", set(range(2, 13)))
    assert page.drawn("#Clusters .strip")

    assert page.wait("#Clusters .known tbody tr", 1), "the known label"
    assert "digit" in page.text("#Clusters .known")

    page.choose("view", "Swaps")
    assert page.wait(".swap", 4)
    before = page.sources(".swap")
    page.click(".thumbnails button:nth-child(9)")
    page.changes(".swap", before)
    before = page.sources(".swap")
    page.click(".thumbnails button:nth-child(12)")  # what was A becomes B
    page.changes(".swap", before)
    assert [page.value("#input-A"), page.value("#input-B")] == ["11", "8"]
    page.choose("view", "Latents")
    assert page.wait(".latent", 3)
    page.changes("#moved", [""])
    before = page.sources("#moved")
    page.press(".latent:nth-child(2) [role=slider]", "right", 20)
    page.changes("#moved", before)
    assert page.text("#moved-says").startswith("cluster ")

    page.choose("view", "Samples")
    assert page.wait("#drawn .strip", 10)
    before = page.sources("#drawn .strip")
    page.click("#anew")
    page.changes("#drawn .strip", before)
    before = page.sources("#drawn .strip")
    page.choose("held", "held as in A")
    page.changes("#drawn .strip", before)
    page.click("#choices label:nth-child(1)")
    assert page.wait("#drawn .strip", {9, 11})

    page.stays_quiet()
    refused = page.script(
        "const done = arguments[0]; fetch('/').then(() => fetch('http://127.0.0.1:9/'))"
        ".then(() => done('reached'), error => done(error.name))"
    )
    assert refused == "TypeError", "the browser is told to reach nothing else"
    with pytest.raises(AssertionError, match="Content Security Policy"):
        page.stays_quiet()


def test_other_models_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """No clusters and no prior: every view shows pictures or a sentence. What the views of all
    models hold is tested above.
    """
    guide = autoencoder()
    run = SVIRunner(guide.model, guide).save(tmp_path / "run")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((40, *guide.model.x_shape)))
    np.save(tmp_path / "label.npy", np.arange(40) % 3)
    flags = ["--data", str(tmp_path / "x.npy"), "--label", str(tmp_path / "label.npy")]
    with served(run, *flags) as address:
        page = chromium.Page(browser, address)
        for view in explore_page.VIEWS:
            page.choose("view", view)
            assert page.wait(f"#{view} img, #{view} .note", None)
        page.stays_quiet()


def test_tables_are_shown_for_the_rows_that_they_are_of(tmp_path: Path) -> None:
    guide = mlvae_tables()
    assert isinstance(guide, TableGuide)
    run = SVIRunner(guide.model, guide).save(tmp_path / "run")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((12, 6)))
    np.save(tmp_path / "fewer.npy", np.random.default_rng(0).random((11, 6)))
    assert len(shown(run, "--data", str(tmp_path / "x.npy"), "--rows", "3").x) == 12
    with pytest.raises(data.Refused, match="tables for 12 rows"):
        shown(run, "--data", str(tmp_path / "fewer.npy"))
