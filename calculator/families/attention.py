"""Attention, in separate operations or as one fused kernel.

`query`, `key` and `value` are views of what the projections wrote: (B, T, N, H) in memory, viewed as (B, N, T, H).
A batched product needs (B * N, T, H): unless B or N is 1, it must copy such operands. In backward, the gradients of
queries and values arrive as (B, N, T, H) and are copied. Those of the keys arrive as (B, N, H, T); the gradient of a
projection can read them without a copy if there is one sequence, and the joining of split gradients always can.
"""

from __future__ import annotations

from dataclasses import dataclass

from calculator.autograd import Tensor
from calculator.operations import Operations


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

    @property
    def scores(self) -> int:
        """Values of the score matrix, B * N * T * S."""
        return self.batch * self.num_heads * self.queries * self.keys

    @property
    def reordered(self) -> bool:
        """Whether (B, N, T, H) and (B, T, N, H) differ in memory."""
        return self.num_heads > 1 and self.queries > 1

    @property
    def copied(self) -> bool:
        """Whether a batched product must copy transposed operands."""
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
    cast_weights: bool = False,
) -> tuple[Tensor, Tensor]:
    """Scores, softmax, dropout and the weighted sum, as separate operations (transformers, eager_attention_forward).

    Args:
        dropout: Probability on the attention weights.
        mask_itemsize: Bytes of a value of the mask that is added to the scores; 0 without a mask.
        bias: A learned bias that is added to the scores.
        cast_weights: Whether the weights are cast to the values' precision before dropout (GPT-2).

    Returns:
        The result, (B, T, N * H), and the weights, which the code of transformers holds until the layer ends.
    """
    weights = t.scale(attention_scores(t, query, key, shape), "attention scores")
    if bias is not None:
        weights = t.add(weights, bias, "relative position bias")
    if mask_itemsize:
        weights = t.add_constant(weights, "attention mask", mask_itemsize)
    weights = t.softmax(weights)
    if cast_weights:
        weights = t.cast(weights, value.itemsize, "casting the attention weights")
    weights = t.dropout(weights, dropout)
    return weighted_sum(t, weights, value, shape), weights


def attention_scores(t: Operations, query: Tensor, key: Tensor, shape: AttentionShape) -> Tensor:
    """The product of queries and keys, (B, N, T, S)."""
    return t.matmul(query, key, shape.scores, "attention scores", copy=(shape.copied, shape.copied))


def weighted_sum(t: Operations, weights: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
    """The weighted sum of the values, copied to (B, T, N * H)."""
    count = shape.batch * shape.queries * shape.num_heads * shape.head_dim
    result = t.matmul(weights, value, count, "weighted sum of the values", copy=(False, shape.copied))
    if shape.copied:
        result = t.view(result)
    return t.copy(result)


def fused_attention(
    t: Operations,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    shape: AttentionShape,
    *,
    dropout: float,
    bias: Tensor | None = None,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` as CUDA dispatches it (sdp_utils.cpp).

    Flash attention takes 16-bit operands without a bias and heads up to 256 wide, which are padded to a multiple of 8.
    The memory-efficient kernel takes the rest if the head width is a multiple of 8 (of 4 in 32 bits); the rows of a
    bias are padded to a multiple of 16. Everything else runs in separate operations.
    """
    if bias is not None:
        bias = t.lowered(bias)
    value = t.lowered(value)
    key = t.lowered(key)
    query = t.lowered(query)
    rows, width = shape.batch * shape.num_heads, shape.head_dim
    if query.itemsize == 2 and bias is None and width <= 256:
        count, even = query.count, -(-width // 8) * 8
        if even != width:
            query, key, value = (t.padded(x, x.count // width * even, "attention heads") for x in (query, key, value))
        result = t.fused_attention(query, key, value, rows=rows, length=shape.queries, head_dim=even, flash=True)
        return t.copy(t.part(result, count)) if even != width else result
    if width % (4 if query.itemsize == 4 else 8):
        query, key = t.scale(t.view(query), "attention scores"), t.scale(key, "attention scores")
        weights = attention_scores(t, query, key, shape)
        if bias is not None:
            weights = t.add(weights, bias, "attention bias")
        weights = t.dropout(t.softmax(weights), dropout)
        return weighted_sum(t, weights, t.view(value), shape)
    counts = {}
    if bias is not None:
        lengthened = shape.num_heads * shape.queries * (-(-shape.keys // 16) * 16)
        if shape.keys % 16:
            bias = t.part(t.padded(bias, lengthened, "attention bias"), bias.count)
        counts = {"bias": bias, "bias_count": shape.scores, "bias_allocated": shape.batch * lengthened}
    return t.fused_attention(query, key, value, rows=rows, length=shape.queries, head_dim=width, flash=False, **counts)
