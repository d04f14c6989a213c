"""Llama, Mistral, Qwen2, Qwen3, SmolLM3 and Phi-3 (transformers, models/llama/modeling_llama.py, LlamaForCausalLM)."""

from __future__ import annotations

from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attention_parameters,
    decoder_flops,
    decoder_forward,
    decoder_parameters,
    feed_forward_parameters,
    gated_feed_forward,
    grouped_attention,
    parts_of_one,
    projected,
    rotary_buffer_bytes,
    rotated,
    turned,
)
from calculator.families.family import DECODER_MODULES, Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Tensor


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    norms = {"attention.norm": (a.hidden_size,), "feed_forward.norm": (a.hidden_size,)}
    layer = attention_parameters(a) | feed_forward_parameters(a) | norms
    return decoder_parameters(a, ParameterGroup("layers", layer))


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings."""
    return rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation)


def forward(c: Context) -> tuple[Tensor, Tensor]:
    """One forward pass to the loss; also returns the logits, which the caller holds."""
    return decoder_forward(c, lambda kind: _unrotated_block if "unrotated" in kind else _block)


def _block(
    c: Context, w: dict, hidden: Tensor, mask: Tensor | None, cosine: Tensor, sine: Tensor, positions: Tensor
) -> Tensor:
    t = c.tape
    residual = hidden
    hidden = t.rms_norm(hidden, w["attention.norm"])
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    joined = c.architecture.joined_projections
    split, turn = (parts_of_one, _partly_turned) if joined else (projected, turned)
    hidden, _weights = grouped_attention(c, w, hidden, mask, cosine, sine, split, turn, by_head=joined)
    hidden = t.add(residual, _dropped(c, hidden))
    residual = hidden
    hidden = t.rms_norm(hidden, w["feed_forward.norm"])
    hidden = gated_feed_forward(c, w, hidden)
    return t.add(residual, _dropped(c, hidden))


def _partly_turned(c: Context, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    return _partly_rotated(c, query, cosine, sine), _partly_rotated(c, key, cosine, sine)


def _partly_rotated(c: Context, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of the first channels of a head only, joined with the others (Phi3, apply_rotary_pos_emb)."""
    t, a = c.tape, c.architecture
    count = x.count // a.head_dim * a.rotary_dim
    first, rest = t.part(x, count), t.part(x, x.count - count)
    return t.join(rotated(c, first, cosine, sine), rest, "rotary embedding")


def _dropped(c: Context, hidden: Tensor) -> Tensor:
    """A branch after dropout, which only Phi-3's code has."""
    return c.tape.dropout(hidden, c.dropout) if c.architecture.joined_projections else hidden


def _unrotated_block(
    c: Context, w: dict, hidden: Tensor, mask: Tensor | None, cosine: Tensor, sine: Tensor, positions: Tensor
) -> Tensor:
    """A layer that receives the rotary tables as all layers do, but does not use them (SmolLM3)."""
    return _block(c, w, hidden, mask, None, None, positions)


def _modules(a: Architecture) -> dict[str, str]:
    return DECODER_MODULES | ({"feed_forward.in": "gate_up_proj"} if a.joined_projections else {})


FAMILY = Family(
    name="llama",
    models=("Llama", "Mistral", "Qwen", "SmolLM", "Phi"),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    forward_flops=decoder_flops,
    generates=True,
    shares_tables=True,
    modules=_modules,
    in_4_bits=True,
    matrix_optimizers=True,
    liger=True,
    packs=True,
    fp8=True,
    offload_activations=True,
    tensor_parallel=True,
)
