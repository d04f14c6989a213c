"""Publication of a run: its history, the live API, copies of checkpoints, and pictures."""
