"""The learning rate over epochs: linear warm-up, then a linear fall to zero (paper, section 3.3)."""

from __future__ import annotations

from training.config import ScheduleConfig


def learning_rate_factor(epoch: int, config: ScheduleConfig) -> float:
    """Learning rate of the update that ends `epoch`, as a share of the peak.

    The first update already moves the weights, the last one of the warm-up uses the peak, and from `total_epochs` on
    nothing moves.

    Args:
        epoch: Updates done before this one, from 0.

    >>> config = ScheduleConfig(warmup_epochs=10, total_epochs=110)
    >>> [learning_rate_factor(epoch, config) for epoch in (0, 9, 10, 60, 110)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    if epoch < config.warmup_epochs:
        return (epoch + 1) / config.warmup_epochs
    return max(0.0, (config.total_epochs - epoch) / (config.total_epochs - config.warmup_epochs))
