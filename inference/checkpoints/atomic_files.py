"""Files that are complete or absent: written under a temporary name, flushed, and then renamed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

# Seconds to wait for a process that is about to end.
WAIT = 5.0
#: the lock of a folder that a process writes
LOCK = ".lock"


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
    one that holds their digest.
    """
    folder, writer = index.parent, f"{platform.node()}-{os.getpid()}.tmp"
    contents, new = {index: content}, {index: folder / f".{index.name}.{writer}"}
    for name, other in (others or {}).items():
        contents[folder / name] = other
        new[folder / name] = folder / f".{name}.{digest(other)}.{writer}"
    try:
        for path, temporary in new.items():
            with temporary.open("wb") as file:
                file.write(contents[path])
                file.flush()
                os.fsync(file.fileno())
        flush(folder)
        os.replace(new[index], index)
    except BaseException:
        if new[index].exists():  # else the new files count already
            for temporary in new.values():
                temporary.unlink(missing_ok=True)
        raise
    flush(folder)
    for path, temporary in new.items():
        if path != index:
            os.replace(temporary, path)
        _remove_stale(path)


def write_indexed(folder: Path, name: str, index: Any, files: Mapping[str, bytes]) -> None:
    """Write files as one with an index, in JSON, that holds their digests. The folder is created if
    it is missing, and removed again if nothing could be written.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_atomically(folder / name, (json.dumps(index, indent=2) + "\n").encode(), files)
        flush(folder.parent)
    finally:
        with suppress(OSError):  # it is not empty
            if is_new:
                folder.rmdir()


def read_indexed(folder: Path, name: str, found: str) -> bytes:
    """The file that was written with the digest that its index holds.

    :raises FileNotFoundError: if there is no file of that name.
    :raises ValueError: if there are only others.
    """
    path, advice = folder / name, "save the run again, or restore files that were written together"
    for each in (path, *sorted(folder.glob(f".{name}.{found}.*.tmp"))):
        if each.exists() and digest(content := each.read_bytes()) == found:
            return content
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: {advice}")
    raise ValueError(
        f"{path} belongs to another save than the files beside it, or is damaged: {advice}"
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


def _remove_stale(path: Path) -> None:
    """Remove what ended processes of this machine left of a file, where the system can say so."""
    name, node = re.escape(path.name), re.escape(platform.node())
    # Earlier versions named the process alone.
    left = re.compile(rf"\.{name}(\.[0-9a-f]{{64}})?\.({node}-)?(\d{{1,9}})\.tmp")
    for stale in path.parent.glob(".*.tmp") if os.name == "posix" else ():
        if found := left.fullmatch(stale.name):
            try:
                os.kill(int(found[3]), 0)
            except ProcessLookupError:
                stale.unlink(missing_ok=True)
            except PermissionError:  # another user's
                pass


def flush(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the system can open folders."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
