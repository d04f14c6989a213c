"""Reasons for which the membership server gives no ticket; the server sends a name, the client writes a sentence."""

from __future__ import annotations

from typing import Literal, NoReturn, get_args

from training.errors import RefusedByRun, TrainingError

Reason = Literal[
    "no-credential",
    "show-again",
    "code-unknown",
    "code-over",
    "token-refused",
    "not-in-organization",
    "work-wrong",
    "way-closed",
    "banned",
    "too-many-peers",
    "proof-wrong",
    "nonce-over",
    "too-fast",
    "hub-away",
    "busy",
    "malformed",
]
REASONS: frozenset[str] = frozenset(get_args(Reason))
STATUS: dict[Reason, int] = {"too-fast": 429, "hub-away": 503, "busy": 503, "malformed": 422, "nonce-over": 409}
"""HTTP status of the reasons whose status is not 403."""


class Refusal(Exception):
    """Refusal of a ticket by the membership server.

    Args:
        reason: One of `REASONS`.
        seconds: Pause before the next request; 0 if a later request would be refused too.
    """

    def __init__(self, reason: Reason, *, seconds: float = 0.0):
        super().__init__(reason)
        self.reason: Reason = reason
        self.seconds = seconds

    @property
    def status(self) -> int:
        """HTTP status code of the refusal."""
        return STATUS.get(self.reason, 403)


def refuse(reason: str, seconds: int, organizations: str) -> NoReturn:
    """Ends a peer's program with a sentence that names the likely causes, and a way out.

    Args:
        reason: One of `REASONS`.
        seconds: Pause before the next request, as the server asks for it.
        organizations: Names of the organizations whose members the server admits.

    Raises:
        RefusedByRun: If the refusal lasts until the volunteer or a maintainer acts.
        TrainingError: If a later attempt may succeed.
    """
    organizations = organizations or "none"
    match reason:
        case "no-credential" | "show-again":
            raise RefusedByRun(
                "Only members may take part in this run, and you have shown nothing that makes you one.",
                cure="Ask the run's maintainer for an invitation and give it with --invitation CODE; or, if you belong "
                f"to one of its organizations on the Hugging Face Hub ({organizations}), add --hugging-face.",
            )
        case "code-unknown":
            raise RefusedByRun(
                "The membership server does not know this invitation: it is mistyped, of another run, or withdrawn.",
                cure="Copy the code again, whole; if that does not help, ask the run's maintainer for another.",
            )
        case "code-over":
            raise RefusedByRun(
                "This invitation is used up, its time is over, or the run's maintainers have ended your membership. If "
                "you have joined with it before and are still a member, this start has another identity.",
                cure="Give the same --state-dir as then, or ask the run's maintainer for another invitation.",
            )
        case "token-refused":
            raise RefusedByRun(
                "The Hugging Face Hub does not know your token: it was revoked, has expired, or is of another Hub.",
                cure="Run `hf auth login` with a new token, which may be without any permission; HF_TOKEN, if it is "
                "set, comes first.",
            )
        case "not-in-organization":
            raise RefusedByRun(
                f"Your Hugging Face account belongs to none of the run's organizations ({organizations}), or its token "
                "may not tell that it does.",
                cure="Ask to be added to the organization, or take a token that may read your organizations.",
            )
        case "banned":
            raise RefusedByRun(
                "The run's maintainers have banned this account or this peer.",
                cure="Ask them for the reason; only they can lift it.",
            )
        case _:
            _refuse_for_now(reason, seconds)


def _refuse_for_now(reason: str, seconds: int) -> NoReturn:
    match reason:
        case "too-many-peers":
            raise RefusedByRun(
                "Your account has as many peers in the run as the run's maintainers allow.",
                cure="Stop one of them and wait until its ticket is over; with --state-dir, a restarted peer is the "
                "same one.",
            )
        case "too-fast":
            raise TrainingError(
                f"The membership server asks to wait {seconds} s: too many requests came from this network, or "
                "for this account.",
                cure="Wait, then try again.",
            )
        case "nonce-over":
            raise TrainingError("The membership server was started again meanwhile.", cure="Try again in some seconds.")
        case "hub-away":
            raise TrainingError(
                "The membership server cannot ask the Hugging Face Hub who you are: the Hub does not answer.",
                cure="Try again in some minutes.",
            )
        case "busy":
            raise TrainingError(
                "The membership server cannot write its register: another program holds it.",
                cure=f"Try again in {max(seconds, 1)} s; if that does not help, tell the run's maintainer.",
            )
        case "way-closed":
            raise RefusedByRun(
                "This run does not admit members in this way.",
                cure="Ask the run's maintainer for an invitation and give it with --invitation CODE.",
            )
        case _:
            raise RefusedByRun(
                f"The membership server refuses this peer's request ({reason}): this program and the server may "
                "be of different releases.",
                cure="Update this program, or ask the run's maintainer which release the run uses.",
            )
