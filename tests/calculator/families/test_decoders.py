"""Today's decoders: parameters equal the released checkpoints and transformers' models, which read configs alike."""

import dataclasses

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.choose.flops import forward_flops
from calculator.families.registry import family_of
from calculator.models.architectures import PRESETS, from_config
from calculator.models.decoders import DECODER_READERS, DECODERS, cycle_of
from calculator.models.other_decoders import OTHER_DECODERS, OTHER_READERS
from calculator.models.other_decoders import PUBLISHED as CONFIGS
from calculator.parts.parameters import count_parameters

PUBLISHED = {
    # released checkpoints, huggingface.co: meta-llama, mistralai, Qwen, HuggingFaceTB, microsoft, google, deepseek-ai,
    # allenai, bigcode, openai
    "llama-2-7b": 6_738_415_616,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "mistral-7b": 7_248_023_552,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "smollm2-135m": 134_515_008,
    "smollm2-1.7b": 1_711_376_384,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    # without the layer of multi-token prediction; the paper (arXiv:2412.19437) rounds it to 671B
    "deepseek-v3": 671_026_404_352,
}


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_count_equals_the_published_one(name, published):
    assert count_parameters(PRESETS[name]) == published


def _config(transformers, a):
    """The config of transformers for a preset."""
    kinds = {
        "llama": "llama", "mistral": "mistral", "qwen2.5": "qwen2", "qwen3": "qwen3", "smollm2": "llama",
        "smollm3": "smollm3", "phi": "phi3",
        "gemma": "gemma3_text" if a.head_norms else "gemma2" if a.norms_after else "gemma",
    }  # fmt: skip
    kind = {"mixtral-8x7b": "mixtral", "qwen3-30b-a3b": "qwen3_moe", "deepseek-v3": "deepseek_v3"}.get(a.name)
    kind = kind or kinds[a.name.split("-")[0]]
    values = {
        "vocab_size": a.vocab_size, "hidden_size": a.hidden_size, "intermediate_size": a.intermediate_size,
        "num_hidden_layers": a.num_layers, "num_attention_heads": a.num_heads, "num_key_value_heads": a.key_heads,
        "head_dim": a.head_dim, "max_position_embeddings": a.max_positions, "tie_word_embeddings": a.tied_embeddings,
    }  # fmt: skip
    if kind in ("mistral", "phi3", "gemma2", "gemma3_text"):
        values["sliding_window"] = a.sliding_window or None
    if kind == "mixtral":
        values |= {"num_local_experts": a.num_experts, "num_experts_per_tok": a.experts_per_token}
    if kind == "qwen3_moe":
        values |= {"num_experts": a.num_experts, "num_experts_per_tok": a.experts_per_token, "norm_topk_prob": True}
        values["moe_intermediate_size"] = a.expert_size
    if kind == "deepseek_v3":  # whose defaults are the released model's
        values = {"max_position_embeddings": a.max_positions}
    return transformers.AutoConfig.for_model(kind, **values)


def _count(transformers, config) -> int:
    """Parameters of the real model, built on the meta device, which takes no memory."""
    import torch

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("architecture", DECODERS, ids=lambda architecture: architecture.name)
def test_preset_equals_the_model_of_transformers(architecture):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = _config(transformers, architecture)
    assert count_parameters(architecture) == _count(transformers, config)
    read = from_config(config.to_dict())
    # A preset states no kinds of layers where all are alike, and a config's name is that of its family.
    assert dataclasses.replace(read, name=architecture.name) == architecture


@pytest.mark.parametrize("architecture", OTHER_DECODERS, ids=lambda architecture: architecture.name)
def test_another_preset_equals_the_model_of_transformers(architecture):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**CONFIGS[architecture.name])
    assert count_parameters(architecture) == _count(transformers, config)
    assert dataclasses.replace(from_config(config.to_dict()), name=architecture.name) == architecture


# By its defaults, GLM-4.5 has 96 heads of 42 2/3 channels.
@pytest.mark.parametrize("kind", [*DECODER_READERS, *(kind for kind in OTHER_READERS if kind != "glm4_moe")])
def test_an_empty_config_is_the_default_model_of_transformers(kind):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    # Of a model with pictures, only the text model is read.
    config = transformers.AutoConfig.for_model("gemma3_text" if kind == "gemma3" else kind)
    read = from_config({"model_type": kind})
    assert count_parameters(read) == _count(transformers, config)
    assert dataclasses.replace(from_config(config.to_dict()), name=read.name) == read


REFUSED = {
    "num_key_value_heads in config is a whole number from 1": {"num_key_value_heads": "many"},
    "are not a multiple of its 3 heads of keys": {"num_attention_heads": 8, "num_key_value_heads": 3},
    "is not divisible by its 7 heads": {"num_attention_heads": 7, "num_key_value_heads": 7},
    "head_dim in config is an even number": {"model_type": "qwen3", "head_dim": 63},
    "hidden_act in config is one of": {"hidden_act": "xielu"},
    "layer_types in config is a list of": {
        "model_type": "qwen2", "use_sliding_window": True, "layer_types": [["full_attention"]]
    },
    "num_experts_per_tok in config is at most the 4 experts": {
        "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5
    },
    "mlp_only_layers in config is a list of numbers": {"model_type": "qwen3_moe", "mlp_only_layers": "all"},
    "divide the 10 experts": {"model_type": "deepseek_v3", "n_routed_experts": 10},
    "num_key_value_heads in config is only supported as 128": {
        "model_type": "deepseek_v3", "num_key_value_heads": 8
    },
    "no_rope_layers in config is a list": {"model_type": "smollm3", "no_rope_layers": [1, 0]},
    "partial_rotary_factor in config is a number": {"model_type": "phi3", "partial_rotary_factor": "half"},
    "num_hidden_layers in config is a whole number from 1 to 10000, not 9999999.": {"num_hidden_layers": 9_999_999},
    "partial_rotary_factor in config gives 1 ": {"model_type": "phi3", "partial_rotary_factor": 0.011},
}  # fmt: skip


@pytest.mark.parametrize(("sentence", "values"), REFUSED.items())
def test_a_wrong_config_is_refused_in_a_sentence(sentence, values):
    with pytest.raises(BadSetup) as refused:
        from_config({"model_type": "llama", **values})
    assert sentence in str(refused.value)
    assert str(refused.value).endswith(".")


def test_kinds_of_layers_are_the_shortest_cycle():
    assert cycle_of(["full"] * 4) == ()
    assert cycle_of(["sliding"] * 4) == ("sliding",)
    assert cycle_of(["sliding", "full", "sliding", "full", "sliding"]) == ("sliding", "full")
    assert cycle_of(["full", "full", "sliding"]) == ("full", "full", "sliding")


@pytest.mark.parametrize(
    "kind",
    [
        "llama", "qwen3", "gemma", "gemma3_text", "gemma2", "deepseek_v3", "gpt2", "gptj", "olmo2", "starcoder2",
        "cohere", "glm4_moe",
    ],
)  # fmt: skip
def test_operations_equal_those_that_torch_counts(kind):
    """torch counts all pairs of tokens, also those that a mask hides; the rest is compared one to one."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    values = {"vocab_size": 60, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 3, "pad_token_id": 0}
    values |= {"num_attention_heads": 4, "num_key_value_heads": 4 if kind == "deepseek_v3" else 2}
    if kind.startswith("gpt"):
        values = {"vocab_size": 60, "n_embd": 64, "n_inner": 40, "n_layer": 3, "n_head": 4}
        values |= {"rotary_dim": 8} if kind == "gptj" else {}
    elif kind == "deepseek_v3":
        values |= {"first_k_dense_replace": 3, "kv_lora_rank": 24, "q_lora_rank": 16, "qk_rope_head_dim": 8}
        values |= {"qk_nope_head_dim": 8, "v_head_dim": 12}
    else:
        values |= {"head_dim": 16}
    if kind in ("cohere", "glm4_moe"):
        values |= {"use_qk_norm": True, "attention_bias": True, "first_k_dense_replace": 3}
    if kind in ("gemma2", "gemma3_text"):
        values |= {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    config = transformers.AutoConfig.for_model(kind, **values, attn_implementation="eager")
    model, length = transformers.AutoModelForCausalLM.from_config(config), 19
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, length, dtype=torch.long))
    a = from_config(config.to_dict())
    widths = 2 * a.num_heads * (a.head_dim + (a.value_dim or a.head_dim))
    seen = [sum(min(i + 1, 7 if "sliding" in a.attention_kind(n) else 19) for i in range(length)) for n in range(3)]
    counted = counter.get_total_flops() - widths * sum(length**2 - pairs for pairs in seen)
    assert forward_flops(a, length) == counted


def test_a_mixture_computes_each_token_with_its_experts_only():
    model = PRESETS["qwen3-30b-a3b"]
    more = dataclasses.replace(model, num_experts=256)
    router = 2 * 128 * model.hidden_size * model.num_layers * 1000
    assert forward_flops(more, 1000) - forward_flops(model, 1000) == router


def test_layers_with_different_weights_cannot_share_them():
    with pytest.raises(BadSetup, match="Layers of deepseek-v3 have different weights; omit shared_groups"):
        estimate(Setup(model="deepseek-v3", shared_groups=4))


@pytest.mark.parametrize(("name", "active"), [("mixtral-8x7b", 12.88), ("qwen3-30b-a3b", 3.35)])
def test_experts_are_the_published_share(name, active):
    """Parameters that a token uses, in billions: arXiv:2401.04088, section 2.1, and arXiv:2505.09388, table 2."""
    model = PRESETS[name]
    one = dataclasses.replace(model, num_experts=model.experts_per_token)
    router = (model.num_experts - one.num_experts) * model.hidden_size * model.num_layers
    assert (count_parameters(one) + router) / 1e9 == pytest.approx(active, abs=0.05)


@pytest.mark.parametrize("kind", ["phi3", "llama", "qwen3", "olmo2", "lfm2"])
def test_frequencies_for_long_sequences_are_counted(kind):
    """transformers makes them in the first forward pass, whatever its length, and keeps them."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    scaling = {"rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": 8}
    scaling |= dict.fromkeys(("short_factor", "long_factor"), [1.0] * 8)
    values = {"vocab_size": 60, "hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 1, "pad_token_id": 0}
    values |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    if kind == "qwen3":
        values["head_dim"] = 16
    if kind == "lfm2":
        values["layer_types"] = ["full_attention"]
    config = transformers.AutoConfig.for_model(kind, **values, rope_parameters=scaling)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model(torch.zeros(1, 4, dtype=torch.long))
    rotary = model.model.rotary_emb if hasattr(model.model, "rotary_emb") else model.model.pos_emb
    held = [*model.buffers(), rotary.long_inv_freq]
    read = from_config(config.to_dict())
    assert family_of(read).buffer_bytes(read, 4) == sum(-(-tensor.nbytes // 512) * 512 for tensor in held)
