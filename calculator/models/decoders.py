"""The decoders of today: their presets, and any of their families from a Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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

USUAL_LENGTH = 4096
"""Tokens per sequence if a setup gives none. These models accept up to a million tokens,
but are rarely trained on sequences of that length."""


_USUAL: dict[str, object] = {
    "family": "llama", "activation": "silu", "gated": True, "dropout": 0.0, "attention_dropout": 0.0,
    "tied_embeddings": False,
}  # fmt: skip


def _llama(
    name: str,
    hidden_size: int,
    intermediate_size: int,
    num_layers: int,
    heads: tuple[int, int, int],
    vocab_size: int,
    positions: int,
    **other: object,
) -> Architecture:
    """Makes a preset; `heads` are the number of query heads, the number of key heads, and the width of a head."""
    num_heads, key_heads, head_dim = heads
    return Architecture(
        name=name,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_key_value_heads=key_heads,
        head_dim=head_dim,
        intermediate_size=intermediate_size,
        vocab_size=vocab_size,
        sequence_length=min(positions, USUAL_LENGTH),
        max_positions=positions,
        **(_USUAL | {"rotary_dim": head_dim} | other),
    )


TIED = {"tied_embeddings": True}
QWEN2, QWEN3 = {"projection_bias": True}, {"head_norms": True}
EXPERTS = {"family": "mixture", "attention_cycle": ("full experts",)}
GEMMA = {"family": "gemma", "activation": "gelu_tanh", "tied_embeddings": True}
GEMMA2 = GEMMA | {
    "norms_after": True, "attention_cycle": ("sliding", "full"), "sliding_window": 4096, "softcap": True,
    "logit_softcap": True, "fusable": False,
}  # fmt: skip
GEMMA3 = GEMMA | {"norms_after": True, "attention_cycle": ("sliding",) * 5 + ("full",), "head_norms": True}
UNROTATED_4TH = ("full", "full", "full", "full unrotated")
PHI3 = {"joined_projections": True}

DECODERS: tuple[Architecture, ...] = (
    # Touvron et al. 2023, arXiv:2307.09288; Grattafiori et al. 2024, arXiv:2407.21783; the released checkpoints
    _llama("llama-2-7b", 4096, 11_008, 32, (32, 32, 128), 32_000, 4096),
    _llama("llama-3.2-1b", 2048, 8192, 16, (32, 8, 64), 128_256, 131_072, **TIED),
    _llama("llama-3.2-3b", 3072, 8192, 28, (24, 8, 128), 128_256, 131_072, **TIED),
    _llama("llama-3.1-8b", 4096, 14_336, 32, (32, 8, 128), 128_256, 131_072),
    _llama("llama-3.1-70b", 8192, 28_672, 80, (64, 8, 128), 128_256, 131_072),
    # Jiang et al. 2023, arXiv:2310.06825; the released checkpoint v0.3, which has no sliding window
    _llama("mistral-7b", 4096, 14_336, 32, (32, 8, 128), 32_768, 32_768),
    # Qwen team 2024, arXiv:2412.15115; the released checkpoints
    _llama("qwen2.5-0.5b", 896, 4864, 24, (14, 2, 64), 151_936, 32_768, **TIED, **QWEN2),
    _llama("qwen2.5-7b", 3584, 18_944, 28, (28, 4, 128), 152_064, 131_072, **QWEN2),
    # Qwen team 2025, arXiv:2505.09388, table 1; the released checkpoints
    _llama("qwen3-0.6b", 1024, 3072, 28, (16, 8, 128), 151_936, 40_960, **TIED, **QWEN3),
    _llama("qwen3-1.7b", 2048, 6144, 28, (16, 8, 128), 151_936, 40_960, **TIED, **QWEN3),
    _llama("qwen3-4b", 2560, 9728, 36, (32, 8, 128), 151_936, 40_960, **TIED, **QWEN3),
    _llama("qwen3-8b", 4096, 12_288, 36, (32, 8, 128), 151_936, 40_960, **QWEN3),
    _llama("qwen3-14b", 5120, 17_408, 40, (40, 8, 128), 151_936, 40_960, **QWEN3),
    _llama("qwen3-32b", 5120, 25_600, 64, (64, 8, 128), 151_936, 40_960, **QWEN3),
    # Allal et al. 2025, arXiv:2502.02737; the released checkpoints
    _llama("smollm2-135m", 576, 1536, 30, (9, 3, 64), 49_152, 8192, **TIED),
    _llama("smollm2-360m", 960, 2560, 32, (15, 5, 64), 49_152, 8192, **TIED),
    _llama("smollm2-1.7b", 2048, 8192, 24, (32, 32, 64), 49_152, 8192, **TIED),
    _llama("smollm3-3b", 2048, 11_008, 36, (16, 4, 128), 128_256, 65_536, **TIED, attention_cycle=UNROTATED_4TH),
    # Abdin et al. 2024, arXiv:2404.14219, arXiv:2412.08905; the released checkpoints (mini: 4k instruct)
    _llama(
        "phi-3-mini",
        3072,
        8192,
        32,
        (32, 32, 96),
        32_064,
        4096,
        **PHI3,
        sliding_window=2047,
        attention_cycle=("sliding",),
    ),
    _llama("phi-4", 5120, 17_920, 40, (40, 10, 128), 100_352, 16_384, **PHI3),
    # Jiang et al. 2024, arXiv:2401.04088; Qwen team 2025, arXiv:2505.09388, table 2; the released checkpoints
    _llama(
        "mixtral-8x7b",
        4096,
        14_336,
        32,
        (32, 8, 128),
        32_000,
        32_768,
        **EXPERTS,
        num_experts=8,
        experts_per_token=2,
        expert_size=14_336,
    ),
    _llama(
        "qwen3-30b-a3b",
        2048,
        6144,
        48,
        (32, 4, 128),
        151_936,
        40_960,
        **EXPERTS,
        **QWEN3,
        num_experts=128,
        experts_per_token=8,
        expert_size=768,
    ),
    # DeepSeek-AI 2024, arXiv:2412.19437, section 4.2; the released checkpoint without its multi-token prediction
    _llama(
        "deepseek-v3",
        7168,
        18_432,
        61,
        (128, 0, 192),
        129_280,
        163_840,
        family="deepseek",
        num_experts=256,
        experts_per_token=8,
        expert_size=2048,
        shared_experts=1,
        expert_groups=8,
        open_groups=4,
        query_rank=1536,
        latent_dim=512,
        value_dim=128,
        attention_cycle=("full dense",) * 3 + ("full experts",) * 58,
        rotary_dim=64,
    ),
    # Gemma team 2024, arXiv:2403.08295 and arXiv:2408.00118, table 1; 2025, arXiv:2503.19786, table 1: the text models
    _llama("gemma-2b", 2048, 16_384, 18, (8, 1, 256), 256_000, 8192, **GEMMA),
    _llama("gemma-7b", 3072, 24_576, 28, (16, 16, 256), 256_000, 8192, **GEMMA),
    _llama("gemma-2-2b", 2304, 9216, 26, (8, 4, 256), 256_000, 8192, **GEMMA2),
    _llama("gemma-2-9b", 3584, 14_336, 42, (16, 8, 256), 256_000, 8192, **GEMMA2),
    _llama("gemma-3-1b", 1152, 6912, 26, (4, 1, 256), 262_144, 32_768, **GEMMA3, sliding_window=512),
    _llama("gemma-3-4b", 2560, 10_240, 34, (8, 4, 256), 262_208, 131_072, **GEMMA3, sliding_window=1024),
    _llama("gemma-3-12b", 3840, 15_360, 48, (16, 8, 256), 262_208, 131_072, **GEMMA3, sliding_window=1024),
    _llama("gemma-3-27b", 5376, 21_504, 62, (32, 16, 128), 262_208, 131_072, **GEMMA3, sliding_window=1024),
)


_DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"feed_forward": 11_008, "vocabulary": 32_000, "positions": 2048, "layers": 32, "hidden": 4096},
    "mistral": {"feed_forward": 14_336, "vocabulary": 32_000, "positions": 131_072, "layers": 32, "hidden": 4096},
    "qwen2": {"feed_forward": 22_016, "vocabulary": 151_936, "positions": 32_768, "layers": 32, "hidden": 4096},
    "qwen3": {"feed_forward": 22_016, "vocabulary": 151_936, "positions": 32_768, "layers": 32, "hidden": 4096},
    "smollm3": {"feed_forward": 11_008, "vocabulary": 128_256, "positions": 32_768, "layers": 36, "hidden": 2048},
    "phi3": {"feed_forward": 8192, "vocabulary": 32_064, "positions": 4096, "layers": 32, "hidden": 3072},
}
"""Defaults of transformers 5.23 for values that a config lacks (models/*/configuration_*.py)."""


def gemma_config(config: Mapping[str, object]) -> Architecture:
    """Reads a config of Gemma 1, 2 or 3; of a model that reads pictures, its text model."""
    kind = config.get("model_type")
    if kind == "gemma3":
        text = config.get("text_config") or {}
        if not isinstance(text, Mapping):
            raise BadSetup(f"text_config in config is an object, not {text!r:.60}.")
        return gemma_config({**text, "model_type": "gemma3_text"})
    first, newer = kind == "gemma", kind == "gemma3_text"
    num_layers = size(config, 28 if first else 26, "num_hidden_layers")
    positions = size(config, 131_072 if newer else 8192, "max_position_embeddings")
    head_dim = even(config, 256, "head_dim")
    num_heads, key_heads = grouped_heads(config, *((16, 16) if first else (8, 4)))
    cycle = () if first else cycle_of(_gemma_kinds(config, num_layers, newer))
    if not first:  # of the first Gemma, PaliGemma has it: what a prompt sees changes no bytes
        switched_off(config, use_bidirectional_attention=False)
    biased = flag(config, False, "attention_bias")
    return Architecture(
        name=f"config ({kind})",
        family="gemma",
        hidden_size=size(config, 3072 if first else 2304, "hidden_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_key_value_heads=key_heads,
        head_dim=head_dim,
        intermediate_size=size(config, 24_576 if first else 9216, "intermediate_size"),
        vocab_size=size(config, 262_208 if newer else 256_000, "vocab_size"),
        sequence_length=min(positions, USUAL_LENGTH),
        max_positions=positions,
        activation=_gemma_activation(config, first),
        gated=True,
        dropout=0.0,
        attention_dropout=share(config, 0.0, "attention_dropout"),
        tied_embeddings=tied(config, True),
        rotary_dim=head_dim,
        long_rotation=has_long_rotation(config),
        projection_bias=biased,
        output_bias=biased,
        head_norms=newer,
        norms_after=not first,
        softcap=not (first or newer) and config.get("attn_logit_softcapping", 50.0) is not None,
        logit_softcap=not first and config.get("final_logit_softcapping", None if newer else 30.0) is not None,
        fusable=first or newer,
        sliding_window=0 if first else size(config, 4096, "sliding_window"),
        attention_cycle=cycle,
    )


def _gemma_activation(config: Mapping[str, object], first: bool) -> str:
    """Reads the activation; "gelu" in the config of a first Gemma means GELU by tanh to transformers."""
    accepted = ("gelu_pytorch_tanh", "gelu") if first else ("gelu_pytorch_tanh",)
    activation_of(config, "gelu_pytorch_tanh", "hidden_act" if first else "hidden_activation", accepted)
    return "gelu_tanh"


def _gemma_kinds(config: Mapping[str, object], layers: int, newer: bool) -> list[str]:
    """Sliding layers, of which every 6th (Gemma 2: every 2nd) sees all tokens."""
    # Gemma 2 does not read sliding_window_pattern.
    every = size(config, 6, "sliding_window_pattern") if newer else 2
    return layer_types(config, layers) or ["sliding" if (layer + 1) % every else "full" for layer in range(layers)]


def mixture_config(config: Mapping[str, object]) -> Architecture:
    """Reads a config of Mixtral or Qwen3-MoE."""
    kind = config.get("model_type")
    newer = kind == "qwen3_moe"
    layers = size(config, 24 if newer else 32, "num_hidden_layers")
    hidden_size = size(config, 2048 if newer else 4096, "hidden_size")
    num_heads, key_heads = grouped_heads(config, 32, 4 if newer else 8)
    own = config.get("head_dim") is not None
    head_dim = even(config, None, "head_dim") if own else head_width(hidden_size, num_heads)
    positions = trained_length(config, 32_768 if newer else 131_072)
    window = config.get("sliding_window", 4096 if newer else None)
    slides = window is not None and (not newer or flag(config, False, "use_sliding_window"))
    inner = size(config, 6144 if newer else 14_336, "intermediate_size")
    number, chosen = numbers_of_experts(config, *((128, 8) if newer else (8, 2)))
    switched_off(config, router_jitter_noise=0.0, output_router_logits=False)
    seen = "sliding" if slides else "full"
    sparse = sparse_layers(config, layers) if newer else [True] * layers
    biased = newer and flag(config, False, "attention_bias")
    return Architecture(
        name=f"config ({kind})",
        family="mixture",
        hidden_size=hidden_size,
        num_layers=layers,
        num_heads=num_heads,
        num_key_value_heads=key_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        vocab_size=size(config, 151_936 if newer else 32_000, "vocab_size"),
        sequence_length=min(positions, USUAL_LENGTH),
        max_positions=positions,
        activation=activation_of(config, "silu", "hidden_act", ("silu", "gelu", "relu")),
        gated=True,
        dropout=0.0,
        attention_dropout=share(config, 0.0, "attention_dropout"),
        tied_embeddings=tied(config, False),
        rotary_dim=head_dim,
        long_rotation=has_long_rotation(config),
        projection_bias=biased,
        output_bias=biased,
        head_norms=newer,
        sliding_window=size(config, 4096, "sliding_window") if slides else 0,
        num_experts=number,
        experts_per_token=chosen,
        expert_size=size(config, 768, "moe_intermediate_size") if newer else inner,
        scaled_choice=not newer or flag(config, False, "norm_topk_prob"),
        attention_cycle=cycle_of([f"{seen} {'experts' if layer else 'dense'}" for layer in sparse]),
    )


def deepseek_config(config: Mapping[str, object]) -> Architecture:
    """Reads a config of DeepSeek-V3, without the layers that predict further tokens, which transformers lacks."""
    layers = size(config, 61, "num_hidden_layers")
    num_heads = size(config, 128, "num_attention_heads")
    switched_off(config, num_key_value_heads=num_heads)
    turned = even(config, 64, "qk_rope_head_dim")
    positions = trained_length(config, 4096)
    number, chosen = size(config, 256, "n_routed_experts", "num_local_experts"), size(config, 8, "num_experts_per_tok")
    groups, opened = size(config, 8, "n_group"), size(config, 4, "topk_group")
    if number % groups or number // groups < 2 or opened > groups or chosen > number // groups * opened:
        raise BadSetup(
            f"In config, {groups} groups (n_group) divide the {number} experts, topk_group is at most that many, and "
            f"its groups hold num_experts_per_tok experts."
        )
    dense = 0 if config.get("first_k_dense_replace") == 0 else size(config, 3, "first_k_dense_replace")
    biased = flag(config, False, "attention_bias")
    return Architecture(
        name="config (deepseek_v3)",
        family="deepseek",
        hidden_size=size(config, 7168, "hidden_size"),
        num_layers=layers,
        num_heads=num_heads,
        head_dim=size(config, 128, "qk_nope_head_dim") + turned,
        intermediate_size=size(config, 18_432, "intermediate_size"),
        vocab_size=size(config, 129_280, "vocab_size"),
        sequence_length=min(positions, USUAL_LENGTH),
        max_positions=positions,
        activation=activation_of(config, "silu", "hidden_act", ("silu", "gelu", "relu")),
        gated=True,
        dropout=0.0,
        attention_dropout=share(config, 0.0, "attention_dropout"),
        tied_embeddings=tied(config, False),
        rotary_dim=turned,
        long_rotation=has_long_rotation(config),
        projection_bias=biased,
        output_bias=biased,
        num_experts=number,
        experts_per_token=chosen,
        expert_size=size(config, 2048, "moe_intermediate_size"),
        shared_experts=size(config, 1, "n_shared_experts"),
        expert_groups=groups,
        open_groups=opened,
        query_rank=0 if config.get("q_lora_rank", 1536) is None else size(config, 1536, "q_lora_rank"),
        latent_dim=size(config, 512, "kv_lora_rank"),
        value_dim=size(config, 128, "v_head_dim"),
        interleaved=flag(config, True, "rope_interleave"),
        scaled_choice=flag(config, True, "norm_topk_prob"),
        attention_cycle=cycle_of(["full dense" if layer < dense else "full experts" for layer in range(layers)]),
    )


def sparse_layers(config: Mapping[str, object], layers: int) -> list[bool]:
    """Reads for each layer whether it has experts (Qwen3-MoE, Qwen3-Next)."""
    dense, step = config.get("mlp_only_layers") or [], size(config, 1, "decoder_sparse_step")
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise BadSetup(f"mlp_only_layers in config is a list of numbers of layers, not {dense!r:.60}.")
    dense = frozenset(dense)  # of thousands of numbers, each layer would look through all
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]


def numbers_of_experts(config: Mapping[str, object], number: int, chosen: int) -> tuple[int, int]:
    """Reads the number of a layer's experts, and of those that compute a token."""
    # transformers writes either name, whichever a config had.
    number = size(config, number, "num_experts", "num_local_experts")
    chosen = size(config, chosen, "num_experts_per_tok")
    if chosen > number:
        raise BadSetup(f"num_experts_per_tok in config is at most the {number} experts, not {chosen}.")
    return number, chosen


def grouped_heads(config: Mapping[str, object], heads: int, keys: int) -> tuple[int, int]:
    """Reads the numbers of query heads and of key heads; null stands for as many key heads as query heads."""
    num_heads = size(config, heads, "num_attention_heads")
    # Where the config says null, every head has its own keys; where it says nothing, the family's default counts.
    name = "num_key_value_heads"
    key_heads = size({name: config.get(name, keys or None)}, num_heads, name)
    if num_heads % key_heads:
        raise BadSetup(f"The {num_heads} heads in config are not a multiple of its {key_heads} heads of keys.")
    return num_heads, key_heads


def llama_config(config: Mapping[str, object]) -> Architecture:
    """Reads a config of Llama, Mistral, Qwen2, Qwen3, SmolLM3 or Phi-3."""
    kind = config.get("model_type")
    default = _DEFAULTS[kind]
    hidden_size = size(config, default["hidden"], "hidden_size")
    num_layers = size(config, default["layers"], "num_hidden_layers")
    biased = kind == "qwen2" or (kind in ("llama", "qwen3", "smollm3") and flag(config, False, "attention_bias"))
    positions = trained_length(config, default["positions"])
    num_heads, key_heads, head_dim = _heads(config, kind, hidden_size)
    cycle = cycle_of(_kinds(config, kind, num_layers))
    return Architecture(
        name=f"config ({kind})",
        family="llama",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_key_value_heads=key_heads,
        head_dim=head_dim,
        intermediate_size=size(config, default["feed_forward"], "intermediate_size"),
        vocab_size=size(config, default["vocabulary"], "vocab_size"),
        sequence_length=min(positions, USUAL_LENGTH),
        max_positions=positions,
        activation=activation_of(config, "silu", "hidden_act", ("silu", "gelu", "relu")),
        gated=True,
        dropout=share(config, 0.0, "resid_pdrop") if kind == "phi3" else 0.0,
        attention_dropout=share(config, 0.0, "attention_dropout"),
        tied_embeddings=tied(config, kind == "smollm3"),
        rotary_dim=rotated_channels(config, head_dim) if kind == "phi3" else head_dim,
        long_rotation=has_long_rotation(config),
        projection_bias=biased,
        output_bias=biased and kind != "qwen2",
        feed_forward_bias=kind in ("llama", "smollm3") and flag(config, False, "mlp_bias"),
        head_norms=kind == "qwen3",
        joined_projections=kind == "phi3",
        sliding_window=_window(config, kind) if any("sliding" in layer for layer in cycle) else 0,
        spare_mask=kind in ("qwen2", "qwen3", "smollm3") and all("sliding" in layer for layer in cycle or ("full",)),
        attention_cycle=cycle,
    )


def _heads(config: Mapping[str, object], kind: str, hidden_size: int) -> tuple[int, int, int]:
    """Heads of queries, heads of keys and values, and their width."""
    keys = {"mistral": 8, "smollm3": 4}.get(kind, 0)
    num_heads, key_heads = grouped_heads(config, 16 if kind == "smollm3" else 32, keys)
    own = {"qwen3": 128}.get(kind)
    if config.get("head_dim") is None and own is None:
        return num_heads, key_heads, head_width(hidden_size, num_heads)
    return num_heads, key_heads, even(config, own, "head_dim")


def rotated_channels(config: Mapping[str, object], head_dim: int, default: float = 1.0) -> int:
    """Reads how many channels of a head are rotated; older configs have the share outside of the rotary parameters."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    own = parameters.get("partial_rotary_factor") if isinstance(parameters, Mapping) else None
    factor = own if own is not None else config.get("partial_rotary_factor", default)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1:
        raise BadSetup(f"partial_rotary_factor in config is a number above 0 and at most 1, not {factor!r:.60}.")
    channels = int(head_dim * factor)
    if channels < 2 or channels % 2:
        raise BadSetup(f"partial_rotary_factor in config gives {channels} rotated channels; use one that gives pairs.")
    return channels


def _window(config: Mapping[str, object], kind: str) -> int:
    """Tokens that a sliding layer attends to."""
    return size(config, 4096 if kind in ("mistral", "qwen2", "qwen3") else None, "sliding_window")


def _kinds(config: Mapping[str, object], kind: str, layers: int) -> list[str]:
    """The kind of each layer: "full" or "sliding", and "unrotated" where queries and keys are not rotated."""
    if kind == "llama":
        return ["full"] * layers
    if kind in ("mistral", "phi3"):
        slides = config.get("sliding_window", 4096 if kind == "mistral" else None) is not None
        return ["sliding" if slides else "full"] * layers
    slides = flag(config, False, "use_sliding_window") and config.get("sliding_window", 4096) is not None
    if kind == "smollm3":
        rotated = rotated_layers(config, layers)
        types = layer_types(config, layers) or ["sliding" if slides and not turn else "full" for turn in rotated]
        return [name if turn else f"{name} unrotated" for name, turn in zip(types, rotated, strict=True)]
    first = size(config, 28, "max_window_layers") if config.get("max_window_layers") != 0 else 0
    types = layer_types(config, layers)
    if types:
        return types if slides else ["full"] * layers
    return ["sliding" if slides and layer >= first else "full" for layer in range(layers)]


def rotated_layers(config: Mapping[str, object], layers: int) -> list[bool]:
    """Reads for each layer whether it rotates queries and keys (SmolLM3, Llama 4)."""
    given = config.get("no_rope_layers")
    if given is None:
        every = size(config, 4, "no_rope_layer_interval")
        return [(layer + 1) % every != 0 for layer in range(layers)]
    if not isinstance(given, list) or len(given) < layers or not all(value in (0, 1) for value in given):
        raise BadSetup(f"no_rope_layers in config is a list of 0 or 1 for each of the {layers} layers.")
    return [bool(value) for value in given[:layers]]


def layer_types(
    config: Mapping[str, object], layers: int, names: tuple[str, ...] = ("full_attention", "sliding_attention")
) -> list[str]:
    """The kinds of layers as the config lists them, such as "full"; empty if it does not."""
    given = config.get("layer_types")
    if given is None:
        return []
    if not isinstance(given, list) or len(given) != layers or not all(name in names for name in given):
        raise BadSetup(f"layer_types in config is a list of {' or '.join(names)} for each of the {layers} layers.")
    return [name.removesuffix("_attention") for name in given]


def cycle_of(kinds: list[str]) -> tuple[str, ...]:
    """The shortest cycle that, repeated, gives these kinds of layers; empty if all are "full".

    >>> cycle_of(["sliding", "full", "sliding"]), cycle_of(["full", "full"])
    (('sliding', 'full'), ())
    """
    # For each beginning, the longest shorter one with which it ends (Knuth, Morris and Pratt 1977). To try all lengths
    # would take ten seconds for as many thousand layers.
    ends = [0]
    for kind in kinds[1:]:
        length = ends[-1]
        while length and kind != kinds[length]:
            length = ends[length - 1]
        ends.append(length + (kind == kinds[length]))
    cycle = kinds[: len(kinds) - ends[-1]]
    return () if cycle == ["full"] else tuple(cycle)


DECODER_READERS: dict[str, Callable[[Mapping[str, object]], Architecture]] = {
    **dict.fromkeys(_DEFAULTS, llama_config),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "gemma3"), gemma_config),
    **dict.fromkeys(("mixtral", "qwen3_moe"), mixture_config),
    "deepseek_v3": deepseek_config,
}
"""For each `model_type`, the function that reads its config."""
