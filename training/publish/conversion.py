"""Files of dalle-pytorch's weights: read into a checkpoint of ours, or written from one."""

from __future__ import annotations

import os
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from training.config import parse_recipe, read_recipe
from training.errors import BadInput
from training.model.convert import from_dalle_pytorch, to_dalle_pytorch
from training.model.transformer import build_model
from training.publish.checkpoints import find_checkpoint, load_checkpoint, save_checkpoint

_INNER_NAMES = ("weights", "state_dict", "model")
"""Where files of training scripts hold the state dictionary, beside other things."""


def import_weights(
    source: Path, folder: Path, *, recipe: str | None, epoch: int = 0, shards: str | None = None
) -> Path:
    """Makes a checkpoint of dalle-pytorch's weights.

    Args:
        source: A `.pt` (read without running any code in it) or `.safetensors`.
        folder: Gets the checkpoint.
        recipe: Name, path or URL of the recipe that the weights were trained with.
        epoch: Global updates that they have had.
        shards: Folder or URL of the shards; None is the recipe's.

    Returns:
        The checkpoint's folder.

    Raises:
        BadInput: If the file cannot be read or is not of this recipe.
    """
    if recipe is None:
        raise BadInput("Say with --recipe which recipe the weights were trained with, such as dalle-2021.")
    state = read_state(source)
    text = read_recipe(recipe)
    config = parse_recipe(text, source=recipe)
    model = build_model(config.model, seed=0)
    model.load_state_dict(from_dalle_pytorch(state, model))
    return save_checkpoint(
        folder, model=model, recipe_toml=text, epoch=epoch, metrics={}, shards=shards or config.data.shards
    )


def export_checkpoint(source: Path, file: Path) -> None:
    """Writes a checkpoint's weights as dalle-pytorch 1.6.6 names them, whole or not at all.

    Args:
        source: A checkpoint folder, or one that holds some: the latest is taken.
        file: `.pt` (shared weights are stored once) or `.safetensors` (repeated under each name).

    Raises:
        BadInput: If there is no checkpoint, or the file's ending is another.
    """
    if file.suffix not in (".pt", ".safetensors"):
        raise BadInput(f"{file} ends in {file.suffix!r}; give a file that ends in .pt or .safetensors.")
    state = to_dalle_pytorch(load_checkpoint(find_checkpoint(source)).model)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    if file.suffix == ".pt":
        torch.save(state, draft)
    else:
        save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, draft)
    os.replace(draft, file)


def read_state(source: Path) -> dict[str, Tensor]:
    """The state dictionary in a file; of a `.pt`, no code is run.

    Raises:
        BadInput: If it cannot be read or holds none.
    """
    try:
        if source.suffix == ".safetensors":
            return load_file(source)
        content = torch.load(source, map_location="cpu", weights_only=True)
    except (OSError, SafetensorError, UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise BadInput(f"{source} cannot be read as weights: {str(error).splitlines()[0]}.") from None
    for name in _INNER_NAMES:
        if isinstance(content, dict) and isinstance(content.get(name), dict):
            content = content[name]
    state = (
        {name: tensor for name, tensor in content.items() if isinstance(tensor, Tensor)}
        if isinstance(content, dict)
        else {}
    )
    if not state:
        raise BadInput(f"{source} holds no state dictionary.")
    return state
