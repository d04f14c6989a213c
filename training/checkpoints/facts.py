"""Facts in a checkpoint's folder that can be read without its weights, and so without torch, whose import takes
seconds."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from training.checkpoints.folders import FACTS_FILE, checkpoint_epoch, list_checkpoints
from training.errors import BadInput, reason_of

FORMAT = 1
"""Version of the folder's format; other versions are refused."""
MODEL_FILE, EXTRA_FILE, RECIPE_FILE = "model.safetensors", "optimizer.safetensors", "recipe.toml"
MOST_EPOCHS = 10**18
"""Largest epoch that is accepted; it limits the digits in a folder's name."""
FILES = (MODEL_FILE, EXTRA_FILE, RECIPE_FILE, FACTS_FILE)
"""Names of all files that a checkpoint's folder may have."""


class StoredFile(BaseModel):
    """A file of a checkpoint, as its facts and the index of a site describe it."""

    model_config = ConfigDict(frozen=True)

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0)]


class _Facts(BaseModel):
    """Fields of `checkpoint.json` on which programs rely; the file may have others."""

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
    """Digest and size of a file, as `checkpoint.json` records them."""
    return {"sha256": sha256_of(file), "bytes": file.stat().st_size}


def read_facts(path: Path) -> dict:
    """Reads the content of a checkpoint's `checkpoint.json`.

    Raises:
        BadInput: If the file is missing or is not that of a checkpoint.
    """
    try:
        text = (path / FACTS_FILE).read_text(encoding="utf-8")
        facts = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # RecursionError if lists are nested too deeply
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
    """Raises BadInput if a field is not as programs need it: the file may come from elsewhere, with a valid digest."""
    try:
        lacks = {MODEL_FILE, RECIPE_FILE} - _Facts.model_validate_json(text).files.keys()
        wrong = f"it lists no {', '.join(sorted(lacks))}" if lacks else ""
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if wrong:
        raise BadInput(f"{path} is no checkpoint: its {FACTS_FILE} is wrong ({wrong}).", cure="Use another checkpoint.")


def damage_of(path: Path) -> str | None:
    """Describes the damage of a checkpoint, as the end of a sentence; None if it is sound.

    Reads all files, but one that it has read before only after a change.
    """
    try:
        facts = read_facts(path)
    except BadInput as error:
        return f"it {str(error).removeprefix(f'{path} ').rstrip('.')}"
    for name, expected in facts["files"].items():
        try:
            state = (path / name).stat()
            if state.st_size != expected["bytes"]:
                return f"its {name} has {state.st_size:,} bytes, and {expected['bytes']:,} were written"
            if _known_sha256(path / name, state.st_size, state.st_mtime_ns) != expected["sha256"]:
                return f"its {name} differs from the digest that was written with it"
        except OSError as error:
            return f"its {name} cannot be read: {reason_of(error)}"
    return None


@lru_cache(maxsize=256)
def _known_sha256(path: Path, _size: int, _changed_at: int) -> str:
    return sha256_of(path)


def sha256_of(path: Path) -> str:
    """SHA-256 digest of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_has(folder: Path, epoch: int) -> None:
    """Checks that a folder has a checkpoint of an epoch, or that the epoch is 0, which needs none.

    Raises:
        BadInput: If the folder does not have the checkpoint.
    """
    there = {checkpoint_epoch(path): path for path in list_checkpoints(folder)}
    if epoch and epoch not in there:
        # The losses show which checkpoints are from before the weights were spoiled.
        offered = ", ".join(f"{number}{_with_loss(path)}" for number, path in there.items())
        what = f"only those of epochs {offered}" if there else "none at all"
        raise BadInput(
            f"{folder} has no checkpoint of epoch {epoch}, {what}.",
            cure="Give --to the epoch of one of these, or 0 to begin anew.",
        )


def _with_loss(path: Path) -> str:
    """Loss of the run when a checkpoint was written, in brackets; empty if it is unknown."""
    try:
        return f" (loss {read_facts(path)['metrics']['loss']:.3g})"
    except (BadInput, TypeError, KeyError, ValueError):
        return ""
