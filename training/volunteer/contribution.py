"""What a peer has contributed to its run, kept in a file across restarts."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from training.storage.whole import write_whole
from training.swarm.peers.epochs import EpochReport


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """A peer's totals over its whole life, restarts included."""

    samples: int = 0
    seconds: float = 0.0
    averaged_epochs: int = 0
    alone_epochs: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    @classmethod
    def read(cls, path: Path) -> Contribution:
        """Reads the file; returns zeros if there is none or it cannot be read."""
        with suppress(OSError, ValueError, TypeError):
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        return cls()

    def write(self, path: Path) -> None:
        """Writes the file atomically."""
        write_whole(path, json.dumps(self.__dict__))

    def plus(self, report: EpochReport, seconds: float) -> Contribution:
        """The totals with one more epoch added."""
        return Contribution(
            samples=self.samples + report.samples,
            seconds=self.seconds + seconds,
            averaged_epochs=self.averaged_epochs + (report.senders > 1),
            alone_epochs=self.alone_epochs + report.alone,
            bytes_sent=self.bytes_sent + report.bytes_sent,
            bytes_received=self.bytes_received + report.bytes_received,
        )
