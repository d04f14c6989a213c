"""The fields of a recipe's `[monitor]` that decide which checkpoints are taken and kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from training.section import Count, Positive, Section


class CheckpointsConfig(Section):
    """When a checkpoint is taken, and which are kept."""

    checkpoint_every_epochs: Positive = 100
    """Epochs between two checkpoints."""
    keep_last: Positive = 3
    """This many of the newest checkpoints are kept."""
    keep_every_epochs: Count | None = None
    """Of each so many epochs, the first checkpoint is kept as well, so that the run can go back to it. None: ten times
    checkpoint_every_epochs; 0: none is kept for this."""
    keep_best: Count = 1
    """This many of the checkpoints with the lowest loss are kept as well."""
    disk_budget_gb: Annotated[float, Field(gt=0)] = 20.0
    """Most that all checkpoints may take on the monitor's disk, in GB (10^9 bytes). If it is exceeded, those that the
    run has gone back from go first, then those kept by keep_every_epochs, the oldest before the others, then the best,
    then the last; never the newest. While a checkpoint is written, there are two, so the budget should have room for
    two."""
    max_loss_rise: Annotated[float, Field(ge=0)] = 2.0
    """No checkpoint is taken while the run's loss is more than so many times what it was before the last checkpoint, or
    over the last 50 epochs (and more than 1 above it): somebody may have spoiled the weights. 0: checkpoints are taken
    whatever the loss is."""

    @property
    def kept_every_epochs(self) -> int:
        """`keep_every_epochs` as it applies; 0: no checkpoint is kept for this."""
        return 10 * self.checkpoint_every_epochs if self.keep_every_epochs is None else self.keep_every_epochs
