"""The fields of a recipe's `[monitor]` that decide what is drawn from its prompts."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from training.section import Positive, Section


class PromptsConfig(Section):
    """Fixed prompts of a run, the interval at which the model draws or continues them, and its sampling."""

    pictures_every_epochs: Positive = 100
    """Epochs between two drawings, or continuations, of the fixed prompts."""
    prompts: tuple[str, ...] = ()
    """Prompts that are drawn, or continued, repeatedly as the run progresses."""
    top_k: Positive | None = 256
    """Sampling keeps this many of the largest logits (paper, section 3.4)."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Sampling keeps the likeliest ids up to this total probability (paper: 0.75)."""
    continuation_tokens: Positive = 100
    """Most tokens with which a language model continues a prompt."""
