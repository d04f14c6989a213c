"""The run as a file: a TOML recipe becomes one frozen `RunConfig` on which all peers agree.

A peer compares digests of recipes when it joins, so that nobody trains another model by mistake. Settings of a single
machine (its name, its micro-batch size, its addresses) are not in the recipe: see `training.volunteer.settings`. Each
table of the recipe is a section that stands in the `config.py` of its component.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializeAsAny, ValidationError, model_validator

from training.data.config import DataConfig
from training.errors import BadInput, TrainingError, reason_of
from training.model.codecs.config import CodecConfig
from training.model.config import ModelConfig
from training.model.language.config import AdapterConfig, LanguageModelConfig
from training.optim.config import OptimizerConfig, ScheduleConfig
from training.publish.config import MonitorConfig
from training.section import Section
from training.storage.remote import Refusal, read_document
from training.swarm.config import SwarmConfig
from training.trust.config import MembershipConfig

RECIPES = Path(__file__).parent / "recipes"
LARGEST_RECIPE_BYTES, DEEPEST = 1 << 14, 20
"""Limits of a recipe: its size (ours have up to 5600 bytes), and how deep its tables and lists may be nested. `tomllib`
takes a second for the worst recipe of this size, and half an hour for a dotted key of 1 MiB."""
RECIPE_SECONDS, SILENCE_SECONDS = 60.0, 20.0
"""Longest time for the download of a recipe, and longest silence of its server."""
KEPT_CHARACTERS = "\n\t\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}"
"""Characters that a recipe's texts may have beside the printable ones; Persian, Hindi and emoji need the last two."""
NOT_IN_DIGEST = {
    "title": True,
    "description": True,
    "data": {"shards"},
    "swarm": {"max_epochs_alone"},
    "monitor": True,
    "membership": True,
}
"""Fields that peers need not agree on, because they do not change what peers exchange."""

TEXT_TO_IMAGE, CAUSAL_LM = "text-to-image", "causal-lm"


class NoRecipe(BadInput):
    """Error for an address at which a server has no document."""


class RunConfig(Section):
    """One collaborative run, as its recipe describes it. All peers agree on every field.

    Each task has a class of its own, which says what its `[model]` may hold; `run_of` chooses it.
    """

    run_id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    """The run's name in the DHT."""
    title: str
    """The run's name for people."""
    description: str = ""
    """Description of the run in one sentence."""
    task: Annotated[str, Field(max_length=100)] = TEXT_TO_IMAGE
    """Task of the run: `text-to-image` or `causal-lm`."""
    seed: int = 0
    """Seed of the initial weights, the same for all peers."""
    kind: ClassVar[Literal["pictures", "text"]]
    """Kind of samples in the run's shards."""
    model: SerializeAsAny[Section]
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    swarm: SwarmConfig
    monitor: MonitorConfig = MonitorConfig()
    membership: MembershipConfig = MembershipConfig()

    @model_validator(mode="before")
    @classmethod
    def _choose_aggregation(cls, fields: Any) -> Any:
        """Sets CenteredClip in a recipe whose members may be unvouched,
        unless the recipe chooses another aggregation."""
        tables = [fields.get(name) for name in ("swarm", "membership")] if isinstance(fields, dict) else []
        if not tables or not all(isinstance(table, dict) for table in tables):
            return fields
        swarm, membership = tables
        if membership.get("unvouched") is not True or "aggregation" in swarm:
            return fields
        return {**fields, "swarm": {**swarm, "aggregation": "centered-clip"}}

    @model_validator(mode="after")
    def _parts_agree(self) -> RunConfig:
        if self.membership.unvouched and self.swarm.aggregation == "mean":
            raise ValueError(
                "membership.unvouched does not go with swarm.aggregation mean, which one hostile member can move "
                "anywhere; write centered-clip there, or omit it"
            )
        if self.schedule.warmup_epochs >= self.schedule.total_epochs:
            raise ValueError("schedule.warmup_epochs must be smaller than schedule.total_epochs")
        return self

    @property
    def calculator_config(self) -> dict[str, Any] | None:
        """The model as the calculator reads it, including `model_type`; None if only the task can tell it."""
        return None

    @property
    def calculator_adapters(self) -> dict[str, Any]:
        """Adapters that are trained in place of the model, as fields of `calculator.step.setups.Setup`;
        empty without adapters."""
        return {}

    @property
    def digest(self) -> str:
        """Hex digest of the fields on which all peers must agree: all except those of `NOT_IN_DIGEST`.

        A maintainer may change the fields of `NOT_IN_DIGEST` in mid-run; peers with old values stay in the run.
        """
        fields = self.model_dump(mode="json", exclude=NOT_IN_DIGEST)
        # Sorted, so that the order of the lines in the file does not matter.
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]


class TextToImageRun(RunConfig):
    """A run that trains a text-to-image transformer."""

    kind = "pictures"
    model: ModelConfig
    codec: CodecConfig

    @model_validator(mode="after")
    def _sizes_agree(self) -> TextToImageRun:
        model, codec = self.model, self.codec
        if codec.image_size % codec.downsampling or codec.image_size // codec.downsampling != model.image_grid:
            raise ValueError(
                f"model.image_grid is {model.image_grid}, but codec.image_size {codec.image_size} / "
                f"downsampling {codec.downsampling} gives {codec.image_size / codec.downsampling:g}; "
                "make them equal"
            )
        if codec.codebook_size != model.image_vocab_size:
            raise ValueError(
                f"model.image_vocab_size is {model.image_vocab_size}, but codec.codebook_size is "
                f"{codec.codebook_size}; make them equal"
            )
        return self

    @property
    def calculator_config(self) -> dict[str, Any]:
        """See `RunConfig.calculator_config`."""
        return {"model_type": TEXT_TO_IMAGE, **self.model.model_dump()}


class LanguageRun(RunConfig):
    """A run that trains a language model."""

    kind = "text"
    model: LanguageModelConfig
    adapter: AdapterConfig | None = None

    @model_validator(mode="after")
    def _adapts_a_trained_model(self) -> LanguageRun:
        if self.adapter is not None and self.model.pretrained is None:
            raise ValueError("adapter needs a trained model; give model.from = a folder or hub id of its weights")
        return self

    @property
    def calculator_config(self) -> dict[str, Any] | None:
        """See `RunConfig.calculator_config`; None if the architecture is read from the weights that `from` names."""
        return self.model.architecture

    @property
    def calculator_adapters(self) -> dict[str, Any]:
        """See `RunConfig.calculator_adapters`."""
        return {} if self.adapter is None else self.adapter.calculator_fields


RUNS: dict[str, type[RunConfig]] = {TEXT_TO_IMAGE: TextToImageRun, CAUSAL_LM: LanguageRun}
"""Task -> the class of its runs."""


def run_of(fields: Mapping[str, Any]) -> RunConfig:
    """Makes the configuration of a run from a recipe's fields.

    Raises:
        ValidationError: If a field is wrong.
        BadInput: If the task is unknown.
    """
    task = fields.get("task", TEXT_TO_IMAGE)
    if not isinstance(task, str) or task not in RUNS:
        raise BadInput(f"The recipe's task is {task!r:.100}; it can be {' or '.join(sorted(RUNS))}.")
    return RUNS[task].model_validate(fields)


def recipe_names() -> list[str]:
    """Names of the recipes that come with the project."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def load_recipe(source: str) -> RunConfig:
    """Reads a recipe.

    Args:
        source: The name of a recipe of the project, a path to a TOML file, or an http(s) URL of one.

    Raises:
        BadInput: If the recipe cannot be found, is not TOML, or a field is wrong; the message names the field.
    """
    return parse_recipe(read_recipe(source), source=source)


def parse_recipe(text: str, *, source: str = "recipe") -> RunConfig:
    """Parses a recipe from its TOML text; raises as `load_recipe` does."""
    fields = _fields(text, source)
    try:
        return run_of(fields)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'recipe'}: {fault['msg'].removeprefix('Value error, ')}"
            + ("" if isinstance(fault["input"], dict) else f" (got {fault['input']!r:.60})")
            for fault in error.errors()
        )
        raise BadInput(
            f"{source} does not describe a run: {faults}.",
            cure="Correct the fields that the message names; the recipe page lists what each may be.",
        ) from None


def _fields(text: str, source: str) -> dict[str, Any]:
    """Parses a recipe's fields from TOML.

    Raises:
        BadInput: If the text is too long, or is not TOML.
    """
    if len(text) > LARGEST_RECIPE_BYTES:
        raise BadInput(f"{source} has more than {LARGEST_RECIPE_BYTES} characters.", cure="Give a recipe.")
    too_deep = BadInput(f"{source} has tables or lists nested more than {DEEPEST} deep.", cure="Give a recipe.")
    try:
        fields = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    except ValueError as error:  # also Python's own, for a number of thousands of digits
        raise BadInput(
            f"{source} is not valid TOML: {error}.", cure="Correct the place that the message names."
        ) from None
    if _is_deep(fields):  # messages quote a field's text, which Python cannot make of such a value
        raise too_deep
    if (unprintable := next(filter(_is_unprintable, _texts(fields)), None)) is not None:
        raise BadInput(
            f"{source} has a text with a control character: {unprintable!a:.60}.",
            cure="Remove that character; terminals would obey it.",
        )
    return fields


def _texts(value: object) -> Iterator[str]:
    """Yields all texts of a recipe, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts(one)


def _is_unprintable(text: str) -> bool:
    return not all(character.isprintable() or character in KEPT_CHARACTERS for character in text)


def _is_deep(fields: dict[str, Any]) -> bool:
    """Returns whether tables and lists are nested more than `DEEPEST` levels deep."""
    level: list[object] = [fields]
    for _ in range(DEEPEST):
        inner = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [value for values in inner for value in values]
    return any(isinstance(one, dict | list) for one in level)


def read_recipe(source: str) -> str:
    """Reads the text of a recipe; argument and errors as in `load_recipe`."""
    if source.startswith(("http://", "https://")):
        try:
            how = {"most_bytes": LARGEST_RECIPE_BYTES, "seconds": RECIPE_SECONDS, "silence_seconds": SILENCE_SECONDS}
            return read_document(source, **how).decode("utf-8-sig")
        except Refusal as error:
            if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
                kind = NoRecipe if error.status == HTTPStatus.NOT_FOUND else BadInput
                raise kind(f"The recipe at {source} cannot be read: {error}. Check the address.") from None
            raise TrainingError(
                f"The server of {source} is there, but not ready (HTTP 503): the run's monitor is probably starting.",
                cure="Try again in a minute.",
            ) from None
        except (OSError, ValueError) as error:  # no answer, not text, not an address
            raise BadInput(f"The recipe at {source} cannot be read: {error}. Check address and network.") from None
    named = RECIPES / f"{source}.toml"
    path = named if named.is_file() else Path(source)
    try:
        return path.read_text(encoding="utf-8-sig")  # editors on Windows begin a file with a byte-order mark
    except (OSError, ValueError) as error:
        raise BadInput(
            f"No recipe {source!r}: {reason_of(error)}. "
            f"Give a TOML file, its URL, or one of: {', '.join(recipe_names())}."
        ) from None
