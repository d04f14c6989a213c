"""The recipes as tables: every field of `training.recipe.RunConfig`, with its docstring and the values of two runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape

from pydantic import BaseModel

from builder.markup.tables import code, stacked
from calculator.models.architectures import from_config
from calculator.parts.parameters import count_parameters
from calculator.swarm.forecast import ExchangedVectors
from calculator.units import show_bytes, show_count
from training.recipe import NOT_IN_DIGEST, RunConfig, load_recipe
from training.simulate.forecast import collaboration_of

SHOWN = ("dalle-2021", "demo")
LANGUAGE = ("stories", "llama-150m", "lora-7b")
"""The recipes of language models, whose `[model]` has other fields."""
ADAPTED = ("lora-7b",)
"""Recipes that train adapters."""
MANY = 100

TITLES = {
    "model": "Model",
    "codec": "Image codec",
    "data": "Data",
    "optimizer": "Optimizer",
    "schedule": "Schedule",
    "swarm": "Swarm",
    "monitor": "Monitor",
    "membership": "Membership",
}


def recipe(name: str) -> RunConfig:
    """A recipe of the project, so that a page's text can show its values."""
    return load_recipe(name)


def adapter_facts(name: str) -> dict[str, str]:
    """Facts of a recipe with `[adapter]`: numbers of weights and of trained weights, bytes of their gradients, bytes
    that a peer sends, and bytes that it would send if A were trained too."""
    run = load_recipe(name)
    exchange = collaboration_of(run, ()).exchange()
    whole = run.model_copy(update={"adapter": run.adapter.model_copy(update={"freeze_a": False})})
    weights = count_parameters(from_config(run.calculator_config))
    return {
        "weights": f"{weights / 1e9:.1f} billion",
        "trained": f"{exchange.parameters / 1e6:.1f} million",
        "gradient_bytes": show_bytes(exchange.gradient_bytes),
        "sent": _sent(exchange),
        "sent_with_a": _sent(collaboration_of(whole, ()).exchange()),
    }


def _sent(exchange: ExchangedVectors) -> str:
    """Bytes that a peer sends in one average of gradients among two peers, and among `MANY`, as text."""
    two, many = (show_bytes(exchange.cost(peers).sent_bytes) for peers in (2, MANY))
    return f"{two} with one other volunteer, and {many} in a group of {MANY}"


def recipe_tables() -> str:
    """HTML: a table for each section of a recipe, with each field's meaning and its value in the recipes of `SHOWN`."""
    runs = [load_recipe(name) for name in SHOWN]
    parts = []
    for section, title in TITLES.items():
        shown = stacked(f"{title}, table", ("Field", *SHOWN), _rows(section, runs), kind="recipe")
        parts.append(f'<h2 id="{section}">{title} <code>[{section}]</code></h2>\n{shown}\n')
        if section == "model":
            parts += [_language_table(), _adapter_table()]
    return "\n".join(parts)


def _language_table() -> str:
    """HTML table of the fields of `[model]` in a recipe that trains a language model."""
    rows = _rows("model", [load_recipe(name) for name in LANGUAGE])
    shown = stacked("Language model, table", ("Field", *LANGUAGE), rows, kind="recipe")
    heading = 'Language model <code>[model]</code>, with <code>task = "causal-lm"</code>'
    return f'<h2 id="language-model">{heading}</h2>\n{shown}\n'


def _adapter_table() -> str:
    """HTML table of the fields of `[adapter]` in a recipe that trains adapters beside a frozen language model."""
    rows = _rows("adapter", [load_recipe(name) for name in ADAPTED])
    shown = stacked("Adapter, table", ("Field", *ADAPTED), rows, kind="recipe")
    return f'<h2 id="adapter">Adapters of a language model <code>[adapter]</code></h2>\n{shown}\n'


def changeable_fields() -> str:
    """Markdown: the fields that a maintainer may change in mid-run, as a sentence lists them."""
    names = []
    for name, which in NOT_IN_DIGEST.items():
        if which is not True:
            names += [f"`{name}.{field}`" for field in sorted(which)]
        else:
            names.append(f"everything in `[{name}]`" if name in TITLES else f"`{name}`")
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _rows(section: str, runs: list[RunConfig]) -> Iterator[tuple[str, ...]]:
    sections: list[BaseModel] = [getattr(run, section) for run in runs]
    for name, field in type(sections[0]).model_fields.items():
        meaning = f"<code>{field.alias or name}</code><span>{code(field.description or '')}</span>"
        yield meaning, *(_shown(getattr(part, name)) for part in sections)


def _shown(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return show_count(value)
        case float():
            return f"{value:g}"
        case dict():
            return "<br>".join(escape(f"{key} = {json.dumps(one)}") for key, one in value.items())
        case tuple():
            return "<br>".join(escape(str(one)) for one in value) or "none"
        case _:
            return escape(str(value))
