"""One token at a time through the model, with caches for every mask and for the token shift.

Per layer the cache holds the keys and values that a later token may still see: all of the text, and of the image the
current row (row layers), all rows of each column (column layers), or everything (convolution-like and full layers).
For the token shift it holds the norm's output one grid row back.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from training.model.attention import allowed_pairs
from training.model.pointwise import NORM_EPS, turned
from training.model.transformer import Branch, SharedAttention, SharedFeedForward, TextToImageTransformer


class _Weights(NamedTuple):
    """One block's own and shared weights, as a single token meets them."""

    norm: Tensor
    norm_bias: Tensor
    inputs: Tensor
    """The first matrix transposed, (D, rows): a single row of the batch is then read three times as fast on a CPU."""
    inputs_bias: Tensor | None
    out: Tensor
    out_bias: Tensor
    scale: Tensor

    def normed(self, hidden: Tensor) -> Tensor:
        """The norm of (B, D)."""
        return torch.layer_norm(hidden, self.norm.shape, self.norm, self.norm_bias, NORM_EPS)

    def add(self, stream: Tensor, inputs: Tensor) -> Tensor:
        """The stream (B, D) with the block's output added."""
        return torch.addcmul(stream, functional.linear(inputs, self.out, self.out_bias), self.scale)


class _Layer(NamedTuple):
    """A layer's weights, and what it remembers of the tokens before."""

    attention: _Weights
    seen: _AttentionCache
    attention_shift: _ShiftCache
    feed_forward: _Weights
    feed_forward_shift: _ShiftCache


class Decoder:
    """A batch of images in the making. Text is read at once; `step` takes the codes one by one."""

    def __init__(self, model: TextToImageTransformer, text: Tensor):
        self._model, self._position = model, 0
        self._reversible, self._shift = model.config.reversible, model.config.shift_tokens
        batch, config, reference = text.shape[0], model.config, model.final_norm.weight
        layers, tensors = model.layers(text, reference.dtype)
        self._token = _Token(batch, config.num_heads, config.head_dim, reference)
        self._turns = model.rotation()[:, None, model.layout.text_len :, None]
        first_matrices = {shared: shared.qkv.weight.t().contiguous() for shared in model.attention}
        first_matrices |= {shared: shared.inner.weight.t().contiguous() for shared in model.feed_forward}

        def weights_of(branch: Branch, shared: SharedAttention | SharedFeedForward) -> _Weights:
            return _Weights(
                norm=branch.norm.weight,
                norm_bias=branch.norm.bias,
                inputs=first_matrices[shared],
                inputs_bias=shared.inner.bias if isinstance(shared, SharedFeedForward) else None,
                out=shared.out.weight,
                out_bias=shared.out.bias,
                scale=branch.scale,
            )

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
        self._image_rows = model.output.weight[model.text_rows :].t().contiguous()
        self._image_bias = model.output.bias[model.text_rows :]
        end = (first + second) / 2 if self._reversible else first
        self.first_logits: Tensor = self._logits(end[:, -1])
        """Logits (B, image_vocab_size) of the first code."""

    def step(self, codes: Tensor) -> Tensor:
        """Takes the next code of each image, (B,), and returns the logits (B, image_vocab_size) of the one after it."""
        token, position = self._token, self._position
        first = second = self._model.embed_codes(codes[:, None], position)[:, 0]
        turn = self._turns[:, :, position]
        for attention, seen, attention_shift, feed_forward, feed_forward_shift in self._layers:
            normed = attention.normed(second if self._reversible else first)
            if self._shift:
                normed = attention_shift.shift(normed, position)
            token.project(normed, attention.inputs, turn)
            first = attention.add(first, seen.attend(token, position))
            normed = feed_forward.normed(first)
            if self._shift:
                normed = feed_forward_shift.shift(normed, position)
            inner = torch.addmm(feed_forward.inputs_bias, normed, feed_forward.inputs)
            values, gates = inner.chunk(2, dim=-1)
            product = functional.gelu(gates).mul_(values)
            if self._reversible:
                second = feed_forward.add(second, product)
            else:
                first = feed_forward.add(first, product)
        self._position += 1
        return self._logits((first + second) / 2 if self._reversible else first)

    def _logits(self, end: Tensor) -> Tensor:
        """Of the next code, behind the last layer (B, D)."""
        return torch.addmm(self._image_bias, self._model.final_norm(end), self._image_rows)


class _Token:
    """Queries, keys and values of the token in the making, in memory that all layers use in turn."""

    def __init__(self, batch: int, heads: int, width: int, reference: Tensor):
        self.batch = batch
        self._qkv = reference.new_empty(batch, 3 * heads * width)
        self._split = self._qkv.view(batch, 3, heads, width).transpose(0, 1)
        self._turned = reference.new_empty(3, batch, heads, width)
        folded = self._turned.view(3, batch * heads, width)
        self.query = folded[0][:, None]
        """(B * N, 1, H), scaled."""
        self.key_and_value = folded[1:]
        """(2, B * N, H)."""

    def project(self, normed: Tensor, matrix: Tensor, turn: Tensor) -> None:
        """From the norm's output (B, D), the matrix (D, 3NH) and the turn of the token's place."""
        torch.mm(normed, matrix, out=self._qkv)
        turned(self._split, turn, out=self._turned)


class _ShiftCache:
    """The shifted half of the norm's output, one grid row back: as far as the token shift reaches."""

    def __init__(self, batch: int, grid: int, width: int, reference: Tensor):
        quarter, self._half = width // 4, width // 2
        row = reference.new_zeros(grid + 1, batch, self._half)  # the last entry stays zero: left of the first column
        self._slots = row[:-1].unbind(0)
        self._above = row[:-1, :, :quarter].unbind(0)
        self._left = row[:, :, quarter:].unbind(0)
        self._grid = grid

    def shift(self, normed: Tensor, position: int) -> Tensor:
        """The norm's output (B, D) of one image token, with its neighbours' channels; remembers its own."""
        column = position % self._grid
        shifted = torch.cat([self._above[column], self._left[column - 1], normed[:, self._half :]], dim=-1)
        self._slots[column].copy_(normed[:, : self._half])
        return shifted


class _AttentionCache:
    """Keys and values that image tokens of one layer attend to.

    Args:
        kind: Of the layer's mask.
        model: Of which it is a layer.
        keys: Of the text, (B * N, X, H).
        values: As the keys.
        key_bias: -inf at padding, (B * N, 1, X), or None.
    """

    def __init__(self, kind: str, model: TextToImageTransformer, keys: Tensor, values: Tensor, key_bias: Tensor | None):
        self._kind, self._key_bias = kind, key_bias
        self._grid, self._text_len = model.layout.grid, model.layout.text_len
        folded, text, width = keys.shape
        if kind == "row":
            line = keys.new_empty(2, folded, text + self._grid, width)
            line[0, :, :text], line[1, :, :text] = keys, values
            self._columns = [
                (line[:, :, at], line[0, :, : at + 1].transpose(1, 2), line[1, :, : at + 1])
                for at in range(text, text + self._grid)
            ]
            """For each column the place for key and value, and the keys (transposed) and values seen from there."""
            return
        self._text_keys, self._text_values = keys.transpose(1, 2).contiguous(), values
        lines = self._grid if kind == "column" else 1
        self._lines = keys.new_empty(lines, 2, folded, self._grid**2 // lines, width).unbind(0)
        self._seen: list[Tensor] = []
        if kind == "conv":
            allowed = allowed_pairs("conv", model.layout, model.config.conv_kernel_size)
            image = allowed[text:, text:].to(keys.device)
            self._seen = [row.nonzero().squeeze(-1) for row in image]

    def attend(self, token: _Token, position: int) -> Tensor:
        """Attention of one image token, (B, NH); remembers its key and value."""
        if self._kind == "row":
            place, keys, values = self._columns[position % self._grid]
            place.copy_(token.key_and_value)
            out = torch.bmm(self._weights(torch.bmm(token.query, keys)), values)
        else:
            keys, values = self._remember(token.key_and_value, position)
            scores = [torch.bmm(token.query, self._text_keys), torch.bmm(token.query, keys.transpose(1, 2))]
            text_weights, weights = self._weights(torch.cat(scores, dim=-1)).split([self._text_len, keys.shape[1]], -1)
            out = torch.bmm(text_weights, self._text_values).baddbmm_(weights, values)
        return out.view(token.batch, -1)

    def _remember(self, key_and_value: Tensor, position: int) -> Tensor:
        """Adds the token's key and value and returns those of all image tokens that it sees, itself included."""
        row, column = divmod(position, self._grid)
        line, at = (self._lines[column], row) if self._kind == "column" else (self._lines[0], position)
        line[:, :, at] = key_and_value
        return line[:, :, self._seen[position]] if self._kind == "conv" else line[:, :, : at + 1]

    def _weights(self, scores: Tensor) -> Tensor:
        if self._key_bias is not None:
            scores[:, :, : self._text_len] += self._key_bias
        return torch.softmax(scores, dim=-1)
