"""The `[monitor]` of a recipe."""

from __future__ import annotations

from training.checkpoints.config import CheckpointsConfig
from training.generate.config import PromptsConfig

LEAST_SECONDS = 600
"""Seconds of computing that make a volunteer a contributor: ten minutes (paper, section 3.4)."""


class MonitorConfig(PromptsConfig, CheckpointsConfig):
    """Prompts that the monitor shows, and checkpoints that it keeps and copies."""
