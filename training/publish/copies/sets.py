"""Copies prepared shards to another place: a folder, storage that fsspec knows, such as `s3://`, or the hub.

The manifest goes last, so nobody reads half a set. Until then, a file at the target identifies the unfinished set.
After an interruption, the next call finds this file and sends only the missing files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.data.sources.work import Progress
from training.data.store.shards import MANIFEST_FILE, check_file, manifest_or_none, read_manifest
from training.errors import BadInput
from training.publish.copies.hub_sets import HubPush
from training.storage.remote import file_system, tried

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MARK_FILE = "unfinished"
"""Name of a file at the target with the SHA-256 of the manifest of a set that is not complete there."""


def push_set(
    folder: Path,
    address: str,
    *,
    replace: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> int:
    """Copies a folder of shards.

    Args:
        folder: Folder that `prepare` has made.
        address: A folder, `hf://OWNER/NAME` for a data set of the hub, or an address that fsspec knows.
        replace: Whether other shards at the target may be replaced.
        progress: Called with a word for the work, the files done, and the number of files.

    Returns:
        Number of files that were sent; 0 if the target had all.

    Raises:
        BadInput: If the address names no place, or holds other shards, or the folder is damaged.
        TrainingError: If a file cannot be sent, after several tries.
    """
    if address.startswith("hf://"):
        return HubPush(folder, address, progress).run(replace=replace)
    files, root = file_system(address)
    return _Push(folder, address, files, root.rstrip("/"), progress).run(replace=replace)


class _Push:
    def __init__(self, folder: Path, address: str, files: AbstractFileSystem, root: str, progress: Progress):
        self._folder, self._address, self._files, self._root = folder, address, files, root
        self._progress = progress
        self._manifest, self._content = read_manifest(folder), (folder / MANIFEST_FILE).read_bytes()
        self._mark = hashlib.sha256(self._content).hexdigest().encode()

    def run(self, *, replace: bool) -> int:
        """See `push_set`."""
        there, mark = self._read(MANIFEST_FILE), self._read(MARK_FILE)
        if there == self._content:
            self._delete(MARK_FILE)
            return 0
        if there is not None and not replace:
            raise BadInput(f"{self._address} holds other shards. Give another --push, or --replace.")
        if there is not None or mark != self._mark:
            self._begin(there)
        sizes = self._sizes()
        # The card and what else is beside the shards: small, and not in the manifest.
        others = sorted(path.name for path in self._folder.iterdir() if path.name not in self._manifest.files)
        names = [*self._manifest.files, *(name for name in others if name != MANIFEST_FILE)]
        sent = 0
        for done, name in enumerate(names):
            entry = self._manifest.files.get(name)
            if entry is None or sizes.get(name) != entry.bytes:
                self._send(name)
                sent += 1
            self._progress("Sending files", done + 1, len(names) + 1)
        self._try(MANIFEST_FILE, lambda: self._files.pipe_file(self._at(MANIFEST_FILE), self._content))
        self._delete(MARK_FILE)
        self._progress("Sending files", len(names) + 1, len(names) + 1)
        return sent + 1

    def _begin(self, there: bytes | None) -> None:
        """Deletes an older set at the target, its manifest first so that nobody reads it, and writes the mark.

        After an interruption, a file of the older set with the size of a new file would be taken for that file.
        """
        older = manifest_or_none(there, source=self._address)
        if there is not None:
            self._delete(MANIFEST_FILE)
        self._try(self._root, lambda: self._files.makedirs(self._root, exist_ok=True))
        ours = {*self._manifest.files, *(older.files if older is not None else ())}
        for name in sorted(ours & self._sizes().keys()):
            self._delete(name)
        self._try(MARK_FILE, lambda: self._files.pipe_file(self._at(MARK_FILE), self._mark))

    def _send(self, name: str) -> None:
        path = self._folder / name
        if name in self._manifest.files:
            check_file(path, self._manifest.files[name], source=str(path))
        self._try(name, lambda: self._files.put_file(str(path), self._at(name)))

    def _sizes(self) -> dict[str, int]:
        """Sizes in bytes of the files at the target, by name."""

        def listed() -> list[dict[str, Any]]:
            try:
                return self._files.ls(self._root, detail=True)
            except FileNotFoundError:  # object storage has no empty folders
                return []

        self._files.invalidate_cache()
        return {one["name"].rstrip("/").rpartition("/")[2]: one["size"] for one in self._try(self._root, listed)}

    def _read(self, name: str) -> bytes | None:
        def read() -> bytes | None:
            try:
                return self._files.cat_file(self._at(name))
            except FileNotFoundError:
                return None

        return self._try(name, read)

    def _delete(self, name: str) -> None:
        def delete() -> None:
            try:
                self._files.rm_file(self._at(name))
            except FileNotFoundError:
                return

        self._try(name, delete)

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _try(self, name: str, act: Callable[[], Any]) -> Any:
        return tried(name, self._address, act)
