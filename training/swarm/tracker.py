"""Who trains, and how far all have come together."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from hivemind.optim.progress_tracker import GlobalTrainingProgress, ProgressTracker
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time

REPORTS_SHARE = 1 / 8
"""A peer tells its samples again after this share of the time that is left of the epoch, so ever more often."""
LIVELY_REPORTS = 3
"""But at least so often within the time after which it would be taken for dead."""


class LivelyTracker(ProgressTracker):
    """hivemind's count of everyone's samples, which also knows who has reported a moment ago.

    A record stays for long after its peer has died; groups should not wait for that peer. The other way round, a look
    that finds nobody else is no proof that nobody trains: a busy node may not have answered. And a peer whose own
    record is missing is not alone with the one other that it finds, as hivemind has it.

    hivemind tells the swarm of each micro-batch; a fast peer that has far to go then sends more of such words than of
    gradients. What lies between two reports is estimated by all anyway, from the rate in each of them.

    And what it finds when it is made is its first look in an epoch. hivemind takes a peer for behind if the others are
    at another epoch at that look; where that is seconds later, they may just have ended the epoch that they began with
    it, and it would throw its gradients away.
    """

    def __init__(self, *, lively_seconds: float, start: bool = True, **kwargs):
        self.lively_seconds, self.lively_peers = lively_seconds, 0
        self._others_seen = -math.inf
        self._given_up: dict[bytes, float] = {}
        super().__init__(start=False, **kwargs)
        self.should_report_progress = self._reports = _PacedEvent(self._report_pause)
        self.fetched_global_progress_this_epoch.set()
        if start:
            self.start()

    def report_local_progress(self, local_epoch: int, samples_accumulated: int, update_global_samples: bool = True):
        """See hivemind. Other peers learn of it at once if an epoch begins or ends with it, else after a while."""
        before = self.local_progress
        super().report_local_progress(local_epoch, samples_accumulated, update_global_samples)
        began = local_epoch != before.epoch or not before.samples_accumulated < samples_accumulated
        if began or not before.samples_accumulated or self.ready_to_update_epoch:
            self._reports.hurry()

    def shutdown(self, timeout: float | None = None) -> None:
        """See hivemind."""
        self._reports.hurry()
        super().shutdown(timeout)

    def _report_pause(self) -> float:
        """Seconds from one report of this peer's samples to the next; 0 if nobody knows when the epoch ends."""
        left = self.estimated_next_update_time - get_dht_time()
        return min(max(left, 0.0) * REPORTS_SHARE, self.lively_seconds / LIVELY_REPORTS) if math.isfinite(left) else 0.0

    def give_up(self, peers: Iterable[str]) -> None:
        """These were lost in an average: they are not waited for unless they report again."""
        self._given_up |= dict.fromkeys((PeerID.from_base58(peer).to_bytes() for peer in peers), get_dht_time())

    def _parse_swarm_progress_data(self, metadata: dict | None) -> GlobalTrainingProgress:
        now, own = get_dht_time(), self.dht.peer_id.to_bytes()
        entries = metadata.values() if isinstance(metadata, dict) else ()
        records = [entry.value for entry in entries if entry.value is not None]
        others = sum(record["peer_id"] != own for record in records)
        said_goodbye = len(records) < len(entries)
        progress = super()._parse_swarm_progress_data(metadata)
        if not (others or said_goodbye) and now - self._others_seen < self.lively_seconds:
            return replace(self.global_progress, next_fetch_time=progress.next_fetch_time)
        self.lively_peers = 1 + sum(
            record["peer_id"] != own
            and record["time"] >= now - self.lively_seconds
            and record["time"] > self._given_up.get(record["peer_id"], -math.inf)
            for record in records
        )
        if not others:
            return progress
        self._others_seen = now
        return replace(progress, num_peers=others + 1)


class _PacedEvent(threading.Event):
    """An event that who waits for it gets to see again only after a pause, unless there is a hurry."""

    def __init__(self, pause: Callable[[], float]):
        super().__init__()
        self._pause, self._seen, self._hurried = pause, -math.inf, threading.Event()

    def hurry(self) -> None:
        """Who waits gets to see it now."""
        self._hurried.set()
        self.set()

    def wait(self, timeout: float | None = None) -> bool:
        """See `threading.Event`; the pause comes on top of the timeout."""
        came = super().wait(timeout)
        if came:
            self._hurried.wait(max(self._seen + self._pause() - time.monotonic(), 0.0))
        self._hurried.clear()
        self._seen = time.monotonic()
        return came
