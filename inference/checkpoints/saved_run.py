"""A run on disk: a description, weights and a history; each file is complete or absent, and none
contains code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from inference.checkpoints.atomic_files import write_together
from ppl_models.checks import check_keys, is_index

__all__ = ["blamed_on", "read_checkpoint", "write_checkpoint"]

FORMAT = 2  # format 1 had other names for the networks' layers


def write_checkpoint(
    folder: Path, config: dict[str, Any], state: dict[str, Tensor], history: str
) -> Path:
    """Write the three files of a checkpoint into ``folder``, creating it if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    write_together(
        {
            folder / "weights.safetensors": save(
                {name: t.detach().cpu().contiguous() for name, t in state.items()}
            ),
            folder / "history.jsonl": history.encode(),
            folder / "config.json": (
                json.dumps({"format": FORMAT, **config}, indent=2) + "\n"
            ).encode(),
        }
    )
    return folder


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], list[dict[str, Any]]]:
    """Description, tensors and history of the checkpoint in ``folder``.

    :raises FileNotFoundError: if the folder or one of its files is missing.
    :raises ValueError: if a file is truncated or has the wrong content.
    """
    for name in ("config.json", "weights.safetensors", "history.jsonl"):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"no checkpoint in {folder}: {name} is missing (it is written by SVIRunner.save)"
            )
    try:
        config = json.loads((folder / "config.json").read_text())
        history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        state = load_file(folder / "weights.safetensors")
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise ValueError(f"the checkpoint in {folder} is truncated or damaged: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        found = config.get("format", "none") if isinstance(config, dict) else "none"
        raise ValueError(
            f"{folder / 'config.json'} is not a checkpoint of format {FORMAT}: its format is "
            f"{found}\n"
            "  A lower number was written by an earlier version of the library: load it with "
            "that, or train anew"
        )
    with blamed_on(folder / "config.json"):
        _check_config(config)
    with blamed_on(folder / "history.jsonl"):
        for i, record in enumerate(history, start=1):
            check_keys(f"line {i}", record, ("epoch", "step"))
    return config, state, history


@contextmanager
def blamed_on(path: Path) -> Iterator[None]:
    """Within this context a ValueError is raised again as an error in this file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _check_config(config: dict[str, Any]) -> None:
    """:raises ValueError: if a part is missing or invalid."""
    check_keys("it", config, ("guide", "schedule", "runner", "progress"))
    settings = ("lr", "seed", "precision")
    if unknown := sorted(check_keys("runner", config["runner"], settings).keys() - set(settings)):
        raise ValueError(f"runner has an unknown {unknown[0]!r}")
    for name in ("epoch", "step"):
        value = check_keys("progress", config["progress"], ("epoch", "step"))[name]
        if not is_index(value, 2**63):
            raise ValueError(f"progress must count, got {value!r} for {name!r}")
