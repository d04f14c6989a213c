"""Every message with which a command of the trainer can end, and what to do about it, read from the program's code.

A message is the text of a `raise` of an exception of `training.errors`. What to do is in the message itself or in the
argument `cure`. Values that are known only at run time are shown by the names of their variables. A command can end
with the messages of all modules that it imports, directly or through others.
"""

from __future__ import annotations

import ast
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from builder.folders import ROOT
from builder.markup.tables import code, stacked
from training import errors
from training.cli import COMMANDS

KINDS = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.TrainingError)
}
"""The trainer's exceptions, by name."""

SEVERAL = "several"
"""The name shown for a value that is computed in a way that gives it no name."""

CURE = re.compile(
    r"(?:(?<=[.;:›] )|(?<=, )|(?<=^)|(?<= or )|(?<=\) ))(?:and )?"
    r"(?:Add|Ask|Check|Choose|Crop|Draw|Fetch|Get|Give|Install|Keep|"
    r"Leave|Make|Move|Omit|Prepare|Put|Raise|Resume|Run|Say(?! why)|"
    r"Set|Start|Stop|Take|Train|Try|Use|Write|Wait)\b",
    re.IGNORECASE,
)
"""Finds where a message begins to say what to do: a verb of a request at the beginning of a sentence or clause."""

PARTS = {
    "recipe": "Recipes",
    "data": "Data",
    "swarm": "Network and swarm",
    "roles": "Roles: bootstrap, monitor, join",
    "volunteer": "Roles: bootstrap, monitor, join",
    "trust": "Membership",
    "publish": "Checkpoints and what is published",
    "checkpoints": "Checkpoints and what is published",
    "generate": "Drawing and judging",
    "model": "Model and codec",
    "tasks": "Model and codec",
    "optim": "Optimizer",
    "simulate": "Plans and simulations",
    "compute.traced": "Plans and simulations",
    "": "Commands, the demo and the machine",
}
"""Beginning of a module's name below `training.` -> heading, in the order of the page; the first match counts."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One message, at one place in the code."""

    module: str
    line: int
    kind: str
    """Name of the exception's class."""
    parts: tuple[str, ...]
    """Text, name of a value, text, name of a value and so on; it begins and ends with a text, which may be empty."""
    cure_argument: str
    """The argument `cure` of the exception; empty if the message itself says what to do."""

    @property
    def exit_code(self) -> int:
        """Exit code of a program that ends with this message."""
        return KINDS[self.kind].exit_code

    @property
    def text(self) -> str:
        """The message with names in place of values."""
        return _with_names(self.parts)

    @property
    def own_cure(self) -> str:
        """What to do, if the place in the code says it; else empty."""
        places = list(CURE.finditer(self.text))
        if self.cure_argument or not places:
            return self.cure_argument
        own = self.text[places[0].start() :]
        return own[0].upper() + own[1:]

    @property
    def cure(self) -> str:
        """What to do: as this place in the code says, or else as the exception's class says."""
        return self.own_cure or KINDS[self.kind].usual_cure


@cache
def failures() -> tuple[Failure, ...]:
    """All messages of the trainer, by module and line."""
    found = []
    for path in sorted((ROOT / "training").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found += _failures_of(module, ast.parse(path.read_text(encoding="utf-8")))
    return tuple(found)


def failures_of_command(name: str) -> tuple[Failure, ...]:
    """The messages of all modules that a command imports, directly or through others, and of the command line."""
    reached = _imported_by(COMMANDS[name]) | {"training.cli"}
    return tuple(failure for failure in failures() if failure.module in reached)


def failure_table(command: str) -> str:
    """HTML table of one command's messages: message, exit code, what to do."""
    seen: dict[str, Failure] = {}
    for failure in failures_of_command(command):
        seen.setdefault(failure.text, failure)
    return _table("Messages and cures", seen.values())


def failure_sections() -> str:
    """Markdown: all messages, a table for each part of the program."""
    parts: dict[str, dict[str, Failure]] = {title: {} for title in PARTS.values()}
    seen: set[str] = set()
    for failure in failures():
        if failure.text not in seen:
            seen.add(failure.text)
            parts[part_of(failure)][failure.text] = failure
    return "\n\n".join(
        f"## {title}\n\n{_table(f'{title}: messages and cures', found.values())}"
        for title, found in parts.items()
        if found
    )


def has_rules(module: str) -> bool:
    """Returns whether a module checks a recipe; the trainer puts the text of its `ValueError` into a `BadInput`."""
    return module == "training.recipe" or module.endswith(".config")


def part_of(failure: Failure) -> str:
    """The heading under which the page shows a message."""
    module = "recipe" if has_rules(failure.module) else failure.module.removeprefix("training.")
    return next(title for start, title in PARTS.items() if module.startswith(start))


def _table(name: str, found: Iterable[Failure]) -> str:
    rows = [
        (_message(failure), str(failure.exit_code), _code(failure.cure))
        for failure in sorted(found, key=lambda failure: (failure.module, failure.line))
    ]
    return stacked(name, ("Message", "Exit code", "What to do"), rows, kind="numbers failures")


def failure_count(command: str | None = None) -> int:
    """How many different messages there are."""
    return len({failure.text for failure in (failures() if command is None else failures_of_command(command))})


def exit_codes() -> str:
    """HTML table of the exit codes, from the docstrings of the exceptions."""
    rows = [
        (str(kind.exit_code), _code((kind.__doc__ or "").split(" Exit code")[0]), _code(kind.usual_cure))
        for _, kind in sorted(KINDS.items(), key=lambda item: item[1].exit_code)
    ]
    return stacked("Exit codes", ("Exit code", "Meaning", "What to do"), rows)


def _failures_of(module: str, tree: ast.Module) -> Iterator[Failure]:
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    filled = "ValueError" if has_rules(module) else None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        name = node.exc.func.id if isinstance(node.exc.func, ast.Name) else ""
        if name == filled or name in KINDS:
            pieces = _pieces(node.exc.args[0], functions) if node.exc.args else [""]
            kind = "BadInput" if name == filled else name
            cure = next((one.value for one in node.exc.keywords if one.arg == "cure"), ast.Constant(""))
            yield Failure(
                module=module,
                line=node.lineno,
                kind=kind,
                parts=_joined(pieces),
                cure_argument=_with_names(_joined(_pieces(cure, functions))),
            )


def _pieces(node: ast.expr, functions: dict[str, ast.FunctionDef]) -> list[str | ast.expr]:
    """The pieces of a message: texts, and the expressions whose values are filled in.

    Of a conditional expression the first alternative is shown, of a function in the same module what it returns last.
    """
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            return [piece for value in values for piece in _pieces(value, functions)]
        case ast.FormattedValue(value=ast.Constant(value=str(text))):
            return [text]
        case ast.FormattedValue(value=value):
            return [value]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [*_pieces(left, functions), *_pieces(right, functions)]
        case ast.IfExp(body=body):
            return _pieces(body, functions)
        case ast.Call(func=ast.Name(id=name)) if name in functions:
            returned = [one for one in ast.walk(functions[name]) if isinstance(one, ast.Return) and one.value]
            return _pieces(returned[-1].value, functions)
        case _:
            return [node]


def _joined(pieces: list[str | ast.expr]) -> tuple[str, ...]:
    """The pieces in the form of `Failure.parts`: successive texts joined, expressions as the names of their values."""
    parts = [""]
    for piece in pieces:
        if isinstance(piece, str):
            if len(parts) % 2 == 0:
                parts.append("")
            parts[-1] += piece
        else:
            if len(parts) % 2 == 0:
                parts.append(" ")
            parts.append(_value_name(piece))
    return (*parts, "") if len(parts) % 2 == 0 else tuple(parts)


def _with_names(parts: tuple[str, ...]) -> str:
    """The text of a message; each value is shown as its name in ‹›."""
    return "".join(part if place % 2 == 0 else f"‹{part}›" for place, part in enumerate(parts))


def _value_name(node: ast.expr) -> str:
    """A readable name of an expression's value: that of its variable or attribute, else `SEVERAL`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.strip("_").replace("_", " ")
        case ast.Call(func=ast.Name(id="str" | "len" | "sorted" | "repr" | "reason_of" | "tuple"), args=[inner, *_]):
            return _value_name(inner)
        case ast.Call(func=ast.Attribute(attr="join"), args=[inner]):
            return _value_name(inner)
        case ast.Subscript(value=inner) | ast.GeneratorExp(elt=inner) | ast.BinOp(left=inner):
            return _value_name(inner)
        case ast.Call(func=ast.Attribute(value=inner)):
            return _value_name(inner)
        case _:
            return SEVERAL


@cache
def _imports() -> dict[str, frozenset[str]]:
    """Module of the trainer -> modules of the trainer that it imports, also those that it imports inside functions."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "training").rglob("*.py")
    }
    found = {}
    for module, path in files.items():
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[module] = frozenset(names & files.keys())
    return found


def _imported_by(module: str) -> set[str]:
    """The module, and all modules of the trainer that it imports, directly or through others."""
    imports, reached, ahead = _imports(), set(), [module]
    while ahead:
        one = ahead.pop()
        if one not in reached:
            reached.add(one)
            ahead += imports[one]
    return reached


def _message(failure: Failure) -> str:
    return _flags_whole(
        "".join(
            html.escape(part) if place % 2 == 0 else f"<var>{html.escape(part)}</var>"
            for place, part in enumerate(failure.parts)
        )
    )


def _flags_whole(text: str) -> str:
    """Marks the flags in a text, so that browsers do not break them after their hyphens."""
    return re.sub("(?<![<!-])--[a-z][a-z-]*", r'<span class="whole">\g<0></span>', text)


def _code(text: str) -> str:
    return re.sub("‹(.*?)›", r"<var>\1</var>", _flags_whole(code(text)))
