"""StarCoder2 (transformers, models/starcoder2/modeling_starcoder2.py)."""

from __future__ import annotations

from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attention_parameters,
    decoder_flops,
    decoder_forward,
    decoder_parameters,
    grouped_attention,
    projected,
    rotary_buffer_bytes,
)
from calculator.families.family import DECODER_MODULES, Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Tensor


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    d, f = a.hidden_size, a.intermediate_size
    layer = attention_parameters(a)
    for name, rows, columns in (("in", f, d), ("out", d, f)):
        layer[f"feed_forward.{name}.weight"] = (rows, columns)
        if a.feed_forward_bias:
            layer[f"feed_forward.{name}.bias"] = (rows,)
    for name in ("attention", "feed_forward"):
        layer |= {f"{name}.norm": (d,), f"{name}.norm.bias": (d,)}
    return decoder_parameters(a, ParameterGroup("layers", layer), norm_biased=True)


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings."""
    return rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation)


def forward(c: Context) -> tuple[Tensor, Tensor | None]:
    """One forward pass to the loss; also returns the logits, which the caller holds, if there are all at once."""
    return decoder_forward(
        c,
        lambda kind: _block,
        dropout=c.dropout,
        norm=lambda c, hidden: c.tape.layer_norm(hidden, c.weights["norm"], c.weights["norm.bias"]),
    )


def _block(
    c: Context, w: dict, hidden: Tensor, mask: Tensor | None, cosine: Tensor, sine: Tensor, positions: Tensor
) -> Tensor:
    t = c.tape
    residual = hidden
    hidden = t.layer_norm(hidden, w["attention.norm"], w["attention.norm.bias"])
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    hidden, _weights = _attention(c, w, hidden, mask, cosine, sine)
    hidden = t.add(residual, hidden)
    residual = hidden
    hidden = t.layer_norm(hidden, w["feed_forward.norm"], w["feed_forward.norm.bias"])
    hidden = _feed_forward(c, w, hidden)
    return t.add(residual, hidden)


def _attention(
    c: Context, w: dict, hidden: Tensor, mask: Tensor | None, cosine: Tensor, sine: Tensor
) -> tuple[Tensor, Tensor | None]:
    attended, weights = grouped_attention(c, w, hidden, mask, cosine, sine, projected)
    return c.tape.dropout(attended, c.dropout), weights


def _feed_forward(c: Context, w: dict, hidden: Tensor) -> Tensor:
    t = c.tape
    hidden = t.linear(hidden, w["feed_forward.in.weight"], w.get("feed_forward.in.bias"))
    hidden = t.activation(hidden, c.architecture.activation)
    hidden = t.linear(hidden, w["feed_forward.out.weight"], w.get("feed_forward.out.bias"))
    return t.dropout(hidden, c.dropout)


MODULES = DECODER_MODULES | {"feed_forward.in": "c_fc", "feed_forward.out": "c_proj"}
"""Our names of the linear modules that may have an adapter, and those of transformers."""


FAMILY = Family(
    name="starcoder2",
    models=("StarCoder2",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    forward_flops=decoder_flops,
    generates=True,
    shares_tables=True,
    modules=lambda a: MODULES,
)
