"""`join ADDRESS`, installed as `uvx` installs it: nothing else leads a newcomer into the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import httpx
import pytest

from tests.installed import build_wheel, install
from tests.ports import free_ports
from tests.programs import run_program, until
from tests.random_shards import write_shards
from tests.training.roles.test_peer import tiny_recipe
from training.recipe import parse_recipe

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(600)]


@pytest.fixture
def site(programs, tmp_path):
    """Address of a run that is served on this machine, with its shards."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(tiny_recipe())
    shards = write_shards(tmp_path / "shards", parse_recipe(recipe.read_text()))
    port, dht_port, _ = free_ports(3)
    log = tmp_path / "serve.log"
    with log.open("w") as printed:
        programs.start(
            [
                *(sys.executable, "-m", "training", "serve", "--recipe", recipe, "--shards", shards),
                *("--run-dir", tmp_path / "run", "--host", "127.0.0.1", "--port", port),
                *("--dht-host", "127.0.0.1", "--dht-port", dht_port),
            ],
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
    until(lambda: "is served." in log.read_text(), said=log.read_text)
    return f"http://127.0.0.1:{port}"


def credited(site):
    """Samples of each volunteer on the leaderboard; empty while the site does not answer."""
    with suppress(httpx.HTTPError):
        board = httpx.get(f"{site}/live/leaderboard.json", timeout=5).raise_for_status().json()
        return {one["name"]: one["samples"] for one in board["volunteers"] if one["samples"]}
    return {}


def test_the_address_of_the_site_suffices_from_an_empty_environment_to_credit(site, programs, tmp_path):
    program = install(build_wheel(tmp_path / "wheel"), tmp_path / "environment")
    home = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": "", "XDG_CACHE_HOME": ""}
    options = {"cwd": tmp_path, "env": home}
    examined = run_program([program, "doctor", f"{site}/join/", "--name", "ada", "--json"], **options)
    told = {one["check"]: one["level"] for one in json.loads(examined.stdout)["findings"]}
    assert (told["recipe"], told["peers"], told["run"]) == ("ok", "ok", "ok"), examined.stdout

    log = tmp_path / "join.log"
    with log.open("w") as printed:
        volunteer = programs.start([program, "join", site], stdout=printed, stderr=subprocess.STDOUT, **options)
    (samples,) = until(lambda: credited(site), said=log.read_text).values()
    assert samples > 0
    volunteer.send_signal(signal.SIGINT)
    assert volunteer.wait(timeout=60) == 0, log.read_text()
    assert "You took part for" in log.read_text()
    assert list((tmp_path / ".local/state/training-together").iterdir())


def test_a_recipe_without_a_site_asks_for_peers(tmp_path):
    alone = run_program([sys.executable, "-m", "training", "join", "demo"])
    assert alone.returncode == 2 and "not to the run's site" in alone.stderr and "--initial-peers" in alone.stderr
    nothing = run_program([sys.executable, "-m", "training", "join"])
    assert nothing.returncode == 2 and nothing.stderr.startswith("Error: Neither the address of the run")
