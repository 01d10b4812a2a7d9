"""Files that are complete or absent: written under a temporary name, flushed, and then renamed."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

# Seconds to wait for a process that is about to end.
WAIT = 5.0
#: the lock of a folder that a process writes
LOCK = ".lock"
# What follows the name of a file that a process writes; earlier versions wrote the process alone.
MARKS = r"(\.[0-9a-f]{64})?\.((?P<node>.*)-)?(?P<process>\d{1,9})\.tmp"


def check_folder(folder: Path, what: str) -> None:
    """:raises ValueError: if the path exists and is not a folder."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, but a folder for {what} is needed")


def write_atomically(
    index: Path, content: bytes, others: Mapping[str, bytes] | None = None
) -> None:
    """Replace a file, and others beside it whose digests it holds, as one.

    Renaming the first file commits them all: until then the earlier ones are in place, and from
    then on :func:`read_indexed` finds the new ones, under their own name or still under a temporary
    one that holds their digest. So at every moment the folder holds the earlier files or the new
    ones.
    """
    folder, temporary, others = index.parent, _temporary(index), others or {}
    waiting = {folder / name: _temporary(folder / name, digest(o)) for name, o in others.items()}
    try:
        _write(temporary, content)
        for path, new in waiting.items():
            _write(new, others[path.name])
        flush(folder)
        os.replace(temporary, index)
    except BaseException:
        if temporary.exists():  # else the new files count already
            for path in (temporary, *waiting.values()):
                path.unlink(missing_ok=True)
        raise
    flush(folder)
    for path, new in waiting.items():
        os.replace(new, path)
    for path in (index, *waiting):
        _remove_stale(path)


def read_indexed(folder: Path, name: str, found: str) -> bytes:
    """The file that :func:`write_atomically` wrote with the digest that its index holds.

    :raises FileNotFoundError: if there is no file of that name.
    :raises ValueError: if there are only others.
    """
    waiting = sorted(folder.glob(f".{name}.{found}.*.tmp"))
    for path in (path for path in (folder / name, *waiting) if path.exists()):
        if digest(content := path.read_bytes()) == found:
            return content
    if not (folder / name).exists():
        raise FileNotFoundError(f"{name} is missing")
    raise ValueError(
        f"{folder / name} belongs to another save than the files beside it, or is damaged: save "
        "the run again, or restore files that were written together"
    )


def digest(content: bytes) -> str:
    """What identifies a file's content."""
    return hashlib.sha256(content).hexdigest()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder, which is created if missing, against other processes within this context.

    The system releases the lock however this process ends; the file ``.lock`` stays and has no
    effect by itself.

    :raises ValueError: if another process holds the lock for some seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=WAIT)
    try:
        with suppress(NotImplementedError):  # a file system without locks
            lock.acquire()
    except Timeout:
        raise ValueError(
            f"{folder} is being written by another process: wait until it ends, or give another "
            "folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def _temporary(path: Path, *marks: str) -> Path:
    """A name beside ``path`` that says which process writes it."""
    writer = f"{platform.node()}-{os.getpid()}"
    return path.with_name(".".join(["", path.name, *marks, writer, "tmp"]))


def _remove_stale(path: Path) -> None:
    """Remove what ended processes of this machine left of a file."""
    for stale in path.parent.glob(f".{path.name}.*.tmp"):
        found = re.fullmatch(MARKS, stale.name.removeprefix(f".{path.name}"))
        if found is None or found["node"] not in (None, platform.node()):
            continue
        if _has_ended(int(found["process"])):
            stale.unlink(missing_ok=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the system can open folders."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _has_ended(process: int) -> bool:
    """Whether a process is no more, where the system can say so."""
    if os.name == "posix":
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
    return False
