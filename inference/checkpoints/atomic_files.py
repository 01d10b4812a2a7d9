"""Files that are complete or absent: written under a temporary name, flushed to the disk, and then
renamed. What is read is a regular file of a limited size.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from inference.checkpoints.json_text import parsed

DIGESTS = "digests.json"
# Seconds to wait for a process that is about to end.
WAIT = 5.0
#: the lock of a folder that a process writes
LOCK = ".lock"
NONBLOCKING = getattr(os, "O_NONBLOCK", 0)
# Bytes of a file of JSON, at most: millions of records.
LARGEST_TEXT, LARGEST_DIGESTS = 2**30, 2**20
LEFT_OVER = re.compile(r"\.(?P<name>.+)\.(?P<what>new|old)\.(?P<node>.*)-(?P<process>\d+)\.tmp")
# What follows the name of a single file; earlier versions wrote the process alone.
MARKS = r"(\.[0-9a-f]{64})?\.((?P<node>.*)-)?(?P<process>\d+)\.tmp"


def check_folder(folder: Path, what: str) -> None:
    """:raises ValueError: if the path exists and is not a folder."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, but a folder for {what} is needed")


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write several files and rename them once all of them are on the disk.

    If the disk fills up, the old files stay unchanged.
    """
    temporaries = {path: _temporary(path) for path in contents}
    _write_all({temporaries[path]: content for path, content in contents.items()})
    try:
        for path, temporary in temporaries.items():
            os.replace(temporary, path)
    except BaseException:
        _remove(temporaries.values())
        raise
    for folder in {path.parent for path in contents}:
        _remove_stale(folder, {path.name for path in contents})


def write_indexed(index: Path, content: bytes, others: Mapping[str, bytes]) -> None:
    """Replace a file that holds the digests of others beside it, and these others, as one.

    Renaming the index commits them all: until then the earlier files are in place, and from then on
    :func:`read_indexed` finds the new ones, under their own name or still under a temporary one
    that holds their digest. So at every moment the folder holds the earlier files or the new ones.
    """
    folder, temporary = index.parent, _temporary(index)
    waiting = {folder / name: _temporary(folder / name, digest(o)) for name, o in others.items()}
    _write_all({**dict(zip(waiting.values(), others.values(), strict=True)), temporary: content})
    try:
        os.replace(temporary, index)
    except OSError:
        _remove([temporary, *waiting.values()])
        raise
    _flush(folder)
    for path, new in waiting.items():
        os.replace(new, path)
    _remove_stale(folder, {index.name, *others})


def read_indexed(folder: Path, name: str, found: str, at_most: int) -> bytes:
    """The file that :func:`write_indexed` wrote with the digest that its index holds.

    :raises FileNotFoundError: if there is no file of that name.
    :raises ValueError: if there are only others, or it is not a regular file, or too large.
    """
    waiting = sorted(folder.glob(f".{name}.{found}.*.tmp"))
    for path in (path for path in (folder / name, *waiting) if path.exists()):
        if digest(content := read_file(path, at_most)) == found:
            return content
    if not (folder / name).exists():
        raise FileNotFoundError(name)
    raise ValueError(
        f"{folder / name} belongs to another save than the files beside it, or is damaged: save "
        "the run again, or restore files that were written together"
    )


def read_file(path: Path, at_most: int = LARGEST_TEXT) -> bytes:
    """The content of a regular file.

    :raises ValueError: if it is a folder, device or pipe, or has more than ``at_most`` bytes.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is not a regular file")
    if found.st_size > at_most:
        raise ValueError(f"{path} has {found.st_size} bytes, but at most {at_most} are expected")
    # Should a pipe have taken its place, opening it does not wait for a writer.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | NONBLOCKING)) as file:
        return file.read(found.st_size)


def digest(content: bytes) -> str:
    """What identifies a file's content."""
    return hashlib.sha256(content).hexdigest()


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write a folder of files with their digests, completely or not at all; it replaces an existing
    one.
    """
    digests = json.dumps({name: digest(content) for name, content in contents.items()}).encode()
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


def read_folder(folder: Path, limits: Mapping[str, int]) -> dict[str, bytes]:
    """Read what :func:`write_folder` wrote.

    :param limits: the files' names, and how many bytes each may have.
    :raises ValueError: if it is incomplete or damaged.
    """
    try:
        digests = parsed(read_file(folder / DIGESTS, LARGEST_DIGESTS))
        contents = {name: read_file(folder / name, limit) for name, limit in limits.items()}
        damaged = [name for name, content in contents.items() if digests[name] != digest(content)]
    except (FileNotFoundError, NotADirectoryError, TypeError, KeyError) as error:
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
    lock = FileLock(folder / LOCK, timeout=WAIT)
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


def _temporary(path: Path, *marks: str) -> Path:
    """A name beside ``path`` that says which process writes it."""
    return path.with_name(
        ".".join(["", path.name, *marks, f"{platform.node()}-{os.getpid()}", "tmp"])
    )


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _remove_stale(folder: Path, names: Iterable[str]) -> None:
    """Remove what ended processes of this machine left of files of these names."""
    for name in names:
        for path in folder.glob(f".{name}.*.tmp"):
            found = re.fullmatch(MARKS, path.name.removeprefix(f".{name}"))
            if found is None or found["node"] not in (None, platform.node()):
                continue
            if not _lives(int(found["process"])):
                with suppress(OSError):
                    path.unlink()


def _write_all(contents: Mapping[Path, bytes]) -> None:
    """Write these files to the disk, or none of them."""
    try:
        for path, content in contents.items():
            _write(path, content)
        for folder in {path.parent for path in contents}:
            _flush(folder)
    except BaseException:
        _remove(contents)
        raise


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
