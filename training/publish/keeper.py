"""Keeps a run: takes checkpoints from the peers' state as the run progresses, and has the fixed prompts drawn."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from training.checkpoints.checkpoint import check_codec, checkpoint_epoch, codec_of, latest_checkpoint, save_checkpoint
from training.config import RunConfig
from training.data.stream import open_manifest
from training.errors import BadInput, TrainingError
from training.model.transformer import build_model
from training.optim.lamb import build_optimizer, optimizer_tensors, parameter_groups
from training.processes.events import EventLog
from training.publish.history import History
from training.publish.pictures import PictureDrawer
from training.swarm.dht import DHT
from training.swarm.download import TrainingState, download_state
from training.swarm.host import load_optimizer_state

DOWNLOAD_SECONDS = 300.0
"""Longest download of the state from one peer."""
LAST_DOWNLOAD_SECONDS = 2.0
"""How long a last checkpoint may take when the monitor is stopped."""
RETRY_SECONDS = 3.0
"""Pause after a failed download or drawing."""
STATE_BYTES_PER_PARAMETER, STATE_BYTES = 16, 64 << 20
"""Largest accepted state: bytes per parameter, and bytes on top. Weights and moments in float32 take 12 each."""
EPOCHS_AHEAD = 10
"""A state may be this many epochs ahead of the history, which lags behind a little."""


def codec_of_run(shards: str, run_dir: Path) -> str | None:
    """Digest of the codec whose tokens the run trains on; None, after a warning, if it cannot be found out.

    Raises:
        BadInput: If the run's latest checkpoint was trained on the tokens of another codec than the shards'.
    """
    path = latest_checkpoint(run_dir / "checkpoints")
    expected = codec_of(path) if path is not None else None
    try:
        found = open_manifest(shards).codec_digest
    except BadInput as error:
        if expected is None:
            print(f"Warning: checkpoints will not say which codec they were trained with. {error}", flush=True)
        return expected
    check_codec(path, expected, shards=shards, found=found)
    return found


class Keeper:
    """A thread that takes checkpoints and draws pictures when they are due; `look` wakes it.

    Args:
        run: The run.
        recipe_toml: Its recipe, which goes into each checkpoint.
        run_dir: Gets `checkpoints/`, `pictures/` and the drawing process's log.
        shards: Folder or URL of the shards, for the codec and the tokenizer.
        codec_digest: Of the codec whose tokens the run trains on, from `codec_of_run`.
        dht: A running DHT node.
        history: Says how far the run is, and is told of checkpoints and pictures.
        events: The monitor's event log.
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
        history: History,
        events: EventLog,
    ):
        self._run, self._recipe_toml, self._shards, self._codec_digest = run, recipe_toml, shards, codec_digest
        self._dht, self._history, self._events = dht, history, events
        self._checkpoints, self._pictures = run_dir / "checkpoints", run_dir / "pictures"
        self._model = build_model(run.model, run.seed)
        self._optimizer = build_optimizer(
            run.optimizer,
            parameter_groups(self._model, run.optimizer.weight_decay),
            lr=run.schedule.peak_learning_rate,
        )
        run_dir.mkdir(parents=True, exist_ok=True)
        self._drawer_log = (run_dir / "pictures.log").open("ab")
        self._drawer = PictureDrawer(shards, self._drawer_log)
        self._news, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="keeper")

    @property
    def parameters(self) -> int:
        """Number of parameters that the run trains."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def saved_epoch(self) -> int:
        """Epoch of the latest checkpoint, 0 if there is none."""
        latest = latest_checkpoint(self._checkpoints)
        return checkpoint_epoch(latest) if latest is not None else 0

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def look(self) -> None:
        """Tells the thread that the history has grown."""
        self._news.set()

    def finish(self) -> None:
        """Takes a last checkpoint if the peers are quick enough, and ends the thread and the drawing."""
        self._stopping.set()
        self._news.set()
        # First, because the thread may be waiting for a drawing.
        self._drawer.close()
        self._thread.join(LAST_DOWNLOAD_SECONDS)
        if not self._thread.is_alive() and self._history.active_peers():
            try:
                self._save(self.saved_epoch() + 1, LAST_DOWNLOAD_SECONDS)
            except (TrainingError, OSError) as error:
                print(f"No last checkpoint: {error}", flush=True)
        self._drawer_log.close()

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._news.wait()
            self._news.clear()
            try:
                self._look_once()
            except (TrainingError, OSError) as error:
                # While the monitor stops, a failure is expected and no news.
                if not self._stopping.wait(RETRY_SECONDS):
                    self._events.write("warning", text=str(error))
                    print(f"Warning: {error}", flush=True)

    def _look_once(self) -> None:
        settings = self._run.monitor
        if (wanted := self._due(self.saved_epoch(), settings.checkpoint_every_epochs)) is not None:
            self._save(wanted, DOWNLOAD_SECONDS)
        snapshots = self._history.snapshots()
        wanted = self._due(snapshots[-1]["epoch"] if snapshots else 0, settings.pictures_every_epochs)
        if settings.prompts and wanted is not None:
            # Pictures are drawn from a checkpoint, so one of this epoch is needed.
            if self.saved_epoch() < wanted:
                self._save(wanted, DOWNLOAD_SECONDS)
            self._draw()

    def _epoch(self) -> int:
        last = self._history.last_epoch()
        return last["epoch"] if last is not None else 0

    def _due(self, done_epoch: int, every: int) -> int | None:
        """The epoch to keep next, if the run has reached it and it was not kept yet."""
        epoch = self._epoch()
        last = epoch if epoch >= self._run.schedule.total_epochs else epoch // every * every
        return last if last > done_epoch else None

    def _save(self, wanted_epoch: int, seconds: float) -> None:
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        state = download_state(
            self._dht,
            self._run.run_id,
            shapes=[parameter.shape for parameter in parameters],
            chunk_seconds=min(seconds, self._run.swarm.next_chunk_timeout_seconds),
            total_seconds=seconds,
            max_bytes=STATE_BYTES + STATE_BYTES_PER_PARAMETER * self.parameters,
            epochs=range(wanted_epoch, self._epoch() + EPOCHS_AHEAD),
        )
        self._load(parameters, state)
        last = self._history.last_epoch() or {}
        path = save_checkpoint(
            self._checkpoints,
            model=self._model,
            recipe_toml=self._recipe_toml,
            epoch=state.epoch,
            metrics={"loss": last.get("loss"), "total_samples": self._history.total_samples()},
            shards=self._shards,
            codec_digest=self._codec_digest,
            extra_tensors=optimizer_tensors(self._optimizer),
        )
        self._history.add_event("checkpoint", "monitor", f"checkpoint of epoch {state.epoch}")
        self._events.write("checkpoint", epoch=state.epoch, path=str(path))

    @torch.no_grad()
    def _load(self, parameters: list[torch.Tensor], state: TrainingState) -> None:
        try:
            # The optimizer first: if its state is refused, the model still has its old weights.
            load_optimizer_state(self._optimizer, state.optimizer_metadata, state.tensors[len(parameters) :])
        except Exception as error:  # the metadata comes from another peer and may be anything
            raise TrainingError(
                f"The optimizer state of {state.donor} cannot be read: {error}.",
                cure="Nothing to do: the monitor tries again with another peer.",
            ) from None
        for parameter, tensor in zip(parameters, state.tensors, strict=False):
            parameter.copy_(tensor)

    def _draw(self) -> None:
        checkpoint = latest_checkpoint(self._checkpoints)
        epoch = checkpoint_epoch(checkpoint)
        pictures = self._drawer.draw(checkpoint, self._pictures)
        self._history.add_snapshot(epoch, pictures)
