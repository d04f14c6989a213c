"""What a peer reports of each epoch that has ended."""

from __future__ import annotations

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
    """Gradients, and parameters where they were averaged in the background."""
    bytes_received: int
    fault: str | None
    """Why the gradients were not averaged, or not all of them; None if they were or nobody else was there."""
    note: str | None = None
    """What else was out of the ordinary: who was lost, or left out."""

    @property
    def alone(self) -> bool:
        """Whether the peer took a step of its own although others were there."""
        return self.others > 0 and self.senders == 1

    @property
    def missed(self) -> bool:
        """Whether the peer made no update, because the others went on without it."""
        return self.senders == 0


@dataclass(kw_only=True, slots=True)
class Ending:
    """The end of an epoch, from the gradients' being ready to the update; in the background if it is delayed."""

    epoch: int
    """The epoch that ends."""
    samples: int
    others: int
    began: float
    report: RoundReport | None = None
    fault: str | None = None
    left_behind: bool = False
    in_background: bool = False
    """Whether its average runs while the next epoch computes."""
    notes: list[str] = field(default_factory=list)
