"""Taking of a run's checkpoints: downloads the peers' state as a newcomer would, inspects it, and stores it.

A bad state is not stored (`training.checkpoints.sanity`): the next donor is asked, and the monitor reports the donor of
the bad one. Checkpoints that the recipe no longer keeps are deleted (`training.checkpoints.retention`). If the disk is
full, nothing is written until there is room.
"""

from __future__ import annotations

import errno
import math
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from training.checkpoints.branches import set_aside
from training.checkpoints.checkpoint import checkpoint_epoch, latest_checkpoint, save_checkpoint
from training.checkpoints.retention import GB, delete_from_branches, delete_surplus, stored_checkpoints
from training.checkpoints.sanity import WINDOW, Norms, loss_fault, norms_of_latest
from training.errors import TrainingError, reason_of
from training.optim.saved import optimizer_tensors
from training.processes.events import EventLog
from training.recipe import RunConfig
from training.storage.whole import delete_drafts, reserve_space
from training.swarm.engine.quoted import quoted
from training.swarm.epoch.strategies import strategy_of
from training.swarm.node.dht import DHT
from training.swarm.run.lineage import Lineage, run_prefix
from training.swarm.state.download import BadState, TrainingState, download_state
from training.swarm.state.master_weights import initialize_state, load_optimizer_state
from training.tasks.known import task_of

STATE_BYTES_PER_PARAMETER, STATE_BYTES = 16, 64 << 20
"""Largest accepted state: bytes per parameter, and bytes on top. Weights and moments in float32 take 12 each."""
EPOCHS_AHEAD = 10
"""Most epochs by which a state may be ahead of the history, which is slightly late."""
RESERVE_SHARE, MOST_RESERVE_BYTES = 0.02, GB
"""Share of the disk, and most bytes, that stay free of checkpoints, so that the history can grow."""


class RunHistory(Protocol):
    """The part of a run's history that a `Saver` uses; `training.publish.history.history.History` has it."""

    def last_epoch(self) -> dict | None: ...

    def epoch_losses(self, last: int, *, until: int | None = None) -> list[float]: ...

    def total_samples(self) -> int: ...

    def add_event(self, kind: str, name: str, text: str) -> None: ...


class NoRoom(TrainingError):
    """The disk has no room for another checkpoint."""


class NotGood(TrainingError):
    """The state of the run may not become a checkpoint now."""


class Saver:
    """Takes checkpoints into `run_dir/checkpoints`.

    Args:
        run: Recipe of the run.
        recipe_toml: Text of the recipe, which goes into each checkpoint.
        run_dir: Folder of the run.
        shards: Folder or URL of the shards.
        codec_digest: Digest of the codec whose tokens the run trains on.
        dht: A running DHT node.
        history: History with the run's epochs and losses; it gets an event for each checkpoint and each bad state.
        events: Event log of the monitor.
        saved: Called with each new checkpoint's folder.
    """

    def __init__(
        self,
        run: RunConfig,
        recipe_toml: str,
        *,
        run_dir: Path,
        shards: str,
        codec_digest: str | None,
        dht: DHT,
        history: RunHistory,
        events: EventLog,
        saved: Callable[[Path], None] = lambda path: None,
    ):
        self._run, self._recipe_toml, self._shards, self._codec_digest = run, recipe_toml, shards, codec_digest
        self._dht, self._history, self._events, self._saved = dht, history, events, saved
        self.folder = run_dir / "checkpoints"
        self._model = task_of(run).build_trained_part()
        strategy = strategy_of(run.swarm)
        # The donors' optimizer, whose state comes with the weights.
        self._optimizer = strategy.make_optimizer(strategy.groups(self._model, run), run)
        initialize_state(self._optimizer)
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        self._parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        self._names = [names[id(parameter)] for parameter in self._parameters]
        self._good = norms_of_latest(self.folder, self._names)
        self.lineage: Lineage | None = None
        """Lineage of the run; `enter` sets it."""
        self._writing = threading.Lock()
        self._stopped_for: str | None = None
        self._bad_donors: set[str] = set()
        self._refusals = 0

    @property
    def parameters(self) -> int:
        """Number of parameters that the run trains."""
        return sum(parameter.numel() for parameter in self._parameters)

    def saved_epoch(self) -> int:
        """Epoch of the latest checkpoint; 0 if there is none."""
        latest = latest_checkpoint(self.folder)
        return checkpoint_epoch(latest) if latest is not None else 0

    def enter(self, lineage: Lineage) -> list[Path]:
        """Takes only states of this lineage from now on, and sets aside later checkpoints of its ancestors.

        Returns:
            New paths of these checkpoints.
        """
        with self._writing:
            self.lineage = lineage
            moved = set_aside(self.folder, lineage)
            if moved:
                self._good = norms_of_latest(self.folder, self._names)
        return moved

    def save(self, wanted_epoch: int, seconds: float, silent_seconds: float = math.inf) -> None:
        """Takes a checkpoint of `wanted_epoch` or a later epoch.

        Args:
            wanted_epoch: Oldest epoch that is wanted.
            seconds: Longest download from one donor.
            silent_seconds: Longest silence of a donor; the recipe's limit holds as well.

        Raises:
            NoRoom: If the disk is full; nothing is downloaded.
            NotGood: If the run's loss is not sane, or no donor has sent a good state.
            TrainingError: If no donor has sent a state within `seconds`, or the checkpoint cannot be written.
        """
        lineage = self.lineage
        try:
            with self._writing:
                self._make_room()
            if fault := self.loss_fault():
                raise NotGood(
                    f"No checkpoint is taken of epoch {self._epoch()}: {fault}.",
                    cure="Look at the losses on the dashboard; to go back, restore an earlier checkpoint. If the loss "
                    "may be so high, set max_loss_rise = 0 in the recipe's [monitor] and start the monitor again.",
                )
            state = self._download(wanted_epoch, seconds, silent_seconds)
            self._load(state)
            with self._writing:
                if lineage != self.lineage:
                    raise TrainingError(
                        f"The run has gone back to an earlier epoch while its state of {state.epoch} was downloaded.",
                        cure="Nothing: the next checkpoint is of the run's branch.",
                    )
                path = self._write(state.epoch)
                delete_surplus(self.folder, self._run.monitor)
                delete_from_branches(self.folder, self._run.monitor)
        except (NoRoom, NotGood) as error:
            self._tell_stopped(str(error))
            raise
        self._note(path, state)

    def loss_fault(self) -> str | None:
        """Describes a fault of the run's loss for which no checkpoint is taken now; None if it has no fault."""
        rise, saved = self._run.monitor.max_loss_rise, self.saved_epoch()
        if not rise:
            return None
        good = self._history.epoch_losses(WINDOW, until=saved) if saved else ()
        return loss_fault(self._history.epoch_losses(WINDOW), good=good, rise=rise)

    def _note(self, path: Path, state: TrainingState) -> None:
        self._tell_stopped(None)
        self._good = Norms(state.epoch, dict(zip(self._names, self._parameters, strict=True)))
        self._bad_donors.clear()
        with suppress(TrainingError):  # the checkpoint is stored, though the disk may be too full to note it
            self._history.add_event("checkpoint", "monitor", f"checkpoint of epoch {state.epoch}")
        self._events.write("checkpoint", epoch=state.epoch, path=str(path))
        self._saved(path)

    def _make_room(self) -> None:
        """Deletes checkpoints that the recipe does not keep, and checks that another one fits on the disk."""
        stored = stored_checkpoints(self.folder)
        needed = stored[-1].bytes if stored else 1_000_000 + 12 * self.parameters
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            delete_drafts(self.folder)
            delete_surplus(self.folder, self._run.monitor, needed_bytes=needed)
            delete_from_branches(self.folder, self._run.monitor, needed_bytes=needed)
            disk = shutil.disk_usage(self.folder)
            reserve = min(MOST_RESERVE_BYTES, int(RESERVE_SHARE * disk.total))
            if disk.free < needed + reserve:
                raise OSError(errno.ENOSPC, f"{disk.free:,} bytes are free, and {needed + reserve:,} are needed")
            reserve_space(self.folder / "space", needed)
        except OSError as error:
            raise _no_room(self.folder, error) from None

    def _write(self, epoch: int) -> Path:
        last = self._history.last_epoch() or {}
        try:
            return save_checkpoint(
                self.folder,
                model=self._model,
                recipe_toml=self._recipe_toml,
                epoch=epoch,
                metrics={"loss": last.get("loss"), "total_samples": self._history.total_samples()},
                shards=self._shards,
                codec_digest=self._codec_digest,
                lineage=self.lineage,
                extra_tensors=optimizer_tensors(self._optimizer),
            )
        except (TrainingError, OSError) as error:
            raise _no_room(self.folder, error) from None

    def _tell_stopped(self, reason: str | None) -> None:
        """Notes in the history, once, that no checkpoints are taken, with the reason; and once that they are taken
        again."""
        if (reason is None) == (self._stopped_for is None):
            return
        self._stopped_for = reason
        text = f"takes no checkpoints for now: {reason}" if reason else "takes checkpoints again"
        with suppress(TrainingError):  # the disk may be too full for this too
            self._history.add_event("warning", "monitor", text)
        self._events.write("warning", text=f"The monitor {text}")

    def _epoch(self) -> int:
        last = self._history.last_epoch()
        return last["epoch"] if last is not None else 0

    def _download(self, wanted_epoch: int, seconds: float, silent_seconds: float) -> TrainingState:
        before = self._refusals
        try:
            return self._ask_donors(wanted_epoch, seconds, silent_seconds)
        except TrainingError as error:
            if self._refusals > before:
                raise NotGood(str(error), cure=error.cure) from None
            raise

    def _ask_donors(self, wanted_epoch: int, seconds: float, silent_seconds: float) -> TrainingState:
        return download_state(
            self._dht,
            run_prefix(self._run.run_id, self.lineage),
            lineage=self.lineage,
            shapes=[parameter.shape for parameter in self._parameters],
            chunk_seconds=min(seconds, silent_seconds, self._run.swarm.next_chunk_timeout_seconds),
            total_seconds=seconds,
            max_bytes=STATE_BYTES + STATE_BYTES_PER_PARAMETER * self.parameters,
            epochs=range(wanted_epoch, self._epoch() + EPOCHS_AHEAD),
            inspect=_Inspection(self._names, self._good, self._epoch()),
            asked_last=self._bad_donors,
            on_fault=self._note_fault,
        )

    def _note_fault(self, donor: str, error: Exception) -> None:
        """Reports the donor of a bad state; notes no event for a donor that is only slow, or gone."""
        if not isinstance(error, BadState):
            return
        self._refusals += 1
        if donor in self._bad_donors:
            return
        self._bad_donors.add(donor)
        text = f"takes no checkpoint from {donor}, which {error}"
        print(f"Warning: the monitor {text}. Another peer is asked.", flush=True)
        self._events.write("warning", text=f"The monitor {text}", donor=donor)
        with suppress(TrainingError):
            self._history.add_event("warning", "monitor", text)

    @torch.no_grad()
    def _load(self, state: TrainingState) -> None:
        try:
            # The optimizer first: if its state is refused, the model still has its old weights.
            load_optimizer_state(self._optimizer, state.optimizer_metadata, state.tensors[len(self._parameters) :])
        except Exception as error:  # the metadata comes from another peer and may be anything
            raise TrainingError(
                f"The optimizer state of {state.donor} cannot be read: {quoted(str(error))}.",
                cure="Nothing to do: the monitor tries again with another peer.",
            ) from None
        for parameter, tensor in zip(self._parameters, state.tensors, strict=False):
            parameter.copy_(tensor)


class _Inspection:
    """Compares a donor's weights with those of the last good checkpoint as they come; a fault ends the download.

    The download itself refuses non-finite numbers.
    """

    def __init__(self, names: Sequence[str], good: Norms | None, epoch: int):
        self._names, self._good, self._epoch = names, good, epoch

    def __call__(self, number: int, tensor: Tensor) -> None:
        """Compares one tensor; after the last parameter, compares the norm of all.

        Raises:
            BadState: If a norm differs too much.
        """
        if self._good is None or number >= len(self._names):
            return
        self._squares = float(tensor.float().norm()) ** 2 + (self._squares if number else 0.0)
        fault = self._good.fault_of(self._names[number], tensor, self._epoch)
        if number == len(self._names) - 1:
            fault = fault or self._good.fault_of_all(self._squares**0.5, self._epoch)
        if fault:
            raise BadState(f"sent weights that are not good: {fault}", cure="Nothing: another peer is asked.")


def _no_room(folder: Path, error: Exception) -> NoRoom:
    return NoRoom(
        f"No checkpoint can be written to {folder}: {reason_of(error).rstrip('.')}.",
        cure="Make room on the disk, or lower disk_budget_gb in the recipe; the monitor then goes on by itself.",
    )
