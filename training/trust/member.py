"""A peer as a member of its run: the ticket that it holds and renews, and the ban list that it applies."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from training.errors import BadInput, RefusedByRun, TrainingError
from training.processes.notices import Notices
from training.processes.role import StopRequest
from training.processes.uptime import seconds_since_boot
from training.recipe import RunConfig
from training.storage.whole import write_whole
from training.trust.bans import LARGEST_BANS_BYTES, BanList, read_bans
from training.trust.check import ServerSight, newer_bans
from training.trust.client import Credentials, MembershipClient
from training.trust.proof import Identity
from training.trust.server.policy import BANS_EVERY_SECONDS
from training.trust.ticket import ANY_LINEAGE, LARGEST_TICKET_BYTES, Ticket, read_ticket, when

RETRY_SECONDS = 30.0
"""Pause after a renewal that failed."""
RENEWED_AT = 0.5
"""Part of a ticket's time after which it is renewed."""
TICKET_FILE = "ticket"
"""File in the state folder: a peer that starts while the server is away shows the ticket that it had before."""
BANS_FILE = "bans"
"""File in the state folder: the newest ban list, which a peer applies from its next start until it gets a newer one."""


class Lineage(Protocol):
    """The training that a ticket is for; `training.swarm.run.lineage.Lineage` is one."""

    id: str

    @property
    def ids(self) -> frozenset[str]:
        """The lineage's own id, and those of the lineages from which it branches."""


class Processes(Protocol):
    """The processes of this peer, which check other peers' tickets;
    `training.swarm.node.admission.Admission` is one."""

    def tell(
        self, *, own_ticket: str, lineages: Collection[str], bans: BanList | None, server_since: float | None
    ) -> None:
        """Gives all processes a new own ticket, lineages, ban list and presence of the server (see `check.Rules`)."""


class Member:
    """This peer as a member of its run. In an open run there are no tickets, and all methods do nothing.

    The constructor gets the first ticket, with which this peer may meet others.

    Args:
        run: The recipe.
        identity: Identity of the peer.
        credentials: Credentials that the volunteer may show.
        processes: Processes that get each new ticket and ban list; None in an open run.
        state_dir: Folder that keeps the ticket and the ban list for the next start.
        notices: Shows messages to the volunteer.

    Raises:
        BadInput: If a credential must be shown, and this machine has no such credential.
        RefusedByRun: If the server gives no ticket.
        TrainingError: If the server does not answer, and no kept ticket is still valid.
    """

    def __init__(
        self,
        run: RunConfig,
        identity: Identity,
        credentials: Credentials,
        processes: Processes | None,
        state_dir: Path,
        notices: Notices,
    ):
        self._run_id, self._peer_id, self._notices = run.run_id, str(identity.peer_id), notices
        self._file, self._bans_file = state_dir / TICKET_FILE, state_dir / BANS_FILE
        self._client, self._processes = None, processes
        self.resting = threading.Lock()
        """Lock to hold while processes are forked: otherwise a child may inherit a lock that the renewing thread never
        releases."""
        self.text: str | None = None
        """The ticket as the server sent it; None in an open run."""
        self.bans: BanList | None = None
        """The newest ban list; None until this peer gets one."""
        self._has_heard = False
        """True if the list came from the server since this program began."""
        self.refusal: RefusedByRun | None = None
        """The server's refusal of a further ticket; None while it has not refused."""
        self._sight = ServerSight()
        self._lineage: Lineage | None = None
        self._ticket: Ticket | None = None
        self._due = (0.0, 0.0)
        """Time of the next renewal by each of the two clocks of `_now`;
        the ticket is renewed when either clock reaches it."""
        self._is_watched = self._has_warned = False
        if not run.membership.open:
            self._client = MembershipClient(run, identity, credentials, tell=notices.tell)
            self._begin()
        elif credentials != Credentials():
            notices.tell("This run is open to all: it asks for no invitation and no token.")

    @property
    def ticket(self) -> Ticket | None:
        """Contents of the current ticket; None in an open run."""
        return self._ticket

    @property
    def is_server_away(self) -> bool:
        """True if this peer has heard nothing of the membership server for a while; never in an open run."""
        return self._client is not None and self._sight.since(time.time()) is None

    def _begin(self) -> None:
        self.bans = self._kept_bans()
        try:
            self._renew()
        except (BadInput, RefusedByRun):
            raise
        except TrainingError as error:
            if not self._take_kept():
                raise
            self._warn_once(f"{error} This peer goes on with its last ticket, until {when(self._ticket.ends)} UTC.")
        told = "vouched for" if self._ticket.standing == "vouched" else "open, whom nobody vouches for"
        self._notices.tell(f"You take part as {self._ticket.account}, a member who is {told}.")

    def bind(self, lineage: Lineage) -> None:
        """Gets a ticket for the lineage that this peer trains, and keeps it renewed from now on.

        Raises:
            RefusedByRun: If the server gives no ticket for it.
        """
        if self._client is None:
            return
        with self.resting:
            self._lineage = lineage
            if self._ticket is None or self._ticket.lineage != lineage.id:
                self._try()
            self._tell()
        self.check()
        if not self._is_watched:
            self._is_watched = True
            threading.Thread(target=self._watch, daemon=True, name="membership").start()

    def until_refused(self, stop: StopRequest) -> MemberStop:
        """Returns a request to stop that is also made when the server refuses this peer a further ticket."""
        return MemberStop(stop, self)

    def check(self) -> None:
        """
        Raises:
            RefusedByRun: If the server has given no further ticket.
        """
        if self.refusal is not None:
            raise self.refusal

    def _watch(self) -> None:
        while self.refusal is None:
            with self.resting, suppress(Exception):  # whatever it was, the next look may be answered
                self._look()
            time.sleep(BANS_EVERY_SECONDS)

    def _look(self) -> None:
        """Fetches the ban list, and renews the ticket if it is due."""
        with suppress(TrainingError):  # `ServerSight` notices how long this lasts
            self._hear()
        if self.bans is not None and self.bans.bars(self._ticket):
            # It may have been given another standing; otherwise the server says why there is none.
            self._due = (0.0, 0.0)
        if any(now >= due for now, due in zip(_now(), self._due, strict=True)):
            self._try()
        self._tell()

    def _hear(self) -> None:
        """Fetches the ban list or a pulse, and keeps a new list in the state folder.

        A server that was restored from a backup may number its lists from an older version on. So any list that was
        signed later replaces a list from the state folder, whatever its version.
        """
        heard = self._client.bans(self.bans.version if self._has_heard else None)
        self._sight.note(heard.issued)
        known = self.bans
        if self._has_heard:
            self.bans = newer_bans(known, heard)
        elif isinstance(heard, BanList) and (known is None or heard.issued >= known.issued):
            self.bans, self._has_heard = heard, True
        if self.bans != known:
            with suppress(OSError):  # a full disk; the list holds nevertheless
                write_whole(self._bans_file, self._client.bans_text.decode("ascii"))

    def _kept_bans(self) -> BanList | None:
        """Reads the ban list from the state folder; None if there is none that the membership key has signed."""
        try:
            with self._bans_file.open("rb") as file:
                kept = read_bans(file.read(LARGEST_BANS_BYTES + 1), self._client.public_key, self._run_id)
        except OSError:
            return None
        return kept if isinstance(kept, BanList) else None

    def _try(self) -> None:
        """Renews the ticket. Shows a temporary fault once; after a refusal, sets `refusal`."""
        try:
            self._renew()
        except RefusedByRun as error:
            self.refusal = error
            self._notices.warn(error.sentence)
        except TrainingError as error:
            self._put_off(RETRY_SECONDS)
            until = when(self._ticket.ends)
            self._warn_once(f"{error} This peer's ticket holds until {until} UTC at the latest; it tries again.")

    def _renew(self) -> None:
        text, ticket = self._client.ticket(ANY_LINEAGE if self._lineage is None else self._lineage.id)
        self._take(text, ticket)
        self._put_off(RENEWED_AT * (self._ticket.expires - self._ticket.issued))
        self._has_warned = False
        with suppress(OSError):  # a full disk; the ticket holds nevertheless
            write_whole(self._file, text)

    def _put_off(self, seconds: float) -> None:
        self._due = tuple(now + seconds for now in _now())

    def _take(self, text: str, ticket: Ticket) -> None:
        self.text, self._ticket = text, ticket
        self._sight.note(self._ticket.issued)
        self._tell()

    def _tell(self) -> None:
        """Gives all processes of this peer the current ticket, lineages and ban list."""
        self._processes.tell(
            own_ticket=self.text,
            lineages=self._lineage.ids if self._lineage is not None else (),
            bans=self.bans,
            server_since=self._sight.since(time.time()),
        )

    def _take_kept(self) -> bool:
        """Uses the ticket from the state folder if it is still valid. Returns False if there is no such ticket."""
        try:
            with self._file.open("rb") as file:
                text = file.read(LARGEST_TICKET_BYTES + 1)
        except OSError:
            return False
        kept = read_ticket(text, self._client.public_key)
        if kept is None or (kept.peer_id, kept.run_id) != (self._peer_id, self._run_id) or time.time() >= kept.ends:
            return False
        self._take(text.decode("ascii"), kept)
        return True

    def _warn_once(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._notices.warn(text)


def _now() -> tuple[float, float]:
    """Time by the machine's clock and by a monotonic clock, in seconds.

    The machine's clock may be ahead for a while and then be set back, which would delay a renewal. A monotonic clock
    stops on some machines while they sleep.
    """
    return time.time(), seconds_since_boot()


class MemberStop:
    """Request to stop a peer, made by its program's `StopRequest` or by the server's refusal of a further ticket."""

    def __init__(self, stop: StopRequest, member: Member):
        self._stop, self._member = stop, member

    @property
    def asked(self) -> bool:
        """True if the peer must stop."""
        return self._stop.asked or self._member.refusal is not None

    def wait(self, seconds: float) -> bool:
        """Sleeps this long, or until the program is asked to stop. Returns whether the peer must stop."""
        self._stop.wait(seconds)
        return self.asked

    def listen(self) -> None:
        """Lets signals request the stop, see `StopRequest.listen`."""
        self._stop.listen()
