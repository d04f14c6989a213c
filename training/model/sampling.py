"""Sampling of image codes, one token at a time, with caches for every mask and for the token shift.

Per layer the cache holds the keys and values that a later token may still see: all of the text, and of the image the
current row (row layers), all rows of each column (column layers), or everything (convolution-like and full layers).
For the token shift it holds the norm's output one grid row back. Each sample draws from its own seed, so that, but for
rounding, it comes out the same alone or in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from training.errors import BadInput
from training.model.attention import allowed_pairs
from training.model.blocks import NORM_EPS, turned
from training.model.transformer import Branch, SharedAttention, SharedFeedForward, TextToImageTransformer

Progress = Callable[[int, int], None]
"""Called with the tokens drawn so far and their total."""


def sample_codes(
    model: TextToImageTransformer,
    text: Tensor,
    *,
    top_k: int | None = 256,
    top_p: float | None = None,
    temperature: float = 1.0,
    seed: int | Sequence[int] = 0,
    guidance: float = 1.0,
    progress: Progress | None = None,
) -> Tensor:
    """Draws an image for each row of text.

    Args:
        model: Any model of `build_model`; on its device all is computed.
        text: Token ids (B, text_seq_len), 0 is padding.
        top_k: Only the likeliest so many codes may be drawn; None: all. 1 always takes the likeliest.
        top_p: Only the likeliest codes that together reach this probability; None: all. After `top_k`.
        temperature: Logits are divided by it.
        seed: Sample b is drawn with seed + b, or with the b-th of a sequence.
        guidance: Classifier-free guidance: logits without the caption are pushed from by this factor; 1 is none. Of
            use only to a model that was trained with some captions left out.
        progress: Called after each token.

    Returns:
        Codes (B, I).

    Raises:
        BadInput: If a setting is out of its range.
    """
    check_sampling(top_k=top_k, top_p=top_p, temperature=temperature)
    batch = text.shape[0]
    seeds = [seed + row for row in range(batch)] if isinstance(seed, int) else list(seed)
    if len(seeds) != batch:
        raise BadInput(f"{len(seeds)} seeds for {batch} rows of text; give one each, or a single one.")
    total = model.config.image_seq_len
    uniform = torch.stack([torch.rand(total, generator=torch.Generator().manual_seed(one)) for one in seeds])
    uniform = uniform.to(text.device)
    with torch.inference_mode(), torch.autocast(text.device.type, enabled=False):
        guided = guidance != 1.0
        decoder = Decoder(model, torch.cat([text, torch.zeros_like(text)]) if guided else text)
        logits = decoder.first_logits
        codes = torch.empty(batch, total, dtype=torch.long, device=text.device)
        for position in range(total):
            if guided:
                told, untold = logits.chunk(2)
                logits = untold + guidance * (told - untold)
            drawn = draw_codes(logits, uniform[:, position], top_k=top_k, top_p=top_p, temperature=temperature)
            codes[:, position] = drawn
            if progress is not None:
                progress(position + 1, total)
            if position + 1 < total:
                logits = decoder.step(torch.cat([drawn, drawn]) if guided else drawn)
    return codes.clone()


def draw_codes(
    logits: Tensor, uniform: Tensor, *, top_k: int | None, top_p: float | None, temperature: float
) -> Tensor:
    """One code per row, by inverting the distribution function at a uniform number.

    Args:
        logits: (B, V).
        uniform: (B,) in [0, 1).

    Returns:
        (B,) codes.
    """
    count = logits.shape[-1] if top_k is None else min(top_k, logits.shape[-1])
    if count == 1:
        return logits.argmax(-1)
    scaled = logits.float() / temperature
    if count == logits.shape[-1] and top_p is None:
        codes, weights = None, torch.softmax(scaled, dim=-1)
    else:
        values, codes = scaled.topk(count, dim=-1)
        weights = torch.softmax(values, dim=-1)
        if top_p is not None:
            before = weights.cumsum(-1) - weights
            weights = weights * (before < top_p)
    reached = weights.cumsum(-1)
    drawn = (reached <= uniform[:, None] * reached[:, -1:]).sum(-1, keepdim=True)
    last = (weights > 0).sum(-1, keepdim=True) - 1 if codes is not None else count - 1
    drawn = drawn.clamp(max=last)
    return (drawn if codes is None else codes.gather(-1, drawn)).squeeze(-1)


def check_sampling(*, top_k: int | None, top_p: float | None, temperature: float) -> None:
    """Raises BadInput if a setting is out of its range."""
    if top_k is not None and top_k < 1:
        raise BadInput(f"top-k is {top_k}; give at least 1, or leave it out for all codes.")
    if top_p is not None and not 0 < top_p <= 1:
        raise BadInput(f"top-p is {top_p}; give a probability above 0 and up to 1.")
    if not temperature > 0:
        raise BadInput(f"The temperature is {temperature}; give a number above 0 (top-k 1 takes the likeliest code).")


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """One block's own and shared weights."""

    branch: Branch
    shared: SharedAttention | SharedFeedForward
    inputs: Tensor
    """The first matrix transposed, (D, rows): a single row of the batch is then read three times as fast on a CPU."""


class Decoder:
    """A batch of images in the making. Text is read at once; `step` takes the codes one by one."""

    def __init__(self, model: TextToImageTransformer, text: Tensor):
        self._model = model
        self._layout, config = model.layout, model.config
        self._position = 0
        batch, reference = text.shape[0], model.final_norm.weight
        layers, tensors = model.layers(text, reference.dtype)
        hidden = model.embed(text, None)
        first = second = hidden
        self._caches = []
        first_matrices = {shared: shared.qkv.weight.t().contiguous() for shared in model.attention}
        first_matrices |= {shared: shared.inner.weight.t().contiguous() for shared in model.feed_forward}

        def weights_of(branch: Branch, shared: SharedAttention | SharedFeedForward) -> _Weights:
            return _Weights(branch=branch, shared=shared, inputs=first_matrices[shared])

        for index, layer in enumerate(layers):
            group = model.group_of_layer[index]
            weights = tuple(tensors[i] for i in layer.attention_weights)
            source = second if config.reversible else first
            out, saved = layer.attention.forward(source, weights)
            _, keys, values = layer.attention.turned_text(saved)
            first = first + out
            attention = _AttentionCache(
                kind=model.attention_kinds[index],
                model=model,
                keys=keys,
                values=values,
                key_bias=layer.attention.text_key_bias,
            )
            out, _ = layer.feed_forward.forward(first, tuple(tensors[i] for i in layer.feed_forward_weights))
            if config.reversible:
                second = second + out
            else:
                first = first + out
            self._caches.append(
                (
                    weights_of(model.attention_branches[index], model.attention[group]),
                    attention,
                    _ShiftCache(batch, self._layout.grid, config.hidden_size, reference),
                    weights_of(model.feed_forward_branches[index], model.feed_forward[group]),
                    _ShiftCache(batch, self._layout.grid, config.hidden_size, reference),
                )
            )
        self._image_rows = model.output.weight[model.text_rows :].t().contiguous()
        self._image_bias = model.output.bias[model.text_rows :]
        end = (first + second) / 2 if config.reversible else first
        self.first_logits: Tensor = self._logits(end[:, -1])
        """Logits (B, image_vocab_size) of the first code."""

    def step(self, codes: Tensor) -> Tensor:
        """Takes the next code of each image, (B,), and returns the logits (B, image_vocab_size) of the one after it."""
        model, position = self._model, self._position
        reversible, shift = model.config.reversible, model.config.shift_tokens
        first = second = model.embed_codes(codes[:, None], position)[:, 0]
        turn = model.rotation()[:, None, self._layout.text_len + position]
        for attention, cache, attention_shift, feed_forward, feed_forward_shift in self._caches:
            normed = _normed(second if reversible else first, attention.branch)
            if shift:
                normed = attention_shift.shift(normed, position)
            qkv = torch.mm(normed, attention.inputs)
            merged = cache.attend(qkv, turn, position)
            first = _add(first, merged, attention)
            normed = _normed(first, feed_forward.branch)
            if shift:
                normed = feed_forward_shift.shift(normed, position)
            inner = torch.addmm(feed_forward.shared.inner.bias, normed, feed_forward.inputs)
            values, gates = inner.chunk(2, dim=-1)
            product = functional.gelu(gates).mul_(values)
            if reversible:
                second = _add(second, product, feed_forward)
            else:
                first = _add(first, product, feed_forward)
        self._position += 1
        return self._logits((first + second) / 2 if reversible else first)

    def _logits(self, end: Tensor) -> Tensor:
        """Of the next code, behind the last layer (B, D)."""
        return torch.addmm(self._image_bias, self._model.final_norm(end), self._image_rows)


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
    """Keys and values that image tokens of one layer attend to."""

    def __init__(
        self, *, kind: str, model: TextToImageTransformer, keys: Tensor, values: Tensor, key_bias: Tensor | None
    ):
        self._kind, self._key_bias = kind, key_bias
        self._grid, self._text_len = model.layout.grid, model.layout.text_len
        self._heads = model.config.num_heads
        folded, _, width = keys.shape
        if kind == "row":
            self._text = None
            self._image = keys.new_empty(2, folded, self._text_len + self._grid, width)
            self._image[0, :, : self._text_len] = keys
            self._image[1, :, : self._text_len] = values
        else:
            self._text = torch.stack([keys, values])
            lines = self._grid if kind == "column" else 1
            self._image = keys.new_empty(lines, 2, folded, self._grid**2 // lines, width)
        self._seen: list[Tensor] = []
        if kind == "conv":
            allowed = allowed_pairs("conv", model.layout, model.config.conv_kernel_size)
            image = allowed[self._text_len :, self._text_len :].to(keys.device)
            self._seen = [row.nonzero().squeeze(-1) for row in image]

    def attend(self, qkv: Tensor, turn: Tensor, position: int) -> Tensor:
        """Attention of one image token: (B, 3NH) to (B, NH)."""
        batch = qkv.shape[0]
        split = qkv.view(batch, 3, self._heads, -1).transpose(0, 1)
        token = turned(split, turn[:, :, None]).view(3, batch * self._heads, -1)
        query = token[0][:, None]
        if self._kind == "row":
            column = position % self._grid
            stop = self._text_len + column + 1
            self._image[:, :, stop - 1] = token[1:]
            keys, values = self._image[:, :, :stop]
            weights = self._weights(torch.bmm(query, keys.transpose(1, 2)))
            return torch.bmm(weights, values).view(batch, -1)
        keys, values = self._remember(token[1:], position)
        text_keys, text_values = self._text
        scores = torch.cat(
            [torch.bmm(query, text_keys.transpose(1, 2)), torch.bmm(query, keys.transpose(1, 2))], dim=-1
        )
        weights = self._weights(scores)
        out = torch.bmm(weights[:, :, : self._text_len], text_values)
        return out.baddbmm_(weights[:, :, self._text_len :], values).view(batch, -1)

    def _remember(self, token: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Adds the token's key and value and returns those of all image tokens that it sees, itself included."""
        row, column = divmod(position, self._grid)
        if self._kind == "column":
            line = self._image[column]
            line[:, :, row] = token
            seen = line[:, :, : row + 1]
        else:
            line = self._image[0]
            line[:, :, position] = token
            seen = line[:, :, self._seen[position]] if self._kind == "conv" else line[:, :, : position + 1]
        return seen[0], seen[1]

    def _weights(self, scores: Tensor) -> Tensor:
        if self._key_bias is not None:
            scores[:, :, : self._text_len] += self._key_bias
        return torch.softmax(scores, dim=-1)


def _normed(hidden: Tensor, branch: Branch) -> Tensor:
    return functional.layer_norm(hidden, hidden.shape[-1:], branch.norm.weight, branch.norm.bias, NORM_EPS)


def _add(stream: Tensor, inputs: Tensor, weights: _Weights) -> Tensor:
    out = functional.linear(inputs, weights.shared.out.weight, weights.shared.out.bias)
    return torch.addcmul(stream, out, weights.branch.scale)
