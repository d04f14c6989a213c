"""GPT-J (transformers, models/gptj/modeling_gptj.py, GPTJForCausalLM)."""

from __future__ import annotations

from calculator.families.blocks.attention import AttentionShape, attention_scores, weighted_sum
from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import decoder_flops, with_gradient
from calculator.families.blocks.losses import head_and_loss
from calculator.families.family import Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Tensor, allocated_bytes


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    d, f = a.hidden_size, a.intermediate_size
    last = {"norm.weight": (d,), "norm.bias": (d,)}
    if not a.tied_embeddings:
        last["head.weight"] = (a.vocab_size, d)
    last["head.bias"] = (a.vocab_size,)
    layer = {
        "norm.weight": (d,),
        "norm.bias": (d,),
        "attention.key.weight": (d, d),
        "attention.value.weight": (d, d),
        "attention.query.weight": (d, d),
        "attention.out.weight": (d, d),
        "feed_forward.in.weight": (f, d),
        "feed_forward.in.bias": (f,),
        "feed_forward.out.weight": (d, f),
        "feed_forward.out.bias": (d,),
    }
    first = {"embedding.tokens": (a.vocab_size, d)}
    return [ParameterGroup("", first), ParameterGroup("layers", layer), ParameterGroup("", last)]


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of sine and cosine of every position, in 32 bits, in each layer."""
    return a.num_layers * allocated_bytes(a.max_positions * a.rotary_dim, 4)


def forward(c: Context) -> tuple[Tensor, Tensor | None]:
    """One forward pass to the loss; also returns the logits, which the caller holds, if there are all at once."""
    return head_and_loss(c, _body(c))


def _body(c: Context) -> Tensor:
    t = c.tape
    embedded = with_gradient(c, t.embedding(c.weights["embedding.tokens"], c.batch * c.length))
    positions = t.tensor(c.length, 8)
    mask = t.tensor(c.batch * c.length**2, embedded.itemsize)
    hidden = t.dropout(embedded, c.dropout)
    for layer in c.stacks["layers"]:
        # As in transformers' loop, `outputs` holds this block's attention weights while the next block runs.
        outputs = c.run(layer, _block, hidden, mask, positions)
        hidden = outputs[0]
    t.enter("head")
    return t.layer_norm(hidden, c.weights["norm.weight"], c.weights["norm.bias"])


def _block(c: Context, w: dict, hidden: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    t = c.tape
    residual = hidden
    hidden = t.layer_norm(hidden, w["norm.weight"], w["norm.bias"])
    attended, weights = _attention(c, w, hidden, mask)
    fed = t.linear(hidden, w["feed_forward.in.weight"], w["feed_forward.in.bias"])
    fed = t.activation(fed, c.architecture.activation)
    fed = t.linear(fed, w["feed_forward.out.weight"], w["feed_forward.out.bias"])
    fed = t.dropout(fed, c.dropout)
    return t.add(t.add(attended, fed), residual), weights


def _attention(c: Context, w: dict, hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    t, a = c.tape, c.architecture
    shape = AttentionShape(batch=c.batch, num_heads=a.num_heads, head_dim=a.head_dim, queries=c.length, keys=c.length)
    query = t.linear(hidden, w["attention.query.weight"])
    key = t.linear(hidden, w["attention.key.weight"])
    value = t.view(t.linear(hidden, w["attention.value.weight"]))

    rotated = a.rotary_dim
    # Names with an underscore are not read: they keep memory alive as long as the variables of the real code.
    _table = t.tensor(a.max_positions * rotated, 4)
    _indices = t.tensor(c.length * rotated, 8)
    _angles = t.cast(t.tensor(c.length * rotated, _table.itemsize), key.itemsize)
    turned = query.count // a.head_dim * rotated
    key_turned, key_rest = t.part(key, turned), t.part(key, key.count - turned)
    query_turned, query_rest = t.part(query, turned), t.part(query, query.count - turned)
    key_turned = _rotate(c, key_turned, rotated)
    query_turned = _rotate(c, query_turned, rotated)
    key = t.join(key_turned, key_rest)
    query = t.join(query_turned, query_rest)

    attended, weights = _attend(c, query, key, value, mask, shape)
    attended = t.linear(attended, w["attention.out.weight"])
    return t.dropout(attended, c.dropout), weights


def _rotate(c: Context, x: Tensor, rotated: int) -> Tensor:
    """Rotary embedding of neighbouring channels (apply_rotary_pos_emb): each call keeps its own sine and cosine."""
    t = c.tape
    sine, cosine = (t.tensor(c.length * rotated, x.itemsize) for _ in range(2))
    first = t.multiply(x, cosine, "rotary embedding")
    odd, even = t.part(x, x.count // 2), t.part(x, x.count // 2)
    swapped = t.join(t.scale(even, "rotary embedding"), odd, "rotary embedding")
    return t.add(first, t.multiply(swapped, sine, "rotary embedding"), "rotary embedding")


def _attend(
    c: Context, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, shape: AttentionShape
) -> tuple[Tensor, Tensor]:
    """Attention on queries and keys cast to 32 bits, which autocast casts back to 16 bits (GPTJAttention._attn)."""
    t = c.tape
    query = t.cast(query, 4, "casting queries and keys to 32 bit")
    key = t.cast(key, 4, "casting queries and keys to 32 bit")
    weights = attention_scores(t, query, key, shape)
    weights = t.scale(weights, "attention scores")
    weights = t.add_constant(weights, "attention mask", mask.itemsize)
    weights = t.softmax(weights)
    weights = t.cast(weights, value.itemsize, "casting the attention weights")
    weights = t.dropout(weights, c.attention_dropout)
    return weighted_sum(t, weights, value, shape), weights


MODULES = {
    "attention.query": "q_proj",
    "attention.key": "k_proj",
    "attention.value": "v_proj",
    "attention.out": "out_proj",
    "feed_forward.in": "fc_in",
    "feed_forward.out": "fc_out",
}
"""Our names of the linear modules that may have an adapter, and those of transformers."""


FAMILY = Family(
    name="gptj",
    models=("GPT-J",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    position_table=True,
    forward_flops=decoder_flops,
    generates=True,
    modules=lambda a: MODULES,
    layers="model.transformer.h",
)
