"""Access tickets signed by an authority, and the checks that a peer makes before it accepts a request.

Signatures are modelled by their meaning: only the holder of a key can make one, and it is valid only for the exact
text that was signed. The order of the checks is hivemind's (hivemind/utils/auth.py,
TokenAuthorizerBase.validate_request); the scheme is described in Diskin et al. 2021, arXiv:2106.10207.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

AUTHORITY, VOLUNTEER, PEER, OTHER_PEER, ATTACKER = "authority", "volunteer", "peer", "another peer", "attacker"
"""Holders of keys; a public key is represented by its holder's name."""
LONGEST_DELAY = 60
"""Seconds by which a request's time may differ from the peer's clock (hivemind's `_MAX_CLIENT_SERVICER_TIME_DIFF`)."""
TICKET_SECONDS = 7200
"""Validity of the example's ticket in seconds."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature of a key's holder for an exact text."""

    holder: str
    words: tuple


@dataclass(frozen=True, kw_only=True, slots=True)
class Ticket:
    """The authority's statement that a key belongs to a member, valid for a limited time."""

    name: str
    key: str
    expires: float
    signature: Signature | None = None

    def words(self) -> tuple:
        """The text that its signature covers."""
        return (self.name, self.key, self.expires)

    def signed(self, holder: str) -> Ticket:
        """Returns a copy with a signature."""
        return replace(self, signature=Signature(holder, self.words()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request from a volunteer to a peer."""

    ticket: Ticket
    receiver: str
    """Key of the peer for which it is meant."""
    time: float
    nonce: int
    """A number that is used once."""
    tensor: str
    signature: Signature | None = None

    def words(self) -> tuple:
        """The text that its signature covers."""
        return (self.ticket, self.receiver, self.time, self.nonce, self.tensor)

    def signed(self, holder: str) -> Request:
        """Returns a copy with a signature."""
        return replace(self, signature=Signature(holder, self.words()))


CHECKS = (
    "the authority signed the ticket",
    "the ticket has not expired",
    "the ticket's key signed the request",
    "the request is meant for this peer",
    f"it is at most {LONGEST_DELAY} s old",
    "it is not a repetition",
)


def failed_check(request: Request, *, peer: str, now: float, seen: Collection[int]) -> int | None:
    """The index in `CHECKS` of the first check that fails; None: the peer accepts the request.

    Args:
        request: The request to check.
        peer: Key of the peer that checks it.
        now: That peer's clock, in seconds.
        seen: Nonces of the requests that it has accepted recently.
    """
    ticket = request.ticket
    passed = (
        ticket.signature == Signature(AUTHORITY, ticket.words()),
        now < ticket.expires,
        request.signature == Signature(ticket.key, request.words()),
        request.receiver == peer,
        abs(now - request.time) <= LONGEST_DELAY,
        request.nonce not in seen,
    )
    return next((number for number, good in enumerate(passed) if not good), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A request, its time of arrival, and the nonces that the peer has seen by then."""

    request: Request
    now: float = 10.0
    peer: str = PEER
    seen: frozenset[int] = frozenset()


def honest_request() -> Request:
    """A member's request; the member signed in at second 0 and sent it at second 10."""
    ticket = Ticket(name="ada", key=VOLUNTEER, expires=TICKET_SECONDS).signed(AUTHORITY)
    return Request(ticket=ticket, receiver=PEER, time=10.0, nonce=1, tensor="gradient").signed(VOLUNTEER)


def _forged() -> Case:
    ticket = Ticket(name="ada", key=ATTACKER, expires=TICKET_SECONDS).signed(ATTACKER)
    return Case(request=replace(honest_request(), ticket=ticket).signed(ATTACKER))


def _expired() -> Case:
    late = TICKET_SECONDS + 5.0
    return Case(request=replace(honest_request(), time=late).signed(VOLUNTEER), now=late)


CASES: dict[str, Callable[[], Case]] = {
    "honest": lambda: Case(request=honest_request()),
    "forged": _forged,
    "expired": _expired,
    "stolen": lambda: Case(request=honest_request().signed(ATTACKER)),
    "altered": lambda: Case(request=replace(honest_request(), tensor="another gradient")),
    "redirected": lambda: Case(request=honest_request(), peer=OTHER_PEER),
    "delayed": lambda: Case(request=honest_request(), now=10.0 + LONGEST_DELAY + 1),
    "replayed": lambda: Case(request=honest_request(), seen=frozenset({1})),
}
"""Requests that may reach a peer: a member's, and forgeries that an attacker can make without a member's private
key."""
