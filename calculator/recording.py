"""What a tape has noted, in bytes: for the setup that was played, and for others that take the same course."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from calculator.autograd import Stretch, Tape
from calculator.sizes import Formulas


@dataclass(frozen=True, slots=True)
class Levels:
    """Bytes at one instant, without what is always there (weights, optimizer state, inputs)."""

    live: int = 0
    """All of it."""
    activations: int = 0
    """Kept for backward, autocast's copies of weights excluded."""
    weight_copies: int = 0
    """Autocast's 16-bit copies of weights, kept for backward."""
    gradients: int = 0
    """In `.grad` of the parameters."""
    cached: int = 0
    """Copies of weights that only autocast's cache holds; they go when autocast is left."""
    instant: str = ""
    """What was being computed."""

    def __add__(self, other: Levels) -> Levels:
        return Levels(
            self.live + other.live,
            self.activations + other.activations,
            self.weight_copies + other.weight_copies,
            self.gradients + other.gradients,
            self.cached + other.cached,
            other.instant or self.instant,
        )

    def __sub__(self, other: Levels) -> Levels:
        return Levels(
            self.live - other.live,
            self.activations - other.activations,
            self.weight_copies - other.weight_copies,
            self.gradients - other.gradients,
            self.cached - other.cached,
            self.instant,
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of the step, such as the forward of a block: its change and its peak, relative to its start."""

    phase: str
    key: object
    change: Levels
    peak: Levels


class Recording:
    """What a tape has noted, for good: the bytes of each stretch, for any sizes that take the same course."""

    def __init__(self, tape: Tape, formulas: Formulas) -> None:
        self._formulas = formulas
        self._blocks = tuple(tape.blocks)
        self._live = tuple(tape.live)
        names = iter(tape.names)
        self._names = tuple([next(names) if block >= 0 else "" for block in self._live])
        self._counters = []
        for counter in (tape.held, tape.weight_copies, tape.gradients):
            self._counters.append((tuple([at for at, _block in counter]), tuple([block for _at, block in counter])))
        self._stretches = tuple(tape.stretches)

    def segments(self, given: Sequence[int]) -> list[Segment] | None:
        """The stretches in bytes; None if these sizes take another course.

        Args:
            given: As those that the formulas follow from.
        """
        values = self._formulas.evaluate(given)
        if values is None:
            return None
        # `rounded`, written out: here goes most of an estimate's time
        sizes = [(values[number] * size + 511) & -512 if size else values[number] for number, size in self._blocks]
        sizes += [-size for size in reversed(sizes)]  # of a block that goes, ~block is the place
        signed = sizes.__getitem__
        live = [*accumulate(map(signed, self._live), initial=0)]
        counters = [(places, [*accumulate(map(signed, blocks), initial=0)]) for places, blocks in self._counters]
        return [self._segment(stretch, live, counters, signed) for stretch in self._stretches]

    def _segment(self, stretch: Stretch, live: list[int], counters: list, signed: Callable[[int], int]) -> Segment:
        start, end = stretch.start, stretch.end
        highest = max(live[start.live : end.live + 1])
        at = live.index(highest, start.live)
        name = self._names[at - 1] if at > start.live else start.name
        changes, peaks = [], []
        bounds = ((start.held, end.held), (start.weight_copies, end.weight_copies), (start.gradients, end.gradients))
        for (places, levels), (first, last) in zip(counters, bounds, strict=True):
            there = bisect_right(places, at - 1, first, last) if at > start.live else first
            changes.append(levels[last] - levels[first])
            peaks.append(levels[there] - levels[first])
        cached = sum(map(signed, end.cached)) - sum(map(signed, start.cached))
        return Segment(
            stretch.phase,
            stretch.key,
            Levels(live[end.live] - live[start.live], *changes, cached),
            Levels(highest - live[start.live], *peaks, 0, name),
        )
