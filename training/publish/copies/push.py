"""Copies a run's checkpoints to another place, in the background: a folder, object storage, or the Hugging Face Hub.

Nothing waits for a copy: neither training, nor the next checkpoint, nor the end of the monitor. After a failure, the
next attempt copies the checkpoint that is newest then. The Hub keeps every commit; other places keep as many
checkpoints as the monitor's own folder does by the recipe.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from training.checkpoints.checkpoint import latest_checkpoint
from training.checkpoints.folders import FACTS_FILE, NAME
from training.checkpoints.retention import Stored, delete_surplus, surplus
from training.errors import BadInput, reason_of
from training.processes.events import Event, EventLog
from training.publish.config import MonitorConfig
from training.storage.remote import file_system
from training.storage.whole import delete_drafts, whole_folder, write_whole

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 900.0
"""Pause after a failure, which doubles with each further failure, and the longest pause."""
CARD_FILE = "README.md"


class Target(Protocol):
    """A place to which checkpoints are copied."""

    def put(self, checkpoint: Path, card: str) -> None:
        """Copies a checkpoint's folder and the model card. A reader never finds half a checkpoint."""


class Pusher:
    """A thread that copies the newest checkpoint whenever `look` is called.

    Args:
        target: From `open_target`.
        address: Address of the target, for messages.
        checkpoints: The run's folder of checkpoints.
        card: Makes the model card of a checkpoint.
        events: The monitor's event log.
        first_pause_seconds: Pause after a first failure.
    """

    def __init__(
        self,
        target: Target,
        address: str,
        *,
        checkpoints: Path,
        card: Callable[[Path], str],
        events: EventLog,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ):
        self._target, self._address, self._checkpoints, self._card = target, address, checkpoints, card
        self._events, self._first_pause_seconds = events, first_pause_seconds
        self._news = threading.Event()
        self._guard, self._is_over = threading.Lock(), False
        self._done: tuple[Path, bytes] | None = None
        threading.Thread(target=self._work, daemon=True, name="pusher").start()
        self.look()  # the last checkpoint of a monitor that was stopped may not be there yet

    def look(self) -> None:
        """Tells the thread that there may be a new checkpoint; returns at once."""
        self._news.set()

    def finish(self) -> None:
        """Ends the messages, because the monitor ends. The thread ends with the program;
        the next monitor copies what is missing."""
        with self._guard:
            self._is_over = True

    def _say(self, event: Event, line: str, **fields: object) -> None:
        with self._guard:
            if not self._is_over:
                self._events.write(event, **fields)
                print(line, flush=True)

    def _work(self) -> None:
        pause = self._first_pause_seconds
        while True:
            self._news.wait()
            self._news.clear()
            path = None
            try:
                path = latest_checkpoint(self._checkpoints)
                if path is None:
                    continue
                # Its name alone does not tell it: after the run has gone back, epochs come again.
                found = path, (path / FACTS_FILE).read_bytes()
                if found == self._done:
                    continue
                self._target.put(path, self._card(path))
            except Exception as error:  # of any library that a target uses
                if path is None or path.exists():  # else it was deleted meanwhile, and a newer one is there
                    self._warn(path, error, pause)
                    threading.Event().wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                self._news.set()
                continue
            pause, self._done = self._first_pause_seconds, found
            told = f"Copied {path.name} to {self._address}."
            self._say("pushed", told, path=str(path), to=self._address)

    def _warn(self, path: Path | None, error: Exception, pause: float) -> None:
        name = "the newest checkpoint" if path is None else path.name
        reason = " ".join((reason_of(error) or type(error).__name__).split())[:300]
        text = f"{name} cannot be copied to {self._address}: {reason}. It is tried again in {pause:.0f} s."
        self._say("warning", f"Warning: {text}", text=text)


def open_target(address: str, settings: MonitorConfig) -> Target:
    """Returns the target for an address, without a connection to it.

    Args:
        address: A folder, `hf://OWNER/NAME`, or an address that fsspec knows, such as `s3://BUCKET/PATH`.
        settings: Settings that say which checkpoints the target keeps.

    Raises:
        BadInput: If the address names no place, or a library for it is not installed.
    """
    scheme = urlsplit(address).scheme if "://" in address else ""
    if not scheme:
        return _Folder(Path(address), settings)
    if scheme == "hf":
        return _Hub(address)
    return _Storage(address, settings)


class _Folder:
    """A folder of this machine, perhaps on another disk or a mounted server."""

    def __init__(self, folder: Path, settings: MonitorConfig):
        self._folder, self._settings = folder, settings
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"Checkpoints cannot be copied to {folder}: {reason_of(error)}.",
                cure="Give another folder with --push-to.",
            ) from None

    def put(self, checkpoint: Path, card: str) -> None:
        delete_drafts(self._folder)
        with whole_folder(self._folder / checkpoint.name) as draft:
            shutil.copytree(checkpoint, draft, dirs_exist_ok=True)
        write_whole(self._folder / CARD_FILE, card)
        delete_surplus(self._folder, self._settings)


class _Storage:
    """Object storage, by fsspec."""

    def __init__(self, address: str, settings: MonitorConfig):
        self._settings = settings
        self._files, self._root = file_system(address)

    def put(self, checkpoint: Path, card: str) -> None:
        """Copies a checkpoint. The file of facts goes last: readers take no folder without this file for a
        checkpoint."""
        folder = f"{self._root}/{checkpoint.name}"
        names = sorted((file.name for file in checkpoint.iterdir()), key=lambda name: (name == FACTS_FILE, name))
        with suppress(FileNotFoundError):  # of an upload of the same epoch; while its files change it is not whole
            self._files.rm_file(f"{folder}/{FACTS_FILE}")
        self._files.makedirs(folder, exist_ok=True)
        for name in names:
            self._files.put_file(str(checkpoint / name), f"{folder}/{name}")
        self._files.pipe_file(f"{self._root}/{CARD_FILE}", card.encode())
        self._trim(checkpoint.name)

    def _trim(self, newest: str) -> None:
        self._files.invalidate_cache()
        listed = (path.rstrip("/").split("/")[-1] for path in self._files.ls(self._root, detail=False))
        there = {name for name in listed if NAME.fullmatch(name)}
        whole, stored = {newest}, []
        for path in self._files.glob(f"{self._root}/epoch-*/{FACTS_FILE}"):
            name = path.split("/")[-2]
            whole.add(name)
            with suppress(KeyError, TypeError, ValueError, AttributeError):
                stored.append(Stored.of_facts(name, json.loads(self._files.cat_file(path))))
        for name in surplus(stored, self._settings):
            self._files.rm_file(f"{self._root}/{name}/{FACTS_FILE}")
            self._delete(name)
        for name in sorted(there - whole):  # what a monitor has left that was killed while it copied, or deleted
            self._delete(name)

    def _delete(self, name: str) -> None:
        for path in self._files.find(f"{self._root}/{name}"):
            self._files.rm_file(path)
        with suppress(FileNotFoundError):  # object storage has no folders of its own
            self._files.rm(f"{self._root}/{name}", recursive=True)


class _Hub:
    """A model repository of the Hugging Face Hub: each checkpoint is one commit, so nobody sees half a checkpoint."""

    def __init__(self, address: str):
        self._name = address.removeprefix("hf://").strip("/")
        if self._name.count("/") != 1:
            raise BadInput(f"{address} names no repository of the Hub; give --push-to as hf://OWNER/NAME.")

    def put(self, checkpoint: Path, card: str) -> None:
        from huggingface_hub import CommitOperationAdd, HfApi, utils

        utils.disable_progress_bars()  # nobody watches a server's log
        hub = HfApi()  # reads HF_TOKEN and HF_ENDPOINT
        hub.create_repo(self._name, exist_ok=True)
        files = [CommitOperationAdd(CARD_FILE, card.encode())]
        files += [CommitOperationAdd(file.name, file) for file in sorted(checkpoint.iterdir())]
        hub.create_commit(self._name, files, commit_message=f"Checkpoint {checkpoint.name}")
