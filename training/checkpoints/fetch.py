"""Download of a run's newest checkpoint from its site, for a peer that finds no other peer with the run's state.

The index of the site is trusted; everything else is checked: names, sizes against the recipe's model, digests, and the
recipe in the checkpoint. A download that breaks off is resumed, also by the next call and after a restart.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from pydantic import ValidationError

from training.checkpoints.facts import FILES, RECIPE_FILE, StoredFile, read_facts
from training.checkpoints.serve.index import Index, ServedCheckpoint
from training.errors import BadInput, TrainingError, reason_of
from training.model.trained import count_trained
from training.recipe import RunConfig, parse_recipe
from training.storage.remote import MissingError, UnreachableError, Web, read_document
from training.storage.whole import replace_folder
from training.tasks.known import task_of

LARGEST_INDEX_BYTES, INDEX_SECONDS = 8 << 20, 60.0
BYTES_PER_PARAMETER, OTHER_BYTES = 16, 64 << 20
"""Largest accepted checkpoint: bytes per parameter, and bytes on top. Weights and moments in float32 take 12 each."""
MOST_CANDIDATES = 3
"""Most checkpoints that are tried, the newest first: one may be damaged, or just deleted."""


class Stop(Protocol):
    """Request to stop, such as `training.processes.role.StopRequest`."""

    @property
    def asked(self) -> bool: ...

    def wait(self, seconds: float) -> bool: ...


def fetch_latest(
    site_url: str,
    folder: Path,
    *,
    recipe: RunConfig,
    lineage: str | None = None,
    stop: Stop | None = None,
    show: Callable[[str, int, int | None], None] | None = None,
) -> Path | None:
    """Downloads the checkpoint with the highest epoch of which the site sends all files, into `folder/epoch-NNNNNN`.

    A checkpoint that exists already is checked, and not downloaded again. Only one program may fetch into a folder.

    Args:
        site_url: Address of the run's site, such as `https://run.example`.
        folder: Folder of checkpoints, which receives the new one; created if it is missing. In it, only remains of
            earlier downloads are changed.
        recipe: Recipe of the run; checkpoints of another recipe are refused.
        lineage: Lineage of the run; other checkpoints are refused. If the site records no lineages, or for None, all
            are accepted.
        stop: Request to stop, which ends the download; the next call resumes it. None: no request.
        show: Called with the stage, the bytes so far, and the bytes in total.

    Returns:
        Folder of the checkpoint. None if the site has none yet, or none of the lineage, or the stop was requested.

    Raises:
        BadInput: If `site_url` is not an http(s) address, or all its checkpoints are of another recipe.
        TrainingError: If the site does not answer, or no checkpoint arrives completely; the message says why.
    """
    if urlsplit(site_url).scheme not in ("http", "https"):
        raise BadInput(f"{site_url!r} is not the address of a site; give one that begins with https:// or http://.")
    site = _Site(site_url.rstrip("/"), recipe, stop, show)
    faults: list[str] = []
    tried: set[str] = set()
    for _ in range(MOST_CANDIDATES):
        # The index is read again each time: a monitor may delete an old checkpoint while it is downloaded.
        candidates = [entry for entry in site.candidates(lineage) if _key(entry) not in tried]
        if not candidates:
            break
        tried.add(_key(candidates[0]))
        try:
            return site.fetch(candidates[0], folder)
        except _Stopped:
            return None
        except _Unusable as error:
            faults.append(f"{candidates[0].name}: {error}")
    if not faults:
        return None
    raise TrainingError(
        f"No checkpoint of {site_url} has arrived whole ({'; '.join(faults)}).",
        cure="Nothing that you typed is wrong; wait for a volunteer who has the run's state, or tell its maintainer.",
    )


class _Stopped(Exception):
    """The role was asked to stop."""


class _Unusable(Exception):
    """Reason why a checkpoint cannot be used; an older one may be usable."""


def _key(entry: ServedCheckpoint) -> str:
    """Key of a checkpoint's content, which differs if another checkpoint of this epoch takes its place."""
    digests = ",".join(f"{name}={file.sha256}" for name, file in sorted(entry.files.items()))
    return f"{entry.name}-{hashlib.sha256(digests.encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class _Site:
    """Site of a run, with the checkpoints that are wanted from it; see `fetch_latest`."""

    url: str
    recipe: RunConfig
    stop: Stop | None
    show: Callable[[str, int, int | None], None] | None

    def candidates(self, lineage: str | None) -> list[ServedCheckpoint]:
        """Checkpoints that may be taken, the highest epoch first."""
        address = f"{self.url}/checkpoints/index.json"
        try:
            answer = read_document(address, most_bytes=LARGEST_INDEX_BYTES, seconds=INDEX_SECONDS)
            found = Index.model_validate_json(answer).checkpoints
        except (OSError, ValueError) as error:  # pydantic's errors are ValueErrors
            reason = "it is not a list of checkpoints" if isinstance(error, ValidationError) else reason_of(error)
            raise TrainingError(
                f"{address} cannot be read: {reason}.", cure="Check the address and the network."
            ) from None
        ours = [entry for entry in found if entry.recipe_digest == self.recipe.digest]
        if found and not ours:
            raise BadInput(
                f"The checkpoints at {self.url} are of the recipe {found[-1].recipe_digest}, not of "
                f"{self.recipe.run_id} ({self.recipe.digest}).",
                cure=f"Take the recipe of that site, {self.url}/recipe.toml, or give the site of your run.",
            )
        if lineage is not None and any(entry.lineage is not None for entry in ours):
            ours = [entry for entry in ours if entry.lineage == lineage]
        return sorted(ours, key=lambda entry: (entry.epoch, entry.written_at), reverse=True)

    def fetch(self, entry: ServedCheckpoint, folder: Path) -> Path:
        """Downloads one checkpoint, or the rest of it.

        Raises:
            _Unusable: If the checkpoint is damaged, too large or of another recipe.
            TrainingError: If the site no longer answers, or the disk is full.
        """
        self._check_description(entry)
        target, partial = folder / entry.name, folder / f".fetching-{_key(entry)}"
        if all(_is_whole(target / name, file) for name, file in entry.files.items()):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(".fetching-*"):
            if leftover != partial:
                shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(exist_ok=True)
        transfer = _Transfer(self, entry, partial)
        transfer.check_room()
        try:
            for name, file in entry.files.items():
                transfer.take(name, file)
            self._check_content(partial, entry)
        except _Unusable:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        replace_folder(partial, target)
        return target

    def _check_description(self, entry: ServedCheckpoint) -> None:
        parameters = count_trained(task_of(self.recipe).on_paper())
        most = OTHER_BYTES + BYTES_PER_PARAMETER * parameters
        if entry.bytes > most:
            raise _Unusable(f"it has {entry.bytes:,} bytes, and one of this recipe has at most {most:,}")
        if not entry.files.keys() <= set(FILES):
            raise _Unusable(
                f"it has files that no checkpoint has: {', '.join(sorted(entry.files.keys() - set(FILES)))}"
            )

    def _check_content(self, partial: Path, entry: ServedCheckpoint) -> None:
        try:
            facts = read_facts(partial)
            found = parse_recipe((partial / RECIPE_FILE).read_text(encoding="utf-8"))
        except (BadInput, OSError, ValueError) as error:
            raise _Unusable(f"it is no whole checkpoint: {error}") from None
        if facts["epoch"] != entry.epoch or found.digest != self.recipe.digest:
            raise _Unusable(
                f"it holds epoch {facts['epoch']} of the recipe {found.digest}; the index says {entry.epoch} and "
                f"{entry.recipe_digest}"
            )


class _Transfer:
    """Download of one checkpoint's files into a folder that survives an interruption."""

    def __init__(self, site: _Site, entry: ServedCheckpoint, partial: Path):
        self._site, self._entry, self._partial = site, entry, partial
        self._files = Web(f"{site.url}/checkpoints/{entry.name}")

    @property
    def _done(self) -> int:
        """Bytes of the files that have been downloaded."""
        return sum(min(_size(self._partial / name), file.bytes) for name, file in self._entry.files.items())

    def check_room(self) -> None:
        """Raises TrainingError if the rest of the files does not fit on the disk."""
        needed, free = self._entry.bytes - self._done, shutil.disk_usage(self._partial).free
        if needed > free:
            raise TrainingError(
                f"The run's checkpoint takes {needed:,} bytes; the disk of {self._partial.parent} has {free:,} left.",
                cure="Make room on that disk, or give a folder on another disk with --state-dir.",
            )

    def take(self, name: str, file: StoredFile) -> None:
        """Downloads one file, or the rest of it, and compares its digest.

        Raises:
            _Unusable: If the file differs from the index, or the site no longer has it.
        """
        path = self._partial / name
        begun = _size(path)
        self._complete(path, file)
        if not _is_whole(path, file) and begun > 0:  # the damage may be in what an earlier, broken download left
            path.unlink()
            self._complete(path, file)
        if not _is_whole(path, file):
            raise _Unusable(f"{name} is damaged: its digest differs from the index")

    def _complete(self, path: Path, file: StoredFile) -> None:
        """Appends the missing bytes to a file."""
        begun = _size(path)
        try:
            with path.open("ab") as out:
                for piece in self._files.pieces(path.name, start=begun, length=file.bytes - begun, wait=self._pause):
                    out.write(piece)
                    out.flush()
                    if self._site.show is not None:
                        self._site.show("downloading the checkpoint", self._done, self._entry.bytes)
                    self._pause(0)
        except MissingError as error:
            raise _Unusable(str(error)) from None
        except UnreachableError as error:
            raise TrainingError(
                f"The download of {self._entry.name} from {self._site.url} stopped after {self._done:,} of "
                f"{self._entry.bytes:,} bytes: {error}.",
                cure="Start again; the download then goes on where it stopped.",
            ) from None
        except OSError as error:
            raise TrainingError(
                f"The checkpoint cannot be written to {path}: {reason_of(error)}.",
                cure="Make room on that disk, or give a folder on another disk with --state-dir.",
            ) from None

    def _pause(self, seconds: float) -> None:
        stop = self._site.stop
        if stop is None:
            time.sleep(seconds)
        elif stop.asked or (seconds and stop.wait(seconds)):
            raise _Stopped


def _is_whole(path: Path, file: StoredFile) -> bool:
    if _size(path) != file.bytes or not path.is_file():
        return False
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
