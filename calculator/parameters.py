"""Exact parameter counts, by tensor and by part."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import ModuleType

from calculator.architectures import Architecture
from calculator.families import bert, gpt2, gptj, t5, text_to_image

FAMILIES: dict[str, ModuleType] = {
    "bert": bert,
    "t5": t5,
    "gpt2": gpt2,
    "gptj": gptj,
    "text-to-image": text_to_image,
}
"""Each family's module: `parameters(architecture)` and `forward(context)`."""

PARTS = ("embeddings", "attention", "feed-forward", "norms", "head")


@dataclass(frozen=True, slots=True)
class ParameterTensor:
    """A parameter, and how many of its kind the model has."""

    name: str
    part: str
    """One of `PARTS`."""
    shape: tuple[int, ...]
    copies: int
    """Layers that have their own; fewer than the layers where weights are shared."""

    @property
    def count(self) -> int:
        """Values in one of them."""
        return prod(self.shape)

    @property
    def is_embedding(self) -> bool:
        """Whether it is the table of a `torch.nn.Embedding`, T5's relative position bias included."""
        return self.part == "embeddings" or "relative_bias" in self.name


def part_of(name: str, shape: tuple[int, ...]) -> str:
    """Which part of a report a parameter belongs to.

    >>> part_of("attention.norm.weight", (768,)), part_of("embedding.tokens", (30522, 768))
    ('norms', 'embeddings')
    """
    if "norm" in name or "scale" in name:
        return "norms"
    first = name.split(".")[0]
    return {
        "embedding": "embeddings",
        "attention": "attention",
        "cross_attention": "attention",
        "feed_forward": "feed-forward",
    }.get(first, "head")


def distinct_layers(architecture: Architecture, layers: int, shared_groups: int) -> int:
    """How many layers of a stack have weights of their own.

    Layers i and j share where i mod `shared_groups` = j mod `shared_groups`; 0 shares nothing.
    """
    if not shared_groups:
        return layers
    if architecture.own_last_layer:
        return min(shared_groups, layers - 1) + 1
    return min(shared_groups, layers)


@lru_cache(maxsize=256)
def parameter_tensors(architecture: Architecture, shared_groups: int = 0) -> tuple[ParameterTensor, ...]:
    """Every kind of trained tensor of a model, tied ones once.

    Args:
        architecture: The model.
        shared_groups: Distinct layer groups of each stack; 0 where no layers share.
    """
    layers = {"layers": architecture.num_layers, "encoder": architecture.num_layers}
    layers["decoder"] = architecture.num_decoder_layers
    tensors = []
    for group in FAMILIES[architecture.family].parameters(architecture):
        copies = 1
        if group.stack:
            copies = layers[group.stack]
            if group.shareable:
                copies = distinct_layers(architecture, copies, shared_groups)
        tensors += [ParameterTensor(name, part_of(name, shape), shape, copies) for name, shape in group.shapes.items()]
    return tuple(tensors)


def count_parameters(architecture: Architecture, shared_groups: int | None = None) -> int:
    """Trained parameters, tied and shared ones once.

    Args:
        architecture: The model.
        shared_groups: Distinct layer groups; None: the model's own.

    >>> from calculator.architectures import PRESETS
    >>> count_parameters(PRESETS["gpt2"])
    124439808
    """
    groups = architecture.shared_groups if shared_groups is None else shared_groups
    return sum(tensor.count * tensor.copies for tensor in parameter_tensors(architecture, groups))


def count_small_parameters(architecture: Architecture, shared_groups: int | None = None, *, below: int) -> int:
    """Of `count_parameters`, those in tensors of fewer values than `below`."""
    groups = architecture.shared_groups if shared_groups is None else shared_groups
    return sum(t.count * t.copies for t in parameter_tensors(architecture, groups) if t.count < below)


def parameters_by_part(architecture: Architecture, shared_groups: int | None = None) -> dict[str, int]:
    """`count_parameters`, part by part; the parts add up to it.

    >>> from calculator.architectures import PRESETS
    >>> parameters_by_part(PRESETS["gpt-j-6b"])["head"]
    206488800
    """
    groups = architecture.shared_groups if shared_groups is None else shared_groups
    counts = dict.fromkeys(PARTS, 0)
    for tensor in parameter_tensors(architecture, groups):
        counts[tensor.part] += tensor.count * tensor.copies
    return counts
