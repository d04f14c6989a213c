"""GPT-2, GPT-3 and DALL-E as a dense decoder (transformers, models/gpt2/modeling_gpt2.py, GPT2LMHeadModel)."""

from __future__ import annotations

from calculator.families.blocks.attention import AttentionShape, eager_attention, fused_attention
from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import decoder_flops, with_gradient
from calculator.families.blocks.losses import head_and_loss
from calculator.families.family import Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Tensor


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    d, f = a.hidden_size, a.intermediate_size
    first = {"embedding.tokens": (a.vocab_size, d), "embedding.positions": (a.max_positions, d)}
    last = {"norm.weight": (d,), "norm.bias": (d,)}
    if not a.tied_embeddings:
        last["head.weight"] = (a.vocab_size, d)
    layer = {
        "attention.norm.weight": (d,),
        "attention.norm.bias": (d,),
        "attention.qkv.weight": (d, 3 * d),
        "attention.qkv.bias": (3 * d,),
        "attention.out.weight": (d, d),
        "attention.out.bias": (d,),
        "feed_forward.norm.weight": (d,),
        "feed_forward.norm.bias": (d,),
        "feed_forward.in.weight": (d, f),
        "feed_forward.in.bias": (f,),
        "feed_forward.out.weight": (f, d),
        "feed_forward.out.bias": (d,),
    }
    return [ParameterGroup("", first), ParameterGroup("layers", layer), ParameterGroup("", last)]


def forward(c: Context) -> tuple[Tensor, Tensor | None]:
    """One forward pass to the loss; also returns the logits, which the caller holds, if there are all at once."""
    return head_and_loss(c, _body(c))


def _body(c: Context) -> Tensor:
    t = c.tape
    tokens = with_gradient(c, t.embedding(c.weights["embedding.tokens"], c.batch * c.length))
    positions = t.tensor(c.length, 8)
    embedded_positions = t.embedding(c.weights["embedding.positions"], c.length, positions.storage)
    hidden = t.add(tokens, embedded_positions, "position embedding")
    mask = None if c.fused_attention else t.tensor(c.batch * c.length**2, hidden.itemsize)
    hidden = t.dropout(hidden, c.dropout)
    for layer in c.stacks["layers"]:
        hidden = c.run(layer, _block, hidden, mask, positions)
    t.enter("head")
    return t.layer_norm(hidden, c.weights["norm.weight"], c.weights["norm.bias"])


def _block(c: Context, w: dict, hidden: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
    t = c.tape
    residual = hidden
    hidden = t.layer_norm(hidden, w["attention.norm.weight"], w["attention.norm.bias"])
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    attended, _weights = _attention(c, w, hidden, mask)
    hidden = t.add(attended, residual)
    residual = hidden
    hidden = t.layer_norm(hidden, w["feed_forward.norm.weight"], w["feed_forward.norm.bias"])
    fed = _feed_forward(c, w, hidden)
    return t.add(residual, fed)


def _attention(c: Context, w: dict, hidden: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    t = c.tape
    query, key, value = t.split(t.addmm(hidden, w["attention.qkv.weight"], w["attention.qkv.bias"]), 3)
    shape = AttentionShape(
        batch=c.batch,
        num_heads=c.architecture.num_heads,
        head_dim=c.architecture.head_dim,
        queries=c.length,
        keys=c.length,
    )
    if mask is None:
        attended = fused_attention(t, query, key, value, shape, dropout=c.attention_dropout, causal=c.length > 1)
        weights = None
    else:
        attended, weights = eager_attention(
            t,
            t.view(query),
            key,
            t.view(value),
            shape,
            dropout=c.attention_dropout,
            mask_itemsize=mask.itemsize,
            weights_itemsize=value.itemsize,
        )
    attended = t.addmm(attended, w["attention.out.weight"], w["attention.out.bias"])
    return t.dropout(attended, c.dropout), weights


def _feed_forward(c: Context, w: dict, hidden: Tensor) -> Tensor:
    t = c.tape
    hidden = t.addmm(hidden, w["feed_forward.in.weight"], w["feed_forward.in.bias"])
    hidden = t.activation(hidden, c.architecture.activation)
    hidden = t.addmm(hidden, w["feed_forward.out.weight"], w["feed_forward.out.bias"])
    return t.dropout(hidden, c.dropout)


MODULES = {
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward.in": "mlp.c_fc",
    "feed_forward.out": "mlp.c_proj",
}
"""Our names of the linear modules that may have an adapter, and those of transformers."""


FAMILY = Family(
    name="gpt2",
    models=("GPT-2",),
    parameters=parameters,
    forward=forward,
    position_table=True,
    forward_flops=decoder_flops,
    generates=True,
    modules=lambda a: MODULES,
    input_first=True,
    layers="model.transformer.h",
)
