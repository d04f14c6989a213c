"""The recipes as tables: every field of `training.config.RunConfig`, with its docstring and the values of two runs."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from pydantic import BaseModel

from builder.recorded import thousands
from training.config import RunConfig, load_recipe

SHOWN = ("dalle-2021", "demo")

TITLES = {
    "model": "Model",
    "codec": "Image codec",
    "data": "Data",
    "optimizer": "Optimizer",
    "schedule": "Schedule",
    "swarm": "Swarm",
    "monitor": "Monitor",
}


def recipe(name: str) -> RunConfig:
    """A recipe of the project, for numbers in the text."""
    return load_recipe(name)


def recipe_tables() -> str:
    """HTML of one table a section of the recipe: field with its meaning, and the value in each recipe."""
    runs = [load_recipe(name) for name in SHOWN]
    parts = []
    for section, title in TITLES.items():
        lines = "".join(_line(field, meaning, values) for field, meaning, values in _rows(section, runs))
        heads = "".join(f'<th scope="col">{name}</th>' for name in SHOWN)
        parts.append(
            f'<h2 id="{section}">{title} <code>[{section}]</code></h2>\n'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{title}, table"><table class="recipe stacked">'
            f'<thead><tr><th scope="col">Field</th>{heads}</tr></thead>'
            f"<tbody>{lines}</tbody></table></div>\n"
        )
    return "\n".join(parts)


def _rows(section: str, runs: list[RunConfig]) -> Iterator[tuple[str, str, list[object]]]:
    sections: list[BaseModel] = [getattr(run, section) for run in runs]
    for name, field in type(sections[0]).model_fields.items():
        yield name, field.description or "", [getattr(part, name) for part in sections]


def _line(field: str, meaning: str, values: list[object]) -> str:
    cells = "".join(f'<td data-label="{name}">{_shown(value)}</td>' for name, value in zip(SHOWN, values, strict=True))
    return f'<tr><th scope="row"><code>{field}</code><span>{_code(meaning)}</span></th>{cells}</tr>'


def _shown(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return thousands(value)
        case float():
            return f"{value:g}"
        case tuple():
            return "<br>".join(escape(str(one)) for one in value) or "none"
        case _:
            return escape(str(value))


def _code(text: str) -> str:
    """`name` as code."""
    pieces = escape(" ".join(text.split())).split("`")
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))
