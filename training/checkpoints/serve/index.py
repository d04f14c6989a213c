"""Index of the checkpoints that a monitor serves, as one JSON document: `/checkpoints/index.json`.

A peer reads it before it downloads one (`training.checkpoints.fetch`), so it says what each is and how large.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from training.checkpoints.facts import FILES, RECIPE_FILE, StoredFile, describe, read_facts
from training.checkpoints.folders import FACTS_FILE, list_checkpoints
from training.errors import BadInput
from training.recipe import parse_recipe


class ServedCheckpoint(BaseModel):
    """One checkpoint in the index. Unknown fields are ignored, so that later versions may add fields."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(pattern=r"^epoch-\d{6,18}$")]
    """Name of the checkpoint's folder; it becomes a part of addresses and paths."""
    epoch: Annotated[int, Field(ge=0)]
    lineage: str | None = None
    """Lineage of the checkpoint; None: not recorded."""
    recipe_digest: str
    written_at: float
    """Time of writing, in seconds since 1970."""
    files: dict[str, StoredFile]

    @property
    def bytes(self) -> int:
        """Size of all files of the checkpoint."""
        return sum(file.bytes for file in self.files.values())


class Index(BaseModel):
    """All checkpoints of a folder, the lowest epoch first."""

    model_config = ConfigDict(frozen=True)

    checkpoints: tuple[ServedCheckpoint, ...]


def index_of(folder: Path) -> Index:
    """Makes the index of a folder. A checkpoint that is damaged, or is being deleted, is left out; weights are not
    read."""
    return Index(checkpoints=tuple(filter(None, map(_entry, list_checkpoints(folder)))))


def _entry(path: Path) -> ServedCheckpoint | None:
    try:
        facts = read_facts(path)
        return ServedCheckpoint(
            name=path.name,
            epoch=facts["epoch"],
            lineage=facts.get("lineage"),
            # Not the recorded digest: a later version of this program may include other fields in it.
            recipe_digest=_digest((path / RECIPE_FILE).read_text(encoding="utf-8")),
            written_at=facts["written_at"],
            files={name: facts["files"][name] for name in FILES if name in facts["files"]}
            | {FACTS_FILE: describe(path / FACTS_FILE)},
        )
    except (BadInput, OSError, KeyError, ValueError):
        return None


@lru_cache(maxsize=8)
def _digest(recipe_toml: str) -> str:
    return parse_recipe(recipe_toml).digest
