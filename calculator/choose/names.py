"""Names as people write them: `meta-llama/Llama-3.1-8B` for a preset, `4090` or `RTX 4090` for a GPU."""

from __future__ import annotations

import re

from calculator.choose.devices import DEVICES
from calculator.models.architectures import PRESETS

HUB = {
    "bert-base": "google-bert/bert-base-uncased",
    "bert-large": "google-bert/bert-large-uncased",
    "t5-small": "google-t5/t5-small",
    "t5-base": "google-t5/t5-base",
    "t5-large": "google-t5/t5-large",
    "t5-3b": "google-t5/t5-3b",
    "t5-11b": "google-t5/t5-11b",
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "gpt-j-6b": "EleutherAI/gpt-j-6b",
    "llama-2-7b": "meta-llama/Llama-2-7b-hf",
    "llama-3.2-1b": "meta-llama/Llama-3.2-1B",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B",
    "llama-3.1-8b": "meta-llama/Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama/Llama-3.1-70B",
    "mistral-7b": "mistralai/Mistral-7B-v0.3",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B-Base",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B-Base",
    "qwen3-4b": "Qwen/Qwen3-4B-Base",
    "qwen3-8b": "Qwen/Qwen3-8B-Base",
    "qwen3-14b": "Qwen/Qwen3-14B-Base",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M",
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M",
    "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B",
    "smollm3-3b": "HuggingFaceTB/SmolLM3-3B-Base",
    "phi-3-mini": "microsoft/Phi-3-mini-4k-instruct",
    "phi-4": "microsoft/phi-4",
    "mixtral-8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B-Base",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3-Base",
    "gemma-2-2b": "google/gemma-2-2b",
    "gemma-2-9b": "google/gemma-2-9b",
    "gemma-3-1b": "google/gemma-3-1b-pt",
    "gemma-3-4b": "google/gemma-3-4b-pt",
    "gemma-3-12b": "google/gemma-3-12b-pt",
    "gemma-3-27b": "google/gemma-3-27b-pt",
    "vit-base": "google/vit-base-patch16-224",
    "vit-large": "google/vit-large-patch16-224",
    "flux-dev": "black-forest-labs/FLUX.1-dev",
    "sd3-medium": "stabilityai/stable-diffusion-3-medium-diffusers",
}
"""Presets with published weights, as the Hugging Face Hub names them."""
BESIDE = re.compile(r"\b(?:nvidia|geforce|tesla|amd|instinct|sxm\d?|pcie|hbm\d?e?|generation)\b-?")
"""Words that drivers add to a GPU's name, as in NVIDIA A100-SXM4-40GB."""


def preset_of(name: str) -> str:
    """The preset that a name stands for, as the Hub or a person writes it; else the name itself, which is then refused.

    >>> preset_of("meta-llama/Llama-3.1-8B"), preset_of("GPT2"), preset_of("llama-9b")
    ('llama-3.1-8b', 'gpt2', 'llama-9b')
    """
    known = {_plain(hub).rpartition("/")[2]: preset for preset, hub in HUB.items()} | {one: one for one in PRESETS}
    return known.get(_plain(name).rpartition("/")[2], name)


def gpu_of(name: str) -> str:
    """The GPU that a name stands for; else the name itself, which is then refused.

    Series and memory may be left out where one card alone is meant.

    >>> gpu_of("NVIDIA RTX 4090"), gpu_of("4090"), gpu_of("H100"), gpu_of("a100")
    ('rtx-4090', 'rtx-4090', 'h100-80gb', 'a100')
    """
    words = BESIDE.sub("", _plain(name)).strip("-")
    # "40gb" alone is no name, but a size that several cards have.
    meant = [
        device
        for device in DEVICES
        for short in [{device, re.sub("^[rg]tx-", "", device), re.sub(r"-\d+gb$", "", device)}]
        if words.replace("-", "") in {one.replace("-", "") for one in short}
    ]
    if len(meant) == 1:
        return meant[0]
    return words if words.startswith("cuda-") else name


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower())
