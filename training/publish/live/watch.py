"""A monitor's view of its run: `Watch` passes it to the live API, and notes on disk how the monitor ends.

The history keeps the monitor's own state (run value `monitor`): `watching` from its start, then `stopped` or `failed`.
A killed monitor leaves `watching` behind, but no lock on the history.
By this an export and the next monitor tell a kill from a stop on purpose.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from training.errors import TrainingError
from training.publish.history.history import History, HistoryReader
from training.publish.history.run_state import APART_SECONDS, Sight, Watched, groups_of, most_apart
from training.publish.history.unmet import Unmet
from training.swarm.config import SwarmConfig

if TYPE_CHECKING:  # pages read a history where hivemind is not installed
    from training.swarm.node.metrics import PeerRecord

KEY = "monitor"
"""Key under which the history stores a `Watched`."""
SAID_EVERY_SECONDS = 30.0
"""Interval at which a monitor notes on disk that it runs, so that an export knows the time of a kill."""

ASKED_SECONDS = 10.0
"""Time after a request for the state during which the page may still be open."""
LAST_ANSWER_SECONDS = 2.5
"""Wait for one more request of open pages before the monitor ends; they ask every two seconds."""


class Reach(Protocol):
    """Reach of the monitor's node to the run's servers."""

    servers: int
    answering: int
    silent_seconds: float


class Watch:
    """The monitor's view of its run, for the live API; its methods may be called from any thread.

    As a context manager, it notes in the history that a monitor watches, and at the end whether it stopped or failed.

    Args:
        history: History of the run.
        swarm: The recipe's `[swarm]`.
        reach: Returns how the node reaches the run's servers; None: not known.
        clock: Seconds since the epoch; a test passes its own.
    """

    def __init__(
        self,
        history: History,
        swarm: SwarmConfig,
        *,
        reach: Callable[[], Reach] | None = None,
        clock: Callable[[], float] = time.time,
    ):
        self._history, self._reach, self._clock = history, reach, clock
        self._stale_seconds = swarm.metrics_every_seconds
        self._guard = threading.Lock()
        self._unmet = Unmet()
        self._sight = Sight(since=clock(), mended=history.mended or "")
        self._watched = Watched(state="watching", since=self._sight.since, at=self._sight.since)
        self._is_over = False
        self.version = 0
        """Number that grows with each observation, and at the end."""
        self._stopped_at = self._asked_at = -math.inf

    def __enter__(self) -> Watch:
        before = watched_of(self._history)
        if before is not None and before.state == "watching":
            self._history.add_event("stopped", "monitor", "had ended without being asked to: killed, or by a crash")
        self._say(self._watched)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.stop()
        elif self._watched.state == "watching":
            told = error.sentence if isinstance(error, TrainingError) else f"{kind.__name__}: {error}"
            self._end(replace(self._watched, state="failed", cause=told))

    @property
    def is_over(self) -> bool:
        """True if the monitor is about to end."""
        return self._is_over

    @property
    def watched(self) -> Watched:
        """The monitor's own state, also if the disk has no room for it."""
        return self._watched

    def sight(self) -> Sight:
        """Current observations of the monitor."""
        reach = self._reach() if self._reach is not None else None
        with self._guard:
            sight = self._sight
        if reach is None:
            return sight
        return replace(
            sight,
            servers=reach.servers,
            servers_answering=reach.answering,
            servers_silent_seconds=reach.silent_seconds,
        )

    def saw(self, records: Sequence[PeerRecord]) -> None:
        """Notes the records with which the DHT has answered, and which the history has taken in."""
        there = {record.peer_id: record for record in records if record.status != "leaving"}
        volunteers = tuple(there.values())
        last = self._history.last_epoch()
        recent = self._history.epochs(last["epoch"] - 20) if last is not None else []
        groups = groups_of(volunteers, most_apart=most_apart(recent, stale_seconds=self._stale_seconds))
        now = self._clock()
        unmet = self._unmet.saw(records, now=now, seconds=APART_SECONDS)
        with self._guard:
            apart_since = self._sight.apart_since
            self._sight = replace(
                self._sight,
                volunteers=volunteers,
                groups=groups,
                unmet=tuple(record for peer_id, record in there.items() if peer_id in unmet),
                apart_since=None if len(groups) < 2 else apart_since if apart_since is not None else now,
                answered_at=now,
                fault="",
                fault_cure="",
            )
            self.version += 1
        if now - self._watched.at >= SAID_EVERY_SECONDS:
            self._say(replace(self._watched, at=now))

    def saw_loss(self, fault: str | None, saved_epoch: int) -> None:
        """Notes the fault of the run's loss (None: no fault), and the epoch of the last checkpoint."""
        if (fault or "") != self._sight.loss_fault:
            with self._guard:
                self._sight = replace(self._sight, loss_fault=fault or "", saved_epoch=saved_epoch)
                self.version += 1

    def saw_members_server(self, is_away: bool) -> None:
        """Notes whether the membership server of a members-only run is away."""
        since = self._sight.members_server_away_since
        if is_away != (since is not None):
            with self._guard:
                self._sight = replace(self._sight, members_server_away_since=self._clock() if is_away else None)
                self.version += 1

    def failed(self, error: TrainingError) -> None:
        """Notes an error of the monitor's own work, such as writing the history; the monitor goes on trying."""
        with self._guard:
            fault = f"The monitor does not record the run now. {error}"
            self._sight = replace(self._sight, fault=fault, fault_cure=f"{error.cure} Volunteers train on meanwhile.")
            self.version += 1

    def stop(self) -> None:
        """Notes that the monitor was asked to stop, for open pages and later readers of the history."""
        if self._watched.state == "watching":
            self._end(replace(self._watched, state="stopped"))

    def let_pages_know(self) -> None:
        """Waits until open pages without a stream have asked once more after `stop`;
        returns at once if there are none."""
        while time.monotonic() < min(self._stopped_at, self._asked_at + ASKED_SECONDS) + LAST_ANSWER_SECONDS:
            time.sleep(0.05)

    def asked(self) -> None:
        """Notes that a page without a stream has asked for the state."""
        self._asked_at = time.monotonic()

    def _end(self, watched: Watched) -> None:
        with self._guard:
            there = len(self._sight.volunteers)
        # Without room on the disk, at least the pages that are open now learn it.
        with suppress(TrainingError):
            self._say(replace(watched, at=self._clock(), volunteers=there))
        self._stopped_at = time.monotonic()
        # In this order: whoever sees that it is over must not take a kept document from before for the last one.
        self.version += 1
        self._is_over = True

    def _say(self, watched: Watched) -> None:
        self._watched = watched
        self._history.set_run_value(KEY, json.dumps(asdict(watched)))


def watched_of(history: HistoryReader) -> Watched | None:
    """Reads the last monitor of a run from its history; None if no monitor has watched the run yet."""
    stored = history.run_value(KEY)
    return Watched(**json.loads(stored)) if stored is not None else None
