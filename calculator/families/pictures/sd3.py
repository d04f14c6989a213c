"""Stable Diffusion 3, which diffuses pictures from texts (diffusers 0.42, models/transformers/transformer_sd3.py).

Each layer has weights of its own for text and picture, which attend to each other. The kinds of layers are "joint",
"dual", where the picture also attends to itself alone (Stable Diffusion 3.5 medium), and "last" and "end", which are
the same for the last layer, whose text nothing reads.
"""

from __future__ import annotations

from calculator.families.blocks import diffusion
from calculator.families.blocks.attention import AttentionShape, fused_attention
from calculator.families.blocks.context import Context
from calculator.families.family import Batch, Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.models.diffusion_models import LATENT_SCALE
from calculator.tape.autograd import Tensor, allocated_bytes

DUAL = ("dual", "end")
"""Kinds of layers with a second attention, of the picture alone."""
LAST = ("last", "end")
"""Kinds of layers that drop the text."""


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers, and in a layer of each kind, in the order of the model."""
    d, side = a.hidden_size, a.patch_size // LATENT_SCALE
    first = {"patches.weight": (d, a.channels, side, side), "patches.bias": (d,)}
    first |= diffusion.condition_shapes(a) | diffusion.linear_shapes("text", d, a.text_width)
    kinds = dict.fromkeys(a.attention_cycle)
    layers = [ParameterGroup("layers", _layer_shapes(a, kind), only=kind) for kind in kinds]
    return [ParameterGroup("", first), *layers, ParameterGroup("", diffusion.last_shapes(a))]


def _layer_shapes(a: Architecture, kind: str) -> dict[str, tuple[int, ...]]:
    d = a.hidden_size
    shapes = diffusion.linear_shapes("norm.picture", (9 if kind in DUAL else 6) * d, d)
    shapes |= diffusion.linear_shapes("norm.text", (2 if kind in LAST else 6) * d, d)
    shapes |= diffusion.head_norms(a, "picture") | diffusion.projections(a, "picture")
    shapes |= diffusion.projections(a, "text", ("key", "value", "query"))
    shapes |= diffusion.linear_shapes("attention.picture.out", d, d)
    if kind not in LAST:
        shapes |= diffusion.linear_shapes("attention.text.out", d, d)
    shapes |= diffusion.head_norms(a, "text")
    if kind in DUAL:
        shapes |= diffusion.head_norms(a, "alone") | diffusion.projections(a, "alone")
        shapes |= diffusion.linear_shapes("attention.alone.out", d, d)
    shapes |= diffusion.feed_forward_shapes(a, "feed_forward.picture")
    return shapes if kind in LAST else shapes | diffusion.feed_forward_shapes(a, "feed_forward.text")


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the table of positions."""
    return allocated_bytes(a.position_grid**2 * a.hidden_size, itemsize)


def _input_bytes(a: Architecture, made: Batch) -> int:
    """Bytes of texts, their vectors, times, latents, and the directions to learn."""
    batch, length = made.samples, made.length
    latents = _latents(a, batch)
    counts = [batch * length * a.text_width, batch * a.pooled_width, batch, latents, _predicted(a, batch)]
    return sum(allocated_bytes(count, made.itemsize) for count in counts)


def _latents(a: Architecture, batch: int) -> int:
    return batch * a.image_tokens * (a.patch_size // LATENT_SCALE) ** 2 * a.channels


def _predicted(a: Architecture, batch: int) -> int:
    return batch * a.image_tokens * a.output_channels


def _predict(c: Context, itemsize: int) -> Tensor:
    t, w, a = c.tape, c.weights, c.architecture
    picture = t.copy(_patches(c, itemsize))
    condition = diffusion.embedded_condition(c, itemsize)
    text = Tensor(None, c.batch * c.length * a.text_width, itemsize)
    text = t.linear(text, w["text.weight"], w["text.bias"], "text embedding")
    for layer in c.stacks["layers"]:
        text, picture = c.run(layer, _block, picture, text, condition)
    t.enter("head")
    picture = diffusion.last_norm(c, picture, condition)
    # The same name again, as in the real code. The order of its values changes, and that of its gradient's.
    picture = diffusion.output_head(c, picture)
    in_place = a.image_width == a.patch_size or a.patch_size == LATENT_SCALE  # one column, or patches of one value
    return picture if in_place else t.copy(t.view(picture))


def _patches(c: Context, itemsize: int) -> Tensor:
    """The patches of the latents with their positions, which are cut from the middle of the table."""
    t, w, a = c.tape, c.weights, c.architecture
    tokens = a.image_tokens
    latents = Tensor(None, _latents(a, c.batch), itemsize)
    patches = t.patches(latents, w["patches.weight"], w["patches.bias"], c.batch * tokens)
    positions = Tensor(None, tokens * a.hidden_size, itemsize)
    if a.image_width // a.patch_size != a.position_grid:
        positions = t.tensor(tokens * a.hidden_size, itemsize)
    return t.cast(t.add(patches, positions, "position embedding"), patches.itemsize)


def _first_norm(c: Context, w: dict, picture: Tensor, condition: Tensor) -> tuple[Tensor, Tensor, list, tuple]:
    """The normed picture, its gate, the modulations of what follows attention, and in a layer that is dual the normed
    picture of the second attention with its gate."""
    parts = 9 if "attention.alone.out.weight" in w else 6
    shift, scale, gate, *later = diffusion.modulation(c, w, "norm.picture", condition, parts)
    plain = diffusion.normalized(c, picture)
    normed = diffusion.modulated(c, plain, shift, scale)
    alone = (diffusion.modulated(c, plain, *later[3:5]), later[5]) if parts == 9 else ()
    return normed, gate, later, alone


def _block(c: Context, w: dict, picture: Tensor, text: Tensor, condition: Tensor) -> tuple[Tensor | None, Tensor]:
    """A layer (JointTransformerBlock).

    As in the real code, each name keeps its tensor until the layer ends.
    """
    t = c.tape
    last = "attention.text.out.weight" not in w
    normed, gate, later, alone = _first_norm(c, w, picture, condition)
    if last:
        normed_text = diffusion.continuous_norm(c, w, "norm.text", text, condition)
    else:
        shift, scale, text_gate, *text_later = diffusion.modulation(c, w, "norm.text", condition, 6)
        normed_text = diffusion.modulated(c, diffusion.normalized(c, text), shift, scale)
    attended, attended_text = _joint_attention(c, w, normed, normed_text)
    attended = t.multiply(gate, attended, "gate")
    picture = t.add(picture, attended)
    if alone:
        attended_alone = t.multiply(alone[1], _own_attention(c, w, alone[0]), "gate")
        picture = t.add(picture, attended_alone)
    normed = diffusion.normalized(c, picture)
    normed = diffusion.modulated(c, normed, *later[:2])
    inner = diffusion.feed_forward(c, w, "feed_forward.picture", normed)
    inner = t.multiply(later[2], inner, "gate")
    picture = t.add(picture, inner)
    if last:
        return None, picture
    attended_text = t.multiply(text_gate, attended_text, "gate")
    text = t.add(text, attended_text)
    normed_text = diffusion.normalized(c, text)
    normed_text = diffusion.modulated(c, normed_text, *text_later[:2])
    inner_text = diffusion.feed_forward(c, w, "feed_forward.text", normed_text)
    return t.add(text, t.multiply(text_later[2], inner_text, "gate")), picture


def _projected(c: Context, w: dict, stream: str, x: Tensor, *, parts: bool) -> list[Tensor]:
    """Queries, keys and values by head.

    Args:
        parts: Whether their gradients are parts of those of both streams.
    """
    t, a = c.tape, c.architecture
    itemsize = 2 if t.autocast else x.itemsize
    flash = itemsize == 2
    projected = []
    for name in ("query", "key", "value"):
        one = t.linear(x, w[f"attention.{stream}.{name}.weight"], w[f"attention.{stream}.{name}.bias"])
        # Gradients of several sequences lie apart, each beside that of its text.
        scattered = parts and c.batch > 1 and (not flash or a.num_heads == 1) and (name == "value" or not a.head_norms)
        projected.append(t.view(one) if scattered else one)
    # Flash attention returns gradients by head, if it was given operands so; a linear layer needs them by token.
    moved = parts and flash and a.num_heads > 1
    return [t.view(one) if moved else one for one in projected]


def _normed(c: Context, w: dict, name: str, x: Tensor) -> Tensor:
    """Queries or keys, normalized by head if the model does so. The real code normalizes them one at a time: the linear
    layer's output is freed when its name is assigned the result, before the other norm."""
    norm = w.get(f"attention.{name}.norm")
    return x if norm is None else c.tape.t5_norm(x, norm)


def _joint_attention(c: Context, w: dict, picture: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of picture and text to both (JointAttnProcessor2_0)."""
    t, a = c.tape, c.architecture
    query, key, value = _projected(c, w, "picture", picture, parts=True)
    query = _normed(c, w, "picture.query", query)
    key = _normed(c, w, "picture.key", key)
    text_query, text_key, text_value = _projected(c, w, "text", text, parts=True)
    text_query = _normed(c, w, "text.query", text_query)
    text_key = _normed(c, w, "text.key", text_key)
    query = t.join(query, text_query)
    key = t.join(key, text_key)
    value = t.join(value, text_value)
    tokens = c.length + a.image_tokens
    shape = _shape(c, tokens, by_head=True)
    attended = t.cast(fused_attention(t, query, key, value, shape, dropout=0.0), query.itemsize)
    counts = [c.batch * n * a.hidden_size for n in (a.image_tokens, c.length)]
    if "attention.text.out.weight" not in w:
        # A variable of the block keeps the text, which nothing reads.
        attended_text = Tensor(attended.storage, counts[1], attended.itemsize)
        attended = t.part(attended, counts[0])
    else:
        attended, attended_text = (t.part(attended, count) for count in counts)
        attended_text = _out(c, w, "text", attended_text)
    return _out(c, w, "picture", attended), attended_text


def _own_attention(c: Context, w: dict, x: Tensor) -> Tensor:
    """Attention of the picture to itself."""
    query, key, value = _projected(c, w, "alone", x, parts=False)
    query = _normed(c, w, "alone.query", query)
    key = _normed(c, w, "alone.key", key)
    shape = _shape(c, c.architecture.image_tokens, by_head=False)
    attended = fused_attention(c.tape, query, key, value, shape, dropout=0.0)
    attended = c.tape.cast(attended, query.itemsize)
    return c.tape.linear(attended, w["attention.alone.out.weight"], w["attention.alone.out.bias"])


def _shape(c: Context, tokens: int, *, by_head: bool) -> AttentionShape:
    a = c.architecture
    return AttentionShape(
        batch=c.batch, num_heads=a.num_heads, head_dim=a.head_dim, queries=tokens, keys=tokens, by_head=by_head
    )


def _out(c: Context, w: dict, stream: str, x: Tensor) -> Tensor:
    weight, bias = w[f"attention.{stream}.out.weight"], w[f"attention.{stream}.out.bias"]
    cast = c.tape.autocast and x.itemsize == 4
    tokens = c.length if stream == "text" else c.architecture.image_tokens
    # A part of several sequences is copied, by a cast if there is one; not that of a single token.
    if c.batch > 1 and not (cast or tokens == 1):
        return c.tape.linear_of_part(x, weight, bias)
    return c.tape.linear(x, weight, bias)


forward = diffusion.step_of(_predict)


FAMILY = Family(
    name="sd3",
    models=("Stable Diffusion 3",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    input_bytes=_input_bytes,
    forward_flops=diffusion.diffusion_flops,
    modules=lambda a: diffusion.MODULES,
    attention_note=diffusion.ATTENTION_NOTE,
)
