"""Turns the notes of a tape into bytes, for the setup that was played and for others with the same events."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from calculator.tape.autograd import Stretch, Tape
from calculator.tape.sizes import Formulas


class Levels(NamedTuple):
    """Bytes at one instant, without the bytes that are always allocated (weights, optimizer state, inputs).

    A tuple: an estimate makes hundreds of them, and a frozen dataclass takes three times as long to make.
    """

    live: int = 0
    """All bytes; the fields below are parts of this sum."""
    activations: int = 0
    """Bytes kept for backward, autocast's copies of weights excluded."""
    weight_copies: int = 0
    """Autocast's 16-bit copies of weights, kept for backward."""
    gradients: int = 0
    """Bytes in `.grad` of the parameters."""
    cached: int = 0
    """Copies of weights that only autocast's cache holds; leaving autocast frees them."""
    instant: str = ""
    """The operation that was running."""

    def __add__(self, other: Levels) -> Levels:
        live, activations, weight_copies, gradients, cached, instant = self
        more_live, more_activations, more_copies, more_gradients, more_cached, later = other
        return Levels(
            live + more_live,
            activations + more_activations,
            weight_copies + more_copies,
            gradients + more_gradients,
            cached + more_cached,
            later or instant,
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


class Segment(NamedTuple):
    """One stretch of the step, such as the forward of a layer: its change and its peak, relative to its start."""

    phase: str
    key: object
    change: Levels
    peak: Levels
    arrived: int = 0
    """Values of the gradient whose completion ends the stretch; 0: it ends otherwise."""


class Recording:
    """The notes of a finished tape: the bytes of each stretch, for any sizes with which the same events happen."""

    def __init__(self, tape: Tape, formulas: Formulas) -> None:
        self._formulas = formulas
        self._sizes = tuple(tape.size_ids)
        self._live = tuple(tape.live)
        names = iter(tape.names)
        self._names = tuple([next(names) if size_id >= 0 else "" for size_id in self._live])
        self._counters = []
        for counter in (tape.held, tape.weight_copies, tape.gradients):
            self._counters.append((tuple([at for at, _id in counter]), tuple([size_id for _at, size_id in counter])))
        self._stretches = tuple(tape.stretches)
        # Places of the stretches that a gradient ends, and the formulas of its values.
        self._arrivals = [
            (at, self._sizes[stretch.arrived][0])
            for at, stretch in enumerate(self._stretches)
            if stretch.arrived is not None
        ]

    def segments(self, given: Sequence[int]) -> list[Segment] | None:
        """The stretches in bytes; None if other events happen with these sizes.

        Args:
            given: Values of the numbers that the formulas start from, in the same order.
        """
        values = self._formulas.evaluate(given)
        if values is None:
            return None
        # `calculator.tape.autograd.rounded`, inlined: most of an estimate's time is spent in this line. A `size` of 0
        # bytes a value marks a workspace, whose bytes are rounded already.
        sizes = [(values[number] * size + 511) & -512 if size else values[number] for number, size in self._sizes]
        sizes += [-size for size in reversed(sizes)]  # so that sizes[~size_id], a release, is negative
        signed = sizes.__getitem__
        live = [*accumulate(map(signed, self._live), initial=0)]
        counters = [(places, [*accumulate(map(signed, ids), initial=0)]) for places, ids in self._counters]
        segments = [self._segment(stretch, live, counters, signed) for stretch in self._stretches]
        if self._arrivals:
            for at, number in self._arrivals:
                segments[at] = segments[at]._replace(arrived=values[number])
        return segments

    def _segment(self, stretch: Stretch, live: list[int], counters: list, signed: Callable[[int], int]) -> Segment:
        start, end = stretch.start, stretch.end
        begin, ends = start.live, end.live
        highest = max(live[begin : ends + 1])
        at = live.index(highest, begin)
        (held_at, held), (copies_at, copies), (gradients_at, gradients) = counters
        held_first, copies_first, gradients_first = start.held, start.weight_copies, start.gradients
        held_last, copies_last, gradients_last = end.held, end.weight_copies, end.gradients
        held_then, copies_then, gradients_then, name = held_first, copies_first, gradients_first, start.name
        # A level at position n is that after n events, so the event before the peak is the one that led to it.
        if at > begin:
            name, before = self._names[at - 1], at - 1
            held_then = bisect_right(held_at, before, held_first, held_last)
            copies_then = bisect_right(copies_at, before, copies_first, copies_last)
            gradients_then = bisect_right(gradients_at, before, gradients_first, gradients_last)
        cached = sum(map(signed, end.cached)) - sum(map(signed, start.cached))
        held_level, copies_level, gradients_level = held[held_first], copies[copies_first], gradients[gradients_first]
        change = Levels(
            live[ends] - live[begin],
            held[held_last] - held_level,
            copies[copies_last] - copies_level,
            gradients[gradients_last] - gradients_level,
            cached,
        )
        peak = Levels(
            highest - live[begin],
            held[held_then] - held_level,
            copies[copies_then] - copies_level,
            gradients[gradients_then] - gradients_level,
            0,
            name,
        )
        return Segment(stretch.phase, stretch.key, change, peak)
