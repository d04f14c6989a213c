"""The join page's steps as a notebook, for machines that can be used only through one, such as Google Colab's."""

from __future__ import annotations

import json

from builder.join import choices
from calculator.choose.devices import DEVICES
from training.recipe import load_recipe


def notebook(repository: str) -> str:
    """The notebook's JSON.

    Args:
        repository: The address for `git clone`.
    """
    recipe = choices.DEFAULT["recipe"]
    samples = choices.micro_batch(load_recipe(recipe), DEVICES["t4"])
    line = choices.command(recipe, samples, link="router").replace(choices.PROGRAM, "python -m nox -s training --")
    cells = [
        _text(
            "# Join a run\n\nThree cells fetch the code, install nox and join the run. In the last one, fill in "
            "`ADDRESS`.\n"
        ),
        _code("code", f"!git clone {repository} training-transformers-together\n"),
        _code("tools", "%cd training-transformers-together\n%pip install --quiet -r constraints/nox.txt\n"),
        _text(
            "The next cell trains until you interrupt it (the square button). To only check the recipe, the data and "
            "the network, add `--dry-run` after `join`.\n"
        ),
        _code("join", f"!{line}\n"),
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _text(source: str) -> dict:
    return {"cell_type": "markdown", "id": f"text-{len(source)}", "metadata": {}, "source": source}


def _code(name: str, source: str) -> dict:
    empty = {"execution_count": None, "outputs": []}
    return {"cell_type": "code", "id": name, "metadata": {}, "source": source, **empty}
