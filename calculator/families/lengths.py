"""Lengths of sequences: the limit of a model's positions, and the length for which it was trained."""

from __future__ import annotations

from calculator.families.registry import family_of
from calculator.models.architecture import Architecture

MOST_TOKENS = 1_000_000_000
"""The longest sequence that is counted, of models whose positions have no limit."""


def most_tokens(architecture: Architecture) -> int:
    """The longest sequence that a model accepts: the rows of its table of positions, or `MOST_TOKENS` without one."""
    return architecture.max_positions if family_of(architecture).position_table else MOST_TOKENS


def beyond_training(architecture: Architecture, length: int) -> str:
    """A sentence if a sequence is longer than those that the model was trained for; else empty."""
    trained = architecture.max_positions
    if not trained or length <= trained:
        return ""
    return (
        f"By its config, {architecture.name} was not trained for {length:,} tokens, but for at most {trained:,}: the "
        "memory is counted, its answers may be poor."
    )
