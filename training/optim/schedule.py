"""Learning rate over epochs: linear warm-up, then linear decay to zero (paper, section 3.3)."""

from __future__ import annotations

from training.optim.config import ScheduleConfig


def learning_rate_factor(epoch: int, config: ScheduleConfig) -> float:
    """Learning rate of the update that ends `epoch`, relative to the peak.

    The first update already changes the weights, the last one of the warm-up uses the peak, and from `total_epochs` on
    the weights stay unchanged.

    Args:
        epoch: Number of updates before this one.

    >>> config = ScheduleConfig(warmup_epochs=10, total_epochs=110)
    >>> [learning_rate_factor(epoch, config) for epoch in (0, 9, 10, 60, 110)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    if epoch < config.warmup_epochs:
        return (epoch + 1) / config.warmup_epochs
    return max(0.0, (config.total_epochs - epoch) / (config.total_epochs - config.warmup_epochs))
