"""BERT with its masked-language head (transformers, models/bert/modeling_bert.py, BertForMaskedLM)."""

from __future__ import annotations

from calculator.families.blocks.attention import AttentionShape, eager_attention, fused_attention
from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import with_gradient
from calculator.families.blocks.losses import token_loss
from calculator.families.family import Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Tensor, allocated_bytes


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    d, f = a.hidden_size, a.intermediate_size
    first = {
        "embedding.tokens": (a.vocab_size, d),
        "embedding.positions": (a.max_positions, d),
        "embedding.types": (a.token_types, d),
        "embedding.norm.weight": (d,),
        "embedding.norm.bias": (d,),
    }
    last = {
        "head.bias": (a.vocab_size,),
        "head.transform.weight": (d, d),
        "head.transform.bias": (d,),
        "head.norm.weight": (d,),
        "head.norm.bias": (d,),
    }
    layer = {
        "attention.query.weight": (d, d),
        "attention.query.bias": (d,),
        "attention.key.weight": (d, d),
        "attention.key.bias": (d,),
        "attention.value.weight": (d, d),
        "attention.value.bias": (d,),
        "attention.out.weight": (d, d),
        "attention.out.bias": (d,),
        "attention.norm.weight": (d,),
        "attention.norm.bias": (d,),
        "feed_forward.in.weight": (f, d),
        "feed_forward.in.bias": (f,),
        "feed_forward.out.weight": (d, f),
        "feed_forward.out.bias": (d,),
        "feed_forward.norm.weight": (d,),
        "feed_forward.norm.bias": (d,),
    }
    return [ParameterGroup("", first), ParameterGroup("layers", layer), ParameterGroup("", last)]


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the ids of positions and of token types, 64-bit integers."""
    return 2 * allocated_bytes(a.max_positions, 8)


def forward(c: Context) -> tuple[Tensor, Tensor]:
    """One forward pass to the loss; also returns the logits, which the caller holds."""
    hidden = _body(c)
    logits = _head(c, hidden)
    return token_loss(c, logits), logits


def _body(c: Context) -> Tensor:
    hidden = _embedded = _embeddings(c)  # the second name is that of a variable of transformers' BertModel
    for layer in c.stacks["layers"]:
        hidden = c.run(layer, _block, hidden)
    c.tape.enter("head")
    return hidden


def _embeddings(c: Context) -> Tensor:
    t, w = c.tape, c.weights
    types = t.tensor(c.length, 8)
    tokens = with_gradient(c, t.embedding(w["embedding.tokens"], c.batch * c.length))
    embedded_types = t.embedding(w["embedding.types"], c.batch * c.length, types.storage)
    hidden = t.add(tokens, embedded_types, "token type embedding")
    positions = t.embedding(w["embedding.positions"], c.length)
    hidden = t.add(hidden, positions, "position embedding")
    hidden = t.layer_norm(hidden, w["embedding.norm.weight"], w["embedding.norm.bias"])
    return t.dropout(hidden, c.dropout)


def _head(c: Context, hidden: Tensor) -> Tensor:
    t, w = c.tape, c.weights
    hidden = t.linear(hidden, w["head.transform.weight"], w["head.transform.bias"])
    hidden = t.activation(hidden, c.architecture.activation)
    hidden = t.layer_norm(hidden, w["head.norm.weight"], w["head.norm.bias"])
    return t.linear(hidden, w["embedding.tokens"], w["head.bias"], "output head")


def _block(c: Context, w: dict, hidden: Tensor) -> Tensor:
    t = c.tape
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    attended, _weights = _attention(c, w, hidden)
    attended = _add_and_norm(c, w, "attention", attended, hidden)
    fed = t.linear(attended, w["feed_forward.in.weight"], w["feed_forward.in.bias"])
    fed = t.activation(fed, c.architecture.activation)
    return _add_and_norm(c, w, "feed_forward", fed, attended)


def _attention(c: Context, w: dict, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    t = c.tape
    shape = AttentionShape(
        batch=c.batch,
        num_heads=c.architecture.num_heads,
        head_dim=c.architecture.head_dim,
        queries=c.length,
        keys=c.length,
    )
    query = t.linear(hidden, w["attention.query.weight"], w["attention.query.bias"])
    key = t.linear(hidden, w["attention.key.weight"], w["attention.key.bias"])
    value = t.linear(hidden, w["attention.value.weight"], w["attention.value.bias"])
    if c.fused_attention:
        return fused_attention(t, query, key, value, shape, dropout=c.attention_dropout), None
    key = t.view(key) if c.batch > 1 else key
    return eager_attention(t, t.view(query), key, t.view(value), shape, dropout=c.attention_dropout)


def _add_and_norm(c: Context, w: dict, part: str, hidden: Tensor, residual: Tensor) -> Tensor:
    t = c.tape
    hidden = t.linear(hidden, w[f"{part}.out.weight"], w[f"{part}.out.bias"])
    hidden = t.dropout(hidden, c.dropout)
    return t.layer_norm(t.add(hidden, residual), w[f"{part}.norm.weight"], w[f"{part}.norm.bias"])


MODULES = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.out": "attention.output.dense",
    "feed_forward.in": "intermediate.dense",
    "feed_forward.out": "output.dense",
    "head.transform": "transform.dense",
}
"""Our names of the linear modules that may have an adapter, and those of transformers."""


FAMILY = Family(
    name="bert",
    models=("BERT",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    position_table=True,
    modules=lambda a: MODULES,
    holds_embeddings=True,
    auto_class="AutoModelForMaskedLM",
    layers="model.bert.encoder.layer",
)
