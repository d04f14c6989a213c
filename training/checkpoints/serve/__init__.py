"""Serves a run's checkpoints: their index, and the files behind it."""
