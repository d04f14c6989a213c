"""Attention by PyTorch's fused kernels (`scaled_dot_product_attention`), for GPUs.

The masks are those of `training.model.attention`. A fused kernel is fastest on few, large and dense pieces. The text is
one causal piece, and so is a full layer as a whole. In other layers the image is processed in bands of rows (of columns
in column layers), each with the text and the rows in its reach; all bands with equal masks form one piece.

Only queries, keys and values are kept: backward runs the kernel again, then the kernel's own backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from training.model.attention import BAND_ROWS, CONV_KERNEL_SIZE, DENSE_GRID, AttentionPattern, allowed_pairs
from training.model.config import AttentionType
from training.model.layout import Layout

ALIGNMENT = 16
"""Multiple at which the rows of a mask begin, in values: PyTorch reads such a mask directly, and otherwise copies it
first (sdp_utils.cpp, pad_bias)."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive bands of the image with equal masks."""

    queries: slice
    """Image tokens of all bands."""
    keys: slice
    """Image tokens to which the bands attend: windows as far apart from each other as the bands."""
    bands: int
    mask: Tensor
    """Mask (1, 1, M, X + W): 0 or -inf, for the M tokens of a band and those to which it may attend, text first."""


class FusedPattern(AttentionPattern):
    """`AttentionPattern` computed by fused kernels; `backward` needs only the bias.

    Args:
        kind: Kind of the mask; see `AttentionPattern`.
        layout: Order of the tokens.
        reference: Tensor with the device and the type; see `AttentionPattern`.
        num_heads: N, number of heads; needed to separate samples, since a sample's padding mask is the same for all
            heads.
    """

    def __init__(self, kind: AttentionType, layout: Layout, reference: Tensor, num_heads: int):
        self.kind, self.layout = kind, layout
        self._num_heads = num_heads
        # A column layer's image comes columns first; in this order its mask is that of a row layer.
        allowed = allowed_pairs("row" if kind == "column" else kind, layout)
        reach = 1 if self.axial else CONV_KERNEL_SIZE
        self._pieces = () if kind == "full" else tuple(_pieces(allowed, layout, reach, reference))
        self._causal = _mask(allowed, reference) if kind == "full" else None

    @property
    def score_count(self) -> int:
        """Always 0, since fused kernels keep no probabilities."""
        return 0

    def attend(self, text: Tensor, image: Tensor | None, text_key_bias: Tensor | None) -> tuple[Tensor, ...]:
        kept = () if text_key_bias is None else (text_key_bias,)
        return *self._outputs(text, image, text_key_bias), *kept

    def backward(
        self,
        text: Tensor,
        image: Tensor | None,
        weights: tuple[Tensor, ...],
        grad_text: Tensor,
        grad_image: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        # Gradients are off inside the backward of an autograd function, but the kernel's own backward needs a graph.
        with torch.enable_grad():
            inputs = [part.detach().requires_grad_() for part in (text, image) if part is not None]
            outputs = self._outputs(inputs[0], inputs[1] if len(inputs) > 1 else None, *weights)
        given = [(out, grad) for out, grad in zip(outputs, (grad_text, grad_image), strict=True) if out is not None]
        grads = torch.autograd.grad([out for out, _ in given], inputs, [grad for _, grad in given])
        return grads[0].contiguous(), None if image is None else grads[1].contiguous()

    def _outputs(
        self, text: Tensor, image: Tensor | None, text_key_bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        bias = None if text_key_bias is None else text_key_bias[:: self._num_heads, None]  # one mask for all heads
        if self.kind == "full":
            return self._full(text, image, bias)
        query, key, value = self._by_heads(text, 1)
        # scale=1.0, because the rotation table has scaled the queries already.
        text_out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
        if image is None:
            return text_out.reshape(text.shape[1:]), None
        outs = [self._attend_piece(piece, text, image, bias) for piece in self._pieces]
        return text_out.reshape(text.shape[1:]), torch.cat(outs, dim=1) if len(outs) > 1 else outs[0]

    def _full(self, text: Tensor, image: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Computes all tokens as one causal sequence."""
        tokens = text if image is None else torch.cat([text, image], dim=2)
        query, key, value = self._by_heads(tokens, 1)
        length, mask = tokens.shape[2], None
        if bias is not None:
            mask = _aligned(self._causal[..., :length, :length] + pad(bias, (0, length - bias.shape[-1])))
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, scale=1.0)
        out = out.reshape(tokens.shape[1:])
        return out[:, : self.layout.text_len], None if image is None else out[:, self.layout.text_len :]

    def _attend_piece(self, piece: Piece, text: Tensor, image: Tensor, bias: Tensor | None) -> Tensor:
        """Computes the output (B * N, bands * M, H) of the piece's queries."""
        band, window = piece.mask.shape[-2], piece.mask.shape[-1] - text.shape[2]
        words = text[1:, :, None].expand(-1, -1, piece.bands, -1, -1)
        seen = image[1:, :, piece.keys]
        windows = seen.unflatten(2, (piece.bands, band)) if band == window else _windows(seen, window, band)
        key, value = self._by_heads(torch.cat([words, windows], dim=3), piece.bands)
        query = image[:1, :, piece.queries].unflatten(2, (piece.bands, band))
        mask = piece.mask if bias is None else _aligned(piece.mask + pad(bias, (0, window)))
        query = self._by_heads(query, piece.bands)[0]
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
        return out.reshape(image.shape[1], -1, image.shape[3])

    def _by_heads(self, tensor: Tensor, bands: int) -> Tensor:
        """Views (n, B * N, ..., K, H) as (n, B, N * bands, K, H): to the kernel, bands are further heads."""
        heads = self._num_heads * bands
        return tensor.reshape(tensor.shape[0], -1, heads, *tensor.shape[-2:])


def _pieces(allowed: Tensor, layout: Layout, reach: int, reference: Tensor) -> Iterable[Piece]:
    """Yields the pieces of the image: neighbouring bands with equal masks are joined.

    Args:
        allowed: Allowed pairs of tokens in the order of the image's tokens; see `allowed_pairs`.
        layout: Order of the tokens.
        reach: Number of rows to which a row attends, including itself.
        reference: Tensor with the device and the type; see `AttentionPattern`.
    """
    text, grid = layout.text_len, layout.grid
    rows = grid if grid <= DENSE_GRID else BAND_ROWS
    bands = []
    for start in range(0, grid, rows):
        queries = slice(start * grid, min(start + rows, grid) * grid)
        keys = slice(max(0, start - reach + 1) * grid, queries.stop)
        mask = allowed[text:][queries]
        bands.append((queries, keys, torch.cat([mask[:, :text], mask[:, text:][:, keys]], dim=1)))
    # Compared by value: in the middle of the image all bands have one mask.
    for _, alike in groupby(bands, key=lambda band: (band[2].shape, band[2].numpy().tobytes())):
        alike = list(alike)
        yield Piece(
            queries=slice(alike[0][0].start, alike[-1][0].stop),
            keys=slice(alike[0][1].start, alike[-1][1].stop),
            bands=len(alike),
            mask=_mask(alike[0][2], reference),
        )


def _windows(tensor: Tensor, size: int, step: int) -> Tensor:
    """Returns the windows along K of (n, B * N, K, H): (n, B * N, windows, size, H)."""
    return tensor.unfold(2, size, step).transpose(-1, -2)


def _mask(allowed: Tensor, reference: Tensor) -> Tensor:
    bias = reference.new_zeros(allowed.shape).masked_fill_(~allowed.to(reference.device), float("-inf"))
    return _aligned(bias)[None, None]


def _aligned(mask: Tensor) -> Tensor:
    """Copies a mask, with rows that begin at multiples of `ALIGNMENT`."""
    length = mask.shape[-1]
    rows = mask.new_empty(*mask.shape[:-1], -(-length // ALIGNMENT) * ALIGNMENT)[..., :length]
    return rows.copy_(mask)
