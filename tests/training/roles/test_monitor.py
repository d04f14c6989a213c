"""The monitor beside a real peer that serves its state and posts its records, but computes nothing."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from types import SimpleNamespace

import httpx
import psutil
import pytest

from tests.support.ports import free_port
from tests.support.programs import are_gone, run_program, until
from tests.support.random_shards import hold_out, write_shards
from tests.training.publish.history.test_history import ALAN, Clock, Report, open_history
from training.checkpoints.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from training.checkpoints.fetch import fetch_latest
from training.demo.children import read_events
from training.errors import BadInput
from training.model.transformer import build_model
from training.publish.history.backup import backups
from training.publish.invitation import join_command
from training.recipe import RECIPES, load_recipe
from training.roles import monitor as role
from training.roles.monitor import with_shards
from training.swarm.node.dht import check_recipe, post_message, posted_messages, start_dht
from training.swarm.node.identity import Identity
from training.trust.bans import BanList

PEER = """
import sys, time
from pathlib import Path
from training.processes.environment import prepare_environment
prepare_environment()  # before torch and hivemind: it says how they share memory
import torch
from training.recipe import load_recipe
from training.model.transformer import build_model
from training.processes.role import run_role
from training.swarm.state.alignment import AlignmentState
from training.swarm.node.dht import full_addresses, post_recipe, start_dht
from training.swarm.node.identity import Identity
from training.swarm.run.lineage import Lineage, LineageMessage, post_lineage, run_prefix
from training.swarm.node.metrics import MetricsBoard, PeerRecord
from training.swarm.state.parameters import ParameterAverager, state_codec, state_prefix
from training.swarm.round.pipe import AveragerSettings
from training.swarm.epoch.strategies import Awaited

def role(stop):
    torch.set_num_threads(1)
    run = load_recipe(sys.argv[1])
    identity = Identity(Path(sys.argv[2]))
    spoiled = Path(sys.argv[2], "spoiled")
    dht = start_dht(run, identity, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    post_recipe(dht, run, identity)
    lineage = Lineage(id="feedfacefeedface")
    post_lineage(dht, run.run_id, LineageMessage(lineage=lineage, epoch=0), identity)
    model = build_model(run.model, run.seed)
    host = Awaited.make_master(model, run)
    settings = AveragerSettings(prefix=state_prefix(run_prefix(run.run_id, lineage)))
    averager = ParameterAverager(
        host, AlignmentState(), dht=dht, settings=settings, codec=state_codec(), lineage=lineage
    )
    averager.offer_state(1.0)
    board = MetricsBoard(dht=dht, run_id=run.run_id, expiration_seconds=run.swarm.metrics_expiration_seconds)
    print(full_addresses(dht)[0], flush=True)
    epoch, ended = 0, []
    while not stop.wait(0.5):
        with torch.no_grad(), host.lock:
            host.epoch = epoch
            for parameter in host.parameters:
                parameter.fill_(epoch)
                host.optimizer.state[parameter]["moment1"].fill_(epoch)
        loss = (99.0 if spoiled.exists() else 8 / epoch) if epoch else None
        if epoch:
            ended.append((epoch, loss, 100, time.time(), 0.5))
        board.post(PeerRecord(
            name="ada", peer_id=str(identity.peer_id), status="training" if epoch else "joining", epoch=epoch,
            lineage=lineage.id,
            loss=loss, recent=ended[-64:],
            samples=100 * epoch, samples_per_second=200.0, seconds=0.5 * epoch,
            group_size=1, averaged_epochs=0, alone_epochs=0, micro_batch_size=1, bytes_sent=0, bytes_received=0,
            version="test", time=time.time(),
        ), identity).result(10)
        epoch += 1

run_role(role)
"""


@pytest.fixture
def start(programs, tmp_path):
    """Starts a program with a log of its own; gives both."""

    def run(name, *command):
        log = tmp_path / f"{name}.log"
        with log.open("w") as printed:
            return programs.start(command, stdout=printed, stderr=subprocess.STDOUT), log

    return run


@pytest.fixture
def recipe(tmp_path):
    text = (RECIPES / "demo.toml").read_text()
    for name, value in {
        "checkpoint_every_epochs": 4,
        "metrics_every_seconds": 1.0,
        "hidden_size": 32,
        "image_vocab_size": 64,
        "codebook_size": 64,
    }.items():
        head, tail = text.split(f"\n{name} = ")
        text = f"{head}\n{name} = {value}\n{tail.partition(chr(10))[2]}"
    text = text[: text.index("prompts = [")]
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    load_recipe(str(path))
    return path


def monitor_command(recipe, address, run_dir, port):
    return [
        *(sys.executable, "-m", "training", "monitor", "--recipe", str(recipe), "--initial-peers", address),
        *("--run-dir", str(run_dir), "--port", str(port), "--log-json", str(run_dir / "monitor.jsonl")),
    ]


HERE = ("--host-maddrs", "/ip4/127.0.0.1/tcp/0")


def bootstrap_command(recipe, state_dir, log_json):
    return [
        *(sys.executable, "-m", "training", "bootstrap", "--recipe", recipe, *HERE),
        *("--state-dir", state_dir, "--log-json", log_json),
    ]


def ready(started, log, number):
    """The event that a program logs when it is ready for the `number`-th time."""

    def found():
        return [event for event in read_events(log) if event["event"] == "ready"][number - 1 : number]

    return while_it_runs(started, found)[0]


def node_of(process, role):
    """The process of a program's network node."""
    return next(child for child in psutil.Process(process.pid).children() if role in child.cmdline())


def while_it_runs(started, condition):
    """What the condition gives, once it is true; the program must not end before."""
    process, log = started

    def met():
        assert process.poll() is None, log.read_text()
        return condition()

    return until(met, said=log.read_text)


def read(path):
    return path.read_text() if path.exists() else ""


def document(port, name):
    """None while the monitor is not there, or starts."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/live/{name}.json", timeout=5).raise_for_status().json()
    except httpx.HTTPError:
        return None


def exported(run_dir, folder):
    """The state of the run in a monitor's folder, as `--export` writes it."""
    ended = run_program([sys.executable, "-m", "training", "monitor", "--run-dir", run_dir, "--export", folder])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads((folder / "live" / "state.json").read_text())


def assert_is_of_its_epoch(loaded):
    """The peer fills its weights and moments with the number of the epoch."""
    assert loaded.epoch >= 4
    assert all((tensor == loaded.epoch).all() for tensor in loaded.model.parameters())
    moments = [tensor for name, tensor in loaded.extra_tensors.items() if name.endswith("moment1")]
    assert moments
    assert all((moment == loaded.epoch).all() for moment in moments)


@pytest.mark.smoke
@pytest.mark.swarm
def test_monitor_sees_keeps_and_serves_a_run(start, recipe, tmp_path):
    shards = write_shards(tmp_path / "shards", load_recipe(str(recipe)))
    hold_out(shards, load_recipe(str(recipe)), (3,))
    recipe.write_text(recipe.read_text().replace('"runs/demo/shards"', f'"{shards}"'))
    run_dir, port = tmp_path / "run", free_port()
    peer, printed = start("peer", sys.executable, "-c", PEER, recipe, tmp_path / "peer")
    address = while_it_runs((peer, printed), lambda: re.search(r"^/.*/p2p/\w+(?=\n)", printed.read_text(), re.M))[0]
    command = [*monitor_command(recipe, address, run_dir, port), "--push-to", str(tmp_path / "pushed")]
    monitor, log = start("monitor", *command)
    while_it_runs((monitor, log), lambda: (document(port, "state") or {}).get("epoch"))

    checkpoint = while_it_runs((monitor, log), lambda: latest_checkpoint(run_dir / "checkpoints"))
    loaded = load_checkpoint(checkpoint)
    assert_is_of_its_epoch(loaded)
    losses = document(port, "losses")["peers"]["ada"]
    assert all(loss == pytest.approx(8 / epoch) for epoch, loss in losses)
    known = document(port, "run")["initial_peers"]
    assert known[0] == address and len(known) == 2  # the second one is the monitor's own
    assert {one.rpartition("/")[2] for one in known} == set(document(port, "run")["servers"])
    assert loaded.lineage == "feedfacefeedface" == document(port, "history")["branches"][0]["lineage"]
    assert httpx.get(f"http://127.0.0.1:{port}/recipe.toml").text == recipe.read_text()
    fetched = fetch_latest(f"http://127.0.0.1:{port}", tmp_path / "fetched", recipe=load_recipe(str(recipe)))
    assert load_checkpoint(fetched).epoch >= loaded.epoch
    pushed = while_it_runs((monitor, log), lambda: latest_checkpoint(tmp_path / "pushed"))
    assert load_checkpoint(pushed).epoch >= loaded.epoch
    measured, *_ = while_it_runs((monitor, log), lambda: (document(port, "history") or {}).get("held_out"))
    assert measured["epoch"] >= loaded.epoch and (measured["samples"], measured["tokens"]) == (3, 3 * 64)
    # All weights are equal, so all tokens are equally likely: 64 codes, or 64 ids and the padding of 16 places.
    assert measured["loss"] == pytest.approx((math.log(64 + 16) + 7 * math.log(64)) / 8, rel=1e-5)
    assert "ada: " in while_it_runs((monitor, log), lambda: read(tmp_path / "pushed" / "README.md"))
    assert while_it_runs((monitor, log), lambda: backups(run_dir))

    while_it_runs((monitor, log), lambda: document(port, "state")["epoch"] > loaded.epoch + 1)
    with httpx.stream("GET", f"http://127.0.0.1:{port}/live/events", timeout=15) as stream:
        monitor.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        told = [json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line.startswith("data: ")]
    assert told[-1]["status"] == "stopped"
    assert "on purpose" in told[-1]["cause"] and "1 volunteer was there" in told[-1]["cause"]
    assert monitor.wait(timeout=15) == 0
    assert time.monotonic() - asked < 8
    state = exported(run_dir, tmp_path / "stopped")
    assert (state["status"], state["cause"]) == ("stopped", told[-1]["cause"])
    events = [json.loads(line)["event"] for line in (run_dir / "monitor.jsonl").read_text().splitlines()]
    assert (events[0], events[-1]) == ("ready", "stopped") and "checkpoint" in events
    saved = load_checkpoint(latest_checkpoint(run_dir / "checkpoints")).epoch
    assert saved > loaded.epoch  # the last one, taken on leaving

    monitor, log = start("monitor", *command)
    state = while_it_runs((monitor, log), lambda: document(port, "state"))
    epochs = [row["epoch"] for row in document(port, "history")["epochs"]]
    assert epochs[0] == losses[0][0]
    assert epochs == sorted(set(epochs))
    assert state["total_samples"] >= 100 * loaded.epoch

    peer.kill()
    killed = time.monotonic()
    while_it_runs((monitor, log), lambda: document(port, "state")["active_peers"] == 0)
    assert time.monotonic() - killed < 14
    assert document(port, "events")["events"][-1]["kind"] == "left"
    assert document(port, "state")["status"] == "waiting"

    monitor.kill()
    monitor.wait()
    state = exported(run_dir, tmp_path / "killed")
    assert state["status"] == "failed"
    assert "without being asked to" in state["cause"]


@pytest.mark.swarm
def test_a_monitor_that_comes_back_before_all_others_welcomes_newcomers(start, recipe, tmp_path):
    """Its machine and that of the bootstrap peer were off. Both keep their addresses, and find each other again."""
    run, run_dir = load_recipe(str(recipe)), tmp_path / "run"
    log_json, port = tmp_path / "boot.jsonl", free_port()
    bootstrap = bootstrap_command(recipe, tmp_path / "boot", log_json)
    first = start("boot", *bootstrap)
    (address,) = ready(first, log_json, 1)["addresses"]
    watching = [*monitor_command(recipe, address, run_dir, port), *HERE]
    second = start("monitor", *watching)
    known = ready(second, run_dir / "monitor.jsonl", 1)["initial_peers"]
    assert known[0] == address and document(port, "run")["initial_peers"] == known
    assert document(port, "run")["join_command"] == join_command(f"http://127.0.0.1:{port}")
    until(lambda: (run_dir / "monitor" / "address_book.json").is_file(), within=60)
    for process, _ in (first, second):
        process.kill()

    third = start("monitor-again", *watching)
    assert ready(third, run_dir / "monitor.jsonl", 2)["initial_peers"] == known
    ada, bob = Identity(tmp_path / "ada"), Identity(tmp_path / "bob")
    at_monitor = start_dht(run, ada, initial_peers=known[1:], host_maddrs=HERE[1:])
    check_recipe(at_monitor, run)
    (again,) = ready(start("boot-again", *bootstrap), log_json, 2)["addresses"]
    assert again == address
    post_message(at_monitor, "greeting", "hello", ada)
    at_bootstrap = start_dht(run, bob, initial_peers=[address], host_maddrs=HERE[1:])
    try:
        until(lambda: "hello" in posted_messages(at_bootstrap, "greeting").values(), within=60)
    finally:
        at_monitor.shutdown()
        at_bootstrap.shutdown()


@pytest.mark.swarm
def test_each_server_begins_anew_at_its_address_when_its_network_node_has_died(start, recipe, tmp_path):
    """Also without `serve`, which would start it again."""
    run_dir, log_json, port = tmp_path / "run", tmp_path / "boot.jsonl", free_port()
    first = start("boot", *bootstrap_command(recipe, tmp_path / "boot", log_json))
    (address,) = ready(first, log_json, 1)["addresses"]
    second = start("monitor", *monitor_command(recipe, address, run_dir, port), *HERE)
    known = ready(second, run_dir / "monitor.jsonl", 1)["initial_peers"]
    node, daemon = node_of(first[0], "bootstrap"), node_of(second[0], "monitor").children()[0]
    node.kill()
    daemon.kill()
    assert ready(first, log_json, 2)["addresses"] == [address]
    assert ready(second, run_dir / "monitor.jsonl", 2)["initial_peers"] == known
    for _, log in (first, second):
        assert "Warning: The network node has ended. The program begins anew." in log.read_text()
    while_it_runs(second, lambda: document(port, "state"))


def test_recipe_points_to_other_shards_and_stays_the_same_run():
    text = (RECIPES / "demo.toml").read_text()
    changed = with_shards(text, "http://127.0.0.1:8000/shards")
    assert tomllib.loads(changed)["data"]["shards"] == "http://127.0.0.1:8000/shards"
    assert [a for a, b in zip(text.splitlines(), changed.splitlines(), strict=True) if a != b] == [
        'shards = "runs/demo/shards"'
    ]


def test_recipe_with_shards_elsewhere_is_refused():
    with pytest.raises(BadInput, match="unusual"):
        with_shards('data = { shards = "here" }\n', "http://x")


LOADING_SLOWLY = """
import sys, time
from importlib.abc import MetaPathFinder
from pathlib import Path
from training.cli import main

class Slow(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        while name == "training.roles.monitor" and not go_on.exists():
            time.sleep(0.05)

go_on = Path(sys.argv.pop(1))
sys.meta_path.insert(0, Slow())
sys.argv[0] = "training"
main()
"""


@pytest.mark.programs
def test_a_monitor_serves_its_checkpoints_while_it_starts(start, recipe, tmp_path):
    """After a power cut, volunteers need not wait until it has loaded PyTorch and found the run."""
    model, run, port = build_model(load_recipe(str(recipe)).model, seed=7), load_recipe(str(recipe)), free_port()
    save_checkpoint(
        tmp_path / "run" / "checkpoints", model=model, recipe_toml=recipe.read_text(), epoch=4, metrics={}, shards="s"
    )
    log_json = tmp_path / "bootstrap.jsonl"
    bootstrap = start("bootstrap", *bootstrap_command(recipe, tmp_path / "state", log_json))
    flags = monitor_command(recipe, ready(bootstrap, log_json, 1)["addresses"][0], tmp_path / "run", port)[3:]
    command, url = [sys.executable, "-c", LOADING_SLOWLY, tmp_path / "go on", *flags], f"http://127.0.0.1:{port}"

    def offered():
        with suppress(httpx.TransportError):
            return httpx.get(f"{url}/checkpoints/index.json").json()["checkpoints"]

    killed = process, _ = start("killed", *command)
    while_it_runs(killed, offered)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert are_gone(family, within=10)
    started = start("monitor", *command)
    assert [one["name"] for one in while_it_runs(started, offered)] == ["epoch-000004"]
    assert fetch_latest(url, tmp_path / "mine", recipe=run).name == "epoch-000004"
    answer = httpx.get(f"{url}/live/state.json")
    assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
    assert not (tmp_path / "run" / "history.sqlite").exists()
    (tmp_path / "go on").touch()
    while_it_runs(started, lambda: document(port, "state"))
    assert [one["name"] for one in offered()] == ["epoch-000004"]


@pytest.mark.programs
def test_a_monitor_takes_in_nothing_of_those_on_the_ban_list(tmp_path, monkeypatch):
    """Nor what they had claimed of epochs that a maintainer has gone back from."""
    history = open_history(tmp_path, Clock(), expiration_seconds=30)
    history.enter_lineage("a" * 16)
    run, watch = load_recipe("demo"), SimpleNamespace(saw=lambda records: None)
    membership = SimpleNamespace(bans=None)
    records = []
    monkeypatch.setattr(role, "read_believable", lambda dht, run: records)
    for epoch in range(4):
        told = {"epoch": epoch, "samples": 10 * epoch, "time": float(epoch), "lineage": "a" * 16}
        records[:] = [Report(**told), Report(**ALAN, **told)]
        role._observe(watch, history, None, run, membership)
    assert history.total_samples() == 60
    history.enter_lineage("b" * 16, [("a" * 16, 1)])
    membership.bans = BanList(run_id="demo", until={"invited:alan": 1, ALAN["peer_id"]: 1})
    records[:] = [Report(**ALAN, epoch=9, samples=900, time=9.0, lineage="b" * 16)]
    role._observe(watch, history, None, run, membership)
    assert {one["name"]: one["samples"] for one in history.leaderboard()} == {"ada": 30, "alan": 10}
    history.close()
