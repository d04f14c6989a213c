"""Comparison of what the run's page counts of this peer with what the peer has done.

A peer trains on if the monitor is away or its records do not arrive, so its volunteer would see nothing of that.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence

from calculator.units import show_time
from training.storage.remote import Refusal, read_document
from training.swarm.node.metrics import RECENT_EPOCHS
from training.swarm.run.servers import SITE_SECONDS

LOOK_SECONDS = 60.0
"""Seconds between two looks at the page."""
SILENT_SECONDS, UNSEEN_SECONDS, FROZEN_SECONDS = 600.0, 300.0, 600.0
"""Seconds without an answer of the page, without this peer on it, and without credit for new samples, after which the
volunteer is told. A new record, and credit for an average, usually take less than a minute."""
STALE_SECONDS = 120.0
"""Age from which a peer's last record no longer shows that its records arrive."""


class Counted:
    """Looks at the run's page, and tells the volunteer if it does not count this peer.

    Args:
        peer_id: Id of this peer.
        sites: Returns the addresses of the run's sites.
        brought: Returns the samples of this peer that have entered updates.
        tell: Called with a sentence when something is wrong, and when it is right again.
        clock: Returns seconds that only grow.
    """

    def __init__(
        self,
        peer_id: str,
        *,
        sites: Callable[[], Sequence[str]],
        brought: Callable[[], int],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._peer_id, self._sites, self._brought = peer_id, sites, brought
        self._tell, self._clock = tell, clock
        self._due = clock()
        self._answered = self._seen = self._credited_at = self._due
        self._credited, self._brought_then = -1, 0
        """Credited samples when they last grew, and this peer's samples at that time."""
        self._is_told = False

    def look(self) -> None:
        """Looks at the page, if it is time; call it every few seconds."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + LOOK_SECONDS
        if not (sites := self._sites()):
            return
        pages = [self._ask(site) for site in sites]
        if known := [page for page in pages if page]:
            self._note(now, known[0])
        else:  # nothing tells what is counted
            self._seen = self._credited_at = now
            if {} in pages:
                self._answered = now
            elif now - self._answered < SILENT_SECONDS:
                return
        fault = self._fault(now, sites[0])
        if fault is not None and not self._is_told:
            self._tell(fault)
        elif fault is None and self._is_told:
            self._tell("The run's page counts this peer again.")
        self._is_told = fault is not None

    def _ask(self, site: str) -> dict[str, float] | None:
        """Asks a site. Returns an empty document if the site has none, such as one of files; None without an answer."""
        try:
            page = json.loads(read_document(f"{site}/live/peers/{self._peer_id}.json", seconds=SITE_SECONDS))
            last_seen = -math.inf if page["last_seen"] is None else float(page["last_seen"])
            return {"silent_seconds": float(page["time"]) - last_seen, "samples": int(page["samples"])}
        except Refusal as error:
            return {} if error.status < 500 else None
        except OSError:
            return None
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return {}

    def _note(self, now: float, page: dict[str, float]) -> None:
        """Notes what the page says of this peer."""
        if page["silent_seconds"] <= STALE_SECONDS:
            self._seen = now
        self._answered, brought = now, self._brought()
        if page["samples"] > self._credited or brought <= self._brought_then:
            self._credited, self._brought_then, self._credited_at = page["samples"], brought, now

    def _fault(self, now: float, site: str) -> str | None:
        """Returns what is wrong and what to do; None if nothing is."""
        if now - self._answered >= SILENT_SECONDS:
            return (
                f"The run's page, {site}, has not answered for {show_time(now - self._answered)}: its monitor is away. "
                f"This peer trains on, and the monitor credits the last {RECENT_EPOCHS} epochs when it is back. If it "
                "stays away, tell the run's maintainer."
            )
        if now - self._seen >= UNSEEN_SECONDS:
            return (
                f"The run's page, {site}, has heard nothing of this peer for {show_time(now - self._seen)}, though it "
                "trains. `doctor` with the run's address compares its clock and tries its connections; if it finds no "
                f"fault, give the run's maintainer the peer's id: {self._peer_id}."
            )
        if now - self._credited_at >= FROZEN_SECONDS:
            return (
                f"The run's page, {site}, has credited nothing for {show_time(now - self._credited_at)}, though this "
                f"peer has brought {self._brought() - self._brought_then:,} samples. Usually that takes less than a "
                "minute: the others' records tell of them. Your page there says why epochs were missed; if none was, "
                "tell the run's maintainer."
            )
        return None
