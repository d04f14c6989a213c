"""gpt-oss (transformers, models/gpt_oss/modeling_gpt_oss.py): attention with sinks, and experts with biases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from calculator.families.blocks.attention import AttentionShape, attention_scores, weighted_sum
from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attention_parameters,
    decoder_flops,
    decoder_parameters,
    grouped_attention,
    projected,
    repeated,
    rotary_buffer_bytes,
    rotary_tables,
)
from calculator.families.family import Family
from calculator.families.mixtures.mixture import MODULES, experts, mixture_forward
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Matrix, Tensor
from calculator.tape.operations import Operations

late_norm = partial(Operations.rms_norm, late=True)


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    d, inner, number = a.hidden_size, a.expert_size, a.num_experts
    layer = {"attention.sinks": (a.num_heads,), **attention_parameters(a)}
    layer |= {"router.weight": (number, d), "router.bias": (number,)}
    layer |= {"experts.in": (number, d, 2 * inner), "experts.in.bias": (number, 2 * inner)}
    layer |= {"experts.out": (number, inner, d), "experts.out.bias": (number, d)}
    layer |= {"attention.norm": (d,), "feed_forward.norm": (d,)}
    return decoder_parameters(a, ParameterGroup("layers", layer))


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings."""
    return rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation)


def forward(c: Context) -> tuple[Tensor, Tensor]:
    """One forward pass to the loss; also returns the logits, which the caller holds."""
    return mixture_forward(
        c,
        _attention,
        _mixture,
        late_norm,
        both_masks=True,
        tables_of=_tables,
        norm=lambda c, hidden: late_norm(c.tape, hidden, c.weights["norm"]),
    )


def _tables(c: Context, itemsize: int) -> Callable[[str], tuple[Tensor, Tensor]]:
    """The rotary tables, which have each frequency once."""
    tables = rotary_tables(c, c.architecture.rotary_dim, itemsize, halves=1)
    return lambda kind: tables


def _attention(
    c: Context, w: dict, hidden: Tensor, mask: Tensor, cosine: Tensor, sine: Tensor
) -> tuple[Tensor, Tensor]:
    attending = partial(_with_sinks, w["attention.sinks"])
    return grouped_attention(c, w, hidden, mask, cosine, sine, projected, _turned, attending=attending, by_head=True)


def _turned(c: Context, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    return _rotated(c, query, cosine, sine), _rotated(c, key, cosine, sine)


def _rotated(c: Context, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of the two halves of all channels (gpt_oss, _apply_rotary_emb)."""
    t, name = c.tape, "rotary embedding"
    first, second = t.split(x, 2)
    one = t.subtract(t.multiply(first, cosine, name), t.multiply(second, sine, name), name)
    other = t.add(t.multiply(second, cosine, name), t.multiply(first, sine, name), name)
    return t.join(one, other, name)


def _with_sinks(
    sinks: Matrix, c: Context, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, shape: AttentionShape
) -> tuple[Tensor, Tensor]:
    """Attention in separate operations, with a further score for each head (gpt_oss, eager_attention_forward)."""
    t, name = c.tape, "attention scores"
    key, value = repeated(c, key, shape), repeated(c, value, shape)
    weights = t.scale(attention_scores(t, query, key, shape), name)
    weights = t.add_constant(weights, "attention mask", mask.itemsize)
    rows = shape.scores // shape.keys
    scores = t.join(weights, t.expanded(sinks, rows // shape.num_heads), name)
    scores = t.subtract(scores, t.highest(scores, rows, name), name)
    chances = t.softmax(scores)
    seen = t.part(chances, shape.scores)
    weights = t.cast(t.dropout(seen, c.attention_dropout), value.itemsize, "casting the attention weights")
    return weighted_sum(t, weights, value, shape), weights


def _mixture(c: Context, w: dict, hidden: Tensor) -> Tensor:
    """The router's choice of experts for each token, and the sum of what they compute."""
    t = c.tape
    _logits = t.linear(hidden, w["router.weight"], w["router.bias"])
    weights, indices = t.largest(_logits, c.batch * c.length * c.architecture.experts_per_token)
    weights = t.softmax(weights)
    return experts(c, w, hidden, weights, indices, gate=_gate)


def _gate(c: Context, joined: Tensor) -> Tensor:
    """SwiGLU with bounds, of neighbouring channels (GptOssExperts._apply_gate)."""
    t, half, name = c.tape, joined.count // 2, "experts"
    gate, values = t.part(joined, half), t.part(joined, half)
    gate = t.clipped(gate, name, bounds=1)
    values = t.clipped(values, name)
    glu = t.multiply(gate, t.elementwise(t.scale(gate, name), name), name)
    return t.multiply(t.add_constant(values, name), glu, name)


FAMILY = Family(
    name="gpt-oss",
    models=("gpt-oss",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    forward_flops=decoder_flops,
    generates=True,
    shares_tables=True,
    modules=lambda a: MODULES,
)
