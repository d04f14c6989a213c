"""Web interface of a run's checkpoints: their index, and their files."""
