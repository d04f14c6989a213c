"""OLMo 2 and 3 (transformers, models/olmo2/modeling_olmo2.py, models/olmo3)."""

from __future__ import annotations

from collections.abc import Callable

from calculator.families.blocks.attention import AttentionShape
from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attention_parameters,
    decoder_flops,
    decoder_forward,
    decoder_parameters,
    feed_forward_parameters,
    gated_feed_forward,
    grouped_attention,
    rotary_buffer_bytes,
    rotary_tables,
    seen_by_head,
    turned,
)
from calculator.families.family import DECODER_MODULES, Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Tensor


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    norms = {"attention.norm": (a.hidden_size,), "feed_forward.norm": (a.hidden_size,)}
    of_heads = {
        "attention.query.norm": (a.num_heads * a.head_dim,),
        "attention.key.norm": (a.key_heads * a.head_dim,),
    }
    layer = attention_parameters(a) | of_heads | feed_forward_parameters(a) | norms
    return decoder_parameters(a, ParameterGroup("layers", layer))


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings; OLMo 3 has a set for each kind of layers."""
    kinds = len({a.attention_kind(layer) for layer in range(a.num_layers)}) if a.sliding_window else 1
    return kinds * rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation)


def forward(c: Context) -> tuple[Tensor, Tensor | None]:
    """One forward pass to the loss; also returns the logits, which the caller holds, if there are all at once."""
    return decoder_forward(
        c,
        lambda kind: _block,
        both_masks=bool(c.architecture.sliding_window),
        tables_of=_tables_in_32_bits,
        norm=lambda c, hidden: c.tape.rms_norm(hidden, c.weights["norm"], late=True),
    )


def _tables_in_32_bits(c: Context, itemsize: int) -> Callable[[str], tuple[Tensor, Tensor]]:
    """The rotary tables, which stay in 32 bits; OLMo 3 has them for each kind of layers."""
    a = c.architecture
    kinds = dict.fromkeys(layer.kind if a.sliding_window else "" for layer in c.stacks["layers"])
    tables = {kind: rotary_tables(c, a.rotary_dim, 4) for kind in kinds}
    return lambda kind: tables[kind if a.sliding_window else ""]


def _block(
    c: Context, w: dict, hidden: Tensor, mask: Tensor | None, cosine: Tensor, sine: Tensor, positions: Tensor
) -> Tensor:
    t = c.tape
    residual = hidden
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    hidden, _weights = grouped_attention(c, w, hidden, mask, cosine, sine, _normed, _turned_in_32_bits)
    hidden = t.rms_norm(hidden, w["attention.norm"], late=True)
    hidden = t.add(residual, hidden)
    residual = hidden
    hidden = gated_feed_forward(c, w, hidden)
    hidden = t.rms_norm(hidden, w["feed_forward.norm"], late=True)
    return t.add(residual, hidden)


def _normed(c: Context, w: dict, hidden: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, the first two normalized over all heads together (Olmo2Attention)."""
    t = c.tape
    query, key = (
        t.rms_norm(
            t.linear(hidden, w[f"attention.{name}.weight"], w.get(f"attention.{name}.bias")),
            w[f"attention.{name}.norm"],
            late=True,
        )
        for name in ("query", "key")
    )
    value = t.linear(hidden, w["attention.value.weight"], w.get("attention.value.bias"))
    return seen_by_head(c, query, shape.num_heads), seen_by_head(c, key, shape.key_heads or shape.num_heads), value


def _turned_in_32_bits(c: Context, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys, which are cast back after both have been made."""
    t, name = c.tape, "rotary embedding"
    turned_query, turned_key = turned(c, query, key, cosine, sine)
    return t.cast(turned_query, query.itemsize, name), t.cast(turned_key, key.itemsize, name)


FAMILY = Family(
    name="olmo",
    models=("OLMo",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    forward_flops=decoder_flops,
    generates=True,
    shares_tables=True,
    modules=lambda a: DECODER_MODULES,
)
