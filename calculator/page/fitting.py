"""Models that a GPU has room for: to train them all, to train adapters beside them, and to generate text with them."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import lru_cache

from calculator.choose.devices import Device
from calculator.choose.fit import verdict
from calculator.choose.inference import inference_memory
from calculator.choose.techniques import LORA_RANK
from calculator.errors import BadSetup
from calculator.families.registry import family_of
from calculator.models.architectures import PRESETS, Architecture
from calculator.parts.parameters import count_parameters
from calculator.step.resolve import resolve
from calculator.step.setups import Setup

WAYS = {
    "whole": "all weights trained",
    "lora": "LoRA",
    "qlora": "QLoRA",
    "bf16": "generating in 16 bits",
    "nf4": "generating in 4 bits",
}
"""Ways to use a model, and their titles."""
ADAPTERS = {"lora": 16, "qlora": 4}
"""Bits of the frozen weights beside which adapters are trained."""
FITS, TIGHT, NOT, UNCOUNTED = "fits", "tight", "no", "–"


def models_on(device: Device, settings: dict[str, object]) -> list[dict[str, str]]:
    """Judges every model on a GPU. The largest come first, and models that fit in no way last.

    Args:
        device: The GPU.
        settings: Keys of a setup; each model gets the keys that apply to it.

    Returns:
        For each model its `name`, its `size` in words, and for each of `WAYS` "fits", "tight", "no", or "–" if it is
        not counted.
    """
    return _models_on(device, tuple(settings.items()))


@lru_cache(maxsize=8)
def _models_on(device: Device, settings: tuple[tuple[str, object], ...]) -> list[dict[str, str]]:
    """Computes `models_on` for the cache: a question and the table that it opens need one result."""
    largest_first = sorted(PRESETS.values(), key=count_parameters, reverse=True)
    rows = [_row(architecture, device, dict(settings)) for architecture in largest_first]
    return sorted(rows, key=lambda row: not any(row[way] in (FITS, TIGHT) for way in WAYS))


def with_applicable(setup: Setup, settings: dict[str, object]) -> Setup:
    """Returns a setup with those of `settings` that its model can have.

    >>> with_applicable(Setup(model="dalle-2021"), {"optimizer": "sgd", "lora_rank": 8}).lora_rank
    """
    for name, value in settings.items():
        changed = replace(setup, **{name: value})
        try:
            resolve(changed)
        except BadSetup:
            continue
        setup = changed
    return setup


def _row(architecture: Architecture, device: Device, settings: dict[str, object]) -> dict[str, str]:
    size = count_parameters(architecture)
    shown = f"{size / 1e9:.3g} B" if size >= 999.5e6 else f"{size / 1e6:.3g} M"
    row = {"name": architecture.name, "size": shown}
    others = {name: value for name, value in settings.items() if name not in ("lora_rank", "base_bits")}
    row["whole"] = _trained(Setup(model=architecture.name), others, device)
    rank = settings.get("lora_rank") or LORA_RANK
    for way, bits in ADAPTERS.items():
        row[way] = _trained(Setup(model=architecture.name, lora_rank=rank, base_bits=bits), others, device)
    length = settings.get("sequence_length") or architecture.sequence_length
    for way in ("bf16", "nf4"):
        row[way] = _generated(architecture, device, way, length)
    return row


def _trained(setup: Setup, settings: dict[str, object], device: Device) -> str:
    try:
        judged = verdict(with_applicable(setup, settings), device)
    except BadSetup:
        return UNCOUNTED
    return judged.standing if judged.fits else NOT


def _generated(architecture: Architecture, device: Device, weights: str, length: int) -> str:
    try:
        memory = inference_memory(architecture, length=length, weights=weights)
    except BadSetup:
        return UNCOUNTED
    return FITS if memory.total_on(device) <= device.usable_bytes else NOT


def largest_in_words(rows: list[dict[str, str]]) -> str:
    """The largest published language model that fits in each way, as the rest of a sentence."""
    parts = []
    for way, title in WAYS.items():
        named = (row for row in rows if row[way] == FITS and _is_published(PRESETS[row["name"]]))
        best = next(named, None)
        parts.append(f"{title}: " + (f"{best['name']} ({best['size']})" if best else "none"))
    return f"the largest language models that fit are – {'; '.join(parts)}."


def _is_published(architecture: Architecture) -> bool:
    return architecture.released and family_of(architecture).generates


def settings_of(setup: Setup) -> dict[str, object]:
    """The keys of a setup that differ from the defaults, without its model."""
    usual = asdict(Setup())
    return {k: v for k, v in asdict(setup).items() if k not in ("model", "config") and v != usual[k]}
