"""Rules of admission that a maintainer sets: who may join a run, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

HUB = "https://huggingface.co"
MOST_WORK_BITS = 24
"""Most bits of a proof of work. A processor core tries a million answers per second,
so 24 bits take 17 s on average."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """Rules of admission to a run."""

    organizations: tuple[str, ...] = ()
    """Organizations of the Hugging Face Hub whose members may take part."""
    hub_endpoint: str = HUB
    """Address of the Hub."""
    work_bits: int = 0
    """Bits of the proof of work (`training.trust.proof`) that admits a peer without a credential, with the standing
    `open`; 0: a credential is required."""
    ticket_seconds: int = 3600
    """Time after which a ticket ends unless it is renewed."""
    grace_seconds: int = 6 * 3600
    """Time for which tickets stay valid after their end while the server is away."""
    recheck_seconds: int = 86_400
    """Time after which a member admitted by the Hub shows their token again;
    a user who has left the organization gets no ticket."""
    peers_per_account: int = 8
    """Peers of one account that may have tickets at once."""


BANS_EVERY_SECONDS = 5.0
"""Interval at which a peer fetches the ban list."""
