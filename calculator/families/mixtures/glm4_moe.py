"""GLM-4.5: DeepSeek's mixture, and attention that rotates a part of each head (transformers, models/glm4_moe)."""

from __future__ import annotations

from functools import partial

from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attention_parameters,
    decoder_flops,
    decoder_parameters,
    feed_forward_parameters,
    grouped_attention,
    normed_last,
    rotary_buffer_bytes,
    turned,
)
from calculator.families.family import Family
from calculator.families.mixtures.deepseek import expert_parameters, mixture
from calculator.families.mixtures.mixture import MODULES, mixture_forward
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Tensor, allocated_bytes


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer; the first layers have no experts."""
    norms = {"attention.norm": (a.hidden_size,), "feed_forward.norm": (a.hidden_size,)}
    return decoder_parameters(
        a,
        ParameterGroup("layers", attention_parameters(a)),
        ParameterGroup("layers", expert_parameters(a), only="experts"),
        ParameterGroup("layers", feed_forward_parameters(a), only="dense"),
        ParameterGroup("layers", norms),
    )


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings, and of each router's corrections, which stay in 32 bits."""
    sparse = sum("experts" in a.attention_kind(layer) for layer in range(a.num_layers))
    return rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation) + sparse * allocated_bytes(a.num_experts, 4)


def forward(c: Context) -> tuple[Tensor, Tensor]:
    """One forward pass to the loss; also returns the logits, which the caller holds."""
    split = partial(normed_last, lambda c, x, weight: c.tape.rms_norm(x, weight))
    attention = partial(grouped_attention, split=split, turn=_partly_turned, by_head=True)
    return mixture_forward(c, attention, mixture)


def _partly_turned(c: Context, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose first channels are rotated, joined with the others (glm4_moe, apply_rotary_pos_emb)."""
    t, a = c.tape, c.architecture
    queries, keys = (x.count // a.head_dim * a.rotary_dim for x in (query, key))
    query_first, query_rest = t.part(query, queries), t.part(query, query.count - queries)
    key_first, key_rest = t.part(key, keys), t.part(key, key.count - keys)
    first, other = turned(c, query_first, key_first, cosine, sine)
    first = t.join(first, query_rest, "rotary embedding")
    return first, t.join(other, key_rest, "rotary embedding")


FAMILY = Family(
    name="glm4-moe",
    models=("GLM-4.5",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    forward_flops=decoder_flops,
    generates=True,
    shares_tables=True,
    modules=lambda a: MODULES,
)
