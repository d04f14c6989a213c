"""How a newcomer obtains the run's current state, or learns that there is no run left to join."""

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
"""Pause between two attempts of a newcomer to download the run's weights."""


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
    """Loads the run's current state into model and optimizer; returns where the state came from.

    A peer joins a run that is under way only with the run's own weights. If the run ends, or all other peers leave,
    before this peer has downloaded them, it prints why and returns None.

    Args:
        optimizer: A new one, without any state.
        run: The recipe.
        early: A download of the run's state that has already begun.
        resume: Folder of checkpoints; this peer starts from the latest, unless the run is ahead of it.
        shards: Folder or URL of the shards that it will train on.
        stop: A request to stop ends the waiting.
        console: Prints what the peer waits for.

    Raises:
        BadInput: If the checkpoint cannot be read, or belongs to another recipe or codec.
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
        others = _look_for_others(optimizer, run)
        if others is None:
            continue
        if max(others.epoch, optimizer.progress.global_epoch) <= optimizer.local_epoch:
            return source
        if optimizer.load_state_from_peers(early):
            return "the state of another peer"
        if others.in_run:
            if not told:
                told = True
                console.print(f"The run is at epoch {others.epoch}; waiting for a peer that sends its weights.")
            stop.wait(LOOK_SECONDS)
        else:
            if path is None and others.epoch:
                console.print(_end_of_run(run, others.epoch))
                return None
            return source
    return source


@dataclass(frozen=True, kw_only=True, slots=True)
class _Others:
    """What the records of the other peers say about the run."""

    epoch: int = 0
    """The latest epoch that any of them has reached, including those that have just left."""
    in_run: bool = False
    """Whether at least one of them is still in the run."""


def _look_for_others(optimizer: SwarmOptimizer, run: RunConfig) -> _Others | None:
    """Reads the others' records; None if the DHT did not answer in time, so that nobody knows who is there."""
    own = str(optimizer.dht.peer_id)
    with suppress(TimeoutError):
        records = [record for record in read_records(optimizer.dht, run.run_id) if record.peer_id != own]
        return _Others(
            epoch=max((record.epoch for record in records if record.samples), default=0),
            in_run=any(record.status != "leaving" for record in records),
        )
    return None


def _end_of_run(run: RunConfig, epoch: int) -> str:
    """The message for a newcomer that arrives when the run has ended or all others have left."""
    if epoch >= run.schedule.total_epochs:
        return (
            f"The run {run.run_id} has reached its end: all of its {epoch} epochs are done, and there is nothing left "
            "to train. The run's page shows the result. Thank you for coming!"
        )
    return (
        f"The volunteers of {run.run_id} left at epoch {epoch}, before this peer had downloaded their weights, so it "
        "cannot continue the run. Anybody who has a checkpoint can: --resume FOLDER."
    )
