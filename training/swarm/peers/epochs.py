"""The end of an epoch at one peer, and the peer's report on it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from training.swarm.peers.groups import RoundReport

MOST_BATCHES = 2
"""Samples that one peer can have in an epoch, in batches of all peers together. Some more than one batch come together
where peers notice an epoch's end late."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochReport:
    """Report on the averaging of one epoch at this peer."""

    epoch: int
    """The epoch that begins now, which equals the number of updates done."""
    samples: int
    """Samples that this peer contributed."""
    group_size: int
    """Peers in the gradients' group; 1 without one."""
    senders: int
    """Peers whose gradients entered the update with a weight above zero; 0 if this peer made no update."""
    own_share: float | None
    """Share of this peer's own gradient in its update; 1 means that nothing was averaged."""
    update_samples: float | None
    """Samples of all peers in this peer's update; None if this peer reduces no part, so it does not see them."""
    others: int
    """Other peers known to be training."""
    waiting_seconds: float
    """Time from when this peer was ready for the update to the start of the all-reduce."""
    averaging_seconds: float
    """Duration of the all-reduce."""
    bytes_sent: int
    """Bytes of gradients, and of parameters that were averaged in the background."""
    bytes_received: int
    fault: str | None
    """Why the gradients were not averaged, or not all of them; None if they were or nobody else was there."""
    note: str | None = None
    """Anything else unusual, such as peers that were lost or left out."""

    @property
    def alone(self) -> bool:
        """True if the peer updated with its own gradient only, although other peers were training."""
        return self.others > 0 and self.senders == 1

    @property
    def missed(self) -> bool:
        """True if the peer made no update, because the others went on without it."""
        return self.senders == 0


@dataclass(kw_only=True, slots=True)
class EpochEnd:
    """Facts about the end of an epoch, from the last gradient to the average; filled in step by step."""

    epoch: int
    """The epoch that ends."""
    others: int
    """Other peers known to be training."""
    samples: int = 0
    """Samples that this peer contributes."""
    began: float = field(default_factory=time.monotonic)
    round: RoundReport | None = None
    """The average, if there was one."""
    fault: str | None = None
    left_behind: bool = False
    """True if the others went on without this peer."""
    in_background: bool = False
    """True if its average runs while the next epoch computes."""
    notes: list[str] = field(default_factory=list)
    reports: Mapping[bytes, float] = field(default_factory=dict)
    """Samples of this epoch that each of the others should have by its reports."""

    def report(self, background: Sequence[RoundReport]) -> EpochReport:
        """The report at this moment.

        Args:
            background: Rounds of parameters whose bytes were not reported yet.
        """
        round_ = self.round
        averaging = round_.seconds if round_ else 0.0
        rounds = [one for one in (round_, *background) if one]
        return EpochReport(
            epoch=self.epoch + (not self.left_behind),
            samples=0 if self.left_behind else self.samples,
            group_size=round_.group_size if round_ else 1,
            senders=round_.senders if round_ else 1 - self.left_behind,
            own_share=round_.own_share if round_ else 1.0,
            update_samples=round_.weight if round_ else (None if self.left_behind else self.samples),
            others=self.others,
            waiting_seconds=max(time.monotonic() - self.began - averaging, 0.0),
            averaging_seconds=averaging,
            bytes_sent=sum(one.bytes_sent for one in rounds),
            bytes_received=sum(one.bytes_received for one in rounds),
            fault=self.fault if self.others else None,  # a peer that trains alone misses no average
            note="; ".join(self.notes) or None,
        )
