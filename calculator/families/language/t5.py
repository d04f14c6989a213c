"""T5, v1.0 and v1.1 (transformers, models/t5/modeling_t5.py, T5ForConditionalGeneration)."""

from __future__ import annotations

from calculator.families.blocks.attention import AttentionShape, eager_attention, fused_attention
from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import with_gradient
from calculator.families.blocks.losses import token_loss
from calculator.families.family import Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Tensor, rounded


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer of each stack."""
    d, f, inner = a.hidden_size, a.intermediate_size, a.num_heads * a.head_dim
    table = (a.relative_buckets, a.num_heads)
    attention = {
        "query": (inner, d),
        "key": (inner, d),
        "value": (inner, d),
        "out": (d, inner),
        "norm": (d,),
    }
    feed_forward = ({"gate": (f, d)} if a.gated else {}) | {"in": (f, d), "out": (d, f), "norm": (d,)}
    encoder = {f"attention.{name}": shape for name, shape in attention.items()}
    decoder = encoder | {f"cross_attention.{name}": shape for name, shape in attention.items()}
    feed_forward = {f"feed_forward.{name}": shape for name, shape in feed_forward.items()}
    last = {"decoder.norm": (d,)} | ({} if a.tied_embeddings else {"head.weight": (a.vocab_size, d)})
    return [
        ParameterGroup("", {"embedding.tokens": (a.vocab_size, d), "attention.encoder.relative_bias": table}),
        ParameterGroup("encoder", encoder | feed_forward),
        ParameterGroup("", {"encoder.norm": (d,), "attention.decoder.relative_bias": table}),
        ParameterGroup("decoder", decoder | feed_forward),
        ParameterGroup("", last),
    ]


def forward(c: Context) -> tuple[Tensor, Tensor]:
    """One forward pass to the loss; also returns the logits, which the caller holds."""
    t = c.tape
    encoded = _encoder(c)
    shifted = t.tensor(c.batch * c.target_length, 8)
    decoded = _decoder(c, encoded, shifted)
    hidden = t.scale(decoded, "scaling the decoder's output") if c.architecture.tied_embeddings else decoded
    logits = t.linear(hidden, c.weights.get("head.weight", c.weights["embedding.tokens"]), name="output head")
    return token_loss(c, logits), logits


def _encoder(c: Context) -> Tensor:
    t = c.tape
    embedded = with_gradient(c, t.embedding(c.weights["embedding.tokens"], c.batch * c.length))
    hidden = t.dropout(embedded, c.dropout)
    bias = None
    for layer in c.stacks["encoder"]:
        hidden, own_bias, _none = c.run(layer, _encoder_block, hidden, bias)
        bias = own_bias
    t.enter("between")
    return t.dropout(t.t5_norm(hidden, c.weights["encoder.norm"]), c.dropout)


def _decoder(c: Context, encoded: Tensor, tokens: Tensor) -> Tensor:
    t = c.tape
    embedded = with_gradient(c, t.embedding(c.weights["embedding.tokens"], c.batch * c.target_length, tokens.storage))
    mask = None if c.fused_attention else t.tensor(c.batch * c.target_length**2, embedded.itemsize)
    hidden = t.dropout(embedded, c.dropout)
    bias = cross_bias = None
    for layer in c.stacks["decoder"]:
        hidden, own_bias, own_cross_bias = c.run(layer, _decoder_block, hidden, mask, bias, encoded, cross_bias)
        bias, cross_bias = own_bias, own_cross_bias
    t.enter("head")
    return t.dropout(t.t5_norm(hidden, c.weights["decoder.norm"]), c.dropout)


def _encoder_block(c: Context, w: dict, hidden: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, None]:
    bound: list[Tensor] = []
    hidden, bias, _weights = _self_attention(c, w, hidden, None, bias, "encoder", c.length)
    hidden = _clamped(c, hidden, bound)
    return _clamped(c, _feed_forward_layer(c, w, hidden), bound), bias, None


def _decoder_block(
    c: Context,
    w: dict,
    hidden: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    encoded: Tensor,
    cross_bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    bound: list[Tensor] = []
    hidden, bias, _weights = _self_attention(c, w, hidden, mask, bias, "decoder", c.target_length)
    hidden = _clamped(c, hidden, bound)
    hidden, cross_bias, _weights = _cross_attention(c, w, hidden, encoded, cross_bias)
    hidden = _clamped(c, hidden, bound)
    return _clamped(c, _feed_forward_layer(c, w, hidden), bound), bias, cross_bias


def _clamped(c: Context, hidden: Tensor, bound: list[Tensor]) -> Tensor:
    """Clamps float16 values, which could overflow; under autocast, 32-bit weights make the residual stream 32-bit.

    `bound` is the variable in which the code of transformers holds the bound until the block ends.
    """
    return c.tape.clamp(hidden, bound) if c.half == "fp16" and hidden.itemsize == 2 else hidden


def _self_attention(
    c: Context, w: dict, hidden: Tensor, mask: Tensor | None, bias: Tensor | None, stack: str, length: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    t = c.tape
    normed = t.t5_norm(hidden, w["attention.norm"])
    attended, bias, weights = _attention(c, w, "attention", normed, normed, length, length, mask, bias, stack)
    return t.add(hidden, t.dropout(attended, c.dropout)), bias, weights


def _cross_attention(
    c: Context, w: dict, hidden: Tensor, encoded: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    t = c.tape
    normed = t.t5_norm(hidden, w["cross_attention.norm"])
    attended, bias, weights = _attention(
        c, w, "cross_attention", normed, encoded, c.target_length, c.length, None, bias, ""
    )
    return t.add(hidden, t.dropout(attended, c.dropout)), bias, weights


def _attention(
    c: Context,
    w: dict,
    part: str,
    hidden: Tensor,
    source: Tensor,
    queries: int,
    keys: int,
    mask: Tensor | None,
    bias: Tensor | None,
    stack: str,
) -> tuple[Tensor, Tensor, Tensor | None]:
    t, a = c.tape, c.architecture
    shape = AttentionShape(batch=c.batch, num_heads=a.num_heads, head_dim=a.head_dim, queries=queries, keys=keys)
    query = t.linear(hidden, w[f"{part}.query"])
    key = t.linear(source, w[f"{part}.key"])
    value = t.linear(source, w[f"{part}.value"])
    if not c.fused_attention:
        query = t.view(query)
        key = t.view(key) if c.batch > 1 else key
        value = t.view(value)
    if bias is None:
        bias = _relative_bias(c, shape, stack) if stack else _no_bias(c, shape, query.itemsize)
    if c.fused_attention:
        combined = bias
        if stack == "decoder":
            _causal = t.new(queries * keys, 1)  # lives until the bias is copied
            combined = t.where(bias, _causal, "attention mask")
        if stack and a.num_heads > 1 and queries * keys > 1:  # otherwise it already has the kernel's memory order
            combined = t.copy(combined, "attention bias")
        _causal = None
        attended = fused_attention(t, query, key, value, shape, dropout=c.attention_dropout, bias=combined)
        weights = None
        del combined
    else:
        attended, weights = eager_attention(
            t,
            query,
            key,
            value,
            shape,
            dropout=c.attention_dropout,
            bias=bias,
            mask_itemsize=mask.itemsize if mask is not None else 0,
        )
    return t.linear(attended, w[f"{part}.out"]), bias, weights


def _relative_bias(c: Context, shape: AttentionShape, stack: str) -> Tensor:
    """The bias that the first layer of a stack computes for all layers: keeps the bucket of each pair of positions.

    Positions and distances live until the bias is computed. Memory is highest where far distances are capped
    (transformers, T5Attention._relative_position_bucket): there the encoder, which looks in both directions, holds one
    matrix more than the decoder.
    """
    t = c.tape
    pairs = shape.queries * shape.keys
    # Names with an underscore are not read: they keep memory alive as long as the variables of the real code.
    _positions = (t.new(shape.queries, 8), t.new(shape.keys, 8))
    _distances = t.new(pairs, 8)
    buckets = t.new(pairs, 8)
    others = 3 if stack == "decoder" else 4
    t.workspace(others * rounded(8 * pairs) + rounded(pairs))
    return t.embedding(c.weights[f"attention.{stack}.relative_bias"], pairs, buckets)


def _no_bias(c: Context, shape: AttentionShape, itemsize: int) -> Tensor:
    """The zeros that cross-attention adds; with checkpointing, the code makes them require a gradient."""
    t = c.tape
    zeros = t.tensor(shape.num_heads * shape.queries * shape.keys, itemsize)
    if any(layer.checkpointed for layer in c.stacks["decoder"]):
        t.require_gradient(zeros)
    return zeros


def _feed_forward_layer(c: Context, w: dict, hidden: Tensor) -> Tensor:
    t = c.tape
    fed = t.t5_norm(hidden, w["feed_forward.norm"])
    fed = _feed_forward(c, w, fed)
    return t.add(hidden, t.dropout(fed, c.dropout))


def _feed_forward(c: Context, w: dict, hidden: Tensor) -> Tensor:
    t, a = c.tape, c.architecture
    if a.gated:
        gate = t.activation(t.linear(hidden, w["feed_forward.in"]), a.activation)
        linear = t.linear(hidden, w["feed_forward.gate"])
        hidden = t.multiply(gate, linear, "gate")
    else:
        hidden = t.linear(hidden, w["feed_forward.in"])
        hidden = t.activation(hidden, a.activation)
    hidden = t.dropout(hidden, c.dropout)
    hidden = t.cast(hidden, w["feed_forward.out"].itemsize, "casting to the weight's precision")
    return t.linear(hidden, w["feed_forward.out"])


MODULES = {
    "attention.query": "SelfAttention.q",
    "attention.key": "SelfAttention.k",
    "attention.value": "SelfAttention.v",
    "attention.out": "SelfAttention.o",
    "cross_attention.query": "EncDecAttention.q",
    "cross_attention.key": "EncDecAttention.k",
    "cross_attention.value": "EncDecAttention.v",
    "cross_attention.out": "EncDecAttention.o",
    "feed_forward.in": "wi",
    "feed_forward.out": "wo",
}
"""Our names of the linear modules that may have an adapter, and those of transformers."""
GATED_MODULES = MODULES | {"feed_forward.in": "wi_0", "feed_forward.gate": "wi_1"}


FAMILY = Family(
    name="t5",
    models=("T5",),
    parameters=parameters,
    forward=forward,
    modules=lambda a: GATED_MODULES if a.gated else MODULES,
    in_32_bits=frozenset({"feed_forward.out"}),
    auto_class="AutoModelForSeq2SeqLM",
    layers="[*model.encoder.block, *model.decoder.block]",
)
