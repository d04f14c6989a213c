"""The doctor's checks, one subject a file."""
