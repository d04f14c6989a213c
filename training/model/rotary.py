"""Rotary position embeddings (Su et al. 2021) in three parts: position in the text, row and column of the image.

The angles are those of dalle-pytorch 1.6.6, computed in float32 as there: near 8192 radians, rounding changes the
results.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from training.model.layout import Layout

TEXT_THETA = 10_000.0
"""Base of the text frequencies (Su et al. 2021, section 3.2.2)."""
IMAGE_TEXT_POSITION = 8192.0
"""Position in the text that all image tokens have: far from any word."""
TEXT_IMAGE_POSITION = -10.0
"""Row and column that all text tokens have: far from the image, which spans -1 to 1."""
HIGHEST_PIXEL_FREQUENCY = 5.0
"""Half of the "maximal frequency" 10 of the pixel part, in units of pi."""


def rotary_angles(layout: Layout, head_dim: int) -> Tensor:
    """Computes the angles by which pairs of channels are rotated.

    Returns:
        Angles in float32, (X + I, P): for each position the P <= head_dim // 2 rotated pairs; text, row and column
        parts hold a third each of P. Pair p is channels 2p and 2p + 1.
    """
    part = head_dim // 3
    pairs = part // 2
    text_frequencies = 1.0 / TEXT_THETA ** (torch.arange(0, part, 2)[:pairs].float() / part)
    pixel_frequencies = torch.linspace(1.0, HIGHEST_PIXEL_FREQUENCY, pairs) * math.pi
    text, image, grid = layout.text_len, layout.image_len, layout.grid

    place = torch.cat([torch.arange(text).float(), torch.full((image,), IMAGE_TEXT_POSITION)])
    along = torch.linspace(-1.0, 1.0, grid)
    outside = torch.full((text,), TEXT_IMAGE_POSITION)
    row = torch.cat([outside, along.repeat_interleave(grid)])
    column = torch.cat([outside, along.repeat(grid)])
    return torch.cat(
        [place[:, None] * text_frequencies, row[:, None] * pixel_frequencies, column[:, None] * pixel_frequencies],
        dim=1,
    )


def rotation_table(angles: Tensor | None, layout: Layout, head_dim: int, dtype: torch.dtype) -> Tensor:
    """Computes the complex factors that rotate queries, keys and values, and also scale the queries by head_dim **
    -0.5.

    Args:
        angles: Angles from `rotary_angles`; None for no rotation.
        layout: Order of the tokens.
        head_dim: H, width of one head.
        dtype: Type of the channels to rotate, float32 or float64.

    Returns:
        Factors, complex (3, X + I, H / 2).
    """
    # Sine and cosine in float64: those of angles near 8192 would lose digits a second time in float32.
    turns = torch.zeros(layout.length, head_dim // 2, dtype=torch.float64)
    if angles is not None:
        turns[:, : angles.shape[1]] = angles.double()
    factors = torch.polar(torch.ones_like(turns), turns)
    table = torch.stack([factors * head_dim**-0.5, factors, factors])
    return table.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
