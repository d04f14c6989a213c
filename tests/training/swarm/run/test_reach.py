"""How others reach a peer is found out: directly, through the run's servers, or not at all."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

import pytest

from tests.training.doctor.places import CAN_UNSHARE, alone
from tests.training.doctor.places import HERE as DOCTOR
from training.swarm.run import redial
from training.swarm.run.reach import SAYS
from training.swarm.run.redial import Pace, Redial
from training.swarm.run.servers import Servers
from training.volunteer.startup import RELAYED_MBITS, Link

TWO_NETWORKS = """
ip link set lo up
unshare -n sleep 120 & other=$!
until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link add near type veth peer name far netns $other
ip addr add 11.2.2.1/24 dev near; ip addr add 11.2.2.3/24 dev near; ip link set near up
nsenter -t $other -n sh -c "ip link set lo up; ip addr add 11.2.2.2/24 dev far; ip link set far up"
"{python}" "{server}" "{folder}" /ip4/11.2.2.1/tcp/4001 0 demo tokens & serves=$!
until [ -s "{folder}/address" ]; do sleep 0.1; done
for listen in 0.0.0.0 127.0.0.1; do
    nsenter -t $other -n "{python}" "{volunteer}" "$(cat "{folder}/address")" "{folder}/$listen" & joins=$!
    until [ -s "{folder}/$listen/told" ] || ! kill -0 $joins; do sleep 0.1; done
    "{python}" "{caller}" "$(cat "{folder}/address")" "{folder}/$listen/told" || true
    kill $joins
done
kill $serves $other
"""
"""A server at a public address, and a volunteer in another network that listens to all, and then to itself only."""
VOLUNTEER = """
import json, sys, time
from functools import partial
from pathlib import Path
from training.processes.environment import prepare_environment
from training.processes.role import run_role
from training.recipe import load_recipe

prepare_environment()
folder = Path(sys.argv[2])
folder.mkdir()


def role(stop):
    from training.storage.whole import write_whole
    from training.swarm.node.identity import Identity
    from training.volunteer.connection import connect
    from training.volunteer.settings import PeerSettings

    settings = PeerSettings(initial_peers=(sys.argv[1],), host_maddrs=(f"/ip4/{folder.name}/tcp/0",))
    identity = Identity(folder)
    connection = connect(load_recipe("demo"), settings, identity, partial(print, file=sys.stderr, flush=True))
    told = {"reach": connection.link.reach, "client": connection.client_mode, "id": str(identity.peer_id)}
    write_whole(folder / "told", json.dumps(told | {"again": connection.redial.find_reach()}))
    stop.listen()
    while not stop.wait(1.0):
        pass


run_role(role)
"""
CALLER = """
import asyncio, json, sys
from pathlib import Path
from hivemind.p2p import P2P, PeerID
from hivemind.proto import dht_pb2

told = json.loads(Path(sys.argv[2]).read_text())


async def call():
    node = await P2P.create(host_maddrs=["/ip4/11.2.2.3/tcp/0"], initial_peers=[sys.argv[1]])
    peer, answer = PeerID.from_base58(told["id"]), False
    for _ in range(10):
        try:
            await node.call_protobuf_handler(peer, "DHTProtocol.rpc_ping", dht_pb2.PingRequest(), dht_pb2.PingResponse)
            answer = True
            break
        except Exception as error:
            print(error, file=sys.stderr, flush=True)
            await asyncio.sleep(1)
    print(json.dumps(told | {"answers": answer}), flush=True)
    await node.shutdown()


asyncio.run(call())
"""
"""Calls the volunteer by its id alone, as a groupmate does."""


@pytest.mark.skipif(not CAN_UNSHARE, reason="needs namespaces of Linux, which this machine gives to no program")
@pytest.mark.swarm
def test_a_peer_that_no_server_can_call_is_relayed_and_others_reach_it(tmp_path):
    """The networks have public addresses: AutoNAT dials no others."""
    programs = {"volunteer": VOLUNTEER, "caller": CALLER}
    for name, text in programs.items():
        (tmp_path / f"{name}.py").write_text(text)
    paths = {name: tmp_path / f"{name}.py" for name in programs}
    script = TWO_NETWORKS.format(python=sys.executable, server=DOCTOR / "run_server.py", folder=tmp_path, **paths)
    done = alone(script, env={"PYTHONPATH": os.getcwd()})
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["reach"] for one in told] == [one["again"] for one in told] == ["direct", "relay"], done.stderr
    assert all(one["answers"] and not one["client"] for one in told), done.stderr


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def watched(monkeypatch):
    """A thread that is not started, its clock, the answers that it will get, and what it tells."""
    clock, answers, told = Clock(), [], []
    monkeypatch.setattr(redial, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(redial.random, "uniform", lambda low, high: 1.0)
    monkeypatch.setattr(Redial, "find_reach", lambda self: answers.pop(0))
    book = SimpleNamespace(peers=list)
    thread = Redial(SimpleNamespace(peer_id="A"), Servers(), book, tell=told.append)
    thread.note_reach = told.append
    return thread, clock, answers, told


def looked_after(thread, clock, seconds):
    clock.now += seconds
    thread._watch_reach()
    return thread.reach, thread.has_moved


def test_the_way_to_a_peer_has_changed_when_two_answers_say_so(watched):
    thread, clock, answers, told = watched
    pace, thread.reach = Pace(), "direct"
    answers += [None, "relay", "direct", "relay", "relay"]
    assert looked_after(thread, clock, pace.reach_seconds - 1) == ("direct", False) and len(answers) == 5
    assert looked_after(thread, clock, 1) == ("direct", False)
    assert looked_after(thread, clock, pace.reach_seconds) == ("direct", False)
    assert looked_after(thread, clock, pace.doubt_seconds) == ("direct", False)
    assert looked_after(thread, clock, pace.reach_seconds) == ("direct", False) and told == []
    assert looked_after(thread, clock, pace.doubt_seconds) == ("relay", True)
    assert told == ["relay", f"The way to this peer has changed: {SAYS['relay']}."] and answers == []


@pytest.mark.parametrize("before, after, anew", [("relay", "client", False), ("client", "direct", True)])
def test_a_peer_begins_anew_where_that_gives_it_another_way(watched, before, after, anew):
    thread, clock, answers, _ = watched
    thread.reach, pace = before, Pace()
    answers += [after, after]
    looked_after(thread, clock, pace.reach_seconds)
    assert looked_after(thread, clock, pace.doubt_seconds) == (after, anew)


def test_a_server_asks_nobody(watched):
    thread, clock, answers, _ = watched
    assert looked_after(thread, clock, 10 * Pace().reach_seconds) == (None, False) and answers == []


def test_a_relayed_peer_gets_small_parts_whatever_its_link_carries():
    assert Link(reach="relay", told_mbits=500.0).mbits == RELAYED_MBITS
    assert Link(reach="client", told_mbits=50.0).mbits == 50.0
