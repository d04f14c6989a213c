"""The files with which volunteers join on machines of others: notebooks, and SkyPilot's task."""

from __future__ import annotations

import json
import shlex
import tomllib

import pytest
import yaml

from tests.deploy.tools import DEPLOY, parse_command
from tests.support.programs import ROOT
from training.publish.notebook import ANY_RUN, INSTALL, PROGRAM, SITES, notebook, repository
from training.recipe import load_recipe

REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]


@pytest.mark.parametrize("site", SITES)
def test_the_notebooks_are_those_that_the_command_writes(site):
    assert (DEPLOY / "notebooks" / f"{site}.ipynb").read_text() == notebook(site), (
        f"write it again: python -m training notebook --site {site} --out deploy/notebooks/{site}.ipynb"
    )


@pytest.mark.parametrize("site", SITES)
def test_a_notebook_installs_the_program_and_joins_the_run_that_it_names(site):
    made = json.loads(notebook(site, address="https://run.example/a", run=load_recipe("demo")))
    cells = {cell["id"]: cell for cell in made["cells"]}
    assert len(cells) == len(made["cells"]) and made["nbformat"] == 4
    assert cells["install"]["source"].endswith(f" git+{REPOSITORY}")
    assert cells["install"]["metadata"]["tags"] == [INSTALL]
    names: dict[str, object] = {}
    exec(cells["run"]["source"], names)
    words = shlex.split(cells["join"]["source"].removeprefix("!").format(**names))
    assert words[0] == PROGRAM and parse_command(words[1:])["address"] == "https://run.example/a"
    assert load_recipe("demo").title in cells["about"]["source"]
    assert "--invitation" not in cells["choices"]["source"], "the demo is open to all"
    assert ANY_RUN in notebook(site) and "--invitation" in notebook(site)


def test_the_repository_is_named_once():
    assert repository() == REPOSITORY


def test_the_spot_machine_installs_the_program_and_its_command_is_understood():
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())
    assert task["resources"]["use_spot"] and task["envs"] == {"RUN": None, "FLAGS": ""}
    assert task["setup"].split()[-1] == f"git+{REPOSITORY}"
    assert all(kind.endswith(":1") for kind in task["resources"]["accelerators"])
    start, *words = shlex.split(task["run"].replace("$RUN", ANY_RUN).replace("$FLAGS", "--name ada"))
    assert (start, words[0]) == ("exec", PROGRAM)
    parsed = parse_command(words[1:])
    assert (parsed["address"], parsed["name"]) == (ANY_RUN, "ada")
