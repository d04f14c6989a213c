"""Which peers of a group are gone, found out within seconds in the middle of an all-reduce.

A groupmate that sends nothing may be slow, and an all-reduce waits for it for as long as the recipe says: up to a
minute where links are slow. One that is dead or cut off would cost all others that time. A slow one answers a ping
meanwhile, since its node does nothing else; one that answers none for `SILENT_SECONDS` is gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection

from hivemind.p2p import PeerID

from calculator.swarm.forecast import GONE_SECONDS

LOOK_SECONDS = 0.5
"""How often it looks for whom the all-reduce waits; the first time so long after its beginning."""
SILENT_SECONDS = GONE_SECONDS - LOOK_SECONDS
"""A full link delays an answer by a second or two."""
PINGS_AT_ONCE = 16
"""Among many peers, others get theirs later: each of them pings all others if one reducer is late."""

Ping = Callable[[PeerID, float], Awaitable[bool]]
"""Whether a peer answers within so many seconds."""


class Vigil:
    """Watches those for whom one all-reduce waits; needs a running event loop.

    Args:
        ping: See above.
        late: For whom this peer waits at the moment; those among them that accept connections.
        on_gone: Called once for each peer that is gone.
        clock: Seconds.
    """

    def __init__(
        self,
        ping: Ping,
        late: Callable[[], Collection[PeerID]],
        on_gone: Callable[[PeerID], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._ping, self._late, self._on_gone, self._clock = ping, late, on_gone, clock
        self._pings: dict[PeerID, asyncio.Task] = {}
        self._silent_since: dict[PeerID, float] = {}
        """When the first ping was sent that a peer has not answered; one that has answered its last is not in it."""
        self._gone: set[PeerID] = set()

    async def watch(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                self._look(self._clock())
        finally:
            for asking in self._pings.values():
                asking.cancel()

    def _look(self, now: float) -> None:
        late = set(self._late()) - self._gone
        # An old ping says nothing of a peer that was not waited for in between.
        self._silent_since = {peer: since for peer, since in self._silent_since.items() if peer in late}
        for peer in late:
            if len(self._pings) < PINGS_AT_ONCE and peer not in self._pings:
                self._silent_since.setdefault(peer, now)
                self._pings[peer] = asyncio.create_task(self._ask(peer))
            if now - self._silent_since.get(peer, now) >= SILENT_SECONDS:
                self._gone.add(peer)
                self._on_gone(peer)

    async def _ask(self, peer: PeerID) -> None:
        try:
            if await self._ping(peer, 2 * SILENT_SECONDS):
                self._silent_since.pop(peer, None)
        finally:
            del self._pings[peer]
