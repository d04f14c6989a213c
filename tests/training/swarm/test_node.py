"""A peer's node in the DHT, as a process of its own."""

import os
import subprocess
import sys

import pytest

from tests.programs import ROOT, Programs

BEGIN = """
import asyncio, gc, multiprocessing.connection, os, signal, socket, sys, time
from pathlib import Path
from training.processes.environment import prepare_environment
prepare_environment()
from training.config import load_recipe
from training.processes.role import run_role
from training.swarm.dht import start_dht
from training.swarm.identity import Identity

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
        # The node, which reads the request, connects to this process for what belongs to it.
        multiprocessing.connection.deliver_challenge = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
        dht.get("key", return_future=True)
        time.sleep(60)

    asking = multiprocessing.get_context("fork").Process(target=ask_and_die)
    asking.start()
    asking.join()
    assert asking.exitcode == -signal.SIGKILL
    print(dht.get("key", return_future=True).result(10), flush=True)

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
