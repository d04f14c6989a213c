"""The ban list: whose tickets no longer hold before they end. The server signs it; each peer fetches it by itself.

An entry is there only as long as its member may still hold a ticket, since the server gives them no other; so the list
stays short. A version numbers its contents. While these stay the same, the server signs a short pulse in place of the
list, which says that the list of this version still holds and that the server is there.
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
    """See the module."""

    run_id: str
    version: int = 0
    issued: int = 0
    """Seconds since 1970, by the server's clock."""
    until: Mapping[str, int] = field(default_factory=dict)
    """Account or peer id -> when its last ticket is over."""

    def bars(self, ticket: Ticket) -> bool:
        """Returns whether a ticket is void. One that was given after the ban list was signed is a new admission."""
        return ticket.issued <= self.issued and (ticket.account in self.until or ticket.peer_id in self.until)

    def signed(self, key: MembershipKey) -> str:
        """The list as it travels."""
        entries = (f"{name} {self.until[name]}" for name in sorted(self.until))
        body = "\n".join((LIST_HEAD, self.run_id, str(self.version), str(self.issued), *entries))
        return f"{body}\n{key.sign(body)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulse:
    """Message of the server that it was there, and that the list of a version held."""

    run_id: str
    version: int
    issued: int

    def signed(self, key: MembershipKey) -> str:
        """The pulse as it travels."""
        body = "\n".join((PULSE_HEAD, self.run_id, str(self.version), str(self.issued)))
        return f"{body}\n{key.sign(body)}"


def read_bans(text: str | bytes, public: str, run_id: str) -> BanList | Pulse | None:
    """A ban list or a pulse from anybody; None if it is malformed, of another run, or the membership key has not
    signed it."""
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
    """The entries, each once and in order, so that there is one way only to write a list."""
    found = [_ENTRY.fullmatch(line) for line in lines]
    if len(found) > MOST_BANS or not all(found):
        return None
    names = [one[1] for one in found]
    if any(before >= after for before, after in pairwise(names)):
        return None
    return {one[1]: int(one[2]) for one in found}
