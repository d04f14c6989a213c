"""Qwen3-Next and Qwen3.5, whose layers have linear or full attention (transformers, models/qwen3_next and qwen3_5).

Only their weights are here, for inference: what training keeps of linear attention depends on its kernels.
"""

from __future__ import annotations

from calculator.families.blocks.decoder import (
    attention_parameters,
    decoder_parameters,
    feed_forward_parameters,
    rotary_buffer_bytes,
)
from calculator.families.family import Family
from calculator.families.mixtures.mixture import expert_parameters
from calculator.models.architecture import Architecture, ParameterGroup


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer of each kind."""
    norms = {"attention.norm": (a.hidden_size,), "feed_forward.norm": (a.hidden_size,)}
    return decoder_parameters(
        a,
        ParameterGroup("layers", _linear_attention_parameters(a), only="linear"),
        ParameterGroup("layers", _gated_attention_parameters(a), only="full"),
        ParameterGroup("layers", expert_parameters(a) | _shared_expert_parameters(a), only="experts"),
        ParameterGroup("layers", feed_forward_parameters(a), only="dense"),
        ParameterGroup("layers", norms),
    )


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings."""
    return rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation)


def _linear_attention_parameters(a: Architecture) -> dict[str, tuple[int, ...]]:
    """A gated delta net (Qwen3NextGatedDeltaNet, Qwen3_5GatedDeltaNet)."""
    d, own = a.hidden_size, a.linear
    inner = own.value_heads * own.value_dim
    if own.joined:
        shapes = {
            "attention.qkv_gate.weight": (own.channels + inner, d),
            "attention.update_decay.weight": (2 * own.value_heads, d),
        }
    else:
        shapes = {
            "attention.qkv.weight": (own.channels, d),
            "attention.gate.weight": (inner, d),
            "attention.update.weight": (own.value_heads, d),
            "attention.decay.weight": (own.value_heads, d),
        }
    return shapes | {
        "attention.convolution.weight": (own.channels, 1, own.kernel_size),
        "attention.decay.bias": (own.value_heads,),
        "attention.decay.rate": (own.value_heads,),
        "attention.out.norm": (own.value_dim,),
        "attention.out.weight": (d, inner),
    }


def _gated_attention_parameters(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Grouped attention whose first matrix makes a gate of the result beside the queries (Qwen3NextAttention)."""
    twice = {
        name: (2 * rows, *columns)
        for name, (rows, *columns) in attention_parameters(a).items()
        if name in ("attention.query.weight", "attention.query.bias")
    }
    return attention_parameters(a) | twice


def _shared_expert_parameters(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The expert that computes every token, and the gate of its result (Qwen3NextSparseMoeBlock)."""
    d, inner = a.hidden_size, a.shared_size
    return {
        "shared.gate.weight": (inner, d),
        "shared.in.weight": (inner, d),
        "shared.out.weight": (d, inner),
        "shared.share.weight": (1, d),
    }


FAMILY = Family(
    name="hybrid",
    models=("Qwen3-Next",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    generates=True,
    why_untrained="what linear attention keeps for backward depends on its kernels",
)
