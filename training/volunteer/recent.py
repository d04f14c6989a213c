"""The epochs that a peer has ended last, kept in a file across restarts.

A peer's record repeats them, for a monitor that was away when they ended. A peer that leaves and comes back while no
monitor watches would otherwise take them with it, and the history would lack these epochs for ever.
"""

from __future__ import annotations

import json
from collections import deque
from contextlib import suppress
from pathlib import Path

from training.storage.whole import whole_file
from training.swarm.node.metrics import RECENT_EPOCHS, RecentEpoch

RECENT_FILE = "recent_epochs.json"


class RecentEpochs:
    """See the module.

    Args:
        path: Of the file; nothing is known if it does not exist or cannot be read.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     RecentEpochs(Path(folder, "recent.json")).add("a1", RecentEpoch(7, 2.5, 64, 1000.0))
    ...     RecentEpochs(Path(folder, "recent.json")).until("a1", 8)
    [RecentEpoch(epoch=7, loss=2.5, samples=64, time=1000.0)]
    """

    def __init__(self, path: Path):
        self._path = path
        self._before: list[tuple[str, RecentEpoch]] = []
        self._own: deque[tuple[str, RecentEpoch]] = deque(maxlen=RECENT_EPOCHS)
        with suppress(OSError, ValueError, TypeError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            self._before = [(str(lineage), RecentEpoch(*epoch)) for lineage, epoch in kept][-RECENT_EPOCHS:]

    def add(self, lineage: str, ended: RecentEpoch) -> None:
        """The peer has ended an epoch."""
        # A peer that went back does epochs again: what it did of these before belongs to a branch that was given up.
        self._before = [(of, one) for of, one in self._before if of != lineage or one.epoch < ended.epoch]
        self._own.append((lineage, ended))
        # Not flushed, since training would wait for the disk. A power cut may damage the file; then it counts as empty.
        # On a full disk a restart loses these epochs, and training goes on.
        with suppress(OSError), whole_file(self._path, flushed=False) as draft:
            draft.write_text(json.dumps([*self._before, *self._own][-RECENT_EPOCHS:]), encoding="utf-8")

    def until(self, lineage: str, last: int) -> list[RecentEpoch]:
        """The epochs of a lineage up to one, in their order; an epoch that was done again, as it was done last.

        Epochs from before the last start are reported only until the first epoch after it has ended. The first epoch of
        a record shows the history where its peer has continued.
        """
        known = {one.epoch: one for of, one in list(self._own) or self._before if of == lineage and one.epoch <= last}
        return [known[epoch] for epoch in sorted(known)]
