"""Keeps checkpoints of a run's state, which it downloads from peers, measures each one on held-out samples, and lets it
draw the fixed prompts."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from training.checkpoints.branches import set_aside_damaged
from training.checkpoints.checkpoint import check_codec, checkpoint_epoch, codec_of, latest_checkpoint, lineage_of
from training.checkpoints.take import NotGood, Saver
from training.data.store.sets import open_manifest
from training.errors import BadInput, TrainingError
from training.processes.events import EventLog
from training.publish.copies.push import Pusher
from training.publish.history.backup import back_up_run
from training.publish.history.history import History
from training.publish.history.sound import DamagedHistory
from training.publish.pictures import PictureDrawer
from training.recipe import RunConfig
from training.swarm.node.dht import DHT
from training.swarm.run.lineage import Lineage

DOWNLOAD_SECONDS = 300.0
"""Longest download of the state from one peer."""
LAST_SECONDS, LAST_SILENCE_SECONDS = 5.0, 1.5
"""Longest time for a last checkpoint when the monitor is stopped, and longest silence of a volunteer meanwhile: a
volunteer that was stopped at the same time is still among those that offer the state."""
RETRY_SECONDS = 3.0
"""Pause after a failed download or drawing."""
LONGEST_RETRY_SECONDS = 60.0
"""Longest pause after refused states, up to which pauses double: each attempt costs volunteers an upload."""
REMINDER_SECONDS = 300.0
"""Interval at which a repeated warning is shown."""


def codec_of_run(run: RunConfig, shards: str, run_dir: Path) -> str | None:
    """Finds the digest of the codec whose tokens the run trains on. Returns None, after a warning, if it is not found.

    Raises:
        BadInput: If the run's latest checkpoint was trained on the tokens of another codec than the shards'.
    """
    path = latest_checkpoint(run_dir / "checkpoints")
    expected = codec_of(path) if path is not None else None
    try:
        found = open_manifest(shards, kind=run.kind).codec_digest
    except BadInput as error:
        if expected is None:
            print(f"Warning: checkpoints will not say which codec they were trained with. {error}", flush=True)
        return expected
    check_codec(path, expected, shards=shards, found=found)
    return found


class Keeper:
    """A thread that takes checkpoints, measures them, and draws pictures when they are due; `look` wakes it.

    Args:
        run: Recipe of the run.
        recipe_toml: Text of the recipe, which goes into each checkpoint.
        run_dir: Folder for `checkpoints/`, `pictures/`, `backups/` of the history and the drawing process's log.
        shards: Folder or URL of the shards, for the codec and the tokenizer.
        codec_digest: Digest of the codec whose tokens the run trains on, from `codec_of_run`.
        dht: A running DHT node.
        history: The run's history, which has its epochs and gets an entry for each checkpoint and its pictures.
        events: The monitor's event log.
        pusher: Copies checkpoints elsewhere.
        clip: Folder or name of the CLIP model by which pictures of held-out captions are scored; None: they are not.
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
        pusher: Pusher | None = None,
        clip: str | None = None,
    ):
        self._run, self._history, self._events, self._pusher = run, history, events, pusher
        self._clip = clip
        self._run_dir, self._pictures, self._shards = run_dir, run_dir / "pictures", shards
        run_dir.mkdir(parents=True, exist_ok=True)
        self._saver = Saver(
            run,
            recipe_toml,
            run_dir=run_dir,
            shards=shards,
            codec_digest=codec_digest,
            dht=dht,
            history=history,
            events=events,
            saved=self._after_saving,
        )
        self._drawer_log = (run_dir / "pictures.log").open("ab")
        self._drawer = PictureDrawer(shards, self._drawer_log)
        self._news, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="keeper")
        self._measured: tuple[Path, Lineage | None] | None = None
        """Checkpoint that was measured last, or whose measurement failed, and the run's lineage then."""
        self._warned: tuple[str, float] = ("", 0.0)
        self._seen: tuple | None = None
        self._damage: DamagedHistory | None = None
        self._has_checked = False
        self.loss_fault: str | None = None
        """Fault of the run's loss at the last look, as a sentence; None if there was none."""

    @property
    def parameters(self) -> int:
        """Number of parameters that the run trains."""
        return self._saver.parameters

    def saved_epoch(self) -> int:
        """Epoch of the latest checkpoint, 0 if there is none."""
        return self._saver.saved_epoch()

    def enter(self, lineage: Lineage) -> None:
        """Keeps only states of this lineage from now on, and sets aside later checkpoints of a lineage that the run has
        left.

        Call it before `start`.

        Raises:
            BadInput: If a folder of checkpoints is damaged.
        """
        if self._saver.lineage not in (None, lineage):  # else a call before has failed after it
            self._events.write("branch", lineage=lineage.id, epoch=lineage.first_epoch)
        moved = self._saver.enter(lineage)
        for path in moved:
            print(f"A checkpoint that the run has gone back from is now {path}.", flush=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def look(self) -> None:
        """Tells the thread that the history has grown."""
        self._news.set()

    def check(self) -> None:
        """Raises DamagedHistory if the thread has found that the history is damaged."""
        if self._damage is not None:
            raise self._damage

    def finish(self) -> None:
        """Takes a last checkpoint within `LAST_SECONDS` if it can, and ends the thread and the drawing.

        A download under way becomes the last checkpoint, unless there is time for a newer one.
        """
        ends = time.monotonic() + LAST_SECONDS
        self._stopping.set()
        self._news.set()
        # First, because the thread may be waiting for a drawing.
        self._drawer.close()
        self._thread.join(LAST_SECONDS)
        fault = self._save_last(ends)
        saved, epoch = self.saved_epoch(), self._epoch()
        if fault and saved < epoch:
            last = f"The last checkpoint is of epoch {saved}" if saved else "There is no checkpoint"
            print(f"{last}, and the run is at epoch {epoch}: {fault} Volunteers keep their weights.", flush=True)
        if self._pusher is not None:
            self._pusher.finish()
        self._drawer_log.close()

    def _save_last(self, ends: float) -> str:
        """Takes a last checkpoint before a time. Returns the reason if it takes none; empty if it does."""
        if not self._history.active_peers():
            return "no volunteer is there to send a newer state."
        if self._thread.is_alive() or (left := ends - time.monotonic()) <= 0:
            return f"the download of a newer state takes longer than {LAST_SECONDS:.0f} s."
        try:
            self._saver.save(self.saved_epoch() + 1, left, LAST_SILENCE_SECONDS)
        except (TrainingError, OSError) as error:
            return str(error)
        return ""

    def _work(self) -> None:
        pause = RETRY_SECONDS
        while self._news.wait() and not self._stopping.is_set():  # `finish` sets both
            self._news.clear()
            try:
                self._look_once()
                pause = RETRY_SECONDS
            except DamagedHistory as error:
                self._damage = error
            except Exception as error:  # whatever happens to a checkpoint or a picture, the monitor goes on
                pause = min(2 * pause, LONGEST_RETRY_SECONDS) if isinstance(error, NotGood) else RETRY_SECONDS
                # While the monitor stops, a failure is expected and no news.
                if not self._stopping.wait(pause):
                    self._warn(str(error) or type(error).__name__)

    def _after_saving(self, path: Path) -> None:
        if self._pusher is not None:
            self._pusher.look()
        try:
            back_up_run(self._run_dir, checkpoint_epoch(path))
        except DamagedHistory as error:
            self._damage = error
        except TrainingError as error:  # the checkpoint is there, and the next one brings the next backup
            self._warn(error.sentence)

    def _warn(self, text: str) -> None:
        before, told_at = self._warned
        if text != before or time.monotonic() - told_at >= REMINDER_SECONDS:
            self._warned = text, time.monotonic()
            self._events.write("warning", text=text)
            print(f"Warning: {text}", flush=True)

    def _check_older(self) -> None:
        """Checks the digests of all but the newest checkpoint, which the monitor has checked when it started."""
        for sentence in set_aside_damaged(self._saver.folder, older=True):
            self._warn(sentence)
            self._history.add_event("warning", "monitor", sentence)

    def _look_once(self) -> None:
        if not self._has_checked:
            self._has_checked = True
            self._check_older()
        settings = self._run.monitor
        seen = self._epoch(), self.saved_epoch(), self._saver.lineage
        if seen != self._seen:
            self._seen, self.loss_fault = seen, self._saver.loss_fault()
        wanted = self._due(self.saved_epoch(), settings.checkpoint_every_epochs)
        if wanted is not None and self._history.active_peers():
            self._saver.save(wanted, DOWNLOAD_SECONDS)
        if self._stopping.is_set():  # `finish` has ended the process, which would start again
            return
        self._measure()
        snapshots = self._history.snapshots()
        wanted = self._due(snapshots[-1]["epoch"] if snapshots else 0, settings.pictures_every_epochs)
        if settings.prompts and wanted is not None:
            # Pictures are drawn from a checkpoint, so one of this epoch is needed.
            if self.saved_epoch() < wanted and self._history.active_peers():
                self._saver.save(wanted, DOWNLOAD_SECONDS)
            if self.saved_epoch() >= wanted:
                self._draw()

    def _epoch(self) -> int:
        last = self._history.last_epoch()
        return last["epoch"] if last is not None else 0

    def _due(self, done_epoch: int, every: int) -> int | None:
        """The next multiple of `every` after the kept epoch, if volunteers report that the run has reached it;
        otherwise None.

        It depends on the kept epoch and not on the newest report: a false report must not prevent checkpoints.
        """
        wanted = min((done_epoch // every + 1) * every, self._run.schedule.total_epochs)
        return wanted if done_epoch < wanted <= self._epoch() else None

    def _measure(self) -> None:
        """Tries once to compute the newest checkpoint's loss on held-out samples, if the shards hold some out, and its
        CLIP score."""
        checkpoint = latest_checkpoint(self._saver.folder)
        # A branch comes to the same epoch, and so to the same path, with other weights.
        tried, self._measured = self._measured, (checkpoint, self._saver.lineage)
        if checkpoint is None or tried == self._measured:
            return
        epoch, lineage = checkpoint_epoch(checkpoint), lineage_of(checkpoint)
        if self._is_measured(epoch) or not self._holds_out():
            return
        if (found := self._drawer.measure(checkpoint)) is None:
            return
        self._history.add_held_out(epoch, found, lineage=lineage)
        if self._clip is not None and not self._stopping.is_set():
            self._history.add_clip_score(epoch, self._drawer.score(checkpoint, self._clip), lineage=lineage)

    def _is_measured(self, epoch: int) -> bool:
        return any(one["epoch"] == epoch for one in self._history.held_out())

    def _holds_out(self) -> bool:
        """Returns whether samples are held out; only then a process reads the weights, frozen ones included."""
        try:
            held_out = open_manifest(self._shards, kind=self._run.kind).splits.get("held-out")
        except BadInput:  # the monitor has warned when it started
            return False
        return held_out is not None and held_out.samples > 0

    def _draw(self) -> None:
        checkpoint = latest_checkpoint(self._saver.folder)
        epoch, lineage = checkpoint_epoch(checkpoint), lineage_of(checkpoint)
        pictures = self._drawer.draw(checkpoint, self._pictures)
        self._history.add_snapshot(epoch, pictures, lineage=lineage)
