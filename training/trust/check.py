"""Check of another peer's ticket, which every peer does by itself and without a message to anybody.

`check_ticket` has all the rules. Only `training.swarm.node.admission` calls it; its docstring lists the places where a
peer meets tickets. Before the server signs a ticket, it checks a proof and a credential (`training.trust.server.desk`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from training.trust.bans import BanList, Pulse
from training.trust.ticket import ANY_LINEAGE, CLOCK_SECONDS, Ticket, read_ticket

AWAY_SECONDS = 120.0
"""A peer takes the server for away when it has seen nothing signed by the server for this time."""
RETURN_SECONDS = 600.0
"""After the server has come back, tickets keep their grace for this time, in which all peers can renew theirs."""

Fault = Literal["malformed", "other peer", "other run", "other lineage", "early", "expired", "banned"]


class TicketRefused(ValueError):
    """A ticket is not valid; `fault` names the reason in a word for programs."""

    def __init__(self, fault: Fault, told: str):
        super().__init__(told)
        self.fault = fault


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Facts by which a peer checks tickets."""

    public_key: str
    """The membership key, from the recipe."""
    run_id: str
    lineages: frozenset[str] | None = None
    """The lineage that this peer trains and its ancestors, so that tickets stay valid when a maintainer goes back to an
    earlier epoch. None: any lineage, where the weights do not matter, such as in the DHT."""
    bans: BanList | None = None
    """The newest ban list that the peer knows."""
    server_since: float | None = None
    """Time since which the server has been there without a gap, as `ServerSight` has seen it; None: it is away."""


def check_ticket(text: str | bytes, *, peer_id: str, rules: Rules, now: float) -> Ticket:
    """Checks a ticket, and returns its contents. Reads only its arguments, and takes less than a millisecond.

    Args:
        text: The ticket as it came, from anybody.
        peer_id: Id of the peer that shows the ticket, proved by its connection or by the signature of its record.
        rules: Facts by which the ticket is checked.
        now: Seconds since 1970.

    Raises:
        TicketRefused: If the ticket is not valid.
    """
    ticket = read_ticket(text, rules.public_key)
    if ticket is None:
        raise TicketRefused("malformed", "It is no ticket that this run's membership server has signed.")
    if ticket.peer_id != peer_id:
        raise TicketRefused("other peer", f"It is the ticket of {ticket.peer_id}, not of {peer_id}.")
    if ticket.run_id != rules.run_id:
        raise TicketRefused("other run", f"It is a ticket for {ticket.run_id}, not for {rules.run_id}.")
    if rules.lineages is not None and ticket.lineage not in rules.lineages - {ANY_LINEAGE}:
        raise TicketRefused("other lineage", f"It is a ticket for the lineage {ticket.lineage}, which is not trained.")
    if now < ticket.issued - CLOCK_SECONDS:
        raise TicketRefused("early", f"It will be given only in {ticket.issued - now:.0f} s.")
    if now >= _end(ticket, rules, now) + CLOCK_SECONDS:
        raise TicketRefused("expired", f"It ended {now - _end(ticket, rules, now):.0f} s ago.")
    if rules.bans is not None and rules.bans.bars(ticket):
        raise TicketRefused("banned", f"{ticket.account} may no longer take part.")
    return ticket


def _end(ticket: Ticket, rules: Rules, now: float) -> int:
    """Time at which a ticket ends. Its grace is added only while the server is away,
    or has been back for a short time."""
    could_renew = rules.server_since is not None and now - rules.server_since >= RETURN_SECONDS
    return ticket.expires if could_renew else ticket.ends


@dataclass(slots=True)
class ServerSight:
    """Presence of the membership server, which a peer infers from the signatures that it sees.

    Tickets, ban lists and pulses come from the server itself or through other peers.
    """

    _first: float | None = field(default=None, init=False)
    _newest: float = field(default=0.0, init=False)

    def note(self, issued: float) -> None:
        """Notes that the server has signed something at the time `issued`, in seconds since 1970."""
        if self._first is None or issued - self._newest > AWAY_SECONDS:
            self._first = issued
        self._newest = max(self._newest, issued)

    def since(self, now: float) -> float | None:
        """Time for `Rules.server_since`: since when the server has been there without a gap; None if it is away."""
        return self._first if now - self._newest <= AWAY_SECONDS else None


def newer_bans(known: BanList | None, heard: BanList | Pulse | None) -> BanList | None:
    """Returns the newer of the ban list that a peer has and the answer that it has heard, both from `read_bans`.

    So nobody can lift a ban by repeating an older list.
    """
    if not isinstance(heard, BanList):
        return known
    return heard if known is None or (heard.version, heard.issued) > (known.version, known.issued) else known
