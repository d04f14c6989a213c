"""Settings in a recipe's `[monitor]` that decide which checkpoints are taken and kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from training.section import Count, Positive, Section


class CheckpointsConfig(Section):
    """Rules for when the monitor takes a checkpoint, and which checkpoints it keeps."""

    checkpoint_every_epochs: Positive = 100
    """Epochs between two checkpoints."""
    keep_last: Positive = 3
    """Number of the newest checkpoints that are kept."""
    keep_every_epochs: Count | None = None
    """Interval in epochs: the first checkpoint of each interval is kept as well, so that the run can go back to it.
    None: ten times checkpoint_every_epochs; 0: none is kept for this reason."""
    keep_best: Count = 1
    """Number of the checkpoints with the lowest loss that are kept as well."""
    disk_budget_gb: Annotated[float, Field(gt=0)] = 20.0
    """Most that all checkpoints may take on the monitor's disk, in GB (10^9 bytes). If it is exceeded, checkpoints that
    the run has gone back from are deleted first, then those kept by keep_every_epochs, the oldest before the others,
    then the best, then the last; never the newest. While a checkpoint is written, there are two, so the budget should
    have room for two."""
    max_loss_rise: Annotated[float, Field(ge=0)] = 2.0
    """Limit of the loss above which no checkpoint is taken, as a multiple of the loss before the last checkpoint and of
    the loss over the last 50 epochs (the loss must also be more than 1 above it): somebody may have spoiled the
    weights. 0: checkpoints are taken whatever the loss is."""

    @property
    def kept_every_epochs(self) -> int:
        """Epochs between two checkpoints that are kept by `keep_every_epochs`; 0: none is kept for this reason."""
        return 10 * self.checkpoint_every_epochs if self.keep_every_epochs is None else self.keep_every_epochs
