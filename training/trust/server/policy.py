"""Whom a maintainer admits to a run, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

HUB = "https://huggingface.co"
MOST_WORK_BITS = 24
"""A processor core tries a million answers in a second: 24 bits take it a quarter of a minute on average."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Whom the maintainer admits, and for how long."""

    organizations: tuple[str, ...] = ()
    """Organizations of the Hugging Face Hub whose members may take part."""
    hub_endpoint: str = HUB
    """Address of the Hub."""
    work_bits: int = 0
    """Anybody may take part who does this work for each peer, see `training.trust.proof`; 0: nobody without credential.
    They are of the standing `open`."""
    ticket_seconds: int = 3600
    """A ticket is renewed within this time."""
    grace_seconds: int = 6 * 3600
    """Time for which tickets hold beyond that while the server is away."""
    recheck_seconds: int = 86_400
    """A member by the Hub shows their token again after this time; who has left the organization gets no ticket."""
    peers_per_account: int = 8
    """Peers of one account that may have tickets at once."""


BANS_EVERY_SECONDS = 5.0
"""Interval at which a peer asks for the ban list; others hear of a ban through it."""
