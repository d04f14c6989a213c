"""`serve` with a real bootstrap peer and monitor: they start again, at the same address, and end with it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import httpx
import psutil
import pytest

from tests.support.ports import free_ports
from tests.support.programs import run_program, until
from tests.training.doctor.places import file_of, serving
from training.recipe import RECIPES
from training.roles.serve import answers

SERVE = (sys.executable, "-m", "training", "serve")


class Served:
    """A run that is served on loopback, in a folder of its own."""

    def __init__(self, programs, folder):
        self.programs, self.folder = programs, folder
        self.port, self.dht_port, _ = free_ports(3)
        self.log, self.events = folder / "serve.log", folder / "serve.jsonl"
        self.process = None
        self.command = [
            *(*SERVE, "--recipe", "demo", "--run-dir", folder / "run", "--log-json", self.events),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--dht-host", "127.0.0.1", "--dht-port", str(self.dht_port)),
        ]

    def start(self):
        """Starts it; its `ready` event."""
        before = len(self.told("ready"))
        with self.log.open("a") as printed:
            self.process = self.programs.start(self.command, stdout=printed, stderr=subprocess.STDOUT)
        return self.until(lambda: self.told("ready")[before:])[0]

    def told(self, event, role=None):
        """Events of this kind so far: of one of its servers, or of the whole."""
        lines = self.events.read_text().splitlines() if self.events.exists() else []
        return [found for found in map(json.loads, lines) if (found["event"], found.get("role")) == (event, role)]

    def until(self, condition):
        def met():
            assert self.process.poll() is None, self.log.read_text()
            return condition()

        return until(met, said=self.log.read_text)

    def server(self, role):
        """The process of one of its servers, if it runs."""
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                if role in child.cmdline():
                    return child
        return None

    def site(self, path):
        """What its site answers; None while it does not."""
        with suppress(httpx.TransportError):
            answer = httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5)
            return answer if answer.status_code == 200 else None


@pytest.mark.swarm
def test_servers_start_again_at_the_same_address_and_end_together(programs, tmp_path):
    served = Served(programs, tmp_path)
    ready = served.start()
    assert ready["url"] == f"http://127.0.0.1:{served.port}"
    known = [re.fullmatch(r"/ip4/127\.0\.0\.1/tcp/(\d+)/p2p/\w+", address)[1] for address in ready["initial_peers"]]
    assert known == [str(served.dht_port), str(served.dht_port + 1)]
    assert f"\n    {ready['join_command']}\n" in served.log.read_text()
    assert served.site("/live/run.json").json()["join_command"] == ready["join_command"]

    second = run_program(served.command)
    *first, last = second.stderr.splitlines()
    assert second.returncode == 2 and "is running in" in last and len(first) <= 1  # that it runs

    served.server("monitor").kill()
    node = next(child for child in served.server("bootstrap").children() if "bootstrap" in child.cmdline())
    node.kill()  # hivemind's process: without it the bootstrap peer would run on and answer nobody
    served.until(lambda: served.told("warning", "monitor"))
    assert "killed by SIGKILL" in served.told("warning", "monitor")[0]["text"]
    first, again = served.until(lambda: served.told("ready", "bootstrap")[1:] and served.told("ready", "bootstrap"))
    assert first["addresses"] == again["addresses"] == ready["initial_peers"][:1]
    assert "bootstrap peer: Warning: The network node has ended. The program begins anew." in served.log.read_text()
    assert served.until(lambda: served.told("ready", "monitor")[1:])[0]["initial_peers"] == ready["initial_peers"]
    assert served.site("/recipe.toml")

    served.process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    assert served.process.wait(timeout=15) == 0, served.log.read_text()
    assert time.monotonic() - asked < 9
    assert programs.running() == []
    assert len(served.told("stopped")) == 1


@pytest.mark.swarm
def test_a_server_that_cannot_start_ends_the_command_with_its_sentence_and_exit_code(tmp_path, programs):
    ended = run_program([*SERVE, "--recipe", "demo", "--run-dir", tmp_path / "run", "--initial-peers", "my router"])
    assert ended.returncode == 2, ended.stderr
    said = r"Error: The bootstrap peer has ended before it was ready \(exit code 2\): 'my router' is .+"
    assert re.fullmatch(said, ended.stderr.splitlines()[-1])
    assert programs.running() == []


@pytest.mark.programs
def test_a_wrong_recipe_is_refused_before_anything_starts(tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text((RECIPES / "demo.toml").read_text().replace("num_heads = ", "number_of_heads = "))
    ended = run_program([*SERVE, "--recipe", recipe, "--run-dir", tmp_path / "run"])
    assert ended.returncode == 2 and "number_of_heads" in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()


def test_a_server_is_asked_for_a_sign_of_life_without_the_networks_proxy(monkeypatch):
    """Otherwise it is ended as silent every minute."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nothing listens
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(file_of("{}")) as url:
        assert answers(url)
    assert not answers(url)
