"""The end of an epoch as a peer lives it, and what it reports of that."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from training.swarm.groups import RoundReport


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochReport:
    """How the averaging of one epoch went for this peer."""

    epoch: int
    """The epoch that begins, that is the number of updates done."""
    samples: int
    """Samples that this peer contributed."""
    group_size: int
    """Peers in the gradients' group; 1 without one."""
    senders: int
    """Peers whose gradients entered the update with weight; 0 if this peer made no update."""
    own_share: float | None
    """Share of this peer's own gradient in its update; 1 means that nothing was averaged."""
    update_samples: float | None
    """Samples of all peers in this peer's update; None if it averages no part itself, and so does not see them."""
    others: int
    """Other peers that were known to train."""
    waiting_seconds: float
    """From this peer's being ready for the update to the start of the average."""
    averaging_seconds: float
    """The average itself."""
    bytes_sent: int
    """Gradients, and parameters if they were averaged in the background."""
    bytes_received: int
    fault: str | None
    """Why the gradients were not averaged, or not all of them; None if they were or nobody else was there."""
    note: str | None = None
    """What else was out of the ordinary: which peers were lost, or left out."""

    @property
    def alone(self) -> bool:
        """Whether the peer took a step of its own although others were there."""
        return self.others > 0 and self.senders == 1

    @property
    def missed(self) -> bool:
        """Whether the peer made no update, because the others went on without it."""
        return self.senders == 0


@dataclass(kw_only=True, slots=True)
class EpochEnd:
    """What is known of the end of an epoch, from the last gradient to the average; filled as it goes on."""

    epoch: int
    """The epoch that ends."""
    others: int
    """Other peers that are known to train."""
    samples: int = 0
    """That this peer contributes."""
    began: float = field(default_factory=time.monotonic)
    round: RoundReport | None = None
    """The average, if there was one."""
    fault: str | None = None
    left_behind: bool = False
    """Whether the others went on without this peer."""
    in_background: bool = False
    """Whether its average runs while the next epoch computes."""
    notes: list[str] = field(default_factory=list)

    def report(self, background: Sequence[RoundReport]) -> EpochReport:
        """The report at this moment.

        Args:
            background: Rounds of parameters whose bytes were not told yet.
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
            fault=self.fault if self.others else None,
            note="; ".join(self.notes) or None,
        )
