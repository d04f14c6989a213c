"""Kept weights: a volunteer saves them during training and when it leaves, so that a run survives a power cut of all.

STATE_DIR/kept/epoch-000040     a checkpoint (see `training.checkpoints`); at most one
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from training.checkpoints.checkpoint import latest_checkpoint, lineage_of, save_checkpoint
from training.checkpoints.facts import read_facts
from training.checkpoints.folders import checkpoint_epoch, list_checkpoints
from training.errors import TrainingError
from training.model.trained import count_trained, trained_state
from training.optim.saved import optimizer_tensors
from training.swarm.optimizer import SwarmOptimizer
from training.swarm.run.lineage import Lineage
from training.swarm.state.master_weights import MasterWeights
from training.tasks.task import TrainedModel

MOST_PARAMETERS = 10**8
"""Number of parameters of the largest model whose weights are written when the volunteer leaves: a peer that was asked
to stop has ten seconds, which do not suffice for more."""
BYTES_A_PARAMETER = 12
"""Bytes of a parameter's weights and moments in float32; moments in 8 bits take less."""
MAY_DIFFER = "may_differ"
"""Key of a checkpoint's fact: whether others that left at this epoch may have kept other weights or moments."""
FREE_SHARE = 0.5
"""Largest share of the free space that is used."""
EVERY_SECONDS = 600.0
"""Seconds between two writings during training; a power cut costs no more of the run's work than this."""
WRITING_SHARE = 0.02
"""Largest share of its time in which a peer writes; on a slow disk, the pauses are longer for this reason."""
LEAVING_SECONDS = 5.0
"""Longest wait of a leaving peer for a writing under way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptWeights:
    """Weights of the run in the folder of one volunteer, who keeps them."""

    folder: Path
    recipe_toml: str
    """Text of the recipe; empty: no weights are kept."""
    shards: str
    """Folder or URL of the shards on which the volunteer trains."""
    codec_digest: str | None
    """Digest of the shards' codec; see `Checkpoint`."""

    def keep(self, optimizer: SwarmOptimizer, model: TrainedModel, lineage: Lineage) -> Path | None:
        """Writes the weights and returns the checkpoint's path.

        Returns None, and writes nothing, if they are known to differ from those of the others, or there is no room.

        Holds the lock of the master weights while it copies them, but not while it writes: training goes on meanwhile.
        """
        master, alignment = optimizer.master, optimizer.alignment
        try:
            if not (self.recipe_toml and self._has_room(count_trained(model))):
                return None
            with master.lock:
                if not self.is_the_runs(optimizer):
                    return None
                epoch, may_differ = master.epoch, alignment.may_differ
                weights = _copies(master, model)
                moments = {name: one.detach().clone() for name, one in optimizer_tensors(master.optimizer).items()}
            older = list_checkpoints(self.folder)
            path = save_checkpoint(
                self.folder,
                model=model,
                weights=weights,
                recipe_toml=self.recipe_toml,
                epoch=epoch,
                metrics={MAY_DIFFER: may_differ},
                shards=self.shards,
                codec_digest=self.codec_digest,
                lineage=lineage,
                extra_tensors=moments,
            )
        except Exception:  # such as a full disk; the peer goes on in any case, and others have the weights, too
            return None
        for one in older:
            if one != path:
                shutil.rmtree(one, ignore_errors=True)
        return path

    @staticmethod
    def is_the_runs(optimizer: SwarmOptimizer) -> bool:
        """Returns True if a peer's weights have an update and equal those of the others, as far as the peer knows."""
        alignment = optimizer.alignment
        return optimizer.master.epoch > 0 and not (alignment.behind or alignment.drifted)

    def newest(self, lineage: Lineage) -> tuple[Path | None, int]:
        """Returns the kept checkpoint of a lineage, and its epoch; None and 0 if there is none.

        Weights older than those with which a branch began do not count: with them the branch would lose updates that
        the maintainer wants.
        """
        path = latest_checkpoint(self.folder)
        epoch = checkpoint_epoch(path) if path is not None else 0
        try:
            is_of_it = path is not None and epoch >= lineage.first_epoch and lineage.has(lineage_of(path), epoch)
        except TrainingError:  # it is damaged
            is_of_it = False
        return (path, epoch) if is_of_it else (None, 0)

    def may_differ(self, path: Path) -> bool:
        """Returns True if others that left at the checkpoint's epoch may have kept other weights or moments."""
        return bool(read_facts(path)["metrics"].get(MAY_DIFFER))

    def _has_room(self, parameters: int) -> bool:
        free = shutil.disk_usage(self.folder.parent).free
        return parameters * BYTES_A_PARAMETER <= FREE_SHARE * free


class Keeping:
    """Keeps a volunteer's weights at intervals while it trains, and once more when it leaves.

    A thread writes; it begins after the first epoch, and then every `EVERY_SECONDS`.

    Args:
        kept: Weights to write, and their folder.
        clock: Returns seconds.
    """

    def __init__(self, kept: KeptWeights, *, clock: Callable[[], float] = time.monotonic):
        self._kept, self._clock = kept, clock
        self._due = -math.inf
        self._writing: threading.Thread | None = None

    def look(self, optimizer: SwarmOptimizer, model: TrainedModel, lineage: Lineage) -> None:
        """Begins to write if it is time; call it when an epoch has ended.

        Weights that are not the run's are not written, and the next call looks again.
        """
        is_busy = self._writing is not None and self._writing.is_alive()
        if is_busy or self._clock() < self._due or not self._kept.is_the_runs(optimizer):
            return
        self._writing = threading.Thread(
            target=self._write, args=(optimizer, model, lineage), daemon=True, name="keeping"
        )
        self._writing.start()

    def leave(self, optimizer: SwarmOptimizer, model: TrainedModel, lineage: Lineage) -> None:
        """Writes the last weights, if that takes no longer than a leaving peer has."""
        self.finish(LEAVING_SECONDS)
        is_busy = self._writing is not None and self._writing.is_alive()
        if not is_busy and count_trained(model) <= MOST_PARAMETERS:
            self._kept.keep(optimizer, model, lineage)

    def finish(self, seconds: float | None = None) -> None:
        """Waits for a writing under way, up to `seconds`; None: without a limit."""
        if self._writing is not None:
            self._writing.join(seconds)

    def _write(self, optimizer: SwarmOptimizer, model: TrainedModel, lineage: Lineage) -> None:
        began = self._clock()
        self._kept.keep(optimizer, model, lineage)
        ended = self._clock()
        self._due = ended + max(EVERY_SECONDS, (ended - began) * (1 / WRITING_SHARE - 1))


def _copies(master: MasterWeights, model: TrainedModel) -> dict[str, Tensor]:
    """Returns the result of the model's `trained_state` as if it had the master weights; a shared weight is copied
    once."""
    masters = {id(own): copy for own, copy in zip(master.model_parameters, master.parameters, strict=True)}
    named = dict(model.named_parameters(remove_duplicate=False))
    copies: dict[int, Tensor] = {}
    state = trained_state(model)
    for name, own in state.items():
        key = id(named.get(name, own))
        if key not in copies:
            copies[key] = masters.get(key, own).detach().to(device="cpu", dtype=own.dtype, copy=True)
        state[name] = copies[key]
    return state
