"""Docstrings of the code as Markdown for the Python reference: signature, text, parameters, errors and examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import escape

import griffe

from builder.folders import PAGES, ROOT

PAGE = PAGES / "reference" / "api.md"
EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?! *\n) *\S.*)*", re.MULTILINE)


def docstring(path: str, members: tuple[str, ...] | None = None) -> str:
    """Markdown of a function, of a class with its documented members, or of a module's docstring.

    Args:
        path: Full name, such as `calculator.choose.fit.verdict`.
        members: Names of a class's members to show; None: all that have a docstring and no leading underscore.

    Raises:
        KeyError: If the code has no such name.
    """
    found = _loaded(path.split(".")[0])[path.partition(".")[2]]
    if found.is_module:
        return _text(found)
    shown = [one for one in found.members.values() if one.has_docstring and not one.name.startswith("_")]
    shown = [one for one in shown if members is None or one.name in members] if found.is_class else []
    children = "\n\n".join(_block(one, level=4) for one in sorted(shown, key=lambda one: one.lineno))
    return _block(found, level=3, children=children)


def fence_examples(text: str) -> str:
    """A docstring with its examples as fenced code; without the fence, Markdown reads `>>>` as a quotation.

    >>> fence_examples("One.\\n\\n>>> 1 + 1\\n2")
    'One.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    return EXAMPLE.sub(lambda match: f"{match['indent']}```pycon\n{match[0]}\n{match['indent']}```", text)


@cache
def _loaded(package: str) -> griffe.Object:
    return griffe.load(package, search_paths=[ROOT], docstring_parser="google")


@cache
def _documented() -> frozenset[str]:
    """Full names that the page describes; types and errors link to them."""
    return frozenset(re.findall(r'docstring\("([\w.]+)"', PAGE.read_text(encoding="utf-8")))


def _block(found: griffe.Object, *, level: int, children: str = "") -> str:
    """HTML of two nested elements: the outer has the heading, the inner the docstring and the members."""
    head = f"`{found.name}`" if found.is_class else f"`#!python {_signature(found)}`"
    facts = f'{{ #{found.path} .doc .doc-heading data-toc-label="{found.name}" }}'
    return (
        f'<div class="doc doc-object doc-{found.kind.value}" markdown>\n\n{"#" * level} {head} {facts}\n\n'
        f'<div class="doc doc-contents" markdown>\n\n{_text(found)}\n\n{children}\n\n</div>\n</div>'
    )


def _signature(found: griffe.Object) -> str:
    """A function's name with its parameters, or an attribute with its default."""
    if not found.is_function:
        return found.name if found.value is None else f"{found.name} = {found.value}"
    words, star = [], False
    for parameter in found.parameters:
        if parameter.name == "self":
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not star:
            words.append("*")
            star = True
        words.append(parameter.name if parameter.default is None else f"{parameter.name}={parameter.default}")
    return f"{found.name}({', '.join(words)})"


def _text(found: griffe.Object) -> str:
    return "\n\n".join(_sections(found))


def _sections(found: griffe.Object) -> Iterator[str]:
    for section in found.docstring.parsed:
        match section.kind:
            case griffe.DocstringSectionKind.text:
                yield fence_examples(section.value)
            case griffe.DocstringSectionKind.parameters:
                yield "Parameters:"
                yield "\n".join(f"- **`{one.name}`** ({_parameter(one)}) – {_one_line(one)}" for one in section.value)
            case griffe.DocstringSectionKind.raises:
                yield "Raises:"
                yield "\n".join(f"- {_type(one.annotation)} – {_one_line(one)}" for one in section.value)
            case kind:
                raise ValueError(
                    f"The docstring of {found.path} has a section {kind.value!r}; {__name__} can show only text, Args "
                    "and Raises."
                )


def _parameter(one: griffe.DocstringParameter) -> str:
    return _type(one.annotation) + (f", default: `{one.default}`" if one.default is not None else "")


def _type(annotation: griffe.Expr | str) -> str:
    """A type as code; names that the page describes are links."""
    if isinstance(annotation, str):
        return f"<code>{escape(annotation)}</code>"
    pieces = []
    for piece in annotation.iterate():
        pieces.append(_name(piece) if isinstance(piece, griffe.ExprName) else escape(str(piece)))
    return f"<code>{''.join(pieces)}</code>"


def _name(name: griffe.ExprName) -> str:
    path = name.canonical_path
    return f'<a href="#{path}">{name.name}</a>' if path in _documented() else name.name


def _one_line(one: griffe.DocstringElement) -> str:
    return " ".join(one.description.split())
