"""Checkpoints on disk: weights, recipe and facts of one epoch, in a folder that is written atomically.

CHECKPOINTS/epoch-000040/model.safetensors   weights; of a model with adapters, only these
                         optimizer.safetensors   more tensors, such as the optimizer's (optional)
                         recipe.toml         the run's recipe
                         checkpoint.json     epoch, metrics, location of the shards, digests of codec and files
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Size, Tensor

from training.checkpoints.facts import (
    EXTRA_FILE,
    FORMAT,
    MODEL_FILE,
    RECIPE_FILE,
    describe,
    read_facts,
    sha256_of,
)
from training.checkpoints.folders import FACTS_FILE, KEPT_FOLDER, NAME, checkpoint_epoch, list_checkpoints
from training.errors import BadInput, TrainingError, first_line, reason_of
from training.model.trained import count_trained, load_trained_state, trained_state
from training.recipe import RunConfig, parse_recipe, read_recipe
from training.storage.whole import delete_drafts, whole_folder, write_whole
from training.tasks.known import task_of
from training.tasks.task import TrainedModel

if TYPE_CHECKING:  # it loads hivemind, which programs that only read checkpoints do not need
    from training.swarm.run.lineage import Lineage


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Content of a checkpoint's folder."""

    path: Path
    """Path of the folder."""
    model: TrainedModel
    """The model with its weights, in evaluation mode, on the CPU."""
    config: RunConfig
    """The recipe."""
    recipe_toml: str
    """Text of the recipe."""
    epoch: int
    """Number of global updates that the weights have received."""
    metrics: dict
    """The run's metrics at this epoch."""
    shards: str
    """Folder or URL of the prepared shards that hold the codec and the tokenizer."""
    codec_digest: str | None = None
    """Digest of the codec, or of the tokenizer of text, whose tokens the model was trained on; None if the checkpoint
    does not record it."""
    lineage: str | None = None
    """Id of the training that the weights come from; None if the checkpoint does not record it."""
    extra_tensors: dict[str, Tensor] = field(default_factory=dict)
    """Tensors saved in addition to the model's."""


def save_checkpoint(
    folder: Path,
    *,
    model: TrainedModel,
    recipe_toml: str,
    epoch: int,
    metrics: Mapping[str, object],
    shards: str,
    codec_digest: str | None = None,
    lineage: Lineage | None = None,
    extra_tensors: Mapping[str, Tensor] | None = None,
    weights: Mapping[str, Tensor] | None = None,
    clock: Callable[[], float] = time.time,
) -> Path:
    """Writes `folder/epoch-NNNNNN` atomically: if the program is killed, the folder is absent or complete.

    Args:
        folder: Folder of the run's checkpoints; created if it is missing.
        model: Model whose weights are saved, unless there are `weights`.
        recipe_toml: Text of the recipe; must describe this model.
        epoch: Number of global updates so far.
        metrics: Facts for people and pages; must be serializable as JSON.
        shards: Folder or URL of the prepared shards.
        codec_digest: Digest of the shards' codec, if it is known.
        lineage: Training that the weights come from, if it is known.
        extra_tensors: Further tensors, such as the optimizer's state, by name.
        weights: Weights in the form of the model's `trained_state`; None: its result.
        clock: Returns seconds since 1970.

    Raises:
        BadInput: If the recipe is invalid or describes another model.
        TrainingError: If the weights cannot be written, such as to a full disk.
        OSError: If another file cannot be written.
    """
    config = parse_recipe(recipe_toml)
    _check_model(config, model)
    facts = {
        "format": FORMAT,
        "run_id": config.run_id,
        "epoch": epoch,
        "recipe_digest": config.digest,
        "parameters": count_trained(model),
        "metrics": dict(metrics),
        "shards": shards,
        "codec_digest": codec_digest,
        **_origin(lineage),
        "written_at": clock(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    # This process is the folder's only writer, so every draft in it was left behind by a killed process.
    delete_drafts(folder)
    target = folder / f"epoch-{epoch:06d}"
    with whole_folder(target) as draft:
        _write_weights(draft, model, trained_state(model) if weights is None else weights, extra_tensors or {})
        (draft / RECIPE_FILE).write_text(recipe_toml, encoding="utf-8")
        facts["files"] = {path.name: describe(path) for path in sorted(draft.iterdir())}
        (draft / FACTS_FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return target


def _check_model(config: RunConfig, model: TrainedModel) -> None:
    if not task_of(config).describes(model):
        raise BadInput(
            f"The model to save is not that of the recipe {config.run_id}: its sizes differ.",
            cure="Give the model's own recipe.",
        )


def _origin(lineage: Lineage | None) -> dict[str, object]:
    if lineage is None:
        return {"lineage": None}
    return {"lineage": lineage.id, "ancestors": lineage.ancestors}


def _write_weights(
    draft: Path, model: TrainedModel, state: Mapping[str, Tensor], extra_tensors: Mapping[str, Tensor]
) -> None:
    first = _first_names(model)
    weights = {name: tensor.contiguous() for name, tensor in state.items() if first[name] == name}
    write_tensors(weights, draft / MODEL_FILE)
    if extra_tensors:
        # Clones: safetensors refuses tensors that share memory.
        extra = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in extra_tensors.items()}
        write_tensors(extra, draft / EXTRA_FILE)


def _first_names(model: TrainedModel) -> dict[str, str]:
    """First name of each weight, by all its names: a file has each weight once, under its first name."""
    names: dict[tuple[int, Size], str] = {}
    return {name: names.setdefault((one.data_ptr(), one.shape), name) for name, one in trained_state(model).items()}


def _load_weights(model: TrainedModel, file: Path) -> None:
    """Reads into a model the weights that `_write_weights` has written.

    Raises:
        SafetensorError: If the file is not one of safetensors.
        RuntimeError: If the file lacks a weight, or has others than the model.
    """
    read = load_file(file)
    shared = {name: read[first] for name, first in _first_names(model).items() if first in read and name not in read}
    load_trained_state(model, read | shared)


def write_tensors(tensors: dict[str, Tensor], file: Path) -> None:
    """Writes tensors to a `.safetensors` file.

    Raises:
        TrainingError: If the file cannot be written; the library's own error is not an OSError.
    """
    try:
        save_file(tensors, file)
    except SafetensorError as error:
        raise TrainingError(
            f"{file} cannot be written: {error}.", cure="Make room on the disk, or give a folder that you may write to."
        ) from None


def latest_checkpoint(folder: Path) -> Path | None:
    """Path of the checkpoint with the highest epoch; None if the folder has no checkpoint."""
    return (list_checkpoints(folder) or [None])[-1]


def load_checkpoint(path: Path, *, recipe: RunConfig | None = None, computes: bool = True) -> Checkpoint:
    """Reads a checkpoint folder.

    Args:
        path: Folder of the checkpoint, `epoch-NNNNNN`.
        recipe: Recipe of the run; a checkpoint of another recipe is refused. None: any recipe.
        computes: True if the model must compute. If False, frozen weights, which are not in the folder, are not loaded.

    Raises:
        BadInput: If the folder is not a checkpoint's, a file is damaged, or the checkpoint belongs to another recipe.
    """
    facts = read_facts(path)
    # Digests first: a flipped bit in a weight raises no error when the weight is loaded.
    for name, expected in facts["files"].items():
        file = path / name
        if not file.is_file():
            raise BadInput(f"{path} lacks {name}; use another checkpoint.")
        if sha256_of(file) != expected["sha256"]:
            raise BadInput(f"{file} is damaged: its digest differs from the recorded one; use another checkpoint.")
    recipe_toml = read_recipe(str(path / RECIPE_FILE))
    config = parse_recipe(recipe_toml, source=str(path / RECIPE_FILE))
    if recipe is not None and recipe.digest != config.digest:
        raise BadInput(
            f"{path} holds weights of the recipe {config.run_id} ({config.digest}), not of {recipe.run_id} "
            f"({recipe.digest}); resume with the recipe in the checkpoint's folder, or start in another folder."
        )
    task = task_of(config)
    model = (task.build_model() if computes else task.build_trained_part()).eval()
    try:
        _load_weights(model, path / MODEL_FILE)
        extra = load_file(path / EXTRA_FILE) if EXTRA_FILE in facts["files"] else {}
    except OSError as error:  # for example, the checkpoint was deleted meanwhile
        raise BadInput(f"{path} cannot be read: {reason_of(error)}.", cure="Use another checkpoint.") from None
    except (SafetensorError, RuntimeError) as error:
        raise BadInput(
            f"{path / MODEL_FILE} does not match the recipe in the same folder: {first_line(error).rstrip('.')}.",
            cure="Use another checkpoint; this one was changed by hand.",
        ) from None
    return Checkpoint(
        path=path,
        model=model,
        config=config,
        recipe_toml=recipe_toml,
        epoch=facts["epoch"],
        metrics=facts["metrics"],
        shards=facts["shards"],
        codec_digest=facts.get("codec_digest"),
        lineage=facts.get("lineage"),
        extra_tensors=extra,
    )


def recipe_of(path: Path) -> RunConfig:
    """Reads the recipe in a checkpoint's folder, without the weights.

    Raises:
        BadInput: If the recipe cannot be read.
    """
    return parse_recipe(read_recipe(str(path / RECIPE_FILE)), source=str(path / RECIPE_FILE))


def codec_of(path: Path) -> str | None:
    """Digest of the codec whose tokens a checkpoint was trained on; None if the checkpoint does not record it.

    Raises:
        BadInput: If the folder is not a checkpoint's.
    """
    return read_facts(path).get("codec_digest")


def lineage_of(path: Path) -> str | None:
    """Id of the training that a checkpoint comes from; None if the checkpoint does not record it.

    Raises:
        BadInput: If the folder is not a checkpoint's.
    """
    return read_facts(path).get("lineage")


def ancestors_of(path: Path) -> tuple[tuple[str, int], ...]:
    """Ancestors of a checkpoint's lineage, each with the last common epoch; see `Lineage.ancestors`.

    Raises:
        BadInput: If the folder is not a checkpoint's.
    """
    return tuple((lineage, epoch) for lineage, epoch in read_facts(path).get("ancestors", ()))


def set_lineage(path: Path, lineage: Lineage) -> None:
    """Makes a checkpoint the first one of a branch, which begins with its weights.

    Raises:
        BadInput: If the folder is not a checkpoint's.
    """
    facts = read_facts(path) | _origin(lineage)
    write_whole(path / FACTS_FILE, json.dumps(facts, indent=1) + "\n")


def check_codec(path: Path, expected: str | None, *, shards: str, found: str) -> None:
    """Refuses shards whose codec, or tokenizer of text, differs from the one that a checkpoint was trained with.

    Tokens of another codec are in the same range, but stand for other pictures or words.

    Args:
        path: Folder of the checkpoint.
        expected: Digest of the checkpoint's codec; None if it is unknown: then any codec is accepted.
        shards: Location of the shards.
        found: Digest of the shards' codec.

    Raises:
        BadInput: If the two digests differ.
    """
    if expected is not None and found != expected:
        raise BadInput(
            f"The tokens of {shards} are of the codec {found[:12]}, but {path} was trained on those of "
            f"{expected[:12]}, which stand for something else; give the shards that it was trained on with --shards."
        )


def find_checkpoint(source: Path) -> Path:
    """Finds the checkpoint that a path refers to: the folder itself, or the latest checkpoint anywhere below it.

    Raises:
        BadInput: If there is no checkpoint.
    """
    if (source / FACTS_FILE).is_file():
        return source
    found = [
        path.parent
        for path in source.glob(f"**/epoch-*/{FACTS_FILE}")
        if NAME.fullmatch(path.parent.name) and KEPT_FOLDER not in path.relative_to(source).parts
    ]
    if not found:
        what = "has no checkpoint yet" if source.is_dir() else "is no folder" if source.exists() else "does not exist"
        raise BadInput(
            f"{source} {what}. Train first (python -m training demo), or name a checkpoint folder with --checkpoint."
        )
    return max(found, key=checkpoint_epoch)
