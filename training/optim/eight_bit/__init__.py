"""Moments of optimizers in block-wise 8 bit."""
