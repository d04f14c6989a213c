"""Conversion of dalle-pytorch's weights into checkpoints of this project and back, and of adapters for peft."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from training.checkpoints.checkpoint import find_checkpoint, load_checkpoint, recipe_of, save_checkpoint, write_tensors
from training.data.store.sets import open_manifest
from training.errors import BadInput, TrainingError, reason_of
from training.model.convert import from_dalle_pytorch, to_dalle_pytorch
from training.model.language.folders import export_adapters
from training.model.transformer import build_model
from training.recipe import parse_recipe, read_recipe
from training.storage.whole import whole_file

_INNER_NAMES = ("weights", "state_dict", "model")
"""Keys under which the files of training scripts store the state dictionary."""


def import_weights(
    source: Path,
    folder: Path,
    *,
    recipe: str | None,
    epoch: int = 0,
    shards: str | None = None,
) -> Path:
    """Makes a checkpoint from dalle-pytorch's weights.

    Args:
        source: A `.pt` file (read without running any code in it) or a `.safetensors` file.
        folder: Folder of checkpoints, which receives the new one.
        recipe: Name, path or URL of the recipe that the weights were trained with.
        epoch: Number of global updates that the weights have received.
        shards: Folder or URL of the shards; None: that in the recipe.

    Returns:
        Folder of the checkpoint.

    Raises:
        BadInput: If the file cannot be read or does not belong to this recipe.
    """
    if not source.exists():
        raise BadInput(f"{source} does not exist; give a file of weights, or a checkpoint folder.")
    if recipe is None:
        raise BadInput("Say with --recipe which recipe the weights were trained with, such as dalle-2021.")
    state = read_state(source)
    text = read_recipe(recipe)
    config = parse_recipe(text, source=recipe)
    model = build_model(config.model, seed=0)
    model.load_state_dict(from_dalle_pytorch(state, model))
    return save_checkpoint(
        folder,
        model=model,
        recipe_toml=text,
        epoch=epoch,
        metrics={},
        shards=shards or config.data.shards,
        codec_digest=_codec_of(shards) if shards is not None else None,
    )


def export_adapters_of(source: Path, folder: Path) -> None:
    """Writes a checkpoint's adapters in peft's format.

    Args:
        source: Folder of a checkpoint, or of checkpoints, whose latest is taken.
        folder: Folder to write; an older one is replaced.

    Raises:
        BadInput: If there is no checkpoint, or its run trains a whole model.
    """
    path = find_checkpoint(source)
    if getattr(recipe_of(path), "adapter", None) is None:
        raise BadInput(f"{path} holds a whole model and no adapters; omit --adapters.")
    export_adapters(load_checkpoint(path, computes=False).model, folder)


def _codec_of(shards: str) -> str | None:
    """Digest of the shards' codec; None if the shards do not exist yet."""
    with suppress(BadInput):
        return open_manifest(shards, kind=None).codec_digest
    return None


def export_checkpoint(source: Path, file: Path) -> None:
    """Writes a checkpoint's weights atomically, under the names of dalle-pytorch 1.6.6.

    Args:
        source: Folder of a checkpoint, or of checkpoints, whose latest is taken.
        file: Path of a `.pt` (shared weights are stored once) or a `.safetensors` (repeated under each name).

    Raises:
        BadInput: If there is no checkpoint, or the file has another suffix.
        TrainingError: If the file cannot be written.
    """
    if file.suffix not in (".pt", ".safetensors"):
        raise BadInput(f"{file} ends in {file.suffix!r}; give a file that ends in .pt or .safetensors.")
    state = to_dalle_pytorch(load_checkpoint(find_checkpoint(source)).model)
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        with whole_file(file) as draft:
            if file.suffix == ".pt":
                torch.save(state, draft)
            else:
                # Clones: safetensors refuses tensors that share memory, as the weights of shared layers do here.
                write_tensors({name: tensor.clone().contiguous() for name, tensor in state.items()}, draft)
    except RuntimeError as error:  # from torch.save, which does not pass on the system's error
        raise TrainingError(
            f"{file} cannot be written, perhaps because the disk is full: {_why(error)}.",
            cure="Make room on the disk, or give another file.",
        ) from None


def read_state(source: Path) -> dict[str, Tensor]:
    """Reads the state dictionary in a file; runs no code in a `.pt`.

    Raises:
        BadInput: If the file cannot be read or holds no state dictionary.
    """
    try:
        if source.suffix == ".safetensors":
            return load_file(source)
        content = torch.load(source, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise BadInput(
            f"{source} cannot be read as weights: {_why(error)}.",
            cure="Check that the file is there, whole, and readable for you.",
        ) from None
    # One after the other, since scripts also store such a dictionary inside another.
    for name in _INNER_NAMES:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    state = (
        {name: tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
        if isinstance(content, dict)
        else {}
    )
    if not state:
        raise BadInput(
            f"{source} holds no state dictionary.", cure="Give the file of weights that dalle-pytorch has saved."
        )
    return state


def _why(error: Exception) -> str:
    """Reason of an error in a few words; PyTorch's own message advises to run the code in the file."""
    if isinstance(error, UnpicklingError):
        return "it is not a file of tensors, or also holds other objects, which are not loaded"
    return (reason_of(error).splitlines() or ["it is empty"])[0].rstrip(".")
