"""Notebooks that join a run, for machines that can be used only through one: Google Colab's and Kaggle's."""

from __future__ import annotations

import importlib.metadata
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.publish.invitation import PROGRAM
from training.recipe import RunConfig

STATE_FOLDER = "training-together"
"""Folder beside the notebook that keeps the volunteer's identity and the run's weights."""
INSTALL = "install"
"""Tag of the cell that installs the trainer; a test, which has the trainer already, omits the cell."""
ANY_RUN = "https://run.example"
"""Address that the reader of a notebook replaces by that of a run."""
_FIELD = '  # @param {type:"string"}'
"""Comment that makes Colab show a text field for a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Site:
    """A site that runs notebooks."""

    title: str
    before: str
    """What to choose there first."""
    metadata: dict[str, object]


SITES: dict[str, _Site] = {
    "colab": _Site(
        title="Google Colab",
        before="Choose a GPU first: **Runtime**, **Change runtime type**.",
        metadata={"accelerator": "GPU"},
    ),
    "kaggle": _Site(
        title="Kaggle",
        before="In the notebook's settings, choose an accelerator and turn the Internet on first.",
        metadata={"kaggle": {"accelerator": "gpu", "isInternetEnabled": True}},
    ),
}


def notebook(
    site: Literal["colab", "kaggle"],
    *,
    address: str = ANY_RUN,
    run: RunConfig | None = None,
    source: str | None = None,
) -> str:
    """Makes a notebook's JSON.

    Args:
        site: Site that runs the notebook.
        address: Address of the run.
        run: Its recipe; None: the reader names the run.
        source: Address of the repository to install from; None: the one in the package's metadata.
    """
    where = SITES[site]
    title, about = (run.title, f"{run.description}\n\n") if run is not None else ("Join a run", "")
    members = " A run for members only needs `--invitation CODE`." if run is None or not run.membership.open else ""
    naming = "" if run is not None else "Put the address of the run into `RUN`. "
    cells = [
        _text("about", f"# {title}\n\n{about}This notebook trains as a volunteer, on {where.title}. {where.before}"),
        _code("install", f"%pip install --quiet git+{source or repository()}", tags=[INSTALL]),
        _text(
            "choices",
            f"{naming}`FLAGS` may have more flags, such as `--name YOUR-NAME` for the leaderboard; "
            f"`!{PROGRAM} join --help` lists all.{members}",
        ),
        _code("run", f'RUN = {json.dumps(address)}{_FIELD}\nFLAGS = ""{_FIELD}'),
        _text("training", "The next cell trains until you interrupt it (the square button); then it leaves the run."),
        _code("join", f'!{PROGRAM} join "{{RUN}}" --state-dir {STATE_FOLDER} {{FLAGS}}'),
    ]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    made = {"cells": cells, "metadata": kernel | where.metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, indent=1) + "\n"


def repository() -> str:
    """Address of the project's repository, from the metadata of the installed package or of the clone."""
    clone = Path(__file__).parents[2] / "pyproject.toml"
    if clone.is_file():
        return tomllib.loads(clone.read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    links = importlib.metadata.metadata(PROGRAM).get_all("Project-URL", [])
    return dict(link.split(", ", 1) for link in links)["Repository"]


def _text(name: str, source: str) -> dict[str, object]:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": source}


def _code(name: str, source: str, *, tags: list[str] | None = None) -> dict[str, object]:
    facts = {"metadata": {"tags": tags} if tags else {}, "execution_count": None, "outputs": []}
    return {"cell_type": "code", "id": name, "source": source, **facts}
