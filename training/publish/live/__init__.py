"""The live API, and the monitor's view of its run."""
