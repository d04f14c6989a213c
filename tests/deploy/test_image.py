"""The image that `nox -s container` builds: the trainer's commands run in it, and it serves a run as compose.yml says.

A build takes minutes and needs a base image from a registry, so the other sessions skip this file.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml

from tests.support.programs import ROOT, run_program, until

IMAGE = "training-together"
ENGINE = os.environ.get("CONTAINER_ENGINE")
"""Podman or Docker, which has the image."""
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        ENGINE is None, reason="needs the container's image: `nox -s container` builds it with Podman or Docker"
    ),
]
SERVICES = yaml.safe_load((ROOT / "deploy" / "compose.yml").read_text())["services"]
HOST, RUN = "localhost", "runs/my-run"
VOLUME = f"training-together-test-{os.getpid()}"
"""Name of the volume and of the container."""
SITE_PORT = 8000
"""Where `serve` shows the site; compose.yml publishes only the peers' ports, since the proxy reaches this one."""


def engine(*words: object) -> str:
    """What Podman or Docker prints; fails if it fails."""
    done = run_program([ENGINE, *map(str, words)])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def hardening(service: dict) -> list[str]:
    """Flags of `run` for a service's lines in compose.yml, but for its limits, which need the machine's cgroups."""
    flags = [*(["--init"] if service["init"] else []), *(["--read-only"] if service["read_only"] else [])]
    flags += [f"--tmpfs={folder}" for folder in service["tmpfs"]]
    flags += [f"--cap-drop={name}" for name in service["cap_drop"]]
    flags += [f"--security-opt={option}" for option in service["security_opt"]]
    return [*flags, f"--shm-size={service['shm_size']}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a maintainer has at the root of the project: a recipe, a site, and shards that the image has prepared."""
    root = tmp_path_factory.mktemp("project")
    (root / RUN).mkdir(parents=True)
    (root / RUN / "recipe.toml").write_text((ROOT / "training" / "recipes" / "demo.toml").read_text())
    (root / "public").mkdir()
    (root / "public" / "index.html").write_text("<!doctype html><title>A run</title>")
    run = ["run", f"--volume={VOLUME}:/run-dir", *hardening(SERVICES["run"])]
    pictures = "/run-dir/pictures"
    try:
        engine(*run, "--rm", IMAGE, "draw", "--count=40", f"--out={pictures}")
        made = (f"--images={pictures}", f"--captions={pictures}/captions.jsonl", "--codec-steps=2")
        engine(*run, f"--name={VOLUME}", IMAGE, "prepare", *made, "--out=/run-dir/shards")
        engine("cp", f"{VOLUME}:/run-dir/shards", root / RUN / "shards")
        engine("rm", "--force", VOLUME)
        yield root
    finally:
        run_program([ENGINE, "rm", "--force", VOLUME])
        run_program([ENGINE, "volume", "rm", "--force", VOLUME])


@dataclass(frozen=True)
class Container:
    """A container with the servers of a run."""

    name: str

    def at(self, port: int) -> tuple[str, int]:
        """Where this machine reaches one of its ports."""
        host, _, number = engine("port", self.name, f"{port}/tcp").splitlines()[0].rpartition(":")
        return host, int(number)

    def page(self, path: str) -> httpx.Response | None:
        """A page of its site; None while nothing answers."""
        host, port = self.at(SITE_PORT)
        try:
            answer = httpx.get(f"http://{host}:{port}{path}", timeout=10)
        except httpx.TransportError:
            return None
        return answer if answer.status_code == 200 else None

    def ready(self) -> dict:
        """What its site says of the run, as soon as it answers."""
        return until(lambda: self.page("/live/run.json"), said=self.printed).json()

    def printed(self) -> str:
        """What the servers have printed."""
        done = run_program([ENGINE, "logs", self.name])
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Container]:
    """The service `run` of compose.yml, with this folder for the project's root and with free ports of this machine."""
    service = SERVICES["run"]
    command = [re.sub(r"\$\{PUBLIC_HOST[^}]*\}", HOST, word) for word in service["command"]]
    volumes = [re.sub(r"^run:", f"{VOLUME}:", volume).replace("../", f"{folder}/") for volume in service["volumes"]]
    volumes = [volume.replace("${RUN}", RUN) for volume in volumes]
    ports = [int(port.split(":")[1]) for port in service["ports"]] + [SITE_PORT]
    flags = [*(f"--volume={volume}" for volume in volumes), *(f"--publish=127.0.0.1::{port}" for port in ports)]
    engine("run", "--detach", f"--name={VOLUME}", *flags, *hardening(service), IMAGE, *command)
    yield Container(VOLUME)


def speaks_libp2p(address: tuple[str, int]) -> bool:
    """True if a peer listens there: both sides begin with this line (github.com/multiformats/multistream-select)."""
    line = b"\x13/multistream/1.0.0\n"
    with socket.create_connection(address, timeout=10) as connection:
        connection.settimeout(10)
        connection.sendall(line)
        return connection.recv(len(line)) == line


def test_it_runs_as_its_own_user_and_names_its_commands():
    assert engine("run", "--rm", "--entrypoint=id", IMAGE, "-u", "-n") == "trainer"
    assert "serve" in engine("run", "--rm", IMAGE)


def test_it_plans_with_pytorch_and_a_recipe_of_its_own():
    plan = json.loads(engine("run", "--rm", "--read-only", IMAGE, "plan", "--recipe=demo", "--gpu=t4", "--json"))
    assert plan["parameters"] == 1_364_560  # as the README's demo has; nobody's disk had to be written


def test_servers_start_answer_stop_and_come_back_with_the_same_address(served):
    run = served.ready()
    assert len([address for address in run["initial_peers"] if f"/dns4/{HOST}/tcp/" in address]) == 2
    assert served.page("/live/state.json").json()["status"] == "waiting"
    assert "A run" in served.page("/").text and 'run_id = "demo"' in served.page("/recipe.toml").text
    assert speaks_libp2p(served.at(31337)) and speaks_libp2p(served.at(31338))

    engine("stop", f"--time={SERVICES['run']['stop_grace_period'].removesuffix('s')}", served.name)
    assert engine("inspect", "--format={{.State.ExitCode}}", served.name) == "0", served.printed()
    assert "Both servers have ended." in served.printed()

    engine("start", served.name)
    assert served.ready()["initial_peers"] == run["initial_peers"]
