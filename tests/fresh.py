"""Python programs in processes of their own, without the eight seconds of CPU time that each needs
to import its libraries.

:func:`run` does what ``subprocess.run([sys.executable, *arguments])`` does. The first call starts a
server, multiprocessing's: a new interpreter that imports the libraries, and nothing of this
project. For each program the server forks. The child gets its own arguments, folder, environment
and files, so that it sees what a new interpreter sees.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
# What examples and documents import of others; torch._dynamo comes with the first optimizer.
LIBRARIES = (
    "PIL.Image",
    "arviz_stats",
    "elbocheck",
    "elbocheck.pyro",
    "elbocheck.pytorch",
    "filelock",
    "matplotlib.backends.backend_agg",
    "matplotlib.pyplot",
    "pyro.infer",
    "pyro.optim",
    "safetensors.torch",
    "scipy.io",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.datasets",
    "sklearn.feature_extraction.image",
    "sklearn.linear_model",
    "sklearn.manifold",
    "sklearn.mixture",
    "sklearn.neural_network",
    "sklearn.pipeline",
    "torch._dynamo",
    "torch.profiler",
    "torch.utils.data",
    "tqdm.auto",
)
# Libraries read it when they are imported.
THREADS = {"OMP_NUM_THREADS": "1"}
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(list(LIBRARIES))


# Running a program


def run(
    *arguments: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 300,
    forked: bool = True,
) -> subprocess.CompletedProcess[str]:
    """What ``python`` with these arguments (``-m MODULE ...`` or ``FILE ...``) says and returns.

    :param env: changes of the environment; ``None`` removes a variable.
    :param forked: ``False`` starts a new interpreter, as a user does.
    """
    words = [str(argument) for argument in arguments]
    changed = {**os.environ, **THREADS, "PYTHONPATH": str(ROOT), **(env or {})}
    environment = {name: value for name, value in changed.items() if value is not None}
    if not (forked and sys.platform == "linux"):
        return subprocess.run(
            [sys.executable, *words],
            cwd=cwd,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    return _run_forked(words, cwd, environment, timeout)


def noise(stderr: str) -> list[str]:
    """Lines of warnings that name a library's file, which tell a user nothing; not those whose
    place is the caller's, as of NumPy's functions.
    """
    return [line for line in stderr.splitlines() if "site-packages" in line and "Warning:" in line]


def _run_forked(
    words: list[str], cwd: Path, environment: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """:raises subprocess.TimeoutExpired: after ``timeout`` seconds, when the program was killed."""
    start_server()
    with tempfile.TemporaryDirectory() as place:
        files = [Path(place) / name for name in ("out", "err")]
        child = SERVER.Process(target=_execute, args=(words, str(cwd), environment, files))
        child.start()
        try:
            child.join(timeout)
        finally:
            if late := child.exitcode is None:
                os.killpg(child.pid, signal.SIGKILL)
        if late:
            raise subprocess.TimeoutExpired(words, timeout)
        said = [file.read_text() for file in files]
    return subprocess.CompletedProcess(words, child.exitcode, *said)


def start_server() -> None:
    """Unless it runs; its libraries are imported with one thread each."""
    with patch.dict(os.environ, THREADS):
        forkserver.ensure_running()


# The program


def _execute(words: list[str], cwd: str, environment: dict[str, str], files: list[Path]) -> None:
    """What an interpreter does that is started with these words."""
    import numpy as np
    import torch

    os.setsid()
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    # Where modules are looked for: the program's folder, those that the environment names, and the
    # libraries' own, but not those of the tests.
    first = cwd if words[0] == "-m" else os.path.dirname(os.path.join(cwd, words[0]))
    asked = [os.path.join(cwd, p) for p in environment.get("PYTHONPATH", "").split(":") if p]
    installed = [each for each in sys.path if each.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [first, *asked, *installed]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    # Else all programs draw the same numbers, the server's.
    np.random.seed()  # noqa: NPY002
    torch.seed()
    importlib.invalidate_caches()
    module = words[0] == "-m"
    sys.argv = words[module:]
    try:
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        atexit._run_exitfuncs()
