"""The figure of sharding: the memory of each GPU when several divide a model, and what they send for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from calculator.figures.kit.controls import Choice, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Source
from calculator.figures.step import PARTS
from calculator.step.answer import GpuMemory
from calculator.step.estimate import estimate
from calculator.step.resolve import itemsize_of
from calculator.step.setups import Setup
from calculator.units import show_bytes, show_number, show_time

MODELS = ("bert-large", "gpt2-xl", "llama-3.2-1b", "t5-3b", "gpt-j-6b", "llama-3.1-8b")
WAYS = {
    "none": "Nothing: each GPU has all",
    "zero-1": "Optimizer state (ZeRO-1)",
    "zero-2": "And gradients (ZeRO-2)",
    "zero-3": "And weights (ZeRO-3)",
}
"""What the GPUs divide: a setup's `sharding`, in words."""
PASSES = {"none": 2, "zero-1": 3, "zero-2": 2, "zero-3": 3}
"""Times that values as many as the parameters cross each GPU's link in a step, apart from its own share of 1/n.

An all-reduce of the gradients counts 2: it is a reduce-scatter and an all-gather. With ZeRO-1, as PyTorch makes it
(`ZeroRedundancyOptimizer` beside `DistributedDataParallel`), each GPU also broadcasts the weights that it has updated.
With ZeRO-2 weights are gathered once and gradients reduced once, with ZeRO-3 weights are gathered again in backward
(Rajbhandari et al. 2020, arXiv:1910.02054, section 7)."""
MEGABITS = (20, 100, 1000, 10_000, 100_000, 400_000, 3_600_000)
"""Rates of links, from a home's upload to NVLink 4, which has 450 GB/s each way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shared:
    """One way to divide the model."""

    memory: GpuMemory
    """The fullest GPU's memory at its peak."""
    sent_bytes: int
    """Bytes that each GPU sends in a step."""


@lru_cache(maxsize=512)
def shared(model: str, precision: str, gpus: int, sharding: str) -> Shared:
    """One sequence a GPU, with checkpointing and AdamW."""
    setup = Setup(model=model, precision=precision, gpus=gpus, sharding=sharding, checkpointing=True)
    answer = estimate(setup)
    sent = PASSES[sharding] * answer.parameters * itemsize_of(setup) * (gpus - 1) / gpus
    return Shared(memory=answer.gpu, sent_bytes=round(sent))


def ways_of(values: Values) -> dict[str, Shared]:
    """All ways to divide the chosen model."""
    model, precision, gpus = str(values["model"]), str(values["precision"]), int(values["gpus"])
    return {sharding: shared(model, precision, gpus, sharding) for sharding in WAYS}


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws a bar of the memory's parts for each way, and a bar of the time that its messages take."""
    ways, megabits = ways_of(values), float(values["link"])
    across = Scale(0, max(way.memory.total for way in ways.values()), 0, canvas.width)
    canvas.text(0, 14, "Memory of each GPU", "strong")
    for row, (sharding, way) in enumerate(ways.items()):
        y, x = 38 + 42 * row, 0.0
        canvas.text(0, y, WAYS[sharding], "ink")
        canvas.text(canvas.width - 2, y, show_bytes(way.memory.total), "soft", anchor="end")
        canvas.rect(0, y + 6, canvas.width, 14, "shade")
        for part, (_, look) in PARTS.items():
            wide = across.at(getattr(way.memory, part))
            canvas.rect(x, y + 6, min(wide, canvas.width - x), 14, look)
            x += wide
    top = _legend(canvas, 38 + 42 * len(ways) + 6) + 36
    canvas.text(0, top, "Each GPU sends, in one step", "strong")
    longest = Scale(0, max(way.sent_bytes for way in ways.values()), 0, canvas.width)
    for row, (sharding, way) in enumerate(ways.items()):
        y = top + 24 + 42 * row
        canvas.text(0, y, WAYS[sharding], "ink")
        sent = f"{show_bytes(way.sent_bytes)}, {_time(way, megabits)}"
        canvas.text(canvas.width - 2, y, sent if not canvas.narrow else _time(way, megabits), "soft", anchor="end")
        canvas.rect(0, y + 6, canvas.width, 14, "shade")
        canvas.rect(0, y + 6, longest.at(way.sent_bytes), 14, "fill-6")
    return Drawn(
        caption=_caption(values, ways),
        label="Bars of each GPU's memory for four ways to divide a model, and bars of what each GPU sends in a step",
        canvas=canvas,
        height=top + 24 + 42 * len(ways),
        head=("Divided", *(words for words, _ in PARTS.values()), "Memory", "Sent in a step", "Time"),
        rows=[
            (
                WAYS[sharding],
                *(show_bytes(getattr(way.memory, part)) for part in PARTS),
                show_bytes(way.memory.total),
                show_bytes(way.sent_bytes),
                _time(way, megabits),
            )
            for sharding, way in ways.items()
        ],
    )


def _time(way: Shared, megabits: float) -> str:
    return show_time(8 * way.sent_bytes / (megabits * 1e6))


def _legend(canvas: Canvas, top: float) -> float:
    """Names the parts' colours from `top` down; returns the last line's place."""
    columns = 2 if canvas.narrow else len(PARTS)
    for number, (name, look) in enumerate(PARTS.values()):
        x, y = canvas.width / columns * (number % columns), top + 22 * (number // columns)
        canvas.rect(x, y - 10, 12, 12, look)
        canvas.text(x + 18, y, name, "soft")
    return top + 22 * ((len(PARTS) - 1) // columns)


def _caption(values: Values, ways: dict[str, Shared]) -> str:
    none, all_ = ways["none"], ways["zero-3"]
    gpus, megabits = int(values["gpus"]), float(values["link"])
    return (
        f"A step of {values['model']} takes {show_bytes(none.memory.total)} on a GPU that has all. When {gpus} GPUs "
        f"divide state, gradients and weights, each holds {show_bytes(all_.memory.total)}, "
        f"{show_number(none.memory.total / all_.memory.total, 2)} times less. But each sends "
        f"{show_bytes(all_.sent_bytes)} in every step, which takes {_time(all_, megabits)} at "
        f"{FIGURE.controls[2].shown(megabits)}, and no step can begin before the weights have come."
    )


FIGURE = Figure(
    name="sharding",
    title="Divide the model, send the pieces",
    controls=(
        Choice(name="model", label="Model", options=tuple((name, name) for name in MODELS), default="llama-3.1-8b"),
        Stops(name="gpus", label="GPUs", stops=(2, 4, 8, 16, 64), default=8),
        Stops(name="link", label="Each GPU's link", stops=MEGABITS, default=100, unit="Mbit/s"),
        Choice(name="precision", label="Precision", options=(("fp32", "32 bit"), ("bf16", "16 bit")), default="bf16"),
    ),
    draw=draw,
    sources=(
        Source(text="Rajbhandari et al. 2020 (ZeRO)", address="https://arxiv.org/abs/1910.02054"),
        Source(text="Zhao et al. 2023 (FSDP)", address="https://arxiv.org/abs/2304.11277"),
    ),
)
