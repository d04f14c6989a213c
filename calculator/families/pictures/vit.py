"""Vision transformers that classify pictures (transformers, models/vit/modeling_vit.py, ViTForImageClassification).

A picture is cut into patches, each of which a convolution turns into a token; one more token stands for its class.
"""

from __future__ import annotations

from calculator.families.blocks.attention import AttentionShape, eager_attention, fused_attention
from calculator.families.blocks.context import Context
from calculator.families.blocks.losses import token_loss
from calculator.families.family import Batch, Family
from calculator.models.architecture import Architecture, ParameterGroup, ParameterTensor
from calculator.tape.autograd import Tensor, allocated_bytes


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer."""
    d, f, inner = a.hidden_size, a.intermediate_size, a.num_heads * a.head_dim
    first = {
        "patches.class": (1, 1, d),
        "patches.positions": (1, a.max_positions, d),
        "patches.weight": (d, a.channels, a.patch_size, a.patch_size),
        "patches.bias": (d,),
    }
    layer: dict[str, tuple[int, ...]] = {}
    for name in ("query", "key", "value"):
        layer[f"attention.{name}.weight"] = (inner, d)
        if a.projection_bias:
            layer[f"attention.{name}.bias"] = (inner,)
    layer |= {
        "attention.out.weight": (d, inner),
        "attention.out.bias": (d,),
        "attention.norm.weight": (d,),
        "attention.norm.bias": (d,),
        "feed_forward.norm.weight": (d,),
        "feed_forward.norm.bias": (d,),
        "feed_forward.in.weight": (f, d),
        "feed_forward.in.bias": (f,),
        "feed_forward.out.weight": (d, f),
        "feed_forward.out.bias": (d,),
    }
    last = {
        "norm.weight": (d,),
        "norm.bias": (d,),
        "head.weight": (a.num_labels, d),
        "head.bias": (a.num_labels,),
    }
    # The order is the model's: an optimizer that loops over tensors holds temporaries of two neighbours.
    return [ParameterGroup("", first), ParameterGroup("layers", layer), ParameterGroup("", last)]


def forward(c: Context) -> tuple[Tensor, Tensor]:
    """One forward pass to the loss; also returns the logits, which the caller holds."""
    t, w = c.tape, c.weights
    hidden = _body(c)
    chosen = t.part(hidden, c.batch * c.architecture.hidden_size)
    logits = t.linear(chosen, w["head.weight"], w["head.bias"], "output head")
    return token_loss(c, logits), logits


def _body(c: Context) -> Tensor:
    t, w = c.tape, c.weights
    pixels = _pixels(c)
    hidden = _embeddings(c, pixels)
    # Two variables of the real code keep these and the pixels until its function ends.
    _embedded = hidden
    for layer in c.stacks["layers"]:
        hidden = c.run(layer, _block, hidden)
    t.enter("head")
    return t.layer_norm(hidden, w["norm.weight"], w["norm.bias"])


def _pixels(c: Context) -> Tensor:
    """Pictures in the precision of the model; their processor makes them in 32 bits."""
    a = c.architecture
    pixels = Tensor(None, c.batch * a.channels * a.image_height * a.image_width, 4)
    return c.tape.cast(pixels, c.weights["patches.weight"].itemsize, "pixels")


def _embeddings(c: Context, pixels: Tensor) -> Tensor:
    t, w = c.tape, c.weights
    patches = t.patches(pixels, w["patches.weight"], w["patches.bias"], c.batch * (c.length - 1))
    first = w["patches.class"]
    if c.batch > 1:
        first = t.expanded(first, c.batch)
    hidden = t.join(first, patches, "class token")
    del patches, first
    hidden = t.add(hidden, w["patches.positions"], "position embedding")
    return t.dropout(hidden, c.dropout)


def _block(c: Context, w: dict, hidden: Tensor) -> Tensor:
    t = c.tape
    residual = hidden
    hidden = t.layer_norm(hidden, w["attention.norm.weight"], w["attention.norm.bias"])
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    hidden, _weights = _attention(c, w, hidden)
    hidden = t.dropout(hidden, c.dropout)
    hidden = t.add(hidden, residual)
    residual = hidden
    hidden = t.layer_norm(hidden, w["feed_forward.norm.weight"], w["feed_forward.norm.bias"])
    hidden = _feed_forward(c, w, hidden)
    hidden = t.dropout(hidden, c.dropout)
    return t.add(hidden, residual)


def _attention(c: Context, w: dict, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    t, a = c.tape, c.architecture
    shape = AttentionShape(batch=c.batch, num_heads=a.num_heads, head_dim=a.head_dim, queries=c.length, keys=c.length)
    query, key, value = (
        t.linear(hidden, w[f"attention.{name}.weight"], w.get(f"attention.{name}.bias"))
        for name in ("query", "key", "value")
    )
    if c.fused_attention:
        attended, weights = fused_attention(t, query, key, value, shape, dropout=c.attention_dropout), None
    else:
        key = t.view(key) if c.batch > 1 else key
        attended, weights = eager_attention(
            t, t.view(query), key, t.view(value), shape, dropout=c.attention_dropout, raised=True,
            weights_itemsize=query.itemsize,
        )  # fmt: skip
    return t.linear(attended, w["attention.out.weight"], w["attention.out.bias"]), weights


def _feed_forward(c: Context, w: dict, hidden: Tensor) -> Tensor:
    t = c.tape
    hidden = t.linear(hidden, w["feed_forward.in.weight"], w["feed_forward.in.bias"])
    hidden = t.activation(hidden, c.architecture.activation)
    return t.linear(hidden, w["feed_forward.out.weight"], w["feed_forward.out.bias"])


def _input_bytes(a: Architecture, batch: Batch) -> int:
    """Bytes of pictures, in 32 bits, and of their labels."""
    pixels = a.channels * a.image_height * a.image_width
    return allocated_bytes(batch.samples * pixels, 4) + allocated_bytes(batch.samples, 8)


def _more_gradient_bytes(a: Architecture, samples: int, itemsize: int) -> int:
    """Bytes of the gradients of all tokens, which PyTorch keeps along with the class token's gradient for a single
    picture."""
    if samples > 1:
        return 0
    tokens = a.sequence_length * a.hidden_size
    return allocated_bytes(tokens, itemsize) - allocated_bytes(a.hidden_size, itemsize)


def _flops(a: Architecture, tensors: tuple[ParameterTensor, ...], length: int) -> int:
    """Operations of a forward pass: every token sees every other, and only the class token is classified."""
    shapes = [tensor for tensor in tensors if len(tensor.shape) >= 2]
    layers = sum(tensor.copies * tensor.count for tensor in shapes if tensor.part in ("attention", "feed-forward"))
    patches = a.hidden_size * a.channels * a.patch_size**2 * (a.sequence_length - 1)
    pairs = a.num_layers * a.sequence_length**2
    return 2 * (layers * a.sequence_length + patches + a.num_labels * a.hidden_size) + (
        4 * a.num_heads * a.head_dim * pairs
    )


MODULES = {
    "attention.query": "attention.q_proj",
    "attention.key": "attention.k_proj",
    "attention.value": "attention.v_proj",
    "attention.out": "attention.o_proj",
    "feed_forward.in": "mlp.fc1",
    "feed_forward.out": "mlp.fc2",
    "head": "classifier",
}
"""Our names of the linear modules that may have an adapter, and those of transformers."""


FAMILY = Family(
    name="vit",
    models=("ViT",),
    parameters=parameters,
    forward=forward,
    position_table=True,
    input_bytes=_input_bytes,
    forward_flops=_flops,
    more_gradient_bytes=_more_gradient_bytes,
    modules=lambda a: MODULES,
)
