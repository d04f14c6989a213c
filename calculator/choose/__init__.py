"""Choices: GPUs, their speed, what fits them, and which technique to turn on."""
