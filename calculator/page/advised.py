"""Changes that fit a setup to a GPU, as rows of a table that take one click each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from calculator.choose import fit
from calculator.choose.devices import Device
from calculator.step.resolve import resolve
from calculator.step.setups import Setup
from calculator.units import show_bytes, show_count

FREE = f"leaves {fit.TIGHT_PERCENT}\u00a0% free for fragmentation"
"""The margin of the largest setups, in words."""


def advised(setup: Setup, device: Device) -> dict:
    """Makes the page's advice.

    Returns:
        `sentence`; `room`, the memory that the GPU offers; and `choices`: the suggestions of `fit.advice`, the largest
        setups that fit with room to spare, and settings that suit the GPU better. Each has its `change`, the `memory`
        that the setup then needs and the `cost` in words, and `changes`, the texts of the form's fields.
    """
    advice = fit.advice(setup, device)
    rows = [
        _row(" and ".join(one["techniques"]), one["verdict"]["need_bytes"], one["costs"], one["changes"])
        for one in advice["suggestions"]
    ]
    rows += _largest(setup, device)
    if setup.precision.endswith("bf16") and not device.bfloat16:
        changes = {"precision": setup.precision.replace("bf16", "fp16")}
        change = f"float16 instead of bfloat16, for which the {device.title} has no units"
        rows.append(_row(change, fit.need_bytes(replace(setup, **changes), device), "no extra time", changes))
    return {"sentence": advice["sentence"], "room": show_bytes(device.usable_bytes), "choices": rows}


def _largest(setup: Setup, device: Device) -> Iterator[dict]:
    """Yields the largest micro-batch and the longest sequence that fit with room to spare,
    with nothing else changed."""
    room = fit.roomy_bytes(device)
    largest = fit.largest_micro_batch(setup, device, most_bytes=room)
    if largest and largest != setup.micro_batch_size:
        yield _larger(setup, device, f"micro-batch of {show_count(largest)}", {"micro_batch_size": largest})
    longest = fit.longest_sequence(setup, device, most_bytes=room)
    if longest and longest != (setup.sequence_length or resolve(setup).sequence_length):
        yield _larger(setup, device, f"sequences of {show_count(longest)} tokens", {"sequence_length": longest})


def _larger(setup: Setup, device: Device, change: str, changes: dict[str, int]) -> dict:
    superlative = "largest" if "micro_batch_size" in changes else "longest"
    need = fit.need_bytes(replace(setup, **changes), device)
    return _row(f"{change}: the {superlative} that {FREE}", need, "", changes)


def _row(change: str, need: int, cost: str, changes: dict[str, object]) -> dict:
    texts = as_texts(changes)
    return {"change": change[0].upper() + change[1:], "memory": show_bytes(need), "cost": cost or "–", "changes": texts}


def as_texts(changes: dict[str, object]) -> dict[str, str]:
    """The values as the form's controls hold them."""
    return {
        key: "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in changes.items()
    }
