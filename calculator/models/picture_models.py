"""The models of pictures: their presets, and any of their families from a `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from calculator.errors import BadSetup
from calculator.models.architecture import Architecture
from calculator.models.config_values import activation_of, flag, head_width, share, size, switched_off

LARGEST_PICTURE = 16_384
"""Pixels of the longest side of a picture that is counted."""


def _vit(name: str, hidden_size: int, num_layers: int, num_heads: int, num_labels: int = 1000) -> Architecture:
    model = Architecture(
        name=name,
        family="vit",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        head_dim=hidden_size // num_heads,
        intermediate_size=4 * hidden_size,
        vocab_size=0,
        sequence_length=0,
        activation="gelu",
        projection_bias=True,
        dropout=0.0,
        attention_dropout=0.0,
        tied_embeddings=False,
        patch_size=16,
        channels=3,
        num_labels=num_labels,
    )
    return with_picture(model, 224, 224)


def with_picture(model: Architecture, height: int, width: int) -> Architecture:
    """A model for pictures of this size in pixels.

    There is one token for each patch, and for the class in ViT, whose table of positions is as long. What is left of
    whole patches is cut off.
    """
    side = model.patch_size
    patches = (height // side) * (width // side)
    if not patches:
        raise BadSetup(
            f"A picture of {height} x {width} pixels has no patch of {model.patch_size} x {model.patch_size}; give "
            f"image_size {model.patch_size} or more."
        )
    if model.diffuses:
        _check_grid(model, height, width)
        return replace(model, image_height=height // side * side, image_width=width // side * side)
    return replace(
        model, image_height=height, image_width=width, sequence_length=patches + 1, max_positions=patches + 1
    )


def _check_grid(model: Architecture, height: int, width: int) -> None:
    """Refuses pictures that are larger than the model's table of positions."""
    most = model.position_grid * model.patch_size
    if most and max(height, width) >= most + model.patch_size:
        raise BadSetup(
            f"{model.name} has a table of {model.position_grid} x {model.position_grid} positions, for pictures of up "
            f"to {most} x {most} pixels, not {height} x {width}; give a smaller image_size."
        )


PICTURE_MODELS: tuple[Architecture, ...] = (
    # Dosovitskiy et al. 2021, arXiv:2010.11929, table 1; the released checkpoints for 1000 classes
    _vit("vit-base", 768, 12, 12),
    _vit("vit-large", 1024, 24, 16),
)


def vit_config(config: Mapping[str, object]) -> Architecture:
    """Reads the config of a vision transformer that classifies pictures."""
    switched_off(config, problem_type="single_label_classification")
    hidden_size, heads = size(config, 768, "hidden_size"), size(config, 12, "num_attention_heads")
    own = config.get("head_dim") is not None
    model = Architecture(
        name="config (vit)",
        family="vit",
        hidden_size=hidden_size,
        num_layers=size(config, 12, "num_hidden_layers"),
        num_heads=heads,
        head_dim=size(config, None, "head_dim") if own else head_width(hidden_size, heads),
        intermediate_size=size(config, 3072, "intermediate_size"),
        vocab_size=0,
        sequence_length=0,
        activation=activation_of(config, "gelu", "hidden_act"),
        projection_bias=flag(config, True, "qkv_bias"),
        dropout=share(config, 0.0, "hidden_dropout_prob"),
        attention_dropout=share(config, 0.0, "attention_probs_dropout_prob"),
        tied_embeddings=False,
        patch_size=size(config, 16, "patch_size"),
        channels=size(config, 3, "num_channels"),
        num_labels=_labels(config),
    )
    return with_picture(model, *sides(config, 224))


def _labels(config: Mapping[str, object]) -> int:
    """The number of classes: configs list their names, and transformers takes 2 where one does not."""
    if config.get("num_labels") is None and config.get("id2label") is not None:
        names = config.get("id2label")
        if not isinstance(names, Mapping):
            raise BadSetup(f"id2label in config is an object with the name of each class, not {names!r:.60}.")
        number = len(names)
    else:
        number = size(config, 2, "num_labels")
    if number < 2:
        raise BadSetup("ViT is counted for two classes or more; give num_labels 2 or more in config.")
    return number


def sides(config: Mapping[str, object], usual: int) -> tuple[int, int]:
    """Height and width of a picture in pixels; one number stands for both."""
    given = config.get("image_size")
    pair = given if isinstance(given, list | tuple) and len(given) == 2 else (given, given)
    height, width = (size({"image_size": side}, usual, "image_size") for side in pair)
    if max(height, width) > LARGEST_PICTURE:
        raise BadSetup(f"image_size in config is at most {LARGEST_PICTURE} pixels, not {max(height, width)}.")
    return height, width


PICTURE_READERS: dict[str, Callable[[Mapping[str, object]], Architecture]] = {"vit": vit_config}
"""For each `model_type`, the function that reads its config."""
