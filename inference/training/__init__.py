"""The training loop and its parts: the plan, batches, steps, handling of non-finite values."""
