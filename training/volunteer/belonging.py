"""Lineage that a peer trains: keeps it, and finds out when the peer must change to another one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from training.errors import TrainingError
from training.processes.notices import Notices
from training.swarm.node.metrics import accounts_of_records, believable, of_voices, read_records
from training.swarm.run.lineage import (
    PATIENCE_SECONDS,
    Lineage,
    LineageMessage,
    choose,
    keep,
    lineages_in,
    posted_lineages,
    posted_sites,
    read_kept,
)
from training.trust.member import MemberStop
from training.volunteer.connection import Connection

if TYPE_CHECKING:
    from training.volunteer.copies import Copies

LOOK_SECONDS = 5.0
"""Pause between two looks at the lineages that the run's servers announce."""
LOOKS = 3
"""Looks in a row that must agree before a peer leaves a lineage that no server announces any more: a busy node may have
missed an announcement."""
WAKE_SECONDS = 0.5
"""Longest time after which a waiting peer notices that its lineage is left."""


class LeaveRequest:
    """Request to a peer to stop its work in a lineage: the program stops, the lineage is left, another process has the
    identity, or others reach the peer in another way than at its start."""

    def __init__(self, stop: MemberStop, belonging: Belonging):
        self._stop, self._belonging = stop, belonging

    @property
    def asked(self) -> bool:
        """Returns True if the peer is asked to stop."""
        belonging = self._belonging
        return self._stop.asked or belonging.is_left or belonging.copies.is_second or belonging.has_moved

    def wait(self, seconds: float) -> bool:
        """Sleeps this long, or until the peer is asked to stop. Returns whether the peer is asked."""
        until = time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            self._stop.wait(min(left, WAKE_SECONDS))
        return self.asked


class Belonging:
    """Lineage of a peer; made when the peer's node has found the run.

    Args:
        connection: Connection to the run.
        state_dir: State folder, which keeps the lineage for the next start.
        notices: Tells the volunteer which lineage the peer trains.
        copies: Looks for other processes with this peer's identity whenever this object looks at the lineages.
    """

    def __init__(self, connection: Connection, state_dir: Path, notices: Notices, copies: Copies):
        self._connection, self._state_dir, self._notices = connection, state_dir, notices
        self._dht, self._run_id = connection.dht, connection.run.run_id
        self._named, self.copies = connection.named, copies
        self.look_also: Callable[[], None] = lambda: None
        """Called at each look, by the same thread."""
        self._looks: list[str] = []
        self._other: LineageMessage | None = None
        self.resting = threading.Lock()
        """Lock of the watching thread, held while it looks, and by others while they fork processes: in these, a lock
        that the watching thread holds at that moment would never be released."""
        self.lineage = self._settle()
        threading.Thread(target=self._watch, daemon=True, name="lineage").start()

    @property
    def downloads(self) -> Path:
        """Folder for checkpoints of the run's site."""
        return self._state_dir / "checkpoints"

    def until_left(self, stop: MemberStop) -> LeaveRequest:
        """Returns a request to stop that holds once `stop` is asked or the lineage is left."""
        return LeaveRequest(stop, self)

    @property
    def _trusted(self) -> frozenset[str]:
        return self._connection.redial.servers.ids | self._named

    # -- what is known of the lineage ----------------------------------------------------------------------------------

    @property
    def is_left(self) -> bool:
        """Returns True if the run's servers have changed to another lineage."""
        return self._other is not None

    @property
    def has_moved(self) -> bool:
        """Returns True if others reach this peer in another way than at its start."""
        return self._connection.redial.has_moved

    def newest_epoch(self) -> int:
        """Newest epoch that peers have reached, or that the servers have seen; 0 if the lineage has no update.

        Announcements of others count only where no server announces this lineage.
        """
        announced: list[LineageMessage] = []
        with suppress(TrainingError):
            messages = [message for message in self._posted_messages() if message.lineage.id == self.lineage.id]
            announced += [message for message in messages if message.signer in self._trusted] or messages
        with suppress(TimeoutError):
            records = [record for record in read_records(self._dht, self._run_id) if record.lineage == self.lineage.id]
            accounts = accounts_of_records(self._dht, records)
            announced += lineages_in(believable(records, self._connection.run.schedule.total_epochs, accounts))
        return max((message.epoch for message in announced), default=0)

    def sites(self) -> list[str]:
        """Addresses of the sites that may have the run's checkpoints."""
        sites = [*self._connection.redial.servers.sites]
        if self._connection.settings.site is not None:
            sites.append(self._connection.settings.site)
        with suppress(TrainingError):
            sites += posted_sites(self._dht, self._run_id, self._trusted)
        return list(dict.fromkeys(sites))

    # -- changes of the lineage ----------------------------------------------------------------------------------------

    def go_over(self, epoch: int) -> None:
        """Changes to the lineage that the servers announce; `epoch` is this peer's last one in the old lineage."""
        with self.resting:  # a look between these lines would leave the new lineage as well
            other, self._other = self._other, None
            self._looks.clear()
            self._notices.warn(_going_over(self.lineage, epoch, other))
            self._notices.events.write("branch", lineage=other.lineage.id, epoch=other.lineage.first_epoch)
            self.lineage = other.lineage

    def remember(self, epoch: int) -> None:
        """Keeps the lineage and its epoch on disk; if the disk is full, training continues without this."""
        with suppress(OSError):
            keep(self._state_dir, LineageMessage(lineage=self.lineage, epoch=epoch))

    def _posted_messages(self) -> list[LineageMessage]:
        total_epochs = self._connection.run.schedule.total_epochs
        return posted_lineages(self._dht, self._run_id, total_epochs=total_epochs)

    def _settle(self) -> Lineage:
        """Chooses the lineage that a newcomer joins; begins one if no peer or server announces any."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            announced = self._posted_messages()
            with suppress(TimeoutError):
                records = read_records(self._dht, self._run_id)
                announced += lineages_in(of_voices(records, accounts_of_records(self._dht, records)))
            choice = choose(announced, self._trusted)
            # A server that has just begun a lineage may not know yet that others train another one.
            has_begun = choice is not None and (choice.epoch or not any(message.epoch for message in announced))
            if (has_begun and choice.signer in self._trusted) or time.monotonic() >= deadline:
                break
            time.sleep(0.5)
        kept = read_kept(self._state_dir)
        if choice is None:
            return kept.lineage if kept is not None else Lineage.begin()
        if (
            kept is not None
            and choice.signer not in self._trusted
            and any(w.lineage.id == kept.lineage.id for w in announced)
        ):
            return kept.lineage  # strangers do not move a peer from the lineage that it has trained
        if kept is not None and kept.lineage.id != choice.lineage.id:
            self._notices.tell(_other_lineage(kept, choice))
        return choice.lineage

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            with self.resting, suppress(Exception):  # the node may have ended; the next look may succeed
                self.copies.look()
                own = str(self._connection.identity.peer_id)
                self._look([message for message in self._posted_messages() if message.signer != own])
                self.look_also()

    def _look(self, announced: Sequence[LineageMessage]) -> None:
        """Notes whether this peer's lineage is left; `announced` are the announcements of other peers and servers."""
        believed = [message for message in announced if message.signer in self._trusted]
        choice = choose(believed, self._trusted)
        if choice is None or choice.lineage.id == self.lineage.id or self.lineage.descends_from(choice.lineage.id):
            self._looks.clear()
        elif choice.lineage.descends_from(self.lineage.id):
            self._other = choice
        elif not choice.epoch or any(message.lineage.id == self.lineage.id for message in believed):
            self._looks.clear()
        else:
            self._looks.append(choice.lineage.id)
            if self._looks[-LOOKS:] == [choice.lineage.id] * LOOKS:
                self._other = choice


def _going_over(own: Lineage, epoch: int, other: LineageMessage) -> str:
    if other.lineage.descends_from(own.id):
        return (
            f"The run's maintainer has gone back to epoch {other.lineage.first_epoch}: this peer drops its weights of "
            f"epoch {epoch} and goes over to the branch {other.lineage.id}."
        )
    return (
        f"The run's servers announce the lineage {other.lineage.id} at epoch {other.epoch}, another training of the "
        f"same recipe: this peer drops its weights of epoch {epoch} of {own.id} and goes over to that one."
    )


def _other_lineage(kept: LineageMessage, choice: LineageMessage) -> str:
    if choice.lineage.descends_from(kept.lineage.id):
        return (
            f"The run has gone back to epoch {choice.lineage.first_epoch} since you left it at epoch {kept.epoch}; you "
            f"join its branch {choice.lineage.id}."
        )
    return (
        f"You have trained the lineage {kept.lineage.id} of this run before, up to epoch {kept.epoch}; its servers now "
        f"announce {choice.lineage.id}, which is another training of the same recipe. You join that one."
    )
