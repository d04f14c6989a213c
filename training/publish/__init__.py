"""What the world sees of a run: its history, the live API, checkpoints and pictures."""
