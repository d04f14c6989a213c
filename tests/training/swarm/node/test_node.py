"""A peer's node in the DHT, as a process of its own."""

import ast
import os
import subprocess
import sys
from itertools import pairwise

import pytest

from tests.support.programs import ROOT, Programs

BEGIN = """
import asyncio, gc, multiprocessing, os, signal, socket, sys, time
from pathlib import Path
from training.processes.environment import prepare_environment
prepare_environment()
from training.recipe import load_recipe
from training.processes.role import run_role
from training.swarm.node.dht import start_dht
from training.swarm.node.identity import Identity

def start():
    return start_dht(load_recipe("demo"), Identity(Path(sys.argv[1])), host_maddrs=["/ip4/127.0.0.1/tcp/0"])
"""
COLLECTED = """
async def ask(_dht, _node):
    reader, writer = await asyncio.open_connection(*ADDRESS)
    writer.write(b"?")
    return await reader.readline()

async def collect(_dht, _node):
    gc.collect()

def role(stop):
    global ADDRESS
    listener = socket.create_server(("127.0.0.1", 0))
    ADDRESS = listener.getsockname()
    dht = start()
    answers = [dht.run_coroutine(ask, return_future=True) for _ in range(5)]
    asked = [listener.accept()[0] for _ in answers]
    for connection in asked:
        connection.recv(1)
    dht.run_coroutine(collect, return_future=True).result(10)
    for connection in asked:
        connection.sendall(b"an answer\\n")
    print([answer.result(10) for answer in answers], flush=True)

run_role(role)
"""
KILLED = """
def role(stop):
    dht = start()

    def ask_and_die():
        dht.get("key", return_future=True)
        os.kill(os.getpid(), signal.SIGKILL)

    asking = multiprocessing.get_context("fork").Process(target=ask_and_die)
    asking.start()
    asking.join()
    assert asking.exitcode == -signal.SIGKILL
    print(dht.get("key", return_future=True).result(10), flush=True)

run_role(role)
"""


WITHOUT_DAEMON = """
import psutil
from training.errors import ProcessEnded
from training.swarm.node.dht import check_node

def role(stop):
    dht = start()
    check_node(dht)
    (daemon,) = psutil.Process(dht.pid).children()
    daemon.kill()
    dht.join(20)
    try:
        check_node(dht)
    except ProcessEnded as error:
        print(error, flush=True)

run_role(role)
"""
KILLED_ITSELF = """
from types import SimpleNamespace
from rich.console import Console
from training.errors import TrainingError
from training.processes.events import EventLog
from training.swarm.engine import engine
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.state.alignment import AlignmentState
from training.swarm.state.download import find_donors
from training.volunteer.arrival import arrive
from training.volunteer.loop import TrainingLoop
from training.processes.notices import Notices

def role(stop):
    dht, run = start(), load_recipe("demo")
    engine.NODE_SECONDS = 1.0
    os.kill(dht.pid, signal.SIGKILL)
    dht.join()
    facts = dict(alignment=AlignmentState(), local_epoch=7, waits_for_others=True, keep_waiting=lambda: None)
    optimizer = SimpleNamespace(dht=dht, **facts)
    reporter = SimpleNamespace(update=lambda **facts: None, wait=lambda: None)
    notices = Notices(events=EventLog(None), console=Console(quiet=True))
    facts = dict(schedule=run.schedule, swarm=run.swarm, choices=None, model=None, optimizer=optimizer, samples=None)
    loop = TrainingLoop(**facts, reporter=reporter, notices=notices)
    given = dict(belonging=SimpleNamespace(lineage=SimpleNamespace(id="a" * 16)), resume=None, kept=None)
    told = []
    for wait in (
        lambda: find_donors(dht, "demo"),
        lambda: wait_for_result(engine.open_connection(dht)),
        lambda: arrive(optimizer, run, stop=stop, notices=notices, **given),
        lambda: loop._wait_for_others(stop),
    ):
        try:
            wait()
        except TrainingError as error:
            told.append(type(error).__name__)
    print(*told, flush=True)

run_role(role)
"""
AT_ITS_END = """
def role(stop):
    dht = start()
    dht.shutdown()
    print(dht.exitcode, flush=True)

run_role(role)
"""


def printed_by(program, folder):
    with Programs() as programs:
        node = programs.start(
            [sys.executable, "-c", BEGIN + program, folder / "node"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        printed, _ = node.communicate(timeout=120)
    assert node.returncode == 0, printed
    return printed.splitlines()[-1]


@pytest.mark.swarm
def test_a_coroutine_that_waits_is_not_collected_as_garbage(tmp_path):
    assert printed_by(COLLECTED, tmp_path) == str([b"an answer\n"] * 5)


@pytest.mark.swarm
def test_a_process_that_is_killed_while_it_asks_does_not_end_the_node(tmp_path):
    assert printed_by(KILLED, tmp_path) == "None"


@pytest.mark.swarm
def test_a_node_without_its_network_daemon_is_noticed(tmp_path):
    assert printed_by(WITHOUT_DAEMON, tmp_path) == "The network node has ended."


@pytest.mark.swarm
def test_nobody_waits_for_ever_for_a_node_that_was_killed(tmp_path):
    """Neither who asks it, nor a peer that arrives or waits for others."""
    assert printed_by(KILLED_ITSELF, tmp_path) == "NodeSilent NodeSilent ProcessEnded ProcessEnded"


@pytest.mark.swarm
def test_a_node_that_is_asked_to_end_does_so_by_itself(tmp_path):
    assert printed_by(AT_ITS_END, tmp_path) == "0"


STORED = """
from contextvars import ContextVar
from functools import partial
from training.swarm.node.dht import full_addresses, posted_messages, post_message

calls, known, storing = 0, [], ContextVar("storing", default=False)

async def count_searches(_dht, node):
    # What this node asks of others for a store, and which it knows then, in its process. It searches for others too.
    ask, find = node.protocol.call_find, node.find_nearest_nodes
    async def call_find(*arguments):
        global calls
        calls += storing.get()
        return await ask(*arguments)
    async def find_nearest_nodes(*arguments, **settings):
        if "found_callback" in settings:
            storing.set(True)
            known[:] = sorted(str(uid) for uid in node.protocol.routing_table.uid_to_peer_id)
        return await find(*arguments, **settings)
    node.protocol.call_find, node.find_nearest_nodes = call_find, find_nearest_nodes

async def searches(_dht, node):
    return calls

async def known_at_store(_dht, node):
    return known

def node_of(name, initial_peers):
    folder = Path(sys.argv[1]) / name
    identity = Identity(folder)
    dht = start_dht(load_recipe("demo"), identity, host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=initial_peers)
    return dht, identity

def role(stop):
    first, _ = node_of("first", [])
    address = full_addresses(first)[:1]
    others = [node_of(f"other{number}", address)[0] for number in range(3)]
    writer, identity = node_of("writer", address)
    writer.run_coroutine(count_searches)

    def store(word):
        before = writer.run_coroutine(searches)
        post_message(writer, "demo_tokens", word, identity)
        while set(posted_messages(others[0], "demo_tokens").values()) != {word}:
            time.sleep(0.1)
        return writer.run_coroutine(searches) - before, writer.run_coroutine(known_at_store)

    asked = [store(f"word{number}") for number in range(5)]
    newcomer, _ = node_of("newcomer", address)
    # It makes itself known to nodes near it as it starts; here to all.
    asked_for_newcomer, _ = store("again")
    print([asked, asked_for_newcomer, set(posted_messages(newcomer, "demo_tokens").values())], flush=True)

run_role(role)
"""


@pytest.mark.swarm
def test_a_store_goes_to_the_nodes_that_an_earlier_one_has_found(tmp_path):
    """Otherwise each store would ask all nodes near the key, which answer with all records of the key.

    A node that comes, or does not answer for a moment, is found by a new search: the routing table has changed then.
    """
    stores, again, read = ast.literal_eval(printed_by(STORED, tmp_path))
    assert stores[0][0] == 4
    without_change = [asked for (_, earlier), (asked, later) in pairwise(stores) if later == earlier]
    assert without_change and set(without_change) == {0}
    assert again == 5 and read == {"again"}
