"""When the weights of a peer move, and what it exchanges with the others for that: one strategy a file.

`Strategy` is the interface. Another one is another file, an entry of `strategy_of`, and a `mode` in `SwarmConfig`.
"""

from training.swarm.epoch.strategies.awaited import Awaited
from training.swarm.epoch.strategies.delayed import Delayed
from training.swarm.epoch.strategies.local_updates import LocalUpdates
from training.swarm.epoch.strategies.strategy import Parts, Strategy

__all__ = ["Awaited", "Delayed", "LocalUpdates", "Parts", "Strategy", "strategy_of"]


def strategy_of(swarm: object) -> type[Strategy]:
    """The strategy that a recipe's `[swarm]` asks for."""
    return {"synchronous": Awaited, "delayed": Delayed, "diloco": LocalUpdates}[swarm.mode]
