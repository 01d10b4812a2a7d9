"""Python programs in processes of their own, without the eight seconds of CPU time that each needs
to import its libraries.

:func:`run` does what ``subprocess.run([sys.executable, *arguments])`` does. The first call starts a
server: a new interpreter that imports the libraries, and nothing of this project or of the tests.
For each program the server forks. The child gets its own arguments, folder, environment and files,
so that it sees what a new interpreter sees.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

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
            preexec_fn=_interruptible,
        )
    return _run_forked(words, cwd, environment, timeout)


def _interruptible() -> None:
    """As in a foreground job: a shell's background jobs, and what they start, ignore Ctrl-C."""
    for kind in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(kind, signal.SIG_DFL)


def noise(stderr: str) -> list[str]:
    """Lines of warnings that name a library's file, which tell a user nothing; not those whose
    place is the caller's, as of NumPy's functions.
    """
    return [line for line in stderr.splitlines() if "site-packages" in line and "Warning:" in line]


def _run_forked(
    words: list[str], cwd: Path, environment: dict[str, str], timeout: float
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with open(os.devnull, "rb") as nothing:
            files = [nothing.fileno(), out.fileno(), err.fileno()]
            request = {"words": words, "cwd": str(cwd), "environment": environment}
            status = _call(request, files, timeout)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(words, status, *said)


def _call(request: dict, files: list[int], timeout: float) -> int:
    """Have the server run a program with these files as its input, output and errors; returns its
    exit status.

    :raises subprocess.TimeoutExpired: after ``timeout`` seconds, when the program has been killed.
    """
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("r") as replies:
        connection.settimeout(timeout)
        connection.connect(server())
        socket.send_fds(connection, [b"\0"], files)
        connection.sendall(json.dumps(request).encode() + b"\n")
        process = None
        try:
            process = _number(replies.readline())
            return _number(replies.readline())
        except BaseException as error:
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
            if isinstance(error, TimeoutError):
                raise subprocess.TimeoutExpired(request["words"], timeout) from None
            raise


def _number(reply: str) -> int:
    if not reply:
        raise RuntimeError("the server of forked programs has ended, and its errors are above")
    return int(reply)


_servers: dict[int, str] = {}  # of this process, not of one that it was forked from


def server() -> str:
    """The address of this process's server, which is started if need be."""
    if os.getpid() not in _servers:
        _servers[os.getpid()] = _start_server()
    return _servers[os.getpid()]


def _start_server() -> str:
    folder = tempfile.TemporaryDirectory(prefix="fresh")
    address = f"{folder.name}/socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()  # calls wait while it imports
        process = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno())],
            env={**os.environ, **THREADS},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            preexec_fn=_interruptible,
        )
    owner = os.getpid()

    def stop() -> None:
        if os.getpid() == owner:
            process.communicate()  # it ends with its input
            folder.cleanup()

    atexit.register(stop)
    return address


# The server


def serve(listener: socket.socket) -> dict | None:
    """Fork for each call; returns what is to be run in the child, and ``None`` at the end of input
    in the server.
    """
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is imported is not looked at again, and so not copied
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if listener not in ready:
            return None
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _answer(connection)
        connection.close()
        _collect()


def _collect() -> None:
    """Children that have ended; so that their time counts as the server's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(connection: socket.socket) -> dict:
    """Start a program's process and say how it ended; returns in that process alone."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("r") as lines:
        request = json.loads(lines.readline())
    process = os.fork()
    if process:
        with contextlib.suppress(OSError):  # from a caller that has gone
            connection.sendall(f"{process}\n".encode())
        _, status = os.waitpid(process, 0)
        with contextlib.suppress(OSError):
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    connection.close()
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return request


# The program


def execute(words: list[str], cwd: str, environment: dict[str, str]) -> None:
    """What an interpreter does that is started with these words."""
    import numpy as np
    import torch

    sys.path[:] = _path(words, cwd, environment)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    # Else all programs draw the same numbers, the server's.
    np.random.seed()  # noqa: NPY002
    torch.seed()
    importlib.invalidate_caches()
    module = words[0] == "-m"
    sys.argv = words[module:]
    if module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _path(words: list[str], cwd: str, environment: dict[str, str]) -> list[str]:
    """Where modules are looked for: the program's folder, those that the environment names, and the
    libraries' own.
    """

    def named(value: str, where: str) -> list[str]:
        return [os.path.abspath(os.path.join(where, p)) for p in value.split(os.pathsep) if p]

    servers = {sys.path[0], *named(os.environ.get("PYTHONPATH", ""), os.getcwd())}
    first = cwd if words[0] == "-m" else os.path.dirname(os.path.join(cwd, words[0]))
    asked = named(environment.get("PYTHONPATH", ""), cwd)
    return [first, *asked, *(each for each in sys.path if each not in servers)]


if __name__ == "__main__":
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        execute(**request)
    else:
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
