"""Copies of an identity: finds out that another process has this peer's identity, as in a state folder copied
elsewhere.

Each process posts a message under a key of its own peer id, with the time at which it began. Both see the other's
message there, since each replaces the other. The process that began later takes a new identity, under the same name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from training.errors import BeginsAnew
from training.storage.whole import move_aside, write_whole
from training.swarm.engine.process import DHT
from training.swarm.node.dht import post_message, posted_messages
from training.swarm.node.identity import KEY_FILE, Identity, read_key
from training.swarm.node.metrics import Voucher
from training.trust.proof import voucher_statement
from training.volunteer.connection import NAME_FILE

FIRST_KEY_FILE = "first.key"
"""File in the state folder with the key that the folder had before it was copied; it vouches for the present one."""
LOOK_SECONDS = 10.0
"""Seconds between two looks, so that both processes notice within half a minute."""


class CopiedIdentity(BeginsAnew):
    """Error of a process that had the identity of an earlier process, and has set it aside."""


def own_voucher(state_dir: Path, run_id: str, peer_id: str, warn: Callable[[str], None]) -> Voucher | None:
    """Makes the voucher of the key that a state folder had before it was copied; None if it was not copied.

    Args:
        state_dir: State folder.
        run_id: Id of the run.
        peer_id: Id of this peer.
        warn: Called with a sentence if the file holds no key.
    """
    file = state_dir / FIRST_KEY_FILE
    if not file.exists():
        return None
    try:
        key = read_key(file)
    except (OSError, ValueError) as error:
        warn(f"{file} cannot be used ({error}): what this machine contributes counts for a volunteer of its own.")
        return None
    signature = key.sign(voucher_statement(run_id, peer_id))
    return Voucher(key.get_public_key().to_bytes().decode(), signature.decode())


class Copies:
    """Looks for other processes with this peer's identity.

    Args:
        dht: A running node.
        run_id: Id of the run.
        identity: Identity of this peer.
        name: Name of this peer, which stays.
        tell: Called with a sentence once another process with this identity is seen.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self,
        dht: DHT,
        run_id: str,
        identity: Identity,
        *,
        name: str,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ):
        self._dht, self._key, self._identity = dht, f"{run_id}_process_{identity.peer_id}", identity
        self._name, self._tell, self._clock = name, tell, clock
        self._began = self._due = clock()
        self._seen: dict[float, float] = {}
        """Time of the last message of each other process, by the time at which that process began."""
        self._are_told = False
        self.is_second = False
        """True if an earlier process has this identity, so that this one must take another."""

    def look(self) -> None:
        """Reads the messages under the key, and posts this process's message, if it is time; call it every few seconds.

        A message that does not change comes from an earlier start, whose process has ended.

        Raises:
            TrainingError: If the DHT does not answer.
        """
        if self._clock() < self._due:
            return
        self._due = self._clock() + LOOK_SECONDS
        own = self._identity.signer().local_public_key
        with suppress(KeyError, ValueError):
            began, posted = map(float, posted_messages(self._dht, self._key)[own].split())
            if began != self._began and self._seen.setdefault(began, posted) != posted:
                self._found(began)
        post_message(self._dht, self._key, f"{self._began!r} {self._clock()!r}", self._identity)

    def _found(self, began: float) -> None:
        self.is_second |= began < self._began
        if not self._are_told:
            self._are_told = True
            which = "this one began later, and takes" if self.is_second else "that one began later, and takes"
            self._tell(
                "Another program trains with this peer's identity: its state folder was copied, or is on a shared "
                f"disk. Of the two, {which} an identity of its own. What both contribute counts for {self._name}."
            )

    def check(self, *files: str) -> None:
        """Sets the identity aside if another process has it. The next start makes a new one; the old vouches for it.

        Args:
            files: Names of further files in the state folder to delete with it.

        Raises:
            CopiedIdentity: If another process has it; the program can begin anew.
        """
        if not self.is_second:
            return
        folder = self._identity.path.parent
        write_whole(folder / NAME_FILE, self._name)
        if not (folder / FIRST_KEY_FILE).exists():
            move_aside(folder / KEY_FILE, folder / FIRST_KEY_FILE)
        for name in (*files, KEY_FILE):
            (folder / name).unlink(missing_ok=True)
        raise CopiedIdentity("This peer had the identity of another one, and now takes its own.")
