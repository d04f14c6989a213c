"""Order of a sample's tokens, text first, then the square of image tokens; and the token shift between them.

Legend of the model's files: B samples, T tokens, X text tokens with the bos, I image tokens, G side of their square,
D hidden size, N heads, H head width, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Order of the tokens of a sample: bos, text, then the image row by row."""

    text_len: int
    """X, number of text tokens with the bos."""
    grid: int
    """G, side of the square of image tokens."""

    @property
    def image_len(self) -> int:
        """I, number of image tokens."""
        return self.grid**2

    @property
    def length(self) -> int:
        """Number of tokens of the bos, the text and the whole image: one more than a forward pass needs as input."""
        return self.text_len + self.image_len


def shift_tokens(hidden: Tensor, layout: Layout) -> Tensor:
    """Replaces some channels of every token by those of its neighbours, or by zeros where it has no neighbour.

    Text tokens take the first half of their channels from the previous token. Image tokens take the first quarter from
    the token above and the second quarter from the token to the left.

    Args:
        hidden: Hidden states (B, T, D) with T = X (text alone) or X + I.
    """
    text, grid, quarter, half = _bounds(hidden, layout)
    shifted = torch.empty_like(hidden)
    shifted[:, :, half:] = hidden[:, :, half:]
    shifted[:, 0, :half] = 0
    shifted[:, 1:text, :half] = hidden[:, : text - 1, :half]
    if hidden.shape[1] > text:
        shifted[:, text : text + grid, :quarter] = 0
        shifted[:, text + grid :, :quarter] = hidden[:, text:-grid, :quarter]
        shifted[:, text + 1 :, quarter:half] = hidden[:, text:-1, quarter:half]
        # In memory, the token before the first token of a row is the last token of the row above, not a left neighbour.
        shifted[:, text::grid, quarter:half] = 0
    return shifted


def shift_tokens_backward(grad: Tensor, layout: Layout) -> Tensor:
    """Computes the gradient of `shift_tokens`' input from that of its output."""
    text, grid, quarter, half = _bounds(grad, layout)
    back = torch.empty_like(grad)
    back[:, :, half:] = grad[:, :, half:]
    back[:, text - 1, :half] = 0
    back[:, : text - 1, :half] = grad[:, 1:text, :half]
    if grad.shape[1] > text:
        back[:, -grid:, :quarter] = 0
        back[:, text:-grid, :quarter] = grad[:, text + grid :, :quarter]
        back[:, text:-1, quarter:half] = grad[:, text + 1 :, quarter:half]
        back[:, text + grid - 1 :: grid, quarter:half] = 0
    return back


def _bounds(hidden: Tensor, layout: Layout) -> tuple[int, int, int, int]:
    width = hidden.shape[-1]
    return layout.text_len, layout.grid, width // 4, width // 2
