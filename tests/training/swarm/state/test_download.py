"""The state comes from a real peer whole and checked, and no donor can keep the one who asks waiting."""

from __future__ import annotations

import doctest
import json
import re
import sys
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.asyncio import as_aiter
from hivemind.utils.serializer import MSGPackSerializer

from tests.support.programs import run_program
from training.errors import TrainingError
from training.recipe import load_recipe
from training.swarm.engine.codecs import encode
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.state import catching_up, download
from training.swarm.state.alignment import AlignmentState
from training.swarm.state.catching_up import CatchingUp
from training.swarm.state.download import SMALLEST_PART_BYTES, TrainingState, _check_count, _Download

PROGRAM = """
import asyncio, json, os, signal, sys, threading, time
from training.processes.environment import prepare_environment
prepare_environment()  # else torch shares memory by a janitor, and an averager hangs if that is slow to answer
import hivemind, torch
from hivemind.compression import NoCompression
from hivemind.optim.state_averager import TrainingStateAverager
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.serializer import MSGPackSerializer
from training.errors import TrainingError
from training.processes.role import run_role
from training.swarm.engine import engine
from training.swarm.state import serving
from training.swarm.state import download
from training.swarm.state.alignment import AlignmentState, Event
from training.swarm.state.download import download_state, find_donors
from training.swarm.state.master_weights import MasterWeights
from training.swarm.state.parameters import ParameterAverager, state_codec
from training.swarm.round.pipe import AveragerSettings
from training.swarm.state.serving import StateService
from training.swarm.epoch.updates import Updates

def hiveminds_donor(dht, epoch):
    averager = TrainingStateAverager(
        dht=dht, optimizer=lambda groups: torch.optim.Adam(groups), params=MODEL.parameters(),
        offload_optimizer=True, custom_gradients=True, prefix="demo_state_averager", start=True,
    )
    averager.local_epoch = averager.state_sharing_priority = epoch  # as hivemind's optimizer sets both
    return averager

def donor(dht, epoch, codec=NoCompression(), cls=MasterWeights):
    alignment = AlignmentState()
    master = cls([{"params": list(MODEL.parameters())}], torch.optim.Adam, lambda epoch: 0.001)
    master.epoch = epoch
    settings = AveragerSettings(prefix="demo_state_averager")
    averager = ParameterAverager(master, alignment, dht=dht, settings=settings, codec=codec)
    averager.offer_state(1.0)
    return averager, master, alignment

class Poisoned(MasterWeights):
    # Sends weights of 0.5 to newcomers, and tells those who compare that it has those of the others.
    def packed_state(self, codec, **told):
        with torch.no_grad():
            kept = [parameter.clone() for parameter in self.parameters]
            for parameter in self.parameters:
                parameter.fill_(0.5)
            state = super().packed_state(codec, **told)
            for parameter, before in zip(self.parameters, kept):
                parameter.copy_(before)
        return state

class Stalling(MasterWeights):
    def packed_state(self, codec, **told):
        time.sleep(1000)

def send_messages_of_nothing():
    async def messages(self):
        told = FACTS
        while True:
            part = runtime_pb2.Tensor(buffer=bytes(download.SMALLEST_PART_BYTES), chunks=10**9)
            yield averaging_pb2.DownloadData(tensor_part=part, metadata=told)
            told = None
            await asyncio.sleep(0.5)

    messages_before, StateService._messages = StateService._messages, messages
    return messages_before

def die_on_the_way():
    messages = StateService._messages

    async def first_message(self):
        async for message in messages(self):
            yield message
            os.kill(os.getpid(), signal.SIGKILL)

    StateService._messages = first_message

FACTS = MSGPackSerializer.dumps({"epoch": 5, "optimizer_metadata": []})
serving.DOWNLOADS_OF_ONE = serving.DOWNLOADS_IN_A_ROW = serving.SAMPLES_OF_ONE = 100
download.SLOW_SECONDS = 1.0
MODEL = torch.nn.Linear(300, 200)
SHAPES = [parameter.shape for parameter in MODEL.parameters()]
PATIENCE_SECONDS = 60

def role(stop):
    torch.set_num_threads(1)
    engine.prepare()
    first = hivemind.DHT(start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    address = first.get_visible_maddrs()
    second = hivemind.DHT(start=True, initial_peers=address, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    observer = hivemind.DHT(start=True, initial_peers=address, client_mode=True)

    def attempt(**changes):
        settings = dict(
            shapes=SHAPES, chunk_seconds=PATIENCE_SECONDS, total_seconds=PATIENCE_SECONDS, max_bytes=10**7,
            epochs=range(5, 8),
        )
        try:
            return download_state(observer, "demo", **{**settings, **changes})
        except TrainingError as error:
            return str(error)

    def await_donors(there):
        while bool(find_donors(observer, "demo")) != there:
            time.sleep(0.2)

    results = {"nobody": attempt()}
    averager = hiveminds_donor(first, epoch=5)
    await_donors(True)
    state = attempt(service=TrainingStateAverager)
    results["epoch"] = state.epoch
    results["donor is the peer"] = state.donor == str(first.peer_id)
    results["parameters"] = all(torch.equal(a, b) for a, b in zip(state.tensors, MODEL.parameters()))
    results["optimizer tensors"] = len(state.tensors) - 2
    results["values"] = {"type": "value", "value": 0.999} in state.optimizer_metadata
    whole = state.received_bytes
    averager.allow_state_sharing = False
    await_donors(False)
    third = hivemind.DHT(start=True, initial_peers=address, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    averager, master, alignment = donor(third, epoch=5, codec=state_codec())
    alignment.note(Event.AVERAGE_TORN)
    await_donors(True)
    short = attempt()
    results["short"] = short.epoch, short.seconds > 0, len(short.tensors)
    results["wants weights"] = state.wants_weights, short.wants_weights
    lacking = []
    for event in (Event.SKIPPED_EPOCHS, Event.PARAMETERS_AVERAGED, Event.LOADED_STATE):
        alignment.note(event)
        lacking.append(attempt().wants_weights)
    results["wants weights until its moments are right"] = lacking
    results["saved bytes"] = whole - short.received_bytes
    results["rounding"] = max(
        float((a.float() - b).norm() / b.norm()) for a, b in zip(short.tensors, MODEL.parameters())
    )
    results["moments"] = all(map(torch.equal, short.tensors[2:], state.tensors[2:]))
    results["too many bytes"] = attempt(max_bytes=1000)
    results["too early"] = attempt(epochs=range(6, 10))
    results["too late"] = attempt(epochs=range(0, 5))
    averager.offer_state(0.0)
    while find_donors(observer, "demo", oldest_epoch=1):
        time.sleep(0.2)
    results["a newcomer's"] = attempt(), attempt(epochs=range(0, 8)).epoch
    averager.offer_state(1.0)
    while not find_donors(observer, "demo", oldest_epoch=1):
        time.sleep(0.2)
    results["other model"] = attempt(shapes=[torch.Size([3])])
    with torch.no_grad():
        master.parameters[0][0, 0] = float("nan")
    results["nan"] = attempt()
    update_made = threading.Event()
    with torch.no_grad():
        for parameter in master.parameters:
            parameter.fill_(1)
    master.use_gradients([torch.ones_like(parameter) for parameter in master.parameters])
    updates = Updates(master, averager, alignment, epoch_seconds=lambda: 0, round_seconds=60, search_seconds=60)
    updates.begin(5, gradients_ready=update_made.wait, average_parameters=False, expected_peers=0)
    meanwhile = attempt()
    update_made.set()
    updates.wait()
    updated = attempt()
    results["delayed update"] = [(got.epoch, bool((got.tensors[0] == 1).all())) for got in (meanwhile, updated)]
    averager.offer_state(None)
    await_donors(False)
    nodes = [hivemind.DHT(start=True, initial_peers=address, host_maddrs=["/ip4/127.0.0.1/tcp/0"]) for _ in range(3)]
    bad = str(nodes[0].peer_id)
    donors = [donor(nodes[0], epoch=5, cls=Poisoned)]
    await_donors(True)
    results["poisoned alone"] = bool((attempt().tensors[0] == 0.5).all())
    donors += [donor(node, epoch=epoch) for node, epoch in zip(nodes[1:], (5, 6))]
    while len(find_donors(observer, "demo")) < 3:
        time.sleep(0.2)
    faults = []
    while len(results.get("among three", [])) < 6 or not faults:  # donors are asked in random order
        state = attempt(on_fault=lambda peer, error: faults.append((peer, str(error))))
        results.setdefault("among three", []).append(state.donor != bad)
    results["faults"] = sorted(set(faults)), bad
    donors[0][1].epoch, faults = 90, []
    while not faults and all(results.get("one far ahead", [])):
        state = attempt(epochs=range(5, 100), on_fault=lambda peer, error: faults.append(peer))
        results.setdefault("one far ahead", []).append(state.epoch in (5, 6))
    donors[0][1].epoch = 5
    donors.pop()[0].offer_state(None)
    while len(find_donors(observer, "demo")) > 2:
        time.sleep(0.2)
    results["one against one"] = attempt().donor != bad  # the other one is asked first half of the time
    for averager, _, _ in donors:
        averager.offer_state(None)
    await_donors(False)
    averager, _, _ = donor(second, epoch=5, cls=Stalling)
    await_donors(True)
    results["stalling"] = attempt(chunk_seconds=1, total_seconds=1000)
    averager.offer_state(None)
    await_donors(False)
    serving.DOWNLOADS_IN_A_ROW, messages = 2, send_messages_of_nothing()
    fourth = hivemind.DHT(start=True, initial_peers=address, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    averager, _, _ = donor(fourth, epoch=5)
    await_donors(True)
    results["messages of nothing"] = attempt()
    results["too often"] = [attempt() for _ in range(2)][1]
    averager.offer_state(None)
    await_donors(False)
    StateService._messages = messages
    die_on_the_way()
    dying, _, _ = donor(first, epoch=5)
    await_donors(True)
    results["died on the way"] = attempt()
    dying._process.join()
    print(json.dumps(results), flush=True)

run_role(role)
"""


@pytest.mark.swarm
def test_download():
    # a donor that is waited for without an end is waited for much longer
    done = run_program([sys.executable, "-c", PROGRAM], within=230)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results["nobody"] == "No peer offers its state yet."
    assert results["wants weights until its moments are right"] == [True, True, False]
    assert results["epoch"] == 5
    assert results["donor is the peer"]
    assert results["parameters"]
    assert results["optimizer tensors"] == 6
    assert results["values"]
    saved_bytes = 2 * (300 * 200 + 200)  # weights and biases in 16 bits
    assert results["saved bytes"] == pytest.approx(saved_bytes, abs=300)  # beside the tensors: what describes them
    assert 1e-5 < results["rounding"] < 1e-3
    assert results["moments"]
    assert results["wants weights"] == [False, True]  # hivemind's donor does not report it
    assert results["short"] == [5, True, 8]
    assert "No peer has sent a sound state" in results["died on the way"]
    assert "more than 1000 bytes" in results["too many bytes"]
    assert "not at an epoch from 6 to 9" in results["too early"]
    assert "not at an epoch from 0 to 4" in results["too late"]
    assert results["a newcomer's"] == ["No peer offers its state yet.", 5]  # it is asked if any epoch will do
    assert "another model" in results["other model"]
    assert "not finite" in results["nan"]
    assert results["delayed update"] == [[5, True], [6, False]]  # that of the epoch which has begun is still on its way
    assert "No peer has sent a sound state" in results["stalling"]
    assert results["poisoned alone"] and all(results["among three"])  # nobody else could tell
    faults, poisoned = results["faults"]
    assert faults == [[poisoned, "sent other weights than the others have"]]
    assert all(results["one far ahead"])
    assert results["one against one"]
    assert re.search(r"has sent only \d{1,4} bytes", results["messages of nothing"])
    assert "sent nothing" in results["too often"]


def download_of(messages):
    """The state that a donor sends in these messages."""
    settings = {"prefix": "demo", "lineage": None, "service": None, "inspect": lambda *_: None, "admission": None}
    settings |= {"shapes": [torch.Size([3])], "chunk_seconds": 5.0, "max_bytes": 10**6, "epochs": range(1, 100)}
    return wait_for_result(_Download(**settings)._take(messages, "Qm"))


def message(facts):
    return averaging_pb2.DownloadData(tensor_part=encode(torch.zeros(3)), metadata=MSGPackSerializer.dumps(facts))


FACTS = {"epoch": 57, "wants_weights": True, "lineage": "a" * 16, "group_bits": "", "optimizer_metadata": []}
VALUE = {"type": "value", "value": (0.9, None, "a")}


def test_a_state_is_what_its_donor_tells():
    state = download_of(as_aiter(message(FACTS | {"optimizer_metadata": [VALUE]})))
    assert (state.epoch, state.wants_weights, state.optimizer_metadata) == (57, True, [VALUE])


def test_a_donor_that_sends_more_tensors_than_it_announced_is_given_up_at_once():
    """It announces fewer as soon as they are there; as many tiny ones as it may send bytes would fill the memory."""
    entry, sent = {"type": "tensor", "index": 0}, []

    async def donor():
        for moments in (9, 9, 0):
            yield message(FACTS | {"optimizer_metadata": [entry] * moments})
        while True:
            sent.append(1)
            yield averaging_pb2.DownloadData(tensor_part=encode(torch.zeros(3)))

    with pytest.raises(TrainingError):
        download_of(donor())
    assert len(sent) < 10


@pytest.mark.parametrize(
    "facts",
    [
        *({**FACTS, "epoch": epoch} for epoch in (57.0, True, "57", None, -1)),
        *({**FACTS, "wants_weights": told} for told in (1, "no", None)),
        *({**FACTS, "lineage": lineage} for lineage in (5, b"a" * 16)),
        *(
            {**FACTS, "optimizer_metadata": [entry]}
            for entry in (
                5,
                {},
                {"type": "value"},
                {"type": "tensor", "index": True},
                {"type": "tensor", "index": -1},
                {"type": [], "value": 1},
            )
        ),
        {**FACTS, "optimizer_metadata": 5},
        {**FACTS, "optimizer_metadata": [{}] * 100_000},
        {"epoch": 57},
        {**FACTS, 1: 2},
        [57],
        None,
    ],
)
def test_a_state_that_is_described_in_other_words_is_refused_before_its_tensors_come(facts):
    """Numbers that are only equal to an epoch ended the program later, when it told the others of its epoch."""
    first, began = message(facts), time.process_time()
    with pytest.raises(TrainingError, match="does not tell what it sends"):
        download_of(as_aiter(first, None))  # who reads on fails otherwise
    assert time.process_time() - began < 2


@pytest.mark.parametrize("field", ["dtype", "size"])
def test_all_that_a_donor_sends_counts_not_only_the_numbers_of_tensors(field):
    long = {"dtype": "x" * 600_000, "size": [1] * 600_000}[field]
    part = runtime_pb2.Tensor(buffer=bytes(SMALLEST_PART_BYTES), chunks=10**9, **{field: long})
    one = averaging_pb2.DownloadData(tensor_part=part, metadata=MSGPackSerializer.dumps(FACTS))
    with pytest.raises(TrainingError, match="sent more than 1000000 bytes"):
        download_of(as_aiter(one, one, None))  # who reads on fails otherwise


@pytest.mark.parametrize("buffer", [b"", b"ab"])
def test_a_tensor_in_ever_more_tiny_parts_is_refused(buffer):
    """Of a model of 100 million parameters, 1.2 GB may come. A part of nothing comes as 2 bytes and is kept as 200."""
    first = averaging_pb2.DownloadData(
        tensor_part=runtime_pb2.Tensor(buffer=buffer, chunks=10**9), metadata=MSGPackSerializer.dumps(FACTS)
    )
    with pytest.raises(TrainingError, match=f"sent a part of {len(buffer)} bytes of a longer tensor"):
        download_of(as_aiter(first, None))  # who reads on fails otherwise


def test_tensors_of_nobody_knows_what_are_refused():
    """Without its number of tensors a donor would send ever more, each of which is kept."""
    one = averaging_pb2.DownloadData(tensor_part=encode(torch.zeros(3)))
    with pytest.raises(TrainingError, match="does not tell what it sends"):
        download_of(as_aiter(one, None))  # who reads on fails otherwise


def test_the_example():
    assert doctest.testmod(download).failed == 0


def test_a_state_that_was_cut_short_is_not_taken():
    tensors = (torch.zeros(2, 3), torch.zeros(6))
    announced = [{"type": "tensor", "index": 0}, {"type": "value", "value": 3}]
    _check_count(TrainingState(epoch=1, tensors=tensors, optimizer_metadata=announced, donor="Qm"), 1)
    short = TrainingState(epoch=1, tensors=tensors[:1], optimizer_metadata=announced, donor="Qm")
    with pytest.raises(TrainingError, match="sent 1 tensors and announced 2"):
        _check_count(short, 1)


@pytest.mark.parametrize("newest_epoch, others, is_behind", [(100, 1, True), (90, 1, False), (100, 0, False)])
def test_a_peer_that_waits_for_the_state_of_others_that_are_ahead_is_behind(
    newest_epoch, others, is_behind, monkeypatch
):
    """Others that also wait would believe its weights otherwise, and not those of who is ahead."""
    alignment, progress = AlignmentState(), SimpleNamespace(look_around=lambda: (newest_epoch, others))
    master = SimpleNamespace(epoch=90)
    peer = CatchingUp(None, None, master, progress, alignment, let_rounds_end=None, begin_epoch=None)
    peer._go_without_state("No peer has sent a sound state.")
    assert alignment.behind == is_behind


def test_a_download_that_the_others_outrun_is_not_wasted(monkeypatch):
    """The newcomer goes on in their epoch at once, and takes the updates that it lacks with a round of parameters."""
    state = TrainingState(epoch=7, tensors=(), optimizer_metadata=[], donor="Qm", seconds=12.0)
    downloads, begun, alignment = [], [], AlignmentState()
    monkeypatch.setattr(catching_up, "download_newer_state", lambda *_, **__: downloads.append(state) or state)
    master = SimpleNamespace(epoch=0, shapes=[], load_state=lambda *_: None, copy_to_model=lambda: None)
    progress = SimpleNamespace(peers=None, has_voices=True, look_who_stays=lambda: (9, 2), pause=nullcontext)
    progress.believe = lambda: None
    ways = {"let_rounds_end": lambda: None, "begin_epoch": begun.append}
    peer = CatchingUp(load_recipe("demo"), None, master, progress, alignment, **ways)
    assert peer.load_state_from_peers(1) and begun == [9] and alignment.drifted
    progress.look_who_stays = lambda: (10, 2)
    assert peer.skip_epochs(9) and begun == [9, 10] and len(downloads) == 1
