"""The run's state as a file: saved, read, and converted from other formats."""
