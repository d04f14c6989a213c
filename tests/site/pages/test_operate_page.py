"""The commands of the page "Operate a run", in its order, on a tiny run with a volunteer who never leaves.

Names and addresses are those of this machine, files for /etc go into another folder. Not run: systemctl, which needs a
machine started by systemd; podman, which needs a registry; and nox, whose sessions the tests run in.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.programs import ROOT, run_program, until
from tests.random_shards import write_shards
from tests.site.guide import TRAINER, Guide, Machine, environment
from tests.training.trust.tickets import PEER
from training.checkpoints.checkpoint import checkpoint_epoch, latest_checkpoint, list_checkpoints
from training.cli import COMMANDS
from training.publish.history.history import HistoryReader
from training.recipe import RECIPES, load_recipe, parse_recipe
from training.trust.server.ledger import REGISTER_FILE
from training.trust.server.moderation import Moderation
from training.trust.server.register import Entrant

PAGE = (ROOT / "site" / "operate.md").read_text(encoding="utf-8")
MEMBERS = PAGE.split("## Admit members only\n")[1].split("\n## ")[0]
"""The section on membership, whose commands have a test of their own."""
TINY = {
    "run_id": '"my-run"',
    "hidden_size": 32,
    "num_heads": 2,
    "head_dim": 16,
    "image_vocab_size": 64,
    "codebook_size": 64,
    "target_batch_size": 32,
    "total_epochs": 100_000,
    "metrics_every_seconds": 1.0,
    "max_epochs_alone": 0,
    "checkpoint_every_epochs": 5,
}


def tiny_recipe() -> str:
    text = (RECIPES / "demo.toml").read_text()
    for name, value in TINY.items():
        text, changed = re.subn(rf"(?m)^{name} = .*$", f"{name} = {value}", text)
        assert changed == 1, name
    return text[: text.index("prompts = [")]


def peers(ready: dict) -> list[str]:
    """The keys of the servers that newcomers are told, each once: one may have several addresses of the same reach."""
    return list(dict.fromkeys(address.rpartition("/p2p/")[2] for address in ready["initial_peers"]))


@pytest.mark.swarm
@pytest.mark.timeout(600)
def test_the_pages_commands_operate_a_run(programs, tmp_path):
    (tmp_path / "my-run.toml").write_text(tiny_recipe())
    (tmp_path / "public").mkdir()
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    write_shards(tmp_path / "shards", load_recipe(str(tmp_path / "my-run.toml")))
    guide = Guide(tmp_path, PAGE.replace(MEMBERS, ""))
    machine = Machine(programs, guide)

    first = machine.serve(guide.take(f"{TRAINER}serve"), tmp_path)
    volunteer, printed = join(machine, first, tmp_path)
    epoch = machine.until_epoch(3, printed)
    machine.end()

    second = machine.serve(guide.take(f"{TRAINER}serve"), tmp_path)
    assert peers(second) == peers(first)
    told = {address.rpartition("/p2p/")[0] for address in second["initial_peers"]}
    assert told >= {f"/dns4/localhost/tcp/{port}" for port in (guide.dht_port, guide.dht_port + 1)}
    epoch = machine.until_epoch(epoch + 3, printed)
    guide.run(f"{TRAINER}doctor")
    install(guide)
    add_bootstrap_peer(guide, machine)

    run_dir = tmp_path / "runs" / "my-run"
    until(lambda: latest_checkpoint(run_dir / "checkpoints"), said=machine.log.read_text)
    guide.run("tar --create --gzip")
    guide.run(f"{TRAINER}monitor")
    machine.end()
    for lost in ("bootstrap", "monitor"):
        shutil.rmtree(run_dir / lost)
    (run_dir / "history.sqlite").write_bytes(b"destroyed")
    guide.run("tar --extract --gzip")
    guide.run("rm --force")
    guide.run("cp backups/history.sqlite")

    go_back(guide, run_dir)
    change_the_recipe(tmp_path / "my-run.toml")
    guide.run("tar --create --file")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("shards", "public"):
        (tmp_path / name).rename(elsewhere / name)
    shutil.copy(tmp_path / "my-run.tar", elsewhere)
    guide.run("tar --extract --file", where=elsewhere)
    run_dir.rename(tmp_path / "left behind")
    third = machine.serve(guide.take(f"{TRAINER}serve"), elsewhere)
    assert peers(third) == peers(first)
    document = httpx.get(f"http://127.0.0.1:{guide.port}/live/run.json").json()
    assert document["title"] == "Another title"
    machine.until_epoch(epoch + 3, printed)
    assert volunteer.poll() is None
    history = HistoryReader(elsewhere / "runs" / "my-run" / "history.sqlite")
    assert history.epochs()[0]["epoch"] <= epoch
    assert [branch["kind"] for branch in history.branches()] == ["begun", "restored"]
    machine.end()

    (elsewhere / "site").mkdir()
    guide.run(f"{TRAINER}monitor", where=elsewhere)
    assert json.loads((elsewhere / "site" / "live" / "run.json").read_text())["title"] == "Another title"
    assert guide.take(".venv/bin/nox")[1:] == ["-s", "site"]
    assert guide.commands == []


@pytest.mark.programs
def test_the_pages_commands_admit_members_only(programs, tmp_path):
    (tmp_path / "my-run.toml").write_text(tiny_recipe())
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    guide = Guide(tmp_path, MEMBERS)
    command = [*guide.take(f"{TRAINER}membership"), "--port", str(guide.port)]
    first = run_program(command, cwd=tmp_path, env=environment())
    assert first.returncode == 2 and "Add the lines above to the recipe" in first.stderr
    key = re.search(r'^key = "(.*)"$', first.stdout, re.MULTILINE)[1]
    lines = re.search(r"^```toml\n(.*?)^```", MEMBERS, re.MULTILINE | re.DOTALL)[1]
    with (tmp_path / "my-run.toml").open("a") as recipe:
        recipe.write(lines.replace("THE KEY THAT IT PRINTED", key))
    log = tmp_path / "membership.log"
    with log.open("w") as printed:
        programs.start(command, cwd=tmp_path, env=environment(), stdout=printed, stderr=subprocess.STDOUT)
    until(lambda: "get their tickets" in log.read_text(), said=log.read_text)

    code = re.search(r"--invitation (\S+),", guide.run(f"{TRAINER}moderate invite"))[1]
    register = Moderation(tmp_path / "runs" / "my-run" / "membership" / REGISTER_FILE)
    admission = Entrant(standing="vouched", code=code)
    register.admit(admission, PEER, ticket_ends=register.now + 60, most_peers=1)
    assert "invited:ada (vouched)" in guide.run(f"{TRAINER}moderate list")
    assert "Banned invited:ada" in guide.run(f"{TRAINER}moderate ban")
    password = (register.path.parent / "page.token").read_text().strip()
    shown = httpx.get(f"http://127.0.0.1:{guide.port}/page", auth=("", password)).text
    assert "wrong gradients" in shown and "invited:ada" in shown
    assert "invited:ada" in httpx.get(f"http://127.0.0.1:{guide.port}/bans").text
    guide.run(f"{TRAINER}moderate unban")
    assert "Removed invited:ada" in guide.run(f"{TRAINER}moderate remove")
    # tests/training/roles/test_membership_server.py goes back in a run; this one has no checkpoint.
    refused = run_program(guide.take(f"{TRAINER}moderate ban ada --revert-to"), cwd=tmp_path, env=environment())
    assert refused.returncode == 2 and "has no checkpoint of epoch 4000" in refused.stderr
    assert register.banned() == []
    for _ in range(2):
        guide.run("sudo install")
    unit = guide.take("sudo systemctl enable --now")[-1]
    assert (tmp_path / "etc" / "systemd" / "system" / f"{unit}.service").is_file()
    assert guide.commands == []


def join(machine: Machine, ready: dict, folder: Path) -> tuple[subprocess.Popen, Path]:
    """Starts a volunteer with the command that `serve` prints."""
    words = shlex.split(ready["join_command"])
    assert words[:4] == ["python", "-m", "training", "join"]
    log = folder / "volunteer.log"
    here = ["--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--state-dir", folder / "volunteer", "--name", "ada"]
    here += ["--threads", "1", "--micro-batch-size", "8", "--precision", "float32"]
    return machine.start([sys.executable, *words[1:], *here], log, folder), log


def install(guide: Guide) -> None:
    """Installs the files of `deploy/` below another folder than /etc."""
    for _ in range(4):
        guide.run("sudo install")
    installed = guide.folder / "etc" / "systemd" / "system" / "training-run.service"
    enable = guide.take("sudo systemctl")
    assert enable == ["systemctl", "enable", "--now", installed.stem]
    settings = re.findall(r"^EnvironmentFile=/etc(\S+)$", installed.read_text(), re.MULTILINE)
    assert [(guide.folder / f"etc{file}").is_file() for file in settings] == [True]
    guide.run("sudo install")
    assert (guide.folder / "etc" / "caddy" / "Caddyfile").is_file()
    assert guide.take("sudo systemctl") == ["systemctl", "reload", "caddy"]
    _, *flags, context = guide.take("podman build")
    assert (ROOT / context / flags[flags.index("--file") + 1]).is_file()
    name, *trainer = guide.take("podman run --rm")[3:]
    assert name == flags[flags.index("--tag") + 1] and trainer[0] in COMMANDS


def add_bootstrap_peer(guide: Guide, machine: Machine) -> None:
    """Starts the further bootstrap peer, as on another machine, until it is ready."""
    command = guide.take(f"{TRAINER}bootstrap")
    command[command.index("--port") + 1] = "0"
    command[command.index("--state-dir") + 1] = "another machine"
    log = guide.folder / "bootstrap.log"
    peer = machine.start(command, log, guide.folder)
    until(lambda: re.search(r"^    /ip4/\S+/p2p/\w+$", log.read_text(), re.MULTILINE), said=log.read_text)
    peer.terminate()
    assert peer.wait(30) == 0


def go_back(guide: Guide, run_dir: Path) -> None:
    """Orders the run to go back to its first checkpoint, while the servers are off."""
    command = guide.take(f"{TRAINER}restore")
    epoch = checkpoint_epoch(list_checkpoints(run_dir / "checkpoints")[0])
    command = [str(epoch) if word == "4000" else word for word in command]
    ended = run_program(command, cwd=guide.folder, env=environment())
    assert ended.returncode == 0 and f"goes back to epoch {epoch}" in ended.stdout, ended.stdout + ended.stderr


def change_the_recipe(path: Path) -> None:
    """Changes what may change in mid-run."""
    text = path.read_text()
    changed = re.sub(r"(?m)^title = .*$", 'title = "Another title"', text)
    changed = changed.replace("checkpoint_every_epochs = 5", "checkpoint_every_epochs = 50")
    assert parse_recipe(changed) != parse_recipe(text)
    assert parse_recipe(changed).digest == parse_recipe(text).digest
    path.write_text(changed)


def test_every_state_that_the_dashboard_shows_is_explained():
    source = (ROOT / "site" / "javascripts" / "feed.mjs").read_text()
    of_status = source.split("const LABELS = {")[1].split("}")[0]
    shown = set(re.findall(r'"([^"]+)"', of_status)) | set(re.findall(r'label: "([^"]+)"', source))
    table = PAGE.split("## What the dashboard says\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\w, ]+) \|", table, re.MULTILINE)[1:]
    assert shown - {"Looking", "No run"} == {state for row in rows for state in row.split(", ")}  # those are of no run
