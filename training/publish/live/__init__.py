"""The live API, and what a monitor sees of its run."""
