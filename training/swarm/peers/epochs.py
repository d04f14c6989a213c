"""The end of an epoch at one peer, and the peer's report on it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from training.swarm.node.metrics import Missed
from training.swarm.peers.groups import RoundReport

MOST_BATCHES = 2
"""Most samples of one peer in an epoch, as a multiple of the target batch size of all peers together. Some more than
one batch come together if peers notice an epoch's end late."""


class Brought(NamedTuple):
    """Samples that a groupmate has brought to an average."""

    epoch: int
    """Epoch that the groupmate has finished with it."""
    samples: float | None
    """Number of samples; None if this peer averages no part, and so does not see it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochReport:
    """Report on the averaging of one epoch at this peer."""

    epoch: int
    """The epoch that begins now, which equals the number of finished updates."""
    samples: int
    """Samples that this peer contributed."""
    group_size: int
    """Number of peers in the gradients' group; 1 without a group."""
    senders: int
    """Number of peers whose gradients entered the update with a weight above zero; 0 if this peer made no update."""
    own_share: float | None
    """Share of this peer's own gradient in its update; 1 means that nothing was averaged."""
    update_samples: float | None
    """Samples of all peers in this peer's update; None if this peer reduces no part, so it does not see them."""
    others: int
    """Number of other peers known to train."""
    waiting_seconds: float
    """Time from when this peer was ready for the update to the start of the all-reduce."""
    averaging_seconds: float
    """Duration of the all-reduce."""
    bytes_sent: int
    """Bytes of averaged gradients, and of the parameters that were averaged in the background."""
    bytes_received: int
    fault: str | None
    """Reason why some or all gradients were not averaged; None if all were, or if there was no other peer."""
    note: str | None = None
    """Other unusual events, such as peers that were lost or left out."""
    brought: Mapping[str, Brought] = field(default_factory=dict)
    """Samples that each groupmate has brought to this peer's average, by peer id."""

    @property
    def alone(self) -> bool:
        """True if the peer updated with its own gradient alone although other peers were training."""
        return self.others > 0 and self.senders == 1

    @property
    def missed(self) -> bool:
        """True if the peer made no update, because the others went on without it."""
        return self.senders == 0

    @property
    def reason(self) -> Missed | None:
        """Reason why no average has samples of this peer; None if one has, or if no other peer trains."""
        if self.missed:
            return "late"
        if self.alone:
            return "unreachable"
        return "refused" if self.senders > 1 and not self.samples else None


@dataclass(kw_only=True, slots=True)
class EpochEnd:
    """Facts about the end of an epoch, from the last gradient to the average; filled in step by step."""

    epoch: int
    """The epoch that ends."""
    others: int
    """Number of other peers known to train."""
    samples: int = 0
    """Number of samples that this peer contributes."""
    began: float = field(default_factory=time.monotonic)
    round: RoundReport | None = None
    """Report on the average; None if there was none."""
    fault: str | None = None
    left_behind: bool = False
    """True if the others went on without this peer."""
    in_background: bool = False
    """True if this epoch's average runs while the next epoch computes."""
    notes: list[str] = field(default_factory=list)
    reports: Mapping[bytes, float] = field(default_factory=dict)
    """Samples of this epoch that each other peer should have by its reports, by peer id."""
    brought: Mapping[str, Brought] = field(default_factory=dict)
    """Samples that each groupmate has brought to the average, by peer id."""

    def report(self, background: Sequence[RoundReport]) -> EpochReport:
        """Makes the epoch's report from the facts known now.

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
            brought=self.brought,
        )
