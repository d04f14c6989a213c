"""Attention, in separate operations or as one fused kernel.

`query`, `key` and `value` are views of what the projections wrote: (B, T, N, H) in memory, viewed as (B, N, T, H).
A batched product needs (B * N, T, H): unless B or N is 1, it must copy such operands. In backward, the gradients of
queries and values arrive as (B, N, T, H) and are copied. Those of the keys arrive as (B, N, H, T); the gradient of a
projection can read them without a copy if there is one sequence, and the joining of split gradients always can.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from calculator.tape.attention_kernels import (
    efficient_backward_bytes,
    efficient_forward_bytes,
    flash_backward_bytes,
)
from calculator.tape.autograd import Tensor
from calculator.tape.operations import Operations

WIDEST_FLASH_HEAD = 256
"""Channels of the widest head that flash attention reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionShape:
    """Lengths of one attention."""

    batch: int
    num_heads: int
    head_dim: int
    queries: int
    """T, tokens that attend."""
    keys: int
    """S, tokens that are attended to."""
    key_heads: int = 0
    """K, heads of keys and values, each of which several query heads use; 0: as many as query heads."""
    value_dim: int = 0
    """Width of a head of values, if it is not `head_dim`."""
    by_head: bool = False
    """True if queries and keys lie in memory as (B, N, T, H), because an operation has joined them so."""
    interleaved: bool = False
    """True if shared keys and values have been copied for each query head (repeat_interleave)."""

    @property
    def scores(self) -> int:
        """Values of the score matrix, B * N * T * S."""
        return self.batch * self.num_heads * self.queries * self.keys

    @property
    def group(self) -> int:
        """Query heads that use the same keys and values."""
        return self.num_heads // self.key_heads if self.key_heads else 1

    @property
    def expanded(self) -> bool:
        """True if all query heads use the same keys, so that repeating these is a view."""
        return self.group > 1 and self.key_heads == 1 and not self.interleaved

    @property
    def reordered(self) -> bool:
        """True if (B, N, T, H) and (B, T, N, H) differ in memory."""
        return self.num_heads > 1 and self.queries > 1

    @property
    def copied(self) -> bool:
        """True if a batched product must copy transposed operands."""
        return self.batch > 1 and self.num_heads > 1


def eager_attention(
    t: Operations,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shape: AttentionShape,
    *,
    dropout: float,
    mask_itemsize: int = 0,
    bias: Tensor | None = None,
    weights_itemsize: int = 0,
    raised: bool = False,
    softcap: bool = False,
) -> tuple[Tensor, Tensor]:
    """Scores, softmax, dropout and the weighted sum, as separate operations (transformers, eager_attention_forward).

    Args:
        dropout: Probability on the attention weights.
        mask_itemsize: Bytes of a value of the mask that is added to the scores; 0 without a mask.
        bias: A learned bias that is added to the scores.
        weights_itemsize: Bytes of a value to which the weights are cast before dropout; 0: they are not cast, which is
            for weights without `raised` only.
        softcap: Whether a tanh bounds the scores (Gemma 2).
        raised: Whether the softmax is in 32 bits even without autocast (Llama).

    Returns:
        The result, (B, T, N * H), and the weights, which the code of transformers holds until the layer ends.
    """
    weights = t.scale(attention_scores(t, query, key, shape), "attention scores")
    if softcap:
        # One name for all three, as in the real code: each is freed when the next one takes its place.
        weights = t.scale(weights, "attention scores")
        weights = t.elementwise(weights, "attention scores")
        weights = t.scale(weights, "attention scores")
    if bias is not None:
        weights = t.add(weights, bias, "relative position bias")
    if mask_itemsize:
        weights = t.add_constant(weights, "attention mask", mask_itemsize)
    if raised:
        # In one expression, as in the real code, so that the scores live until the cast is done.
        weights = t.cast(t.softmax(weights, raised=True), weights_itemsize, "casting the attention weights")
    else:
        weights = t.softmax(weights)
        if weights_itemsize:
            weights = t.cast(weights, weights_itemsize, "casting the attention weights")
    weights = t.dropout(weights, dropout)
    return weighted_sum(t, weights, value, shape), weights


def attention_scores(t: Operations, query: Tensor, key: Tensor, shape: AttentionShape) -> Tensor:
    """The product of queries and keys, (B, N, T, S)."""
    # Repeated keys have just been copied, so that a product can read them as they are. Expanded ones are copied by a
    # cast, if there is one.
    cast = t.autocast and key.itemsize == 4
    moved = (shape.group == 1 and not shape.by_head) or (shape.expanded and not cast)
    # A single token's heads lie in memory as if its queries and keys were given by head.
    moved = moved and (shape.expanded or shape.keys > 1)
    copy = (shape.copied and shape.queries > 1 and not shape.by_head, shape.copied and moved)
    return t.matmul(query, key, shape.scores, "attention scores", copy=copy)


def weighted_sum(t: Operations, weights: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
    """The weighted sum of the values, copied to (B, T, N * H) unless its memory has that order already."""
    return _by_token(t, _weighted_by_head(t, weights, value, shape), shape)


def _by_token(t: Operations, x: Tensor, shape: AttentionShape) -> Tensor:
    """A result in the order (B, N, T, H), copied to (B, T, N * H); with one head or one token both orders are equal."""
    return t.copy(x) if shape.reordered else x


def _weighted_by_head(t: Operations, weights: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
    """The weighted sum of the values, (B, N, T, H)."""
    count = shape.batch * shape.queries * shape.num_heads * (shape.value_dim or shape.head_dim)
    result = t.matmul(
        weights,
        value,
        count,
        "weighted sum of the values",
        copy=(False, shape.copied and (shape.expanded or (shape.group == 1 and shape.keys > 1))),
    )
    return t.view(result) if shape.copied and shape.queries > 1 else result


def fused_attention(
    t: Operations,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shape: AttentionShape,
    *,
    dropout: float,
    bias: Tensor | None = None,
    masked: bool = False,
    causal: bool = False,
    copies: int = 0,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` as CUDA dispatches it (sdp_utils.cpp).

    Flash attention takes 16-bit operands without a bias and heads up to 256 wide, which are padded to a multiple of 8.
    The memory-efficient kernel takes the rest if the head width is a multiple of 8 (of 4 in 32 bits); the rows of a
    bias are padded to a multiple of 16. Everything else runs in separate operations.

    Args:
        dropout: Probability on the attention weights.
        bias: A learned bias that is added to the scores.
        masked: Whether there is a mask of a byte for each pair of tokens, which becomes a bias for each sequence.
        causal: Whether the kernel itself hides later tokens.
        copies: See `calculator.tape.operations.Operations.fused_attention`.
    """
    if bias is not None:
        bias = t.lowered(bias)
    _given = bias  # what autocast has made lives until attention returns, unlike the numbers that a mask becomes
    value = t.lowered(value)
    key = t.lowered(key)
    query = t.lowered(query)
    if masked:
        bias = t.tensor(shape.batch * shape.queries * shape.keys, query.itemsize)
    count, width, even = query.count, shape.head_dim, -(-shape.head_dim // 8) * 8
    if query.itemsize == 2 and bias is None and width <= WIDEST_FLASH_HEAD and shape.value_dim in (0, width):
        result = _flash(t, (query, key, value), shape, even, copies)
        # The copy is made after attention has returned, and with it what autocast and padding have made for it is gone.
        del query, key, value
        if even != width:
            result = t.part(result, count)
            # What is cut off the only row leaves it contiguous.
            return t.copy(result) if shape.batch * shape.num_heads * shape.queries > 1 else result
        return t.copy(result) if shape.by_head and shape.reordered else result
    if width % (4 if query.itemsize == 4 else 8) or shape.group > 1:
        result = _unfused(t, query, key, value, shape, dropout=dropout, bias=bias, causal=causal)
        del query, key, value, bias
        return _by_token(t, result, shape)
    if bias is not None:
        bias = _aligned(t, bias, shape.keys)  # the same name: what is not kept for backward is freed before the kernel
    return _memory_efficient(t, query, key, value, shape, bias, copies)


def _aligned(t: Operations, bias: Tensor, keys: int) -> Tensor:
    """Pads the rows of a bias to multiples of 16 (pytorch, attention.cpp, pad_bias)."""
    return t.part(t.padded(bias, _rows_of_16(bias.count, keys), "attention bias"), bias.count) if keys % 16 else bias


def _rows_of_16(count: int, keys: int) -> int:
    """Values of a bias whose rows are padded."""
    return count // keys * (-(-keys // 16) * 16)


def _flash(t: Operations, operands: tuple[Tensor, ...], shape: AttentionShape, even: int, copies: int) -> Tensor:
    rows, width = shape.batch * shape.num_heads, shape.head_dim
    if even != width:
        operands = tuple(t.padded(x, x.count // width * even, "attention heads") for x in operands)
    # The kernel's result lies in memory as its queries do. Backward copies it, and its gradient, to (B, T, N, H).
    if even != width:  # padded queries lie head by head, and so does the gradient of what is cut off their result
        copies = 2 if shape.reordered else 0
    elif shape.by_head and shape.reordered:
        copies += 1
    expanded = rows * shape.keys * even if shape.group > 1 else 0
    taken = flash_backward_bytes(rows=rows, queries=shape.queries, head_dim=even, expanded=expanded)
    return t.fused_attention(*operands, sums=rows * shape.queries, backward_bytes=(taken,), copies=copies)


def _memory_efficient(
    t: Operations,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shape: AttentionShape,
    bias: Tensor | None,
    copies: int,
) -> Tensor:
    counts = {}
    if bias is not None:
        allocated = shape.batch * _rows_of_16(bias.count, shape.keys)
        counts |= {"bias": bias, "bias_count": shape.scores, "bias_allocated": allocated}
    rows, width = shape.batch * shape.num_heads, shape.value_dim or shape.head_dim
    count = rows * shape.queries * width
    taken = efficient_backward_bytes(
        itemsize=query.itemsize, rows=rows, queries=shape.queries, keys=shape.keys, head_dim=shape.head_dim,
        value_dim=width, transposed=shape.reordered,
    )  # fmt: skip
    return t.fused_attention(
        query, key, value, sums=rows * _padded_sums(shape.queries, query, key, value),
        forward_bytes=efficient_forward_bytes(itemsize=query.itemsize, values=count, widest=max(width, shape.head_dim)),
        backward_bytes=taken, result_count=count, copies=copies, **counts,
    )  # fmt: skip


def _padded_sums(queries: int, *operands: Tensor) -> int:
    """Number of sums that memory-efficient attention makes for a head, rounded up to a multiple of 32; 0 if no operand
    needs a gradient (pytorch, aten/src/ATen/native/transformers/attention.cpp, should_compute_logsumexp)."""
    return -(-queries // 32) * 32 if any(one.node is not None for one in operands) else 0


def _unfused(
    t: Operations,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shape: AttentionShape,
    *,
    dropout: float,
    bias: Tensor | None,
    causal: bool,
) -> Tensor:
    """Separate operations where no kernel fits (pytorch, attention.cpp, _scaled_dot_product_attention_math); the result
    lies head by head.

    Queries and keys are scaled before their product. If they are causal, a mask hides later tokens.
    """
    query = t.scale(t.view(query) if shape.group == 1 else query, "attention scores")
    _mask = _causal_mask(t, shape) if causal else None  # the name keeps it until the result exists
    if shape.group > 1:
        key = t.repeated(key, shape.group)
        value = t.repeated(value, shape.group)
        shape = replace(shape, interleaved=True)
    else:
        value = t.view(value)
    weights = attention_scores(t, query, t.scale(key, "attention scores"), shape)
    if bias is not None:
        weights = t.add(weights, bias, "attention bias")
    weights = t.dropout(t.masked_softmax(weights, shape.keys), dropout)
    return _weighted_by_head(t, weights, value, shape)


def _causal_mask(t: Operations, shape: AttentionShape) -> Tensor:
    """The mask as numbers, made of one of a byte for each pair of tokens and of its lower triangle."""
    ones = t.tensor(shape.queries * shape.keys, 1)
    lower = t.tensor(shape.queries * shape.keys, 1)
    del ones
    mask = t.tensor(shape.queries * shape.keys, 4)
    del lower
    return mask
