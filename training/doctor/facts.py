"""The volunteer's flags, and facts that several checks need: the recipe and the manifest, each read once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from training.errors import TrainingError
from training.processes.servers.ports import listens_at
from training.recipe import RunConfig
from training.volunteer.address import find_run

if TYPE_CHECKING:
    from training.data.store.shards import Manifest, TextManifest

RECIPE_SECONDS = 8.0
"""Longest wait for a recipe, which has some kilobytes: the checks that need it go on without it."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Flags that the volunteer gave, as `join` has them."""

    recipe: str | None = None
    """Address of the run, or its recipe: a name, a TOML file or a URL."""
    initial_peers: tuple[str, ...] = ()
    """Full addresses, or URLs of the run's site; empty: the site to which the address leads."""
    shards: str | None = None
    """Folder or URL; None: the recipe's."""
    state_dir: Path | None = None
    host_maddrs: tuple[str, ...] = (listens_at(),)
    """Addresses to listen on."""
    client_mode: bool = False
    device: str | None = None


class Facts:
    """The recipe and the manifest: each is read once; a second question gets the same answer, or the same error.

    Args:
        asked: Flags that the volunteer gave.
    """

    def __init__(self, asked: Asked):
        self.asked = asked
        self._pool = ThreadPoolExecutor(2)
        self._late_at = time.monotonic() + RECIPE_SECONDS
        self._found = self._pool.submit(find_run, asked.recipe) if asked.recipe is not None else None
        self._manifest: Future[Manifest | TextManifest] | None = None
        self._lock = threading.Lock()

    def run(self) -> RunConfig:
        """The recipe; an address was given.

        Raises:
            TrainingError: If the recipe cannot be read, or does not arrive within `RECIPE_SECONDS`.
        """
        try:
            return self._found.result(max(0.0, self._late_at - time.monotonic())).run
        except TimeoutError:
            raise TrainingError(f"{self.asked.recipe} has not arrived within {RECIPE_SECONDS:g} s.") from None

    def run_or_none(self) -> RunConfig | None:
        """The recipe; None if no address was given or it cannot be read."""
        if self._found is not None:
            with suppress(TrainingError):
                return self.run()
        return None

    def initial_peers(self) -> tuple[str, ...]:
        """The given addresses of peers, or else the run's site, if that is known."""
        if self.asked.initial_peers or self.run_or_none() is None:
            return self.asked.initial_peers
        site = self._found.result().site
        return (site,) if site is not None else ()

    def source(self) -> str | None:
        """Folder or address of the shards; None if neither flag nor recipe names one."""
        run = self.run_or_none()
        return self.asked.shards or (run.data.shards if run else None)

    def manifest(self) -> Manifest | TextManifest:
        """The manifest of the shards, if `source` says where they are. Raises as `open_manifest`."""
        with self._lock:
            self._manifest = self._manifest or self._pool.submit(self._open_manifest)
        return self._manifest.result()

    def _open_manifest(self) -> Manifest | TextManifest:
        from training.data.store.sets import open_manifest  # loads torch

        run = self.run_or_none()
        return open_manifest(self.source(), kind=run.kind if run else None)
