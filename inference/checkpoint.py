"""A run on disk: a description, numbers and a history; each file whole or absent, none of them code."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

__all__ = ["read_checkpoint", "write_atomically", "write_checkpoint"]

FORMAT = 1


def write_checkpoint(folder: Path, config: dict[str, Any], state: dict[str, Tensor], history: str) -> Path:
    """Write the three files of a checkpoint into ``folder``, creating it if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})
    write_atomically(folder / "weights.safetensors", weights)
    write_atomically(folder / "history.jsonl", history.encode())
    write_atomically(folder / "config.json", (json.dumps({"format": FORMAT, **config}, indent=2) + "\n").encode())
    return folder


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside ``path``, flush to the disk, then move into place: a reader sees the old file or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], list[dict[str, Any]]]:
    """Description, tensors and history of the checkpoint in ``folder``.

    :raises FileNotFoundError: if the folder or one of its files is missing.
    :raises ValueError: if a file is truncated or not what it should be.
    """
    for name in ("config.json", "weights.safetensors", "history.jsonl"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"no checkpoint in {folder}: {name} is missing (it is written by SVIRunner.save)")
    try:
        config = json.loads((folder / "config.json").read_text())
        history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        state = load_file(folder / "weights.safetensors")
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise ValueError(f"the checkpoint in {folder} is truncated or damaged: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ValueError(f"{folder / 'config.json'} is not a checkpoint of format {FORMAT}")
    return config, state, history
