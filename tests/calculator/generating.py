"""Configs of models that generate text: a small one of each family, published hybrid ones, and random ones."""

from random import Random

TINY = {"vocab_size": 50, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 4, "pad_token_id": 0}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
CASES = {
    "llama": {**TINY, **HEADS, "head_dim": 12},
    "mistral": {**TINY, **HEADS, "head_dim": 16, "sliding_window": 9},
    "qwen2": {**TINY, **HEADS, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2},
    "qwen3": {**TINY, **HEADS, "head_dim": 8},
    "smollm3": {**TINY, **HEADS},
    "mixtral": {**TINY, **HEADS, "num_local_experts": 2, "sliding_window": 9},
    "qwen3_moe": {**TINY, **HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "deepseek_v3": {
        **TINY,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "kv_lora_rank": 24,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
    "gemma2": {**TINY, **HEADS, "head_dim": 8, "sliding_window": 9},
    "gemma3_text": {**TINY, **HEADS, "head_dim": 8, "sliding_window": 9, "num_hidden_layers": 7},
    "phi3": {**TINY, "num_attention_heads": 4, "num_key_value_heads": 4},
    "gpt2": {"vocab_size": 50, "n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 64},
    "gptj": {"vocab_size": 50, "n_embd": 48, "n_head": 4, "n_layer": 3, "n_positions": 64, "rotary_dim": 4},
}

QWEN3_NEXT = {
    "model_type": "qwen3_next", "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5120,
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "max_position_embeddings": 262_144, "full_attention_interval": 4, "decoder_sparse_step": 1, "num_experts": 512,
    "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "partial_rotary_factor": 0.25, "tie_word_embeddings": False,
}  # fmt: skip
"""Qwen3-Next-80B-A3B as published."""
QWEN3_5_27B = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text", "vocab_size": 248_320, "hidden_size": 5120, "intermediate_size": 17_408,
        "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 262_144, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 48, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000},
    },
}  # fmt: skip
"""Qwen3.5-27B as published, without what is for pictures."""
HYBRIDS = ("qwen3_next", "qwen3_5", "qwen3_5_moe")


def drawn_hybrid(kind: str, draw: Random) -> dict:
    """A random small config of a family with linear attention.

    The kernel of experts takes only widths that are multiples of 8, and DynamicCache only models with a full layer.
    """
    heads, keys = draw.choice([(4, 2), (6, 3), (2, 1)]), draw.randint(1, 3)
    layers = draw.randint(2, 6)
    text = {
        "vocab_size": draw.randint(20, 600), "hidden_size": 8 * draw.randint(3, 11),
        "intermediate_size": draw.randint(10, 90), "num_hidden_layers": layers,
        "num_attention_heads": heads[0], "num_key_value_heads": heads[1], "head_dim": draw.choice([16, 24, 32]),
        "linear_num_key_heads": keys, "linear_num_value_heads": keys * draw.randint(1, 3),
        "linear_key_head_dim": draw.randint(4, 20), "linear_value_head_dim": draw.randint(4, 20),
        "linear_conv_kernel_dim": draw.randint(2, 5), "attention_bias": draw.random() < 0.5,
        "tie_word_embeddings": draw.random() < 0.5, "pad_token_id": 0,
    }  # fmt: skip
    if draw.random() < 0.5:
        text["full_attention_interval"] = draw.randint(1, layers)
    else:
        text["layer_types"] = [*draw.choices(["full_attention", "linear_attention"], k=layers - 1), "full_attention"]
    if kind != "qwen3_5":
        text |= {"num_experts": draw.randint(2, 6), "num_experts_per_tok": 2}
        text |= {
            "moe_intermediate_size": 8 * draw.randint(1, 5),
            "shared_expert_intermediate_size": draw.randint(4, 40),
        }
    if kind == "qwen3_next":
        return {"model_type": kind, **text, "decoder_sparse_step": draw.randint(1, 2)}
    return {"model_type": kind, "text_config": text}


def kept_cache_bytes(model, *, batch: int, prompt: int) -> int:
    """Bytes that the cache of a model of transformers holds after a prompt and one more token."""
    import torch
    import transformers

    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        for tokens in (prompt, 1):
            model(torch.zeros(batch, tokens, dtype=torch.long), past_key_values=cache, use_cache=True)
    kept = 0
    for layer in cache.layers:
        states = [*getattr(layer, "conv_states", {}).values(), *getattr(layer, "recurrent_states", {}).values()]
        states += [getattr(layer, "keys", None), getattr(layer, "values", None)]
        kept += sum(one.untyped_storage().nbytes() for one in states if one is not None)
    return kept
