"""The figure of data streaming: the time until the first step, and the disk space."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calculator.figures.kit.controls import Choice, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Source
from calculator.models.architectures import PRESETS, Architecture
from calculator.units import show_bytes, show_rate, show_time

PAIRS = 100_000_000
"""Picture-caption pairs of the 2021 run (paper, section 3.2)."""
PICTURES_OVER_CODES = 18
"""The bandwidth of pictures relative to that of codes (paper, section 3.2)."""


def code_bytes(model: Architecture = PRESETS["dalle-2021"]) -> int:
    """Bytes of one picture's codes, each packed into as many bits as the codebook needs.

    >>> code_bytes()
    1664
    """
    tokens = model.sequence_length - model.text_length
    return tokens * math.ceil(math.log2(model.image_vocab_size)) // 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """A way to get the data."""

    name: str
    first_step_seconds: float
    """Seconds from the start until the first sample can be computed."""
    disk_bytes: int
    """Bytes on the volunteer's disk at that time."""
    waiting_share: float
    """Share of the time afterwards spent waiting for data."""


def ways_of(values: Values) -> list[Way]:
    """Downloading all pictures or codes first, and streaming through a shuffle buffer, which is filled first."""
    rate, speed, buffer = float(values["link"]) * 1e6 / 8, float(values["speed"]), int(values["buffer"])
    sizes = {"pictures": PICTURES_OVER_CODES * code_bytes(), "codes": code_bytes()}
    ways = [
        Way(
            name=f"Download all {kind}",
            first_step_seconds=PAIRS * size / rate,
            disk_bytes=PAIRS * size,
            waiting_share=0.0,
        )
        for kind, size in sizes.items()
    ]
    size = sizes[str(values["kind"])]
    ways.append(
        Way(
            name=f"Stream {values['kind']}",
            first_step_seconds=buffer * size / rate,
            disk_bytes=buffer * size,
            waiting_share=max(0.0, 1 - rate / (size * speed)),
        )
    )
    return ways


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws two groups of bars on logarithmic scales, time to the first step and bytes stored;
    then the stream's share."""
    ways = ways_of(values)
    wide = canvas.width - 8
    row = 14
    for title, numbers, words in (
        ("Until the first step, logarithmic", [way.first_step_seconds for way in ways], show_time),
        ("Stored by the volunteer, logarithmic", [float(way.disk_bytes) for way in ways], _bytes),
    ):
        # From a third of the smallest, whose bar would otherwise have no length.
        axis = Scale(min(numbers) / 3, max(numbers) * 1.2, 4, 4 + wide, logarithmic=True)
        canvas.text(0, row, title, "strong")
        for number, (way, value) in enumerate(zip(ways, numbers, strict=True)):
            y = row + 26 + 40 * number
            canvas.text(4, y, way.name, "ink")
            canvas.text(canvas.width - 4, y, words(value), "soft", anchor="end")
            canvas.rect(4, y + 6, wide, 14, "shade")
            canvas.rect(4, y + 6, axis.at(value) - 4, 14, f"fill-{(5, 2, 1)[number]}")
        row += 26 + 40 * len(ways) + 18
    canvas.text(0, row, "Then the stream keeps the device", "strong")
    busy = 1 - ways[-1].waiting_share
    canvas.text(4, row + 26, f"computing {_percent(busy)} of the time", "ink")
    canvas.rect(4, row + 32, wide, 14, "shade")
    canvas.rect(4, row + 32, wide * busy, 14, "fill-1")
    return Drawn(
        caption=_caption(values, ways),
        label="Bars of the time to the first step and of the bytes stored: all pictures, all codes, or a stream",
        canvas=canvas,
        height=row + 56,
        head=("Way", "Until the first step", "Stored", "Waits for data"),
        rows=[
            (way.name, show_time(way.first_step_seconds), show_bytes(way.disk_bytes), _percent(way.waiting_share))
            for way in ways
        ],
    )


def _caption(values: Values, ways: list[Way]) -> str:
    whole, _, stream = ways
    kind, link, speed = values["kind"], f"{values['link']:g} Mbit/s", f"{values['speed']:g} samples/s"
    need = 8 * code_bytes() * float(values["speed"]) * (PICTURES_OVER_CODES if kind == "pictures" else 1)
    waits = (
        f"needs {show_rate(need, 'bit')}, more than the link has: it waits {_percent(stream.waiting_share)} of the time"
        if stream.waiting_share
        else f"needs only {show_rate(need, 'bit', 2)} and never waits"
    )
    return (
        f"When {kind} are streamed at {link}, the first step starts after {show_time(stream.first_step_seconds)} with "
        f"{show_bytes(stream.disk_bytes)} stored; downloading all pictures first takes "
        f"{show_time(whole.first_step_seconds)} and {show_bytes(whole.disk_bytes)}. At {speed} the device {waits}."
    )


def _bytes(size: float) -> str:
    return show_bytes(round(size))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


FIGURE = Figure(
    name="streaming",
    title="From terabytes to a buffer",
    controls=(
        Stops(
            name="link",
            label="Download",
            stops=(0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
            default=20,
            unit="Mbit/s",
        ),
        Stops(
            name="buffer",
            label="Shuffle buffer",
            stops=(64, 256, 1024, 4096, 8192, 16_384, 65_536),
            default=8192,
            unit="samples",
        ),
        Stops(
            name="speed",
            label="The device computes",
            stops=(0.1, 0.5, 1, 2, 5, 10, 20, 50, 100),
            default=2,
            unit="samples/s",
        ),
        Choice(name="kind", label="Streamed", options=(("codes", "codes"), ("pictures", "pictures")), default="codes"),
    ),
    draw=draw,
    sources=(
        Source(
            text="Borzunov et al. 2022, section 3.2 (100 million pairs, 18 times less bandwidth)",
            address="https://arxiv.org/abs/2207.03481",
        ),
        Source(text="Lhoest et al. 2021 (streaming)", address="https://arxiv.org/abs/2109.02846"),
    ),
)
