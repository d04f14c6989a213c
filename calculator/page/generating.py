"""Memory of generating text with a setup's model, and the contexts and batches that fit every listed GPU."""

from __future__ import annotations

from collections.abc import Mapping

from calculator.choose.devices import Device, smallest_first
from calculator.choose.inference import PROMPT, InferenceMemory, inference_memory, largest_batch, longest_context
from calculator.choose.stored import unpacked_bytes
from calculator.errors import BadSetup
from calculator.families.lengths import beyond_training, most_tokens
from calculator.models.architecture import Architecture
from calculator.units import show_bytes, show_count, show_left

DEFAULTS = {"batch": 1, "length": None, "weights": "bf16", "cache": "bf16"}
"""The fields of the page; the length is the model's own if it is None."""


def generating(architecture: Architecture, texts: Mapping[str, object], device: Device | None = None) -> dict:
    """Computes the page's sentence and table about generating text.

    Args:
        architecture: The model.
        texts: Texts of the fields in `DEFAULTS`; for an empty or missing text, the default counts.
        device: A GPU that has a row even if it is not listed.

    Returns:
        `note`, the memory in words, and `rows`: for each GPU, those that fit first, of these the one with the least
        memory first, its `name`, `title`, `standing`, what is `left` (memory, "−" before what is missing), and the most
        tokens of a sequence (`context`) and sequences at once (`batch`) that fit, all else unchanged.

    Raises:
        BadSetup: If the model does not generate text, or a field has no value that it can have.
    """
    asked = {name: texts.get(name) or usual for name, usual in DEFAULTS.items()}
    for name in ("batch", "length"):
        asked[name] = _whole(name, asked[name] or architecture.sequence_length)
    for name in ("weights", "cache"):
        asked[name] = str(asked[name])
    memory = inference_memory(architecture, **asked)
    unpacked = unpacked_bytes(architecture, asked["weights"])
    rows = [_row(architecture, one, asked, memory) for one in smallest_first(device)]
    return {
        "note": " ".join(filter(None, [_note(asked, memory, unpacked), _trained(architecture, asked["length"])])),
        "rows": sorted(rows, key=lambda row: row["standing"] != "fits"),
    }


def _whole(name: str, value: object) -> int:
    try:
        return int(str(value)[:20])
    except ValueError:
        raise BadSetup(f"{name} is a whole number, not {str(value)!r:.60}.") from None


def _note(asked: Mapping[str, object], memory: InferenceMemory, unpacked: int) -> str:
    more = f" Unpacking the largest layer takes {show_bytes(unpacked)} more, for a moment." if unpacked else ""
    count = asked["batch"]
    sequences = "1 sequence" if count == 1 else f"{show_count(count)} sequences"
    return (
        f"{sequences} of {show_count(asked['length'])} tokens: {show_bytes(memory.total)}, of which weights "
        f"{show_bytes(memory.weights)}, cached keys and values {show_bytes(memory.cache)}, and CUDA itself "
        f"{show_bytes(memory.overhead)}.{more} {PROMPT}"
    )


def _trained(architecture: Architecture, length: int) -> str:
    """A sentence on the length for which a model was trained, if it accepts more."""
    if sentence := beyond_training(architecture, length):
        return sentence
    trained = architecture.max_positions
    if not trained or trained == most_tokens(architecture):
        return ""
    return f"Longer contexts than the {show_count(trained)} tokens for which the model was trained are counted too."


def _row(architecture: Architecture, device: Device, asked: dict, memory: InferenceMemory) -> dict:
    margin = device.usable_bytes - memory.total_on(device)
    others = {name: value for name, value in asked.items() if name not in ("batch", "length")}
    context = longest_context(architecture, device, batch=asked["batch"], **others)
    batch = largest_batch(architecture, device, length=asked["length"], **others)
    return {
        "name": device.name,
        "title": device.title,
        "standing": "fits" if margin >= 0 else "does not fit",
        "left": show_left(margin),
        "context": show_count(context) if context else "–",
        "batch": show_count(batch) if batch else "–",
    }
