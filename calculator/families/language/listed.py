"""Models whose weights and cache are counted, but not their training; their readers list the parameters."""

from __future__ import annotations

from calculator.families.blocks.decoder import rotary_buffer_bytes
from calculator.families.family import Family
from calculator.models.architecture import Architecture, ParameterGroup
from calculator.tape.autograd import allocated_bytes


def parameters(a: Architecture) -> list[ParameterGroup]:
    """The parameters outside of the layers, and those of each kind of layer."""
    kinds = [ParameterGroup("layers", dict(layer.shapes), only=kind) for kind, layer in a.listing.layers]
    return [ParameterGroup("", dict(a.listing.outside)), *kinds]


def buffer_bytes(a: Architecture, itemsize: int) -> int:
    """Bytes of rotary frequencies, scales and the layers' tables."""
    tables = [a.listing.layer(a.attention_kind(layer)).buffers for layer in range(a.num_layers)]
    rotary = sum(rotary_buffer_bytes(channels, long=a.long_rotation) for channels in a.listing.rotations)
    scales = a.listing.scales * allocated_bytes(1, itemsize)
    return rotary + scales + sum(allocated_bytes(values, 4) for values in tables)


FAMILY = Family(
    name="listed",
    models=("Gemma 4", "Llama 4", "Nemotron-H", "Granite 4", "Falcon-H1", "LFM2"),
    parameters=parameters,
    buffer_bytes=buffer_bytes,
    generates=True,
    why_untrained="what its operations keep for backward was not traced",
)
