"""Files that are complete or absent: written under a temporary name, flushed to the disk, and then
renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = [
    "check_folder",
    "held",
    "read_folder",
    "remove_left_over",
    "write_folder",
    "write_together",
]

DIGESTS = "digests.json"
# Seconds to wait for a process that is about to end.
WAIT = 5.0
LEFT_OVER = re.compile(r"\.(?P<name>.+)\.(?P<what>new|old)\.(?P<node>.*)-(?P<process>\d+)\.tmp")


def check_folder(folder: Path, what: str) -> None:
    """:raises ValueError: if the path exists and is not a folder."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, but a folder for {what} is needed")


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write several files and rename them once all of them are on the disk.

    If the disk fills up, the old files stay unchanged.
    """
    temporaries: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            temporaries[path] = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            _write(temporaries[path], content)
        for path, temporary in temporaries.items():
            os.replace(temporary, path)
    except BaseException:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)
        raise


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write a folder of files with their digests, completely or not at all; it replaces an existing
    one.
    """
    digests = json.dumps({name: _digest(content) for name, content in contents.items()}).encode()
    mark = f"{platform.node()}-{os.getpid()}"
    temporary, aside = (
        folder.with_name(f".{folder.name}.{what}.{mark}.tmp") for what in ("new", "old")
    )
    try:
        temporary.mkdir()
        for name, content in {**contents, DIGESTS: digests}.items():
            _write(temporary / name, content)
        _flush(temporary)
        if folder.exists():
            os.rename(folder, aside)
        os.rename(temporary, folder)
        _flush(folder.parent)
    except BaseException:
        if aside.exists() and not folder.exists():
            os.rename(aside, folder)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Read what :func:`write_folder` wrote.

    :raises ValueError: if it is incomplete or damaged.
    """
    try:
        digests = json.loads((folder / DIGESTS).read_text())
        contents = {name: (folder / name).read_bytes() for name in digests}
        damaged = [name for name, content in contents.items() if digests[name] != _digest(content)]
    except (FileNotFoundError, NotADirectoryError, TypeError) as error:
        raise ValueError(f"it is incomplete: {error}") from error
    if damaged:
        raise ValueError(f"{' and '.join(damaged)} is damaged")
    return contents


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder, which is created if missing, against other processes within this context.

    The system releases the lock however this process ends; the file ``.lock`` stays and has no
    effect by itself.

    :raises ValueError: if another process holds the lock for some seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=WAIT)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"{folder} is being written by another process: wait until it ends, or give another "
            "folder"
        ) from None
    except NotImplementedError:  # a file system without locks
        yield
        return
    try:
        yield
    finally:
        lock.release()


def remove_left_over(folder: Path, pattern: str) -> None:
    """Remove what ended processes of this machine left unfinished, and restore what they had moved
    aside.

    :param pattern: pattern of the folders' names.
    """
    for path in folder.glob(f".{pattern}.tmp"):
        found = LEFT_OVER.fullmatch(path.name)
        if found is None or found["node"] != platform.node() or _lives(int(found["process"])):
            continue
        if found["what"] == "old" and not (whole := folder / found["name"]).exists():
            os.rename(path, whole)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    """Flush the names in a folder to the disk, if the system can open folders."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _lives(process: int) -> bool:
    if process == os.getpid() or os.name != "posix":
        return process != os.getpid()
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
