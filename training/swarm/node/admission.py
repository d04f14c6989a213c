"""Admission of other peers: the only place that checks their tickets, in every process of this peer.

In a run that admits members only, each peer shows its ticket wherever it meets others: in its records in the DHT
(`record_tickets`), in its message to a group (`gathering`), and when it asks for a state or sends one (`download`,
`serving`). All of these call `Admission.check`. An open run has no admission (None), and nothing is shown or checked.

The trainer's process renews this peer's ticket and hears of bans. It shares memory with its forks (the node, the
averagers, a download), so that all of them use the newest tickets and bans from the next check on. Messages through
pipes would reach each process later, and a process left out by mistake would use old ones.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from hivemind.utils.serializer import MSGPackSerializer

from training.recipe import RunConfig
from training.swarm.engine.bounds import unpack
from training.swarm.engine.process import DHT
from training.trust.bans import LARGEST_BANS_BYTES, BanList
from training.trust.check import Rules, TicketRefused, check_ticket
from training.trust.server.policy import BANS_EVERY_SECONDS
from training.trust.ticket import LARGEST_TICKET_BYTES, Ticket, read_ticket

LATE_NEWS_SECONDS = 2 * BANS_EVERY_SECONDS
"""Seconds after this peer has heard of new bans during which another may not have heard of them."""
CUT_SECONDS = 0.8 * BANS_EVERY_SECONDS
"""Seconds from a member's ban until an average with this member is ended. By then most of the group has heard of the
ban. If one of its peers alone left that member out, the group could not tell which of the two is at fault."""
MOST_ACCOUNTS = 4096
"""Most peers whose accounts a node remembers."""
_NEWS_BYTES = LARGEST_BANS_BYTES + LARGEST_TICKET_BYTES + 4096
"""Most bytes of the news as JSON: a ban list, this peer's ticket, and lineages."""
_HEAD = struct.Struct("<QI32s")
"""Number of the news, its length, and its SHA-256."""
_TRIES, _PAUSE_SECONDS = 100, 0.001
"""Tries of a reader that comes while the news is being written, and the pause between two tries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """Facts that the trainer's process shares with this peer's other processes."""

    number: int = 0
    own_ticket: str = ""
    """This peer's ticket; empty if it has none yet, and then it stores no record."""
    lineages: frozenset[str] = frozenset()
    """Lineages for which a ticket admits to training; see `Rules.lineages`."""
    bans: BanList | None = None
    server_since: float | None = None
    """Time since which the server has been there; see `Rules.server_since`."""

    def packed(self) -> bytes:
        """Packs the news for the shared memory."""
        bans = self.bans and [self.bans.version, self.bans.issued, dict(self.bans.until)]
        return json.dumps([self.own_ticket, sorted(self.lineages), bans, self.server_since]).encode()

    @classmethod
    def read(cls, number: int, packed: bytes, run_id: str) -> News:
        """Reads the news from the bytes of the shared memory, which only this peer writes."""
        own_ticket, lineages, bans, server_since = json.loads(packed)
        if bans is not None:
            version, issued, until = bans
            bans = BanList(run_id=run_id, version=version, issued=issued, until=until)
        told = {"own_ticket": own_ticket, "lineages": frozenset(lineages), "server_since": server_since}
        return cls(number=number, bans=bans, **told)


@dataclass
class Admission:
    """Checks the tickets of a run's peers. Make it before the processes that use it are forked.

    One process publishes the news (`tell`), from one thread at a time.
    """

    public_key: str
    """The membership key, from the recipe."""
    run_id: str
    clock: Callable[[], float] = time.time
    """Seconds since 1970; a test passes its own."""
    _memory: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, _HEAD.size + _NEWS_BYTES), init=False, repr=False)
    _news: News = field(default=News(), init=False)
    _bans_heard: float = field(default=float("-inf"), init=False)
    accounts: dict[str, tuple[str, bool]] = field(default_factory=dict, init=False, repr=False)
    """Account of each peer whose record the node has read, and whether its ticket vouches for it. Only in the node's
    process; see `record_tickets.accounts_of`."""

    @classmethod
    def of(cls, run: RunConfig) -> Admission | None:
        """Makes the admission to a run; None if the run is open to all."""
        return None if run.membership.open else cls(run.membership.key, run.run_id)

    # -- news --------------------------------------------------------------------------------------------------------

    def tell(
        self,
        *,
        own_ticket: str,
        lineages: Collection[str] = (),
        bans: BanList | None = None,
        server_since: float | None = None,
    ) -> None:
        """Publishes news to all processes of this peer, which use it from now on; see `News` for the arguments."""
        told = {"own_ticket": own_ticket, "lineages": frozenset(lineages), "bans": bans, "server_since": server_since}
        before = self.news
        if replace(before, **told) == before:
            return
        news = News(number=before.number + 1, **told)
        packed = news.packed()
        # The head comes last: until then, readers use the previous news.
        self._memory[_HEAD.size : _HEAD.size + len(packed)] = packed
        _HEAD.pack_into(self._memory, 0, news.number, len(packed), _digest(news.number, packed))

    @property
    def news(self) -> News:
        """The newest news; the previous one while the newest is being written."""
        for _ in range(_TRIES):
            number, length, digest = _HEAD.unpack_from(self._memory)
            if number == self._news.number:
                break
            packed = self._memory[_HEAD.size : _HEAD.size + min(length, _NEWS_BYTES)]
            if _digest(number, packed) == digest:
                self._take(News.read(number, packed, self.run_id))
                break
            time.sleep(_PAUSE_SECONDS)
        return self._news

    def _take(self, news: News) -> None:
        if news.bans != self._news.bans:
            self._bans_heard = time.monotonic()
        self._news = news

    @property
    def own_ticket(self) -> str:
        """This peer's ticket as it is sent to others; empty: it has none yet."""
        return self.news.own_ticket

    # -- others' tickets ---------------------------------------------------------------------------------------------

    def check(self, text: object, peer_id: str, *, trains: bool) -> Ticket:
        """Checks a ticket that another peer has shown, and returns its contents.

        Args:
            text: The ticket as it came, from anybody.
            peer_id: Id of the peer that shows the ticket, proved by its connection or by the signature of its record.
            trains: True if the ticket must be for this peer's lineage, as for averages and states. Records in the DHT
                also come from newcomers, who do not know the lineage yet.

        Raises:
            TicketRefused: If the ticket is not valid now.
        """
        news = self.news
        rules = Rules(
            public_key=self.public_key,
            run_id=self.run_id,
            lineages=news.lineages if trains else None,
            bans=news.bans,
            server_since=news.server_since,
        )
        return check_ticket(text, peer_id=peer_id, rules=rules, now=self.clock())

    def note(self, ticket: Ticket) -> None:
        """Remembers the account of a valid ticket's peer, for the last `MOST_ACCOUNTS` peers."""
        self.accounts.pop(ticket.peer_id, None)
        self.accounts[ticket.peer_id] = ticket.account, ticket.standing == "vouched"
        if len(self.accounts) > MOST_ACCOUNTS:
            del self.accounts[next(iter(self.accounts))]

    def vouches_for(self, ticket: str) -> bool:
        """Returns True if the server vouches for the holder of a valid ticket."""
        read = read_ticket(ticket, self.public_key)
        return read is not None and read.standing == "vouched"

    def with_ticket(self, answer: bytes) -> bytes:
        """Packs an answer of this peer together with its ticket; `without_ticket` reads it."""
        return MSGPackSerializer.dumps([self.own_ticket, answer])

    def without_ticket(self, packed: bytes, peer_id: str) -> bytes:
        """Checks the ticket in an answer that another peer has packed by `with_ticket`, and returns the answer.

        Raises:
            TicketRefused: If the ticket does not admit its peer to training.
            ValueError: If the bytes were not packed by `with_ticket`.
        """
        return self.open(packed, peer_id)[1]

    def open(self, packed: bytes, peer_id: str) -> tuple[Guest, bytes]:
        """Does as `without_ticket`. Returns the peer that has packed the answer, as a `Guest`, and the answer."""
        ticket, answer = unpack(packed)
        self.check(ticket, peer_id, trains=True)
        return Guest(self, ticket, peer_id), answer

    def may_be_late_news(self, refused: TicketRefused) -> bool:
        """Returns True if another honest peer may still accept the ticket that this peer refuses: the ban is new."""
        return refused.fault == "banned" and time.monotonic() - self._bans_heard < LATE_NEWS_SECONDS


class Guest:
    """A peer whose ticket was valid at the beginning of an average or a download; tells whether it is banned before the
    end.

    Args:
        admission: Has checked the ticket; None in an open run, which bans nobody.
        ticket: The ticket as the peer has shown it.
        peer_id: Id of the peer.
    """

    def __init__(self, admission: Admission | None, ticket: object, peer_id: str):
        self._admission, self._ticket, self._peer_id = admission, ticket, peer_id
        self._number = -1  # so that the first look also notices bans since the ticket was checked
        self._banned_at: float | None = None

    @property
    def is_banned(self) -> bool:
        """True if the peer has been banned since its ticket was checked; fast while there is no news."""
        if self._admission is not None and self._banned_at is None and self._admission.news.number != self._number:
            self._number = self._admission.news.number
            try:
                self._admission.check(self._ticket, self._peer_id, trains=True)
            except TicketRefused as refused:
                # A ticket that only expires was valid at the beginning, and the guest has a new one.
                self._banned_at = time.monotonic() if refused.fault == "banned" else None
        return self._banned_at is not None

    @property
    def has_been_banned_for_long(self) -> bool:
        """True if `CUT_SECONDS` have passed since this peer heard of the ban."""
        return self.is_banned and time.monotonic() - self._banned_at >= CUT_SECONDS


def admission_of(dht: DHT) -> Admission | None:
    """Returns the admission of the node's run; None in an open run."""
    return getattr(dht, "admission", None)  # a node of hivemind's own class is in no run that admits members only


def _digest(number: int, packed: bytes) -> bytes:
    return hashlib.sha256(number.to_bytes(8, "little") + packed).digest()
