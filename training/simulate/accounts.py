"""Accounts for the time of peers: each second of each present peer has one cause, so that the shares add up to 1."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Use of a peer's time."""

    COMPUTING = "computing"
    """Computing samples that enter an update."""
    ADDING_UP = "adding_up"
    """Accumulating gradients: on the host, or with local updates where the model is."""
    LAST_MICRO_BATCH = "last_micro_batch"
    """Waiting for others of the group that are still computing."""
    MEETING = "meeting"
    """Waiting for a group to form."""
    AVERAGING = "averaging"
    """Waiting for the network, where computing does not hide it."""
    JOINING = "joining"
    """Starting the program and downloading the state."""
    LEAVING = "leaving"
    """Computing of samples by peers that left before the update, and waiting for peers that vanished."""
    UNSHARED = "unshared"
    """Computing of samples that entered no shared update, because no group was found or its average timed out."""


class Accounts:
    """Peer-seconds by cause, between two instants."""

    def __init__(self):
        self.since = 0.0
        self.seconds = dict.fromkeys(Cause, 0.0)
        # Stretches that end in the future, since the counting may end before they do.
        self._ahead: list[tuple[Cause, float, float]] = []

    def begin(self, now: float) -> None:
        """Discards the time before `now`; time that was recorded in advance stays."""
        self.since = now
        self.seconds = dict.fromkeys(Cause, 0.0)
        ahead, self._ahead = self._ahead, []
        for cause, start, end in ahead:
            self.add(cause, start, end, now)

    def add(self, cause: Cause, start: float, end: float, now: float) -> None:
        """Records a stretch of one peer's time for a cause; it may lie in the future."""
        if end > max(start, self.since):
            self.seconds[cause] += end - max(start, self.since)
            if end > now:
                self._ahead.append((cause, start, end))

    def prune(self, now: float) -> None:
        """Adds up past stretches, which are then no longer stored one by one."""
        self._ahead = [stretch for stretch in self._ahead if stretch[2] > now]

    def end(self, now: float) -> None:
        """Discards the time after `now`."""
        for cause, start, end in self._ahead:
            if end > now:
                self.seconds[cause] -= end - max(start, now, self.since)
        self._ahead = []

    def shares(self) -> dict[str, float]:
        """Share of each cause in the time for which peers were present."""
        total = sum(self.seconds.values())
        return {str(cause): seconds / total if total else 0.0 for cause, seconds in self.seconds.items()}
