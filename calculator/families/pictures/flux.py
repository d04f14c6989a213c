"""Flux, which diffuses pictures from texts (diffusers 0.42, models/transformers/transformer_flux.py).

"double" layers have weights of their own for text and picture, which attend to each other; "single" layers treat both
as one sequence, and compute attention and feed-forward beside each other.
"""

from __future__ import annotations

from calculator.families.blocks import diffusion
from calculator.families.blocks.attention import AttentionShape, fused_attention
from calculator.families.blocks.context import Context
from calculator.families.family import Batch, Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Tensor, allocated_bytes

STREAMS = ("picture", "text")


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers, and in a layer of each kind, in the order of the model."""
    d = a.hidden_size
    first = (
        diffusion.condition_shapes(a)
        | diffusion.linear_shapes("text", d, a.text_width)
        | diffusion.linear_shapes("patches", d, a.channels)
    )
    return [
        ParameterGroup("", first),
        ParameterGroup("layers", _double_shapes(a), only="double"),
        ParameterGroup("layers", _single_shapes(a), only="single"),
        ParameterGroup("", diffusion.last_shapes(a)),
    ]


def _double_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    d = a.hidden_size
    shapes: dict[str, tuple[int, ...]] = {}
    for stream in STREAMS:
        shapes |= diffusion.linear_shapes(f"norm.{stream}", 6 * d, d)
    shapes |= diffusion.head_norms(a, "picture") | diffusion.projections(a, "picture")
    shapes |= diffusion.linear_shapes("attention.picture.out", d, d)
    shapes |= (
        diffusion.head_norms(a, "text")
        | diffusion.projections(a, "text")
        | diffusion.linear_shapes("attention.text.out", d, d)
    )
    for stream in STREAMS:
        shapes |= diffusion.feed_forward_shapes(a, f"feed_forward.{stream}")
    return shapes


def _single_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    d, f = a.hidden_size, a.intermediate_size
    shapes = diffusion.linear_shapes("norm.both", 3 * d, d) | diffusion.linear_shapes("feed_forward.in", f, d)
    shapes |= diffusion.linear_shapes("feed_forward.out", d, d + f)
    return shapes | diffusion.head_norms(a, "both") | diffusion.projections(a, "both")


def _input_bytes(a: Architecture, made: Batch) -> int:
    """Bytes of texts, their vectors, times, latents, positions, guidance, and the directions to learn."""
    batch, length, tokens = made.samples, made.length, a.image_tokens
    counts = [batch * length * a.text_width, batch * a.pooled_width, batch, batch * tokens * a.channels]
    counts += [3 * length, 3 * tokens, batch * tokens * a.output_channels]
    return sum(allocated_bytes(count, made.itemsize) for count in counts + [batch] * a.guided)


def _predict(c: Context, itemsize: int) -> Tensor:
    t, w, a = c.tape, c.weights, c.architecture
    tokens = a.image_tokens
    picture = Tensor(None, c.batch * tokens * a.channels, itemsize)
    picture = t.linear(picture, w["patches.weight"], w["patches.bias"], "patches")
    # Local variables of the real code keep these until its function ends.
    _scaled = [t.tensor(c.batch, picture.itemsize) for _name in ("time", "guidance")[: 1 + a.guided]]
    condition = diffusion.embedded_condition(c, itemsize)
    text = Tensor(None, c.batch * c.length * a.text_width, itemsize)
    text = t.linear(text, w["text.weight"], w["text.bias"], "text embedding")
    _positions = t.tensor(3 * (c.length + tokens), itemsize)
    cosine, sine = (t.tensor((c.length + tokens) * a.head_dim, 4) for _table in ("cosine", "sine"))
    for layer in c.stacks["layers"]:
        block = _double if layer.kind == "double" else _last if layer is c.stacks["layers"][-1] else _single
        text, picture = c.run(layer, block, picture, text, condition, cosine, sine)
    t.enter("head")
    picture = diffusion.last_norm(c, picture, condition, scattered=c.batch > 1)
    return diffusion.output_head(c, picture)


def _double(
    c: Context, w: dict, picture: Tensor, text: Tensor, condition: Tensor, cosine: Tensor, sine: Tensor
) -> tuple[Tensor, Tensor]:
    t = c.tape
    shift, scale, gate, *later = diffusion.modulation(c, w, "norm.picture", condition, 6)
    normed = diffusion.modulated(c, diffusion.normalized(c, picture), shift, scale)
    shift, scale, text_gate, *text_later = diffusion.modulation(c, w, "norm.text", condition, 6)
    normed_text = diffusion.modulated(c, diffusion.normalized(c, text), shift, scale)
    # Names stay until the block ends, as those of the real code do, and with them what they stand for.
    attended, attended_text = _joint_attention(c, w, normed, normed_text, cosine, sine)
    attended = t.multiply(gate, attended, "gate")
    picture = t.add(picture, attended)
    normed = diffusion.normalized(c, picture)
    normed = diffusion.modulated(c, normed, *later[:2])
    inner = diffusion.feed_forward(c, w, "feed_forward.picture", normed)
    inner = t.multiply(later[2], inner, "gate")
    picture = t.add(picture, inner)
    attended_text = t.multiply(text_gate, attended_text, "gate")
    text = t.add(text, attended_text)
    normed_text = diffusion.normalized(c, text)
    normed_text = diffusion.modulated(c, normed_text, *text_later[:2])
    inner_text = diffusion.feed_forward(c, w, "feed_forward.text", normed_text)
    text = t.add(text, t.multiply(text_later[2], inner_text, "gate"))
    return _clipped(c, text), picture


def _clipped(c: Context, x: Tensor) -> Tensor:
    """Values clipped to the range of float16."""
    return c.tape.clipped(x) if c.half == "fp16" and x.itemsize == 2 else x


def _projected(c: Context, w: dict, stream: str, x: Tensor, *, scattered: bool) -> list[Tensor]:
    """Queries, keys and values; the gradients of values may be parts of those of both streams."""
    t = c.tape
    query, key, value = (
        t.linear(x, w[f"attention.{stream}.{name}.weight"], w[f"attention.{stream}.{name}.bias"])
        for name in ("query", "key", "value")
    )
    return [query, key, t.view(value) if scattered else value]


def _joint_attention(
    c: Context, w: dict, picture: Tensor, text: Tensor, cosine: Tensor, sine: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention of text and picture to both (FluxAttnProcessor)."""
    t, several = c.tape, c.batch > 1
    query, key, value = _projected(c, w, "picture", picture, scattered=several)
    text_query, text_key, text_value = _projected(c, w, "text", text, scattered=several)
    query = t.fused_rms_norm(query, w["attention.picture.query.norm"], scattered=several)
    key = t.fused_rms_norm(key, w["attention.picture.key.norm"], scattered=several)
    text_query = t.fused_rms_norm(text_query, w["attention.text.query.norm"], scattered=several)
    text_key = t.fused_rms_norm(text_key, w["attention.text.key.norm"], scattered=several)
    query = t.join(text_query, query)
    key = t.join(text_key, key)
    value = t.join(text_value, value)
    query = _turned(c, query, cosine, sine)
    key = _turned(c, key, cosine, sine)
    attended = _attention(c, query, key, value)
    tokens = c.architecture.image_tokens
    parts = [c.batch * n * c.architecture.hidden_size for n in (c.length, tokens)]
    attended_text, attended = t.pieces(attended, *parts)
    attended = _out(c, w, "picture", attended)
    attended_text = _out(c, w, "text", attended_text)
    return attended, attended_text


def _out(c: Context, w: dict, stream: str, x: Tensor) -> Tensor:
    if c.batch > 1:
        x = c.tape.copy(x)
    return c.tape.linear(x, w[f"attention.{stream}.out.weight"], w[f"attention.{stream}.out.bias"])


def _attention(c: Context, query: Tensor, key: Tensor, value: Tensor, *, joined: bool = False) -> Tensor:
    """Attention of all tokens.

    Args:
        joined: Whether the result is joined with other channels, so that its gradient is a part of a larger gradient.
    """
    t, a = c.tape, c.architecture
    tokens = c.length + a.image_tokens
    shape = AttentionShape(batch=c.batch, num_heads=a.num_heads, head_dim=a.head_dim, queries=tokens, keys=tokens)
    copies = 1 if joined and not t.autocast else 0
    attended = fused_attention(t, query, key, value, shape, dropout=0.0, copies=copies)
    return t.cast(attended, query.itemsize)


def _turned(c: Context, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary embeddings of pairs of channels, in 32 bits (diffusers, apply_rotary_emb)."""
    t, itemsize = c.tape, x.itemsize
    even, odd = t.split(x, 2)
    rotated = t.join(t.scale(odd, "rotary embedding"), even, "rotary embedding")
    whole = t.add(_weighted(c, x, cosine), _weighted(c, rotated, sine), "rotary embedding")
    return t.cast(whole, itemsize, "rotary embedding")


def _weighted(c: Context, x: Tensor, table: Tensor) -> Tensor:
    return c.tape.multiply(c.tape.cast(x, 4, "rotary embedding"), table, "rotary embedding")


def _single(c: Context, w: dict, picture: Tensor, text: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    parts = (text.count, picture.count)
    both = _single_stream(c, w, picture, text, *others)
    return c.tape.part(both, parts[0]), c.tape.part(both, parts[1])


def _last(c: Context, w: dict, picture: Tensor, text: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
    """The last layer: nothing reads its text, but a variable of the real code keeps it."""
    parts = (text.count, picture.count)
    both = _single_stream(c, w, picture, text, *others)
    return Tensor(both.storage, parts[0], both.itemsize), c.tape.part(both, parts[1])


def _single_stream(
    c: Context, w: dict, picture: Tensor, text: Tensor, condition: Tensor, cosine: Tensor, sine: Tensor
) -> Tensor:
    t, a = c.tape, c.architecture
    both = t.join(text, picture)
    residual = both
    shift, scale, gate = diffusion.modulation(c, w, "norm.both", condition, 3)
    normed = diffusion.modulated(c, diffusion.normalized(c, both), shift, scale)
    inner = t.linear(normed, w["feed_forward.in.weight"], w["feed_forward.in.bias"])
    inner = t.activation(inner, a.activation)
    attended = _own_attention(c, w, normed, cosine, sine)
    both = t.join(attended, inner)
    both = t.multiply(gate, t.linear(both, w["feed_forward.out.weight"], w["feed_forward.out.bias"]), "gate")
    both = t.add(residual, both)
    return _clipped(c, both)


def _own_attention(c: Context, w: dict, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    t = c.tape
    query, key, value = _projected(c, w, "both", x, scattered=False)
    query = t.fused_rms_norm(query, w["attention.both.query.norm"])
    key = t.fused_rms_norm(key, w["attention.both.key.norm"])
    query = _turned(c, query, cosine, sine)
    key = _turned(c, key, cosine, sine)
    return _attention(c, query, key, value, joined=True)


forward = diffusion.step_of(_predict)


FAMILY = Family(
    name="flux",
    models=("Flux",),
    parameters=parameters,
    forward=forward,
    input_bytes=_input_bytes,
    forward_flops=diffusion.diffusion_flops,
    modules=lambda a: diffusion.MODULES,
    attention_note=diffusion.ATTENTION_NOTE,
)
