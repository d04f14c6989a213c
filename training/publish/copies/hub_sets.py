"""Copies prepared shards to a data set of the Hugging Face Hub.

Each commit has a few files, and the last commit has the manifest, so nobody reads half a set. The hub lists the digest
of each file that it has: after an interruption, the next call sends only the missing files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.data.sources.work import Progress
from training.data.store.shards import MANIFEST_FILE, check_file, manifest_or_none, read_manifest
from training.errors import BadInput, first_line
from training.storage.remote import tried

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

COMMIT_FILES, COMMIT_BYTES = 50, 1 << 30
"""Most files of a commit, and bytes after which it ends; after a failure, all of a commit is sent again."""
REPOSITORY = re.compile(r"hf://(?:datasets/)?([\w.-]+/[\w.-]+)/?")


class HubPush:
    """Copy of one folder of shards to a data set of the hub.

    Args:
        folder: Folder that `prepare` has made.
        address: `hf://OWNER/NAME`; `hf://datasets/OWNER/NAME` is the same.
        progress: Called with a word for the work, the files done, and the number of files.

    Raises:
        BadInput: If the address names no repository, or the folder has no shards.
    """

    def __init__(self, folder: Path, address: str, progress: Progress):
        found = REPOSITORY.fullmatch(address)
        if found is None:
            raise BadInput(f"{address} names no data set of the hub; give --push as hf://OWNER/NAME.")
        from huggingface_hub import HfApi, utils  # slow to load

        utils.disable_progress_bars()  # `progress` shows them already
        self._folder, self._address, self._name, self._progress = folder, address, found[1], progress
        self._manifest, self._content = read_manifest(folder), (folder / MANIFEST_FILE).read_bytes()
        self._hub = HfApi()  # reads HF_TOKEN and HF_ENDPOINT

    def run(self, *, replace: bool) -> int:
        """Sends the missing files. Returns their number.

        Raises:
            BadInput: If the hub refuses, other shards are there that may not be replaced, or the folder is damaged.
            TrainingError: If a file cannot be sent, after several tries.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        self._ask("create_repo", exist_ok=True)
        there = self._listed()
        before = self._read_manifest() if MANIFEST_FILE in there else None
        if before is not None and before != self._content and not replace:
            raise BadInput(f"{self._address} holds other shards. Give another --push, or --replace.")
        missing = [name for name in self._names() if there.get(name) != self._digest(name, there.get(name))]
        if before == self._content and not missing:
            return 0
        older = manifest_or_none(before, source=self._address)
        ours = {path.name for path in self._folder.iterdir()}
        surplus = [name for name in (older.files if older is not None else ()) if name in there and name not in ours]
        deleted = [CommitOperationDelete(path_in_repo=name) for name in surplus]
        batches = list(self._batches(missing))
        if before is not None and len(batches) > 1:
            # Between the first commit and the last, the older manifest would describe files that are not there.
            self._commit([CommitOperationDelete(path_in_repo=MANIFEST_FILE), *deleted], "Remove older shards")
            deleted = []
        done = 0
        for number, names in enumerate(batches, start=1):
            for name in names:
                if name in self._manifest.files:
                    check_file(self._folder / name, self._manifest.files[name], source=str(self._folder / name))
            sent = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=self._folder / name) for name in names]
            self._commit([*sent, *deleted], f"Shards, part {number} of {len(batches)}")
            deleted, done = [], done + len(names)
            self._progress("Sending files", done, len(missing))
        return done

    def _names(self) -> list[str]:
        """Names of all files of the folder, the manifest last."""
        others = {path.name for path in self._folder.iterdir()} - {*self._manifest.files, MANIFEST_FILE}
        return [*self._manifest.files, *sorted(others), MANIFEST_FILE]

    def _batches(self, names: list[str]) -> Iterator[list[str]]:
        batch, size = [], 0
        for name in names:
            batch.append(name)
            size += (self._folder / name).stat().st_size
            if len(batch) == COMMIT_FILES or size >= COMMIT_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _listed(self) -> dict[str, str]:
        """Lists the hub's digest of each file: SHA-256 of a large file, Git's digest of a small file."""
        listed = self._ask("list_repo_tree")
        return {one.path: one.lfs.sha256 if one.lfs else one.blob_id for one in listed if hasattr(one, "blob_id")}

    def _digest(self, name: str, there: str | None) -> str | None:
        """Digest of a local file, of the same kind as the hub's digest `there`; empty if the hub lacks the file."""
        if there is not None and len(there) == 64:
            entry = self._manifest.files.get(name)
            return entry.sha256 if entry else hashlib.sha256((self._folder / name).read_bytes()).hexdigest()
        if there is None:
            return ""
        content = (self._folder / name).read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def _read_manifest(self) -> bytes:
        from huggingface_hub import HfApi

        def read() -> bytes:
            return Path(HfApi().hf_hub_download(self._name, MANIFEST_FILE, repo_type="dataset")).read_bytes()

        return self._tried(MANIFEST_FILE, read)

    def _commit(self, operations: list[CommitOperationAdd | CommitOperationDelete], message: str) -> None:
        self._ask("create_commit", operations=operations, commit_message=message)

    def _ask(self, method: str, **settings: object) -> Any:
        def ask() -> Any:
            answer = getattr(self._hub, method)(self._name, repo_type="dataset", **settings)
            return list(answer) if method == "list_repo_tree" else answer

        return self._tried(self._name, ask)

    def _tried(self, what: str, act: Callable[[], Any]) -> Any:
        from huggingface_hub.errors import HfHubHTTPError

        def acted() -> Any:
            try:
                return act()
            except HfHubHTTPError as error:
                if error.response is None or error.response.status_code not in (400, 401, 403, 404):
                    raise
                raise BadInput(
                    f"The hub refuses shards for {self._address}: {first_line(error)}.",
                    cure="Check the name, and set HF_TOKEN to a token of yours that may write there.",
                ) from None
            except ValueError as error:
                if "metadata in README" not in str(error):
                    raise
                raise BadInput(
                    f"The hub refuses {self._folder / 'README.md'}: {first_line(error)}.",
                    cure="Change the header of this file, for example to a licence that the hub knows (cc-by-4.0), and "
                    "give the same command again.",
                ) from None

        return tried(what, self._address, acted)
