"""The desk of the membership server: checks a peer's credential, and gives the peer a ticket or refuses it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from training.trust.bans import BanList, Pulse
from training.trust.keys import MembershipKey, to_text
from training.trust.proof import has_worked, proof_message, proven_peer_id
from training.trust.refusals import Reason, Refusal
from training.trust.server.hub import Hub
from training.trust.server.limits import RateLimit
from training.trust.server.policy import Policy
from training.trust.server.register import Entrant, Register
from training.trust.ticket import ACCOUNT, Ticket

NONCE_SECONDS = 600
"""Validity of a nonce: enough for the proof of work that an open run may demand."""
PER_ACCOUNT = {"per_second": 1 / 30, "at_once": 20}
"""Tickets for one account: each of its peers asks for two when it starts, and then for two in an hour."""

Kind = Literal["none", "hub", "invitation", "work"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A peer's request for a ticket, with the proof of its id; the receiver has bounded the length of each text."""

    peer_id: str
    public_key: str
    nonce: str
    signature: str
    lineage: str
    kind: Kind
    credential: str
    """Hugging Face token, invitation code, or answer to a proof of work."""


class Desk:
    """Issuer of tickets: checks proofs and credentials, and signs tickets and ban lists.

    Args:
        register: Register of the members.
        key: Membership key that signs.
        policy: People whom the maintainer admits.
        clock: Seconds since 1970; a test passes its own.
    """

    def __init__(
        self, register: Register, key: MembershipKey, policy: Policy, *, clock: Callable[[], float] = time.time
    ):
        self.register, self.key, self.policy = register, key, policy
        self.refused: Counter[Reason] = Counter()
        """Number of refusals since the server's start, by reason."""
        self._hub = Hub(policy.hub_endpoint, policy.organizations)
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._per_account = RateLimit(**PER_ACCOUNT)

    def nonce(self, peer_id: str) -> str:
        """Makes a nonce for a peer. The server stores nothing:
        the nonce's second half proves that this server made it."""
        begun = f"{int(self._clock())}.{secrets.token_hex(8)}"
        return f"{begun}.{self._seal(begun, peer_id)}"

    def give(self, asked: Request) -> str:
        """Checks a request. Returns the signed ticket.

        Raises:
            Refusal: If the proof or credential is not valid, or the peer may have no ticket.
        """
        try:
            self._check_proof(asked)
            return self._give(asked)
        except Refusal as refusal:
            self.refused[refusal.reason] += 1
            raise

    def bans(self, known: int | None) -> str:
        """Returns the signed ban list, or a pulse if the version `known` is the current one."""
        bans = self.register.ban_list()
        return pulse_of(bans).signed(self.key) if bans.version == known else bans.signed(self.key)

    def _check_proof(self, asked: Request) -> None:
        begun, _, seal = asked.nonce.rpartition(".")
        given_at = begun.partition(".")[0]
        if not hmac.compare_digest(seal.encode(), self._seal(begun, asked.peer_id).encode()):
            raise Refusal("nonce-over")  # also after a restart of the server
        if self._clock() - int(given_at) > NONCE_SECONDS:
            raise Refusal("nonce-over")
        message = proof_message(
            public=self.key.public,
            run_id=self.register.run_id,
            lineage=asked.lineage,
            peer_id=asked.peer_id,
            nonce=asked.nonce,
            credential=(asked.kind, asked.credential),
        )
        if proven_peer_id(asked.public_key, message, asked.signature) != asked.peer_id:
            raise Refusal("proof-wrong")

    def _give(self, asked: Request) -> str:
        known = self.register.known(asked.peer_id)
        must_show = known is None or bool(known["must_show"])
        # An open member may become a vouched one, by a credential that says more.
        shows_more = known is not None and known["standing"] == "open" and asked.kind in ("hub", "invitation")
        if must_show or shows_more:
            member = self._by_credential(asked, known)
        else:
            member = Entrant(account=known["account"], standing=known["standing"], renews=True)
        if wait := self._per_account.take(member.account or asked.peer_id):
            raise Refusal("too-fast", seconds=wait)
        return self._sign(asked, member)

    def _by_credential(self, asked: Request, known: dict | None) -> Entrant:
        match asked.kind:
            case "hub":
                if not self.policy.organizations:
                    raise Refusal("way-closed")
                name, hub_id = self._hub.member(asked.credential)
                account = f"hf:{name}"
                if not ACCOUNT.fullmatch(account):
                    raise Refusal("hub-away")
                until = int(self._clock()) + self.policy.recheck_seconds
                return Entrant(account=account, standing="vouched", hub_id=hub_id, shown_until=until)
            case "invitation":
                return Entrant(standing="vouched", code=asked.credential)
            case "work":
                if not self.policy.work_bits:
                    raise Refusal("way-closed")
                if not has_worked(asked.nonce, asked.peer_id, asked.credential, self.policy.work_bits):
                    raise Refusal("work-wrong")
                return Entrant(account=f"open:{asked.peer_id}", standing="open")
            case _:
                raise Refusal("show-again" if known else "no-credential")

    def _sign(self, asked: Request, member: Entrant) -> str:
        now = int(self._clock())
        account = self.register.admit(
            member,
            asked.peer_id,
            ticket_ends=now + self.policy.ticket_seconds + self.policy.grace_seconds,
            most_peers=self.policy.peers_per_account,
        )
        ticket = Ticket(
            run_id=self.register.run_id,
            lineage=asked.lineage,
            account=account,
            peer_id=asked.peer_id,
            standing=member.standing,
            issued=now,
            expires=now + self.policy.ticket_seconds,
            grace_seconds=self.policy.grace_seconds,
        )
        return ticket.signed(self.key)

    def _seal(self, begun: str, peer_id: str) -> str:
        return to_text(hmac.digest(self._secret, f"{begun} {peer_id}".encode(), hashlib.sha256)[:16])


def pulse_of(bans: BanList) -> Pulse:
    """Makes the pulse that is sent in place of a ban list to a peer that has this list."""
    return Pulse(run_id=bans.run_id, version=bans.version, issued=bans.issued)
