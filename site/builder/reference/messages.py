"""Every message with which a command of the trainer can end, and what to do: read from the program's own code.

A message is what stands behind `raise` where an exception of `training.errors` is raised; what to do about it stands in
the message, or beside it as `cure`. What a value fills in at run time stands as its name. Which modules a command can
reach follows from their imports.
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
"""The trainer's exceptions by name."""

FILLED_INTO = {"training.config": "ValueError"}
"""Modules whose plain errors become a part of a `BadInput`: what a recipe's check says stands behind its name."""

SEVERAL = "several"
"""A value that is no plain name."""

CURE = re.compile(
    r"(?:(?<=[.;:›] )|(?<=, )|(?<=^)|(?<= or )|(?<=\) ))(?:and )?"
    r"(?:Add|Ask|Check|Choose|Crop|Draw|Fetch|Get|Give|Install|Keep|"
    r"Leave|Make|Move|Omit|Prepare|Put|Raise|Resume|Run|Say(?! why)|"
    r"Set|Start|Stop|Take|Train|Try|Use|Write|Wait)\b",
    re.IGNORECASE,
)
"""Where the part of a message begins that says what to do."""

PARTS = {
    "config": "Recipes",
    "data": "Data",
    "swarm": "Network and swarm",
    "roles": "Roles: bootstrap, monitor, join",
    "volunteer": "Roles: bootstrap, monitor, join",
    "publish": "Checkpoints and what is published",
    "checkpoints": "Checkpoints and what is published",
    "generate": "Drawing and judging",
    "model": "Model and codec",
    "optim": "Optimizer",
    "simulate": "Plans and simulations",
    "compute.plan": "Plans and simulations",
    "": "Commands, the demo and the machine",
}
"""How the name of a module begins, below `training.` -> the part's name on the page, in its order."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One message."""

    module: str
    line: int
    kind: str
    """Name of the exception."""
    parts: tuple[str, ...]
    """Text and names of values in turn, text first."""
    given: str
    """The `cure` that stands where it is raised; empty where the message itself says what to do."""

    @property
    def exit_code(self) -> int:
        """Of the program that ends with it."""
        return KINDS[self.kind].exit_code

    @property
    def text(self) -> str:
        """The message with names in place of values."""
        return _named(self.parts)

    @property
    def own_cure(self) -> str:
        """What to do, in words that stand where it is raised; empty if there are none."""
        places = list(CURE.finditer(self.text))
        if self.given or not places:
            return self.given
        own = self.text[places[0].start() :]
        return own[0].upper() + own[1:]

    @property
    def cure(self) -> str:
        """What to do: in its own words, or as usual for its exception."""
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
    """Those of modules that a command imports, directly or through others, and of the command line itself."""
    reached = _reached(COMMANDS[name]) | {"training.cli"}
    return tuple(failure for failure in failures() if failure.module in reached)


def failure_table(command: str) -> str:
    """HTML table of one command's messages: message, exit code, what to do."""
    seen: dict[str, Failure] = {}
    for failure in failures_of_command(command):
        seen.setdefault(failure.text, failure)
    return _tabled("Messages and cures", seen.values())


def failure_sections() -> str:
    """Markdown: all messages, a table for each part of the program."""
    parts: dict[str, dict[str, Failure]] = {title: {} for title in PARTS.values()}
    seen: set[str] = set()
    for failure in failures():
        if failure.text not in seen:
            seen.add(failure.text)
            parts[part_of(failure)][failure.text] = failure
    return "\n\n".join(
        f"## {title}\n\n{_tabled(f'{title}: messages and cures', found.values())}"
        for title, found in parts.items()
        if found
    )


def part_of(failure: Failure) -> str:
    """The part of the program that says it, in the page's words."""
    module = failure.module.removeprefix("training.")
    return next(title for start, title in PARTS.items() if module.startswith(start))


def _tabled(name: str, found: Iterable[Failure]) -> str:
    rows = [
        (_message(failure), str(failure.exit_code), _code(failure.cure))
        for failure in sorted(found, key=lambda failure: (failure.module, failure.line))
    ]
    return stacked(name, ("Message", "Exit code", "What to do"), rows, kind="numbers failures")


def failure_count(command: str | None = None) -> int:
    """How many different messages there are."""
    return len({failure.text for failure in (failures() if command is None else failures_of_command(command))})


def exit_codes() -> str:
    """HTML table of the exit codes, from the exceptions' own words."""
    rows = [
        (str(kind.exit_code), _code((kind.__doc__ or "").split(" Exit code")[0]), _code(kind.usual_cure))
        for _, kind in sorted(KINDS.items(), key=lambda item: item[1].exit_code)
    ]
    return stacked("Exit codes", ("Exit code", "Meaning", "What to do"), rows)


def _failures_of(module: str, tree: ast.Module) -> Iterator[Failure]:
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    filled = FILLED_INTO.get(module)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        name = node.exc.func.id if isinstance(node.exc.func, ast.Name) else ""
        if name == filled or name in KINDS:
            said = _said(node.exc.args[0], functions) if node.exc.args else [""]
            kind = "BadInput" if name == filled else name
            given = next((one.value for one in node.exc.keywords if one.arg == "cure"), ast.Constant(""))
            parts = _joined(said)
            yield Failure(
                module=module, line=node.lineno, kind=kind, parts=parts, given=_named(_joined(_said(given, functions)))
            )


def _said(node: ast.expr, functions: dict[str, ast.FunctionDef]) -> list[str | ast.expr]:
    """Pieces of a message: text, or the expression of a value."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=values):
            return [piece for value in values for piece in _said(value, functions)]
        case ast.FormattedValue(value=ast.Constant(value=str(text))):
            return [text]
        case ast.FormattedValue(value=value):
            return [value]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [*_said(left, functions), *_said(right, functions)]
        case ast.IfExp(body=body):
            return _said(body, functions)
        case ast.Call(func=ast.Name(id=name)) if name in functions:
            returned = [one for one in ast.walk(functions[name]) if isinstance(one, ast.Return) and one.value]
            return _said(returned[-1].value, functions)
        case _:
            return [node]


def _joined(pieces: list[str | ast.expr]) -> tuple[str, ...]:
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


def _named(parts: tuple[str, ...]) -> str:
    """Text with the names of values in place of the values."""
    return "".join(part if place % 2 == 0 else f"‹{part}›" for place, part in enumerate(parts))


def _value_name(node: ast.expr) -> str:
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
    """Module of the trainer -> modules of the trainer that it imports, inside functions too."""
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


def _reached(module: str) -> set[str]:
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
    """Flags in running text, which do not break after their hyphens."""
    return re.sub("(?<![<!-])--[a-z][a-z-]*", r'<span class="whole">\g<0></span>', text)


def _code(text: str) -> str:
    return re.sub("‹(.*?)›", r"<var>\1</var>", _flags_whole(code(text)))
