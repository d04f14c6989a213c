"""Decoder of image codes, one token at a time, with caches for every mask and for the token shift.

Each layer's cache holds the keys and values to which a later token may still attend: all of the text, and the current
row of the image (row layers) or all of it. For the token shift it holds the norm's outputs of the last grid row.

Each token reads every weight for little arithmetic (see `training.model.kernels.product`) and runs some two hundred
small operations in between, whose overhead would dominate; therefore views and buffers are prepared before the first
token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import gelu

from training.model.attention import CONV_KERNEL_SIZE
from training.model.kernels.pointwise import NORM_EPS, turned
from training.model.kernels.product import Product, product_with
from training.model.transformer import Branch, SharedAttention, SharedFeedForward, TextToImageTransformer


class _Weights(NamedTuple):
    """Weights of one block, its own and the shared ones, prepared for single tokens."""

    norm: Tensor
    norm_bias: Tensor
    inputs: Product
    """Product with the first matrix."""
    out: Product
    """Product with the second matrix."""
    scale: Tensor

    def normed(self, hidden: Tensor) -> Tensor:
        """Applies the norm to (B, D)."""
        return torch.layer_norm(hidden, self.norm.shape, self.norm, self.norm_bias, NORM_EPS)

    def add(self, stream: Tensor, inputs: Tensor) -> Tensor:
        """Returns the stream (B, D) plus the block's output."""
        return torch.addcmul(stream, self.out(inputs), self.scale)


class _Layer(NamedTuple):
    """Weights of a layer, and its caches of earlier tokens."""

    attention: _Weights
    seen: _AttentionCache
    attention_shift: _ShiftCache
    feed_forward: _Weights
    feed_forward_shift: _ShiftCache


class Decoder:
    """Batch of images that are being sampled. The text is read at once; `step` takes the codes one by one."""

    def __init__(self, model: TextToImageTransformer, text: Tensor):
        self._model, self._position = model, 0
        self._reversible, self._shift = model.config.reversible, model.config.shift_tokens
        batch, config, reference = text.shape[0], model.config, model.final_norm.weight
        layers, tensors = model.layers(text, reference.dtype)
        self._token = _Token(batch, config.num_heads, config.head_dim, reference)
        self._turns = model.rotation()[:, None, model.layout.text_len :, None]
        products = {
            shared: tuple(product_with(one.weight, one.bias, batch) for one in shared.children())
            for shared in (*model.attention, *model.feed_forward)
        }

        def weights_of(branch: Branch, shared: SharedAttention | SharedFeedForward) -> _Weights:
            return _Weights(branch.norm.weight, branch.norm.bias, *products[shared], branch.scale)

        def new_shift() -> _ShiftCache:
            return _ShiftCache(batch, config.image_grid, config.hidden_size, reference)

        first = second = model.embed(text, None)
        self._layers: list[_Layer] = []
        for index, layer in enumerate(layers):
            group = model.group_of_layer[index]
            source = second if self._reversible else first
            out, saved = layer.attention.forward(source, tuple(tensors[i] for i in layer.attention_weights))
            _, keys, values = layer.attention.turned_text(saved)
            first = first + out
            out, _ = layer.feed_forward.forward(first, tuple(tensors[i] for i in layer.feed_forward_weights))
            if self._reversible:
                second = second + out
            else:
                first = first + out
            self._layers.append(
                _Layer(
                    weights_of(model.attention_branches[index], model.attention[group]),
                    _AttentionCache(model.attention_kinds[index], model, keys, values, layer.attention.text_key_bias),
                    new_shift(),
                    weights_of(model.feed_forward_branches[index], model.feed_forward[group]),
                    new_shift(),
                )
            )
        self._image_logits = product_with(
            model.output.weight[model.text_rows :], model.output.bias[model.text_rows :], batch
        )
        end = (first + second) / 2 if self._reversible else first
        self.first_logits: Tensor = self._logits(end[:, -1])
        """Logits (B, image_vocab_size) of the first code."""

    def step(self, codes: Tensor) -> Tensor:
        """Takes the next code of each image, (B,), and returns the logits (B, image_vocab_size) of the one after it."""
        token, (row, column) = self._token, divmod(self._position, self._model.layout.grid)
        first = second = self._model.embed_codes(codes[:, None], self._position)[:, 0]
        turn = self._turns[:, :, self._position]
        for attention, seen, attention_shift, feed_forward, feed_forward_shift in self._layers:
            normed = attention.normed(second if self._reversible else first)
            if self._shift:
                normed = attention_shift.shift(normed, column)
            token.turn(attention.inputs(normed), turn)
            first = attention.add(first, seen.attend(token, row, column))
            normed = feed_forward.normed(first)
            if self._shift:
                normed = feed_forward_shift.shift(normed, column)
            values, gates = feed_forward.inputs(normed).chunk(2, dim=-1)
            product = gelu(gates).mul_(values)
            if self._reversible:
                second = feed_forward.add(second, product)
            else:
                first = feed_forward.add(first, product)
        self._position += 1
        return self._logits((first + second) / 2 if self._reversible else first)

    def _logits(self, end: Tensor) -> Tensor:
        """Computes the logits of the next code from the output of the last layer (B, D)."""
        return self._image_logits(self._model.final_norm(end))


class _Token:
    """Queries, keys and values of the current token, in memory that all layers use in turn."""

    def __init__(self, batch: int, heads: int, width: int, reference: Tensor):
        self.batch = batch
        self._shape = (batch, 3, heads, width)
        self._turned = reference.new_empty(3, batch, heads, width)
        folded = self._turned.view(3, batch * heads, width)
        self.query = folded[0][:, None]
        """Queries (B * N, 1, H), scaled."""
        self.key_and_value = folded[1:]
        """Keys and values (2, B * N, H)."""

    def turn(self, qkv: Tensor, turn: Tensor) -> None:
        """Rotates the projected queries, keys and values, (B, 3NH), by the factors of the token's position."""
        turned(qkv.view(self._shape).transpose(0, 1), turn, out=self._turned)


class _ShiftCache:
    """Cache for the token shift: the shifted half of the norm's outputs of the last grid row; the shift reaches no
    farther."""

    def __init__(self, batch: int, grid: int, width: int, reference: Tensor):
        quarter = width // 4
        self._widths = (quarter, quarter, width - 2 * quarter)
        nothing = reference.new_zeros(batch, quarter)
        self._above, self._left = [nothing] * grid, [nothing] * (grid + 1)
        """Channels of each column for the token below, and for the token to the right. The last entry of `_left` stays
        0: it is the left neighbour of the first column."""

    def shift(self, normed: Tensor, column: int) -> Tensor:
        """Returns the norm's output (B, D) of one image token with its neighbours' channels, and stores the token's
        own."""
        above, left, rest = normed.split_with_sizes(self._widths, dim=1)
        shifted = torch.cat((self._above[column], self._left[column - 1], rest), dim=1)
        self._above[column], self._left[column] = above, left
        return shifted


class _AttentionCache:
    """Keys and values to which image tokens of one layer attend.

    One line of memory holds those to which the current token attends: the text, then the image tokens that its mask
    allows. Row and full layers append to it token by token. Other layers also keep the whole image and copy the token's
    neighbourhood from it into the line.

    Args:
        kind: Kind of the layer's mask.
        model: Model to which the layer belongs.
        keys: Keys of the text, (B * N, X, H).
        values: Values of the text, (B * N, X, H).
        key_bias: Bias of the text's keys, (B * N, 1, X), -inf at padding; None if no text is masked.
    """

    def __init__(self, kind: str, model: TextToImageTransformer, keys: Tensor, values: Tensor, key_bias: Tensor | None):
        self._key_bias, self._grid = key_bias, model.layout.grid
        self._is_row = kind == "row"
        reach, (folded, text, width) = min(CONV_KERNEL_SIZE, self._grid), keys.shape
        self._up, self._left = {"column": (self._grid, 1), "conv": (reach, reach)}.get(kind, (0, 0))
        self._image = keys.new_empty(2, folded, self._grid, self._grid, width) if self._up else None
        most = self._up * self._left or (self._grid if self._is_row else self._grid**2)
        line = keys.new_empty(2, folded, text + most, width)
        line[0, :, :text], line[1, :, :text] = keys, values
        self._line = line[:, :, text:]
        self._seen = [(line[0, :, :end].transpose(1, 2), line[1, :, :end]) for end in range(text + 1, text + most + 1)]
        """Keys (transposed) and values of the text and the first n image tokens, for each n from 1."""

    def attend(self, token: _Token, row: int, column: int) -> Tensor:
        """Computes the attention of one image token, (B, NH); stores its key and value."""
        # Stored before the scores are computed, since a token also attends to itself.
        if self._image is None:
            count = 1 + (column if self._is_row else row * self._grid + column)
            self._line[:, :, count - 1] = token.key_and_value
        else:
            self._image[:, :, row, column] = token.key_and_value
            top, left = max(0, row + 1 - self._up), max(0, column + 1 - self._left)
            near = self._image[:, :, top : row + 1, left : column + 1]
            count = near.shape[2] * near.shape[3]
            self._line[:, :, :count].view(near.shape).copy_(near)
        keys, values = self._seen[count - 1]
        scores = torch.bmm(token.query, keys)
        if self._key_bias is not None:
            scores[:, :, : self._key_bias.shape[-1]] += self._key_bias
        return torch.bmm(torch.softmax(scores, dim=-1), values).view(token.batch, -1)
