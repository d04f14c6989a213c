"""The `[codec]` table of a recipe."""

from __future__ import annotations

from typing import Literal

from training.section import Positive, Section


class CodecConfig(Section):
    """Image codec, which converts between pictures and grids of codebook entries."""

    kind: Literal["small", "vqgan"] = "small"
    """`small` is the project's own VQ model, trained by `prepare`; `vqgan` is VQ-GAN f=8 (Esser et al. 2021)."""
    image_size: Positive
    """Side of a picture, in pixels."""
    downsampling: Positive = 8
    """f, number of pixels per image token along a side."""
    codebook_size: Positive
    """Number of entries of the codebook."""
    weights: str | None = None
    """Checkpoint of the codec (path or hub id); None: trained by `prepare` and stored beside the shards."""
