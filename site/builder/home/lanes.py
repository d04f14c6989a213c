"""The lanes of a replayed run: what each volunteer did, second by second, as a drawing as long as the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from builder.home.course import Epoch, Moment, epochs_of, seconds_of
from calculator.figures.kit.drawing import Canvas

PIXELS_PER_SECOND = 40
HEAD, LANE, GAP = 40, 34, 8
"""Heights: of the words above the lanes, of a lane, and between two lanes."""
LEAST_PIXELS = 2.0
"""Width of an average that is too short to be seen."""
BEHIND_NAMES_PIXELS = 72
"""The names of the lanes stand before this place while the reader has not scrolled."""
NUMBERS_PIXELS = 64
"""Least distance between two numbers of epochs."""


Box = tuple[float, float, float, float]
"""Left, top, width and height of a rectangle."""


@dataclass(slots=True)
class _Strip(Canvas):
    """A drawing as long as the run."""

    length: int = 0

    @property
    def width(self) -> int:
        return self.length

    def boxes(self, boxes: Iterable[Box], look: str) -> None:
        """Many rectangles as one shape, which is fast to draw."""
        path = "".join(f"M{x:.1f} {y:.1f}h{w:.1f}v{h:.1f}h{-w:.1f}z" for x, y, w, h in boxes)
        if path:
            self.parts.append(f'<path class="{look}" d="{path}"/>')


def lanes_html(facts: dict, moments: list[Moment]) -> str:
    """A lane for each volunteer, in a window that scrolls; each moment is an anchor in it."""
    height = HEAD + len(facts["volunteers"]) * (LANE + GAP)
    strip = _strip(facts)
    anchors = "".join(
        f'<i id="run-{one.key}" style="left:{100 * _x(one.seconds) / strip.length:.3f}%"></i>' for one in moments
    )
    names = "".join(
        f'<li style="top:{_top(place)}px">{escape(one["name"])}</li>' for place, one in enumerate(facts["volunteers"])
    )
    return (
        '<div class="timeline__lanes"><div class="timeline__window scroll" tabindex="0" role="region" '
        'aria-label="What each volunteer did, second by second; the list of moments has it in words" '
        'data-slot="window"><div class="timeline__strip figure__drawing" '
        f'style="width:{strip.length}px;height:{height}px"><div aria-hidden="true">{strip.html(height)}{anchors}</div>'
        '<div class="timeline__cursor with-script"></div></div></div>'
        f'<ul class="timeline__lane-names" aria-hidden="true">{names}</ul></div>'
    )


def _strip(facts: dict) -> _Strip:
    """The drawing: exchanges as dark boxes, computing as light ones, whose height is the number of samples."""
    strip = _Strip(length=round(seconds_of(facts) * PIXELS_PER_SECOND))
    rows = [epochs_of(one, facts["columns"]) for one in facts["volunteers"]]
    most = max(epoch.samples for row in rows for epoch in row)
    repeated = {epoch.number for row in rows for epoch in row if _is_repeated(epoch, facts)}
    strip.boxes(_groups(rows), "timeline__group")
    for place, (one, row) in enumerate(zip(facts["volunteers"], rows, strict=True)):
        floor, colour = _top(place) + LANE, f"fill-{place + 1}"
        strip.line(0, floor, strip.length, floor)
        strip.boxes(_computing(row, floor, most), f"timeline__computing {colour}")
        strip.boxes([(_x(one.ready), floor - 2, _x(one.found - one.ready), 2) for one in row], "fill-ink")
        strip.boxes(_averages(row, floor, lambda number: number not in repeated), colour)
        strip.boxes(_averages(row, floor, lambda number: number in repeated), "fill-ink")
        _draw_lives(strip, one, floor)
    _write_numbers(strip, rows)
    for number in repeated:
        strip.text(_x(min(one.found for row in rows for one in row if one.number == number)), 14, "again", "strong")
    return strip


def _computing(row: list[Epoch], floor: float, most: int) -> Iterator[Box]:
    for one in row:
        tall = LANE * one.samples / most
        yield _x(one.began), floor - tall, _x(one.ready - one.began), tall


def _is_repeated(epoch: Epoch, facts: dict) -> bool:
    """Returns True if a volunteer averaged twice in an epoch, because a groupmate was lost."""
    return any(
        text.startswith(f"Epoch {epoch.number}:") and "averaged again" in text
        for one in facts["volunteers"]
        for _, text in one["warnings"]
    )


def _groups(rows: list[list[Epoch]]) -> Iterator[Box]:
    """A box for each exchange, behind the lanes of those who took part."""
    members: dict[int, list[tuple[int, Epoch]]] = {}
    for place, row in enumerate(rows):
        for epoch in row:
            if epoch.together > 1:
                members.setdefault(epoch.number, []).append((place, epoch))
    for group in members.values():
        left, right = min(one.found for _, one in group), max(one.ended for _, one in group)
        first, last = group[0][0], group[-1][0]
        yield _x(left), _top(first) - 4, max(_x(right - left), 3 * LEAST_PIXELS), _top(last) + LANE - _top(first) + 4


def _averages(row: list[Epoch], floor: float, wanted: Callable[[int], bool]) -> Iterator[Box]:
    for one in row:
        if one.together > 1 and wanted(one.number):
            yield _x(one.found), floor - LANE, max(_x(one.ended - one.found), LEAST_PIXELS), LANE


def _draw_lives(strip: _Strip, volunteer: dict, floor: float) -> None:
    """Says when a volunteer comes and is killed, and draws its absence."""
    name = volunteer["name"]
    for came, ended, how in volunteer["lives"]:
        strip.text(max(_x(came) + 4, BEHIND_NAMES_PIXELS), floor - LANE + 10, f"{name} joins")
        if how == "killed":
            x = _x(ended)
            strip.polyline([(x - 7, floor - LANE + 7), (x + 7, floor - LANE + 21)], "line-accent")
            strip.polyline([(x - 7, floor - LANE + 21), (x + 7, floor - LANE + 7)], "line-accent")
            strip.text(x + 14, floor - LANE + 18, f"{name} is killed", "strong")
    for (_, ended, _), (came, *_) in pairwise(volunteer["lives"]):
        strip.line(_x(ended) + 110, floor - LANE / 2, _x(came) - 4, floor - LANE / 2, "dashed")


def _write_numbers(strip: _Strip, rows: list[list[Epoch]]) -> None:
    """The numbers of the epochs above the lanes, where there is room."""
    ends: dict[int, float] = {}
    for row in rows:
        for epoch in row:
            ends[epoch.number] = min(ends.get(epoch.number, epoch.ended), epoch.ended)
    last = 0.0
    for number, seconds in sorted(ends.items()):
        if _x(seconds) - last >= NUMBERS_PIXELS:
            last = _x(seconds)
            strip.text(last, HEAD - 8, f"epoch {number}", "soft", anchor="middle")


def _top(lane: int) -> float:
    return HEAD + lane * (LANE + GAP)


def _x(seconds: float) -> float:
    return seconds * PIXELS_PER_SECOND
