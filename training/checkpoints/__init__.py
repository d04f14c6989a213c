"""Checkpoints: the run's state as files, saved, read, and converted from other formats."""
