"""Command R and Command R7B (transformers, models/cohere/modeling_cohere.py, models/cohere2)."""

from __future__ import annotations

from functools import partial

from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attention_parameters,
    decoder_flops,
    decoder_forward,
    decoder_parameters,
    feed_forward_parameters,
    gated_feed_forward,
    grouped_attention,
    normed_last,
    rotary_buffer_bytes,
    turned,
)
from calculator.families.family import DECODER_MODULES, Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Matrix, Tensor


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    layer = attention_parameters(a)
    if a.head_norms:  # every head has its own
        layer["attention.query.norm"] = (a.num_heads, a.head_dim)
        layer["attention.key.norm"] = (a.key_heads, a.head_dim)
    layer |= feed_forward_parameters(a) | {"attention.norm": (a.hidden_size,)}
    return decoder_parameters(a, ParameterGroup("layers", layer))


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings."""
    return rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation)


def forward(c: Context) -> tuple[Tensor, Tensor | None]:
    """One forward pass to the loss; also returns the logits, which the caller holds, if there are all at once."""
    return decoder_forward(
        c,
        lambda kind: _unrotated_block if "unrotated" in kind else _block,
        both_masks=bool(c.architecture.sliding_window),
        norm=lambda c, hidden: _norm(c, hidden, c.weights["norm"]),
    )


def _norm(c: Context, x: Tensor, weight: Matrix) -> Tensor:
    """Layer norm without a bias in separate 32-bit operations, over as many values as a row of the weight has
    (CohereLayerNorm)."""
    t, name = c.tape, "layer norm"
    itemsize, rows = x.itemsize, x.count // weight.shape[-1]
    x = t.cast(x, 4, name)
    mean = t.mean(x, rows)
    # In one expression, so that no name keeps the squares.
    variance = t.mean(t.power(t.subtract(x, mean, name), name), rows)
    x = t.multiply(t.subtract(x, mean, name), t.reciprocal_root(t.add_constant(variance, name)), name)
    x = t.multiply(t.weight_in_32_bits(weight, name), x, name)
    return t.cast(x, itemsize, name)


def _block(
    c: Context,
    w: dict,
    hidden: Tensor,
    mask: Tensor | None,
    cosine: Tensor | None,
    sine: Tensor | None,
    positions: Tensor,
) -> Tensor:
    """Attention and feed-forward beside each other, after one norm."""
    t = c.tape
    residual = hidden
    hidden = _norm(c, hidden, w["attention.norm"])
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    attended, _weights = grouped_attention(
        c, w, hidden, mask, cosine, sine, partial(normed_last, _norm), _turned_in_32_bits
    )
    fed = gated_feed_forward(c, w, hidden)
    return t.add(t.add(residual, attended), fed)


def _unrotated_block(
    c: Context, w: dict, hidden: Tensor, mask: Tensor | None, cosine: Tensor, sine: Tensor, positions: Tensor
) -> Tensor:
    """A layer of Command R7B that sees all tokens, and uses no rotary tables."""
    return _block(c, w, hidden, mask, None, None, positions)


def _turned_in_32_bits(c: Context, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys, rotated in 32 bits; their neighbouring channels are pairs (cohere, apply_rotary_pos_emb)."""
    t, itemsize, name = c.tape, query.itemsize, "rotary embedding"
    query = t.cast(query, 4, name)
    key = t.cast(key, 4, name)
    turned_query, turned_key = turned(c, query, key, cosine, sine)
    return t.cast(turned_query, itemsize, name), t.cast(turned_key, itemsize, name)


FAMILY = Family(
    name="cohere",
    models=("Command R",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    forward_flops=decoder_flops,
    generates=True,
    shares_tables=True,
    modules=lambda a: DECODER_MODULES,
)
