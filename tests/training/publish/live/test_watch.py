"""What a monitor tells open pages and leaves on disk, over a real history and real HTTP."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace

import httpx
import pytest

from tests.support.programs import until
from tests.training.publish.history.test_history import Clock, Report
from tests.training.publish.live.test_live import serving
from training.errors import TrainingError
from training.processes.servers import web
from training.publish.history.history import History, HistoryReader
from training.publish.live import live, stream
from training.publish.live.watch import Watch
from training.recipe import load_recipe

RUN = load_recipe("demo")


soon = partial(until, within=15)


def open_history(folder, clock=time.time):
    history = History(
        folder / "history.sqlite", run_id="demo", recipe_digest=RUN.digest, expiration_seconds=30, clock=clock
    )
    live.store_run(history, RUN, "", initial_peers=[], join_command="", parameters=1)
    return history


@pytest.fixture
def history(tmp_path):
    history = open_history(tmp_path)
    yield history
    history.close()


def state_of(history, watch=None, *, live_now=True, now=None):
    return live.state_document(history, now=now if now is not None else time.time(), live=live_now, watch=watch)


def test_a_stop_on_purpose_is_left_on_disk(tmp_path):
    history = open_history(tmp_path)
    with Watch(history, RUN.swarm) as watch:
        reports = [Report(epoch=1, samples=10)]
        history.observe(reports)
        watch.saw(reports)
        assert state_of(history, watch)["status"] == "running"
        watch.stop()
        assert watch.is_over
        assert state_of(history, watch)["status"] == "stopped"
    history.close()
    reader = HistoryReader(tmp_path / "history.sqlite")
    for live_now in (False, True):  # as an export says it, and as a server without a monitor does
        state = state_of(reader, live_now=live_now)
        assert (state["status"], state["active_peers"]) == ("stopped", 0)
        assert "on purpose" in state["cause"] and "1 volunteer was there" in state["cause"]


def test_a_fault_is_left_on_disk(tmp_path):
    history = open_history(tmp_path)
    with pytest.raises(TrainingError), Watch(history, RUN.swarm):
        raise TrainingError("The port is gone.")
    history.close()
    state = state_of(HistoryReader(tmp_path / "history.sqlite"), live_now=False)
    assert state["status"] == "failed"
    assert "The port is gone." in state["cause"]


def test_a_killed_monitor_is_told_apart(tmp_path):
    history = open_history(tmp_path)
    Watch(history, RUN.swarm).__enter__()
    assert "copy of the run" in state_of(history, live_now=False)["cause"]  # it still holds the lock
    history.close()
    state = state_of(HistoryReader(tmp_path / "history.sqlite"), live_now=False)
    assert state["status"] == "failed"
    assert "without being asked to" in state["cause"]
    again = open_history(tmp_path)
    with Watch(again, RUN.swarm):
        assert "had ended without being asked to" in again.events()[-1]["text"]
    again.close()


def test_a_history_that_cannot_be_written_is_a_fault_until_it_can(tmp_path):
    history = open_history(tmp_path)
    with Watch(history, RUN.swarm) as watch:
        history._connection.execute(f"PRAGMA max_page_count = {_pages(history)}")  # SQLite's own full disk
        with pytest.raises(TrainingError) as full:
            for number in range(200):
                history.observe([Report(name=f"v{number}", peer_id=f"P{number}")])
        watch.failed(full.value)
        state = state_of(history, watch)
        assert state["status"] == "failed"
        assert "does not record the run now" in state["cause"] and "full" in state["cause"]
        assert "Make room on the disk" in state["remedy"]
        history._connection.execute("PRAGMA max_page_count = 1000000")
        history.observe([Report(epoch=1, samples=10)])
        watch.saw([Report(epoch=1, samples=10)])
        assert state_of(history, watch)["status"] == "running"
    history.close()


def _pages(history):
    return history._connection.execute("PRAGMA page_count").fetchone()[0]


def test_volunteers_apart_are_a_split_after_a_while(tmp_path):
    clock = Clock()
    history = open_history(tmp_path, clock)
    watch = Watch(history, RUN.swarm, clock=clock)

    def observe(epoch):
        # ada and bo are at this epoch; cy goes on by itself, far behind.
        reports = [
            Report(name=name, peer_id=name, epoch=one, samples=10 * one, time=clock.now)
            for name, one in (("ada", epoch), ("bo", epoch), ("cy", epoch - 50))
        ]
        history.observe(reports)
        watch.saw(reports)

    for epoch in range(60, 66):
        observe(epoch)
        clock.now += 10
    state = state_of(history, watch, now=clock.now)
    assert state["status"] == "split"
    assert "ada and bo at epoch 65; cy at epoch 15" in state["cause"]
    history.observe([Report(name="cy", peer_id="cy", epoch=65, samples=1000, time=clock.now)])
    watch.saw([Report(name=name, peer_id=name, epoch=65) for name in ("ada", "bo", "cy")])
    assert state_of(history, watch, now=clock.now)["status"] == "running"
    history.close()


def test_volunteers_who_do_not_reach_each_other_are_told(tmp_path):
    clock = Clock()
    history = open_history(tmp_path, clock)
    watch = Watch(history, RUN.swarm, clock=clock)
    for epoch in range(60, 70):
        reports = [
            Report(name=name, peer_id=name, epoch=epoch, samples=10 * epoch, time=clock.now, alone_epochs=epoch)
            for name in ("ada", "bo")
        ]
        history.observe(reports)
        watch.saw(reports)
        clock.now += 10
    state = state_of(history, watch, now=clock.now)
    assert state["status"] == "split"
    assert "ada and bo do not reach each other" in state["cause"]
    history.close()


def test_unreachable_servers_are_told(history):
    reach = SimpleNamespace(servers=1, answering=0, silent_seconds=120.0)
    watch = Watch(history, RUN.swarm, reach=lambda: reach)
    watch.saw([])
    assert "bootstrap peer has not answered" in state_of(history, watch)["cause"]
    reach.answering = 1
    assert state_of(history, watch)["status"] == "waiting"


@contextmanager
def listening(url):
    """The states that a stream sends, as they come."""
    states, ended = [], threading.Event()

    def listen():
        with httpx.stream("GET", f"{url}/live/events", timeout=20) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    states.append(json.loads(line.removeprefix("data: ")))
        ended.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    yield states, ended


def epochs_at(url):
    return [row["epoch"] for row in httpx.get(f"{url}/live/history.json?since=0").json()["epochs"]]


def test_streams_send_each_change_and_the_stop(history, tmp_path):
    watch = Watch(history, RUN.swarm)
    with watch, serving(live.create_app(history, pictures=tmp_path, watch=watch)) as url:
        with listening(url) as (states, ended), listening(url) as (others, _):
            soon(lambda: states and others)
            assert states[0]["status"] == "waiting"
            history.observe([Report(time=0.5)])
            for epoch in (1, 2):
                history.observe([Report(epoch=epoch, samples=10 * epoch, time=epoch)])
                watch.saw([Report(epoch=epoch)])
                began = time.monotonic()
                soon(lambda epoch=epoch: states[-1]["epoch"] == epoch)
                assert time.monotonic() - began < 3
                # A document that took long to compute is kept for longer, also if there is news.
                soon(lambda epoch=epoch: epochs_at(url) == list(range(1, epoch + 1)))
            watch.stop()
            soon(ended.is_set)
        assert states[-1]["status"] == "stopped"
        assert others[-1] == states[-1]
        assert httpx.get(f"{url}/live/events").status_code == 503  # the monitor ends: no new stream


def test_all_streams_share_one_computation(history, tmp_path, monkeypatch):
    computed = []
    compute = live.compute_document
    monkeypatch.setattr(
        live, "compute_document", lambda *names, **more: computed.append(names[0]) or compute(*names, **more)
    )
    watch = Watch(history, RUN.swarm)
    with serving(live.create_app(history, pictures=tmp_path, watch=watch)) as url, ExitStack() as stack:
        streams = [stack.enter_context(listening(url)) for _ in range(20)]
        soon(lambda: all(states for states, _ in streams))
        computed.clear()
        began = time.monotonic()
        soon(lambda: len(computed) >= 4)
        assert len(computed) <= 2.5 * (time.monotonic() - began) + 1  # not 20 times as many
        watch.stop()
        soon(lambda: all(ended.is_set() for _, ended in streams))


def test_a_reader_that_takes_nothing_gets_the_newest_state_only(history, tmp_path, monkeypatch):
    """While its reader takes nothing, a stream keeps no states, and it is dropped in time."""
    monkeypatch.setattr(web, "WAIT_SECONDS", 2.0)
    monkeypatch.setattr(stream, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(stream, "HEARTBEAT_SECONDS", 0.0)

    async def state():
        return json.dumps({"filler": "x" * 300_000}).encode()

    broadcast = stream.Broadcast(state, lambda: False)
    app = live.create_app(history, pictures=tmp_path)
    app.router.routes.insert(0, stream.stream_routes(broadcast)[0])
    with serving(app) as url:
        host, port = url.removeprefix("http://").split(":")
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((host, int(port)))
        reader.sendall(b"GET /live/events HTTP/1.1\r\nHost: x\r\n\r\n")
        soon(lambda: broadcast.streams == 1)
        soon(lambda: broadcast.sent > 30)
        soon(lambda: broadcast.streams == 0)  # although the connection is open
        reader.close()
