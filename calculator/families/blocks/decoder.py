"""Parts that today's decoders share: rotary tables, masks, attention with grouped heads, gated feed-forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from calculator.families.blocks.attention import WIDEST_FLASH_HEAD, AttentionShape, eager_attention, fused_attention
from calculator.families.blocks.context import Context
from calculator.families.blocks.losses import head_and_loss
from calculator.models.architecture import Architecture, ParameterGroup, ParameterTensor
from calculator.tape.autograd import Matrix, Tensor, allocated_bytes


def decoder_parameters(a: Architecture, *layers: ParameterGroup, norm_biased: bool = False) -> list[ParameterGroup]:
    """Token embedding, the layers, last norm and output head, in the order of the real model.

    The order matters to the update: an optimizer that loops over tensors holds temporaries of two neighbours.
    """
    last = {"norm": (a.hidden_size,)} | ({"norm.bias": (a.hidden_size,)} if norm_biased else {})
    if not a.tied_embeddings:
        last["head.weight"] = (a.vocab_size, a.hidden_size)
    first = {"embedding.tokens": (a.vocab_size, a.hidden_size)}
    return [ParameterGroup("", first), *layers, ParameterGroup("", last)]


def attention_parameters(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The parameters of grouped attention in one layer, without the layer's norm."""
    d, inner, narrow = a.hidden_size, a.num_heads * a.head_dim, a.key_heads * a.head_dim
    outputs = {"qkv": inner + 2 * narrow} if a.joined_projections else {"query": inner, "key": narrow, "value": narrow}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, width in outputs.items():
        shapes |= _linear(f"attention.{name}", width, d, a.projection_bias)
    out = _linear("attention.out", d, inner, a.output_bias)
    # Phi-3 makes the output's matrix first. The order matters as in `decoder_parameters`.
    shapes = out | shapes if a.joined_projections else shapes | out
    if a.head_norms:
        shapes |= {"attention.query.norm": (a.head_dim,), "attention.key.norm": (a.head_dim,)}
    return shapes


def feed_forward_parameters(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The parameters of a gated feed-forward."""
    d, f = a.hidden_size, a.intermediate_size
    if a.joined_projections:
        return {"feed_forward.in.weight": (2 * f, d), "feed_forward.out.weight": (d, f)}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, rows, columns in (("gate", f, d), ("in", f, d), ("out", d, f)):
        shapes |= _linear(f"feed_forward.{name}", rows, columns, a.feed_forward_bias)
    return shapes


def _linear(name: str, rows: int, columns: int, biased: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (rows, columns)}
    return shapes | {f"{name}.bias": (rows,)} if biased else shapes


def rotary_buffer_bytes(channels: int, *, long: bool = False) -> int:
    """Bytes of the inverse frequencies of rotary embeddings and of their copy, in 32 bits.

    Args:
        channels: Rotated channels of a head.
        long: Whether the first forward pass makes another set for long sequences (transformers, dynamic_rope_update).
    """
    return (3 if long else 2) * allocated_bytes(channels // 2, 4)


def embedded_tokens(c: Context) -> Tensor:
    """Token embeddings."""
    return c.tape.embedding(c.weights["embedding.tokens"], c.batch * c.length)


def usual_tables(c: Context, itemsize: int) -> Callable[[str], tuple[Tensor, Tensor]]:
    """Makes one pair of cosine and sine, which all kinds of layers use."""
    tables = rotary_tables(c, c.architecture.rotary_dim, itemsize)
    return lambda kind: tables


def rms_norm(c: Context, hidden: Tensor) -> Tensor:
    """The norm after the last layer, as Llama's code has it."""
    return c.tape.rms_norm(hidden, c.weights["norm"])


def decoder_forward(
    c: Context,
    block_of: Callable[[str], Callable],
    *,
    embed: Callable[[Context], Tensor] = embedded_tokens,
    dropout: float = 0.0,
    both_masks: bool = False,
    tables_of: Callable[[Context, int], Callable[[str], tuple[Tensor, Tensor]]] = usual_tables,
    norm: Callable[[Context, Tensor], Tensor] = rms_norm,
) -> tuple[Tensor, Tensor | None]:
    """One forward pass to the loss; also returns the logits, which the caller holds, if there are all at once.

    Args:
        c: Sizes, options, and the parameters on a tape.
        block_of: The function that plays a layer, for its kind.
        embed: Makes the embeddings.
        dropout: Probability on the embeddings.
        both_masks: Whether the real code makes the masks of "full" and of "sliding" layers, whichever the model has.
        tables_of: Makes the rotary tables, in a type of so many bytes a value; returns those of a kind of layer.
        norm: Plays the norm after the last layer.
    """
    return head_and_loss(c, _body(c, block_of, embed, dropout, both_masks, tables_of, norm))


def _body(
    c: Context,
    block_of: Callable[[str], Callable],
    embed: Callable,
    dropout: float,
    both_masks: bool,
    tables_of: Callable,
    norm: Callable,
) -> Tensor:
    t = c.tape
    # A variable of the real code keeps the embeddings until its function ends.
    embedded = with_gradient(c, embed(c))
    positions = token_positions(c)
    masks: dict[bool, Tensor | None] = {}
    known = ("full", "sliding") if both_masks else ("full",) if c.architecture.spare_mask else ()
    for kind in (*known, *(layer.kind for layer in c.stacks["layers"])):
        slides = "sliding" in kind
        if slides not in masks:
            masks[slides] = attention_mask(c, slides, embedded.itemsize)
    hidden = t.dropout(embedded, dropout)
    tables = tables_of(c, hidden.itemsize)
    for layer in c.stacks["layers"]:
        cosine, sine = tables(layer.kind)
        hidden = c.run(layer, block_of(layer.kind), hidden, masks["sliding" in layer.kind], cosine, sine, positions)
    t.enter("head")
    return norm(c, hidden)


def token_positions(c: Context) -> Tensor:
    """Positions that all sequences share; those of packs are among the inputs."""
    return Tensor(None, c.batch * c.length, 8) if c.packed else c.tape.tensor(c.length, 8)


def with_gradient(c: Context, hidden: Tensor) -> Tensor:
    """The embedded tokens, which get a gradient of their own if the embedding is frozen and blocks are checkpointed.

    transformers asks for it so that a checkpointed block has an input with a gradient (enable_input_require_grads).
    """
    if hidden.node is None and any(layer.checkpointed for stack in c.stacks.values() for layer in stack):
        c.tape.require_gradient(hidden)
    return hidden


def attention_mask(c: Context, slides: bool, itemsize: int) -> Tensor | None:
    """The mask of one kind of layer (transformers, masking_utils.py).

    Separate operations add one for every sequence. Fused attention needs none, unless a window is not longer than the
    sequence: then it is one of a byte for each pair of tokens, which all sequences share. Packs have such a mask each.
    """
    if not (c.fused_attention and c.architecture.fusable):
        return c.tape.tensor(c.batch * c.length**2, itemsize)
    if c.packed:
        return c.tape.tensor(c.batch * c.length**2, 1)
    if slides and c.length >= c.architecture.sliding_window:
        return c.tape.tensor(c.length**2, 1)
    return None


def rotary_tables(c: Context, channels: int, itemsize: int, *, halves: int = 2) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position, computed in 32 bits (LlamaRotaryEmbedding).

    Args:
        c: Sizes, and the tape.
        channels: Channels of a head that are rotated.
        itemsize: Bytes of a value of the result.
        halves: Copies of each frequency in the tables: 2, one for each channel that it rotates, or 1.
    """
    t = c.tape
    positions = c.batch * c.length if c.packed else c.length
    frequencies = t.tensor(positions * (channels // 2), 4)
    # Names with an underscore are not read: they keep memory alive as long as the variables of the real code.
    _angles = t.join(frequencies, frequencies, "rotary embedding") if halves == 2 else frequencies
    cosine, sine = (_scaled(t.tensor(positions * (channels // 2) * halves, 4), t) for _ in range(2))
    return t.cast(cosine, itemsize, "rotary embedding"), t.cast(sine, itemsize, "rotary embedding")


def _scaled(x: Tensor, t) -> Tensor:
    return t.scale(x, "rotary embedding")


def rotated(c: Context, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embedding of the two halves of all channels of a head (apply_rotary_pos_emb)."""
    t = c.tape
    first = t.multiply(x, cosine, "rotary embedding")
    return t.add(first, t.multiply(_half_turned(c, x), sine, "rotary embedding"), "rotary embedding")


def turned(c: Context, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys after `rotated`."""
    return rotated(c, query, cosine, sine), rotated(c, key, cosine, sine)


def _half_turned(c: Context, x: Tensor) -> Tensor:
    t = c.tape
    half, other = t.part(x, x.count // 2), t.part(x, x.count // 2)
    return t.join(t.scale(other, "rotary embedding"), half, "rotary embedding")


def attention_shape(c: Context, *, by_head: bool) -> AttentionShape:
    """The lengths of self-attention."""
    a = c.architecture
    return AttentionShape(
        batch=c.batch,
        num_heads=a.num_heads,
        head_dim=a.head_dim,
        queries=c.length,
        keys=c.length,
        key_heads=a.num_key_value_heads,
        by_head=by_head,
    )


def grouped_attention(
    c: Context,
    w: dict,
    hidden: Tensor,
    mask: Tensor | None,
    cosine: Tensor | None,
    sine: Tensor | None,
    split: Callable,
    turn: Callable = turned,
    attending: Callable | None = None,
    by_head: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention on rotated queries and keys, where several query heads may share keys and values (LlamaAttention).

    Args:
        c: Sizes and options.
        w: The layer's parameters.
        hidden: Normalized input of the layer.
        mask: See `attention_mask`.
        cosine: See `rotary_tables`; None if the layer rotates nothing.
        sine: Second result of `rotary_tables`; None if the layer rotates nothing.
        split: The function that makes queries, keys and values of the input, such as `projected`.
        turn: The function that rotates queries and keys.
        attending: The function that attends; None: `attend`.
        by_head: Whether the results of `turn` lie in memory as (B, N, T, H).

    Returns:
        The result, and the weights of separate operations, which the code of transformers holds until the layer ends.
    """
    t, shape = c.tape, attention_shape(c, by_head=by_head)
    hidden = t.entered(hidden)
    query, key, value = split(c, w, hidden, shape)
    if cosine is not None:
        query, key = turn(c, query, key, cosine, sine)
    attended, weights = (attending or attend)(c, query, key, value, mask, shape)
    return t.linear(attended, w["attention.out.weight"], w.get("attention.out.bias")), weights


def projected(c: Context, w: dict, hidden: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, viewed head by head, and normalized if the model does so."""
    query = _heads(c, w, "query", hidden, shape.num_heads)
    key = _heads(c, w, "key", hidden, shape.key_heads or shape.num_heads)
    value = c.tape.linear(hidden, w["attention.value.weight"], w.get("attention.value.bias"))
    return query, key, value


def parts_of_one(c: Context, w: dict, hidden: Tensor, shape: AttentionShape) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values as parts of one product (Phi3Attention)."""
    t = c.tape
    joined = t.linear(hidden, w["attention.qkv.weight"])
    keys = shape.batch * shape.keys * (shape.key_heads or shape.num_heads) * shape.head_dim
    return t.part(joined, joined.count - 2 * keys), t.part(joined, keys), t.part(joined, keys)


def normed_last(
    norm: Callable[[Context, Tensor, Matrix], Tensor], c: Context, w: dict, hidden: Tensor, shape: AttentionShape
) -> tuple[Tensor, Tensor, Tensor]:
    """Makes queries, keys and values, and then normalizes queries and keys."""
    t = c.tape
    query = t.linear(hidden, w["attention.query.weight"], w.get("attention.query.bias"))
    key = t.linear(hidden, w["attention.key.weight"], w.get("attention.key.bias"))
    value = t.linear(hidden, w["attention.value.weight"], w.get("attention.value.bias"))
    if c.architecture.head_norms:
        query = norm(c, query, w["attention.query.norm"])
        key = norm(c, key, w["attention.key.norm"])
        return query, key, value
    return seen_by_head(c, query, shape.num_heads), seen_by_head(c, key, shape.key_heads or shape.num_heads), value


def seen_by_head(c: Context, x: Tensor, heads: int) -> Tensor:
    """Views a tensor head by head. Rotation gives a gradient that is contiguous head by head."""
    return c.tape.view(x) if heads > 1 and c.length > 1 else x


def _heads(c: Context, w: dict, name: str, hidden: Tensor, heads: int) -> Tensor:
    t = c.tape
    x = t.linear(hidden, w[f"attention.{name}.weight"], w.get(f"attention.{name}.bias"))
    if c.architecture.head_norms:
        return t.rms_norm(x, w[f"attention.{name}.norm"])
    return seen_by_head(c, x, heads)


def attend(
    c: Context, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, shape: AttentionShape
) -> tuple[Tensor, Tensor | None]:
    """Attention as `scaled_dot_product_attention` or in separate operations, with repeated keys where needed."""
    t = c.tape
    fused = c.fused_attention and c.architecture.fusable
    # transformers lets the kernel share keys only where there is no mask and flash attention reads the heads
    # (integrations/sdpa_attention.py, use_gqa_in_sdpa).
    alone = not fused or mask is not None or shape.head_dim > WIDEST_FLASH_HEAD
    if alone:
        key, value = repeated(c, key, shape), repeated(c, value, shape)
    if not fused:
        return eager_attention(
            t, query, key, value, shape, dropout=c.attention_dropout, mask_itemsize=mask.itemsize, raised=True,
            weights_itemsize=query.itemsize, softcap=c.architecture.softcap,
        )  # fmt: skip
    if alone:
        shape = replace(shape, key_heads=0)
    seen = {"masked": mask is not None, "causal": mask is None and c.length > 1}
    return fused_attention(t, query, key, value, shape, dropout=c.attention_dropout, **seen), None


def repeated(c: Context, x: Tensor, shape: AttentionShape) -> Tensor:
    """Keys or values for every query head (transformers, repeat_kv);
    those of a single head are expanded without a copy."""
    if shape.group == 1:
        return x
    return c.tape.expanded(x, shape.group) if shape.expanded else c.tape.repeated(x, shape.group)


def gated_feed_forward(c: Context, w: dict, hidden: Tensor) -> Tensor:
    """down(activation(gate(x)) * up(x)) (LlamaMLP)."""
    t = c.tape
    if c.architecture.joined_projections:
        return _joined_feed_forward(c, w, hidden)
    hidden = t.entered(hidden)
    gate = t.activation(
        t.linear(hidden, w["feed_forward.gate.weight"], w.get("feed_forward.gate.bias")), c.architecture.activation
    )
    values = t.linear(hidden, w["feed_forward.in.weight"], w.get("feed_forward.in.bias"))
    hidden = t.multiply(gate, values, "gate")
    del gate, values
    return t.linear(hidden, w["feed_forward.out.weight"], w.get("feed_forward.out.bias"))


def _joined_feed_forward(c: Context, w: dict, hidden: Tensor) -> Tensor:
    """The gated feed-forward with gate and values from one product (Phi3MLP)."""
    t = c.tape
    joined = t.linear(hidden, w["feed_forward.in.weight"])
    gate, values = t.split(joined, 2)
    # The real code's variable for the gate, a view, keeps the joined product until its function ends.
    values = t.multiply(values, t.activation(gate, c.architecture.activation), "gate")
    del joined
    return t.linear(values, w["feed_forward.out.weight"])


def decoder_flops(a: Architecture, tensors: tuple[ParameterTensor, ...], length: int) -> int:
    """Operations of one sample's forward pass; of a mixture's experts, only the chosen ones count."""
    weights = a.vocab_size * a.hidden_size if a.tied_embeddings else 0
    for tensor in tensors:
        if len(tensor.shape) < 2 or tensor.part in ("embeddings", "norms") or tensor.name.endswith(".bias"):
            continue
        used = tensor.count
        if tensor.name.startswith("experts."):
            used = tensor.count // a.num_experts * a.experts_per_token
        weights += tensor.copies * used
    widths = a.num_heads * (a.head_dim + (a.value_dim or a.head_dim))
    kinds = [a.attention_kind(layer) for layer in range(a.num_layers)]
    pairs = sum(_causal_pairs(length, a.sliding_window if "sliding" in kind else length) for kind in kinds)
    return 2 * weights * length + 2 * widths * pairs


def _causal_pairs(length: int, window: int) -> int:
    """Number of pairs of tokens if each token sees itself and at most `window` - 1 tokens before it.

    >>> _causal_pairs(4, 4), _causal_pairs(4, 2)
    (10, 7)
    """
    window = min(window, length)
    return window * (window + 1) // 2 + (length - window) * window
