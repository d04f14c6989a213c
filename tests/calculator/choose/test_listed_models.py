"""Weights and caches of models that are read from a config, and of the text models of models with pictures."""

from __future__ import annotations

import json
import random

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.__main__ import main
from calculator.choose.inference import cache_bytes, inference_memory
from calculator.choose.stored import stored_bytes
from calculator.models.architectures import READS_TEXT_CONFIG, from_config
from calculator.models.listed_models import LISTED_READERS
from calculator.models.other_decoders import OTHER_READERS
from calculator.page.models import used_part
from calculator.parts.parameters import count_parameters
from tests.calculator.generating import kept_cache_bytes
from tests.calculator.listed import drawn_listed
from tests.tiers import sample

GPT_OSS_20B = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32, "num_experts_per_tok": 4,
    "vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64,
    "num_key_value_heads": 8, "sliding_window": 128, "max_position_embeddings": 131_072,
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
"""openai/gpt-oss-20b as published."""
TEXT = {
    "vocab_size": 90, "hidden_size": 48, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
WITH_PICTURES = {
    "mistral3": {"text_config": {"model_type": "mistral", **TEXT}},
    "mistral3 without a type": {"text_config": TEXT},
    "llava": {"text_config": {"model_type": "llama", **TEXT}},
    "qwen3 within another": {"text_config": {"model_type": "qwen3", **TEXT}, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("kind", ("gemma", *OTHER_READERS, *LISTED_READERS))
@pytest.mark.parametrize("seed", sample(range(15), every=5))
def test_weights_and_cache_equal_those_of_transformers(kind, seed):
    """Every tensor of a random small model, in blocks of 512 bytes, and every one of its cache, in 16 or 32 bits."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    draw = random.Random(f"{kind}{seed}")
    values, bits = drawn_listed(kind, draw), draw.choice(["bf16", "fp32"])
    batch, prompt = draw.randint(1, 3), draw.randint(1, 30)
    config = transformers.AutoConfig.for_model(**values)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[bits]
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    kept = kept_cache_bytes(model, batch=batch, prompt=prompt)
    asked = {"batch": batch, "length": prompt + 1, "weights": bits, "cache": bits}
    memory = inference_memory(from_config(values), **asked)
    assert memory.cache == kept
    assert memory.weights == sum(-(-x.nbytes // 512) * 512 for x in [*model.parameters(), *model.buffers()])
    # A config that transformers has written says the same, and so does the part that the page keeps.
    for same in (config.to_dict(), used_part(values)):
        assert inference_memory(from_config(same), **asked) == memory


def test_each_model_type_is_counted_exactly_or_refused_without_false_advice():
    """All configs of transformers with their defaults; models on the device `meta`, which allocates nothing."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    counted, refused, unclear = [], [], []
    for kind in CONFIG_MAPPING_NAMES:
        try:
            config = transformers.AutoConfig.for_model(kind)
        except Exception:  # it has no defaults, or needs a package
            continue
        try:
            model = from_config(config.to_dict())
        except BadSetup as error:
            (refused if "no supported family is like it" in str(error) else unclear).append(kind)
            continue
        text = config.get_text_config() if "text_config" in config.to_dict() else config
        if text is not config and kind not in READS_TEXT_CONFIG:
            text.tie_word_embeddings = getattr(config, "tie_word_embeddings", text.tie_word_embeddings)
        if kind in ("t5", "vit"):  # tests of their own compare them
            continue
        with torch.device("meta"):
            made = transformers.AutoModelForCausalLM.from_config(text)
        assert count_parameters(model) == sum(x.numel() for x in made.parameters()), kind
        counted.append(kind)
    readers = set(LISTED_READERS) | set(OTHER_READERS)
    assert readers - {"glm4_moe"} <= set(counted) and len(counted) > 70 and len(refused) > 400
    # By its defaults, GLM-4.5 has 96 heads of 42 2/3 channels; published ones state the width of a head.
    assert unclear == ["glm4_moe"]


def test_gpt_oss_is_counted_as_published():
    """Parameters and bytes of the published files (model.safetensors.index.json); half of the layers slide."""
    small = from_config(GPT_OSS_20B)
    large = from_config(GPT_OSS_20B | {"num_hidden_layers": 36, "num_local_experts": 128})
    assert (count_parameters(small), count_parameters(large)) == (20_914_757_184, 116_829_156_672)
    assert 0 <= stored_bytes(small, "mxfp4") - 13_761_264_768 < 512 * 24 * 20
    assert cache_bytes(large, batch=1, length=4096) == 18 * (4096 + 128) * 2 * 8 * 64 * 2 == 155_713_536


def test_all_positions_of_scout_are_answered():
    """Llama 4 Scout as published: 12 of its 48 layers see all tokens, the others chunks of 8192."""
    text = {"model_type": "llama4_text", "max_position_embeddings": 10_485_760, "num_local_experts": 16}
    model = from_config({"model_type": "llama4", "text_config": text})
    cached = (12 * 10_485_760 + 36 * 8192) * 2 * 8 * 128 * 2
    assert inference_memory(model, length=10_485_760).cache == cached == 516_604_035_072


def test_published_bits_count_unless_others_are_asked_for(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT_OSS_20B))

    def weights(*more):
        assert main(["inference", "--config", str(path), "--length", "4096", "--json", *more]) == 0
        return json.loads(capsys.readouterr().out)["weights"]

    assert main(["inference", "openai/gpt-oss-20b", "--json"]) == 0
    preset = json.loads(capsys.readouterr().out)
    model = from_config(GPT_OSS_20B)
    assert preset["weights"] == stored_bytes(model, "mxfp4") and "MXFP4" in preset["notes"][-1]
    assert weights() == stored_bytes(model, "mxfp4") and weights("--weights", "bf16") == stored_bytes(model, "bf16")
    with pytest.raises(BadSetup):
        stored_bytes(from_config({"model_type": "olmo2"}), "mxfp4")


@pytest.mark.parametrize("kind", WITH_PICTURES)
def test_a_model_with_pictures_is_read_as_its_text_model(kind):
    values = WITH_PICTURES[kind]
    config = {"model_type": kind.split()[0], **values}
    text = {"model_type": "mistral", **values["text_config"]}
    text |= {key: value for key, value in values.items() if key != "text_config"}
    assert from_config(config) == from_config(text)
    assert estimate(Setup(config=config)).gpu == estimate(Setup(config=text)).gpu
    with pytest.raises(BadSetup, match="no supported family is like it"):
        from_config({**config, "text_config": {**TEXT, "model_type": "bert"}, "model_type": "other"})


@pytest.mark.parametrize("kind", LISTED_READERS)
def test_training_is_refused_with_what_is_counted(kind):
    values = drawn_listed(kind, random.Random(kind))
    with pytest.raises(BadSetup, match="calculator inference --config FILE"):
        estimate(Setup(config=values))


@pytest.mark.parametrize(
    "wrong",
    [
        {"model_type": "nemotron_h", "hybrid_override_pattern": "MX"},
        {"model_type": "lfm2", "layer_types": ["conv"]},
        {"model_type": "lfm2", "full_attn_idxs": 3},
        {"model_type": "lfm2", "block_ffn_dim_multiplier": "2"},
        {"model_type": "falcon_h1", "mamba_d_ssm": 100, "mamba_n_heads": 3},
        {"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 0.5}},
    ],
)
def test_a_wrong_value_is_refused(wrong):
    with pytest.raises(BadSetup, match=r"[Ii]n config"):
        from_config(wrong)
