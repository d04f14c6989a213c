"""The join page's steps as a notebook, for a machine whose only door is one, such as Google Colab's."""

from __future__ import annotations

import json

from builder.join import choices
from calculator.devices import DEVICES
from training.config import load_recipe


def notebook(repository: str) -> str:
    """The notebook's JSON.

    Args:
        repository: What `git clone` takes.
    """
    recipe = choices.DEFAULT["recipe"]
    samples = choices.micro_batch(load_recipe(recipe), DEVICES["t4"])
    line = choices.command(recipe, samples, link="router").replace(choices.PROGRAM, "python -m nox -s training --")
    cells = [
        _text("# Join a run\n\nThree cells: the code, the tools, and the join page's command. Fill in `ADDRESS`.\n"),
        _code("code", f"!git clone {repository} training-transformers-together\n"),
        _code("tools", "%cd training-transformers-together\n%pip install --quiet nox\n"),
        _text(
            "This trains until you interrupt it (the square button). Behind `join`, `--dry-run` first checks recipe, "
            "data and network, and stops.\n"
        ),
        _code("join", f"!{line}\n"),
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _text(source: str) -> dict:
    return {"cell_type": "markdown", "id": f"text-{len(source)}", "metadata": {}, "source": source}


def _code(name: str, source: str) -> dict:
    empty = {"execution_count": None, "outputs": []}
    return {"cell_type": "code", "id": name, "metadata": {}, "source": source, **empty}
