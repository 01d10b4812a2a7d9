"""A forked program sees, says and returns what it does in a new interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import fresh

pytestmark = pytest.mark.slow(25)

# How a program is called, and what else it can tell of the interpreter that it runs in.
CALLED = """
import json, os, sys
called = {
    "name": __name__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "argv": sys.argv,
    "folder": os.getcwd(),
    "path": sys.path,
    "environment": dict(os.environ),
    "input": sys.stdin.read(),
    "files": sorted(os.listdir("/proc/self/fd")),
    "buffered": [each.line_buffering for each in (sys.stdout, sys.stderr)],
}
"""
LOOKS = f"""{CALLED}
import importlib, logging, signal, threading, warnings
for name in {fresh.LIBRARIES}:
    importlib.import_module(name)
import numpy, pyro, torch
ours = {{"tests", "inference", "guides", "ppl_models", "examples", "pytest"}}
called |= {{
    "filters": [str(each) for each in warnings.filters],
    "ours": sorted(set(sys.modules) & ours),
    "dtype": str(torch.get_default_dtype()),
    "threads": torch.get_num_threads(),
    "gradients": torch.is_grad_enabled(),
    "validated": torch.distributions.Distribution._validate_args,
    "settings": {{name: repr(value) for name, value in pyro.settings.get().items()}},
    "parameters": list(pyro.get_param_store()),
    "running": threading.active_count(),  # PyArrow has one that is not Python's
    "handlers": [len(logging.root.handlers), logging.root.level],
    "signals": [str(signal.getsignal(kind)) for kind in sorted(signal.valid_signals())],
    "errors": numpy.geterr(),
    "flags": str(sys.flags),
}}
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="programs are forked on Linux alone")


def written(folder: Path, code: str, name: str = "program.py") -> Path:
    path = folder / name
    path.write_text(code)
    return path


@pytest.mark.thorough
@linux
@pytest.mark.parametrize("words", [["-m", "program"], ["program.py"]], ids=" ".join)
def test_it_looks_like_a_new_interpreter(words: list[str], tmp_path: Path) -> None:
    """The module imports the libraries, which takes a new interpreter its time; the file does
    not.
    """
    written(tmp_path, (LOOKS if "-m" in words else CALLED) + "print(json.dumps(called))")
    env = {"ADDED": "1", "HOME": None, "PYTHONPATH": f"{tmp_path}{os.pathsep}docs"}
    seen = []
    for forked in (True, False):
        done = fresh.run(*words, "--flag", "x", cwd=tmp_path, env=env, forked=forked)
        assert done.returncode == 0, done.stderr
        seen.append(json.loads(done.stdout))
    assert seen[0] == seen[1]


ENDS = [
    ("print('said')", 0, ""),
    ("raise SystemExit(7)", 7, ""),
    ("raise SystemExit('refused')", 1, "refused\n"),
    ("import atexit; atexit.register(print, 'last'); 1 / 0", 1, "ZeroDivisionError: division"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ("import warnings; warnings.warn('careful')", 0, "UserWarning: careful"),
]


@pytest.mark.parametrize(("code", "status", "words"), ENDS)
def test_it_ends_as_programs_end(code: str, status: int, words: str, tmp_path: Path) -> None:
    done = fresh.run(written(tmp_path, code))
    assert (done.returncode, words in done.stderr) == (status, True), done.stderr
    assert done.stdout == ("said\n" * ("said" in code) or "last\n" * ("last" in code))


@linux
def test_programs_draw_different_numbers_where_new_interpreters_do(tmp_path: Path) -> None:
    code = """
import random, numpy, torch
print(random.random(), numpy.random.random(), torch.rand(()).item(), torch.initial_seed())
"""
    path = written(tmp_path, code)
    drawn = [number for _ in range(2) for number in fresh.run(path).stdout.split()]
    assert len(set(drawn)) == 8


def test_one_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    fresh.run(written(tmp_path, "pass"))  # the server has started
    forever = "import os, time; os.fork(); open(str(os.getpid()), 'w'); time.sleep(100)"
    with pytest.raises(subprocess.TimeoutExpired):
        fresh.run(written(tmp_path, forever), cwd=tmp_path, timeout=2)
    if sys.platform == "linux":
        started = [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]
        assert len(started) == 2
        time.sleep(0.5)
        assert not [number for number in started if running(number)]


def running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
