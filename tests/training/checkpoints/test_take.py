"""The monitor takes checkpoints from real peers: never a bad one, and none while the disk is full."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.programs import run_program

PROGRAM = """
import json, os, sys, time
from pathlib import Path
from training.processes.environment import prepare_environment
prepare_environment()  # before torch and hivemind: it says how they share memory
import torch
from training.checkpoints.checkpoint import list_checkpoints, load_checkpoint
from training.recipe import RECIPES, parse_recipe
from training.errors import TrainingError
from training.model.transformer import build_model
from training.processes.events import EventLog
from training.processes.role import run_role
from training.publish.history.history import History
from training.checkpoints.take import Saver
from training.swarm.engine import engine
from training.swarm.state.alignment import AlignmentState
from training.swarm.node.dht import full_addresses, start_dht
from training.swarm.state.download import find_donors
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import PeerRecord
from training.swarm.state.parameters import ParameterAverager, state_codec, state_prefix
from training.swarm.round.pipe import AveragerSettings
from training.swarm.epoch.strategies import strategy_of

FOLDER = Path(sys.argv[1])
TEXT = (RECIPES / "demo.toml").read_text()
for name, value in {"hidden_size": 32, "image_vocab_size": 64, "codebook_size": 64}.items():
    head, tail = TEXT.split(f"\\n{name} = ")
    TEXT = f"{head}\\n{name} = {value}\\n{tail.partition(chr(10))[2]}"
TEXT += "\\n".join(["", "keep_last = 2", "keep_every_epochs = 0", "keep_best = 0", ""])
RUN = parse_recipe(TEXT)

def donor(name, addresses, run=RUN):
    identity = Identity(FOLDER / name)
    dht = start_dht(run, identity, initial_peers=addresses, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    host = strategy_of(run.swarm).make_master(build_model(run.model, run.seed), run)
    settings = AveragerSettings(prefix=state_prefix(run.run_id))
    averager = ParameterAverager(host, AlignmentState(), dht=dht, settings=settings, codec=state_codec())
    averager.offer_state(1.0)
    return dht, host, averager

def fill(host, epoch, value):
    with torch.no_grad(), host.lock:
        host.epoch = epoch
        for parameter in host.parameters:
            parameter.fill_(value)

def report(epoch, loss):
    return PeerRecord.construct(recent=(), name="ada", peer_id="A", status="training", lineage=None, epoch=epoch,
        loss=loss, samples=100 * epoch + 1, samples_per_second=1.0, seconds=1.0, time=time.time())

from training.swarm.state import serving
serving.DOWNLOADS_IN_A_ROW = 1000  # the donors are asked as often in seconds as in days

def role(stop):
    torch.set_num_threads(1)
    engine.prepare()
    results = {}
    first, good, keeps = donor("good", [])
    second, bad, keeps_too = donor("bad", full_addresses(first))
    observer = start_dht(RUN, Identity(FOLDER / "monitor"), initial_peers=full_addresses(first), client_mode=True)
    history = History(FOLDER / "history.sqlite", run_id=RUN.run_id, recipe_digest=RUN.digest, expiration_seconds=60)
    run_dir = FOLDER / "disk"
    made = []
    saver = Saver(RUN, TEXT, run_dir=run_dir, shards="s", codec_digest=None, dht=observer, history=history,
        events=EventLog(FOLDER / "events.jsonl"), saved=made.append)

    def save(epoch, value, bad_value, loss=4.0, bad_ahead=0):
        fill(good, epoch, value)
        fill(bad, epoch + bad_ahead, bad_value)
        history.observe([report(epoch, loss)])
        try:
            saver.save(epoch, 20.0)
        except TrainingError as error:
            return type(error).__name__, str(error)
        return [(load_checkpoint(path).epoch, float(next(load_checkpoint(path).model.parameters()).flatten()[0]))
                for path in list_checkpoints(saver.folder)]

    while len(find_donors(observer, RUN.run_id)) < 2:
        time.sleep(0.2)
    history.observe([report(0, None)])
    results["first"] = save(1, 1.0, 1.0)
    for epoch in range(2, 40):  # until the bad one is asked first
        results["spoiled"] = save(epoch, 1.0, 1000.0 if epoch % 2 else float("nan"))
        if saver._bad_donors or any("takes no checkpoint from" in event["text"] for event in history.events()):
            break
    results["epoch"] = epoch
    results["kept"] = [path.name for path in list_checkpoints(saver.folder)]
    results["made"] = [path.name for path in made] == [f"epoch-{number:06d}" for number in range(1, epoch + 1)]
    results["bad"] = [str(second.peer_id) in event["text"] for event in history.events() if event["kind"] == "warning"]
    for number in range(50, 60):
        history.observe([report(number, 4.0)])
    results["all bad"] = save(60, 1000.0, 1000.0)
    results["none written"] = [path.name for path in list_checkpoints(saver.folder)] == results["kept"]
    results["well again"] = save(61, 1.0, 1.0)
    for epoch in range(62, 100):
        history.observe([report(epoch, 4.0 if epoch < 97 else 40.0)])
    results["high loss"] = save(100, 1.0, 1.0, loss=40.0)
    for epoch in range(101, 170):
        history.observe([report(epoch, 40.0)])
    results["long high"] = save(170, 1.0, 1.0, loss=40.0)
    allowing = RUN.model_copy(update={"monitor": RUN.monitor.model_copy(update={"max_loss_rise": 0.0})})
    allows = Saver(allowing, TEXT, run_dir=FOLDER / "allows", shards="s", codec_digest=None, dht=observer,
        history=history, events=EventLog(FOLDER / "other.jsonl"))
    results["allowed"] = [saver.loss_fault() is None, allows.loss_fault() is None]
    for epoch in range(171, 175):
        history.observe([report(epoch, 4.0)])
    results["usual loss"] = save(175, 1.0, 1.0)
    ballast = run_dir / "ballast"
    with ballast.open("wb") as file:
        disk = os.statvfs(run_dir)
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - 100_000)
    results["full"] = [save(epoch, 1.0, 1.0) for epoch in (180, 181)]
    ballast.unlink()
    results["room"] = save(182, 1.0, 1.0)
    saver._bad_donors = {str(first.peer_id)}  # the other one is asked first
    results["far ahead"] = save(183, 1.0, 1.0, bad_ahead=8)
    results["drafts"] = [path.name for path in saver.folder.iterdir() if path.name.startswith(".")]
    results["told"] = [event["text"] for event in history.events() if event["kind"] == "warning"]
    results["logged"] = [json.loads(line)["event"] for line in (FOLDER / "events.jsonl").read_text().splitlines()]
    (FOLDER / "results.json").write_text(json.dumps(results))

run_role(role)
"""

KINDS = {
    "muon": {"optimizer": {"name": "muon"}},
    "clipped": {"swarm": {"aggregation": "centered-clip"}},
    "local updates": {"swarm": {"mode": "diloco", "inner_batch_size": 8}},
    "sparse updates": {"swarm": {"mode": "sparse", "inner_batch_size": 8}},
}
"""Recipes whose peers hand out other states than the demo's."""
PROGRAM_OF_KINDS = (
    PROGRAM.partition("def fill(")[0]
    + """
from training.optim.saved import load_optimizer_tensors, optimizer_tensors

def saved(kind, changes):
    update = {name: getattr(RUN, name).model_copy(update=fields) for name, fields in changes.items()}
    run = RUN.model_copy(update={**update, "run_id": kind.replace(" ", "-")})
    dht, host, keeps = donor(kind, [], run)
    with torch.no_grad(), host.lock:
        host.epoch = 3
        for tensor in (*host.parameters, *optimizer_tensors(host.optimizer).values()):
            tensor.fill_(0.5 if tensor.is_floating_point() else 3)
    observer = start_dht(run, Identity(FOLDER / f"{kind}-monitor"), initial_peers=full_addresses(dht), client_mode=True)
    history = History(FOLDER / f"{kind}.sqlite", run_id=run.run_id, recipe_digest=run.digest, expiration_seconds=60)
    made = []
    saver = Saver(run, TEXT, run_dir=FOLDER / kind, shards="s", codec_digest=None, dht=observer, history=history,
        events=EventLog(FOLDER / "events.jsonl"), saved=made.append)
    while not find_donors(observer, run.run_id):
        time.sleep(0.2)
    saver.save(1, 20.0)
    tensors = load_checkpoint(made[0]).extra_tensors
    resumed = strategy_of(run.swarm).make_master(build_model(run.model, run.seed), run)
    load_optimizer_tensors(resumed.optimizer, tensors)
    return [len(tensors), len(optimizer_tensors(host.optimizer)), sorted({name.split(".")[1] for name in tensors}),
            all(torch.equal(one, tensors[name]) for name, one in optimizer_tensors(resumed.optimizer).items())]

def role(stop):
    torch.set_num_threads(1)
    engine.prepare()
    kinds = json.loads(sys.argv[2])
    (FOLDER / "results.json").write_text(json.dumps({kind: saved(kind, changes) for kind, changes in kinds.items()}))

run_role(role)
"""
)


def test_the_state_of_every_kind_of_run_becomes_a_checkpoint_from_which_its_peers_resume(tmp_path):
    done = run_program([sys.executable, "-c", PROGRAM_OF_KINDS, tmp_path, json.dumps(KINDS)], within=150)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    for kind, (saved, given, names, resumed) in found.items():
        assert saved == given and resumed, kind
        assert (given > 0) == (kind != "sparse updates")  # whose outer optimizer has no momentum
        assert ("momentum_buffer" in names) == (kind == "local updates"), names


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Checkpoints go to a disk of 8 MB, in a namespace of our own."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "disk").mkdir()
    if run_program(["unshare", "-Urm", "true"]).returncode:
        pytest.skip("needs the right to mount a small disk (unshare)")
    script = 'mount -t tmpfs -o size=8m none "$0/disk" && exec "$1" -c "$2" "$0"'
    done = run_program(["unshare", "-Urm", "sh", "-c", script, folder, sys.executable, PROGRAM], within=150)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "results.json").read_text())


pytestmark = pytest.mark.swarm


def test_a_bad_state_is_not_saved_but_another_donors_is(results):
    epoch = results["epoch"]
    assert results["first"] == [[1, 1.0]]
    assert results["spoiled"][-1] == [epoch, 1.0]
    assert results["bad"] == [True], "one event, which names the donor"
    assert results["made"] is True
    assert results["kept"] == [f"epoch-{number:06d}" for number in (epoch - 1, epoch)]


def test_if_all_donors_are_bad_nothing_is_saved_until_one_is_good(results):
    kind, text = results["all bad"]
    assert kind == "NotGood"
    assert " and another: sent weights that are not good: the norm of the weights" in text
    assert results["none written"] is True
    assert results["well again"][-1] == [61, 1.0]


def test_a_loss_that_has_jumped_stops_checkpoints(results):
    assert results["high loss"] == [
        "NotGood",
        "No checkpoint is taken of epoch 100: its loss is 40, and 4 in the last 50 epochs.",
    ]
    kind, text = results["long high"]
    assert (kind, text) == (
        "NotGood",
        "No checkpoint is taken of epoch 170: its loss is 40, and 4 before its last checkpoint.",
    )
    assert results["allowed"] == [False, True]
    assert results["usual loss"][-1] == [175, 1.0]


def test_a_full_disk_stops_checkpoints_until_there_is_room(results):
    for kind, text in results["full"]:
        assert kind == "NoRoom"
        assert "bytes are free" in text
    assert results["room"] == [[175, 1.0], [182, 1.0]]
    assert results["drafts"] == []


def test_the_history_says_once_that_checkpoints_stop_and_go_on(results):
    told = [text for text in results["told"] if "takes no checkpoint from" not in text]
    assert [text.split(":")[0] for text in told] == [*("takes no checkpoints for now", "takes checkpoints again") * 3]
    assert results["logged"].count("checkpoint") == results["epoch"] + 4


def test_no_donor_can_bring_the_monitor_to_an_epoch_that_the_run_has_not_reached(results):
    assert results["far ahead"] == [[182, 1.0], [183, 1.0]]
