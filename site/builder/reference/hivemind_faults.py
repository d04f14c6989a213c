"""Faults of hivemind that concern this project, each with the tests of this project's remedy."""

from __future__ import annotations

from functools import cache

import yaml

from builder.folders import PAGES, ROOT
from builder.markup.tables import code
from builder.reference.claims import test_link


@cache
def sections() -> dict[str, list[dict]]:
    """Reads the faults below each heading; site/reference/hivemind.yml says what a fault has."""
    return yaml.safe_load((PAGES / "reference" / "hivemind.yml").read_text(encoding="utf-8"))


def upstream_lists() -> str:
    """Makes Markdown: for each heading the list of its faults.

    Raises:
        ValueError: If a test that is named does not exist.
    """
    return "\n\n".join(
        f"## {title}\n\n" + "\n".join(f"- {_list_item(fault)}" for fault in faults)
        for title, faults in sections().items()
    )


def _list_item(fault: dict) -> str:
    tests = ", ".join(map(test_link, fault["tests"]))
    where = code(fault["where"]).replace("_", "&#95;")  # Markdown would take _name_ for emphasis
    words = f"**{code(fault['happens'])}** Here: {code(fault['here'])}"
    return f"{words}<br><small>In {where}. Tested by {tests}.</small>"


def hivemind_version() -> str:
    """Finds the version of hivemind that the project pins."""
    lines = (ROOT / "constraints" / "training.txt").read_text(encoding="utf-8").splitlines()
    return next(line.removeprefix("hivemind==") for line in lines if line.startswith("hivemind=="))
