"""Qwen3-Next and Qwen3.5 from a Hugging Face `config.json`: most of their layers have linear attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from calculator.errors import BadSetup
from calculator.models.architecture import Architecture, LinearAttention
from calculator.models.config_values import (
    activation_of,
    even,
    flag,
    has_long_rotation,
    share,
    size,
    tied,
    trained_length,
)
from calculator.models.decoders import (
    USUAL_LENGTH,
    cycle_of,
    grouped_heads,
    layer_types,
    numbers_of_experts,
    rotated_channels,
    sparse_layers,
)

HYBRIDS_WITH_PICTURES = {"qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
"""For each model that reads pictures too, its text model, whose sizes are in `text_config`."""
_DEFAULTS: dict[str, dict[str, int]] = {
    "qwen3_next": {"hidden": 2048, "layers": 48, "keys": 2, "vocabulary": 151_936, "experts": 512, "chosen": 10},
    "qwen3_5_text": {"hidden": 4096, "layers": 32, "keys": 4, "vocabulary": 248_320},
    "qwen3_5_moe_text": {"hidden": 2048, "layers": 40, "keys": 2, "vocabulary": 248_320, "experts": 256, "chosen": 8},
}
"""Defaults of transformers 5.23 for values that a config lacks (models/*/configuration_*.py)."""


def hybrid_config(config: Mapping[str, object]) -> Architecture:
    """Reads a config of Qwen3-Next or Qwen3.5, without layers that predict further tokens or read pictures."""
    kind = config.get("model_type")
    if kind in HYBRIDS_WITH_PICTURES:
        text = config.get("text_config") or {}
        if not isinstance(text, Mapping):
            raise BadSetup(f"text_config in config is an object, not {text!r:.60}.")
        return hybrid_config({**text, "model_type": HYBRIDS_WITH_PICTURES[kind]})
    default = _DEFAULTS[kind]
    layers = size(config, default["layers"], "num_hidden_layers")
    num_heads, key_heads = grouped_heads(config, 16, default["keys"])
    head_dim = even(config, 256, "head_dim")
    positions = trained_length(config, 32_768)
    biased = flag(config, False, "attention_bias")
    kinds = zip(_attention_kinds(config, layers), _feed_forward_kinds(config, kind, layers), strict=True)
    return Architecture(
        name=f"config ({kind})",
        family="hybrid",
        hidden_size=size(config, default["hidden"], "hidden_size"),
        num_layers=layers,
        num_heads=num_heads,
        num_key_value_heads=key_heads,
        head_dim=head_dim,
        intermediate_size=size(config, 12_288 if kind == "qwen3_5_text" else 5632, "intermediate_size"),
        vocab_size=size(config, default["vocabulary"], "vocab_size"),
        sequence_length=min(positions, USUAL_LENGTH),
        max_positions=positions,
        activation=activation_of(config, "silu", "hidden_act", ("silu", "gelu", "relu")),
        gated=True,
        dropout=0.0,
        attention_dropout=share(config, 0.0, "attention_dropout"),
        tied_embeddings=tied(config, False),
        rotary_dim=rotated_channels(config, head_dim, 0.25),
        long_rotation=has_long_rotation(config),
        projection_bias=biased,
        output_bias=biased,
        head_norms=True,
        linear=_linear_attention(config, joined=kind == "qwen3_next"),
        attention_cycle=cycle_of([" ".join(both) for both in kinds]),
        **(_experts(config, default) if "experts" in default else {}),
    )


def _experts(config: Mapping[str, object], default: Mapping[str, int]) -> dict[str, int]:
    number, chosen = numbers_of_experts(config, default["experts"], default["chosen"])
    return {
        "num_experts": number,
        "experts_per_token": chosen,
        "expert_size": size(config, 512, "moe_intermediate_size"),
        "shared_size": size(config, 512, "shared_expert_intermediate_size"),
    }


def _linear_attention(config: Mapping[str, object], joined: bool) -> LinearAttention:
    own = LinearAttention(
        key_heads=size(config, 16, "linear_num_key_heads"),
        value_heads=size(config, 32, "linear_num_value_heads"),
        key_dim=size(config, 128, "linear_key_head_dim"),
        value_dim=size(config, 128, "linear_value_head_dim"),
        kernel_size=size(config, 4, "linear_conv_kernel_dim"),
        joined=joined,
    )
    if own.value_heads % own.key_heads:
        raise BadSetup(
            f"linear_num_value_heads in config is a multiple of the {own.key_heads} heads of keys "
            f"(linear_num_key_heads), not {own.value_heads}."
        )
    return own


def _attention_kinds(config: Mapping[str, object], layers: int) -> list[str]:
    """The attention of each layer as the config lists it; without a list, every 4th is "full" and others "linear"."""
    every = size(config, 4, "full_attention_interval")
    usual = ["linear" if (layer + 1) % every else "full" for layer in range(layers)]
    return layer_types(config, layers, ("full_attention", "linear_attention")) or usual


def _feed_forward_kinds(config: Mapping[str, object], kind: str, layers: int) -> list[str]:
    """Reads the feed-forward of each layer: "experts" or "dense"."""
    if kind == "qwen3_next":
        return ["experts" if sparse else "dense" for sparse in sparse_layers(config, layers)]
    return ["dense" if kind == "qwen3_5_text" else "experts"] * layers


HYBRID_READERS: dict[str, Callable[[Mapping[str, object]], Architecture]] = dict.fromkeys(
    (*_DEFAULTS, *HYBRIDS_WITH_PICTURES), hybrid_config
)
"""For each `model_type`, the function that reads its config."""
