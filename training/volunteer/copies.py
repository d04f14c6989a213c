"""Finds out that another process has this peer's identity, as when somebody copies a state folder to a second machine.

Each process posts a word under a key of its own peer id, with the time at which it began. Both see the other's word
there, since either replaces the other. The one that began later takes an identity of its own, under the same name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from training.errors import BeginsAnew
from training.storage.whole import write_whole
from training.swarm.engine.process import DHT
from training.swarm.node.dht import post_message, posted_messages
from training.swarm.node.identity import KEY_FILE, Identity
from training.volunteer.connection import NAME_FILE

LOOK_SECONDS = 10.0
"""Pause between two looks, so that both notice within half a minute."""


class CopiedIdentity(BeginsAnew):
    """This process had the identity of an earlier one, and has deleted it."""


class Copies:
    """Looks for other processes with this peer's identity.

    Args:
        dht: A running node.
        run_id: The run's.
        identity: Of this peer.
        name: Of this peer, which stays.
        tell: Called with a sentence once such a process is seen.
        clock: Seconds since 1970.
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
        """The last word of each other process: when it began -> when it posted the word."""
        self._are_told = False
        self.is_second = False
        """True if an earlier process has this identity, so that this one must take another."""

    def look(self) -> None:
        """Reads what lies under the key, and posts this process's word, if it is time; call it every few seconds.

        A word that does not change is one of an earlier start, whose process has ended.

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
        """Deletes the identity if it is another process's: the next start makes a new one.

        Args:
            files: Names of what goes with it in the state folder.

        Raises:
            CopiedIdentity: If it was; the program can begin anew.
        """
        if not self.is_second:
            return
        folder = self._identity.path.parent
        write_whole(folder / NAME_FILE, self._name)
        for name in (*files, KEY_FILE):
            (folder / name).unlink(missing_ok=True)
        raise CopiedIdentity("This peer had the identity of another one, and now takes its own.")
