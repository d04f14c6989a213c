"""Event log of a long-running role: one JSON object per line, with `time` and `event`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from training.errors import BadInput, reason_of

Event = Literal[
    "ready", "chosen", "joined", "epoch", "paused", "resumed", "checkpoint", "pushed", "branch", "reach", "notice",
    "warning", "stopped",
]  # fmt: skip


class EventLog:
    """Log of events, which appends each to a file; without a path it drops them.

    Args:
        path: File to append to (`--log-json`); created, with its folder, if it is missing.
        clock: Returns seconds since 1970; a test passes its own.
        listener: Gets each event too, as in the file.

    Raises:
        BadInput: If the file cannot be written.
    """

    def __init__(
        self,
        path: Path | None,
        clock: Callable[[], float] = time.time,
        listener: Callable[[dict], None] = lambda event: None,
    ):
        self._clock, self._listener = clock, listener
        self._file = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # buffering=1: each line is written at once, so that a reader such as the demo sees the event.
                self._file = path.open("a", encoding="utf-8", buffering=1)
            except OSError as error:
                raise BadInput(
                    f"{path} cannot be written: {reason_of(error)}. Give --log-json a file that you may write to."
                ) from None

    def write(self, event: Event, **fields: object) -> None:
        """Appends one line and flushes it; if the disk is full, the role continues without it."""
        written = {"time": self._clock(), "event": event, **fields}
        self._listener(written)
        if self._file is not None:
            with suppress(OSError):
                self._file.write(json.dumps(written) + "\n")
