"""Each way to join with nothing but a run's address: the installed program, notebooks, and a spot machine's file.

The trainer is installed as `uvx` installs it. The cells and commands that would install it are left out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from tests.support.installed import SCRIPT, build_wheel, install
from tests.support.ports import free_ports
from tests.support.programs import ROOT, Programs, run_program, until
from tests.support.random_shards import write_shards
from tests.training.roles.test_peer import tiny_recipe
from training.publish.notebook import INSTALL
from training.recipe import parse_recipe

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(1800)]

PATIENCE_SECONDS = 900.0
"""For what only has to come, on a machine that many others use."""


@dataclass(frozen=True)
class Served:
    """A run that is served on this machine, and the trainer in an environment of its own."""

    url: str
    program: Path

    def credited(self) -> dict[str, int]:
        """Samples of each volunteer on the leaderboard; empty while the site does not answer."""
        with suppress(httpx.HTTPError):
            board = httpx.get(f"{self.url}/live/leaderboard.json", timeout=5).raise_for_status().json()
            return {one["name"]: one["samples"] for one in board["volunteers"] if one["samples"]}
        return {}

    def environment(self, home: Path) -> dict[str, str]:
        """Variables with which the program is found, and keeps all that it writes in a folder."""
        path = f"{self.program.parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "HOME": str(home), "XDG_STATE_HOME": "", "XDG_CACHE_HOME": "", "PATH": path}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    recipe, log = folder / "recipe.toml", folder / "serve.log"
    recipe.write_text(tiny_recipe())
    shards = write_shards(folder / "shards", parse_recipe(recipe.read_text()))
    program = install(build_wheel(folder / "wheel"), folder / "environment")
    port, dht_port, _ = free_ports(3)
    with Programs() as programs, log.open("w") as printed:
        command = [
            *(program, "serve", "--recipe", recipe, "--shards", shards, "--run-dir", folder / "served"),
            *("--host", "127.0.0.1", "--port", port, "--dht-host", "127.0.0.1", "--dht-port", dht_port),
        ]
        programs.start(command, stdout=printed, stderr=subprocess.STDOUT, cwd=folder)
        until(lambda: "is served." in log.read_text(), said=log.read_text)
        yield Served(f"http://127.0.0.1:{port}", program)


@pytest.fixture(scope="module")
def first(run, tmp_path_factory):
    """Home of the first volunteer, who has got nothing but the address, and stays: others find the run's weights."""
    home = tmp_path_factory.mktemp("first")
    with Programs() as programs, (home / "join.log").open("w") as printed:
        options = {"cwd": home, "env": run.environment(home), "stdout": printed, "stderr": subprocess.STDOUT}
        programs.start([run.program, "join", run.url], **options)
        until(run.credited, within=PATIENCE_SECONDS, said=(home / "join.log").read_text)
        yield home


def trains(run, programs, folder, command, **variables):
    """Starts a volunteer, awaits its first credited sample, and stops it as the machine's owner would."""
    log, before = folder / "join.log", run.credited()
    with log.open("w") as printed:
        options = {"cwd": folder, "env": {**run.environment(folder), **variables}}
        volunteer = programs.start(command, stdout=printed, stderr=subprocess.STDOUT, **options)
    until(lambda: run.credited().keys() - before.keys(), within=PATIENCE_SECONDS, said=log.read_text)
    os.killpg(volunteer.pid, signal.SIGINT)
    assert volunteer.wait(timeout=60) == 0, log.read_text()
    assert "You took part for" in log.read_text()


def test_the_address_of_the_site_suffices_for_the_program(run, first):
    ((_, samples),) = run.credited().items()
    assert samples > 0 and list((first / ".local/state/training-together").iterdir())


def test_a_page_of_the_site_suffices_for_the_doctor(run, tmp_path):
    options = {"cwd": tmp_path, "env": run.environment(tmp_path)}
    examined = run_program([run.program, "doctor", f"{run.url}/join/", "--name", "ada", "--json"], **options)
    told = {one["check"]: one["level"] for one in json.loads(examined.stdout)["findings"]}
    assert (told["recipe"], told["peers"], told["run"]) == ("ok", "ok", "ok"), examined.stdout


@pytest.mark.parametrize("site", ["colab", "kaggle"])
def test_a_notebook_made_from_the_recipe_joins_its_run(run, first, programs, tmp_path, site):
    made = run_program([run.program, "notebook", run.url, "--site", site], cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    cells = json.loads((tmp_path / f"{site}.ipynb").read_text())["cells"]
    assert cells[0]["source"].startswith("# Shapes, drawn together\n")
    code = [one for one in cells if one["cell_type"] == "code" and INSTALL not in one["metadata"].get("tags", [])]
    names: dict[str, object] = {}
    *before, last = [cell["source"] for cell in code]
    for source in before:
        exec(source, names)
    # As IPython does: a line that begins with ! is the shell's, with values in the place of {names}.
    trains(run, programs, tmp_path, ["sh", "-c", f"exec {last.removeprefix('!').format(**names)}"])


def test_the_command_of_a_spot_machine_joins_the_run(run, first, programs, tmp_path):
    task = yaml.safe_load((ROOT / "deploy" / "skypilot.yaml").read_text())
    variables = {**task["envs"], "RUN": run.url, "FLAGS": "--name spot"}
    trains(run, programs, tmp_path, ["bash", "-c", task["run"]], **variables)
    assert "spot" in run.credited()


def test_a_recipe_without_a_site_asks_for_peers():
    alone = run_program([sys.executable, "-m", "training", "join", "demo"])
    assert alone.returncode == 2 and "not to the run's site" in alone.stderr and "--initial-peers" in alone.stderr
    nothing = run_program([sys.executable, "-m", "training", "join"])
    assert nothing.returncode == 2 and "\nError: Neither the address of the run" in nothing.stderr


def test_the_program_is_the_one_that_the_texts_name():
    texts = [
        (ROOT / "deploy" / name).read_text()
        for name in ("skypilot.yaml", "notebooks/colab.ipynb", "notebooks/kaggle.ipynb")
    ]
    assert all(f"{SCRIPT} join" in text for text in texts)
