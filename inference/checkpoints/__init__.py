"""Runs on disk: saved ones, and checkpoints of those in progress."""
