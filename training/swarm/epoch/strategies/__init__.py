"""When the weights of a peer move, and what it exchanges with the others for that: one strategy a file.

`Strategy` is the interface. Another one is another file, a branch of `strategy_of`, and its setting in `SwarmConfig`.
"""

from training.swarm.epoch.strategies.awaited import Awaited
from training.swarm.epoch.strategies.delayed import Delayed
from training.swarm.epoch.strategies.local_updates import LocalUpdates
from training.swarm.epoch.strategies.strategy import Parts, Strategy

__all__ = ["Awaited", "Delayed", "LocalUpdates", "Parts", "Strategy", "strategy_of"]


def strategy_of(swarm: object) -> type[Strategy]:
    """The strategy that a recipe's `[swarm]` asks for."""
    if swarm.mode == "diloco":
        return LocalUpdates
    return Delayed if swarm.delay_gradient_averaging else Awaited
