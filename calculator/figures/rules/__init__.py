"""Algorithms that figures show, as plain functions that tests compare with the real ones."""
