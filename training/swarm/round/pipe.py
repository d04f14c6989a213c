"""Messages between the trainer and an averager's process.

trainer (`averager`)                      averager's process (`service`)
begin_round()    -- Begin ------------->  looks for a group without the peers that `peers.table` leaves out
round.start()    -- Start ------------->  averages with the group, as soon as it has one
round.expect_fewer() -- Fewer --------->  waits for fewer peers
round.cancel()   -- Cancel ------------>  gives the round up
round.stage      <- Reached ------------
round.result()   <- Ended --------------  the group that has averaged, or why there is none
peers.spoiled()  <- Caught -------------  a peer has lied as a reducer, or evades checks
offer_state()    -- Offer ------------->  tells the DHT that newcomers can download the state here
give             <- Wanted ------------  another peer asks for something that the trainer has: its state
                 -- Given ------------->
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from hivemind.compression import CompressionBase, NoCompression

from calculator.swarm.settings import REQUEST_TIMEOUT_SECONDS
from training.swarm.engine.process import DHT
from training.swarm.peers.groups import AveragedGroup, Contribution
from training.swarm.round.guard import MakeGuard
from training.swarm.round.reducer import Reduction, WeightedMean


@dataclass(frozen=True, kw_only=True)
class AveragerSettings:
    """Settings of an averager: matchmaking, time limits, codec and reduction."""

    prefix: str
    """Beginning of the averager's keys in the DHT and of the names of its calls; equal for all peers of a run."""
    matchmaking_seconds: float = 5.0
    """Length of a window of matchmaking."""
    request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS
    """Longest wait for a leader's answer; shorter than the window."""
    allreduce_timeout_seconds: float | None = None
    """Longest all-reduce with all its repetitions; None: no limit."""
    next_chunk_timeout_seconds: float | None = None
    """Longest silence of a sender; a reducer may be silent for twice this time. None: no limit."""
    epochs_apart: int = 0
    """Epochs by which a group's peers may differ; see `Strategy.epochs_apart`."""
    client_mode: bool = False
    """True if this peer accepts no connections."""
    compression: CompressionBase = field(default_factory=NoCompression)
    """Codec of the tensors."""
    part_bytes: int | None = None
    """Bytes of a part; None: chosen by the tensors' size."""
    round_own_parts: bool = False
    """True to round this peer's own parts too; see `allreduce.Travel`."""
    reduction: Reduction = field(default_factory=WeightedMean)
    """Rule that averages the parts of several peers."""
    guard: MakeGuard | None = None
    """Makes, in the averager's process, the guard that watches the all-reduces; None: no guard."""


class Stage(IntEnum):
    """Stage of a round."""

    SEARCHING = 0
    """The round has no group yet."""
    WAITING = 1
    """The round has a group, and waits until the trainer lets it average."""
    AWAITED = 2
    """The round waits for the trainer, and most of its group average already."""
    AVERAGING = 3
    ENDED = 4


@dataclass(frozen=True, slots=True)
class Begin:
    """Order of the trainer to begin a round."""

    number: int
    """Number of the round in later messages."""
    packed: bytes
    """Message for the group: a packed `gathering.GroupMessage`."""
    seconds: float
    """Seconds after which the round begins no new search for a group."""
    expected_peers: int
    """Number of peers that the group should have; 0: unknown."""
    left_out: frozenset[bytes] = frozenset()
    """Ids of peers that this peer neither leads nor follows."""


@dataclass(frozen=True, slots=True)
class Start:
    """Order of the trainer to average; it has written its tensors."""

    number: int
    contribution: Contribution


@dataclass(frozen=True, slots=True)
class Fewer:
    """Notice of the trainer that some expected peers are gone, or back."""

    number: int
    gone: int
    """Number of peers that are gone; negative if peers are back."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Order of the trainer to give a round up."""

    number: int


@dataclass(frozen=True, slots=True)
class Offer:
    """Offer of the state to newcomers, with the priority that the DHT shows; None: no offer."""

    priority: float | None


@dataclass(frozen=True, slots=True)
class Given:
    """Answer of the trainer to `Wanted`; see `Donor`. Its `answer` is None if the trainer has none."""

    number: int
    answer: object | None


@dataclass(frozen=True, slots=True)
class Ready:
    """Notice of the averager's process that it serves; otherwise, `fault` says why it does not."""

    fault: str | None


@dataclass(frozen=True, slots=True)
class Reached:
    """Notice of the averager's process that a round has come to a stage."""

    number: int
    stage: Stage


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a round; otherwise, `fault` says why there is none."""

    number: int
    group: AveragedGroup | None
    fault: str = ""
    spoiled_by: Mapping[str, float] = field(default_factory=dict)
    """Peers that have wasted the time of the round's groups, each with a weight; groups that failed count too. See
    `rounds.spoilers`."""


@dataclass(frozen=True, slots=True)
class Caught:
    """Notice of the averager's process that a peer has lied as a reducer, or evades checks of reducers."""

    peer: str
    weight: float
    """Weight among the peer's faults."""
    deed: str
    """Beginning of a sentence on the peer, such as "has ..., and"."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Request of another peer for something that the trainer has; see `Donor`."""

    number: int
    what: object


class Donor(Protocol):
    """Answers other peers in the averager's process with data of the trainer; also a `ServicerBase`."""

    def offer(self, priority: float | None) -> None:
        """Offers the data to other peers from now on, with this priority; None: no longer."""

    def take(self, number: int, answer: object | None) -> None:
        """Takes the trainer's answer to the request of this number; None: the trainer has none."""


MakeDonor = Callable[[DHT, str, Callable[[int, object], None]], Donor]
"""Makes a donor from the node, the averager's prefix, and a function that passes a numbered request to the trainer."""
