"""Every message with which a command of the trainer can end, and what to do: read from the program's own code.

A message is what stands behind `raise` where an exception of `training.errors` is raised. What a value fills in at run
time stands as its name. Which modules a command can reach follows from their imports.
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
    r"(?:Add|Ask|Check|Choose|Crop|Fetch|Get|Give|Install|Keep|Leave|Make|Move|Prepare|Put|Resume|Run|Say(?! why)|"
    r"Set|Start|Stop|Take|Train|Try|Use|Write|Wait)\b",
    re.IGNORECASE,
)
"""Where the part of a message begins that says what to do."""

GENERAL_CURES = {
    "TrainingError": "Nothing that you typed is wrong. Try again; if it comes again, tell the run's maintainer.",
    "BadInput": "Change the flag, file or recipe that the message names; `--help` lists the flags.",
    "RefusedByRun": "Take recipe and addresses anew from the run's join page.",
}
"""For messages that do not say it themselves."""

CURES = {
    "was not finite": "Join again: the state then comes from another peer. If it happens to all, the maintainer has to "
    "go back to an earlier checkpoint.",
    "no group was looked for": "Nothing: the epoch is repeated by itself.",
    "the run is over, or this machine is offline": "Check your connection; if it is there, the run's page says whether "
    "the run goes on.",
    "No peer offers its state": "Wait until another volunteer trains, then start again.",
    "No peer has sent a sound state": "Start again in a minute; then other peers are asked.",
    "sent ": "Nothing: another peer is asked.",
    "is not at an epoch": "Nothing: another peer is asked.",
    "is no network address": "Copy the whole address from the bootstrap peer's output or the join page.",
    "lacks the peer's id": "Copy the whole address from the bootstrap peer's output or the join page.",
    "must be shorter than": "Change one of the two in the recipe.",
    "must be smaller than": "Change one of the two in the recipe.",
    "must be a multiple of": "Change one of the two in the recipe.",
    "needs swarm.inner_batch_size": "Change the recipe's `[swarm]` so.",
    "needs a multiple of 4": "Change it in the recipe.",
    "need an even number": "Change it in the recipe.",
    "LAMB needs": "Change it in the recipe's `[optimizer]`.",
    "block_size must lie": "Change it in the recipe's `[optimizer]`.",
    "cannot be drawn or judged": "Write captions in the demo's own grammar, as the message shows.",
    "it must be padding": "Give a tokenizer.json whose id 0 is padding, as T5's.",
    "volunteers' logs": "Read the last lines of these logs; the first message there is in this table.",
    "has no pictures to show": "Give the folder that `generate` has written.",
    "is no picture that can be read": "Give a PNG or JPEG.",
    "that names pictures": "Give the folder that `generate` has written, or pictures.",
    "cannot be estimated": "Nothing: the run can be joined all the same; only the plan is not known.",
    "this recipe's": "Use the recipe that the weights were trained with.",
    "differs from the layers that share": "Use the recipe that the weights were trained with.",
    "Gumbel VQ-GAN": "Give the weights of taming-transformers' vqgan_gumbel_f8.",
    "The VQ-GAN's weight ": "Give the weights that the recipe's `[codec]` means.",
    "The saved optimizer has": "Use the recipe that the weights were trained with.",
    "cannot be exported": "Give a folder that you may write to.",
    "is this the right recipe": "Use the recipe that the weights were trained with.",
    "The recipe's codec": "Use the codec's weights that the recipe means, or correct the recipe's `[codec]`.",
    "of the VQ-GAN are missing": "Fetch the VQ-GAN's weights again, in the layout of taming-transformers.",
    "holds no dictionary of weights": "Fetch the file again; it must be a checkpoint of taming-transformers.",
    "holds no state dictionary": "Give the file of weights that dalle-pytorch has saved.",
    "this is no state dictionary": "Give the file of weights that dalle-pytorch has saved.",
    "the model takes": "Prepare the shards again with the run's recipe.",
    "is none of the recipe": "Give the recipe that the model was trained with.",
    "does not fit the recipe beside it": "Use another checkpoint; this one was changed by hand.",
    "this version of the project reads": "Use the version of the project that the run uses.",
    "The pictures": "Look at the line above it; the run itself goes on, only the pictures are missing.",
    "is no checkpoint": "Give the folder of a checkpoint, or of a run that has written one.",
    "the recipe's model has": "Prepare the shards again with the run's recipe, or join with theirs.",
    "is no manifest of prepared shards": "Give the folder that `prepare` has written.",
    "which is not one beside it": "Fetch or prepare the shards again.",
    "is no readable shard": "Fetch or prepare the shards again.",
    "a shard has": "Fetch or prepare the shards again.",
    "is no tokenizer.json": "Give a tokenizer.json, or leave it out and one is trained.",
    "is no valid TOML": "Correct the place that the message names.",
    "does not describe a run": "Correct the fields that the message names; the recipe page lists what each may be.",
    "There is no command": "Type one of the commands that the message lists.",
    "samples, only": "Give shards with that part; `prepare` makes all.",
    "holds other weights": "Prepare the shards again.",
    "cannot be read": "Check that the file is there, whole, and readable for you.",
}
"""The same for messages with these words, which do not say it themselves; the first that a message has counts."""


PARTS = {
    "config": "Recipes",
    "data": "Data",
    "swarm": "Network and swarm",
    "roles": "Roles: bootstrap, monitor, join",
    "publish": "Checkpoints and what is published",
    "generate": "Drawing and judging",
    "model": "Model and codec",
    "optim": "Optimizer",
    "simulate": "Plans and simulations",
    "plan": "Plans and simulations",
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

    @property
    def exit_code(self) -> int:
        """Of the program that ends with it."""
        return KINDS[self.kind].exit_code

    @property
    def text(self) -> str:
        """The message with names in place of values."""
        return "".join(part if place % 2 == 0 else f"‹{part}›" for place, part in enumerate(self.parts))

    @property
    def cure(self) -> str:
        """What to do: the message's own words, or ours."""
        words = self.text
        for known, cure in CURES.items():
            if known in words and not CURE.search(words):
                return cure
        places = list(CURE.finditer(words))
        if places:
            own = words[places[0].start() :]
            return own[0].upper() + own[1:]
        return GENERAL_CURES[self.kind]


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
        (str(kind.exit_code), _code((kind.__doc__ or "").split(" Exit code")[0]), _code(GENERAL_CURES[name]))
        for name, kind in sorted(KINDS.items(), key=lambda item: item[1].exit_code)
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
            yield Failure(module=module, line=node.lineno, kind=kind, parts=_joined(said))


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
