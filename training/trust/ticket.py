"""The ticket: a statement of the run's membership server that a peer may take part, for some hours.

A server signs it, its peer shows it, and every other peer checks it without asking anybody (`training.trust.check`).
It is nine lines of plain ASCII and a signature, with one way only to write each ticket.

What a ticket does not protect against:

- **A member who does harm.** It says who somebody is, not that their gradients are honest. Robust averages, checks of
  work and bans are for that.
- **A stolen identity key.** Whoever has a peer's `identity.key` is that peer. A ban, or the ticket's end, stops them.
- **A stolen membership key.** Whoever has it signs tickets for anybody. Put a new key into the recipe, and start the
  run's servers and peers again.
- **Many identities of one person** in a run that is open to all: work for each identity makes them dear, not rare.
  Such peers are of the class `open`, so that whoever weighs contributions may give them less weight. In an organization
  or by invitation, whoever admits people decides.
- **Another training of the same recipe.** The server signs the lineage that a member asks for. It keeps a ticket from
  being shown where it does not belong, and no member from asking for another.
- **A membership server that is dishonest.** It decides alone who is in. It sees a volunteer's Hugging Face token during
  a request; a token that may read nothing is enough.
- **Traffic.** A ticket neither encrypts nor hides what peers send, nor limits what a member sends. It names its account
  and its peer to everybody who sees it.
- **A late ban.** A peer that has not heard of a ban believes the ticket until it ends: at most `LONGEST_SECONDS`, as
  long as the server's maintainer allows, if the server is away.
- **Wrong clocks.** Times are compared with the clock of whoever checks, give or take `CLOCK_SECONDS`.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from training.trust.keys import MembershipKey, is_signed

LARGEST_TICKET_BYTES = 1000
LONGEST_SECONDS = 7 * 86_400
"""Longest validity of a ticket, the time in which it holds while the server is away included."""
CLOCK_SECONDS = 300
"""Most by which clocks may differ."""
HEAD = "training-ticket 1"
ANY_LINEAGE = "-"
"""Stands for a lineage that the peer did not know yet. Such a ticket is good for meeting others, not for averaging."""

Standing = Literal["vouched", "open"]
"""`vouched`: an organization, or a maintainer by an invitation, answers for the member. `open`: nobody does."""

ACCOUNT = re.compile(r"(?:hf|invited|open):[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
PEER_ID = re.compile(r"Qm[1-9A-HJ-NP-Za-km-z]{44}")
"""Peer id of an RSA key: base58 of a SHA-256 multihash (github.com/libp2p/specs, peer-ids/peer-ids.md)."""
RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
LINEAGE = re.compile(r"[0-9a-f]{16}|-")
SECONDS = re.compile(r"0|[1-9][0-9]{0,11}")
_STANDING = re.compile(r"vouched|open")
_FIELDS = (RUN_ID, LINEAGE, ACCOUNT, PEER_ID, _STANDING, SECONDS, SECONDS, SECONDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """See the module. Times are whole seconds since 1970 by the server's clock."""

    run_id: str
    lineage: str = ANY_LINEAGE
    """16 hexadecimal digits, or `ANY_LINEAGE`."""
    account: str
    """Account, such as `hf:ada`, `invited:bo` or `open:PEER_ID`."""
    peer_id: str
    """The libp2p peer that it was given to."""
    standing: Standing
    issued: int
    expires: int
    """Time from which the peer renews it."""
    grace_seconds: int = 0
    """Time for which it holds after that while the server is away."""

    @property
    def ends(self) -> int:
        """Time at which it is over, whether or not the server is there."""
        return self.expires + self.grace_seconds

    def signed(self, key: MembershipKey) -> str:
        """The ticket as it travels."""
        body = self._body()
        return f"{body}\n{key.sign(body)}"

    def _body(self) -> str:
        values = (self.run_id, self.lineage, self.account, self.peer_id, self.standing)
        return "\n".join((HEAD, *values, str(self.issued), str(self.expires), str(self.grace_seconds)))


def read_ticket(text: str | bytes, public: str) -> Ticket | None:
    """A ticket from anybody; None if it is malformed, or the membership key has not signed it.

    Args:
        text: As it came; nothing is done with more than `LARGEST_TICKET_BYTES`.
        public: The membership key of the recipe.
    """
    if not isinstance(text, str | bytes) or len(text) > LARGEST_TICKET_BYTES:
        return None
    return _read_ticket(text, public)


@lru_cache(maxsize=1024)  # a peer shows the same ticket with each of its records
def _read_ticket(text: str | bytes, public: str) -> Ticket | None:
    parsed = parse_ticket(text)
    if parsed is None:
        return None
    ticket, body, signature = parsed
    return ticket if is_signed(body, signature, public) else None


def parse_ticket(text: str | bytes) -> tuple[Ticket, str, str] | None:
    """The ticket, what is signed of it, and the signature, which is not checked; None if it is malformed."""
    lines = split_lines(text, LARGEST_TICKET_BYTES)
    if lines is None or len(lines) != len(_FIELDS) + 2 or lines[0] != HEAD:
        return None
    *body, signature = lines
    if not all(pattern.fullmatch(value) for pattern, value in zip(_FIELDS, body[1:], strict=True)):
        return None
    run_id, lineage, account, peer_id, standing, *times = body[1:]
    issued, expires, grace_seconds = map(int, times)
    if not issued < expires <= expires + grace_seconds <= issued + LONGEST_SECONDS:
        return None
    ticket = Ticket(
        run_id=run_id,
        lineage=lineage,
        account=account,
        peer_id=peer_id,
        standing=standing,
        issued=issued,
        expires=expires,
        grace_seconds=grace_seconds,
    )
    return ticket, "\n".join(body), signature


def when(seconds: float) -> str:
    """A time as people read it, in UTC.

    >>> when(1_800_000_000)
    '2027-01-15 08:00'
    """
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def split_lines(text: str | bytes, largest_bytes: int) -> list[str] | None:
    """The lines of an ASCII text; None if it is too long, or no such text."""
    if not isinstance(text, str | bytes) or len(text) > largest_bytes:
        return None
    try:
        plain = text.decode("ascii") if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        return None
    # Not `splitlines`: it also splits at characters that the signature covers as they are.
    return plain.split("\n") if plain.isascii() else None
