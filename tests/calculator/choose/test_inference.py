"""The cache of keys and values equals that of transformers, value by value, and published sizes of engines."""

import json
import random

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.__main__ import main
from calculator.choose.devices import device_named
from calculator.choose.inference import cache_bytes, inference_memory, largest_batch, longest_context
from calculator.families.lengths import most_tokens
from calculator.models.architectures import PRESETS, from_config
from calculator.parts.parameters import count_parameters
from tests.calculator.generating import CASES, HYBRIDS, QWEN3_5_27B, QWEN3_NEXT, drawn_hybrid, kept_cache_bytes


@pytest.mark.parametrize("kind", [*CASES, "a window of one"])
@pytest.mark.parametrize("length", [2, 9, 30])
def test_cache_equals_that_of_transformers(kind, length):
    """After a prompt and one more token; storages, since a window is a view of what was there."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    cases = {"a window of one": {"model_type": "mistral", **CASES["mistral"], "sliding_window": 1}}
    config = transformers.AutoConfig.for_model(**cases.get(kind) or {"model_type": kind, **CASES[kind]})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    cache = transformers.DynamicCache(config=config)
    with torch.no_grad():
        for tokens in (length - 1, 1):
            model(torch.zeros(3, tokens, dtype=torch.long), past_key_values=cache, use_cache=True)
    kept = {
        x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for y in cache.layers for x in (y.keys, y.values)
    }
    assert cache_bytes(from_config(config.to_dict()), batch=3, length=length, itemsize=4) == sum(kept.values())


@pytest.mark.parametrize("kind", HYBRIDS)
@pytest.mark.parametrize("seed", range(5))
def test_weights_and_states_of_a_hybrid_model_equal_those_of_transformers(kind, seed):
    """Every tensor of the model, in blocks of 512 bytes, and every one of its own cache, in 16 or 32 bits."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    draw = random.Random(seed)
    values, bits = drawn_hybrid(kind, draw), draw.choice(["bf16", "fp32"])
    batch, prompt = draw.randint(1, 3), draw.randint(1, 70)
    config = transformers.AutoConfig.for_model(**values)
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[bits]
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    assert "ForCausalLM" in type(model).__name__  # of a model with pictures, the text model
    kept = kept_cache_bytes(model, batch=batch, prompt=prompt)
    asked = {"batch": batch, "length": prompt + 1, "weights": bits, "cache": bits}
    memory = inference_memory(from_config(values), **asked)
    assert memory.cache == kept
    assert memory.weights == sum(-(-x.nbytes // 512) * 512 for x in [*model.parameters(), *model.buffers()])
    # A config that transformers has written says the same in other words.
    assert inference_memory(from_config(config.to_dict()), **asked) == memory


@pytest.mark.parametrize(("config", "billions"), [(QWEN3_NEXT, 80), (QWEN3_5_27B, 27)])
def test_parameters_of_a_published_hybrid_model_are_all_counted(config, billions):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    counted = count_parameters(from_config(config))
    assert counted == sum(x.numel() for x in made.parameters())
    assert counted / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("kind", [*HYBRIDS, "qwen3_5_text", "qwen3_5_moe_text"])
def test_an_empty_hybrid_config_is_the_default_model_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    assert from_config(transformers.AutoConfig.for_model(kind).to_dict()) == from_config({"model_type": kind})


def test_training_of_a_hybrid_model_is_refused_in_a_sentence(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_NEXT))
    with pytest.raises(BadSetup, match=r"Training of config \(qwen3_next\) is not counted: .* FILE` counts"):
        estimate(Setup(config=QWEN3_NEXT))
    for command in ([], ["fit"]):
        assert main([*command, "--config", str(path), "--gpu", "h100-80gb"]) == 2
        assert "Training of config (qwen3_next) is not counted" in capsys.readouterr().err
    assert main(["inference", "--config", str(path), "--length", "9999", "--weights", "fp8", "--gpu", "h200"]) == 0
    assert "Longest context that fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "length", "reported"),
    [("qwen3-0.6b", 40_960, 4.38), ("gemma-3-27b", 131_072, 10.41), ("deepseek-v3", 163_840, 10.72)],
)
def test_cache_of_a_reported_case(model, length, reported):
    """unsloth #4757, whose estimator erred by -50, +682 and -81 % at these models' whole contexts."""
    assert cache_bytes(PRESETS[model], batch=1, length=length) / 2**30 == pytest.approx(reported, abs=0.006)


def test_cache_of_a_reported_hybrid_model():
    """unsloth #4757: its estimator said 53.25 GiB for Qwen3.5-27B, +233 % of 16.00, which leaves the states out."""
    text, length = QWEN3_5_27B["text_config"], 262_144
    narrow = text["hidden_size"] // text["num_attention_heads"]  # the estimator's width of a head
    estimator = 2 * text["num_key_value_heads"] * narrow * text["num_hidden_layers"] * length * 2
    assert estimator / 2**30 == pytest.approx(53.25, abs=0.006)
    # In 48 of 64 layers: a convolution over the last 4 tokens of 10 240 channels, and 48 states of 128 x 128.
    states = 48 * (10_240 * 4 * 2 + 48 * 128 * 128 * 4)
    assert cache_bytes(from_config(QWEN3_5_27B), batch=1, length=length) == 16 * 2**30 + states


def test_blocks_are_reserved_as_a_whole():
    model = PRESETS["llama-3.2-1b"]
    assert cache_bytes(model, batch=2, length=100, block=16) == cache_bytes(model, batch=2, length=112)
    assert cache_bytes(model, batch=2, length=112, block=16) == cache_bytes(model, batch=2, length=112)


def test_parts_add_up_and_weights_are_those_of_the_parameters():
    model = PRESETS["llama-3.1-8b"]
    memory = inference_memory(model, length=8192)
    assert memory.total == memory.weights + memory.cache + memory.overhead
    assert 0 <= memory.weights - 2 * count_parameters(model) < 512 * 400
    assert inference_memory(model, length=8192, cache="fp8").cache == memory.cache // 2


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-0.6b", "phi-3-mini", "gpt2"])
def test_the_most_that_fits_is_the_most(name):
    model, device = PRESETS[name], device_named("rtx-4090")
    batch = largest_batch(model, device, length=1000)
    assert inference_memory(model, batch=batch, length=1000).total <= device.usable_bytes
    assert inference_memory(model, batch=batch + 1, length=1000).total > device.usable_bytes
    length = longest_context(model, device, batch=64)
    assert inference_memory(model, batch=64, length=length).total <= device.usable_bytes
    if length < most_tokens(model):
        assert inference_memory(model, batch=64, length=length + 1).total > device.usable_bytes
    assert largest_batch(PRESETS["llama-3.1-70b"], device, length=1) == 0


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        ("bert-base", {"length": 10}, "does not generate text token by token"),
        ("gpt2", {"length": 2000}, "length is a whole number from 1 to 1024"),
        ("gpt2", {"length": 10, "batch": 0}, "batch is a whole number from 1"),
        ("gpt2", {"length": 10, "cache": "int3"}, "cache is one of fp32, bf16"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(model, options, sentence):
    with pytest.raises(BadSetup, match=sentence):
        inference_memory(PRESETS[model], **options)


def test_command_line_says_what_fits(capsys, tmp_path):
    assert main(["inference", "llama-3.1-8b", "--length", "8192", "--gpu", "rtx-4090"]) == 0
    said = capsys.readouterr().out
    assert "1.00 GiB" in said and "Longest context that fits" in said
    assert "Reading the prompt takes more for a moment, which is not counted" in said
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **CASES["llama"]}))
    assert main(["inference", "--config", str(path), "--length", "30", "--batch", "3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["cache"] == 3 * 30 * 4 * 2 * 2 * 12 * 2
    assert len(answer["notes"]) == 1
    path.write_text(
        json.dumps({"model_type": "llama", **CASES["llama"], "quantization_config": {"quant_method": "awq"}})
    )
    assert main(["inference", "--config", str(path), "--length", "30"]) == 0
    assert "quantized (awq): they count as bf16" in capsys.readouterr().out
    assert main(["inference", "llama-3.2-3b", "--length", "4096", "--gpu", "apple-16gb", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["overhead"] == 0 and answer["total"] == answer["weights"] + answer["cache"]  # it has no CUDA
    room = answer["usable_bytes"] - answer["weights"]
    assert answer["largest_batch"] == room // answer["cache"]
    assert main(["inference", "gpt2", "--length", "0"]) == 2
    assert "length is a whole number from 1 to 1024, not 0." in capsys.readouterr().err
    assert main(["inference"]) == 2
    assert "Give a model or --config FILE" in capsys.readouterr().err


YARN = {"model_type": "qwen2", **CASES["qwen2"], "use_sliding_window": False, "max_position_embeddings": 32_768}


@pytest.mark.parametrize(
    ("scaling", "trained"),
    [
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}}, 131_072),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}}, 131_072),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, 131_072),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 65_536),
        ({"rope_scaling": {"type": "dynamic", "factor": 8.0}}, 262_144),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}}, 32_768),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}}, 32_768),
        ({"rope_scaling": None}, 32_768),
        ({"max_position_embeddings": 10_485_760}, 10_485_760),
    ],
)
def test_rotary_models_have_no_limit_but_a_trained_length(scaling, trained):
    """vLLM's rule for the length; transformers rotates any position."""
    config = YARN | scaling
    model = from_config(config)
    assert model.max_positions == trained
    assert inference_memory(model, length=trained + 1).cache > inference_memory(model, length=trained).cache
    assert longest_context(model, device_named("b200")) > trained
    beyond = {length: estimate(Setup(config=config, sequence_length=length)).notes for length in (trained, trained + 1)}
    assert len(beyond[trained + 1]) == len(beyond[trained]) + 1 and f"{trained:,}" in " ".join(beyond[trained + 1])


@pytest.mark.parametrize("model", ["gpt2", "gpt-j-6b", "bert-base"])
def test_a_table_of_positions_is_a_limit(model):
    longest = PRESETS[model].max_positions
    assert estimate(Setup(model=model, sequence_length=longest)).gpu.total > 0
    with pytest.raises(BadSetup, match=f"from 1 to {longest}"):
        estimate(Setup(model=model, sequence_length=longest + 1))


def test_a_context_beyond_the_trained_one_is_said(capsys):
    assert main(["inference", "llama-2-7b", "--length", "4097", "--json"]) == 0
    longer = json.loads(capsys.readouterr().out)["notes"]
    assert main(["inference", "llama-2-7b", "--length", "4096", "--json"]) == 0
    assert len(longer) == len(json.loads(capsys.readouterr().out)["notes"]) + 1 and "4,096" in longer[-1]
