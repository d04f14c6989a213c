"""Architecture of a recipe's language model: converts a table of settings to a configuration of `transformers`.

A recipe may come from a stranger's address, and a `config.json` of `transformers` may also name code to run, files to
read and kernels to download. So only families that are built into `transformers` and tested here are accepted, and of
their settings only those that describe the architecture.
"""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from training.errors import BadInput, first_line
from training.model.language.model import most_positions
from training.section import MOST_LAYERS

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gptj",
    "smollm3",
    "phi3",
    "olmo2",
)
"""Values of `model_type` whose losses and gradients are compared with those of `transformers` in the tests. Others may
ignore the borders of documents, have a loss that is more than cross entropy, or are unknown to the calculator."""
EAGER = ("gemma2", "gptj")
"""Families for which `transformers` 5.23 has no fused attention: Gemma 2 bounds the scores, GPT-J predates it."""
OLDER_NAMES = {
    "rope_theta",
    "rope_scaling",
    "rope_local_base_freq",
    "sliding_window_pattern",
    "partial_rotary_factor",
}
"""Settings of older `config.json` files that `transformers` still converts to current ones."""
SAID_OTHERWISE = {"model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "use_cache"}
"""Settings that any `config.json` has and that change nothing here; weights are always float32."""
REFUSED_IF_SET = {"use_bidirectional_attention", "add_cross_attention", "is_encoder_decoder"}
"""Settings of these families with which the model would not be a decoder."""
UNSTEADY_ROPES = {"dynamic", "longrope"}
"""Rotary positions whose angles depend on the longest text so far: a document's loss would depend on its neighbours."""


def read_architecture(table: dict[str, Any]) -> PreTrainedConfig:
    """Makes the configuration that a recipe's `architecture` describes.

    Raises:
        BadInput: If the family is unknown, or a setting is unknown, not allowed or impossible.
    """
    family = _family(table)
    known = _known(family)
    for name, value in table.items():
        if name not in known and name not in SAID_OTHERWISE:
            nearest = get_close_matches(name, sorted(known), n=1)
            other = f", or use {nearest[0]}" if nearest else ""
            raise BadInput(
                f"model.architecture.{name} is not a setting of {family} that a recipe may make; omit it{other}."
            )
        _check_plain(name, value)
    return _build(family, {name: value for name, value in table.items() if name not in SAID_OTHERWISE})


def read_config_json(table: dict[str, Any]) -> PreTrainedConfig:
    """Makes the configuration of published weights; settings that do not describe the architecture are left out.

    Raises:
        BadInput: If the family is unknown, the weights are quantized, or a setting is impossible.
    """
    family = _family(table)
    if table.get("quantization_config"):
        raise BadInput("The weights of model.from are quantized; choose weights in 16 or 32 bits.")
    if table.get("is_causal") is False:
        raise BadInput("The weights of model.from see what follows a token; choose those of a decoder.")
    taken = {name: value for name, value in table.items() if name in _known(family)}
    for name, value in taken.items():
        _check_plain(name, value)
    return _build(family, taken)


def recipe_table(table: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a `config.json` that a recipe's `architecture` may have, without those that are not set.

    >>> recipe_table({"model_type": "gpt2", "n_layer": 2, "n_inner": None, "dtype": "float32"})
    {'model_type': 'gpt2', 'n_layer': 2}
    """
    known = {"model_type", *(_known(_family(table)) - SAID_OTHERWISE)}
    return {name: value for name, value in table.items() if name in known and value is not None}


def check_agreement(table: dict[str, Any], config: PreTrainedConfig) -> None:
    """Compares a recipe's `architecture` with that of the weights with which training begins.

    Raises:
        BadInput: If the two differ in a setting that the recipe contains.
    """
    asked = read_architecture(table)
    names = [asked.attribute_map.get(name, name) for name in table if name not in SAID_OTHERWISE]
    # `transformers` converts older names to this one.
    names = ["rope_parameters" if name in OLDER_NAMES and not hasattr(asked, name) else name for name in names]
    for name in ("model_type", *names):
        ours, theirs = getattr(asked, name, None), getattr(config, name, None)
        if ours != theirs:
            raise BadInput(
                f"model.architecture.{name} is {ours!r}, but {theirs!r} in the weights of model.from; omit the "
                "architecture or change it."
            )


def check_length(config: PreTrainedConfig, block_length: int) -> None:
    """Raises BadInput if blocks are longer than the architecture has positions for."""
    most = most_positions(config)
    if most is not None and block_length > most:
        raise BadInput(
            f"model.block_length is {block_length}, but the architecture has {most} positions; give at most as many."
        )


def attention_of(config: PreTrainedConfig) -> str:
    """Name of the implementation of attention in `transformers`."""
    return "eager" if config.model_type in EAGER else "sdpa"


def _family(table: dict[str, Any]) -> str:
    family = table.get("model_type")
    if family in FAMILIES:
        return family
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES as CONFIGS
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS

    tested = ", ".join(FAMILIES)
    if not isinstance(family, str) or family not in CONFIGS:
        raise BadInput(f"model_type is {family!r}, which transformers does not know; use one of {tested}.")
    if family not in DECODERS or family in ("bert", "t5"):
        raise BadInput(f"model_type is {family!r}, which is not a causal language model; use one of {tested}.")
    raise BadInput(f"model_type is {family!r}, which this trainer has not been tested with; use one of {tested}.")


def _known(family: str) -> set[str]:
    """Returns the settings of one family, without those that all classes of `transformers` share."""
    from transformers import PreTrainedConfig

    kind = _config_class(family)
    common = {field.name for field in fields(PreTrainedConfig)}
    own = {field.name for field in fields(kind)} - common
    return {name for name in own if not name.startswith("_")} | set(kind.attribute_map) | OLDER_NAMES


def _config_class(family: str) -> type[PreTrainedConfig]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[family]


def _check_plain(name: str, value: Any) -> None:
    """Raises BadInput if a setting is not a number, a word, or (for rotary positions) a table of these."""
    if name in REFUSED_IF_SET and value:
        raise BadInput(f"model.architecture.{name} is {value!r}, which would not be a decoder; omit it in the recipe.")
    if name.startswith("rope") and isinstance(value, dict):
        for key, one in value.items():
            _check_plain(f"rope.{key}", one)
        unsteady = {value.get("rope_type"), value.get("type")} & UNSTEADY_ROPES if _are_plain(value.values()) else set()
        if unsteady:
            raise BadInput(
                f"model.architecture.{name} has the type {unsteady.pop()}, whose positions depend on the length of the "
                "text; use default, linear, llama3 or yarn."
            )
        return
    if not _are_plain(value if isinstance(value, list | tuple) else [value]):
        raise BadInput(
            f"model.architecture.{name} is {value!r}; give a number, a word, true or false, or a list of such."
        )


def _are_plain(values) -> bool:
    return all(value is None or isinstance(value, bool | int | float | str) for value in values)


def _build(family: str, settings: dict[str, Any]) -> PreTrainedConfig:
    try:
        config = _config_class(family)(**settings)
        config.validate_rope() if hasattr(config, "validate_rope") else None
        layers = config.num_hidden_layers
    except Exception as error:  # each class raises its own errors
        raise BadInput(
            f"transformers refuses this architecture of {family}: {first_line(error)}", cure="Change it in the recipe."
        ) from None
    if not 1 <= layers <= MOST_LAYERS:
        raise BadInput(f"The architecture has {layers} layers; give 1 to {MOST_LAYERS}.")
    return config
