"""The commands of the page "Operate a run", in its order, on a small run with a volunteer who never leaves; then those
of the pages in the reference to which it leads.

Names and addresses are those of this machine, files for /etc and /var go into another folder. `NOT_RUN` in
tests/site/guide.py names the commands that do not run, each with the reason; what they name is checked here.
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

from tests.site.guide import TRAINER, Guide, Machine, check_sentences, environment
from tests.support.ports import free_port
from tests.support.programs import ROOT, run_program, until
from training.checkpoints.checkpoint import checkpoint_epoch, latest_checkpoint, list_checkpoints
from training.cli import COMMANDS
from training.publish.history.history import HistoryReader
from training.publish.invitation import MEMBERS_FLAGS, PROGRAM
from training.recipe import parse_recipe

PAGE = (ROOT / "site" / "operate.md").read_text(encoding="utf-8")
MEMBERS = PAGE.split("## Let members in\n")[1].split("\n## ")[0]
"""The section on membership, whose commands have a test of their own."""
SERVERS_PAGE, MEMBERS_PAGE = (
    (ROOT / "site" / "reference" / f"{name}.md").read_text(encoding="utf-8") for name in ("servers", "members")
)
MOST_WORDS = 1500
QUICK = {
    "target_batch_size": 32,
    "total_epochs": 100_000,
    "metrics_every_seconds": 1.0,
    "max_epochs_alone": 0,
    "checkpoint_every_epochs": 3,
}
"""Values of a run whose epochs take a moment."""
ALONE = ["--threads", "1", "--normal-priority", "--precision", "float32", "--micro-batch-size", "8"]


def test_the_page_is_short():
    assert len(PAGE.split()) <= MOST_WORDS


@pytest.mark.parametrize("page", ["operate.md", "reference/servers.md", "reference/members.md"])
def test_commands_in_sentences_are_understood_or_named_with_a_reason(page, monkeypatch, tmp_path):
    (tmp_path / "runs" / "my-texts").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    check_sentences((ROOT / "site" / page).read_text(encoding="utf-8"))


@pytest.fixture
def home(tmp_path):
    """A folder with a run that `new` has made of a few texts."""
    folder = tmp_path / "home"
    (folder / "my-texts").mkdir(parents=True)
    for number in range(60):
        (folder / "my-texts" / f"{number}.txt").write_text(f"Story {number}: Ada has a red key. " * 12)
    made = run_program(
        [*new("my-texts"), "--yes", "--no-serve", "--volunteers", "1:cpu"], cwd=folder, env=environment()
    )
    assert made.returncode == 0, made.stdout + made.stderr
    recipe = folder / "runs" / "my-texts" / "recipe.toml"
    text = recipe.read_text()
    for name, value in QUICK.items():
        text, changed = re.subn(rf"(?m)^{name} = \S+", f"{name} = {value}", text)
        assert changed == 1, name
    recipe.write_text(text)
    return folder


def new(folder: str) -> list[str]:
    return [sys.executable, "-m", "training", "new", folder]


def peers(ready: dict) -> list[str]:
    """The keys of the servers that newcomers are told, each once: one may have several addresses of the same reach."""
    return list(dict.fromkeys(address.rpartition("/p2p/")[2] for address in ready["initial_peers"]))


@pytest.mark.swarm
@pytest.mark.timeout(900)
def test_the_pages_commands_operate_a_run(programs, home, tmp_path):
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    (tmp_path / "public").mkdir()
    guide = Guide(tmp_path, PAGE.replace(MEMBERS, ""))
    machine = Machine(programs, guide)
    run_dir = tmp_path / "runs" / "my-texts"

    first = machine.serve(new("runs/my-texts"), home)
    volunteer, printed = join(machine, first["join_command"], tmp_path)
    epoch = machine.until_epoch(2, printed)
    machine.end()
    guide.run("tar --create", where=home)
    (home / "my-texts.tar.gz").rename(tmp_path / "my-texts.tar.gz")
    guide.run("tar --extract")
    second = machine.serve(guide.take(f"{TRAINER}new runs/my-texts --address"), tmp_path)
    assert peers(second) == peers(first)
    told = {address.rpartition("/p2p/")[0] for address in second["initial_peers"]}
    assert told >= {f"/dns4/localhost/tcp/{port}" for port in (guide.dht_port, guide.dht_port + 1)}
    epoch = machine.until_epoch(epoch + 2, printed)
    guide.run(f"{TRAINER}doctor")
    machine.end()

    service = install_service(guide)
    run_dir.symlink_to(
        tmp_path / "var" / "lib" / "training-run" / "run"
    )  # as the page says, that is the run's folder now
    assert peers(machine.serve(service, tmp_path)) == peers(first)
    epoch = machine.until_epoch(epoch + 2, printed)
    install_proxy(guide)
    look_at_containers(guide)
    assert guide.read("sudo systemctl restart")[-1] == "training-run"
    machine.end()
    machine.serve(service, tmp_path)
    run_details(Guide(tmp_path, SERVERS_PAGE), machine)

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
    restored = go_back(guide, run_dir)
    change_the_recipe(run_dir / "recipe.toml")
    assert peers(machine.serve(service, tmp_path)) == peers(first)
    assert httpx.get(f"http://127.0.0.1:{guide.port}/live/run.json").json()["title"] == "Another title"
    machine.until_epoch(restored + 2, printed)
    assert volunteer.poll() is None, printed.read_text()
    machine.end()
    assert HistoryReader(run_dir / "history.sqlite").epochs()[0]["epoch"] <= restored
    assert kinds_of_branches(run_dir) == ["begun", "restored"]

    (tmp_path / "site").mkdir()
    guide.run(f"{TRAINER}monitor")
    assert json.loads((tmp_path / "site" / "live" / "run.json").read_text())["title"] == "Another title"
    assert guide.read(".venv/bin/nox")[1:] == ["-s", "site"]
    assert guide.commands == []


@pytest.mark.swarm
@pytest.mark.timeout(900)
def test_the_pages_commands_let_members_in(programs, home):
    shutil.copytree(ROOT / "deploy", home / "deploy")
    guide, run_dir, port = Guide(home, MEMBERS), home / "runs" / "my-texts", free_port()
    machine = Machine(programs, guide)
    command = [*guide.take(f"{TRAINER}membership"), "--port", str(port)]
    first = run_program(command, cwd=home, env=environment())
    assert first.returncode == 2 and "Add the lines above to the recipe" in first.stderr
    key = re.search(r'^key = "(.*)"$', first.stdout, re.MULTILINE)[1]
    lines = re.search(r"^```toml\n(.*?)^```", MEMBERS, re.MULTILINE | re.DOTALL)[1]
    lines = lines.replace("THE KEY THAT IT PRINTED", key)
    with (run_dir / "recipe.toml").open("a") as recipe:  # there is no proxy here
        recipe.write(f"\n{lines.replace('https://run.example/membership', f'http://127.0.0.1:{port}')}")
    log = home / "membership.log"
    machine.start(command, log, home)
    until(lambda: "get their tickets" in log.read_text(), said=log.read_text)

    words = guide.run(f"{TRAINER}moderate invite servers")
    start = guide.take(f"{TRAINER}new runs/my-texts --invitation")
    ready = machine.serve([code_in(words) if word == "CODE" else word for word in start], home)
    code = code_in(guide.run(f"{TRAINER}moderate invite ada"))
    assert ready["join_command"].endswith(f" {MEMBERS_FLAGS}")
    volunteer, printed = join(machine, ready["join_command"].replace(MEMBERS_FLAGS, f"--invitation {code}"), home)
    until(lambda: list_checkpoints(run_dir / "checkpoints"), within=240, said=printed.read_text)
    epoch = checkpoint_epoch(list_checkpoints(run_dir / "checkpoints")[0])
    ban = guide.take(f"{TRAINER}moderate ban ada --revert-to")
    banned = run_program([str(epoch) if word == "4000" else word for word in ban], cwd=home, env=environment())
    assert banned.returncode == 0 and "Banned invited:ada" in banned.stdout, banned.stdout + banned.stderr
    assert volunteer.wait(60) != 0, printed.read_text()
    until(lambda: kinds_of_branches(run_dir) == ["begun", "restored"], said=machine.log.read_text)
    assert guide.commands == []

    details = Guide(home, MEMBERS_PAGE)
    assert re.search(r"invited:ada \(vouched, banned\).*\n.* as ada\n", details.run(f"{TRAINER}moderate list"))
    assert "Banned invited:ada" in details.run(f"{TRAINER}moderate ban")
    password = (run_dir / "membership" / "page.token").read_text().strip()
    shown = httpx.get(f"http://127.0.0.1:{port}/page", auth=("", password)).text
    assert "wrong gradients" in shown and "invited:ada" in shown
    assert "invited:ada" in httpx.get(f"http://127.0.0.1:{port}/bans").text
    details.run(f"{TRAINER}moderate unban")
    assert "invited:ada" not in httpx.get(f"http://127.0.0.1:{port}/bans").text
    assert "Removed invited:ada" in details.run(f"{TRAINER}moderate remove")
    for _ in range(3):
        details.run("sudo install")
    unit = details.read("sudo systemctl enable --now")[-1]
    installed = home / "etc" / "systemd" / "system" / f"{unit}.service"
    assert_files_of_unit(installed)
    assert details.commands == []
    machine.end()


def kinds_of_branches(run_dir: Path) -> list[str]:
    return [branch["kind"] for branch in HistoryReader(run_dir / "history.sqlite").branches()]


def code_in(words: str) -> str:
    """The code that `moderate invite` prints."""
    return re.search(r"--invitation (\S+),", words)[1]


def join(machine: Machine, command: str, folder: Path) -> tuple[subprocess.Popen, Path]:
    """Starts a volunteer with the command that the servers print."""
    program, *words = shlex.split(command)
    assert program == PROGRAM and words[0] == "join"
    log = folder / "volunteer.log"
    here = ["--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--state-dir", folder / "volunteer", "--name", "ada", *ALONE]
    return machine.start([sys.executable, "-m", "training", *words, *here], log, folder), log


def install_service(guide: Guide) -> list[str]:
    """Moves the run and installs its unit; the command that systemd would run."""
    guide.run(f"{TRAINER}new runs/my-texts --address")
    guide.run("sudo mkdir")
    guide.run("sudo mv")
    guide.run("sudo install")
    guide.run("sudo install")
    unit = guide.folder / "etc" / "systemd" / "system" / "training-run.service"
    assert guide.read("sudo systemctl") == ["sudo", "systemctl", "enable", "--now", unit.stem]
    assert_files_of_unit(unit)
    text = unit.read_text()
    line = re.search(r"^ExecStart=(\S+) ((?:.*\\\n)*.*)$", text, re.MULTILINE)[2].replace("\\\n", " ")
    for name, folder in (("STATE", "lib"), ("LOGS", "log")):
        owned = re.search(rf"^{'State' if name == 'STATE' else 'Logs'}Directory=(\S+)$", text, re.MULTILINE)[1]
        line = line.replace(f"${{{name}_DIRECTORY}}", str(guide.folder / "var" / folder / owned))
    return [sys.executable, *shlex.split(line)]


def assert_files_of_unit(unit: Path) -> None:
    """The files of settings that a unit needs lie where it looks for them."""
    named = re.findall(r"^EnvironmentFile=/(etc\S+)$", unit.read_text(), re.MULTILINE)
    root = next(parent for parent in unit.parents if parent.name == "etc").parent
    assert all((root / file).is_file() for file in named), named


def install_proxy(guide: Guide) -> None:
    guide.run("sudo install")
    assert (guide.folder / "etc" / "caddy" / "Caddyfile").is_file()
    assert guide.read("sudo systemctl") == ["sudo", "systemctl", "reload", "caddy"]


def look_at_containers(guide: Guide) -> None:
    """The command names a file, and gives all of its variables."""
    *variables, program, _, file, _, _ = guide.read("RUN=")
    given = {word.partition("=")[0] for word in variables}
    assert program == "podman-compose" and given == set(re.findall(r"\$\{(\w+)", (ROOT / file).read_text()))


def run_details(details: Guide, machine: Machine) -> None:
    """Starts the further bootstrap peer, as on another machine; then reads the container's commands."""
    details.port = machine.guide.port
    command = details.take(f"{TRAINER}bootstrap")
    command[command.index("--port") + 1] = "0"
    log, state = details.folder / "bootstrap.log", details.folder / command[command.index("--state-dir") + 1]
    peer = machine.start(command, log, details.folder)
    until(lambda: re.search(r"^    /ip4/\S+/p2p/\w+$", log.read_text(), re.MULTILINE), said=log.read_text)
    # By the site that has the recipe, it has found the servers, whose lineage it takes over.
    own, monitors = (folder / "lineage.json" for folder in (state, details.folder / "runs" / "my-texts" / "monitor"))
    assert json.loads(own.read_text())["id"] == json.loads(monitors.read_text())["id"]
    peer.terminate()
    assert peer.wait(30) == 0
    _, _, *flags, context = details.read("podman build")
    assert (ROOT / context / flags[flags.index("--file") + 1]).is_file()
    image, command, *_ = details.read("podman run --rm")[3:]
    assert image == flags[flags.index("--tag") + 1] and command in COMMANDS
    assert details.commands == []


def go_back(guide: Guide, run_dir: Path) -> int:
    """Orders the run to go back to its first checkpoint, while the servers are off; returns its epoch."""
    command = guide.take(f"{TRAINER}restore")
    epoch = checkpoint_epoch(list_checkpoints(run_dir / "checkpoints")[0])
    command = [str(epoch) if word == "4000" else word for word in command]
    ended = run_program(command, cwd=guide.folder, env=environment())
    assert ended.returncode == 0 and f"goes back to epoch {epoch}" in ended.stdout, ended.stdout + ended.stderr
    return epoch


def change_the_recipe(path: Path) -> None:
    """Changes what may change in mid-run."""
    text = path.read_text()
    changed = re.sub(r"(?m)^title = .*$", 'title = "Another title"', text)
    changed = changed.replace("checkpoint_every_epochs = 3", "checkpoint_every_epochs = 50")
    assert parse_recipe(changed) != parse_recipe(text)
    assert parse_recipe(changed).digest == parse_recipe(text).digest
    path.write_text(changed)


def test_every_state_that_the_dashboard_shows_is_explained():
    source = (ROOT / "site" / "javascripts" / "runs" / "feed.mjs").read_text()
    of_status = source.split("const LABELS = {")[1].split("}")[0]
    shown = set(re.findall(r'"([^"]+)"', of_status)) | set(re.findall(r'label: "([^"]+)"', source))
    table = PAGE.split("## Watch it\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\w, ]+) \|", table, re.MULTILINE)[1:]
    assert shown - {"Looking", "No run"} == {state for row in rows for state in row.split(", ")}  # those are of no run
