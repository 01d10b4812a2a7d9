"""Objectives: the loss that is minimized, in nats per datum, and its terms."""
