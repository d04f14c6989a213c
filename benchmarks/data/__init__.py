"""Streams of samples and the command that prepares them."""
