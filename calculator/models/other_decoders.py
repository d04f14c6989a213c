"""Decoders whose code is not Llama's: OLMo, StarCoder2, Command R, gpt-oss, Qwen2-MoE and GLM-4.5.

Sizes and defaults are those of transformers 5.23 (models/*/configuration_*.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from calculator.errors import BadSetup
from calculator.models.architecture import Architecture
from calculator.models.config_values import (
    activation_of,
    even,
    flag,
    has_long_rotation,
    head_width,
    share,
    size,
    switched_off,
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

Config = Mapping[str, object]
ACTIVATIONS = ("silu", "gelu", "relu", "gelu_pytorch_tanh")


def _decoder(
    config: Config,
    family: str,
    *,
    layers: int,
    hidden: int,
    heads: tuple[int, int],
    inner: int,
    vocabulary: int,
    positions: int,
    head_dim: int | None = None,
    activation: str = "silu",
    rotated: float = 1.0,
    kinds: list[str] | None = None,
    **other: object,
) -> Architecture:
    """Reads a model from its config; arguments up to `positions` are transformers' defaults for values that it lacks.

    Args:
        config: Published config of the model.
        family: Name of the calculator's family.
        layers: Number of layers.
        hidden: Width of the residual stream.
        heads: Heads of queries and of keys; 0 heads of keys: as many.
        inner: Width of the feed-forward.
        vocabulary: Rows of the embedding.
        positions: Tokens for which the model was trained.
        head_dim: Width of a head; None: the heads divide the residual stream.
        activation: Activation of the feed-forward.
        rotated: Share of a head's channels that are rotated.
        kinds: The kind of each layer; None: all are "full".
        other: Further fields of an architecture.
    """
    width, longest = size(config, hidden, "hidden_size"), trained_length(config, positions)
    num_heads, key_heads = grouped_heads(config, *heads)
    own = config.get("head_dim", head_dim) is not None
    width_of_head = even(config, head_dim, "head_dim") if own else head_width(width, num_heads)
    function = activation_of(config, activation, "hidden_act", ACTIVATIONS)
    return Architecture(
        name=f"config ({config.get('model_type')})",
        family=family,
        hidden_size=width,
        num_layers=layers,
        num_heads=num_heads,
        num_key_value_heads=key_heads,
        head_dim=width_of_head,
        intermediate_size=size(config, inner, "intermediate_size"),
        vocab_size=size(config, vocabulary, "vocab_size"),
        sequence_length=min(longest, USUAL_LENGTH),
        max_positions=longest,
        activation="gelu_tanh" if function == "gelu_pytorch_tanh" else function,
        attention_dropout=share(config, 0.0, "attention_dropout"),
        rotary_dim=rotated_channels(config, width_of_head, rotated) if rotated < 1 else width_of_head,
        long_rotation=has_long_rotation(config),
        attention_cycle=cycle_of(kinds or ["full"] * layers),
        **({"gated": True, "dropout": 0.0, "tied_embeddings": tied(config, False)} | other),
    )


def _windows(config: Config, layers: int, every: int) -> list[str]:
    """Reads the kinds of layers from the config's list; without a list, all are "sliding" except every `every`-th."""
    return layer_types(config, layers) or ["sliding" if (layer + 1) % every != 0 else "full" for layer in range(layers)]


def _biased(config: Config, name: str, default: bool) -> dict[str, bool]:
    biased = flag(config, default, name)
    return {"projection_bias": biased, "output_bias": biased}


def olmo_config(config: Config) -> Architecture:
    """Reads a config of OLMo 2 or 3."""
    layers, newer = size(config, 32, "num_hidden_layers"), config.get("model_type") == "olmo3"
    return _decoder(
        config,
        "olmo",
        layers=layers,
        hidden=4096,
        heads=(32, 0),
        inner=11_008,
        vocabulary=50_304,
        positions=2048,
        kinds=_windows(config, layers, 4) if newer else None,
        sliding_window=size(config, 4096, "sliding_window") if newer else 0,
        **_biased(config, "attention_bias", False),
    )


def starcoder2_config(config: Config) -> Architecture:
    """Reads a config of StarCoder2."""
    layers, dropout = size(config, 30, "num_hidden_layers"), share(config, 0.0, "residual_dropout")
    slides = config.get("sliding_window") is not None
    switched_off(config, embedding_dropout=dropout)
    return _decoder(
        config,
        "starcoder2",
        layers=layers,
        hidden=3072,
        heads=(24, 2),
        inner=12_288,
        vocabulary=49_152,
        positions=4096,
        activation="gelu_pytorch_tanh",
        kinds=["sliding" if slides else "full"] * layers,
        sliding_window=size(config, None, "sliding_window") if slides else 0,
        gated=False,
        dropout=dropout,
        feed_forward_bias=flag(config, True, "use_bias"),
        tied_embeddings=tied(config, True),
        **_biased(config, "use_bias", True),
    )


def cohere_config(config: Config) -> Architecture:
    """Reads a config of Command R (Cohere) or Command R7B (Cohere 2)."""
    layers, newer = size(config, 40, "num_hidden_layers"), config.get("model_type") == "cohere2"
    window: dict[str, object] = {}
    if newer:
        kinds = _windows(config, layers, size(config, 4, "sliding_window_pattern"))
        window = {"sliding_window": size(config, 4096, "sliding_window")}
        window["kinds"] = [kind if kind == "sliding" else "full unrotated" for kind in kinds]
    return _decoder(
        config,
        "cohere",
        layers=layers,
        hidden=8192,
        heads=(64, 0),
        inner=22_528,
        vocabulary=256_000,
        positions=8192,
        head_norms=not newer and flag(config, False, "use_qk_norm"),
        logit_scale=True,
        tied_embeddings=tied(config, True),
        **window,
        **_biased(config, "attention_bias", False),
    )


def gpt_oss_config(config: Config) -> Architecture:
    """Reads a config of gpt-oss."""
    layers = size(config, 36, "num_hidden_layers")
    number, chosen = numbers_of_experts(config, 128, 4)
    switched_off(config, output_router_logits=False)
    return _decoder(
        config,
        "gpt-oss",
        layers=layers,
        hidden=2880,
        heads=(64, 8),
        inner=2880,
        vocabulary=201_088,
        positions=131_072,
        head_dim=64,
        kinds=[f"{kind} experts" for kind in _windows(config, layers, 2)],
        sliding_window=size(config, 128, "sliding_window"),
        num_experts=number,
        experts_per_token=chosen,
        expert_size=size(config, 2880, "intermediate_size"),
        mxfp4=True,
        fusable=False,
        **_biased(config, "attention_bias", True),
    )


def qwen2_moe_config(config: Config) -> Architecture:
    """Reads a config of Qwen2-MoE."""
    layers = size(config, 24, "num_hidden_layers")
    number, chosen = numbers_of_experts(config, 60, 4)
    switched_off(config, output_router_logits=False)
    slides = flag(config, False, "use_sliding_window") and bool(config.get("sliding_window", 4096))
    first = 0 if config.get("max_window_layers") == 0 else size(config, 28, "max_window_layers")
    usual = ["sliding" if slides and layer < first and layer % 2 == 0 else "full" for layer in range(layers)]
    kinds = zip(layer_types(config, layers) or usual, sparse_layers(config, layers), strict=True)
    return _decoder(
        config,
        "qwen2-moe",
        layers=layers,
        hidden=2048,
        heads=(16, 16),
        inner=5632,
        vocabulary=151_936,
        positions=32_768,
        kinds=[f"{seen} {'experts' if sparse else 'dense'}" for seen, sparse in kinds],
        sliding_window=size(config, 4096, "sliding_window") if slides else 0,
        projection_bias=flag(config, True, "qkv_bias"),
        num_experts=number,
        experts_per_token=chosen,
        expert_size=size(config, 1408, "moe_intermediate_size"),
        shared_size=size(config, 5632, "shared_expert_intermediate_size"),
        scaled_choice=flag(config, False, "norm_topk_prob"),
    )


def glm4_moe_config(config: Config) -> Architecture:
    """Reads a config of GLM-4.5, without the layers that predict further tokens."""
    layers = size(config, 46, "num_hidden_layers")
    number = size(config, 128, "n_routed_experts", "num_local_experts")
    chosen = size(config, 8, "num_experts_per_tok")
    groups, opened = size(config, 1, "n_group"), size(config, 1, "topk_group")
    if number % groups or number // groups < 2 or opened > groups or chosen > number // groups * opened:
        raise BadSetup(
            f"In config, {groups} groups (n_group) divide the {number} experts, topk_group is at most that many, and "
            f"its groups hold num_experts_per_tok experts."
        )
    dense = 0 if config.get("first_k_dense_replace") == 0 else size(config, 1, "first_k_dense_replace")
    return _decoder(
        config,
        "glm4-moe",
        layers=layers,
        hidden=4096,
        heads=(96, 8),
        inner=10_944,
        vocabulary=151_552,
        positions=131_072,
        kinds=["full dense" if layer < dense else "full experts" for layer in range(layers)],
        rotated=0.5,
        projection_bias=flag(config, False, "attention_bias"),
        head_norms=flag(config, False, "use_qk_norm"),
        num_experts=number,
        experts_per_token=chosen,
        expert_size=size(config, 1408, "moe_intermediate_size"),
        shared_experts=size(config, 1, "n_shared_experts"),
        expert_groups=groups,
        open_groups=opened,
        scaled_choice=flag(config, True, "norm_topk_prob"),
    )


OTHER_READERS: dict[str, Callable[[Config], Architecture]] = {
    **dict.fromkeys(("olmo2", "olmo3"), olmo_config),
    "starcoder2": starcoder2_config,
    **dict.fromkeys(("cohere", "cohere2"), cohere_config),
    "qwen2_moe": qwen2_moe_config,
    "glm4_moe": glm4_moe_config,
    "gpt_oss": gpt_oss_config,
}
"""For each `model_type`, the function that reads its config."""


def _config(kind: str, heads: tuple[int, int], **values: object) -> dict[str, object]:
    """Makes a config in the published form; `heads` are the numbers of heads of queries and of keys."""
    return {"model_type": kind, "num_attention_heads": heads[0], "num_key_value_heads": heads[1], **values}


_GPT_OSS = {"head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880, "vocab_size": 201_088}
_STARCODER2 = dict.fromkeys(("attention_dropout", "residual_dropout", "embedding_dropout"), 0.1)
_STARCODER2 |= {"sliding_window": 4096, "max_position_embeddings": 16_384}
_OLMO2 = {"vocab_size": 100_352, "max_position_embeddings": 4096}

PUBLISHED: dict[str, dict[str, object]] = {
    # OLMo team 2025, arXiv:2501.00656, table 3; the released checkpoints
    "olmo-2-1b": _config(
        "olmo2", (16, 16), hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, **_OLMO2,
    ),
    "olmo-2-7b": _config("olmo2", (32, 32), **_OLMO2),
    # Lozhkov et al. 2024, arXiv:2402.19173, table 7; the released checkpoints
    "starcoder2-3b": _config("starcoder2", (24, 2), **_STARCODER2),
    "starcoder2-7b": _config(
        "starcoder2", (36, 4), hidden_size=4608, intermediate_size=18_432, num_hidden_layers=32, **_STARCODER2,
    ),
    # the released checkpoints: Cohere's Command R7B of December 2024, Qwen1.5-MoE-A2.7B, GLM-4.5-Air
    "command-r7b": _config(
        "cohere2", (32, 8), hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32,
        max_position_embeddings=132_096,
    ),
    "qwen1.5-moe-a2.7b": _config("qwen2_moe", (16, 16), max_position_embeddings=8192),
    "glm-4.5-air": _config("glm4_moe", (96, 8), head_dim=128, attention_bias=True),
    # OpenAI 2025, arXiv:2508.10925, table 1; the released checkpoints, whose experts are in MXFP4
    "gpt-oss-20b": _config("gpt_oss", (64, 8), num_hidden_layers=24, num_local_experts=32, **_GPT_OSS),
    "gpt-oss-120b": _config("gpt_oss", (64, 8), num_hidden_layers=36, num_local_experts=128, **_GPT_OSS),
}  # fmt: skip
"""For each preset, what its published config says."""
OTHER_DECODERS: tuple[Architecture, ...] = tuple(
    [replace(OTHER_READERS[config["model_type"]](config), name=name) for name, config in PUBLISHED.items()]
)
