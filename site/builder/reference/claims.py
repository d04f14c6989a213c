"""The site's claims, each with its tests and measurements. The build fails if a named test or record does not exist."""

from __future__ import annotations

import ast
import html
import re
from functools import cache
from pathlib import Path

import yaml

from builder.folders import PAGES, RESULTS, ROOT
from builder.markup.links import site_link
from builder.markup.tables import stacked


@cache
def claims() -> dict[str, list[dict]]:
    """Reads the claims of each page, a path below site/; site/reference/how-we-know.yml says what a claim has."""
    return yaml.safe_load((PAGES / "reference" / "how-we-know.yml").read_text(encoding="utf-8"))


def claims_table() -> str:
    """Makes Markdown: for each page a table of its claims, with the tests and records of each.

    Raises:
        ValueError: If a test, a record or a page that is named does not exist.
    """
    parts = []
    for page, made in claims().items():
        title = _title(page)
        link = page.removeprefix("reference/") if page.startswith("reference/") else f"../{page}"
        table = stacked(f"{title}: claims", ("Claim", "Test or measurement", "Not known"), map(_row, made))
        parts.append(f"## [{title}]({link}) {{ #{_anchor(page)} }}\n\n{table}")
    return "\n\n".join(parts)


def _anchor(page: str) -> str:
    return page.removesuffix(".md").replace("/", "-")


def _row(claim: dict) -> tuple[str, str, str]:
    evidence = [*map(test_link, claim.get("tests", ())), *map(_record_link, claim.get("records", ()))]
    return html.escape(claim["claim"]), "<br>".join(evidence), html.escape(claim.get("not known", ""))


def test_link(name: str) -> str:
    """Makes HTML: the name of a test, after a check that the test exists.

    Args:
        name: `FILE::TEST` below tests/, or a whole file.

    Raises:
        ValueError: If the test does not exist.
    """
    file, _, test = name.partition("::")
    path = ROOT / "tests" / file
    if not path.is_file() or (test and test not in _tests_of(path)):
        raise ValueError(f"A page names the test tests/{name}, which does not exist.")
    # Without these places to break, a long name would make the table wider than a phone.
    breakable = re.sub("([/_])", r"\1<wbr>", f"tests/{name}")
    return f"<code>{breakable.replace('::', '</code> <code>')}</code>"


def _record_link(name: str) -> str:
    if not (RESULTS / f"{name}.json").is_file():
        raise ValueError(f"A claim names the record benchmarks/results/{name}.json, which does not exist.")
    address = f"{site_link('reference/performance/')}#{name.replace('_', '-')}"
    return f'<a href="{address}">measured: {name.replace("_", " ")}</a>'


@cache
def _tests_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _title(page: str) -> str:
    lines = (PAGES / page).read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("title: ") for line in lines if line.startswith("title: "))
