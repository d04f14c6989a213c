"""Changes that fit a setup to a GPU, as choices that take one click each."""

from __future__ import annotations

from collections.abc import Iterator

from calculator.choose import fit
from calculator.choose.devices import Device
from calculator.reports.units import show_count
from calculator.step.resolve import resolve
from calculator.step.setups import Setup


def choices(setup: Setup, device: Device, suggestions: list[dict]) -> Iterator[dict]:
    """{"text", "changes"}: the suggestions of `fit.advice`, the largest that fits, and what suits the GPU better."""
    for suggestion in suggestions:
        yield {"text": suggestion["sentence"], "changes": _as_texts(suggestion["changes"])}
    largest = fit.largest_micro_batch(setup, device)
    if largest and largest != setup.micro_batch_size:
        yield {
            "text": f"The largest micro-batch that fits, all else unchanged: {show_count(largest)}.",
            "changes": {"micro_batch_size": str(largest)},
        }
    longest = fit.longest_sequence(setup, device)
    if longest and longest != (setup.sequence_length or resolve(setup).sequence_length):
        yield {
            "text": f"The longest sequence that fits, all else unchanged: {show_count(longest)} tokens.",
            "changes": {"sequence_length": str(longest)},
        }
    if setup.precision.endswith("bf16") and not device.bfloat16:
        yield {
            "text": f"float16 instead of bfloat16, for which the {device.title} has no units.",
            "changes": {"precision": setup.precision.replace("bf16", "fp16")},
        }


def _as_texts(changes: dict[str, object]) -> dict[str, str]:
    """The values as the form's controls hold them."""
    return {
        key: "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in changes.items()
    }
