"""Qwen2-MoE, whose layers have one more expert for every token (transformers, models/qwen2_moe)."""

from __future__ import annotations

from functools import partial

from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attention_parameters,
    decoder_flops,
    decoder_parameters,
    feed_forward_parameters,
    grouped_attention,
    projected,
    rotary_buffer_bytes,
)
from calculator.families.family import Family
from calculator.families.mixtures.mixture import (
    MODULES,
    expert_parameters,
    experts,
    mixture_forward,
    routed,
    shared_expert,
)
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Tensor


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer; only some layers have experts."""
    d, inner = a.hidden_size, a.shared_size
    shared = {
        "shared.gate.weight": (inner, d),
        "shared.in.weight": (inner, d),
        "shared.out.weight": (d, inner),
        "shared.share.weight": (1, d),
    }
    return decoder_parameters(
        a,
        ParameterGroup("layers", attention_parameters(a)),
        ParameterGroup("layers", expert_parameters(a) | shared, only="experts"),
        ParameterGroup("layers", feed_forward_parameters(a), only="dense"),
        ParameterGroup("layers", {"attention.norm": (d,), "feed_forward.norm": (d,)}),
    )


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings."""
    return rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation)


def forward(c: Context) -> tuple[Tensor, Tensor]:
    """One forward pass to the loss; also returns the logits, which the caller holds."""
    return mixture_forward(c, partial(grouped_attention, split=projected), _mixture, both_masks=True)


def _mixture(c: Context, w: dict, hidden: Tensor) -> Tensor:
    """Adds the chosen experts' results and the shared expert's gated result (Qwen2MoeSparseMoeBlock)."""
    t, name = c.tape, "shared expert"
    shared = shared_expert(c, w, hidden)
    _logits, weights, indices = routed(c, w, hidden, raised=True)
    chosen = experts(c, w, hidden, weights, indices)
    shared = t.multiply(t.elementwise(t.linear(hidden, w["shared.share.weight"]), name), shared, name)
    return t.add(chosen, shared)


FAMILY = Family(
    name="qwen2-moe",
    models=("Qwen2-MoE",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    forward_flops=decoder_flops,
    generates=True,
    shares_tables=True,
    modules=lambda a: MODULES,
)
