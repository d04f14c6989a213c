"""Mixtral and Qwen3-MoE (transformers, models/mixtral/modeling_mixtral.py, models/qwen3_moe, integrations/moe.py).

transformers sorts the tokens by expert and multiplies all groups with one kernel, whose operands have a row for each
token and chosen expert. So the memory does not depend on how evenly the router distributes tokens: the balanced and the
worst case are the same. The kernel is not cast by autocast, so that experts compute in the precision of their weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from calculator.families.blocks.context import Context
from calculator.families.blocks.decoder import (
    attention_parameters,
    decoder_flops,
    decoder_forward,
    decoder_parameters,
    feed_forward_parameters,
    gated_feed_forward,
    grouped_attention,
    projected,
    rotary_buffer_bytes,
)
from calculator.families.family import DECODER_MODULES, Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import Matrix, Storage, Tensor
from calculator.tape.operations import Operations


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers and in one layer; only some layers have experts."""
    norms = {"attention.norm": (a.hidden_size,), "feed_forward.norm": (a.hidden_size,)}
    return decoder_parameters(
        a,
        ParameterGroup("layers", attention_parameters(a)),
        ParameterGroup("layers", expert_parameters(a), only="experts"),
        ParameterGroup("layers", feed_forward_parameters(a), only="dense"),
        ParameterGroup("layers", norms),
    )


def expert_parameters(a: Architecture) -> dict[str, tuple[int, ...]]:
    """All experts of a layer, and the router that chooses among them."""
    shapes = {
        "experts.in": (a.num_experts, 2 * a.expert_size, a.hidden_size),
        "experts.out": (a.num_experts, a.hidden_size, a.expert_size),
    }
    router = {"router.weight": (a.num_experts, a.hidden_size)}
    # Mixtral makes its router first. The order matters as in `decoder_parameters`.
    return shapes | router if _is_qwen(a) else router | shapes


def _is_qwen(a: Architecture) -> bool:
    """Returns True for Qwen3-MoE, False for Mixtral."""
    return a.head_norms


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings."""
    return rotary_buffer_bytes(a.rotary_dim, long=a.long_rotation)


def forward(c: Context) -> tuple[Tensor, Tensor]:
    """One forward pass to the loss; also returns the logits, which the caller holds."""
    return mixture_forward(c, partial(grouped_attention, split=projected), _mixture)


def mixture_forward(
    c: Context, attention: Callable, mixture: Callable, layer_norm: Callable = Operations.rms_norm, **others: object
) -> tuple[Tensor, Tensor]:
    """Plays `decoder_forward` of a model in which only some layers have experts.

    Args:
        c: Sizes, options, and the parameters on a tape.
        attention: Plays attention; returns its result and the weights that the real code holds; see
            `grouped_attention`.
        mixture: The experts of a layer that has them.
        layer_norm: The norms of a layer.
        others: Further arguments of `decoder_forward`.
    """
    sparse, dense = (partial(_block, attention, one, layer_norm) for one in (mixture, gated_feed_forward))
    return decoder_forward(c, lambda kind: sparse if "experts" in kind else dense, **others)


def _block(
    attention: Callable,
    feed_forward: Callable,
    norm: Callable,
    c: Context,
    w: dict,
    hidden: Tensor,
    mask: Tensor | None,
    cosine: Tensor,
    sine: Tensor,
    positions: Tensor,
) -> Tensor:
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    hidden, _weights = _attended(attention, norm, c, w, hidden, mask, cosine, sine)
    residual = hidden
    hidden = norm(c.tape, hidden, w["feed_forward.norm"])
    hidden = feed_forward(c, w, hidden)
    return c.tape.add(residual, hidden)


def _attended(
    attention: Callable,
    norm: Callable,
    c: Context,
    w: dict,
    hidden: Tensor,
    mask: Tensor | None,
    cosine: Tensor,
    sine: Tensor,
) -> tuple[Tensor, Tensor | None]:
    t = c.tape
    residual = hidden
    hidden = norm(t, hidden, w["attention.norm"])
    hidden, weights = attention(c, w, hidden, mask, cosine, sine)
    return t.add(residual, hidden), weights


def _mixture(c: Context, w: dict, hidden: Tensor) -> Tensor:
    """The router's choice of experts for each token, and the sum of what they compute."""
    _logits, weights, indices = routed(c, w, hidden, raised=_is_qwen(c.architecture))
    return experts(c, w, hidden, weights, indices)


def routed(c: Context, w: dict, hidden: Tensor, *, raised: bool) -> tuple[Tensor, Tensor, Storage]:
    """Logits of all experts, and the weights and indices of each token's experts (MixtralTopKRouter).

    Args:
        c: Sizes and options.
        w: The layer's parameters.
        hidden: The input of experts.
        raised: Whether the router asks the softmax for 32 bits (Qwen), rather than to cast before (Mixtral).
    """
    t, a = c.tape, c.architecture
    logits = t.linear(hidden, w["router.weight"])
    cast = logits if raised else t.cast(logits, 4, "casting the router's logits")
    chances = t.softmax(cast, raised=raised)
    del cast
    weights, indices = t.largest(chances, c.batch * c.length * a.experts_per_token)
    if a.scaled_choice:
        weights = t.divided(weights, t.summed(weights, c.batch * c.length, "choosing experts"), "choosing experts")
    if raised:
        weights = t.cast(weights, logits.itemsize, "choosing experts")
    return logits, weights, indices


def shared_expert(c: Context, w: dict, hidden: Tensor) -> Tensor:
    """The expert that computes every token."""
    own = {name.replace("shared", "feed_forward"): weight for name, weight in w.items() if name.startswith("shared")}
    return gated_feed_forward(c, own, hidden)


def silu_gate(c: Context, joined: Tensor) -> Tensor:
    """The activated half of an expert's first product, times the other half."""
    t = c.tape
    gate, values = t.split(joined, 2)
    return t.multiply(t.activation(gate, c.architecture.activation), values, "experts")


def experts(
    c: Context, w: dict, hidden: Tensor, weights: Tensor, indices: Storage, *, gate: Callable = silu_gate
) -> Tensor:
    """Each token's experts, sorted by expert, and their weighted sum (grouped_mm_experts_forward).

    Args:
        c: Sizes and options.
        w: The layer's parameters; with biases, the experts' matrices are stored as (in, out), as gpt-oss has them.
        hidden: The input.
        weights: Weights of each token's experts.
        indices: The numbers of each token's experts.
        gate: Makes the input of the second product of the first one's result.
    """
    t, a = c.tape, c.architecture
    rows = c.batch * c.length * a.experts_per_token
    width = a.hidden_size
    # Names with an underscore are not read: they keep memory alive as long as the variables of the real code.
    numbers, order = t.new(rows, 8), t.new(rows, 8)
    chosen = t.gathered(hidden, rows * width, t.new(rows, 8), "sorting tokens by expert")
    weights = t.gathered(weights, rows, order, "sorting tokens by expert")
    _counted = (t.new(rows, 4), t.new(a.num_experts, 4))
    offsets = t.new(a.num_experts, 4)
    bias = _biases(c, w, "experts.in.bias", numbers)
    result = _products(c, chosen, w["experts.in"], offsets, bias)
    result = gate(c, result)
    bias = _biases(c, w, "experts.out.bias", numbers)
    result = _products(c, result, w["experts.out"], offsets, bias)
    weighted = t.multiply(result, weights, "experts")
    back = t.new(rows, 8)
    t.tensor(rows, 8)  # the numbers of all rows, which are assigned to their places
    weighted = t.gathered(weighted, rows * width, back, "sorting tokens back")
    if a.experts_per_token > 1:  # the gradient of a sum of one is no copy
        weighted = t.spread(weighted, "sorting tokens back")
    total = t.summed(weighted, c.batch * c.length * width, "experts")
    return t.cast(total, hidden.itemsize, "experts")


def _biases(c: Context, w: dict, name: str, numbers: Storage) -> Tensor | None:
    """The bias of each row's expert, if they have any."""
    if name not in w:
        return None
    rows = c.batch * c.length * c.architecture.experts_per_token
    return c.tape.gathered(w[name], rows * w[name].shape[1], numbers, "biases of experts")


def _products(c: Context, x: Tensor, weight: Matrix, offsets: Storage, bias: Tensor | None) -> Tensor:
    product = c.tape.grouped_product(x, weight, offsets, "experts", transposed=bias is not None)
    return product if bias is None else c.tape.added_in_place(product, bias, "biases of experts")


MODULES = {own: name for own, name in DECODER_MODULES.items() if own.startswith("attention.")}
"""The modules that may have an adapter. By "all-linear", peft also means the tensors of the experts, which are then
made anew in every pass with what adapters add (peft 0.21, lora/layer.py, ParamWrapper). That is not counted."""


FAMILY = Family(
    name="mixture",
    models=("Mixtral",),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    forward=forward,
    forward_flops=decoder_flops,
    generates=True,
    shares_tables=True,
    modules=lambda a: MODULES,
    liger=True,
    packs=True,
)
