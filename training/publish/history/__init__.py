"""The history of a run: its file, branches, credit for volunteers, backups, and the state of the run."""
