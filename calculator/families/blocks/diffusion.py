"""Parts that the diffusion transformers of diffusers share (diffusers 0.42, models/embeddings.py, normalization.py).

A step learns the direction from noise to a picture's latents, by the mean squared error. Each layer's norms are scaled
and shifted by the output of a linear layer, whose input is made of the time step, the guidance,
and the whole text's vector.
"""

from __future__ import annotations

from collections.abc import Callable

from calculator.families.blocks.context import Context
from calculator.models.architecture import Architecture, ParameterTensor
from calculator.tape.autograd import Tensor

TIME_CHANNELS = 256
"""Sines and cosines that embed a time step (diffusers, CombinedTimestepTextProjEmbeddings)."""

MODULES = {
    "condition.time.in": "time_text_embed.timestep_embedder.linear_1",
    "condition.time.out": "time_text_embed.timestep_embedder.linear_2",
    "condition.guidance.in": "time_text_embed.guidance_embedder.linear_1",
    "condition.guidance.out": "time_text_embed.guidance_embedder.linear_2",
    "condition.pooled.in": "time_text_embed.text_embedder.linear_1",
    "condition.pooled.out": "time_text_embed.text_embedder.linear_2",
    "text": "context_embedder",
    "patches": "x_embedder",
    "norm.picture": "norm1.linear",
    "norm.text": "norm1_context.linear",
    "norm.both": "norm.linear",
    "attention.picture.query": "attn.to_q",
    "attention.picture.key": "attn.to_k",
    "attention.picture.value": "attn.to_v",
    "attention.picture.out": "attn.to_out.0",
    "attention.text.query": "attn.add_q_proj",
    "attention.text.key": "attn.add_k_proj",
    "attention.text.value": "attn.add_v_proj",
    "attention.text.out": "attn.to_add_out",
    "attention.alone.query": "attn2.to_q",
    "attention.alone.key": "attn2.to_k",
    "attention.alone.value": "attn2.to_v",
    "attention.alone.out": "attn2.to_out.0",
    "attention.both.query": "attn.to_q",
    "attention.both.key": "attn.to_k",
    "attention.both.value": "attn.to_v",
    "feed_forward.picture.in": "ff.net.0.proj",
    "feed_forward.picture.out": "ff.net.2",
    "feed_forward.text.in": "ff_context.net.0.proj",
    "feed_forward.text.out": "ff_context.net.2",
    "feed_forward.in": "proj_mlp",
    "feed_forward.out": "proj_out",
    "norm.modulation": "norm_out.linear",
    "head": "proj_out",
}
"""Our names of a diffusion transformer's linear modules, and the ends of their paths in diffusers."""
ATTENTION_NOTE = "diffusers has fused attention only: eager and sdpa make no difference."


def linear_shapes(name: str, outer: int, inner: int) -> dict[str, tuple[int, ...]]:
    """A linear layer with a bias."""
    return {f"{name}.weight": (outer, inner), f"{name}.bias": (outer,)}


def condition_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The layers that embed the time step, the guidance, and the whole text."""
    d = a.hidden_size
    shapes: dict[str, tuple[int, ...]] = {}
    for name, width in conditions(a):
        shapes |= linear_shapes(f"condition.{name}.in", d, width) | linear_shapes(f"condition.{name}.out", d, d)
    return shapes


def conditions(a: Architecture) -> tuple[tuple[str, int], ...]:
    """The inputs that decide the scales and shifts of all norms, with their widths."""
    guidance = (("guidance", TIME_CHANNELS),) if a.guided else ()
    return (("time", TIME_CHANNELS), *guidance, ("pooled", a.pooled_width))


def feed_forward_shapes(a: Architecture, name: str) -> dict[str, tuple[int, ...]]:
    """The two layers of a feed-forward."""
    d, f = a.hidden_size, a.intermediate_size
    return linear_shapes(f"{name}.in", f, d) | linear_shapes(f"{name}.out", d, f)


def head_norms(a: Architecture, stream: str) -> dict[str, tuple[int, ...]]:
    """The norms of queries and keys by head, if the model has them."""
    return {f"attention.{stream}.{name}.norm": (a.head_dim,) for name in ("query", "key") if a.head_norms}


def projections(
    a: Architecture, stream: str, names: tuple[str, ...] = ("query", "key", "value")
) -> dict[str, tuple[int, ...]]:
    """The linear layers before attention, in the order of the model."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        shapes |= linear_shapes(f"attention.{stream}.{name}", a.hidden_size, a.hidden_size)
    return shapes


def last_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    """The last norm and the output head."""
    d = a.hidden_size
    return linear_shapes("norm.modulation", 2 * d, d) | linear_shapes("head", a.output_channels, d)


def embedded_condition(c: Context, itemsize: int) -> Tensor:
    """The vector of a sample that decides all scales and shifts (CombinedTimestepTextProjEmbeddings), (B, D)."""
    t, a = c.tape, c.architecture
    total, _times = None, []
    for name, width in conditions(a):
        if name == "pooled":
            vector = Tensor(None, c.batch * width, itemsize)
        else:
            # The sines are in 32 bits, and a local variable keeps them.
            _times.append(t.tensor(c.batch * width, 4))
            vector = t.cast(_times[-1], itemsize)
        vector = _embedded(c, name, vector)
        total = vector if total is None else t.add(total, vector, "condition")
    return total


def _embedded(c: Context, name: str, vector: Tensor) -> Tensor:
    t, w = c.tape, c.weights
    vector = t.linear(vector, w[f"condition.{name}.in.weight"], w[f"condition.{name}.in.bias"])
    vector = t.smooth(vector, "SiLU")
    return t.linear(vector, w[f"condition.{name}.out.weight"], w[f"condition.{name}.out.bias"])


def modulation(c: Context, w: dict, name: str, condition: Tensor, parts: int) -> list[Tensor]:
    """Shifts, scales and gates of a layer's norms, (B, D) each, as views of one tensor."""
    activated = c.tape.smooth(condition, "SiLU")
    return c.tape.split(c.tape.linear(activated, w[f"{name}.weight"], w[f"{name}.bias"]), parts)


def modulated(c: Context, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """x * (1 + scale) + shift."""
    t = c.tape
    return t.add(t.multiply(x, t.add_constant(scale, "modulation"), "modulation"), shift, "modulation")


def normalized(c: Context, x: Tensor, *, scattered: bool = False) -> Tensor:
    """The layer norm without parameters that precedes each modulation."""
    return c.tape.bare_layer_norm(x, c.architecture.hidden_size, scattered=scattered)


def feed_forward(c: Context, w: dict, name: str, x: Tensor) -> Tensor:
    """Two linear layers with GELU between them (diffusers, FeedForward)."""
    t = c.tape
    x = t.linear(x, w[f"{name}.in.weight"], w[f"{name}.in.bias"])
    x = t.activation(x, c.architecture.activation)
    return t.linear(x, w[f"{name}.out.weight"], w[f"{name}.out.bias"])


def continuous_norm(c: Context, w: dict, name: str, x: Tensor, condition: Tensor, *, scattered: bool = False) -> Tensor:
    """A norm without a gate (AdaLayerNormContinuous)."""
    scale, shift = modulation(c, w, name, condition, 2)
    return modulated(c, normalized(c, x, scattered=scattered), shift, scale)


def last_norm(c: Context, hidden: Tensor, condition: Tensor, *, scattered: bool = False) -> Tensor:
    """The last layer's result, normalized; the real code gives both the same name, so the first one is freed."""
    return continuous_norm(c, c.weights, "norm.modulation", hidden, condition, scattered=scattered)


def output_head(c: Context, hidden: Tensor) -> Tensor:
    """The model's prediction."""
    return c.tape.linear(hidden, c.weights["head.weight"], c.weights["head.bias"], "output head")


def step_of(predict: Callable[[Context, int], Tensor]) -> Callable[[Context], tuple[Tensor, None]]:
    """The forward pass of a model that predicts a direction.

    Args:
        predict: Plays the model up to its prediction; arguments: the context, and the bytes of a value of the inputs.
    """

    def forward(c: Context) -> tuple[Tensor, None]:
        """One forward pass to the loss in 32 bits; nothing holds the prediction."""
        t, itemsize = c.tape, c.weights["head.weight"].itemsize
        predicted = predict(c, itemsize)
        count = predicted.count
        predicted = t.cast(predicted, 4, "loss")
        # The direction that is learned is an input.
        return t.squared_error(predicted, t.cast(Tensor(None, count, itemsize), 4, "loss")), None

    return forward


def diffusion_flops(a: Architecture, tensors: tuple[ParameterTensor, ...], length: int) -> int:
    """Operations of a forward pass: text and picture may differ in weights; scales are made once a sample."""
    both = length + a.image_tokens
    streams = {"picture": a.image_tokens, "alone": a.image_tokens, "text": length}
    total = 0
    for tensor in tensors:
        if len(tensor.shape) < 2:
            continue
        part, stream, *_ = tensor.name.split(".")
        times = streams.get(stream, both)
        if part in ("condition", "norm"):
            times = 1
        elif part in ("patches", "head"):
            times = a.image_tokens
        elif part == "text":
            times = length
        total += 2 * tensor.copies * tensor.count * times
    alone = sum(kind in ("dual", "end") for kind in a.attention_cycle)
    return total + 4 * a.hidden_size * (a.num_layers * both**2 + alone * a.image_tokens**2)
