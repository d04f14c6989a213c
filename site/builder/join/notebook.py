"""The join page's steps as a notebook, for machines that can be used only through one, such as Google Colab's.

Without a run to join its last cell starts the demo; the page's script puts a run's command there.
"""

from __future__ import annotations

import json

from builder.join import choices


def notebook(repository: str) -> str:
    """The notebook's JSON.

    Args:
        repository: The address for `git clone`.
    """
    line = in_notebook(choices.DEMOS[choices.DEFAULT["recipe"]])
    cells = [
        _text(
            "# Join a run\n\nThree cells fetch the code, install nox, and join the run that you have chosen on the "
            "page; without one, the last cell starts the demo, a whole run on one machine.\n"
        ),
        _code("code", f"!git clone {repository} training-transformers-together\n"),
        _code("tools", "%cd training-transformers-together\n%pip install --quiet -r constraints/nox.txt\n"),
        _text("The next cell trains until you interrupt it (the square button).\n"),
        _code("join", f"!{line}\n"),
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def in_notebook(command: str) -> str:
    """A command for a notebook's shell, where nox is installed beside Python; the page's script makes the same."""
    return command.replace(".venv/bin/nox", "python -m nox")


def _text(source: str) -> dict:
    return {"cell_type": "markdown", "id": f"text-{len(source)}", "metadata": {}, "source": source}


def _code(name: str, source: str) -> dict:
    empty = {"execution_count": None, "outputs": []}
    return {"cell_type": "code", "id": name, "metadata": {}, "source": source, **empty}
