"""Names as people write them stand for presets and GPUs, or for nothing."""

from __future__ import annotations

import json

import pytest

from calculator import BadSetup, Setup, estimate
from calculator.__main__ import main
from calculator.choose.devices import DEVICES, device_named
from calculator.choose.names import gpu_of
from calculator.choose.stored import stored_bytes
from calculator.models.architectures import PRESETS
from calculator.models.names import HUB, hub_id, named, nearest, preset_of

PASTED = {
    "meta-llama/Llama-3.1-8B-Instruct": ("llama-3.1-8b", ""),
    "meta-llama/Meta-Llama-3-8B-Instruct": ("llama-3.1-8b", ""),
    "meta-llama/Llama-3.3-70B-Instruct": ("llama-3.1-70b", ""),
    "meta-llama/Llama-2-7b-chat-hf": ("llama-2-7b", ""),
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2.5-7b", ""),
    "Qwen/Qwen3-4B-Instruct-2507": ("qwen3-4b", ""),
    "Qwen/Qwen3-30B-A3B-Thinking-2507-FP8": ("qwen3-30b-a3b", "FP8, 8 bits"),
    "google/gemma-3-4b-it": ("gemma-3-4b", ""),
    "google/gemma-3-4b-it-qat-q4_0-gguf": ("gemma-3-4b", "GGUF, 4 bits"),
    "mistralai/Mistral-7B-Instruct-v0.3": ("mistral-7b", ""),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": ("mixtral-8x7b", ""),
    "microsoft/Phi-3-mini-4k-instruct": ("phi-3-mini", ""),
    "deepseek-ai/DeepSeek-R1": ("deepseek-v3", ""),
    "bert-base-uncased": ("bert-base", ""),
    "https://huggingface.co/google/gemma-2-2b-it/blob/main/config.json": ("gemma-2-2b", ""),
    "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M": ("llama-3.2-3b", "GGUF, 4 bits"),
    "unsloth/Llama-3.2-1B-Instruct-unsloth-bnb-4bit": ("llama-3.2-1b", "bitsandbytes, 4 bits"),
    "TheBloke/Llama-2-7B-Chat-AWQ": ("llama-2-7b", "AWQ, 4 bits"),
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": ("qwen2.5-7b", "GPTQ, 8 bits"),
    "neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16": ("llama-3.1-8b", "4 bits"),
    "mlx-community/Llama-3.2-3B-Instruct-4bit": ("llama-3.2-3b", "4 bits"),
    "LoneStriker/Mistral-7B-Instruct-v0.3-4.0bpw-h6-exl2": ("mistral-7b", "EXL2, 4 bits"),
    "llama-2-7b-chat.Q5_K_M.gguf": ("llama-2-7b", "GGUF, 5 bits"),
    "qwen2.5:7b-instruct": ("qwen2.5-7b", ""),
    "google/gemma-2b-it": ("gemma-2b", ""),
    "google/gemma-1.1-7b-it": ("gemma-7b", ""),
    "allenai/OLMo-2-1124-7B-Instruct": ("olmo-2-7b", ""),
    "unsloth/gpt-oss-20b-unsloth-bnb-4bit": ("gpt-oss-20b", "bitsandbytes, 4 bits"),
    "zai-org/GLM-4.5-Air-FP8": ("glm-4.5-air", "FP8, 8 bits"),
}
"""Names as people paste them: the preset with these sizes, and how the name says that weights are quantized."""
OTHER_SIZES = {
    "mistralai/Mistral-7B-Instruct-v0.2": "mistral-7b",  # 32,000 words in the vocabulary, v0.3 has 32,768
    "microsoft/Phi-3-mini-128k-instruct": "phi-3-mini",  # a window of 262,144 tokens
    "Qwen/Qwen3-Embedding-0.6B": "qwen3-0.6b",  # 151,669 words
    "google-bert/bert-base-cased": "bert-base",  # 28,996 words
    "google/vit-base-patch16-384": "vit-base",  # larger pictures
    "Qwen/Qwen2.5-VL-7B-Instruct": "qwen2.5-7b",  # a vision tower
    "Qwen/Qwen2.5-14B-Instruct": "qwen",
    "google/recurrentgemma-2b": "gemma-",
    "NousResearch/Hermes-2-Pro-Llama-3-8B": "llama-3.1-8b",  # 128,288 words
    "black-forest-labs/FLUX.1-schnell": "flux-dev",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "llama-",
    "": "",
}
"""Names of models with other sizes than every preset's, and the beginning of the nearest one."""


@pytest.mark.parametrize("name", PASTED)
def test_a_pasted_name_is_the_preset_with_its_sizes(name):
    found = named(name)
    assert (found.preset, found.quantization) == PASTED[name]
    assert estimate(Setup(model=name)).model == found.preset


@pytest.mark.parametrize("name", OTHER_SIZES)
def test_a_model_of_other_sizes_is_refused_with_the_nearest_three(name):
    assert named(name) is None and len(set(nearest(name))) == 3 and nearest(name)[0].startswith(OTHER_SIZES[name])
    with pytest.raises(BadSetup) as refused:
        estimate(Setup(model=name))
    assert str(refused.value).startswith("The nearest to the model") and "\n" not in str(refused.value)


def test_bits_of_a_name_count_where_text_is_generated(capsys):
    def weights(*arguments):
        assert main(["inference", *arguments, "--length", "1", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    whole, small = weights("meta-llama/Llama-2-7b-chat-hf"), weights("TheBloke/Llama-2-7B-Chat-AWQ")
    assert (whole["weights"], small["weights"]) == tuple(
        stored_bytes(PRESETS["llama-2-7b"], x) for x in ("bf16", "nf4")
    )
    assert len(small["notes"]) == len(whole["notes"]) + 1 and "AWQ, 4 bits" in small["notes"][-1]
    asked = weights("TheBloke/Llama-2-7B-Chat-AWQ", "--weights", "bf16")
    assert asked["weights"] == whole["weights"]


def test_code_loads_what_was_named_unless_it_is_quantized():
    assert hub_id("Qwen/Qwen2.5-7B-Instruct") == "Qwen/Qwen2.5-7B-Instruct"
    assert hub_id("TheBloke/Llama-2-7B-Chat-AWQ") == HUB["llama-2-7b"]
    assert hub_id("dalle-2021") is None


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_found_by_its_own_name_and_the_hubs(preset):
    names = {preset, preset.upper(), preset.replace("-", "_"), HUB.get(preset, preset)}
    names |= {HUB.get(preset, preset).rpartition("/")[2]}
    assert {preset_of(name) for name in names} == {preset}


@pytest.mark.parametrize("gpu", DEVICES)
def test_a_gpu_is_found_however_it_is_written(gpu):
    written = (gpu, gpu.upper(), gpu.replace("-", " "), f"NVIDIA {gpu}")
    assert {gpu_of(name) for name in written} == {gpu}


@pytest.mark.parametrize("name", ["llama-9b", "meta-llama/Llama-4-Scout", "batch", ""])
def test_another_models_name_stays(name):
    assert preset_of(name) == name


@pytest.mark.parametrize("name", ["a100", "v100", "40gb", "apple", "8gb", "", "4090 ti", "cuda-0gb", "cuda-20gb"])
def test_what_names_no_single_gpu_stays(name):
    assert gpu_of(name) == name


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
    ],
)
def test_names_as_drivers_write_them(name, gpu):
    assert gpu_of(name) == gpu


def test_an_unclear_gpu_is_refused_with_the_likely_ones():
    with pytest.raises(BadSetup, match="a100-40gb or a100-80gb"):
        device_named("a100")
