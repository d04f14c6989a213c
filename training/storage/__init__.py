"""Atomic writes: a file or folder on disk is complete or absent."""
