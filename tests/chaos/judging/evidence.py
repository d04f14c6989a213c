"""What is known of a run after its end: the chronicle of faults, the peers' logs, and the monitor's history."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.stage import AGAIN_SECONDS, MONITOR, read_lines

RECOVERY_SECONDS = 30.0
"""A volunteer that a fault has hit counts as present again after its first epoch, at the latest after this time."""
CUT_EPOCH_SECONDS = 15.0
"""An epoch that a fault or the end of the run cuts short was begun within this time before; else its volunteer hung."""

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Life:
    """A program from one start to its end."""

    began: float
    ended: float
    joined: float | None = None
    """When it began to train; None: never, or it is a server."""
    epoch: int | None = None
    """Epoch at which it began to train."""
    state: str = ""
    """Source of its weights."""
    lineage: str | None = None


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """An epoch that a volunteer has ended."""

    time: float
    epoch: int
    samples: int
    """Samples of this volunteer."""
    senders: int
    update_samples: float | None
    """Samples of all peers in its update, as it has seen the update."""
    fault: str | None = None
    """What it said of the averaging; None: nothing was wrong."""
    others: int = 0
    """Other volunteers that it knew of."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Some of a volunteer's weights at the end of an epoch."""

    time: float
    updates: int
    """Updates that these weights have had."""
    drifted: bool
    """True if it knows that its weights are not those of the others."""
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Accident:
    """A fault as it happened."""

    kind: str
    began: float
    ended: float
    volunteers: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Evidence:
    """See the module; times are in seconds since 1970."""

    began: float
    """Time at which the part without faults began."""
    calm_until: float
    ended: float
    accidents: list[Accident] = field(default_factory=list)
    lives: dict[str, list[Life]] = field(default_factory=dict)
    """Lives of each volunteer."""
    epochs: dict[str, list[Epoch]] = field(default_factory=dict)
    weights: dict[str, list[Weights]] = field(default_factory=dict)
    gave_up: list[str] = field(default_factory=list)
    """Sentences on programs that have ended by themselves, or did not end when they were asked to."""
    history: dict[int, int] = field(default_factory=dict)
    """Samples of each epoch, in the monitor's history."""
    totals: dict[str, int] = field(default_factory=dict)
    """Samples of each volunteer in the history."""
    lineages: int = 1
    """Number of lineages in the history."""
    checkpoints: list[tuple[float, int]] = field(default_factory=list)
    """Times and epochs."""
    remains: list[str] = field(default_factory=list)
    """Processes and files that were left behind."""

    def disturbed(self, name: str) -> list[Interval]:
        """When faults had hit a volunteer, its recovery included.

        The epoch in which a fault hits it counts as hit from its beginning: its samples are lost with it, or spread
        over the fault's time. So does the epoch that the end of the run cuts short.
        """
        hit = [
            (self._epoch_began(name, accident.began), self._recovered(name, accident.ended))
            for accident in self.accidents
            if name in accident.volunteers
        ]
        return [*hit, (self._epoch_began(name, self.ended), self.ended)]

    def _epoch_began(self, name: str, at: float) -> float:
        """When the epoch began in which a volunteer is at this time; the time itself if that was long ago."""
        joined = [life.joined for life in self.lives[name] if life.joined is not None]
        marks = [mark for mark in (*joined, *(epoch.time for epoch in self.epochs.get(name, []))) if mark <= at]
        return max(marks) if marks and at - max(marks) <= CUT_EPOCH_SECONDS else at

    def _recovered(self, name: str, fault_over: float) -> float:
        latest = fault_over + RECOVERY_SECONDS
        return min([latest, *(epoch.time for epoch in self.epochs.get(name, []) if epoch.time > fault_over)])

    def present(self, name: str, window: Interval | None = None) -> list[Interval]:
        """When a volunteer trained and no fault had hit it."""
        lives = [(life.joined, life.ended) for life in self.lives[name] if life.joined is not None]
        within = (self.began, self.ended) if window is None else window
        return without(clip(lives, within), self.disturbed(name))


def clip(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts of intervals within a window.

    >>> clip([(0, 4), (6, 9)], (3, 8))
    [(3, 4), (6, 8)]
    """
    parts = [(max(began, window[0]), min(ended, window[1])) for began, ended in intervals]
    return [(began, ended) for began, ended in parts if began < ended]


def without(intervals: Iterable[Interval], holes: Iterable[Interval]) -> list[Interval]:
    """What is left of intervals.

    >>> without([(0, 10)], [(2, 3), (9, 12)])
    [(0, 2), (3, 9)]
    """
    left = list(intervals)
    for hole in holes:
        left = [part for began, ended in left for part in ((began, min(ended, hole[0])), (max(began, hole[1]), ended))]
        left = [(began, ended) for began, ended in left if began < ended]
    return left


def length(intervals: Iterable[Interval]) -> float:
    """Seconds of intervals that do not overlap.

    >>> length([(0, 2), (5, 6)])
    3
    """
    return sum(ended - began for began, ended in intervals)


def gather(folder: Path, volunteers: Iterable[str]) -> Evidence:
    """Reads what a run has left in its folder."""
    chronicle = read_lines(folder / "chaos.jsonl")
    moments = {line["part"]: line["time"] for line in chronicle if line["event"] == "part"}
    evidence = Evidence(began=moments["calm"], calm_until=moments["chaos"], ended=moments["end"])
    evidence.accidents = _accidents(chronicle, evidence.ended)
    for name in volunteers:
        events = read_lines(folder / f"{name}.jsonl")
        notes = read_lines(folder / f"{name}.notes.jsonl")
        evidence.lives[name] = _lives(name, chronicle, events, evidence.ended)
        evidence.epochs[name] = _epochs(events, notes)
        evidence.weights[name] = [
            Weights(time=n["time"], updates=n["updates"], drifted=n["drifted"], values=tuple(n["weights"]))
            for n in notes
        ]
    evidence.gave_up = _gave_up(chronicle, evidence.accidents)
    _read_history(folder / "run" / "history.sqlite", evidence)
    saved = [line for line in read_lines(folder / f"{MONITOR}.jsonl") if line["event"] == "checkpoint"]
    evidence.checkpoints = [(line["time"], line["epoch"]) for line in saved]
    remains = [line for line in chronicle if line["event"] == "remains"][-1:]
    evidence.remains = [what for line in remains for what in (*line["processes"], *line["files"])]
    return evidence


def _accidents(chronicle: list[dict], ended: float) -> list[Accident]:
    found = []
    for number, line in enumerate(chronicle):
        if line["event"] != "fault":
            continue
        facts = {"kind": line["kind"], "volunteers": tuple(line["volunteers"])}
        over = (
            later["time"]
            for later in chronicle[number:]
            if later["event"] == "over" and later["kind"] == line["kind"] and later["volunteers"] == line["volunteers"]
        )
        found.append(Accident(began=line["time"], ended=next(over, ended), **facts))
    return found


def _lives(name: str, chronicle: list[dict], events: list[dict], end: float) -> list[Life]:
    about = [line for line in chronicle if line.get("name") == name]
    starts = [line["time"] for line in about if line["event"] == "start"]
    stops = [line["time"] for line in about if line["event"] in ("kill", "ask", "ended")]
    lives = []
    for number, began in enumerate(starts):
        until = starts[number + 1] if number + 1 < len(starts) else end
        ended = min([until, *(stop for stop in stops if stop > began)])
        joined = [line for line in events if line["event"] == "joined" and began <= line["time"] <= ended]
        facts = {key: joined[0].get(key) for key in ("epoch", "state", "lineage")} if joined else {}
        lives.append(Life(began=began, ended=ended, joined=joined[0]["time"] if joined else None, **facts))
    return lives


def _epochs(events: list[dict], notes: list[dict]) -> list[Epoch]:
    """From the event log; its notes add what the log does not say."""
    noted = {(note["epoch"], round(note["time"])): note for note in notes}
    found = []
    for line in events:
        if line["event"] != "epoch":
            continue
        near = (noted.get((line["epoch"], round(line["time"]) + late)) for late in (0, 1))
        note = next(filter(None, near), {"fault": None, "others": 0})
        facts = {key: line[key] for key in ("time", "epoch", "samples", "senders", "update_samples")}
        found.append(Epoch(**facts, fault=note["fault"], others=note["others"]))
    return found


_REFUSALS = {"clock": "clock", "jump": "clock", "cut": "No initial peer answers"}
"""What a volunteer that a fault has hit may say when it does not start."""


def _gave_up(chronicle: list[dict], accidents: list[Accident]) -> list[str]:
    """What ended although nobody asked it to, or did not end when it was asked to.

    A volunteer with a wrong clock may refuse to start, and one whose link is cut may find no run, if they say so in one
    sentence.
    """
    found = []
    for line in chronicle:
        if line["event"] != "ended":
            continue
        causes = {
            accident.kind
            for accident in accidents
            if line["name"] in accident.volunteers and accident.began < line["time"] < accident.ended + AGAIN_SECONDS
        }
        if not any(
            line["said"].startswith("Error: ") and _REFUSALS.get(cause, "\0") in line["said"] for cause in causes
        ):
            found.append(f"{line['name']} ended by itself with code {line['code']}: {line['said']}")
    found += [f"{line['name']} did not end when it was asked to" for line in chronicle if line["event"] == "stays"]
    left = [line for line in chronicle if line["event"] == "left" and line["code"]]
    return found + [f"{line['name']} left with code {line['code']}" for line in left]


def _read_history(path: Path, evidence: Evidence) -> None:
    with closing(sqlite3.connect(path)) as connection:
        evidence.history = dict(connection.execute("SELECT epoch, sum(samples) FROM epochs GROUP BY epoch"))
        evidence.totals = dict(connection.execute("SELECT name, sum(samples) FROM peers GROUP BY name"))
        with suppress(sqlite3.OperationalError):  # histories before lineages have no branches
            evidence.lineages = connection.execute("SELECT count(DISTINCT lineage) FROM branches").fetchone()[0]
