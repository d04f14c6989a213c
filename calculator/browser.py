"""The page's only entry: JSON string in, JSON string out."""

from __future__ import annotations

import json

from calculator.architectures import PRESETS
from calculator.errors import BadSetup
from calculator.estimate import ATTENTIONS, PCIE_BYTES_PER_SECOND, PRECISIONS, Setup, setup_from
from calculator.estimate import estimate as estimate_setup
from calculator.optimizers import ADAMW, OPTIMIZERS
from calculator.parameters import count_parameters

FAMILY_TITLES = {
    "bert": "BERT",
    "t5": "T5",
    "gpt2": "GPT-2",
    "gpt3": "GPT-3",
    "gptj": "GPT-J",
    "dalle": "DALL-E",
    "text-to-image": "This run's DALL-E",
}


def catalogue() -> str:
    """What a page offers: models with their sizes and own settings, and the choices of every other key.

    JSON: `models` is a list of {`name`, `family`, `family_title`, `parameters`, `num_layers`, `hidden_size`,
    `num_heads`, `sequence_length`, `max_sequence_length`, `target_length` (null without a decoder of its own),
    `dropout`, `shared_groups` (null where none), `reversible`, `max_shared_groups`}; `choices` maps keys to lists of
    {`value`, `title`}; `ranges` maps keys to {`min`, `max`}; `defaults` is a whole setup.
    """
    models = []
    for architecture in PRESETS.values():
        prefix = architecture.name.split("-")[0]
        family = prefix if prefix in ("gpt3", "dalle") and architecture.family == "gpt2" else architecture.family
        layers = min(architecture.num_layers, architecture.num_decoder_layers or architecture.num_layers)
        fixed = architecture.family == "text-to-image"
        models.append(
            {
                "name": architecture.name,
                "family": family,
                "family_title": FAMILY_TITLES[family],
                "parameters": count_parameters(architecture),
                "num_layers": architecture.num_layers,
                "hidden_size": architecture.hidden_size,
                "num_heads": architecture.num_heads,
                "sequence_length": architecture.sequence_length,
                "max_sequence_length": architecture.sequence_length if fixed else architecture.max_positions or None,
                "target_length": architecture.target_length or None,
                "dropout": architecture.dropout,
                "shared_groups": architecture.shared_groups or None,
                "max_shared_groups": layers,
                "reversible": architecture.reversible,
            }
        )
    titles = {
        "amp-bf16": "Mixed, bfloat16",
        "amp-fp16": "Mixed, float16",
        "fp32": "Full, float32",
        "bf16": "Pure bfloat16",
        "fp16": "Pure float16",
        "sdpa": "Fused (SDPA, FlashAttention)",
        "eager": "Single operations (eager)",
        "foreach": "foreach (PyTorch's default)",
        "for-loop": "for-loop",
        "fused": "fused",
    }
    choices = {
        "precision": [{"value": value, "title": titles[value]} for value in PRECISIONS],
        "attention": [{"value": value, "title": titles[value]} for value in ATTENTIONS],
        "optimizer": [{"value": optimizer.name, "title": optimizer.title} for optimizer in OPTIMIZERS.values()],
        "optimizer_impl": [{"value": value, "title": titles[value]} for value in ADAMW],
        "pcie_generation": [{"value": value, "title": f"PCIe {value}.0 x16"} for value in PCIE_BYTES_PER_SECOND],
    }
    ranges = {
        "micro_batch_size": {"min": 1, "max": 1_000_000},
        "accumulation_steps": {"min": 1, "max": 1_000_000},
        "sequence_length": {"min": 1, "max": None},
        "target_length": {"min": 1, "max": None},
        "dropout": {"min": 0, "max": 0.999},
    }
    defaults = {
        name: getattr(Setup(model="gpt2-large"), name) for name in Setup.__dataclass_fields__ if name != "config"
    }
    return json.dumps({"models": models, "choices": choices, "ranges": ranges, "defaults": defaults})


def estimate(setup_json: str) -> str:
    """The estimate of one setup, as JSON; {"error": "<one sentence>"} if it is refused."""
    try:
        values = json.loads(setup_json)
        return json.dumps(estimate_setup(setup_from(values)).as_dict())
    except json.JSONDecodeError as error:
        return json.dumps({"error": f"This is not JSON: {error}."})
    except BadSetup as error:
        return json.dumps({"error": str(error)})
