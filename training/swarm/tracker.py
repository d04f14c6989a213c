"""Who trains, and how far all have come together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from hivemind.optim.progress_tracker import GlobalTrainingProgress, ProgressTracker
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time


class LivelyTracker(ProgressTracker):
    """hivemind's count of everyone's samples, which also knows who has reported a moment ago.

    A record stays for long after its peer has died; groups should not wait for that peer. The other way round, a look
    that finds nobody else is no proof that nobody trains: a busy node may not have answered. And a peer whose own
    record is missing is not alone with the one other that it finds, as hivemind has it.
    """

    def __init__(self, *, lively_seconds: float, **kwargs):
        self.lively_seconds, self.lively_peers = lively_seconds, 0
        self._others_seen = -math.inf
        self._given_up: dict[bytes, float] = {}
        super().__init__(**kwargs)

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
        self.lively_peers = sum(
            record["time"] >= now - self.lively_seconds
            and record["time"] > self._given_up.get(record["peer_id"], -math.inf)
            for record in records
        )
        if not others:
            return progress
        self._others_seen = now
        return replace(progress, num_peers=others + 1)
