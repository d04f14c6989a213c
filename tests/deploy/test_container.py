"""The container's files: the image gets a whole trainer, and the commands in them are understood.

No image is built here, since its base comes from a registry. `nox -s container` builds it and runs test_image.py.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from tests.deploy.tools import DEPLOY, parse_command
from tests.support.programs import ROOT, run_program
from training.roles.serve import STOP_SECONDS, ServeSettings

CONTAINERFILE = DEPLOY / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Containerfile, with continued lines joined."""
    text = re.sub(r"^#.*\n", "", CONTAINERFILE.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    return [tuple(line.split(" ", 1)) for line in lines if line]


def copied() -> list[tuple[str, str]]:
    """(source, target) of each copied file or folder."""
    pairs = []
    for name, arguments in instructions():
        if name == "COPY":
            *sources, target = shlex.split(arguments)
            pairs += [(source, target) for source in sources]
    return pairs


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The folder /app as the image has it, with the trainer installed from it, without its dependencies."""
    app, target = tmp_path_factory.mktemp("app"), tmp_path_factory.mktemp("installed")
    for source, folder in copied():
        place = app / folder.removeprefix("/app/")
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, place)
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--target", target]
    done = run_program([sys.executable, "-m", "pip", "install", "--quiet", *flags, app])
    assert done.returncode == 0, done.stderr
    return app, target


@pytest.mark.programs
def test_what_pip_installs_from_is_copied(image):
    app, _ = image
    files = [
        name for kind, line in instructions() if kind == "RUN" for name in re.findall(r"--requirement (\S+)", line)
    ]
    assert files == ["constraints/training.txt", "constraints/torch.txt"]
    assert all((app / name).is_file() for name in files)


@pytest.mark.programs
def test_the_installed_trainer_runs_and_has_its_recipes_and_sources(image, tmp_path):
    _, target = image
    entry = json.loads(next(arguments for name, arguments in instructions() if name == "ENTRYPOINT"))
    assert entry == ["/venv/bin/python", "-m", "training"]
    where = "import training; print(training.__file__)"
    options = {"cwd": tmp_path, "env": {"PYTHONPATH": str(target), "PATH": "/usr/bin:/bin"}}
    assert run_program([sys.executable, "-c", where], **options).stdout.startswith(str(target))
    shown = run_program([sys.executable, *entry[1:], "serve", "--help"], **options)
    assert shown.returncode == 0 and "--announce-host" in shown.stdout, shown.stderr
    refused = run_program([sys.executable, *entry[1:], "serve", "--recipe", "nowhere"], **options)
    assert refused.returncode == 2 and "demo" in refused.stderr  # the recipes that it knows
    kinds = (".c", ".html", ".css", ".toml")
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "training").rglob("*") if path.suffix in kinds}
    assert {path.rpartition(".")[2] for path in sources} == {kind[1:] for kind in kinds} and all(
        (target / source).is_file() for source in sources
    )


def test_docker_gets_all_that_is_copied_and_little_else():
    lines = (DEPLOY / "Containerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert lines[1] == "*" and allowed == {source for source, _ in copied()}
    assert not any(fnmatch("my-run.toml", pattern) for pattern in allowed)


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]


def test_compose_starts_a_command_that_is_understood(services, tmp_path):
    run = services["run"]
    command = [re.sub(r"\$\{PUBLIC_HOST[^}]*\}", "run.example", word) for word in run["command"]]
    inside = {volume.split(":")[1] for volume in run["volumes"]}
    for flag in ("--recipe=", "--shards=", "--site="):
        named = Path(next(word for word in command if word.startswith(flag)).removeprefix(flag))
        assert inside & {str(named), str(named.parent)}, named
    here = [re.sub(r"^(--shards|--site)=.*", rf"\1={tmp_path}", word) for word in command]
    parsed = parse_command(here)
    assert (parsed["public_url"], parsed["announce_host"]) == ("https://run.example", "run.example")
    assert str(parsed["run_dir"]).startswith("/run-dir/") and "run:/run-dir" in run["volumes"]


def test_compose_starts_a_membership_server_that_is_understood(services):
    service, usual = services["membership"], parse_command(["membership", "--recipe=demo"])
    parsed = parse_command(service["command"])
    inside = {volume.split(":")[1] for volume in service["volumes"]}
    assert str(Path(parsed["recipe"]).parent) in inside and str(parsed["state_dir"].parent) in inside
    assert "ports" not in service and parsed["trusted_proxy"] == ["*"]  # nobody else reaches it
    assert services["proxy"]["environment"]["MEMBERSHIP"] == f"membership:{usual['port']}"


def test_compose_opens_the_ports_at_which_serve_listens(services):
    usual = ServeSettings(recipe="demo", run_dir=DEPLOY)
    ports = [f"{port}:{port}" for port in (usual.dht_port, usual.dht_port + 1)]
    assert services["run"]["ports"] == ports
    assert services["proxy"]["environment"]["MONITOR"] == f"run:{usual.port}"


def test_compose_names_files_that_exist(services):
    build = services["run"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT and (ROOT / build["dockerfile"]) == CONTAINERFILE
    sources = {volume.split(":")[0] for service in services.values() for volume in service["volumes"]}
    made_by_the_maintainer = {"../${RUN}", "../public"}
    for source in {source for source in sources if source.startswith(".")} - made_by_the_maintainer:
        assert (DEPLOY / source).is_file(), source


def test_compose_waits_for_the_last_checkpoint(services):
    assert int(services["run"]["stop_grace_period"].removesuffix("s")) > STOP_SECONDS + 5
