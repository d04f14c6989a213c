"""The settings of one peer, as its volunteer gave them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from training.compute.choices import Wishes
from training.data.store.cache import CACHE_GB
from training.processes.servers.ports import listens_at
from training.trust.client import Credentials


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """Settings of this peer; other peers of the run may have others."""

    initial_peers: tuple[str, ...]
    """Full addresses of peers that are already in the run, and addresses of the run's site."""
    site: str | None = None
    """Address of the run's site, if the volunteer has given it; its checkpoints and its servers are trusted."""
    name: str | None = None
    """Name on the leaderboard; None: made from the peer's id."""
    wishes: Wishes = field(default_factory=Wishes)
    """Device, memory and precision that the volunteer has asked for."""
    threads: int | None = None
    """Number of threads that compute; None: one per core."""
    epochs: int | None = None
    """Epoch of the run at which the peer stops; None: the end of the run's schedule."""
    recipe_toml: str = ""
    """Text of the recipe, if this peer keeps weights; see `training.checkpoints.keep`."""
    resume: Path | None = None
    """Folder of checkpoints; the peer starts from the latest unless the run is ahead of it."""
    shards: str | None = None
    """Folder or URL of the shards; None: that in the recipe."""
    cache_gb: float = CACHE_GB
    """Disk space for shards that are fetched over the network, in GB."""
    max_upload_mbits: float | None = None
    """Most that this peer sends, in Mbit/s; None: no limit."""
    normal_priority: bool = False
    """True to compute with the priority of other programs, and not with a lower one."""
    client_mode: bool = False
    """True to accept no incoming connections."""
    host_maddrs: tuple[str, ...] = (listens_at(),)
    """Addresses to listen on."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses at which others reach this peer, if they differ from `host_maddrs`."""
    credentials: Credentials = field(default=Credentials(), repr=False)
    """Credentials for a run that admits members only."""
    seed: int | None = None
    """Seed of the order of samples; None: derived from the peer's id."""
