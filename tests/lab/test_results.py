"""The records in lab/results/: they load, documents are theirs, reruns are judged rightly."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab import reproduce, short_runs, write_results
from lab.claims import claims_page, load_claims
from lab.records import Figure, RecordError, fill, load, load_all, load_shared, round_to
from tests.pages import ROOT

SHORT_RUNS = '[numbers]\ncommand = "model"\nsince = "COMMIT"\nnumbers = [1.0, 2.5]\n'
MACHINES = 'two-core = "two cores"\n'
PRINTS = """
import random, sys
random.seed(int(sys.argv[1]))
print("score", 10 + random.random())
print("twice", 2 * int(sys.argv[1]))
"""
RECORD = """
title = "A small record"
section = "Small records"
order = 1
command = "python model.py {seed}"
seeds = [0, 1, 2]
commit = "COMMIT"
date = 2026-01-01
short_runs = ["numbers"]
notes = "The mean is {score:mean.1} of {runs}."

[[figure]]
name = "score"
what = "a score"  # kept by an update
values = [SCORES]
read = 'stdout: ^score (\\S+)'

[[figure]]
name = "by_hand"
what = "looked at"
value = 0.50

[[table]]
columns = ["of", "score", "pair"]
rows = [["all", "{score}", [1.50, 0.20]]]
"""

BY_HAND = """
[[figure]]
name = "by_hand"
what = "looked at"
value = 0.50
"""


def git(root: Path, *words: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    done = subprocess.run(["git", "-C", root, *who, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit_all(root: Path, why: str) -> str:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", why)
    return git(root, "rev-parse", "--short", "HEAD")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one record, which was measured at its first commit."""
    (tmp_path / "lab/results").mkdir(parents=True)
    (tmp_path / "model.py").write_text(PRINTS)
    (tmp_path / "other.py").write_text("1\n")
    git(tmp_path, "init", "--quiet")
    commit = commit_all(tmp_path, "What is measured")
    for name, text in (("short_runs", SHORT_RUNS), ("machines", MACHINES)):
        (tmp_path / f"lab/results/{name}.toml").write_text(text.replace("COMMIT", commit))
    record = RECORD.replace("COMMIT", commit).replace("SCORES", "10.84, 10.13, 10.96")
    (tmp_path / "lab/results/small.toml").write_text(record)
    commit_all(tmp_path, "The record")
    return tmp_path


Call = Callable[..., int]


@pytest.fixture
def call(root: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Of ``lab.reproduce``, which takes no folder twice."""

    def reproduced(*arguments: str) -> int:
        shutil.rmtree(root / "runs", ignore_errors=True)
        monkeypatch.setattr(sys, "argv", ["reproduce", *arguments])
        return reproduce.main(root)

    return reproduced


# The repository's own records.


def test_every_record_loads_and_names_what_exists() -> None:
    records = load_all()
    assert len(records) > 40
    for record in records:
        assert record.figures or record.tables or record.notes, record.name
        for module in re.findall(r"-m ((?:lab|examples)[.\w]+)", " ".join(record.command)):
            assert find_spec(module), f"{record.name}: {module}"


def test_every_short_run_is_some_records() -> None:
    used = {name for record in load_all() for name in record.short_runs}
    assert load_shared(ROOT).short_runs.keys() == used


def test_the_documents_are_those_of_the_records() -> None:
    for path, text in write_results.documents().items():
        assert path.read_text() == text, f"{path.name}: run `python -m lab.write_results`"


def test_a_number_that_is_edited_in_a_document_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    wanted = {readme: (ROOT / "README.md").read_text()}
    shown = re.findall(r"\d+\.\d %", wanted[readme])
    readme.write_text(wanted[readme].replace(shown[0], "0.5 %"))
    assert write_results.write(wanted, check=True) == 1
    assert "README.md differs" in capsys.readouterr().out
    assert write_results.write(wanted, check=False) == 0
    assert readme.read_text() == wanted[readme]
    assert write_results.write(wanted, check=True) == 0


CLAIMS = """
title = "A small paper"
order = 1

[[claim]]
where = "Table 1"
says = "ten"
verdict = "agrees"
found = "{score:mean.1}; half of it: {small.by_hand}"
record = "small"
"""


def claims_of(root: Path, text: str) -> str:
    (root / "lab/results/claims").mkdir(exist_ok=True)
    (root / "lab/results/claims/small.toml").write_text(text)
    records = load_all(root)
    return claims_page(load_claims(records, root), records, "# Claims")


def test_claims_have_the_figures_of_their_records(root: Path) -> None:
    rows = claims_of(root, CLAIMS).splitlines()
    assert "| agrees | 1 | what the paper says is found here |" in rows
    assert rows[-1] == "| Table 1 | ten | agrees | 10.6; half of it: 0.50 (*A small record*) |"


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('"agrees"', '"true"', "verdict: must be one of agrees, in part, .*, got 'true'"),
        ('record = "small"', 'record = "other"', "there is no lab/results/other.toml"),
        ("{small.by_hand}", "{other.by_hand}", "there is no lab/results/other.toml"),
        ("{score:mean.1}", "{speed}", "small.toml: no figure for {speed}"),
        ('where = "Table 1"', "", "claim 1: field 'where' is missing"),
        ("found =", "seen =", "claim 1: unknown field 'seen'"),
        ('record = "small"', "", "'agrees' needs the record of what was measured"),
        ('record = "small"', "# `tests/", "'agrees' needs the record"),
        ('half of it: {small.by_hand}"\nrecord = "small"', '`tests/x.py`"', "names a figure"),
    ],
)
def test_claims_that_cannot_be_used_are_refused(
    root: Path, before: str, after: str, says: str
) -> None:
    assert before in CLAIMS
    with pytest.raises(RecordError, match=says):
        claims_of(root, CLAIMS.replace(before, after))


# How numbers are written.


def test_mean_and_deviation_are_computed_with_the_digits_of_the_values(root: Path) -> None:
    record = load(root / "lab/results/small.toml", load_shared(root))
    score = record.figure("score")
    assert score.show() == "10.64 (0.45)"
    assert (score.show("low"), score.show("each", 1)) == ("10.13", "10.8, 10.1, 11.0")
    assert fill("{score:mean.1} % ({score:sd.1})", record) == "10.6 % (0.4)"
    assert record.figure("by_hand").show() == "0.50"
    spread = Figure("range", "", value=0.5, low=0.25, high=1, digits=2)
    assert spread.show() == "0.50 (0.25 to 1.00)"
    assert (round_to(85.35, 1), round_to(-0.125, 2)) == ("85.4", "-0.13")


def test_a_page_has_the_command_and_the_numbers_as_they_are_spelled(root: Path) -> None:
    (record,) = load_all(root)
    page = write_results.whole_page([record], MACHINES_OF_TEST, "# Results")
    assert "    python model.py S\n" in page
    assert "| all | 10.64 (0.45) | 1.50 (0.20) |" in page
    assert "The mean is 10.6 of 3." in page
    assert "| looked at | 0.50 |" in page


MACHINES_OF_TEST = {"two-core": "two cores"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title =", "titel =", "lab/results/small.toml: unknown field 'titel'"),
        ("order = 1", 'order = "1"', "lab/results/small.toml: order: must be int, got '1'"),
        ('= ["numbers"]', '= ["others"]', "short_runs: 'others' is not in lab/results/short_runs"),
        ("10.84, 10.13", "10.13", r"figure score: 2 values for 3 seeds"),
        (
            "date = 2026",
            'added = [{seeds=[3], commit="a", date=2026-01-01}]\ndate = 2026',
            "3 is none",
        ),
        ("value = 0.50", "", r"figure 2 \(by_hand\): needs one of values, mean and value"),
        ("value = 0.50", "value = 0.50\nread = 'stdout: (a)'", "tolerance: is needed"),
        ("'stdout: ^score", "'stdout: (^score", "read: .*unterminated subpattern"),
        ("[1.50, 0.20]", "1.50, 2", "row 1 has 4 cells for 3 columns"),
        ("{score:mean.1}", "{scores:mean.1}", "no figure for {scores:mean.1}"),
        ("{score:mean.1}", "{score:paper}", "no figure for {score:paper}"),
    ],
)
def test_an_error_names_file_and_field(root: Path, old: str, new: str, message: str) -> None:
    edit(root / "lab/results/small.toml", old, new)
    with pytest.raises(RecordError, match=message):
        write_results.whole_page(load_all(root), MACHINES_OF_TEST, "")


# Running a record again.


def test_a_rerun_agrees_or_not(root: Path, call: Call, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("small") == 0
    said = capfd.readouterr().out
    assert "10.64 (0.45)" in said
    assert " agrees" in said
    assert "not read back: by_hand" in said
    assert (root / "runs/reproduce/small/2/stdout.txt").exists()
    assert reproduce.main(root) == 2  # it does not take what another has left
    assert "runs/reproduce/small is not empty: remove it, or give" in capfd.readouterr().err
    assert call("small", "--seeds", "1") == 0
    assert call("small", "--seeds", "1", "1") == 2
    assert "--seeds: one is given twice, got [1, 1]" in capfd.readouterr().err
    edit(root / "model.py", "10 + ", "20 + ")
    assert call("small") == 1
    assert "DOES NOT AGREE" in capfd.readouterr().out


def test_an_update_keeps_what_it_did_not_measure(root: Path, call: Call) -> None:
    path = root / "lab/results/small.toml"
    (root / ".gitignore").write_text("runs/\n")
    edit(root / "model.py", "10 + ", "20 + ")
    assert call("small", "--update") == 2  # not committed
    first, second = load_all(root)[0].commit, commit_all(root, "Another score")
    assert call("small", "--update", "--seeds", "0") == 2  # fewer than before
    assert call("small", "--update") == 1
    record = load(path, load_shared(root))
    assert record.commit == second
    assert record.figure("score").show("each") == "20.84, 20.13, 20.96"
    assert record.figure("by_hand").commit == record.tables[0].commit == first
    assert 'what = "a score"  # kept by an update' in path.read_text()
    assert call("small") == 0


def test_finished_runs_are_read_and_noted_with_their_commit(root: Path, call: Call) -> None:
    edit(root / "lab/results/small.toml", BY_HAND, "")
    edit(root / "lab/results/small.toml", "'stdout: ^score (\\S+)'", "'metrics.jsonl: 20.score'")
    commit = load_all(root)[0].commit
    for seed, score in ((5, 10.5), (6, 10.25), (7, 10.75)):
        folder = root / f"finished/{seed}"
        folder.mkdir(parents=True)
        lines = ('{"epoch": 1, "score": 2}', f'{{"epoch": 20, "score": {score}}}')
        (folder / "metrics.jsonl").write_text("\n".join(lines))

    def update(*seeds: int) -> int:
        chosen = ("small", "--update", "--seeds", *map(str, seeds))
        return call(*chosen, "--out", str(folder.parent), "--finished", commit)

    assert (update(5, 6, 8), update(5, 6, 7)) == (2, 0)  # there is no eighth run
    (record,) = load_all(root)
    assert record.figure("score").show("each") == "10.50, 10.25, 10.75"
    assert (record.commit, record.seeds) == (commit, (5, 6, 7))


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("{runs}", "--update --seeds 0 1 2", "3 values are needed, one for each seed, and 2 were"),
        ("{runs}", "--seeds 5 6", "its command counts seeds from 0: got [5, 6]"),
        ("0", "--seeds 5 6", "its command chooses its seeds itself"),
    ],
)
def test_finished_runs_that_do_not_fit_leave_the_record_as_it_was(
    command: str,
    arguments: str,
    said: str,
    root: Path,
    call: Call,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = root / "lab/results/small.toml"
    edit(path, BY_HAND, "")
    edit(path, "python model.py {seed}", f"python model.py {command}")
    for folder in (root / "finished", root / "finished/5"):
        folder.mkdir()
        scores = [10.5] if folder.name == "5" else [10.5, 10.25]
        (folder / "stdout.txt").write_text("".join(f"score {score}\n" for score in scores))
    before = path.read_bytes()
    where = ["--out", str(root / "finished"), "--finished", "HEAD"]
    assert call("small", *arguments.split(), *where) == 2
    assert said in capfd.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{seed}", "{data_root} {seed}", "give --data-root"),
        ("read = 'stdout: ^score (\\S+)'", "", "run its command by hand"),
        ('title = "A small record"', "", "field 'title' is missing"),
    ],
)
def test_what_cannot_be_run_is_refused(
    old: str, new: str, said: str, root: Path, call: Call, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("smal") == 2
    assert "there are small" in capfd.readouterr().err
    edit(root / "lab/results/small.toml", old, new)
    assert call("small") == 2
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("how", "value"),
    [
        ("scores.json: a.b.accuracy", 0.5),
        ("scores.json: of.0.4.*.x", 2.0),
        ("scores.json: list", 3.0),
        ("scores.json: a.b.accuracy or a.c", 0.75),
        ("stdout: ^seed \\d+ .* x (\\S+)", 1.5),
        ("stdout: ^row +(?P<mean>\\S+) \\((?P<deviation>\\S+)\\)", 7.25),
    ],
)
def test_figures_are_read_from_files_and_tables(tmp_path: Path, how: str, value: float) -> None:
    (tmp_path / "scores.json").write_text(
        '{"a": {"b": {"accuracy": 0.5}, "c": 0.75}, "list": [2, 4],'
        ' "of": {"0.4": [{"x": 1}, {"x": 3}]}}'
    )
    (tmp_path / "stdout.txt").write_text(
        "seed 0  y 1 x 1.0 z 2\nseed 1  y 1 x 2.0 z 2\nrow    7.25 (0.25)  7 to 8\n"
    )
    found = reproduce.read(Figure("x", "x", mean=1.0, read=how), [tmp_path])
    assert found.mean == value


def test_the_list_tells_whose_short_runs_give_other_numbers(
    root: Path, call: Call, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only changed numbers, which are noted as of a commit that has what changed them."""
    given = [1.0, 2.5004]

    def run(command: str, out: Path) -> None:
        out.mkdir()
        (out / "scores.json").write_text(json.dumps({"numbers": given, "seconds": 3}))

    def state() -> str:
        assert call("--list") == 0
        return capfd.readouterr().out.removeprefix("small").strip()

    monkeypatch.setattr(short_runs, "run", run)
    edit(root / "model.py", "10 + ", "20 + ")
    commit_all(root, "Another file")
    assert short_runs.main([], root) == 0
    assert state() == "current"
    given[1] = 2.6
    assert short_runs.main([], root) == 1
    assert "[1.0, 2.6] where [1.0, 2.5] are noted" in capfd.readouterr().out
    edit(root / "model.py", "20 + ", "30 + ")
    assert short_runs.main(["--update"], root) == 2
    assert "commit them first" in capfd.readouterr().err
    commit_all(root, "A formula")
    assert short_runs.main(["--update"], root) == 0
    capfd.readouterr()
    commit = load_all(root)[0].commit
    assert state() == f"stale (numbers: other numbers since {commit})"
    edit(root / "lab/results/small.toml", f'commit = "{commit}"', 'commit = "0123456"')
    assert state() == "unknown commit 0123456"
