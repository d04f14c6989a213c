"""The figure of sparse exchanges: the bytes that a peer sends, and the error that it carries over to later ones."""

from __future__ import annotations

from dataclasses import dataclass

from calculator.figures.kit.controls import Choice, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Source
from calculator.figures.rules.all_reduce import sent_share
from calculator.figures.rules.distances import EXCHANGES, Course, course
from calculator.swarm.exchange import sparse_bytes, vector_bytes
from calculator.units import show_bytes, show_count, show_number, show_share, show_time

KEPT = (16, 32, 64, 100, 128, 256, 512, 1024)
INNER = (1, 5, 15, 30, 60, 120, 240)
SHOWN = (1, 5, 10, 20, 40)
"""Exchanges that have a row in the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One exchange of a peer with its group."""

    name: str
    bits: float
    """Bits of the encoded values over their number."""
    sent_bytes: int
    """Bytes that the peer sends."""
    seconds: float
    """Time of sending them."""
    computing: float
    """Share of the time that the peer computes, if it does nothing else while it sends."""


def ways_of(values: Values) -> list[Way]:
    """An exchange of all values in 32 and in 8 bits by an all-reduce, and of the largest ones to each other peer."""
    parameters, peers, inner = int(values["parameters"]), int(values["peers"]), int(values["inner"])
    computing = inner * float(values["step"])
    every, some = sent_share(peers), peers - 1
    encoded = {
        "All values, 32 bit": (4 * parameters, every),
        "All values, 8 bit": (vector_bytes(parameters, 0, "blockwise8"), every),
        "The largest": (sparse_bytes(parameters, int(values["kept"]), int(values["bits"])), some),
    }
    ways = []
    for name, (size, times) in encoded.items():
        seconds = 8 * size * times / (float(values["up"]) * 1e6)
        share = computing / (computing + seconds)
        ways.append(
            Way(name=name, bits=8 * size / parameters, sent_bytes=round(size * times), seconds=seconds, computing=share)
        )
    return ways


def course_of(values: Values) -> Course:
    """The peer's exchanges with these values."""
    return course(int(values["kept"]), int(values["bits"]), int(values["inner"]), decay=1.0)


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws a bar of bytes for each way, then the error that a peer carries over after each exchange."""
    ways, run = ways_of(values), course_of(values)
    axis = Scale(
        min(way.sent_bytes for way in ways) / 4,
        max(way.sent_bytes for way in ways) * 1.3,
        0,
        canvas.width,
        logarithmic=True,
    )
    canvas.text(0, 14, "A peer sends in one exchange, logarithmic", "strong")
    for row, way in enumerate(ways):
        y = 38 + 42 * row
        canvas.text(0, y, way.name, "ink")
        canvas.text(
            canvas.width - 2, y, f"{show_bytes(way.sent_bytes)}, {show_time(way.seconds)}", "soft", anchor="end"
        )
        canvas.rect(0, y + 6, canvas.width, 14, "shade")
        canvas.rect(0, y + 6, axis.at(way.sent_bytes), 14, f"fill-{row + 2 if row < 2 else 1}")
    top = 38 + 42 * len(ways) + 18
    canvas.text(0, top, "Error carried over, in distances", "strong")
    bottom = _carried(canvas, run, top + 16)
    return Drawn(
        caption=_caption(values, ways, run),
        label="Bars of the bytes of an exchange in three ways, and a curve of the error that a peer carries over",
        canvas=canvas,
        height=bottom,
        head=("Exchange", "Bits a value", "Sent", "Time", "Computing", "Carried over"),
        rows=[
            (
                way.name,
                f"{way.bits:.3g}",
                show_bytes(way.sent_bytes),
                show_time(way.seconds),
                show_share(way.computing, 1),
                "–",
            )
            for way in ways
        ]
        + [
            (f"The largest, exchange {number}", "–", "–", "–", "–", f"{run.carried[number - 1]:.2f} distances")
            for number in SHOWN
        ],
    )


def _carried(canvas: Canvas, run: Course, top: float) -> float:
    """Draws the curve from `top` down; returns where the drawing ends."""
    left, right, bottom = 34, canvas.width - 10, top + 130
    highest = max(1.0, *run.carried) * 1.1
    across, up = Scale(0, EXCHANGES, left, right), Scale(0, highest, bottom, top)
    step = next(step for step in (0.5, 1, 2, 5, 10) if highest / step <= 5)
    level = 0.0
    while level <= highest:
        canvas.line(left, up.at(level), right, up.at(level))
        canvas.text(left - 6, up.at(level) + 4, f"{level:g}", "soft", anchor="end")
        level += step
    canvas.polyline(
        [(across.at(0), up.at(0)), *((across.at(n), up.at(one)) for n, one in enumerate(run.carried, 1))], "line-1"
    )
    canvas.line(left, up.at(1), right, up.at(1), "dashed")
    canvas.text(left, bottom + 18, "dashed: one distance", "soft")
    canvas.text(right, bottom + 18, f"after {EXCHANGES} exchanges", "soft", anchor="end")
    return bottom + 28


def _caption(values: Values, ways: list[Way], run: Course) -> str:
    dense, sparse = ways[1], ways[2]
    kept, bits, peers, inner = (int(values[name]) for name in ("kept", "bits", "peers", "inner"))
    less = dense.sent_bytes / sparse.sent_bytes
    than = f"{show_number(less, 2)} times less than" if less > 1 else f"{show_number(1 / less, 2)} times as much as"
    others = "the other peer" if peers == 2 else f"{peers - 1} others"
    steps = "one inner step" if inner == 1 else f"{show_count(inner)} inner steps"
    return (
        f"{show_count(kept)} of each 4096 values in {bits} {'bit' if bits == 1 else 'bits'}, and their places, take "
        f"{sparse.bits:.2g} bits a parameter. To {others} a peer sends {show_bytes(sparse.sent_bytes)} after "
        f"{steps}, {than} all values in 8 bits. That takes {show_time(sparse.seconds)}: it computes "
        f"{show_share(sparse.computing, 1)} of the time instead of {show_share(dense.computing, 1)}. After "
        f"{EXCHANGES} exchanges it carries over an error of {run.carried[-1]:.1f} distances, which it sends later."
    )


FIGURE = Figure(
    name="sparse",
    title="Send the largest, keep the rest",
    controls=(
        Stops(name="kept", label="Values sent of each 4096", stops=KEPT, default=100),
        Choice(
            name="bits",
            label="Each in",
            options=(("1", "1 bit"), ("2", "2 bits (ours)"), ("32", "32 bits")),
            default="2",
        ),
        Stops(name="inner", label="Inner steps between exchanges", stops=INNER, default=30),
        Stops(name="parameters", label="Parameters", stops=(2e7, 1.25e8, 3e8, 1e9, 3e9, 7e9, 7e10), default=1e9),
        Stops(name="peers", label="Peers", stops=(2, 3, 4, 8, 16, 32, 64), default=8),
        Stops(name="up", label="Upload", stops=(1, 2, 5, 10, 20, 50, 100, 1000), default=20, unit="Mbit/s"),
        Stops(name="step", label="An inner step takes", stops=(0.5, 1, 2, 5, 10, 30, 60), default=30, unit="s"),
    ),
    draw=draw,
    sources=(
        Source(text="Sarfi et al. 2025 (SparseLoCo)", address="https://arxiv.org/abs/2508.15706"),
        Source(
            text="Seide et al. 2014 (1 bit)",
            address="https://www.microsoft.com/en-us/research/publication/1-bit-stochastic-gradient-descent-and-application-to-data-parallel-distributed-training-of-speech-dnns/",
        ),
        Source(text="Douillard et al. 2023 (inner steps)", address="https://arxiv.org/abs/2311.08105"),
    ),
)
