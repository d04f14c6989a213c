"""Names of models as people write them: hub ids, links, variants and quantized copies of presets."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from calculator.errors import BadSetup
from calculator.models.architecture import Architecture
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
    "gemma-2b": "google/gemma-2b",
    "gemma-7b": "google/gemma-7b",
    "gemma-2-2b": "google/gemma-2-2b",
    "gemma-2-9b": "google/gemma-2-9b",
    "gemma-3-1b": "google/gemma-3-1b-pt",
    "gemma-3-4b": "google/gemma-3-4b-pt",
    "gemma-3-12b": "google/gemma-3-12b-pt",
    "gemma-3-27b": "google/gemma-3-27b-pt",
    "olmo-2-1b": "allenai/OLMo-2-0425-1B",
    "olmo-2-7b": "allenai/OLMo-2-1124-7B",
    "starcoder2-3b": "bigcode/starcoder2-3b",
    "starcoder2-7b": "bigcode/starcoder2-7b",
    "command-r7b": "CohereLabs/c4ai-command-r7b-12-2024",
    "qwen1.5-moe-a2.7b": "Qwen/Qwen1.5-MoE-A2.7B",
    "glm-4.5-air": "zai-org/GLM-4.5-Air-Base",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "vit-base": "google/vit-base-patch16-224",
    "vit-large": "google/vit-large-patch16-224",
    "flux-dev": "black-forest-labs/FLUX.1-dev",
    "sd3-medium": "stabilityai/stable-diffusion-3-medium-diffusers",
}
"""Presets with published weights, as the Hugging Face Hub names them."""
SAME_SIZES = {
    "bert-large": ("bert-large-uncased-whole-word-masking",),
    "deepseek-v3": ("deepseek-v3-0324", "deepseek-v3.1", "deepseek-v3.1-terminus", "deepseek-r1", "deepseek-r1-zero",
                    "deepseek-r1-0528"),
    "flux-dev": ("flux.1-kontext-dev", "flux.1-krea-dev"),
    "gemma-2b": ("gemma-1.1-2b", "codegemma-2b"),
    "gemma-7b": ("gemma-1.1-7b", "codegemma-7b"),
    "gemma-3-4b": ("medgemma-4b",),
    "gpt-oss-20b": ("gpt-oss-safeguard-20b",),
    "gpt-oss-120b": ("gpt-oss-safeguard-120b",),
    "gpt2": ("dialogpt-small", "gpt2-small"),
    "gpt2-medium": ("dialogpt-medium",),
    "gpt2-large": ("dialogpt-large",),
    "llama-2-7b": ("llama-7b", "vicuna-7b-v1.5"),
    "llama-3.1-8b": ("llama-3-8b", "meta-llama-3-8b", "meta-llama-3.1-8b", "deepseek-r1-distill-llama-8b",
                     "llama-guard-3-8b", "llama-3.1-nemotron-nano-8b-v1"),
    "llama-3.1-70b": ("llama-3-70b", "meta-llama-3-70b", "meta-llama-3.1-70b", "llama-3.3-70b",
                      "deepseek-r1-distill-llama-70b", "llama-3.1-nemotron-70b"),
    "mistral-7b": ("mistral-7b-v0.3",),
    "phi-3-mini": ("phi-3-mini-4k",),
    "phi-4": ("phi-4-reasoning", "phi-4-reasoning-plus"),
    "qwen2.5-0.5b": ("qwen2-0.5b", "qwen2.5-coder-0.5b"),
    "qwen2.5-7b": ("qwen2-7b", "qwen2.5-coder-7b", "qwen2.5-math-7b", "deepseek-r1-distill-qwen-7b"),
    "qwen3-4b": ("qwen3-4b-2507",),
    "qwen3-8b": ("deepseek-r1-0528-qwen3-8b",),
    "qwen3-30b-a3b": ("qwen3-30b-a3b-2507", "qwen3-coder-30b-a3b"),
    "sd3-medium": ("stable-diffusion-3-medium",),
    "smollm2-135m": ("smollm-135m",),
    "smollm2-360m": ("smollm-360m",),
    "smollm2-1.7b": ("smollm-1.7b",),
}  # fmt: skip
"""Other published models whose config.json has the sizes of a preset; at most the trained length differs."""
VARIANTS = ("instruct", "it", "chat", "base", "pt", "hf", "thinking", "text", "sft")
"""Words after a model's size that stand for other training, not other sizes."""
LINK = re.compile(
    r"^(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co|modelscope\.cn|ollama\.com)/(?:models/|library/)?"
)
REST_OF_LINK = re.compile(r"(?:/(?:tree|blob|resolve|raw|files|discussions)\b.*|[?#].*|/+)$")
METHODS = {
    "awq": 4, "gptq": 4, "bnb": None, "unsloth": None, "gguf": None, "ggml": None, "exl2": None, "exl3": None,
    "hqq": None, "eetq": 8, "mlx": None, "aqlm": None, "qat": None, "quantized": None, "autoround": None,
    "marlin": None, "dynamic": None, "block": None, "imatrix": None, "actorder": None, "sym": None, "g128": None,
    "128g": None, "64g": None, "32g": None, "kv": None, "h6": None, "h8": None, "ud": None, "dwq": None,
    "torchao": None, "onnx": None, "nf4": 4,
}  # fmt: skip
"""Words of quantized copies, and the bits of their weights unless another word says them."""
BITS = re.compile(
    r"-(?:i?q(\d)(?:-(?:\d|k(?:-(?:xxs|xs|s|m|l|xl))?|xxs|xs|s|m|nl))?|w(\d)a\d{1,2}(?:kv\d)?|(?:int|uint|nf|fp|mxfp|nvfp)-?(4|8)"
    r"|([2-8])-?bits?|(\d)(?:\.\d+)?-?bpw)(?=-)"
)
"""Bits of weights in a name with hyphens around: Q4_K_M, w4a16, int4, 4bit, 4.65bpw."""
WHOLE = re.compile(r"-(?:bf16|fp16|f16|fp32|f32)(?=-)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """The preset that a name stands for, and how the name says that its weights are quantized."""

    preset: str
    method: str = ""
    """Method of quantization, such as "AWQ"; empty if the weights are whole, or the name gives only their bits."""
    bits: int | None = None
    """Bits of a quantized weight; None: the weights are whole, or the name does not say them."""

    @property
    def quantization(self) -> str:
        """The method and the bits for a sentence, such as "AWQ, 4 bits"; empty if the weights are whole."""
        return ", ".join(filter(None, [self.method, f"{self.bits} bits" if self.bits else ""]))


@lru_cache(maxsize=256)
def named(name: str) -> Named | None:
    """Reads a model's name as the Hub or a person writes it; None if no preset has that model's sizes.

    >>> named("https://huggingface.co/Qwen/Qwen2.5-7B-Instruct-AWQ")
    Named(preset='qwen2.5-7b', method='AWQ', bits=4)
    >>> named("mistralai/Mistral-7B-Instruct-v0.2")
    """
    if name in PRESETS:
        return Named(preset=name)
    words = f"-{_last_part(name)}-"
    bits = [int(next(filter(None, found))) for found in BITS.findall(words)]
    words = WHOLE.sub("", BITS.sub("", words)).strip("-").split("-")
    methods = [word for word in words[1:] if word in METHODS]
    usual = next((METHODS[word] for word in methods if METHODS[word]), None)
    stem = _stem("-".join([words[0], *(word for word in words[1:] if word not in METHODS)]))
    if stem not in _stems():
        return None
    kinds = [word.upper() for word in methods if word in ("awq", "gptq", "gguf", "exl2", "exl3", "hqq", "mlx", "eetq")]
    method = "bitsandbytes" if "bnb" in methods else "FP8" if "-fp8-" in f"-{_last_part(name)}-" else "".join(kinds[:1])
    return Named(preset=_stems()[stem], method=method, bits=min(bits, default=usual))


def preset_of(name: str) -> str:
    """Finds the preset that a name stands for; returns any other name unchanged, which is refused later.

    >>> preset_of("meta-llama/Llama-3.1-8B-Instruct"), preset_of("GPT2"), preset_of("llama-9b")
    ('llama-3.1-8b', 'gpt2', 'llama-9b')
    """
    found = named(name) if isinstance(name, str) else None
    return found.preset if found else name


def preset(name: object) -> Architecture:
    """The preset that a name stands for.

    Raises:
        BadSetup: If no preset matches; the message begins with the nearest names.
    """
    found = named(name) if isinstance(name, str) else None
    if found is None:
        raise BadSetup(not_known(name))
    return PRESETS[found.preset]


def hub_id(name: str) -> str | None:
    """The Hub's name of the whole weights that a name stands for; None if none are published.

    >>> hub_id("https://huggingface.co/Qwen/Qwen2.5-7B-Instruct"), hub_id("TheBloke/Llama-2-7B-Chat-AWQ")
    ('Qwen/Qwen2.5-7B-Instruct', 'meta-llama/Llama-2-7b-hf')
    """
    given = REST_OF_LINK.sub("", re.sub(LINK.pattern, "", name.strip(), flags=re.IGNORECASE))
    found = named(name)
    if found and re.fullmatch(r"[\w.-]+/[\w.-]+", given) and not found.quantization:
        return given
    return HUB.get(found.preset) if found else None


def nearest(name: str) -> list[str]:
    """The three presets that resemble a name the most, by family, size and letters, the nearest first.

    >>> nearest("Qwen/Qwen2.5-14B-Instruct")
    ['qwen3-14b', 'qwen2.5-7b', 'qwen3-8b']
    """
    written = _last_part(name)
    stem, size = _stem(written), _size(written)
    best: dict[str, float] = {}
    for known, preset in _stems().items():
        same_family = re.search("t5|sd|[a-z]{3,}", known)[0] in stem
        other = _size(preset)
        # 1 for the same size, 0 for one that differs by a factor of e.
        near_size = max(0.0, 1 - abs(math.log(size / other))) if size and other else 0
        likeness = same_family + near_size + SequenceMatcher(None, stem, known).ratio()
        best[preset] = max(best.get(preset, 0.0), likeness)
    return sorted(best, key=best.__getitem__, reverse=True)[:3]


def _size(name: str) -> float:
    """Parameters that a name says, in billions; 0 if it says none.

    >>> _size("qwen2.5-0.5b"), _size("smollm2-135m"), _size("mixtral-8x7b")
    (0.5, 0.135, 0)
    """
    said = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)([bm])(?![a-z\d])", name)
    return float(said[1]) / (1 if said[2] == "b" else 1000) if said else 0


def not_known(name: object) -> str:
    """The refusal of a model that no preset stands for: one line, with the nearest presets first."""
    first, second, third = nearest(str(name))
    shown = repr(name) if len(repr(name)) <= 60 else repr(name)[:57] + "..."
    return (
        f"The nearest to the model {shown} are {first}, {second} and {third}; of any other model, give its config.json "
        "as config."
    )


@lru_cache(maxsize=1)
def _stems() -> dict[str, str]:
    """Maps the stems of all known names to presets."""
    written = [(name, preset) for preset, names in SAME_SIZES.items() for name in names]
    written += [(_last_part(hub), preset) for preset, hub in HUB.items()] + [(name, name) for name in PRESETS]
    return {_stem(name): preset for name, preset in written}


def _last_part(name: str) -> str:
    """The name without link, owner and file, in small letters, with hyphens between its words."""
    name = re.sub(r"\.gguf(?:[?#].*)?$", "-gguf", LINK.sub("", name.strip().lower()))
    if not name.endswith("-gguf"):
        name = REST_OF_LINK.sub("", name)
    name = name.rpartition("/")[2]
    # A point before a letter divides words (quantized.w4a16), one before a number is a version's (qwen2.5).
    return re.sub(r"[\s_:-]+|\.(?=[a-z])", "-", name)


def _stem(name: str) -> str:
    """A name without the words of `VARIANTS` behind a model's size, and without hyphens: qwen2.5-7b and Qwen-2.5-7B."""
    words = name.split("-")
    return "".join(words[:2] + [word for word in words[2:] if word not in VARIANTS])
