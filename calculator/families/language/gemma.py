"""Gemma 2 and the text model of Gemma 3 (transformers, models/gemma2/modeling_gemma2.py, models/gemma3)."""

from __future__ import annotations

from calculator.families.blocks.attention import AttentionShape
from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attention_mask,
    attention_parameters,
    decoder_flops,
    decoder_parameters,
    feed_forward_parameters,
    gated_feed_forward,
    grouped_attention,
    projected,
    rotary_buffer_bytes,
    rotary_tables,
    token_positions,
    with_gradient,
)
from calculator.families.blocks.losses import head_and_loss
from calculator.families.family import DECODER_MODULES, Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Parameter, Tensor, allocated_bytes


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    names = ("attention.norm", "attention.last_norm", "feed_forward.norm", "feed_forward.last_norm")
    layer = attention_parameters(a) | feed_forward_parameters(a) | dict.fromkeys(names, (a.hidden_size,))
    return decoder_parameters(a, ParameterGroup("layers", layer))


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the embeddings' scale and of the rotary frequencies; Gemma 3 has two sets of frequencies."""
    kinds = len({a.attention_kind(layer) for layer in range(a.num_layers)}) if a.head_norms else 1
    return allocated_bytes(1, itemsize) + kinds * rotary_buffer_bytes(a.rotary_dim)


def forward(c: Context) -> tuple[Tensor, Tensor | None]:
    """One forward pass to the loss; also returns the logits, which the caller holds, if there are all at once."""
    return head_and_loss(c, _body(c))


def _body(c: Context) -> Tensor:
    t, a = c.tape, c.architecture
    hidden = with_gradient(c, t.scale(t.embedding(c.weights["embedding.tokens"], c.batch * c.length), "embedding"))
    positions = token_positions(c)
    masks = {slides: attention_mask(c, slides, hidden.itemsize) for slides in (False, True)}
    # Gemma 3 has two bases of frequencies, one for each kind of layers.
    kinds = dict.fromkeys(layer.kind for layer in c.stacks["layers"])
    tables = {kind: rotary_tables(c, a.rotary_dim, hidden.itemsize) for kind in (kinds if a.head_norms else ("all",))}
    # A variable of the real code keeps them until its function ends.
    _embedded = hidden
    for layer in c.stacks["layers"]:
        cosine, sine = tables[layer.kind if a.head_norms else "all"]
        hidden = c.run(layer, _block, hidden, masks[layer.kind == "sliding"], cosine, sine, positions)
    t.enter("head")
    return _norm(c, hidden, c.weights["norm"])


def _norm(c: Context, x: Tensor, weight: Parameter) -> Tensor:
    """RMS norm in 32 bits, with 1 + weight as the scale (Gemma3RMSNorm)."""
    t = c.tape
    itemsize, rows = x.itemsize, x.count // weight.count
    x = t.cast(x, 4, "RMS norm")
    # In one expression, so that no name keeps the variance.
    x = t.multiply(x, t.reciprocal_root(t.add_constant(t.mean(t.power(x, "RMS norm"), rows), "RMS norm")), "RMS norm")
    scale = t.add_constant(t.cast(weight, 4, "RMS norm"), "RMS norm")
    # The same name again: what is not kept for backward, as with a frozen scale, is freed before the cast.
    x = t.multiply(x, scale, "RMS norm")
    return t.cast(x, itemsize, "RMS norm")


def _block(
    c: Context, w: dict, hidden: Tensor, mask: Tensor | None, cosine: Tensor, sine: Tensor, positions: Tensor
) -> Tensor:
    t = c.tape
    split = _normed_heads if c.architecture.head_norms else projected
    residual = hidden
    hidden = _norm(c, hidden, w["attention.norm"])
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    hidden, _weights = grouped_attention(c, w, hidden, mask, cosine, sine, split)
    hidden = _norm(c, hidden, w["attention.last_norm"])
    hidden = t.add(residual, hidden)
    residual = hidden
    hidden = _norm(c, hidden, w["feed_forward.norm"])
    hidden = gated_feed_forward(c, w, hidden)
    hidden = _norm(c, hidden, w["feed_forward.last_norm"])
    return t.add(residual, hidden)


def _normed_heads(c: Context, w: dict, hidden: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, the first two normalized head by head (Gemma3Attention)."""
    t = c.tape
    query = t.linear(hidden, w["attention.query.weight"], w.get("attention.query.bias"))
    key = t.linear(hidden, w["attention.key.weight"], w.get("attention.key.bias"))
    value = t.linear(hidden, w["attention.value.weight"], w.get("attention.value.bias"))
    query = _norm(c, query, w["attention.query.norm"])
    key = _norm(c, key, w["attention.key.norm"])
    return query, key, value


FAMILY = Family(
    name="gemma",
    models=("Gemma",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    forward_flops=decoder_flops,
    generates=True,
    shares_tables=True,
    scaled_embeddings=True,
    modules=lambda a: DECODER_MODULES,
    in_4_bits=True,
    matrix_optimizers=True,
    liger=True,
    packs=True,
    fp8=True,
)
