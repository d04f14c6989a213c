"""A peer's own endless order of samples, and batches in that order."""
