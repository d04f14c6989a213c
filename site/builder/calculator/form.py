"""The form of the calculator's page, made from the calculator's catalogue, and the answer that it shows first."""

from __future__ import annotations

import json

from builder.calculator.measured_errors import measured_errors
from calculator import browser
from calculator.choose.devices import DRIVER_BYTES, MIB
from calculator.choose.flops import UTILISATION
from calculator.models.architectures import PRESETS
from calculator.page.fitting import WAYS
from calculator.page.models import own_values
from calculator.page.shown import HOST_PARTS, PARTS
from calculator.parts.low_rank import DEFAULT_RANKS
from calculator.parts.optimizers import OPTIMIZERS
from calculator.units import show_bytes

DEFAULT = {"model": "gpt2-large", "micro_batch_size": 1, "optimizer": "adamw8bit", "checkpointing": True}
"""The setup of the first answer: the paper's tutorial (section 2.3)."""

DEFAULT_GPU = "t4"
"""The GPU that Google Colab provides free of charge."""

ANOTHER_CARD = "cuda-gb"
"""The last choice in the list of GPUs: a card that is not listed. The reader types its memory in the next field."""

CARD_GIB = "20"
"""Initial memory of `ANOTHER_CARD` in GiB: a size that no listed GPU has."""

CHECKPOINTING = {"false": "off", "true": "every block", "2": "every 2nd block", "3": "every 3rd", "4": "every 4th"}
BASE_BITS = {"": "as the precision", "16": "16 bits", "4": "4 bits (QLoRA)"}
LOSS = {"whole": "of all logits at once", "liger": "in pieces (Liger)"}
SHARDING = {
    "none": "nothing (DDP)",
    "zero-1": "ZeRO-1 (PyTorch's DDP)",
    "zero-2": "ZeRO-2 (PyTorch's FSDP2)",
    "zero-3": "ZeRO-3 (PyTorch's FSDP2)",
    "deepspeed-1": "ZeRO-1 (DeepSpeed)",
    "deepspeed-2": "ZeRO-2 (DeepSpeed)",
    "deepspeed-3": "ZeRO-3 (DeepSpeed)",
    "tensor": "tensor parallel",
    "tensor-sequence": "tensor and sequence parallel",
}
REVERSIBLE = {"": "as the model is", "true": "on", "false": "off"}
GENERATING = {
    "weights": {
        "bf16": "bfloat16",
        "fp32": "float32",
        "fp8": "8 bits (FP8)",
        "nf4": "4 bits (bitsandbytes)",
        "mxfp4": "4 bits (MXFP4, gpt-oss)",
    },
    "cache": {"bf16": "bfloat16", "fp32": "float32", "fp8": "8 bits (FP8)"},
}
"""Types of weights and of cached keys and values for generating text, the usual one first."""


PIN_ROWS = {
    "total": "Total",
    "verdict": "Verdict",
    **{f"gpu-{part}": label for part, label in PARTS.items()},
    "host-total": "On the host",
    "transfer": "Over the bus, per update",
}
"""Rows of the table that compares setups: the name of a text in an answer, and the row's label."""


def page_data() -> dict:
    """The data of site/includes/calculator.html: the form, the first answer, and each model's values for the script.

    Raises:
        ValueError: If the calculator refuses the default setup.
    """
    catalogue = json.loads(browser.catalogue())
    request = json.dumps({"setup": DEFAULT, "gpu": DEFAULT_GPU})
    shown = json.loads(browser.answer(request))
    if "error" in shown:
        raise ValueError(f"The calculator refuses the page's default setup: {shown['error']}")
    peak = next(row for row in shown["timeline"] if row["peak"])
    return {
        "shown": shown,
        "advice": json.loads(browser.advise(request)),
        "step_label": (
            f"Memory held during the step, in {len(shown['timeline'])} stretches; the peak is in {peak['phase']}, "
            f"{peak['place']}: {peak['bytes']}"
        ),
        "parts": PARTS,
        "host_parts": HOST_PARTS,
        "pin_rows": PIN_ROWS,
        "errors": measured_errors(),
        "groups": _groups(catalogue),
        "models": {name: own_values(architecture) for name, architecture in PRESETS.items()},
        "default_model": DEFAULT["model"],
        "utilisation": UTILISATION,
        "ways": {way: title[0].upper() + title[1:] for way, title in WAYS.items()},
        "generating": GENERATING,
        "hidden": [
            "card",
            "image_size",
            "target_length",
            "reversible",
            "base_bits",
            "sharding",
            "packed",
            "fp8",
            "loss",
            "offload_activations",
            "optimizer_rank",
            "optimizer_impl",
            "delta_rule",
            "pcie_generation",
        ],
    }


def _groups(catalogue: dict) -> list[dict]:
    choices = catalogue["choices"]
    return [
        {
            "title": "Model",
            "folded": False,
            "fields": [
                _search("model", "Model", _models(catalogue), "Type to search."),
                _number("micro_batch_size", "Micro-batch", "Samples in one forward pass."),
                _number(
                    "sequence_length",
                    "Sequence length",
                    "Tokens per sample; of a diffusion model, the prompt's.",
                ),
                _switch("packed", "Packed samples", "Each sequence is a pack of samples, with a mask."),
                _number("image_size", "Picture size", "Pixels of a picture's side."),
                _number("target_length", "Target length", "Tokens that the decoder writes."),
                _choice("gpu", "GPU to fit", _gpus(), "With the memory that programs can use."),
                _card(),
                _number("gpus", "GPUs", "How many train together."),
            ],
        },
        {
            "title": "To save memory",
            "folded": False,
            "fields": [
                _choice("optimizer", "Optimizer", _titled(choices["optimizer"])),
                _number("optimizer_rank", "Optimizer's rank", f"Of its projections. Empty: {_usual_ranks()}."),
                _switch(
                    "optimizer_in_backward",
                    "Optimizer in backward",
                    "Updates each parameter when its gradient is there, and frees that.",
                ),
                _switch(
                    "offload_optimizer", "Offload the optimizer", "Keeps its state and computes its update on the host."
                ),
                _choice("loss", "Loss", _options(LOSS), "In pieces, there are never all logits at once."),
                _switch("offload_activations", "Offload activations", "Keeps on the host what backward needs."),
                _choice(
                    "checkpointing",
                    "Gradient checkpointing",
                    _options(CHECKPOINTING),
                    "Keeps the blocks' inputs and recomputes the rest.",
                ),
                _number("shared_groups", "Layer groups", "The layers of a group share their weights."),
                _number("lora_rank", "LoRA, rank", "Trains adapters of this rank and freezes the model."),
                _choice("base_bits", "Frozen weights", _options(BASE_BITS)),
                _choice(
                    "sharding",
                    "Divided among GPUs",
                    _options(SHARDING),
                    "ZeRO-1: the optimizer's state; ZeRO-2: gradients too; ZeRO-3: weights too. DeepSpeed's take "
                    "other memory than PyTorch's. Tensor parallel: the GPUs compute each sample together.",
                ),
            ],
        },
        {
            "title": "Finer choices",
            "folded": True,
            "fields": _finer(choices),
        },
    ]


def _usual_ranks() -> str:
    return ", ".join(f"{rank} ({OPTIMIZERS[name].title})" for name, rank in DEFAULT_RANKS.items())


def _finer(choices: dict) -> list[dict]:
    return [
        _choice("precision", "Precision", _titled(choices["precision"])),
        _switch("fp8", "FP8 products", "torchao's; the layers' matrices are cast to 8 bits before each product."),
        _choice("attention", "Attention", _titled(choices["attention"])),
        _choice("reversible", "Reversible layers", _options(REVERSIBLE)),
        _number("dropout", "Dropout", ""),
        _number("accumulation_steps", "Accumulation", "Micro-batches per optimizer step."),
        _choice("optimizer_impl", "AdamW's loop", _titled(choices["optimizer_impl"])),
        _switch(
            "embeddings_32bit",
            "Embeddings in 32 bit",
            "Keeps the 8-bit optimizers' state of embeddings in 32 bits, as Hugging Face's Trainer does.",
        ),
        _switch(
            "delta_rule",
            "Delta rule",
            "An option of hivemind that needs one more copy of the parameters on the host.",
        ),
        _choice("pcie_generation", "Bus to the host", _titled(choices["pcie_generation"])),
    ]


def _models(catalogue: dict) -> list[dict]:
    groups: dict[str, list[dict]] = {}
    for model in catalogue["models"]:
        option = {"value": model["name"], "label": _in_short(model["parameters"])}
        groups.setdefault(model["family_title"], []).append(option)
    return [{"label": title, "options": options} for title, options in groups.items()]


def _gpus() -> list[dict]:
    gpus = json.loads(browser.devices())
    labels = {gpu["name"]: f"{gpu['title']}: {show_bytes(gpu['usable_bytes'])}" for gpu in gpus}
    return _options({"": "none", **labels, ANOTHER_CARD: "Another card …"})


def _card() -> dict:
    """The field for the memory of a card that is not listed; its value is part of the choice `gpu`."""
    note = f"As sold, a whole number. The driver takes {DRIVER_BYTES // MIB} MiB of it."
    return {"kind": "part", "key": "card", "label": "Its memory, GiB", "default": CARD_GIB, "note": note}


def _in_short(parameters: int) -> str:
    # Below a billion, three digits of millions would be rounded up to four.
    return f"{parameters / 1e9:.3g} B parameters" if parameters >= 999.5e6 else f"{parameters / 1e6:.3g} M parameters"


def _titled(choices: list[dict]) -> list[dict]:
    return _options({str(choice["value"]): choice["title"] for choice in choices})


def _options(labels: dict[str, str]) -> list[dict]:
    return [{"label": "", "options": [{"value": value, "label": label} for value, label in labels.items()]}]


def _field(kind: str, key: str, label: str, note: str) -> dict:
    """A control of the form. `default` is its first text on the page, `usual` the text of the calculator's default."""
    usual = None if key in ("model", "gpu") else json.loads(browser.catalogue())["defaults"][key]
    default = DEFAULT_GPU if key == "gpu" else _text(DEFAULT.get(key, usual))
    return {"kind": kind, "key": key, "label": label, "default": default, "usual": _text(usual), "note": note}


def _text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _choice(key: str, label: str, groups: list[dict], note: str = "") -> dict:
    return {**_field("choice", key, label, note), "groups": groups}


def _search(key: str, label: str, groups: list[dict], note: str) -> dict:
    return {**_choice(key, label, groups, note), "kind": "search"}


def _number(key: str, label: str, note: str) -> dict:
    return _field("number", key, label, note)


def _switch(key: str, label: str, note: str) -> dict:
    return _field("switch", key, label, note)
