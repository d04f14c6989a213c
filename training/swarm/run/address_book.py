"""Address book: peers that this peer has met, kept on disk, by which it finds the run again without the run's
servers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from training.storage.whole import write_whole
from training.swarm.node.addresses import MOST_CHARACTERS, id_of

MOST_PEERS = 256
"""Most peers in the book; it keeps the peers seen last."""
MOST_ADDRESSES = 8
"""Most addresses of one peer. Strangers choose them, so without a limit they could fill the disk."""
OLDEST_SECONDS = 14 * 24 * 3600.0
"""Age at which an entry is dropped."""
LARGEST_BOOK_BYTES = 1 << 20
"""Largest book that is read, in bytes; a full book is smaller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Acquaintance:
    """A peer in the book."""

    peer_id: str
    addresses: tuple[str, ...]
    """Full addresses of the peer, which end in its id."""
    seen: float
    """Time of the last connection, in seconds since 1970."""


class AddressBook:
    """Peers that this peer has met, the newest first; `write` saves them to the disk.

    A file that is missing, damaged or too large counts as an empty book, and the next `write` replaces it.

    Args:
        path: File of the book.
        clock: Returns seconds since 1970; a test passes its own.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time):
        self.path, self._clock = path, clock
        self._peers: dict[str, Acquaintance] = {}
        for peer in self._read():
            self._peers[peer.peer_id] = peer
        self._drop_what_is_too_much()

    def __contains__(self, peer_id: str) -> bool:
        return peer_id in self._peers

    def peers(self) -> list[Acquaintance]:
        """Returns all peers, the last seen first."""
        return sorted(self._peers.values(), key=lambda peer: -peer.seen)

    def addresses(self, peer_id: str) -> tuple[str, ...]:
        """Returns the addresses of a peer; empty if it is not in the book."""
        return self._peers[peer_id].addresses if peer_id in self._peers else ()

    def note(self, peer_id: str, addresses: Iterable[str]) -> None:
        """Notes that a peer is connected now; skips malformed addresses and addresses of other peers."""
        if good := _good(peer_id, addresses):
            self._peers[peer_id] = Acquaintance(peer_id=peer_id, addresses=good, seen=self._clock())

    def write(self) -> None:
        """Writes the whole book. If the disk is full or fails, the older book stays."""
        self._drop_what_is_too_much()
        document = {"version": 1, "peers": [asdict(peer) for peer in self.peers()]}
        with suppress(OSError):
            write_whole(self.path, json.dumps(document, indent=1) + "\n")

    def _drop_what_is_too_much(self) -> None:
        oldest = self._clock() - OLDEST_SECONDS
        newest = [peer for peer in self.peers() if peer.seen >= oldest][:MOST_PEERS]
        self._peers = {peer.peer_id: peer for peer in newest}

    def _read(self) -> list[Acquaintance]:
        """Reads the file's peers; an empty list if the file is damaged."""
        try:
            if self.path.stat().st_size > LARGEST_BOOK_BYTES:
                return []
            document = json.loads(self.path.read_bytes())
            now, found = self._clock(), []
            for entry in document["peers"]:
                peer_id, seen = str(entry["peer_id"]), min(float(entry["seen"]), now)  # a clock may have been ahead
                if good := _good(peer_id, entry["addresses"]):
                    found.append(Acquaintance(peer_id=peer_id, addresses=good, seen=seen))
            return found
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return []


def _good(peer_id: str, addresses: Iterable[str]) -> tuple[str, ...]:
    """Returns the addresses of this peer, each once, without malformed addresses and those of other peers."""
    short = (address for address in addresses if isinstance(address, str) and len(address) <= MOST_CHARACTERS)
    return tuple(dict.fromkeys(address for address in short if id_of(address) == peer_id))[:MOST_ADDRESSES]
