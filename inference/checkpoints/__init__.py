"""Runs on disk: saved ones, and checkpoints of those in progress."""

from inference.checkpoints.periodic import Checkpoints, CheckpointWarning, remove_checkpoints

__all__ = ["CheckpointWarning", "Checkpoints", "remove_checkpoints"]
