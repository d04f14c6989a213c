"""The ticket: a statement of the run's membership server that a peer may take part, for some hours.

A server signs a ticket, its peer shows it, and every other peer checks it without asking anybody
(`training.trust.check`). A ticket is nine lines of plain ASCII and a signature, and has only one spelling.

What a ticket does not protect against:

- **A member who does harm.** It says who somebody is, not that their gradients are honest. Robust averages, checks of
  work and bans are for that.
- **A stolen identity key.** A thief of a peer's `identity.key` can act as that peer, until a ban or the ticket's end.
- **A stolen membership key.** A thief of this key can sign tickets for anybody. Put a new key into the recipe, and
  start the run's servers and peers again.
- **Many identities of one person** in a run that is open to all: a proof of work makes each identity cost time, but not
  rare. Such peers have the standing `open`, so that averages can give them less weight. In an organization or by
  invitation, the people who admit members decide.
- **Another training of the same recipe.** The server signs the lineage that a member asks for. So a ticket cannot be
  shown in another training, but a member may ask for a ticket for that one too.
- **A membership server that is dishonest.** It decides alone who is in. It sees a volunteer's Hugging Face token during
  a request; a token that may read nothing is enough.
- **Traffic.** A ticket neither encrypts nor hides what peers send, nor limits what a member sends. It names its account
  and its peer to everybody who sees it.
- **A late ban.** A peer that has not heard of a ban believes the ticket until it ends: at most `LONGEST_SECONDS`, as
  long as the server's maintainer allows, if the server is away.
- **Wrong clocks.** Times are compared with the clock of the peer that checks, give or take `CLOCK_SECONDS`.
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
"""Longest validity of a ticket, including its grace while the server is away."""
CLOCK_SECONDS = 300
"""Largest difference between the clocks of a peer and the server."""
HEAD = "training-ticket 1"
ANY_LINEAGE = "-"
"""Lineage in a ticket for a peer that does not know the run's lineage yet.
The ticket admits it to the DHT, not to averaging."""

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
    """Statement of the membership server that a peer may take part. Times are whole seconds since 1970 by its clock."""

    run_id: str
    lineage: str = ANY_LINEAGE
    """16 hexadecimal digits, or `ANY_LINEAGE`."""
    account: str
    """Account, such as `hf:ada`, `invited:bo` or `open:PEER_ID`."""
    peer_id: str
    """Id of the libp2p peer that may use the ticket."""
    standing: Standing
    issued: int
    expires: int
    """Time from which the peer renews it."""
    grace_seconds: int = 0
    """Time after `expires` for which the ticket stays valid while the server is away."""

    @property
    def ends(self) -> int:
        """Time at which the ticket ends even if the server is away."""
        return self.expires + self.grace_seconds

    def signed(self, key: MembershipKey) -> str:
        """Signed text of the ticket, as the server sends it and peers show it."""
        body = self._body()
        return f"{body}\n{key.sign(body)}"

    def _body(self) -> str:
        values = (self.run_id, self.lineage, self.account, self.peer_id, self.standing)
        return "\n".join((HEAD, *values, str(self.issued), str(self.expires), str(self.grace_seconds)))


def read_ticket(text: str | bytes, public: str) -> Ticket | None:
    """Reads a ticket from an untrusted source; None if it is malformed, or not signed by the membership key.

    Args:
        text: Text as it came; more than `LARGEST_TICKET_BYTES` are refused unread.
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
    """Parses a ticket into its contents, the signed text and the signature, which is not checked; None if malformed."""
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
    """Formats a time for people, in UTC.

    >>> when(1_800_000_000)
    '2027-01-15 08:00'
    """
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def split_lines(text: str | bytes, largest_bytes: int) -> list[str] | None:
    """Splits an ASCII text into its lines; None if it is too long or not ASCII."""
    if not isinstance(text, str | bytes) or len(text) > largest_bytes:
        return None
    try:
        plain = text.decode("ascii") if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        return None
    # Not `splitlines`: it also splits at characters that the signature covers as they are.
    return plain.split("\n") if plain.isascii() else None
