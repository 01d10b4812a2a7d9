"""Runs on disk: saved runs, and checkpoints of runs in progress."""
