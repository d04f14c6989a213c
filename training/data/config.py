"""The `[data]` of a recipe."""

from __future__ import annotations

from training.section import Section

SHUFFLED_SAMPLES = 8192
"""Samples that a peer mixes with each other: row groups with this many samples together, drawn from the whole set."""


class DataConfig(Section):
    """Place of the prepared shards."""

    shards: str
    """Folder or address (`https://`, `hf://`, `s3://`) of the prepared shards: Parquet files of codes and captions,
    Brotli-compressed."""
