"""The card beside a saved run: what it says, that nothing reads it, that names are text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from facetvae.describing import FacetClusters, describe_clusters
from guides import VaDEGuide
from inference import SVIRunner
from inference.checkpoints.card import card_text
from ppl_models import MFCVAE, GaussianMixture, Normal, SharedMLP

X = np.random.default_rng(0).random((30, 6), np.float32)


def runner(seed: int = 0, epochs: int = 2) -> SVIRunner:
    facets = {"style": GaussianMixture(3, 2), "digit": GaussianMixture(5, 2)}
    model = MFCVAE((6,), facets, Normal(0.2), SharedMLP((8,)))
    run = SVIRunner(model, VaDEGuide(model), lr=1e-2, seed=seed)
    return run.fit(X, epochs, progress=False) if epochs else run


def rows(card: Path) -> dict[str, list[str]]:
    """The cells of all tables by their first one."""
    lines = [line for line in card.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {first: rest for first, *rest in cells}


def test_a_saved_run_has_a_card(tmp_path: Path) -> None:
    run = runner()
    card = run.save(tmp_path) / "card.md"
    said = rows(card)
    assert card.read_text().startswith("# MFCVAE with VaDEGuide\n")
    assert said["digit"][:2] == ["2", "5"]
    assert said["digit"][2].startswith("GaussianMixture(")
    assert said["likelihood"] == ["Normal(scale=0.2)"]
    assert said["epochs"] == ["2"]
    assert said["optimizer steps"] == [str(run.step)]
    assert float(said["elbo"][0]) == pytest.approx(run.history[-1]["elbo"], rel=1e-5)
    assert int(said["parameters"][0]) == sum(p.numel() for p in run.guide.parameters())
    assert "object at 0x" not in card.read_text()


def test_a_run_that_was_not_fitted_has_a_card_without_numbers_of_training(tmp_path: Path) -> None:
    said = rows(runner(epochs=0).save(tmp_path) / "card.md")
    assert said["epochs"] == ["0"]
    assert not {"elbo", "objective"} & (said.keys() - {"objective"})


def test_nothing_reads_the_card(tmp_path: Path) -> None:
    run = runner()
    run.save(tmp_path)
    expected = run.guide.embed(X)
    for content in (b"mine", b"\xff\xfe", None):
        path = tmp_path / "card.md"
        path.unlink() if content is None else path.write_bytes(content)
        np.testing.assert_equal(SVIRunner.load(tmp_path).guide.embed(X), expected)
    run.save(tmp_path)
    assert (tmp_path / "card.md").read_text().startswith("# MFCVAE")
    assert not list(tmp_path.glob(".*"))


def tags(page: str) -> list[str]:
    """What a browser would take for markup."""
    found: list[str] = []
    parser = HTMLParser(convert_charrefs=False)
    parser.handle_starttag = lambda tag, attrs: found.append(tag)  # type: ignore[method-assign]
    parser.feed(page)
    parser.close()
    return found


@pytest.mark.parametrize(
    "name", ["<script>", "<img src=x onerror=y>", "a|b", "a\\|b", "a\nb", "<b>\n|&", "1 < 2"]
)
def test_names_are_text_and_not_markup(name: str) -> None:
    group = np.arange(6) % 2
    town = {name: np.array([name, "other"])[group]}
    told = describe_clusters(FacetClusters(name, np.eye(2)[group]), town, town)
    run = runner(epochs=0)
    run.history.append({name: 1.0})
    for page in (told.to_markdown(), card_text(run)):
        assert not tags(page)
        tables = [list(t) for of, t in groupby(page.splitlines(), lambda s: s[:1] == "|") if of]
        for lines in tables:
            assert len({re.sub(r"\\.", "", line).count("|") for line in lines}) == 1
        assert sum(line.startswith(("|", "#")) for line in page.splitlines()) >= 8
