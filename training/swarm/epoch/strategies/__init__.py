"""Strategies: when a peer's weights change, and what it exchanges with other peers for that. Each has a file.

`Strategy` is the interface. A new strategy needs a file, an entry in `strategy_of`, and a `mode` in `SwarmConfig`.
"""

from training.swarm.epoch.strategies.awaited import Awaited
from training.swarm.epoch.strategies.delayed import Delayed
from training.swarm.epoch.strategies.local_updates import LocalUpdates
from training.swarm.epoch.strategies.overlapped import OverlappedSparse, OverlappedUpdates
from training.swarm.epoch.strategies.sparse import SparseUpdates
from training.swarm.epoch.strategies.strategy import Parts, Strategy

__all__ = [
    "Awaited",
    "Delayed",
    "LocalUpdates",
    "OverlappedSparse",
    "OverlappedUpdates",
    "Parts",
    "SparseUpdates",
    "Strategy",
    "strategy_of",
]


def strategy_of(swarm: object) -> type[Strategy]:
    """Returns the strategy for a recipe's `[swarm]`."""
    if swarm.delay_outer_step:
        return {"diloco": OverlappedUpdates, "sparse": OverlappedSparse}[swarm.mode]
    strategies = {"synchronous": Awaited, "delayed": Delayed, "diloco": LocalUpdates, "sparse": SparseUpdates}
    return strategies[swarm.mode]
