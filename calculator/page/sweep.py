"""Memory over a range of one number: the micro-batch, the sequence length or the number of layer groups."""

from __future__ import annotations

from dataclasses import asdict, replace

from calculator.choose.devices import Device
from calculator.choose.fit import verdict
from calculator.errors import BadSetup
from calculator.step.estimate import estimate
from calculator.step.resolve import plain, resolve
from calculator.step.setups import Setup
from calculator.units import show_bytes

POINTS = 16
"""The most points of a sweep."""

TITLES = {
    "micro_batch_size": "Micro-batch",
    "sequence_length": "Sequence length",
    "image_size": "Picture size",
    "shared_groups": "Layer groups",
}


def swept(setup: Setup, along: object, device: Device | None = None) -> dict:
    """Totals, parts and the plain baseline at each value that the calculator accepts.

    With a device, also its title as `gpu` and, at each value, the `room` that it leaves for the total. `present` is the
    setup's own point; None if it has no such value.

    Raises:
        BadSetup: If the setup cannot be swept along this number.
    """
    if not isinstance(along, str) or along not in TITLES:
        raise BadSetup(f"A sweep goes along one of {', '.join(TITLES)}, not {along!r:.60}.")
    points = []
    for value in _values(setup, along):
        try:
            changed = replace(setup, **{along: value})
            result, usual = estimate(changed), estimate(plain(changed))
        # The sweep may pass values that this setup does not allow.
        except BadSetup:
            continue
        point = {
            "value": value,
            "parts": asdict(result.gpu),
            "total": result.gpu.total,
            "plain": usual.gpu.total,
            "row": [str(value), show_bytes(result.gpu.total), show_bytes(usual.gpu.total)],
        }
        if device:
            judged = verdict(changed, device, result)
            point["room"] = judged.usable_bytes - (judged.need_bytes - result.gpu.total)
            point["row"].append(judged.standing)
        points.append(point)
    if len(points) < 2:
        raise BadSetup(f"{TITLES[along]} is fixed for this model: there is nothing to sweep.")
    own = getattr(setup, along) or _own(setup, along)
    present = {"value": own, "total": estimate(setup).gpu.total} if own else None
    return {"title": TITLES[along], "points": points, "present": present, "gpu": device.title if device else ""}


def _own(setup: Setup, along: str) -> int | None:
    """The model's own value."""
    return getattr(resolve(setup), "image_height" if along == "image_size" else along, None)


def _values(setup: Setup, along: str) -> list[int]:
    """Evenly spaced values from 1, or for lengths from a sixteenth of the longest, to beyond the setup's own."""
    model = resolve(setup)
    if along == "shared_groups":
        layers = min(model.num_layers, model.num_decoder_layers or model.num_layers)
        return _spread(1, layers)
    if along == "micro_batch_size":
        return _spread(1, max(16, 2 * setup.micro_batch_size))
    if along == "image_size":
        side = model.image_height or 1
        return [side * step // 8 for step in range(1, 17)]
    own = setup.sequence_length or model.sequence_length
    longest = max(model.max_positions or 4 * own, own)
    return _spread(max(1, longest // POINTS), longest)


def _spread(first: int, last: int) -> list[int]:
    steps = min(POINTS, last - first + 1) - 1
    return sorted({first + (last - first) * step // max(1, steps) for step in range(steps + 1)})
