"""The long-running programs of a run: bootstrap, peer and monitor."""
