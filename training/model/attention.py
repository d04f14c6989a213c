"""Attention over text and image along the run's masks, with a hand-written backward pass.

Row and column layers never compute the dense (T, T) square: text attends to text, and each row (column) of the image
attends to the text and to itself. Convolution-like and full layers process the image in bands of rows, each with the
keys that its mask allows. Heads are folded into the batch: (B * N, tokens, H).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calculator.families.pictures.text_to_image import BAND_ROWS, DENSE_GRID
from training.model.config import AttentionType
from training.model.layout import Layout

CONV_KERNEL_SIZE = 5
"""Side of the neighbourhood that a `conv` layer sees, in image tokens: it reaches up and to the left."""


@dataclass(frozen=True, kw_only=True)
class Band:
    """Band of the image: tokens `queries` attend to tokens `keys` where `bias` (queries, keys) is 0 and not -inf."""

    queries: slice
    keys: slice
    bias: Tensor


def allowed_pairs(kind: AttentionType, layout: Layout) -> Tensor:
    """Computes which token may attend to which: bool (X + I, X + I), rows are queries. All masks follow this
    definition."""
    text, grid = layout.text_len, layout.grid
    allowed = torch.ones(layout.length, layout.length, dtype=torch.bool).tril()
    row = torch.arange(layout.image_len) // grid
    column = torch.arange(layout.image_len) % grid
    down = row[:, None] - row[None, :]
    right = column[:, None] - column[None, :]
    reach = CONV_KERNEL_SIZE
    within = {
        "full": torch.ones_like(down, dtype=torch.bool),
        "row": down == 0,
        "column": right == 0,
        "conv": (down < reach) & (right >= 0) & (right < reach),
    }[kind]
    allowed[text:, text:] &= within
    return allowed


class AttentionPattern:
    """One kind of attention mask, prepared for a layout.

    Args:
        kind: Kind of the mask between image tokens; text is causal, and the image attends to all of it.
        layout: Order of the tokens.
        reference: A tensor on the device and in the type in which attention is computed.
    """

    def __init__(self, kind: AttentionType, layout: Layout, reference: Tensor):
        self.kind = kind
        self.layout = layout
        allowed = allowed_pairs(kind, layout)
        text, grid = layout.text_len, layout.grid
        self.text_bias = _bias(allowed[:text, :text], reference)
        self.line_bias = _bias(torch.ones(grid, grid, dtype=torch.bool).tril(), reference)
        self.bands: tuple[Band, ...] = ()
        if not self.axial:
            rows = grid if grid <= DENSE_GRID else BAND_ROWS
            reach = grid if kind == "full" else CONV_KERNEL_SIZE
            self.bands = tuple(
                _band(allowed[text:, text:], start, min(start + rows, grid), max(0, start - reach + 1), grid, reference)
                for start in range(0, grid, rows)
            )

    @property
    def axial(self) -> bool:
        """Returns True if image tokens attend within lines of the grid."""
        return self.kind in ("row", "column")

    @property
    def score_count(self) -> int:
        """Number of attention probabilities of one sample and head, including the computed ones that are masked."""
        text, grid = self.layout.text_len, self.layout.grid
        if self.axial:
            image = self.layout.image_len * (text + grid)
        else:
            image = sum(band.bias.shape[0] * (text + band.bias.shape[1]) for band in self.bands)
        return text * text + image

    def image_order(self, image: Tensor) -> Tensor:
        """Returns a view of the image (..., G, G, H), rows first, with the lines along which this kind attends
        first."""
        return image.transpose(-3, -2) if self.kind == "column" else image

    def attend(self, text: Tensor, image: Tensor | None, text_key_bias: Tensor | None) -> tuple[Tensor, ...]:
        """Computes the attention of text and image.

        Args:
            text: Queries (scaled), keys and values of the text, (3, B * N, X, H).
            image: Queries, keys and values of the image, (3, B * N, I, H) in this kind's order; None for text alone.
            text_key_bias: Bias of the text's keys, (B * N, 1, X), -inf at padding; None if no text is masked. It
                applies to image queries, and in `full` layers also to text queries, as in dalle-pytorch.

        Returns:
            Output of text (B * N, X, H), of the image (B * N, I, H), then the probabilities that `backward` needs.
        """
        query, key, value = text.unbind(0)
        scores = torch.baddbmm(self.text_bias, query, key.transpose(1, 2))
        if text_key_bias is not None and self.kind == "full":
            scores += text_key_bias
        text_weights = torch.softmax(scores, dim=-1)
        text_out = torch.bmm(text_weights, value)
        if image is None:
            return text_out, None, text_weights
        image_out, *weights = self._attend_image(text, image, text_key_bias)
        return text_out, image_out, text_weights, *weights

    def backward(
        self,
        text: Tensor,
        image: Tensor | None,
        weights: tuple[Tensor, ...],
        grad_text: Tensor,
        grad_image: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes the gradients for `text` and `image` from those for the two outputs of `attend`."""
        query, key, value = text.unbind(0)
        text_weights, *image_weights = weights
        grads = torch.empty_like(text)
        torch.bmm(text_weights.transpose(1, 2), grad_text, out=grads[2])
        scores = _softmax_backward(torch.bmm(grad_text, value.transpose(1, 2)), text_weights)
        torch.bmm(scores, key, out=grads[0])
        torch.bmm(scores.transpose(1, 2), query, out=grads[1])
        if image is None:
            return grads, None
        return grads, self._backward_image(text, image, tuple(image_weights), grad_image, grads)

    def _attend_image(self, text: Tensor, image: Tensor, text_key_bias: Tensor | None) -> tuple[Tensor, ...]:
        query, key, value = image.unbind(0)
        text_len, grid = self.layout.text_len, self.layout.grid
        text_key = text[1].transpose(1, 2)
        if self.axial:
            within = torch.bmm(self._lines(query), self._lines(key).transpose(1, 2)).add_(self.line_bias)
            scores = torch.cat([torch.bmm(query, text_key), within.view(*query.shape[:2], grid)], dim=-1)
            if text_key_bias is not None:
                scores[:, :, :text_len] += text_key_bias
            weights = torch.softmax(scores, dim=-1)
            out = torch.bmm(weights[:, :, :text_len], text[2])
            # `_lines` is a view, so this adds to `out`.
            self._lines(out).baddbmm_(self._line_scores(weights), self._lines(value))
            return out, weights
        out, kept = torch.empty_like(query), []
        for band in self.bands:
            queries, keys, values = query[:, band.queries], key[:, band.keys], value[:, band.keys]
            within = torch.bmm(queries, keys.transpose(1, 2)).add_(band.bias)
            scores = torch.cat([torch.bmm(queries, text_key), within], dim=-1)
            if text_key_bias is not None:
                scores[:, :, :text_len] += text_key_bias
            weights = torch.softmax(scores, dim=-1)
            part = torch.bmm(weights[:, :, :text_len], text[2])
            out[:, band.queries] = part.baddbmm_(weights[:, :, text_len:], values)
            kept.append(weights)
        return out, *kept

    def _backward_image(
        self, text: Tensor, image: Tensor, weights: tuple[Tensor, ...], grad_out: Tensor, grad_text: Tensor
    ) -> Tensor:
        """Returns the gradient of `image`; adds to `grad_text` the gradient of the text as keys and values of image
        queries."""
        query, key, value = image.unbind(0)
        text_len, grid = self.layout.text_len, self.layout.grid
        text_value = text[2].transpose(1, 2)
        grads = torch.empty_like(image)
        if self.axial:
            (probabilities,) = weights
            within = torch.bmm(self._lines(grad_out), self._lines(value).transpose(1, 2))
            scores = torch.cat([torch.bmm(grad_out, text_value), within.view(*query.shape[:2], grid)], dim=-1)
            torch.bmm(
                self._line_scores(probabilities).transpose(1, 2), self._lines(grad_out), out=self._lines(grads[2])
            )
            grad_text[2].baddbmm_(probabilities[:, :, :text_len].transpose(1, 2), grad_out)
            scores = _softmax_backward(scores, probabilities)
            torch.bmm(scores[:, :, :text_len], text[1], out=grads[0])
            self._lines(grads[0]).baddbmm_(self._line_scores(scores), self._lines(key))
            torch.bmm(self._line_scores(scores).transpose(1, 2), self._lines(query), out=self._lines(grads[1]))
            grad_text[1].baddbmm_(scores[:, :, :text_len].transpose(1, 2), query)
            return grads
        # Bands overlap in their keys, whose gradients are therefore sums; each query belongs to only one band.
        grads[1:].zero_()
        for band, probabilities in zip(self.bands, weights, strict=True):
            queries, keys, values = query[:, band.queries], key[:, band.keys], value[:, band.keys]
            grad = grad_out[:, band.queries]
            within = torch.bmm(grad, values.transpose(1, 2))
            scores = torch.cat([torch.bmm(grad, text_value), within], dim=-1)
            grads[2, :, band.keys].baddbmm_(probabilities[:, :, text_len:].transpose(1, 2), grad)
            grad_text[2].baddbmm_(probabilities[:, :, :text_len].transpose(1, 2), grad)
            scores = _softmax_backward(scores, probabilities)
            grads[0, :, band.queries] = torch.bmm(scores[:, :, :text_len], text[1]).baddbmm_(
                scores[:, :, text_len:], keys
            )
            grads[1, :, band.keys].baddbmm_(scores[:, :, text_len:].transpose(1, 2), queries)
            grad_text[1].baddbmm_(scores[:, :, :text_len].transpose(1, 2), queries)
        return grads

    def _lines(self, tensor: Tensor) -> Tensor:
        """Folds (B * N, I, K) to (B * N * G, G, K): each line of the grid becomes an entry of the batch."""
        return tensor.view(tensor.shape[0] * self.layout.grid, self.layout.grid, tensor.shape[2])

    def _line_scores(self, scores: Tensor) -> Tensor:
        """Returns the part of scores (B * N, I, X + G) within lines: (B * N * G, G, G)."""
        return self._lines(scores)[:, :, self.layout.text_len :]


def _bias(allowed: Tensor, reference: Tensor) -> Tensor:
    zeros = reference.new_zeros(allowed.shape)
    if reference.is_meta:
        return zeros  # it has no numbers, and torch would load SymPy to find that out, which takes half a second
    return zeros.masked_fill_(~allowed.to(reference.device), float("-inf"))


def _band(allowed: Tensor, start: int, stop: int, first: int, grid: int, reference: Tensor) -> Band:
    queries, keys = slice(start * grid, stop * grid), slice(first * grid, stop * grid)
    return Band(queries=queries, keys=keys, bias=_bias(allowed[queries, keys], reference))


def _softmax_backward(grad: Tensor, probabilities: Tensor) -> Tensor:
    # Private, but it is the kernel that autograd itself calls: one pass over the scores where the formula takes three.
    return torch._softmax_backward_data(grad, probabilities, -1, probabilities.dtype)
