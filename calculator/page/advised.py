"""What a reader can do about a setup and a GPU, as choices of one click each."""

from __future__ import annotations

from collections.abc import Iterator

from calculator import fit
from calculator.devices import Device
from calculator.page.words import show_count
from calculator.setups import Setup, resolve


def choices(setup: Setup, device: Device, suggestions: list[dict]) -> Iterator[dict]:
    """{"text", "changes"}: the suggestions of `fit.advice`, the most that fits as it is, what suits the GPU better."""
    for suggestion in suggestions:
        yield {"text": suggestion["sentence"], "changes": _as_texts(suggestion["changes"])}
    largest = fit.largest_micro_batch(setup, device)
    if largest and largest != setup.micro_batch_size:
        yield {
            "text": f"The largest micro-batch that fits, all else as it is: {show_count(largest)}.",
            "changes": {"micro_batch_size": str(largest)},
        }
    longest = fit.longest_sequence(setup, device)
    if longest and longest != (setup.sequence_length or resolve(setup).sequence_length):
        yield {
            "text": f"The longest sequence that fits, all else as it is: {show_count(longest)} tokens.",
            "changes": {"sequence_length": str(longest)},
        }
    if setup.precision.endswith("bf16") and not device.bfloat16:
        yield {
            "text": f"float16 instead of bfloat16, which the {device.title} has no units for.",
            "changes": {"precision": setup.precision.replace("bf16", "fp16")},
        }


def _as_texts(changes: dict[str, object]) -> dict[str, str]:
    """As the form's controls hold them."""
    return {
        key: "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in changes.items()
    }
