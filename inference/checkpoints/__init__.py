"""Runs on disk: saved runs, and checkpoints of runs in progress."""

from inference.checkpoints.periodic import Checkpoints, CheckpointWarning

__all__ = ["CheckpointWarning", "Checkpoints"]
