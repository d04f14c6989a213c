"""DeepSeek-V3: latent attention and a mixture of experts (transformers, models/deepseek_v3/modeling_deepseek_v3.py)."""

from __future__ import annotations

from calculator.families.blocks.attention import AttentionShape
from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attend,
    decoder_flops,
    decoder_parameters,
    feed_forward_parameters,
    rotary_buffer_bytes,
    rotated,
)
from calculator.families.family import Family
from calculator.families.mixtures.mixture import experts, mixture_forward, shared_expert
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Storage, Tensor, allocated_bytes


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer; the first layers have no experts."""
    norms = {"attention.norm": (a.hidden_size,), "feed_forward.norm": (a.hidden_size,)}
    return decoder_parameters(
        a,
        ParameterGroup("layers", _attention_parameters(a)),
        ParameterGroup("layers", expert_parameters(a), only="experts"),
        ParameterGroup("layers", feed_forward_parameters(a), only="dense"),
        ParameterGroup("layers", norms),
    )


def _attention_parameters(a: Architecture) -> dict[str, tuple[int, ...]]:
    """Parameters that compress, normalize and expand queries, and keys together with values."""
    d, queries = a.hidden_size, a.num_heads * a.head_dim
    plain = a.head_dim - a.rotary_dim
    shapes: dict[str, tuple[int, ...]] = {}
    if a.query_rank:
        shapes["attention.query.down.weight"] = (a.query_rank, d)
        if a.projection_bias:
            shapes["attention.query.down.bias"] = (a.query_rank,)
        shapes["attention.query.norm"] = (a.query_rank,)
        shapes["attention.query.up.weight"] = (queries, a.query_rank)
    else:
        shapes["attention.query.weight"] = (queries, d)
    shapes["attention.latent.down.weight"] = (a.latent_dim + a.rotary_dim, d)
    if a.projection_bias:
        shapes["attention.latent.down.bias"] = (a.latent_dim + a.rotary_dim,)
    shapes["attention.latent.norm"] = (a.latent_dim,)
    shapes["attention.latent.up.weight"] = (a.num_heads * (plain + a.value_dim), a.latent_dim)
    shapes["attention.out.weight"] = (d, a.num_heads * a.value_dim)
    return shapes | ({"attention.out.bias": (d,)} if a.output_bias else {})


def expert_parameters(a: Architecture) -> dict[str, tuple[int, ...]]:
    """All experts of a layer, the router that chooses among them, and those that compute every token."""
    d, shared = a.hidden_size, a.expert_size * a.shared_experts
    return {
        "experts.in": (a.num_experts, 2 * a.expert_size, d),
        "experts.out": (a.num_experts, d, a.expert_size),
        "router.weight": (a.num_experts, d),
        "shared.gate.weight": (shared, d),
        "shared.in.weight": (shared, d),
        "shared.out.weight": (d, shared),
    }


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings, and of each router's corrections, which no gradient trains."""
    sparse = sum("experts" in a.attention_kind(layer) for layer in range(a.num_layers))
    return rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation) + sparse * allocated_bytes(a.num_experts, itemsize)


def forward(c: Context) -> tuple[Tensor, Tensor]:
    """One forward pass to the loss; also returns the logits, which the caller holds."""
    return mixture_forward(c, _latent_attention, mixture)


# -- latent attention --------------------------------------------------------------------------------------------


def _latent_attention(
    c: Context, w: dict, hidden: Tensor, mask: Tensor | None, cosine: Tensor, sine: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Attention whose keys and values are made of one narrow latent for each token (DeepseekV3Attention)."""
    t, a, tokens = c.tape, c.architecture, c.batch * c.length
    shape = AttentionShape(
        batch=c.batch,
        num_heads=a.num_heads,
        head_dim=a.head_dim,
        queries=c.length,
        keys=c.length,
        value_dim=a.value_dim,
        by_head=True,
    )
    plain = a.head_dim - a.rotary_dim
    states = _by_head(c, _queries(c, w, hidden))
    query, query_turned = t.pieces(states, tokens * a.num_heads * plain, tokens * a.num_heads * a.rotary_dim)
    compressed = t.linear(hidden, w["attention.latent.down.weight"], w.get("attention.latent.down.bias"))
    latent, key_turned = t.pieces(compressed, tokens * a.latent_dim, tokens * a.rotary_dim)
    latent = t.rms_norm(latent, w["attention.latent.norm"])
    turn = _interleaved if a.interleaved else rotated
    query_turned, key_turned = turn(c, query_turned, cosine, sine), turn(c, key_turned, cosine, sine)
    query = t.join(query, query_turned)
    key, value = _expanded(c, w, latent, key_turned, plain)
    attended, weights = attend(c, query, key, value, mask, shape)
    return t.linear(attended, w["attention.out.weight"], w.get("attention.out.bias")), weights


def _queries(c: Context, w: dict, hidden: Tensor) -> Tensor:
    t = c.tape
    if not c.architecture.query_rank:
        return t.linear(hidden, w["attention.query.weight"])
    low = t.linear(hidden, w["attention.query.down.weight"], w.get("attention.query.down.bias"))
    normed = t.rms_norm(low, w["attention.query.norm"])
    del low
    return t.linear(normed, w["attention.query.up.weight"])


def _by_head(c: Context, x: Tensor) -> Tensor:
    """A view head by head, whose gradient is copied back to lie token by token."""
    return c.tape.view(x) if c.architecture.num_heads > 1 and c.length > 1 else x


def _interleaved(c: Context, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of neighbouring channels, with the first halves of the tables
    (apply_rotary_pos_emb_interleave)."""
    t, name = c.tape, "rotary embedding"
    cosine, sine = (Tensor(table.storage, table.count // 2, table.itemsize) for table in (cosine, sine))
    even, odd = t.part(x, x.count // 2), t.part(x, x.count // 2)
    first = t.subtract(t.multiply(even, cosine, name), t.multiply(odd, sine, name), name)
    second = t.add(t.multiply(odd, cosine, name), t.multiply(even, sine, name), name)
    return t.join(first, second, name)


def _expanded(c: Context, w: dict, latent: Tensor, turned: Tensor, plain: int) -> tuple[Tensor, Tensor]:
    """Keys and values of all heads (expand_kv); the rotated channels of keys are the same for all heads."""
    t, a = c.tape, c.architecture
    rows = c.batch * c.length * a.num_heads
    states = _by_head(c, t.linear(latent, w["attention.latent.up.weight"]))
    key, value = t.pieces(states, rows * plain, rows * a.value_dim)
    turned = t.expanded(turned, a.num_heads)
    whole = t.tensor(rows * a.head_dim, states.itemsize)
    whole = t.written(whole, key, "keys")
    return t.written(whole, turned, "keys"), value


# -- experts -----------------------------------------------------------------------------------------------------


def mixture(c: Context, w: dict, hidden: Tensor) -> Tensor:
    """The sum of the chosen experts and of the shared ones, which compute every token (DeepseekV3MoE)."""
    _logits, weights, indices = _routed(c, w, hidden)
    chosen = experts(c, w, hidden, weights, indices)
    return c.tape.add(chosen, shared_expert(c, w, hidden))


def _routed(c: Context, w: dict, hidden: Tensor) -> tuple[Tensor, Tensor, Storage]:
    """Logits of all experts, and the weights and indices of each token's experts (DeepseekV3TopkRouter)."""
    t, a = c.tape, c.architecture
    tokens, chosen = c.batch * c.length, c.batch * c.length * a.experts_per_token
    logits = t.linear(t.cast(hidden, 4, "router"), t.weight_in_32_bits(w["router.weight"], "router"))
    scores = t.elementwise(logits, "choosing experts")
    # Names with an underscore are not read: they keep memory alive as long as the variables of the real code.
    _corrected = t.new(tokens * a.num_experts, 4)
    values, _best = t.new(2 * tokens * a.expert_groups, 4), t.new(2 * tokens * a.expert_groups, 8)
    _group_scores = t.new(tokens * a.expert_groups, 4)
    del values
    _open = t.new(tokens * a.open_groups, 8)
    _groups = t.new(tokens * a.expert_groups, 4)
    _mask = t.new(tokens * a.num_experts, 4)
    bits = (t.new(tokens * a.num_experts, 1), t.new(tokens * a.num_experts, 1))
    _masked = t.new(tokens * a.num_experts, 4)
    del bits, _corrected
    best = t.new(chosen, 4)
    indices = t.new(chosen, 8)
    del best
    weights = t.gathered(scores, chosen, indices, "choosing experts")
    if a.scaled_choice:
        weights = _scaled(c, weights, tokens)
    return logits, t.scale(weights, "choosing experts"), indices


def _scaled(c: Context, weights: Tensor, tokens: int) -> Tensor:
    """The weights of a token's experts divided by their sum, which autocast computes in 32 bits."""
    t, name = c.tape, "choosing experts"
    total = t.add_constant(t.summed(weights, tokens, name, itemsize=4), name)
    return t.divided(weights, total, name)


MODULES = {
    "attention.query.down": "q_a_proj",
    "attention.query.up": "q_b_proj",
    "attention.query": "q_proj",
    "attention.latent.down": "kv_a_proj_with_mqa",
    "attention.latent.up": "kv_b_proj",
    "attention.out": "o_proj",
}
"""Our names of the linear modules that may have an adapter, and those of transformers."""


FAMILY = Family(
    name="deepseek",
    models=("DeepSeek-V3",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    forward_flops=decoder_flops,
    generates=True,
    shares_tables=True,
    modules=lambda a: MODULES,
    liger=True,
)
