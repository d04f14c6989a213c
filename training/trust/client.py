"""Gets tickets and the ban list from a run's membership server.

What the server answers is believed only as far as the membership key has signed it. A Hugging Face token is sent to the
server of the recipe, only if the volunteer has asked for that, and only if the server wants to see it; redirects are
refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote

from training.errors import BadInput, TrainingError, reason_of
from training.recipe import RunConfig
from training.storage.remote import ask
from training.trust.bans import LARGEST_BANS_BYTES, BanList, Pulse, read_bans
from training.trust.keys import is_public_key
from training.trust.proof import Identity, find_work, proof_message
from training.trust.refusals import REASONS, refuse
from training.trust.server.policy import MOST_WORK_BITS
from training.trust.ticket import ANY_LINEAGE, Ticket, read_ticket

TICKET_SECONDS, BANS_SECONDS, WHOLE_SECONDS = 20.0, 5.0, 60.0
"""Longest silence of the server for a ticket, when it may have to ask the Hub, and for the ban list;
longest whole request."""
LARGEST_ANSWER_BYTES = 8192
_ATTEMPTS = 3
"""Attempts, each with a fresh nonce: a nonce may expire during the proof of work, or with a restart of the server."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Credentials that a volunteer may show to the membership server."""

    invitation: str | None = None
    """Code of an invitation."""
    hub_token: Callable[[], str | None] | None = None
    """Gives the Hugging Face token; None: the volunteer has not asked to show it."""

    def best(self) -> tuple[str, str] | None:
        """Kind and text of the credential to show; None if there is none.

        Raises:
            BadInput: If this machine has no Hugging Face token, or the invitation or token is malformed.
        """
        if self.invitation is not None:
            return "invitation", _plain(self.invitation, "--invitation")
        if self.hub_token is not None:
            token = self.hub_token()
            if token is None:
                raise BadInput(
                    "--hugging-face shows who you are on the Hugging Face Hub, but this machine has no token; run "
                    "`hf auth login`, or set HF_TOKEN."
                )
            return "hub", _plain(token, "the Hugging Face token")
        return None


class MembershipClient:
    """Asks the membership server that a recipe names for tickets and the ban list.

    Args:
        run: Recipe of a run that is not open.
        identity: Identity of the peer that the tickets are for.
        credentials: Credentials to show if the server asks for them.
        tell: Prints sentences for the volunteer.

    Raises:
        BadInput: If the recipe's membership key is malformed.
    """

    def __init__(
        self,
        run: RunConfig,
        identity: Identity,
        credentials: Credentials,
        *,
        tell: Callable[[str], None] = lambda sentence: None,
    ):
        if run.membership.key is None or run.membership.url is None or not is_public_key(run.membership.key):
            raise BadInput(f"membership.key of the recipe of {run.run_id} is no key; fetch the recipe again.")
        self.url, self.public_key = run.membership.url.rstrip("/"), run.membership.key
        self._run_id, self._identity, self._credentials, self._tell = run.run_id, identity, credentials, tell
        self.bans_text = b""
        """The newest ban list that came, with its signature; empty: none has come."""

    def ticket(self, lineage: str = ANY_LINEAGE) -> tuple[str, Ticket]:
        """Gets a new ticket for this peer and a lineage. Returns the text that the server sent, and the ticket in it.

        Raises:
            BadInput: If a credential must be shown, and this machine has no such credential.
            RefusedByRun: If the server gives no ticket.
            TrainingError: If the server does not answer, or has a fault that may pass.
        """
        challenge, refused = self._challenge(), ""
        try:
            text = self._ask(challenge, lineage, ("none", ""))
            ticket = self._read(text)
            if ticket.standing == "vouched" or self._credentials == Credentials():
                return text, ticket
        except _Refused as error:
            # A member whom the server knows need not show anything again.
            refused = error.reason
            if refused not in ("no-credential", "show-again"):
                refuse(error.reason, error.seconds, challenge["organizations"])
        return self._with_credential(challenge, lineage, refused)

    def bans(self, known: int | None) -> BanList | Pulse:
        """Gets the ban list, or a pulse if this peer knows the newest version.

        Raises:
            TrainingError: If the server does not answer with a list that the membership key has signed.
        """
        path = "/bans" if known is None else f"/bans?known={known}"
        answer = self._get(path, LARGEST_BANS_BYTES, within=BANS_SECONDS)
        heard = read_bans(answer, self.public_key, self._run_id)
        if heard is None:
            self._is_wrong("its ban list is not signed with the recipe's key")
        if isinstance(heard, BanList):
            self.bans_text = answer
        return heard

    def _with_credential(self, challenge: dict, lineage: str, refused: str) -> tuple[str, Ticket]:
        for _ in range(_ATTEMPTS):
            credential = self._credentials.best() or self._work(challenge)
            if credential is None:
                refuse(refused, 0, challenge["organizations"])
            if credential[0] == "hub":
                self._tell(f"Your Hugging Face token is shown to {self.url}, which asks the Hub who you are.")
            try:
                text = self._ask(challenge, lineage, credential)
                return text, self._read(text)
            except _Refused as error:
                if error.reason != "nonce-over":
                    refuse(error.reason, error.seconds, challenge["organizations"])
            challenge = self._challenge()
        self._is_wrong("it calls each of its own nonces too old")

    def _work(self, challenge: dict) -> tuple[str, str] | None:
        bits = challenge["work_bits"]
        if not bits:
            return None
        self._tell("This run is open to all who compute some work first, which takes up to a minute.")
        return "work", find_work(challenge["nonce"], str(self._identity.peer_id), bits)

    def _challenge(self) -> dict[str, Any]:
        answer = self._json(f"/challenge?peer_id={quote(str(self._identity.peer_id))}")
        try:
            facts = {"nonce": str(answer["nonce"]), "work_bits": int(answer["work_bits"])}
            organizations = [str(name) for name in answer["organizations"]]
            is_right = (answer["run_id"], answer["key"]) == (self._run_id, self.public_key)
        except (KeyError, TypeError, ValueError, OverflowError):  # the last one of 1e999, which JSON reads as infinite
            self._is_wrong("it is no membership server")
        if not is_right or not 0 <= facts["work_bits"] <= MOST_WORK_BITS:
            self._is_wrong("it is the server of another run, or the recipe is old")
        names = ", ".join(name for name in organizations if name.isascii() and name.isprintable())
        return {**facts, "organizations": names[:200]}

    def _ask(self, challenge: dict, lineage: str, credential: tuple[str, str]) -> str:
        message = proof_message(
            public=self.public_key,
            run_id=self._run_id,
            lineage=lineage,
            peer_id=str(self._identity.peer_id),
            nonce=challenge["nonce"],
            credential=credential,
        )
        shown = {"lineage": lineage, "credential": {"kind": credential[0], "text": credential[1]}}
        proof = {
            "peer_id": str(self._identity.peer_id),
            "public_key": self._identity.public_key.decode(),
            "nonce": challenge["nonce"],
            "signature": self._identity.sign(message).decode(),
        }
        answer = self._json("/tickets", {**proof, **shown})
        if not isinstance(answer.get("ticket"), str):
            self._is_wrong("it answers without a ticket")
        return answer["ticket"]

    def _read(self, text: str) -> Ticket:
        ticket = read_ticket(text, self.public_key)
        is_own = ticket is not None and ticket.peer_id == str(self._identity.peer_id)
        if not is_own or ticket.run_id != self._run_id:
            self._is_wrong("its ticket is not signed with the recipe's key, or is not for this peer")
        return ticket

    # -- HTTP ----------------------------------------------------------------------------------------------------------

    def _json(self, path: str, asked: dict | None = None) -> dict:
        try:
            answer = json.loads(self._get(path, LARGEST_ANSWER_BYTES, asked, within=TICKET_SECONDS))
        except (ValueError, RecursionError):
            self._is_wrong("its answer is no JSON")
        if not isinstance(answer, dict):
            self._is_wrong("its answer is no JSON object")
        return answer

    def _get(self, path: str, largest_bytes: int, asked: dict | None = None, *, within: float) -> bytes:
        """Returns the body of the server's answer.

        Raises:
            _Refused: If the server refuses and gives one of `REASONS`.
            TrainingError: If the server does not answer, or answers with an error without such a reason.
        """
        body, headers = None if asked is None else json.dumps(asked).encode(), {"Content-Type": "application/json"}
        try:
            # Without redirects: a credential goes to the address of the recipe and to no other.
            how = {"seconds": WHOLE_SECONDS, "silence_seconds": within, "headers": headers, "follows": False}
            with ask(f"{self.url}{path}", body=body, **how) as answer:
                status, content = answer.status, answer.read(largest_bytes)
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"The membership server {self.url} does not answer: {_one_line(error)}.",
                cure="Check your connection; if it works, ask the run's maintainer whether the server is on.",
            ) from None
        if status >= 300:
            if (refused := _refusal_in(content)) is not None:
                raise refused
            self._is_wrong(f"it answers with HTTP {status}")
        return content

    def _is_wrong(self, what: str) -> NoReturn:
        raise TrainingError(
            f"The membership server {self.url} cannot be used: {what}.",
            cure="Fetch the run's recipe again; if that does not help, ask the run's maintainer.",
        ) from None


class _Refused(Exception):
    """The server's refusal, by one of `REASONS`."""

    def __init__(self, reason: str, seconds: int = 0):
        super().__init__(reason)
        self.reason, self.seconds = reason, seconds


def _refusal_in(content: bytes) -> _Refused | None:
    try:
        told = json.loads(content)
        reason, seconds = told["refused"], min(max(int(told.get("seconds", 0)), 0), 3600)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None
    return _Refused(reason, seconds) if isinstance(reason, str) and reason in REASONS else None


def _plain(text: str, what: str) -> str:
    stripped = text.strip()
    if not stripped or len(stripped) > 512 or not all("!" <= letter <= "~" for letter in stripped):
        raise BadInput(
            f"{what} is empty, too long, or has characters that no code has; copy it again, whole.",
            cure="Copy it again, whole.",
        )
    return stripped


def _one_line(error: Exception) -> str:
    return " ".join(reason_of(error).split())[:200] or type(error).__name__
