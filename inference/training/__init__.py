"""The training loop and its parts: a plan, data in batches, steps, and what is not finite."""
