"""The history of a run, and what follows from it."""
