"""Source of a language model's weights: a folder, or a repository of the Hugging Face Hub.

Both have the files that `transformers` saves: config.json and model.safetensors, or its parts and their index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from training.errors import BadInput, TrainingError, first_line, reason_of

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
LARGEST_BYTES = {CONFIG: 1 << 20, INDEX: 1 << 26}
"""Most bytes of each small file; the index of a model of 671 billion parameters has 9 million."""
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
"""Pattern of a repository's id: owner and name, and optionally a revision."""


def find_source(name: str) -> WeightSource:
    """Finds the source of a name: the folder if it exists, otherwise a repository of the hub.

    Raises:
        BadInput: If the name is neither a folder nor the form of a hub id.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _Folder(folder)
    if not HUB_ID.fullmatch(name) or name.startswith("."):
        raise BadInput(
            f"model.from is {name!r}, which is no folder here; give a folder with config.json and "
            "model.safetensors, or a hub id such as owner/name."
        )
    return _Repository(name)


class WeightSource:
    """Folder or repository of weights. Small files are read before large ones."""

    def path(self, name: str) -> Path | None:
        """Path of a file on this machine, downloaded if needed; None if the source has no such file."""
        raise NotImplementedError

    def __init__(self, name: object):
        self._name = name

    def read_config(self) -> dict[str, Any]:
        """Reads config.json.

        Raises:
            BadInput: If config.json is missing or cannot be read.
        """
        table = self._read_json(CONFIG)
        if table is None:
            raise BadInput(f"{self._name} of model.from lacks {CONFIG}; give weights that `transformers` has saved.")
        return table

    def bytes_to_fetch(self, names: Sequence[str]) -> int:
        """Bytes of files that are not on this machine yet; missing files count 0."""
        return 0

    def weight_files(self, most_bytes: int) -> list[Path]:
        """Returns the safetensors files, all on this machine.

        Args:
            most_bytes: Most bytes of all files together, if they have to be fetched.

        Raises:
            BadInput: If there are no such files, or they are too large.
            TrainingError: If they cannot be fetched.
        """
        index = self._read_json(INDEX)
        names = [WEIGHTS]
        if index is not None:
            parts = index.get("weight_map")
            names = sorted(set(map(str, parts.values()))) if isinstance(parts, dict) else []
            # A name with a slash could lead out of the folder.
            if not names or any(not re.fullmatch(r"[\w.-]+\.safetensors", name) for name in names):
                raise BadInput(f"{INDEX} of {self._name} names no files beside it; choose other weights.")
        if (found := self.bytes_to_fetch(names)) > most_bytes:
            raise BadInput(
                f"The weights of {self._name} have {found:,} bytes, and a model of their config.json has at most "
                f"{most_bytes:,}; they are not fetched. Choose other weights."
            )
        paths = {name: self.path(name) for name in names}
        missing = [name for name, path in paths.items() if path is None]
        if missing:
            raise BadInput(
                f"{self._name} of model.from lacks {missing[0]}; give weights as safetensors (files of other kinds can "
                "contain programs)."
            )
        return list(paths.values())

    def _read_json(self, name: str) -> dict[str, Any] | None:
        most, found = LARGEST_BYTES[name], self.bytes_to_fetch([name])
        path = self.path(name) if found <= most else None
        if max(found, 0 if path is None else path.stat().st_size) > most:
            raise BadInput(f"{name} of {self._name} has more than {most:,} bytes; choose other weights.")
        if path is None:
            return None
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:  # RecursionError if tables are nested too deeply
            raise BadInput(f"{name} of {self._name} cannot be read: {reason_of(error)}. Get the file again.") from None
        if not isinstance(table, dict):
            raise BadInput(f"{name} of {self._name} is not a table; get the file again.")
        return table


class _Folder(WeightSource):
    def path(self, name: str) -> Path | None:
        path = self._name / name
        return path if path.is_file() else None


class _Repository(WeightSource):
    def __init__(self, name: str):
        super().__init__(name)
        self._repository, _, revision = name.partition("@")
        self._revision = revision or None

    def bytes_to_fetch(self, names: Sequence[str]) -> int:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

        where, missing = {"revision": self._revision}, 0
        for name in names:
            if not isinstance(try_to_load_from_cache(self._repository, name, **where), str):
                # If a file is missing or the hub does not answer, the download reports it.
                with suppress(Exception):
                    missing += get_hf_file_metadata(hf_hub_url(self._repository, name, **where)).size or 0
        return missing

    def path(self, name: str) -> Path | None:
        from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

        repository = self._repository
        # Files that were fetched once stay, so that a restart needs no hub, and weights do not change in mid-run. The
        # cache
        # also remembers which files the hub does not have.
        cached = try_to_load_from_cache(repository, name, revision=self._revision)
        if cached is not None:
            return None if cached is _CACHED_NO_EXIST else Path(cached)
        try:
            return Path(hf_hub_download(repository, name, revision=self._revision))
        except LocalEntryNotFoundError as error:  # a kind of EntryNotFoundError: the hub does not answer
            raise TrainingError(
                f"{repository} of model.from cannot be fetched, because the hub cannot be reached: {first_line(error)}",
                cure="Check the connection, or give a folder.",
            ) from None
        except EntryNotFoundError:
            return None
        except HfHubHTTPError as error:
            raise BadInput(
                f"The hub does not give out {self._name} of model.from: {first_line(error)}",
                cure="Check the name; for weights behind a licence, set HF_TOKEN.",
            ) from None
        except OSError as error:
            raise TrainingError(
                f"{repository} of model.from cannot be fetched: {first_line(error)}",
                cure="Check the connection, or give a folder.",
            ) from None
