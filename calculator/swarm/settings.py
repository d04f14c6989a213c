"""The defaults of the exchange between peers, each stated only here.

The trainer's recipes (`training.recipe`), the forecast (`calculator.swarm.forecast`), a collaboration in people's words
(`calculator.swarm.collaboration`) and the run designer all take them from here.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPRESSION_THRESHOLD = 65_536
"""Tensors with fewer values are sent in 16 bits where large ones take 8 (paper, section 3.3)."""
REQUEST_TIMEOUT_SECONDS = 3.0
"""Longest wait for another peer's answer."""
AVERAGING_TIMEOUT_SECONDS = 180.0
"""Longest averaging, the search for a group included."""
MIN_GROUP_SIZE = 2
"""Fewest peers that average together."""
INNER_BATCH_SIZE = 32
"""Samples of one update between exchanges of local updates."""
EPOCHS_ALONE, METRICS_SECONDS = 10, 10.0
"""Epochs after which a lone volunteer waits for others, and longest interval between two reports of a volunteer."""
BATCH_OF_2021, EPOCHS_OF_2021, LEARNING_RATE_OF_2021 = 16_384, 31_250, 2.5e-3
"""Samples of an update, updates in all, and rate at the end of the warm-up (paper, section 3.3)."""
SPARSE_STATES_EVERY = 100
"""Least `average_state_every` with `mode = "sparse"`. Between two peers, a value takes 16 bits in an average of the
parameters and 0.23 in an exchange."""
LOCAL_MODES = ("diloco", "sparse")
"""Modes in which peers train on their own between exchanges."""
MODES = ("synchronous", "delayed", *LOCAL_MODES)
"""Ways to exchange, among which a recipe chooses (training/swarm/config.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExchangeSettings:
    """The settings of a recipe's `[swarm]` that decide how long an epoch takes.

    `training.swarm.config.SwarmConfig` explains each.
    """

    gradient_codec: str = "blockwise8"
    state_bits: int = 8
    average_state_every: int = 1
    matchmaking_seconds: float = 15.0
    allreduce_timeout_seconds: float = 60.0
    next_chunk_timeout_seconds: float = 10.0
    """How long a peer whose link is too slow for its group delays the others; also one that vanishes, if it accepts no
    connections."""
    max_group_size: int = 256
    mode: str = "synchronous"
    """One of `MODES`."""
    sparse_kept: int = 100
    """Values of each 4096 that a peer sends (`mode = "sparse"`)."""
    delay_outer_step: bool = False
    """True if peers train on during the exchange (`mode = "diloco"` or `"sparse"`)."""
    declared_links: bool = False
    """True if all peers declare their bandwidth, so that hivemind balances parts by it. The trainer's peers declare the
    value of `join --max-upload`, or the one that they measured while downloading the state; no recipe sets it."""

    @property
    def is_delayed(self) -> bool:
        """True if an exchange runs while the next epoch computes."""
        return self.mode == "delayed" or (self.local_updates and self.delay_outer_step)

    @property
    def local_updates(self) -> bool:
        """True if peers train on their own between exchanges."""
        return self.mode in LOCAL_MODES


DEFAULTS = ExchangeSettings()
