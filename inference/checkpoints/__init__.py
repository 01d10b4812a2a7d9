"""Runs on disk: saved runs, and checkpoints of runs in progress."""

from inference.checkpoints.periodic import Checkpoints, CheckpointWarning, remove_checkpoints

__all__ = ["CheckpointWarning", "Checkpoints", "remove_checkpoints"]
