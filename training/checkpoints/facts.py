"""What a checkpoint's folder says of itself, without its weights: and so without torch, whose import takes seconds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.checkpoints.folders import FACTS_FILE
from training.errors import BadInput, reason_of

FORMAT = 1
"""Version of the folder's format; other versions are refused."""
MODEL_FILE, EXTRA_FILE, RECIPE_FILE = "model.safetensors", "optimizer.safetensors", "recipe.toml"
MOST_EPOCHS = 10**18
"""Largest epoch that is read; a folder's name has at most so many digits."""
FILES = (MODEL_FILE, EXTRA_FILE, RECIPE_FILE, FACTS_FILE)
"""All that a checkpoint's folder may hold."""


class StoredFile(BaseModel):
    """A file of a checkpoint, as its facts and the index of a site describe it."""

    model_config = ConfigDict(frozen=True)

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0)]


class _Facts(BaseModel):
    """The fields of `checkpoint.json` that programs rely on; there may be others."""

    # Strict: otherwise a number in quotes would pass here, and fail later.
    model_config = ConfigDict(strict=True)

    files: dict[Literal[MODEL_FILE, EXTRA_FILE, RECIPE_FILE], StoredFile]
    epoch: Annotated[int, Field(ge=0, le=MOST_EPOCHS)]
    metrics: dict[str, object]
    shards: str
    codec_digest: str | None = None
    lineage: str | None = None
    ancestors: list[tuple[str, int]] = []


def describe(file: Path) -> dict[str, object]:
    """A file's digest and size, as `checkpoint.json` records them."""
    return {"sha256": sha256_of(file), "bytes": file.stat().st_size}


def read_facts(path: Path) -> dict:
    """The content of a checkpoint's `checkpoint.json`.

    Raises:
        BadInput: If it is not that of a checkpoint.
    """
    try:
        text = (path / FACTS_FILE).read_text(encoding="utf-8")
        facts = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # the last one if lists are deep in each other
        raise BadInput(
            f"{path} is no checkpoint: {reason_of(error)}.",
            cure="Give the folder of a checkpoint, or of a run that has written one.",
        ) from None
    if not isinstance(facts, dict):
        raise BadInput(
            f"{path} is no checkpoint: its {FACTS_FILE} is not a JSON object.",
            cure="Give the folder of a checkpoint, or of a run that has written one.",
        )
    if facts.get("format") != FORMAT:
        raise BadInput(
            f"{path} has format {facts.get('format')!r}; this version of the project reads {FORMAT}.",
            cure="Use the version of the project that the run uses.",
        )
    missing = {"files", "epoch", "metrics", "shards"} - facts.keys()
    if missing:
        raise BadInput(
            f"{path} is not a complete checkpoint: its {FACTS_FILE} lacks {', '.join(sorted(missing))}.",
            cure="Use another checkpoint.",
        )
    _check_facts(path, text)
    return facts


def _check_facts(path: Path, text: str) -> None:
    """Raises BadInput if a field is not what programs rely on: the file may come from elsewhere, with its digest."""
    try:
        lacks = {MODEL_FILE, RECIPE_FILE} - _Facts.model_validate_json(text).files.keys()
        wrong = f"it lists no {', '.join(sorted(lacks))}" if lacks else ""
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if wrong:
        raise BadInput(f"{path} is no checkpoint: its {FACTS_FILE} is wrong ({wrong}).", cure="Use another checkpoint.")


def sha256_of(path: Path) -> str:
    """Digest of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
