"""The figure of the shuffle buffer: how far samples move from their place in the stream."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random

from calculator.figures.kit.controls import Range, Stops, Values
from calculator.figures.kit.drawing import Canvas, Scale
from calculator.figures.kit.figure import Drawn, Figure, Source

LENGTH = 512
"""Number of samples in the stream."""
BATCH = 32


@lru_cache(maxsize=64)
def drawn_order(length: int, buffer: int, seed: int) -> tuple[int, ...]:
    """Places in the stream in the order in which a shuffle buffer yields them.

    Whenever the buffer is full, it is shuffled and half of it is yielded; the rest is shuffled at the end. `datasets`
    5.2 does the same (iterable_dataset.py, BufferShuffledExamplesIterable).

    >>> drawn_order(4, 1, 0)
    (0, 1, 2, 3)
    """
    random = Random(seed)
    kept: list[int] = []
    order: list[int] = []
    for coming in range(length):
        kept.append(coming)
        if len(kept) >= buffer:
            random.shuffle(kept)
            order += kept[buffer // 2 :]
            del kept[buffer // 2 :]
    random.shuffle(kept)
    return tuple(order + kept)


def mean_shift(order: Sequence[int]) -> float:
    """Mean number of places by which samples move from their place in the stream.

    >>> mean_shift([1, 0, 2])
    0.6666666666666666
    """
    return sum(abs(place - drawn) for drawn, place in enumerate(order)) / len(order)


def draw(values: Values, canvas: Canvas) -> Drawn:
    """Draws a dot for each sample: when it is drawn, and its place in the stream."""
    buffer, seed = int(values["buffer"]), int(values["seed"])
    order = drawn_order(LENGTH, buffer, seed)
    left, top, right, bottom = 44, 30, canvas.width - 10, 300
    across, up = Scale(0, LENGTH, left, right), Scale(0, LENGTH, bottom, top)
    canvas.text(0, 14, "Place of each drawn sample", "strong")
    canvas.rect(left, top, right - left, bottom - top, "shade")
    for mark in (0, 128, 256, 384, 512):
        canvas.text(left - 6, up.at(mark) + 4, str(mark), "soft", anchor="end")
        if 0 < mark < LENGTH:
            canvas.line(left, up.at(mark), right, up.at(mark))
    canvas.text(left, bottom + 18, "drawn first", "soft")
    canvas.text(right, bottom + 18, "drawn last", "soft", anchor="end")
    canvas.dots(((across.at(drawn), up.at(place)) for drawn, place in enumerate(order)), "line-1")
    batches = [order[start : start + BATCH] for start in range(0, LENGTH, BATCH)]
    return Drawn(
        caption=_caption(buffer, order, batches),
        label=f"{LENGTH} dots, from the first drawn sample to the last, by their places in the stream",
        canvas=canvas,
        height=bottom + 26,
        head=("Batch", "First place", "Middle place", "Last place"),
        rows=[
            (str(number + 1), str(min(batch)), str(sorted(batch)[BATCH // 2]), str(max(batch)))
            for number, batch in enumerate(batches)
            if number % 2 == 0
        ],
    )


def _caption(buffer: int, order: Sequence[int], batches: Sequence[Sequence[int]]) -> str:
    shift = mean_shift(order)
    span = sum(max(batch) - min(batch) + 1 for batch in batches) / len(batches) / LENGTH
    # A complete shuffle moves samples by the mean of |i - j| over all pairs of places.
    whole = (LENGTH**2 - 1) / (3 * LENGTH)
    if buffer == 1:
        return f"A buffer of one sample mixes nothing: each batch of {BATCH} is a contiguous piece of the stream."
    return (
        f"With a buffer of {buffer} of {LENGTH} samples, a sample moves {shift:.0f} places on average; with a complete "
        f"shuffle it would move {whole:.0f}. A batch of {BATCH} spans {100 * span:.0f} % of the stream."
    )


FIGURE = Figure(
    name="shuffling",
    title="How well does a buffer mix?",
    controls=(
        Stops(
            name="buffer",
            label="Shuffle buffer",
            stops=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
            default=64,
            unit="samples",
        ),
        Range(name="seed", label="Peer's own seed", low=0, high=20, default=0),
    ),
    draw=draw,
    sources=(
        Source(
            text="Lhoest et al., Datasets, 2021; datasets/iterable_dataset.py",
            address="https://arxiv.org/abs/2109.02846",
        ),
    ),
)
