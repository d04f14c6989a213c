"""The calculator page's form, from the catalogue, and its default answer, computed at build time."""

from __future__ import annotations

import json

from builder.answer import answer
from calculator import browser

DEFAULT = {"model": "gpt2-large", "micro_batch_size": 1, "optimizer": "adamw8bit", "checkpointing": True}
"""The setup of the first answer: the paper's tutorial (section 2.3)."""

CHECKPOINTING = {"false": "off", "true": "every block", "2": "every 2nd block", "3": "every 3rd", "4": "every 4th"}
REVERSIBLE = {"": "as the model is", "true": "on", "false": "off"}


def page_data() -> dict:
    """What the template shows: the form's groups, the default answer, and each model's own values for the script.

    Raises:
        ValueError: If the calculator refuses the default setup.
    """
    catalogue = json.loads(browser.catalogue())
    shown = json.loads(answer(json.dumps(DEFAULT)))
    if "error" in shown:
        raise ValueError(f"The calculator refuses the page's default setup: {shown['error']}")
    return {
        "shown": shown,
        "groups": _groups(catalogue),
        "models": _own_values(catalogue),
        "default_model": DEFAULT["model"],
        "hidden": ["target_length", "reversible", "optimizer_impl", "delta_rule", "pcie_generation"],
    }


def exercise_setups() -> list[dict]:
    """Setups that together import everything the calculator can import: all models, all choices, refused ones."""
    catalogue = json.loads(browser.catalogue())
    setups = [{"model": model["name"]} for model in catalogue["models"]]
    for key, options in catalogue["choices"].items():
        setups += [{**DEFAULT, key: option["value"]} for option in options]
    setups += [{**DEFAULT, "offload_optimizer": True, "checkpointing": 2, "shared_groups": 4, "dropout": 0}]
    setups += [{**DEFAULT, "micro_batch_size": -1}, {**DEFAULT, "model": "none-such"}, {**DEFAULT, "unknown": 1}]
    return setups


def _own_values(catalogue: dict) -> dict[str, dict]:
    """For each model: what its empty fields mean, whether its layers are reversible, and what it has not."""
    return {
        model["name"]: {
            "placeholders": {
                "sequence_length": str(model["sequence_length"]),
                "target_length": str(model["target_length"] or ""),
                "dropout": str(model["dropout"]),
                "shared_groups": str(model["shared_groups"] or "none shared"),
            },
            "reversible": model["reversible"],
            "two_stacks": bool(model["target_length"]),
            "text_to_image": model["family"] == "text-to-image",
        }
        for model in catalogue["models"]
    }


def _groups(catalogue: dict) -> list[dict]:
    choices = catalogue["choices"]
    return [
        {
            "title": "Model",
            "folded": False,
            "fields": [
                _choice("model", "Model", _models(catalogue)),
                _number("micro_batch_size", "Micro-batch", "Samples in one forward pass."),
                _number("sequence_length", "Sequence length", "Tokens a sample."),
                _number("target_length", "Target length", "Tokens that the decoder writes."),
            ],
        },
        {
            "title": "To save memory",
            "folded": False,
            "fields": [
                _choice("optimizer", "Optimizer", _titled(choices["optimizer"])),
                _switch("offload_optimizer", "Offload the optimizer", "Its state and its step move to the host."),
                _choice(
                    "checkpointing",
                    "Gradient checkpointing",
                    _options(CHECKPOINTING),
                    "Keeps blocks' inputs and computes the rest again.",
                ),
                _number(
                    "shared_groups", "Layer groups", "Distinct groups of layers; within one, all use the same weights."
                ),
            ],
        },
        {
            "title": "Finer choices",
            "folded": True,
            "fields": [
                _choice("precision", "Precision", _titled(choices["precision"])),
                _choice("attention", "Attention", _titled(choices["attention"])),
                _choice("reversible", "Reversible layers", _options(REVERSIBLE)),
                _number("dropout", "Dropout", ""),
                _number("accumulation_steps", "Accumulation", "Micro-batches for one step of the optimizer."),
                _choice("optimizer_impl", "AdamW's loop", _titled(choices["optimizer_impl"])),
                _switch("embeddings_32bit", "Embeddings in 32 bit", "Of 8-bit optimizers, as Hugging Face's Trainer."),
                _switch("delta_rule", "Delta rule", "hivemind's; one more copy of the parameters on the host."),
                _choice("pcie_generation", "Bus to the host", _titled(choices["pcie_generation"])),
            ],
        },
    ]


def _models(catalogue: dict) -> list[dict]:
    groups: dict[str, list[dict]] = {}
    for model in catalogue["models"]:
        groups.setdefault(model["family_title"], []).append({"value": model["name"], "label": model["name"]})
    return [{"label": title, "options": options} for title, options in groups.items()]


def _titled(choices: list[dict]) -> list[dict]:
    return _options({str(choice["value"]): choice["title"] for choice in choices})


def _options(labels: dict[str, str]) -> list[dict]:
    return [{"label": "", "options": [{"value": value, "label": label} for value, label in labels.items()]}]


def _default(key: str) -> str:
    value = DEFAULT.get(key, json.loads(browser.catalogue())["defaults"][key])
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _choice(key: str, label: str, groups: list[dict], note: str = "") -> dict:
    return {"kind": "choice", "key": key, "label": label, "groups": groups, "default": _default(key), "note": note}


def _number(key: str, label: str, note: str) -> dict:
    return {"kind": "number", "key": key, "label": label, "default": _default(key), "note": note}


def _switch(key: str, label: str, note: str) -> dict:
    return {"kind": "switch", "key": key, "label": label, "default": _default(key), "note": note}
