"""The `[monitor]` of a recipe."""

from __future__ import annotations

from training.checkpoints.config import CheckpointsConfig
from training.generate.config import PromptsConfig


class MonitorConfig(PromptsConfig, CheckpointsConfig):
    """Prompts that the monitor shows, and checkpoints that it keeps and copies."""
