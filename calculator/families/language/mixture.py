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
from calculator.tape.autograd import Storage, Tensor


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
    return shapes | router if a.head_norms else router | shapes


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of the frequencies of rotary embeddings."""
    return rotary_buffer_bytes(a.rotary_dim)


def forward(c: Context) -> tuple[Tensor, Tensor]:
    """One forward pass to the loss; also returns the logits, which the caller holds."""
    return mixture_forward(c, partial(grouped_attention, split=projected), _mixture)


def mixture_forward(c: Context, attention: Callable, mixture: Callable) -> tuple[Tensor, Tensor]:
    """Plays `decoder_forward` of a model in which only some layers have experts.

    Args:
        c: Sizes, options, and the parameters on a tape.
        attention: Plays attention; returns its result and the weights that the real code holds; see
            `grouped_attention`.
        mixture: The experts of a layer that has them.
    """
    sparse, dense = partial(_block, attention, mixture), partial(_block, attention, gated_feed_forward)
    return decoder_forward(c, lambda kind: sparse if "experts" in kind else dense)


def _block(
    attention: Callable,
    feed_forward: Callable,
    c: Context,
    w: dict,
    hidden: Tensor,
    mask: Tensor | None,
    cosine: Tensor,
    sine: Tensor,
    positions: Tensor,
) -> Tensor:
    # The name keeps the weights alive until the block ends, as a variable does in the code of transformers.
    hidden, _weights = _attended(attention, c, w, hidden, mask, cosine, sine)
    residual = hidden
    hidden = c.tape.rms_norm(hidden, w["feed_forward.norm"])
    hidden = feed_forward(c, w, hidden)
    return c.tape.add(residual, hidden)


def _attended(
    attention: Callable, c: Context, w: dict, hidden: Tensor, mask: Tensor | None, cosine: Tensor, sine: Tensor
) -> tuple[Tensor, Tensor | None]:
    t = c.tape
    residual = hidden
    hidden = t.rms_norm(hidden, w["attention.norm"])
    hidden, weights = attention(c, w, hidden, mask, cosine, sine)
    return t.add(residual, hidden), weights


def _mixture(c: Context, w: dict, hidden: Tensor) -> Tensor:
    """The router's choice of experts for each token, and the sum of what they compute."""
    _logits, weights, indices = _routed(c, w, hidden)
    return experts(c, w, hidden, weights, indices)


def _routed(c: Context, w: dict, hidden: Tensor) -> tuple[Tensor, Tensor, Storage]:
    """Logits of all experts, and the weights and indices of each token's experts (MixtralTopKRouter)."""
    t, a = c.tape, c.architecture
    logits = t.linear(hidden, w["router.weight"])
    if a.head_norms:  # Qwen3-MoE asks the softmax for 32 bits, Mixtral casts before.
        chances = t.softmax(logits, raised=True)
    else:
        chances = t.softmax(t.cast(logits, 4, "casting the router's logits"))
    weights, indices = t.largest(chances, c.batch * c.length * a.experts_per_token)
    if a.scaled_choice:
        weights = t.divided(weights, t.summed(weights, c.batch * c.length, "choosing experts"), "choosing experts")
    if a.head_norms:
        weights = t.cast(weights, logits.itemsize, "choosing experts")
    return logits, weights, indices


def experts(c: Context, w: dict, hidden: Tensor, weights: Tensor, indices: Storage) -> Tensor:
    """Each token's experts, sorted by expert, and their weighted sum (grouped_mm_experts_forward)."""
    t, a = c.tape, c.architecture
    rows = c.batch * c.length * a.experts_per_token
    width = a.hidden_size
    # Names with an underscore are not read: they keep memory alive as long as the variables of the real code.
    _sorted, order = t.new(rows, 8), t.new(rows, 8)
    chosen = t.gathered(hidden, rows * width, t.new(rows, 8), "sorting tokens by expert")
    weights = t.gathered(weights, rows, order, "sorting tokens by expert")
    _counted = (t.new(rows, 4), t.new(a.num_experts, 4))
    offsets = t.new(a.num_experts, 4)
    result = t.grouped_product(chosen, w["experts.in"], offsets, "experts")
    gate, values = t.split(result, 2)
    result = t.multiply(t.activation(gate, a.activation), values, "experts")
    del gate, values
    result = t.grouped_product(result, w["experts.out"], offsets, "experts")
    weighted = t.multiply(result, weights, "experts")
    back = t.new(rows, 8)
    t.tensor(rows, 8)  # the numbers of all rows, which are assigned to their places
    weighted = t.gathered(weighted, rows * width, back, "sorting tokens back")
    total = t.summed(t.spread(weighted, "sorting tokens back"), c.batch * c.length * width, "experts")
    return t.cast(total, hidden.itemsize, "experts")


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
