"""The tutorial: one text for a page and a notebook, with its memory as predicted today and as once measured."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace

from builder.benchmark_records import record
from builder.folders import PAGES, RESULTS
from builder.markup.tables import table
from calculator import Setup, estimate
from calculator.devices import DEVICES
from calculator.fit import verdict
from calculator.page.words import show_bytes
from calculator.setups import plain

SOURCE = PAGES / "tutorial.md"

STEPS: tuple[tuple[str, dict], ...] = (
    ("Adam in 32 bits", {}),
    ("Adam in 8 bits", {"optimizer": "adamw8bit"}),
    ("and checkpointing", {"checkpointing": True}),
    ("and 32 passes per update", {"accumulation_steps": 32}),
    ("and autocast: the tutorial", {"precision": "amp-fp16"}),
)
"""Rows of the table: a technique and its changes of the setup; each row also has the changes of those above it."""
BASELINE = Setup(model="gpt2-large", precision="fp32", optimizer="adamw", dropout=0.0)
"""The first row: PyTorch's defaults, among them fused attention, and no dropout. The calculator's "plain" setup has
eager attention and dropout."""
TUTORIAL_SETUP = replace(BASELINE, **{name: value for _, change in STEPS for name, value in change.items()})
"""The last row: what the tutorial trains on an older GPU. A test compares it with the tutorial's code."""

_BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def page_data(repository: str) -> dict:
    """The values for the text, by the name under which it uses them: `tutorial.table` and so on."""
    return {
        "usual": show_bytes(estimate(BASELINE).gpu.total),
        "plain": show_bytes(estimate(plain(Setup(model="gpt2-large"))).gpu.total),
        "weights": show_bytes(estimate(TUTORIAL_SETUP).gpu.weights),
        "chosen": show_bytes(estimate(TUTORIAL_SETUP).gpu.total),
        "table": memory_table(),
        "measured": measured(),
        "package": f"git+{repository}",
    }


def notebook(text: str) -> str:
    """The notebook's JSON: text and code in turn, without the page's front matter and its links to other pages.

    Args:
        text: The tutorial's Markdown, its calls replaced.
    """
    cells = [
        {"cell_type": kind, "id": f"cell-{number}", "metadata": metadata, "source": source, **more}
        for number, (kind, source, metadata, more) in enumerate(_cells(text))
    ]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "accelerator": "GPU",
    }
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def code_blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of every block, in order."""
    return _BLOCK.findall(text)


def _cells(text: str) -> Iterator[tuple[str, str, dict, dict]]:
    body = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    empty = {"execution_count": None, "outputs": []}
    place, first = 0, True
    for block in _BLOCK.finditer(body):
        yield "markdown", _without_links(body[place : block.start()]), {}, {}
        language, code = block.groups()
        tags = {"tags": ["parameters"]} if language == "python" and first else {}
        first = first and language != "python"
        yield "code", code.rstrip("\n") if language == "python" else f"%{code.strip()}", tags, empty
        place = block.end()
    yield "markdown", _without_links(body[place:]), {}, {}


def _without_links(text: str) -> str:
    """Markdown without links to pages of the site and without HTML attributes of the site's tables."""
    text = re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", text)
    return re.sub(r' (?:class|tabindex|role|aria-label|scope)="[^"]*"', "", text).strip()


def memory_table() -> str:
    """HTML table: the memory with each technique, and the smallest GPU that has enough."""
    rows, changes = [], {}
    for title, change in STEPS:
        changes |= change
        setup = replace(BASELINE, **changes)
        gpu = estimate(setup).gpu
        numbers = (gpu.optimizer_state, gpu.gradients, gpu.activations + gpu.temporary)
        smallest = html.escape(_smallest(setup).removeprefix("GeForce "))
        rows.append((html.escape(title), show_bytes(gpu.total), smallest, *map(show_bytes, numbers)))
    names = ("total", "smallest GPU that fits it", "Adam's state", "gradients", "the rest")
    return table("Memory of each technique", ("trained with", *names), rows)


def measured() -> str:
    """Sentences that compare the recorded measurement with today's prediction; empty if nothing is recorded."""
    if not (RESULTS / "tutorial.json").is_file():
        return ""
    facts = record("tutorial")
    (result,) = facts["results"]
    cores, memory = facts["machine"]["cores"], show_bytes(facts["machine"]["memory_bytes"])
    return (
        f"On {facts['date']} these blocks took **{show_bytes(result['peer'])}** of memory with a model as large as "
        f"`{facts['model']}`, in 32 bits, on a machine with {cores} processor cores and {memory}; the prediction is "
        f"**{show_bytes(predicted_of(facts))}** (`benchmarks/tutorial.py`). We have not run them on a small GPU yet; "
        "on yours, the block above shows both figures."
    )


def predicted_of(facts: dict) -> int:
    """Bytes that the calculator predicts today for the recorded measurement."""
    measured_setup = {name: facts[name] for name in ("model", "accumulation_steps", "precision")}
    return estimate(replace(TUTORIAL_SETUP, **measured_setup)).gpu.total


def _smallest(setup: Setup) -> str:
    """Name of the GPU with the least memory that still has a margin for this setup."""
    fitting = [device for device in DEVICES.values() if device.capability and verdict(setup, device).standing == "fits"]
    return min(fitting, key=lambda device: device.usable_bytes).title if fitting else "none"
