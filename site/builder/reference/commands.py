"""The commands and their flags, read from their parsers: typer in the trainer, argparse in the calculator."""

from __future__ import annotations

import argparse
import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from builder.markup.tables import code, stacked
from calculator.__main__ import command_parser, flags_parser
from training.cli import build_app

WORDS = {int: "NUMBER", float: "NUMBER", str: "TEXT", Path: "PATH"}
"""The word that stands for a value, by the value's type."""

Parameter = Any
"""A parameter of a command; typer's classes for it are private."""


def command_reference() -> str:
    """Markdown: for each command a section with its description, its usage and its flags."""
    group = typer.main.get_command(build_app())
    return "\n\n".join(_section(name, command) for name, command in group.commands.items())


def calculator_reference(command: str = "") -> str:
    """HTML table of the calculator's flags: of an estimate, or of one of its other commands, such as `fit`."""
    parser = command_parser(command) if command else flags_parser()
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return _table(f"the calculator {command}".strip(), [_argparse_row(action) for action in actions])


def _section(name: str, command: Any) -> str:
    parameters = [parameter for parameter in command.params if not parameter.hidden]
    arguments = [parameter for parameter in parameters if _is_argument(parameter)]
    words = ["python -m training", name, *(_argument(one) for one in arguments)]
    words += [f"{max(one.opts, key=len)} {_value(one)}" for one in parameters if one not in arguments and one.required]
    usage = " ".join([*words, "[FLAGS]"])
    return (
        f"## {name} {{ #{name} }}\n\n<p>{code(command.help or '')}</p>\n\n"
        f'<div class="highlight"><pre><code>{html.escape(usage)}</code></pre></div>\n\n'
        + _table(name, [_typer_row(parameter) for parameter in parameters])
    )


def _is_argument(parameter: Parameter) -> bool:
    return not parameter.opts[0].startswith("-")


def _typer_row(parameter: Parameter) -> tuple[str, str, str]:
    if _is_argument(parameter):
        return _argument(parameter), parameter.help or "", "" if parameter.required else "none"
    flags = ", ".join([*parameter.opts, *parameter.secondary_opts])
    flag = flags if parameter.is_flag else f"{flags} {_value(parameter)}"
    several = " May be given several times." if parameter.multiple and "several" not in (parameter.help or "") else ""
    return flag, (parameter.help or "") + several, _default(parameter)


def _argument(parameter: Parameter) -> str:
    return f"{parameter.metavar or parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}"


def _value(parameter: Parameter) -> str:
    """The word after a flag: the parameter's metavar, its choices, or its type with its bounds."""
    if parameter.metavar:
        return parameter.metavar
    kind = parameter.type_descriptor.annotation
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    (kind,) = get_args(kind) or (kind,)
    word = WORDS.get(kind, "TEXT")
    if parameter.min is not None and parameter.max is not None:
        return f"{word} ({parameter.min} to {parameter.max})"
    return word if parameter.min is None else f"{word} (at least {parameter.min})"


def _default(parameter: Parameter) -> str:
    if parameter.required:
        return "must be given"
    return _shown(parameter.default)


def _shown(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):  # of numbers, 1 equals True
        return "yes" if value else "no"
    return value.as_posix() if isinstance(value, Path) else str(value)


def _argparse_row(action: argparse.Action) -> tuple[str, str, str]:
    flags = ", ".join(action.option_strings) or (action.metavar or action.dest).upper()
    value = ""
    if action.option_strings and action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction):
        value = f" {action.metavar or ('|'.join(map(str, action.choices)) if action.choices else action.dest.upper())}"
    default = None if action.default is argparse.SUPPRESS else action.default
    return flags + value, action.help or "", _shown(default)


def _table(name: str, rows: Iterable[tuple[str, str, str]]) -> str:
    lines = [
        (f"<code>{html.escape(flag)}</code>", code(help_text), html.escape(default))
        for flag, help_text, default in rows
    ]
    return stacked(f"Flags of {name}", ("Flag", "What it does", "Default"), lines)
