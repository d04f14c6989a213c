"""The weights that a volunteer keeps as it leaves, so that all may leave, and come back while no server answers.

STATE_DIR/kept/epoch-000040     a checkpoint (see `training.checkpoints`); at most one
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from training.checkpoints.checkpoint import latest_checkpoint, lineage_of, save_checkpoint
from training.checkpoints.facts import read_facts
from training.checkpoints.folders import checkpoint_epoch, list_checkpoints
from training.errors import TrainingError
from training.model.trained import count_trained
from training.optim.saved import optimizer_tensors
from training.swarm.optimizer import SwarmOptimizer
from training.swarm.run.lineage import Lineage
from training.tasks.task import TrainedModel

MOST_PARAMETERS = 10**8
"""Largest model whose weights are kept: a peer that was asked to stop has ten seconds, in which it writes no more."""
BYTES_A_PARAMETER = 12
"""Bytes of weights and moments in float32; moments in 8 bit take less."""
MAY_DIFFER = "may_differ"
"""Among a checkpoint's facts: whether others that left at the same epoch may have kept other weights or moments."""
FREE_SHARE = 0.5
"""Largest share of the free space that is used."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptWeights:
    """Weights that one volunteer keeps."""

    folder: Path
    recipe_toml: str
    """The recipe's text; empty: nothing is kept."""
    shards: str
    """Folder or URL of the shards that it trains on."""
    codec_digest: str | None
    """Digest of the shards' codec; see `Checkpoint`."""

    def keep(self, optimizer: SwarmOptimizer, model: TrainedModel, lineage: Lineage) -> Path | None:
        """Writes the weights unless they are known to differ from those of the others; None if they do, or there is no
        room."""
        master, alignment = optimizer.master, optimizer.alignment
        is_the_runs = master.epoch > 0 and not (alignment.behind or alignment.drifted)
        if not (self.recipe_toml and is_the_runs):
            return None
        try:
            if not self._has_room(count_trained(model)):
                return None
            older = list_checkpoints(self.folder)
            with master.lock:
                master.copy_to_model()
                path = save_checkpoint(
                    self.folder,
                    model=model,
                    recipe_toml=self.recipe_toml,
                    epoch=master.epoch,
                    metrics={MAY_DIFFER: alignment.may_differ},
                    shards=self.shards,
                    codec_digest=self.codec_digest,
                    lineage=lineage,
                    extra_tensors=optimizer_tensors(master.optimizer),
                )
        except Exception:  # such as a full disk; the peer leaves in any case, and others have the weights, too
            return None
        for one in older:
            if one != path:
                shutil.rmtree(one, ignore_errors=True)
        return path

    def newest(self, lineage: Lineage) -> tuple[Path | None, int]:
        """The checkpoint that was kept of a lineage, and its epoch; None and 0 if there is none."""
        path = latest_checkpoint(self.folder)
        try:
            is_of_it = path is not None and lineage.has(lineage_of(path), checkpoint_epoch(path))
        except TrainingError:  # it is damaged
            is_of_it = False
        return (path, checkpoint_epoch(path)) if is_of_it else (None, 0)

    def may_differ(self, path: Path) -> bool:
        """Returns whether others that left at the same epoch may have kept other weights or moments."""
        return bool(read_facts(path)["metrics"].get(MAY_DIFFER))

    def _has_room(self, parameters: int) -> bool:
        free = shutil.disk_usage(self.folder.parent).free
        return parameters <= MOST_PARAMETERS and parameters * BYTES_A_PARAMETER <= FREE_SHARE * free
