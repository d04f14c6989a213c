"""What belongs to one peer alone, as its volunteer has said it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from training.compute.choices import Wishes


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """What belongs to this peer alone; other peers of the run may have other settings."""

    initial_peers: tuple[str, ...]
    """Full addresses of peers that are there."""
    name: str | None = None
    """Shown on the leaderboard; None: made from the peer's id."""
    wishes: Wishes = field(default_factory=Wishes)
    """What the volunteer has said about device, memory and precision."""
    threads: int | None = None
    """Threads that compute; None: one for each core."""
    epochs: int | None = None
    """Stop when the run has done so many; None: at the end of its schedule."""
    resume: Path | None = None
    """Folder of checkpoints; the latest is used unless the run is already further."""
    shards: str | None = None
    """Folder or URL of the shards, if not where the recipe says."""
    bandwidth_mbits: float | None = None
    """What its link carries, in Mbit/s; None: as measured, if it was."""
    client_mode: bool = False
    """Accept no incoming connections."""
    host_maddrs: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    """Addresses to listen on."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses at which others reach it, if they differ."""
    seed: int | None = None
    """Seed of the order of samples; None: from the peer's id."""
