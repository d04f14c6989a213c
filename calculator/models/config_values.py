"""Reads single values of a Hugging Face `config.json`, and refuses wrong ones in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from calculator.errors import BadSetup

LARGEST_SIZE, MOST_LAYERS, MOST_POSITIONS = 10_000_000, 10_000, 1_000_000_000
"""Largest accepted numbers. Layers are counted one by one: millions would take minutes."""


def size(config: Mapping[str, object], default: int | None, *names: str) -> int:
    """Reads the size under the first of `names` that the config has."""
    for name in names:
        value = config.get(name)
        # transformers writes null where the model has the default.
        if value is None:
            continue
        # bool first, since true is a whole number to Python.
        counts_layers = "layer" in name and "size" not in name
        most = MOST_LAYERS if counts_layers else MOST_POSITIONS if "position" in name else LARGEST_SIZE
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise BadSetup(f"{name} in config is a whole number from 1 to {most}, not {value!r:.60}.")
        return value
    if default is None:
        raise BadSetup(f"config has no {names[0]}.")
    return default


def trained_length(config: Mapping[str, object], default: int) -> int:
    """Reads the number of tokens for which a model with rotary embeddings was trained, or extended by scaling them.

    Configs have the scaling under `rope_scaling` or `rope_parameters`, its kind under `type` or `rope_type`. As in vLLM
    (config/model.py, _get_and_verify_max_len), YaRN multiplies the original length, linear and dynamic scaling multiply
    the config's length; with other kinds, the config's length is the extended one.

    >>> scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    >>> trained_length({"max_position_embeddings": 32_768, "rope_scaling": scaling}, 2048)
    131072
    """
    positions = size(config, default, "max_position_embeddings")
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(scaling, Mapping):
        return positions
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if kind not in ("yarn", "linear", "dynamic") or isinstance(factor, bool) or not isinstance(factor, int | float):
        return positions
    if not 1 <= factor <= LARGEST_SIZE:
        raise BadSetup(f"factor of the rotary embeddings in config is a number from 1 to {LARGEST_SIZE}, not {factor}.")
    original = size(scaling, positions, "original_max_position_embeddings") if kind == "yarn" else positions
    return min(max(positions, int(original * factor)), MOST_POSITIONS)


def has_long_rotation(config: Mapping[str, object]) -> bool:
    """Returns True if rotary embeddings have other frequencies for long sequences.

    Phi-3's code takes older names of the kind for the same.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling")
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, Mapping) else None
    return kind == "longrope" or (config.get("model_type") == "phi3" and kind in ("su", "yarn"))


def even(config: Mapping[str, object], default: int | None, name: str) -> int:
    """Reads a size that rotary embeddings split in half."""
    value = size(config, default, name)
    if value % 2:
        raise BadSetup(f"{name} in config is an even number, not {value}.")
    return value


def share(config: Mapping[str, object], default: float, name: str) -> float:
    """Reads the probability under this name."""
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise BadSetup(f"{name} in config is a number from 0 to below 1, not {value!r:.60}.")
    return value


def activation_of(
    config: Mapping[str, object], default: str, name: str, accepted: tuple[str, ...] = ("relu", "gelu", "gelu_new")
) -> str:
    """Reads the activation under this name."""
    value = config.get(name, default)
    if value not in accepted:
        raise BadSetup(f"{name} in config is one of {', '.join(accepted)}, not {value!r:.60}.")
    return value


def switched_off(config: Mapping[str, object], **names: object) -> None:
    """Refuses options whose values change the structure in a way that the calculator does not model."""
    for name, expected in names.items():
        value = config.get(name, expected)
        if value not in (expected, None):
            raise BadSetup(f"{name} in config is only supported as {expected!r}, not {value!r:.60}.")


def head_width(hidden_size: int, num_heads: int) -> int:
    """The width of a head, where heads divide the whole width."""
    if hidden_size % num_heads:
        raise BadSetup(f"The width {hidden_size} in config is not divisible by its {num_heads} heads.")
    return hidden_size // num_heads


def flag(config: Mapping[str, object], default: bool, name: str) -> bool:
    """Reads the switch under this name; null stands for the default."""
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise BadSetup(f"{name} in config is true or false, not {value!r:.60}.")
    return value


def tied(config: Mapping[str, object], default: bool) -> bool:
    """Reads whether the output head is the token embedding."""
    return flag(config, default, "tie_word_embeddings")
