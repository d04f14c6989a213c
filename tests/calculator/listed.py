"""Random small configs of models, to compare weights and caches."""

from random import Random


def drawn_listed(kind: str, draw: Random) -> dict:
    """A random small config of a family; kernels of experts take only widths that are multiples of 8."""
    heads, keys = draw.choice([(4, 2), (6, 3), (2, 1), (4, 4)])
    values = {
        "vocab_size": draw.randint(20, 300), "hidden_size": heads * draw.choice([8, 16, 24]),
        "intermediate_size": 8 * draw.randint(2, 9), "num_hidden_layers": draw.randint(1, 6),
        "num_attention_heads": heads, "num_key_value_heads": keys, "pad_token_id": 0,
        "tie_word_embeddings": _coin(draw),
    }  # fmt: skip
    return {"model_type": kind, **values, **_OWN[kind](draw, values)}


def _coin(draw: Random) -> bool:
    return draw.random() < 0.5


def _window(draw: Random) -> dict:
    return {"sliding_window": draw.randint(2, 12)}


def _experts(draw: Random, name: str) -> dict:
    return {name: draw.randint(2, 5), "num_experts_per_tok": 2, "moe_intermediate_size": 8 * draw.randint(1, 4)}


def _gpt_oss(draw: Random, values: dict) -> dict:
    own = {"head_dim": draw.choice([8, 16]), "hidden_size": 8 * draw.randint(2, 8), "attention_bias": _coin(draw)}
    return own | _experts(draw, "num_local_experts") | _window(draw)


def _glm4_moe(draw: Random, values: dict) -> dict:
    return {
        "head_dim": draw.choice([8, 16]), **_experts(draw, "n_routed_experts"), "n_routed_experts": 4,
        "n_group": draw.choice([1, 2]), "topk_group": 1, "first_k_dense_replace": draw.randint(0, 2),
        "use_qk_norm": _coin(draw), "attention_bias": _coin(draw), "n_shared_experts": draw.randint(1, 2),
    }  # fmt: skip


def _qwen2_moe(draw: Random, values: dict) -> dict:
    own = {"shared_expert_intermediate_size": draw.randint(4, 40), "decoder_sparse_step": draw.randint(1, 2)}
    own |= {"qkv_bias": _coin(draw), "use_sliding_window": _coin(draw), "max_window_layers": draw.randint(1, 5)}
    return own | _experts(draw, "num_experts") | _window(draw)


def _cohere(draw: Random, values: dict) -> dict:
    return {"attention_bias": _coin(draw), "use_qk_norm": _coin(draw)}


def _gemma4(draw: Random, values: dict) -> dict:
    layers = draw.randint(3, 6)
    types = [*draw.choices(["sliding_attention", "full_attention"], k=layers - 3), "sliding_attention"]
    own = {"layer_types": [*types, "full_attention", "full_attention"], "num_kv_shared_layers": draw.choice([0, 1])}
    own |= {"num_hidden_layers": layers, "head_dim": draw.choice([8, 16]), **_window(draw)}
    own |= {"global_head_dim": draw.choice([16, 24, 264])}
    own |= {"attention_k_eq_v": _coin(draw), "num_global_key_value_heads": draw.choice([None, 1])}
    return own | {"use_double_wide_mlp": _coin(draw), "attention_bias": _coin(draw)}


def _gemma4_text(draw: Random, values: dict) -> dict:
    own = _gemma4(draw, values) | {"hidden_size_per_layer_input": draw.choice([0, 8, 12])}
    if not own["hidden_size_per_layer_input"]:  # transformers' code reads these inputs where layers share keys
        own["num_kv_shared_layers"] = 0
    own |= {"vocab_size_per_layer_input": values["vocab_size"], "enable_moe_block": _coin(draw)}
    experts = {"num_experts": draw.randint(2, 5), "top_k_experts": 2, "moe_intermediate_size": 8 * draw.randint(1, 4)}
    return own | (experts if own["enable_moe_block"] else {})


def _llama4(draw: Random, values: dict) -> dict:
    own = {"head_dim": draw.choice([8, 16]), "attention_bias": _coin(draw), "attention_chunk_size": draw.randint(2, 12)}
    own |= {"num_local_experts": draw.randint(2, 5), "intermediate_size_mlp": 8 * draw.randint(1, 9)}
    own |= {"no_rope_layer_interval": draw.randint(2, 4), "interleave_moe_layer_step": draw.randint(1, 2)}
    layers = range(values["num_hidden_layers"])
    return own | ({"moe_layers": [layer for layer in layers if _coin(draw)]} if _coin(draw) else {})


def _state_space(draw: Random) -> dict:
    own = {"mamba_n_heads": draw.choice([2, 4]), "mamba_n_groups": draw.choice([1, 2]), "mamba_chunk_size": 16}
    return own | {"mamba_d_state": draw.randint(3, 9), "mamba_d_conv": draw.randint(2, 4)}


def _falcon_h1(draw: Random, values: dict) -> dict:
    own, width = _state_space(draw), draw.choice([4, 8])
    flags = ("mamba_rms_norm", "mamba_proj_bias", "mamba_conv_bias", "projectors_bias", "attention_bias", "mlp_bias")
    own |= {"mamba_d_head": width, "mamba_d_ssm": width * own["mamba_n_heads"]}
    return own | {name: _coin(draw) for name in flags}


def _granite_hybrid(draw: Random, values: dict) -> dict:
    others = draw.choices(["mamba", "attention"], k=values["num_hidden_layers"] - 1)
    return _state_space(draw) | {
        "hidden_size": 8 * values["num_attention_heads"], "num_local_experts": draw.choice([0, 3]),
        "num_experts_per_tok": 2, "shared_intermediate_size": draw.randint(4, 40), "mamba_proj_bias": _coin(draw),
        "attention_bias": _coin(draw), "position_embedding_type": draw.choice([None, "rope"]),
        "layer_types": [*others, "attention"],
    }  # fmt: skip


def _nemotron_h(draw: Random, values: dict) -> dict:
    layers = values.pop("num_hidden_layers")
    return {
        "hybrid_override_pattern": "".join(draw.choices("M*-E", k=layers)) + "*M", "head_dim": draw.choice([8, 16]),
        "mamba_num_heads": draw.choice([2, 4]), "mamba_head_dim": draw.choice([4, 8]), "n_groups": draw.choice([1, 2]),
        "ssm_state_size": draw.randint(3, 9), "conv_kernel": draw.randint(2, 4), "chunk_size": 16, "n_group": 1,
        "topk_group": 1, **_experts(draw, "n_routed_experts"), "moe_latent_size": draw.choice([None, 16]),
        "moe_shared_expert_intermediate_size": draw.randint(4, 40), "mlp_bias": _coin(draw), "use_bias": _coin(draw),
        "use_conv_bias": _coin(draw),
    }  # fmt: skip


def _lfm2(draw: Random, values: dict) -> dict:
    others = draw.choices(["conv", "full_attention"], k=values["num_hidden_layers"] - 1)
    own = {"conv_L_cache": draw.randint(2, 4), "conv_bias": _coin(draw), "block_multiple_of": 8}
    return own | {"block_auto_adjust_ff_dim": _coin(draw), "layer_types": [*others, "full_attention"]}


_OWN = {
    "gpt_oss": _gpt_oss,
    "glm4_moe": _glm4_moe,
    "qwen2_moe": _qwen2_moe,
    "olmo2": lambda draw, values: {"attention_bias": _coin(draw)},
    "olmo3": lambda draw, values: {"attention_bias": _coin(draw)} | _window(draw),
    "starcoder2": lambda draw, values: {"use_bias": _coin(draw)} | (_window(draw) if _coin(draw) else {}),
    "gemma": lambda draw, values: {"head_dim": draw.choice([8, 16]), "attention_bias": _coin(draw)},
    "cohere": _cohere,
    "cohere2": lambda draw, values: {"attention_bias": _coin(draw)} | _window(draw),
    "gemma4_text": _gemma4_text,
    "gemma4_unified_text": _gemma4,
    "llama4_text": _llama4,
    "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granite_hybrid,
    "nemotron_h": _nemotron_h,
    "lfm2": _lfm2,
}
"""For each `model_type`, the values of its own."""
