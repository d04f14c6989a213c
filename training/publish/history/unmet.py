"""Volunteers who average with nobody although others train, by the totals in their records.

Such volunteers cannot reach the others, for example because no server relays for them, so they train models of their
own. Their epochs may stay close to the others' epochs, so `training.publish.history.run_state.groups_of` does not find
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # pages read a history where hivemind is not installed
    from training.swarm.node.metrics import PeerRecord

UNMET_EPOCHS = 5
"""Number of epochs in a row that a volunteer must end alone to count as unmet; fewer happen when it misses a group."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Totals of a volunteer at its last known average, or at the first observation if there was no average since."""

    at: float
    averaged: int
    alone: int
    has_averaged: bool


class Unmet:
    """Compares the totals of volunteers' records over time."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def saw(self, records: Sequence[PeerRecord], *, now: float, seconds: float) -> frozenset[str]:
        """Compares new records with earlier ones. Returns the ids of volunteers who average with nobody.

        A volunteer is listed after `seconds` and `UNMET_EPOCHS` epochs without an average.

        A volunteer whose last companion was killed also ends some epochs alone. It is not listed, unless others have
        averaged meanwhile, or all volunteers average with nobody.
        """
        known, self._known = self._known, {}
        training = [record for record in records if record.status == "training"]
        for record in training:
            before = known.get(record.peer_id)
            if before is None or record.averaged_epochs != before.averaged or record.alone_epochs < before.alone:
                has_averaged = before is not None and record.averaged_epochs > before.averaged
                before = _Known(now, record.averaged_epochs, record.alone_epochs, has_averaged)
            self._known[record.peer_id] = before
        alone = {
            record.peer_id
            for record in training
            if now - self._known[record.peer_id].at >= seconds
            and record.alone_epochs - self._known[record.peer_id].alone >= UNMET_EPOCHS
        }
        if len(alone) == len(training):
            return frozenset(alone if len(alone) > 1 else ())
        others = [one for peer_id, one in self._known.items() if peer_id not in alone and one.has_averaged]
        return frozenset(peer_id for peer_id in alone if any(one.at > self._known[peer_id].at for one in others))
