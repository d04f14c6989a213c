"""Exact parameter counts, by tensor and by part."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from math import prod

from calculator.families.registry import family_of
from calculator.models.architecture import Architecture, ParameterTensor
from calculator.tape.eight_bit import SIDES_OF

PARTS = ("embeddings", "attention", "feed-forward", "norms", "head")


def part_of(name: str, shape: tuple[int, ...]) -> str:
    """The part of a report to which a parameter belongs.

    >>> part_of("attention.norm.weight", (768,)), part_of("embedding.tokens", (30522, 768))
    ('norms', 'embeddings')
    """
    if "norm" in name or "scale" in name:
        return "norms"
    first = name.split(".")[0]
    return {
        "embedding": "embeddings",
        "patches": "embeddings",
        "condition": "embeddings",
        "text": "embeddings",
        "attention": "attention",
        "cross_attention": "attention",
        "feed_forward": "feed-forward",
        "router": "feed-forward",
        "experts": "feed-forward",
        "shared": "feed-forward",
    }.get(first, "head")


def distinct_layers(architecture: Architecture, layers: int, shared_groups: int) -> int:
    """Number of layers of a stack that have distinct weights.

    Layers i and j share weights if i mod `shared_groups` = j mod `shared_groups`; with 0, no layers share.
    """
    if not shared_groups:
        return layers
    if architecture.own_last_layer:
        return min(shared_groups, layers - 1) + 1
    return min(shared_groups, layers)


@lru_cache(maxsize=256)
def parameter_tensors(architecture: Architecture, shared_groups: int = 0) -> tuple[ParameterTensor, ...]:
    """Every kind of trained tensor of a model; tied tensors appear once.

    Args:
        architecture: The model.
        shared_groups: Distinct layer groups of each stack; 0 where no layers share.
    """
    layers = _layers_of_stacks(architecture)
    tensors = []
    for group in family_of(architecture).parameters(architecture):
        copies = 1
        if group.stack:
            copies = layers[group.stack]
            if group.only:
                copies = sum(group.only in architecture.attention_kind(layer) for layer in range(copies))
            if not copies:
                continue
            if group.shareable:
                copies = distinct_layers(architecture, copies, shared_groups)
        tensors += [ParameterTensor(name, part_of(name, shape), shape, copies) for name, shape in group.shapes.items()]
    return tuple(tensors)


def _layers_of_stacks(architecture: Architecture) -> dict[str, int]:
    layers = architecture.num_layers
    return {"layers": layers, "encoder": layers, "decoder": architecture.num_decoder_layers}


@lru_cache(maxsize=256)
def values_in_order(architecture: Architecture) -> tuple[int, ...]:
    """Values of every parameter of a model without shared layers, in the order of `torch.nn.Module.parameters()`.

    T5 is an exception: the tables of relative positions come before the first layer, not in it.
    """
    found: list[int] = []
    for stack, of_stack in groupby(family_of(architecture).parameters(architecture), key=lambda group: group.stack):
        groups = [(group.only, [prod(shape) for shape in group.shapes.values()]) for group in of_stack]
        for layer in range(_layers_of_stacks(architecture)[stack] if stack else 1):
            kind = architecture.attention_kind(layer)
            found += [count for only, counts in groups if only in kind for count in counts]
    return tuple(found)


@lru_cache(maxsize=256)
def count_parameters(architecture: Architecture, shared_groups: int | None = None) -> int:
    """The number of trained parameters; tied and shared ones count once.

    Args:
        architecture: The model.
        shared_groups: Distinct layer groups; None: the model's own.

    >>> from calculator.models.architectures import PRESETS
    >>> count_parameters(PRESETS["gpt2"])
    124439808
    """
    groups = architecture.shared_groups if shared_groups is None else shared_groups
    return sum(tensor.count * tensor.copies for tensor in parameter_tensors(architecture, groups))


def count_small_parameters(architecture: Architecture, shared_groups: int | None = None, *, below: int) -> int:
    """The parameters of `count_parameters` that are in tensors of fewer than `below` values."""
    groups = architecture.shared_groups if shared_groups is None else shared_groups
    return sum(t.count * t.copies for t in parameter_tensors(architecture, groups) if t.count < below)


def parameters_by_part(architecture: Architecture, shared_groups: int | None = None) -> dict[str, int]:
    """`count_parameters`, part by part; the parts add up to it.

    >>> from calculator.models.architectures import PRESETS
    >>> parameters_by_part(PRESETS["gpt-j-6b"])["head"]
    206488800
    """
    groups = architecture.shared_groups if shared_groups is None else shared_groups
    return dict(_counts_by_part(architecture, groups))


@lru_cache(maxsize=256)
def _counts_by_part(architecture: Architecture, shared_groups: int) -> tuple[tuple[str, int], ...]:
    counts = dict.fromkeys(PARTS, 0)
    for tensor in parameter_tensors(architecture, shared_groups):
        counts[tensor.part] += tensor.count * tensor.copies
    return tuple(counts.items())


def odd_matrix(architecture: Architecture) -> str:
    """Names a matrix of a layer that FP8's kernels cannot multiply; empty if there is none."""
    for tensor in parameter_tensors(architecture):
        sides = tensor.shape
        if len(sides) == 2 and tensor.part not in ("embeddings", "head") and any(side % SIDES_OF for side in sides):
            return f"{tensor.name} of {sides[0]} x {sides[1]}"
    return ""
