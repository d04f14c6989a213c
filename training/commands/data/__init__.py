"""Commands that make and show data."""
