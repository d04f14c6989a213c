"""How a newcomer comes to where the run is, or learns that there is nowhere to go."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from training.checkpoints.checkpoint import check_codec, latest_checkpoint, load_checkpoint
from training.config import RunConfig
from training.data.stream import open_manifest
from training.processes.role import StopRequest
from training.swarm.early import EarlyDownload
from training.swarm.metrics import read_records
from training.swarm.optimizer import SwarmOptimizer

LOOK_SECONDS = 1.0
"""A newcomer that needs the run's weights asks again so often."""


def arrive(
    optimizer: SwarmOptimizer,
    run: RunConfig,
    *,
    early: EarlyDownload | None = None,
    resume: Path | None,
    shards: str,
    stop: StopRequest,
    console: Console,
) -> str | None:
    """Brings model and optimizer to where the run is; where the state came from.

    A run that is under way is joined with its own weights or not at all: None, after a word on it, if the run ends or
    all others leave before this peer has got them.

    Args:
        optimizer: As it was made.
        run: The recipe.
        early: A download of the run's state that was begun before.
        resume: Folder of checkpoints; the latest one is where this peer starts, unless the run is further.
        shards: Folder or URL of what it will train on.
        stop: Ends the waiting.
        console: Told what is waited for.

    Raises:
        BadInput: If the checkpoint cannot be read, or is of another recipe or codec.
    """
    source = "fresh weights"
    path = latest_checkpoint(resume) if resume is not None else None
    if path is not None:
        checkpoint = load_checkpoint(path, recipe=run)
        if checkpoint.codec_digest is not None:
            check_codec(path, checkpoint.codec_digest, shards=shards, found=open_manifest(shards).codec_digest)
        optimizer.load_checkpoint(checkpoint.model, checkpoint.extra_tensors, checkpoint.epoch)
        source = f"the checkpoint {path.name}"
    told = False
    while not stop.asked:
        standing = _standing_of_others(optimizer, run)
        if standing is None:
            continue
        if max(standing.epoch, optimizer.progress.global_epoch) <= optimizer.local_epoch:
            return source
        if optimizer.load_state_from_peers(early):
            return "the state of another peer"
        if standing.there:
            if not told:
                told = True
                console.print(f"The run is at epoch {standing.epoch}; waiting for a peer that gives its weights.")
            stop.wait(LOOK_SECONDS)
        else:
            if path is None and standing.epoch:
                console.print(_end_of_run(run, standing.epoch))
                return None
            return source
    return source


@dataclass(frozen=True, kw_only=True, slots=True)
class _OthersStanding:
    """What the records of a run's peers tell."""

    epoch: int = 0
    """The furthest that one has come; those who have just left count."""
    there: bool = False
    """Whether one has not left."""


def _standing_of_others(optimizer: SwarmOptimizer, run: RunConfig) -> _OthersStanding | None:
    """None if the network has not answered in some seconds, which says nothing of who is there."""
    own = str(optimizer.dht.peer_id)
    with suppress(TimeoutError):
        others = [record for record in read_records(optimizer.dht, run.run_id) if record.peer_id != own]
        return _OthersStanding(
            epoch=max((record.epoch for record in others if record.samples), default=0),
            there=any(record.status != "leaving" for record in others),
        )
    return None


def _end_of_run(run: RunConfig, epoch: int) -> str:
    """What to say to one who comes as the others go."""
    if epoch >= run.schedule.total_epochs:
        return (
            f"The run {run.run_id} has reached its end: all of its {epoch} epochs are done, and there is nothing left "
            "to train. Its result is where the run is shown. Thank you for coming!"
        )
    return (
        f"The volunteers of {run.run_id} have left at epoch {epoch}, before this peer had their weights, so it has "
        "nothing to go on from. Somebody who has a checkpoint can go on with it: --resume FOLDER."
    )
