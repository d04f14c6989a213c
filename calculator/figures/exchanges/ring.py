"""The figure of the exchange: which peer sends which part of the vector to which peer, step by step."""

from __future__ import annotations

import math

from calculator.figures.kit.controls import Choice, Range, Values
from calculator.figures.kit.drawing import Canvas
from calculator.figures.kit.figure import Drawn, Figure, Source
from calculator.figures.rules.all_reduce import Message, direct_steps, held_after, ring_steps, sent_share

MOST_PEERS = 8
WAYS = {"ring": ring_steps, "direct": direct_steps}


def limits(values: Values) -> dict[str, float]:
    """The last step of the chosen way."""
    return {"step": len(WAYS[values["way"]](int(values["peers"])))}


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws peers on a circle, each with its vector; the messages of the step; and the amount sent so far."""
    way, peers, done = str(values["way"]), int(values["peers"]), int(values["step"])
    steps = WAYS[way](peers)
    held = held_after(way, peers, done)
    sent = sum(message.sender == 0 for step in steps[:done] for message in step) / peers
    whole = sum(len(part) == peers for parts in held for part in parts)
    centre_x, centre_y = (170, 165) if canvas.narrow else (200, 175)
    radius = 118 if canvas.narrow else 128
    places = [_on_circle(peer, peers, centre_x, centre_y, radius) for peer in range(peers)]
    for peer, (x, y) in enumerate(places):
        _vector(canvas, held[peer], x, y, peers, name=f"Peer {peer + 1}")
    for message in steps[done - 1] if done else ():
        _arrow(canvas, message, places)
    height = _totals(canvas, sent, peers)
    return Drawn(
        caption=_caption(way, peers, done, len(steps), sent, whole),
        label=f"{peers} peers on a circle, each with a vector of {peers} parts, after step {done} of {len(steps)}",
        canvas=canvas,
        height=height,
        head=("Peer", *(f"Part {part + 1}" for part in range(peers))),
        rows=[(str(peer + 1), *(f"{len(part)} of {peers}" for part in parts)) for peer, parts in enumerate(held)],
    )


def _caption(way: str, peers: int, done: int, steps: int, sent: float, whole: int) -> str:
    total = sent_share(peers)
    said = f"In the end each peer has sent {total:.3g} times the vector; with more peers this approaches 2 times."
    if done == 0:
        return f"Before the first of {steps} steps, every peer has only its own values. {said}"
    if done == steps:
        return (
            f"After {steps} steps all {peers} peers hold the complete sum. Each has sent {total:.3g} times the vector "
            f"and received as much; a central server would have received {peers} vectors and sent {peers}."
        )
    way_words = "part to the next peer" if way == "ring" else "parts to the peers that sum them"
    return (
        f"After step {done} of {steps}, {whole} of {peers * peers} parts are complete sums, and each peer has sent "
        f"{sent:.3g} times the vector: its {way_words}. {said}"
    )


def _on_circle(peer: int, peers: int, x: float, y: float, radius: float) -> tuple[float, float]:
    angle = 2 * math.pi * peer / peers - math.pi / 2
    return x + radius * math.cos(angle), y + radius * math.sin(angle)


def _arrow(canvas: Canvas, message: Message, places: list[tuple[float, float]]) -> None:
    """Draws an arrow between two peers' vectors in the part's colour; it keeps clear of the vectors where it can."""
    (x, y), (to_x, to_y) = places[message.sender], places[message.receiver]
    length = math.hypot(to_x - x, to_y - y)
    cell, tall = _sizes(canvas, len(places))
    across, up = abs(to_x - x) or 1e-9, abs(to_y - y) or 1e-9
    # At most 36 % at each end, so that an arrow between neighbours remains visible.
    clear = min((cell * len(places) / 2 + 6) / across, (tall / 2 + 14) / up, 0.36)
    along_x, along_y = (to_x - x) * clear, (to_y - y) * clear
    # Beside the straight line, so that messages in opposite directions do not cover each other.
    aside_x, aside_y = -5 * (to_y - y) / length, 5 * (to_x - x) / length
    canvas.arrow(
        x + along_x + aside_x,
        y + along_y + aside_y,
        to_x - along_x + aside_x,
        to_y - along_y + aside_y,
        f"line-{message.part + 1}",
    )


def _sizes(canvas: Canvas, peers: int) -> tuple[float, float]:
    """The width of a part's column, and its height when full."""
    return (min(13, 64 / peers), 26) if canvas.narrow else (min(17, 84 / peers), 36)


def _vector(canvas: Canvas, parts: tuple[frozenset[int], ...], x: float, y: float, peers: int, *, name: str) -> None:
    """Draws one column per part, filled in proportion to the peers whose values are in it."""
    cell, tall = _sizes(canvas, peers)
    left, top = x - cell * peers / 2, y - tall / 2 + 6
    canvas.rect(left - 2, top - 17, cell * peers + 4, tall + 19, "paper")
    canvas.text(x, top - 5, name, "soft", anchor="middle")
    canvas.rect(left, top, cell * peers, tall, "shade")
    for part, peers_in in enumerate(parts):
        filled = tall * len(peers_in) / peers
        canvas.rect(left + cell * part, top + tall - filled, cell - 1, filled, f"fill-{part + 1}")


def _totals(canvas: Canvas, sent: float, peers: int) -> float:
    """Draws two bars, the bytes that each peer has sent and those that a server would send;
    returns the drawing's height."""
    left, top = (10, 330) if canvas.narrow else (420, 90)
    wide = canvas.width - left - 10
    whole = max(peers, sent_share(peers))
    canvas.text(left, top, "Sent by each peer so far", "ink")
    canvas.rect(left, top + 8, wide, 18, "shade")
    canvas.rect(left, top + 8, wide * sent / whole, 18, "fill-1")
    canvas.text(left, top + 42, f"{sent:.3g} of {sent_share(peers):.3g} times the vector", "soft")
    canvas.text(left, top + 80, "Sent by a central server", "ink")
    canvas.rect(left, top + 88, wide, 18, "fill-2")
    canvas.text(left, top + 122, f"{peers} times the vector", "soft")
    return 470 if canvas.narrow else 350


FIGURE = Figure(
    name="ring",
    title="Summing without a server, step by step",
    controls=(
        Range(name="step", label="Step", low=0, high=2 * (MOST_PEERS - 1), default=2),
        Range(name="peers", label="Peers", low=2, high=MOST_PEERS, default=4),
        Choice(
            name="way",
            label="Way",
            options=(("ring", "In a ring"), ("direct", "Directly, as hivemind")),
            default="ring",
        ),
    ),
    draw=draw,
    limits=limits,
    sources=(
        Source(
            text="Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009",
            address="https://doi.org/10.1016/j.jpdc.2008.09.002",
        ),
        Source(
            text="Ryabinin et al., Moshpit SGD, 2021, on all-reduce among peers that come and go",
            address="https://arxiv.org/abs/2103.03239",
        ),
    ),
)
