"""Readers of the live API that are slow, stop half-way, or send what no browser sends; others are answered as ever."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from statistics import median

import httpx
import pytest

from tests.support.programs import until
from tests.support.serving import serving
from tests.training.publish.live.test_live import clock, history  # noqa: F401  fixtures
from training.processes.servers import web
from training.publish.live import live

LARGE_BYTES = 32 << 20
READERS = 200
ANSWER_SECONDS = 1.0
"""Longest time in which somebody else is answered."""
REQUEST = "GET {} HTTP/1.1\r\nHost: {}\r\n\r\n"


@pytest.fixture
def served(tmp_path, history, monkeypatch):  # noqa: F811
    """A function that serves the history, a site and a large shard; waits are shorter than usual."""
    monkeypatch.setattr(web, "WAIT_SECONDS", 3.0)
    for folder in ("site/calculator", "shards"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "site" / "calculator" / "index.html").write_text("<h1>calculator</h1>")
    (tmp_path / "shards" / "large").write_bytes(bytes(LARGE_BYTES))
    app = live.create_app(history, pictures=tmp_path / "pictures", shards=tmp_path / "shards", site=tmp_path / "site")
    return lambda **settings: serving(app, **settings)


def place_of(address):
    host, port = address.removeprefix("http://").split(":")
    return host, int(port)


@contextmanager
def connections(address, texts):
    """One for each text, which is sent; they take as little as they can."""
    with ExitStack() as stack:
        made = []
        for text in texts:
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(10)
            one.connect(place_of(address))
            one.sendall(text.encode())
            made.append(one)
        yield made


def is_dropped(connection):
    """True if the server has ended a connection; takes what has come."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


def seconds_to_answer(address, times=5):
    """How long a reader waits that makes a connection for each request."""

    def asked():
        began = time.monotonic()
        assert httpx.get(f"{address}/live/state.json", timeout=20).json()["epoch"] == 3
        return time.monotonic() - began

    return median(asked() for _ in range(times))


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "text, later",
    [
        (REQUEST.format("/shards/large", "x"), ""),
        ("", ""),
        ("GET /live/sta", ""),
        ("GET /live/state.json HTTP/1.1\r\nHost: x\r\nX-Fill: ", "x"),
        (REQUEST.format("/live/state.json", "x"), "GET /"),
    ],
    ids=["takes nothing", "says nothing", "half a line", "half a header", "half a second request"],
)
def test_who_does_nothing_is_dropped_and_meanwhile_others_are_answered(served, text, later):
    with served() as address:
        seconds_to_answer(address, times=1)  # what is opened at the first request stays
        files, threads = open_files(), threading.active_count()
        with connections(address, [text] * READERS) as readers:
            time.sleep(0.5)
            for one in readers:
                one.sendall(later.encode())
            assert seconds_to_answer(address) < ANSWER_SECONDS
            assert open_files() <= files + 3 * READERS + 10
            assert threading.active_count() <= threads + 45  # those of anyio's pool
            until(lambda: open_files() <= files + READERS + 10, within=30)  # those of the readers themselves
            until(lambda: all(map(is_dropped, readers)), within=30)


def test_a_body_that_never_comes_is_not_waited_for(monkeypatch):
    """As that of a request to the membership server."""
    monkeypatch.setattr(web, "WAIT_SECONDS", 2.0)

    async def app(scope, receive, send):
        while scope["type"] == "http" and (await receive())["type"] != "http.disconnect":
            pass

    with serving(app, lifespan="off") as address:
        text = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nx"
        with connections(address, [text] * 3) as readers:
            assert not any(map(is_dropped, readers))
            until(lambda: all(map(is_dropped, readers)), within=10)


def test_of_too_many_connections_the_idlest_are_dropped(served):
    with served(most_connections=50) as address:
        files = open_files()
        with connections(address, ["GET /"] * READERS) as readers:
            assert seconds_to_answer(address) < ANSWER_SECONDS
            assert open_files() <= files + READERS + 60
            assert sum(map(is_dropped, readers)) >= READERS - 50


def test_a_slow_reader_that_goes_on_gets_all(served):
    """It takes three times as long as a reader may do nothing."""
    with served() as address, connections(address, [REQUEST.format("/shards/large", "x")]) as (reader,):
        began, got = time.monotonic(), 0
        while chunk := reader.recv(1 << 16) if got < LARGE_BYTES else b"":
            got += len(chunk)
            time.sleep(max(0.0, began + 9 * got / LARGE_BYTES - time.monotonic()))
        assert got >= LARGE_BYTES and time.monotonic() - began >= 8


def answer_of(address, text):
    """All that the server sends until it ends the connection."""
    with socket.create_connection(place_of(address), timeout=20) as connection:
        try:
            connection.sendall(text.encode())
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except ConnectionError:  # it is ended while the rest of the request is on the way
            return b""


def test_huge_headers_are_refused(served):
    with served() as address:
        text = "GET /live/state.json HTTP/1.1\r\nHost: x\r\n"
        for fill in (f"X-Fill: {'x' * (1 << 20)}\r\n\r\n", "X-Fill: x\r\n" * 100_000 + "\r\n"):
            assert b" 200 " not in answer_of(address, text + fill)[:20]
        assert seconds_to_answer(address) < ANSWER_SECONDS
