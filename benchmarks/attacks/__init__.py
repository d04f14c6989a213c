"""Runs with hostile peers, and malformed inputs for all that reads what others send."""
