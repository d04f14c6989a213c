"""Gemma, Gemma 2 and the text model of Gemma 3 (transformers, models/gemma, models/gemma2, models/gemma3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attention_parameters,
    decoder_flops,
    decoder_forward,
    decoder_parameters,
    embedded_tokens,
    feed_forward_parameters,
    gated_feed_forward,
    grouped_attention,
    normed_last,
    projected,
    rotary_buffer_bytes,
    rotary_tables,
    usual_tables,
)
from calculator.families.family import DECODER_MODULES, Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Parameter, Tensor, allocated_bytes


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    names = ["attention.norm", "feed_forward.norm"]
    if a.norms_after:
        names = ["attention.norm", "attention.last_norm", "feed_forward.norm", "feed_forward.last_norm"]
    layer = attention_parameters(a) | feed_forward_parameters(a) | dict.fromkeys(names, (a.hidden_size,))
    return decoder_parameters(a, ParameterGroup("layers", layer))


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the embeddings' scale and of the rotary frequencies; Gemma 3 has two sets of frequencies."""
    kinds = len({a.attention_kind(layer) for layer in range(a.num_layers)}) if a.head_norms else 1
    return allocated_bytes(1, itemsize) + kinds * rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation)


def forward(c: Context) -> tuple[Tensor, Tensor | None]:
    """One forward pass to the loss; also returns the logits, which the caller holds, if there are all at once."""
    return decoder_forward(
        c,
        lambda kind: _block,
        embed=lambda c: c.tape.scale(embedded_tokens(c), "embedding"),
        both_masks=c.architecture.norms_after,
        tables_of=_tables_of_kinds if c.architecture.head_norms else usual_tables,
        norm=lambda c, hidden: _norm(c, hidden, c.weights["norm"]),
    )


def _tables_of_kinds(c: Context, itemsize: int) -> Callable[[str], tuple[Tensor, Tensor]]:
    """The rotary tables of Gemma 3, which has two bases of frequencies, one for each kind of layers."""
    kinds = dict.fromkeys(layer.kind for layer in c.stacks["layers"])
    return {kind: rotary_tables(c, c.architecture.rotary_dim, itemsize) for kind in kinds}.__getitem__


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
    split = partial(normed_last, _norm) if c.architecture.head_norms else projected
    residual = hidden
    hidden = _norm(c, hidden, w["attention.norm"])
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    hidden, _weights = grouped_attention(c, w, hidden, mask, cosine, sine, split)
    hidden = _norm_after(c, hidden, w, "attention")
    hidden = t.add(residual, hidden)
    residual = hidden
    hidden = _norm(c, hidden, w["feed_forward.norm"])
    hidden = gated_feed_forward(c, w, hidden)
    hidden = _norm_after(c, hidden, w, "feed_forward")
    return t.add(residual, hidden)


def _norm_after(c: Context, hidden: Tensor, w: dict, branch: str) -> Tensor:
    """A branch's second norm, which the first Gemma lacks."""
    return _norm(c, hidden, w[f"{branch}.last_norm"]) if c.architecture.norms_after else hidden


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
