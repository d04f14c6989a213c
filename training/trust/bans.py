"""The ban list: members whose tickets are void before they end. The server signs it; each peer fetches it by itself.

An entry stays only as long as its member may still hold a ticket, since the server gives them no new ticket; so the
list stays short. Each change of the list gets a new version number. While nothing changes, the server signs a short
pulse in place of the list: it says that the list of this version is still valid, and that the server is running.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from training.trust.keys import MembershipKey, is_signed
from training.trust.ticket import ACCOUNT, PEER_ID, RUN_ID, SECONDS, Ticket, split_lines

MOST_BANS = 5_000
LARGEST_BANS_BYTES = MOST_BANS * 128
LIST_HEAD, PULSE_HEAD = "training-bans 1", "training-pulse 1"
_ENTRY = re.compile(rf"({ACCOUNT.pattern}|{PEER_ID.pattern}) ({SECONDS.pattern})")


@dataclass(frozen=True, kw_only=True, slots=True)
class BanList:
    """Ban list of a run: names whose tickets are void."""

    run_id: str
    version: int = 0
    issued: int = 0
    """Seconds since 1970, by the server's clock."""
    until: Mapping[str, int] = field(default_factory=dict)
    """Account or peer id -> time at which its last ticket ends, in seconds since 1970."""

    def bars(self, ticket: Ticket) -> bool:
        """Returns whether this list makes a ticket void. A ticket issued after the list was signed is a new
        admission."""
        return ticket.issued <= self.issued and (ticket.account in self.until or ticket.peer_id in self.until)

    def signed(self, key: MembershipKey) -> str:
        """Signed text of the list, as the server sends it."""
        entries = (f"{name} {self.until[name]}" for name in sorted(self.until))
        body = "\n".join((LIST_HEAD, self.run_id, str(self.version), str(self.issued), *entries))
        return f"{body}\n{key.sign(body)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulse:
    """Message of the server at time `issued`: it is running, and the ban list of this version is still valid."""

    run_id: str
    version: int
    issued: int

    def signed(self, key: MembershipKey) -> str:
        """Signed text of the pulse, as the server sends it."""
        body = "\n".join((PULSE_HEAD, self.run_id, str(self.version), str(self.issued)))
        return f"{body}\n{key.sign(body)}"


def read_bans(text: str | bytes, public: str, run_id: str) -> BanList | Pulse | None:
    """Reads a ban list or a pulse from an untrusted source.

    Returns None if the text is malformed, belongs to another run, or is not signed by the membership key.
    """
    lines = split_lines(text, LARGEST_BANS_BYTES)
    if lines is None or len(lines) < 5 or lines[0] not in (LIST_HEAD, PULSE_HEAD):
        return None
    head, run, version, issued, *entries, signature = lines
    if run != run_id or not RUN_ID.fullmatch(run) or not SECONDS.fullmatch(version) or not SECONDS.fullmatch(issued):
        return None
    if not is_signed("\n".join(lines[:-1]), signature, public):
        return None
    if head == PULSE_HEAD:
        return None if entries else Pulse(run_id=run, version=int(version), issued=int(issued))
    until = _read_entries(entries)
    return None if until is None else BanList(run_id=run, version=int(version), issued=int(issued), until=until)


def _read_entries(lines: list[str]) -> dict[str, int] | None:
    """Reads the entries of a ban list; None if they are malformed, repeated or out of order:
    a list has only one spelling."""
    found = [_ENTRY.fullmatch(line) for line in lines]
    if len(found) > MOST_BANS or not all(found):
        return None
    names = [one[1] for one in found]
    if any(before >= after for before, after in pairwise(names)):
        return None
    return {one[1]: int(one[2]) for one in found}
