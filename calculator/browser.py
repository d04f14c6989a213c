"""The page's only entry: JSON strings in, JSON string out.

A setup is an object with keys of `calculator.estimate.Setup` (`model` or `config`, and any of the others); a GPU is one
of the names of `devices()`. Bytes are whole numbers. What is refused gives `{"error": "<one sentence>"}`.

`catalogue()`
    What a form offers; see its docstring.
`estimate(setup)`
    `model`, `parameters`, `parameters_by_part` {part: count}; `gpu` {`weights`, `gradients`, `optimizer_state`,
    `activations`, `temporary`, `total`} at the peak; `saved_activations`, `autocast_weight_copies`, `gradient_bytes`,
    `optimizer_state_bytes`; `host` {`parameters`, `gradients`, `optimizer_state`, `delta_rule`, `total`}; `peak`
    {`phase`, `instant`}; `timeline`, a list in the order of the step, one entry for each run of like layers, of
    {`phase` ("forward", "backward", "optimizer"), `place`, `instant` (the operation, may be empty), `bytes`, and parts
    `weights`, `gradients`, `optimizer_state`, `activations`, `temporary` that add up to it}; `transfer`
    {`bytes_per_step`, `seconds`}; `overhead` {name: bytes, `total`}; `notes`, sentences;
    `baseline` {`setup` (whole), `parameters`, `gpu`, `host`, `peak`}: the same without any technique.
`devices()`
    A list of {`name`, `title`, `memory_bytes` (as sold), `usable_bytes`, `source` (of the latter), `unified`,
    `bfloat16` (whether in hardware)}.
`verdict(setup, gpu)`
    {`gpu`, `fits`, `standing` ("fits", "tight", "does not fit"), `need_bytes`, `usable_bytes`, `margin_bytes` (negative
    where it does not fit), `sentence`, `notes` (sentences), `largest_micro_batch` (0 if not even one fits),
    `longest_sequence` (likewise; null where the model fixes it)}.
`suggestions(setup, gpu)`
    {`sentence`, `suggestions`}: a list, cheapest in time first, empty if the setup fits or nothing helps, of
    {`techniques` (titles), `changes` {key: new value of the setup}, `extra_computation` (0.33: a third more),
    `seconds_per_update` (over the bus), `verdict` (as above, without the last two), `sentence`}.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from calculator import fit
from calculator.architectures import PRESETS
from calculator.devices import DEVICES, device_named
from calculator.errors import BadSetup
from calculator.estimate import ATTENTIONS, PCIE_BYTES_PER_SECOND, PRECISIONS, Setup, plain, setup_from
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
    """The estimate of one setup, and of the same without any technique."""

    def answer(setup: Setup) -> dict:
        without = plain(setup)
        baseline = estimate_setup(without).as_dict()
        parts = {name: baseline[name] for name in ("parameters", "gpu", "host", "peak")}
        whole = {name: getattr(without, name) for name in Setup.__dataclass_fields__}
        return {**estimate_setup(setup).as_dict(), "baseline": {"setup": whole, **parts}}

    return _answered(setup_json, answer)


def devices() -> str:
    """The GPUs that `verdict` and `suggestions` know."""
    names = ("name", "title", "memory_bytes", "usable_bytes", "source", "unified", "bfloat16")
    return json.dumps([{name: getattr(device, name) for name in names} for device in DEVICES.values()])


def verdict(setup_json: str, gpu: str) -> str:
    """Whether a setup fits a GPU, the margin, and the largest micro-batch and longest sequence that fit."""
    return _answered(setup_json, lambda setup: fit.answer(setup, device_named(gpu)))


def suggestions(setup_json: str, gpu: str) -> str:
    """The techniques that make a setup fit a GPU, cheapest in time first."""
    return _answered(setup_json, lambda setup: fit.advice(setup, device_named(gpu)))


def _answered(setup_json: str, answer: Callable[[Setup], dict]) -> str:
    try:
        return json.dumps(answer(setup_from(json.loads(setup_json))))
    except json.JSONDecodeError as error:
        return json.dumps({"error": f"This is not JSON: {error}."})
    except BadSetup as error:
        return json.dumps({"error": str(error)})
