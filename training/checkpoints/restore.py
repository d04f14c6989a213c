"""Sends a run back to an earlier checkpoint: orders a new branch, which the servers announce and volunteers go over to.

The order is a file in the state folder of each server. A running server carries it out within seconds, a stopped server
when it starts. Only the monitor writes to its folder, so nothing of the run changes before the monitor obeys.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from training.checkpoints.checkpoint import (
    ancestors_of,
    latest_checkpoint,
    lineage_of,
    load_checkpoint,
)
from training.checkpoints.facts import check_has
from training.checkpoints.folders import STATE_FOLDER, checkpoint_epoch, list_checkpoints
from training.errors import BadInput
from training.processes.servers.only_one import STATE_LOCK_FILE, is_locked
from training.swarm.run.lineage import BRANCH_FILE, Lineage, LineageMessage, keep, read_kept

BOOTSTRAP_FOLDER = "bootstrap"
"""State folder of the bootstrap peer, within the run's, where `serve` and the demo have it."""


def order_restore(run_dir: Path, epoch: int, *, state_dirs: Sequence[Path] = ()) -> list[str]:
    """Orders the return to a checkpoint. Returns sentences for the maintainer.

    Args:
        run_dir: Folder of the monitor.
        epoch: Epoch of the checkpoint; 0: begin anew.
        state_dirs: State folders of bootstrap peers that should announce the branch, in addition to the bootstrap peer
            whose state folder lies within `run_dir`.

    Raises:
        BadInput: If there is no such checkpoint, it is damaged, or a folder is not that of a run with a lineage.
    """
    branch = check_restore(run_dir, epoch, state_dirs=state_dirs).branch(epoch)
    if read_kept(run_dir / BOOTSTRAP_FOLDER) is not None:
        state_dirs = dict.fromkeys((run_dir / BOOTSTRAP_FOLDER, *state_dirs))
    said = [
        f"The run goes back to epoch {epoch}, as the branch {branch.id}. What was trained after it is kept: the epochs "
        f"in the history, the checkpoints in {run_dir / 'branches'}."
    ]
    for name, folder in [("monitor", run_dir / STATE_FOLDER), *(("bootstrap peer", folder) for folder in state_dirs)]:
        folder.mkdir(parents=True, exist_ok=True)
        keep(folder, LineageMessage(lineage=branch, epoch=epoch), BRANCH_FILE)
        if is_locked(folder / STATE_LOCK_FILE):
            said.append(f"The {name} of {folder} is running and announces it within seconds.")
        else:
            said.append(f"The {name} of {folder} is not running; it announces it as soon as you start it.")
    if not state_dirs:
        said.append(
            "Volunteers who know only a bootstrap peer's address, not the site's or the monitor's, follow when that "
            "peer announces it: give its folder with --state-dir of `restore`, or --bootstrap-dir of `moderate`."
        )
    return said


def check_restore(run_dir: Path, epoch: int, *, state_dirs: Sequence[Path] = ()) -> Lineage:
    """Checks that a run can go back to an epoch; returns the lineage that it has now.

    Args:
        run_dir: Folder of the monitor.
        epoch: Epoch of the checkpoint; 0: begin anew.
        state_dirs: Further state folders that would get the order; see `order_restore`.

    Raises:
        BadInput: If there is no such checkpoint, it is damaged, or a folder is not that of a run with a lineage.
    """
    _check_checkpoint(run_dir, epoch)
    lineage = _lineage_of_run(run_dir)
    for folder in state_dirs:
        if read_kept(folder) is None:
            raise BadInput(
                f"{folder} is not the state folder of a bootstrap peer: it knows no lineage.",
                cure="Give the folder that the bootstrap peer has as --state-dir; start it once if it is new.",
            )
    return lineage


def _check_checkpoint(run_dir: Path, epoch: int) -> None:
    folder = run_dir / "checkpoints"
    check_has(folder, epoch)
    for path in list_checkpoints(folder):
        if checkpoint_epoch(path) == epoch:
            load_checkpoint(path, computes=False)


def _lineage_of_run(run_dir: Path) -> Lineage:
    kept = read_kept(run_dir / STATE_FOLDER)
    if kept is not None:
        return kept.lineage
    latest = latest_checkpoint(run_dir / "checkpoints")
    lineage = lineage_of(latest) if latest is not None else None
    if lineage is None:
        raise BadInput(
            f"{run_dir} does not say which lineage its run is.",
            cure="Start the monitor with this --run-dir once; it then keeps the lineage that it finds or begins.",
        )
    return Lineage(id=lineage, ancestors=ancestors_of(latest))
