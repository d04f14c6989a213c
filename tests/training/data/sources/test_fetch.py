"""Pictures from strangers' addresses: none from inside the network, none that may not be had, few from one host."""

import gc
import threading
import time
import tracemalloc

import pytest

from tests.support.shard_server import shard_server
from training.data.sources import fetch as fetch_module
from training.data.sources.fetch import CONNECTIONS_PER_HOST, Fetcher, LeftOutError, is_opted_out, is_public

CONTENT = b"a picture" * 1000


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(fetch_module, "pause_seconds", lambda failures: 0.001)


@pytest.fixture
def server(tmp_path):
    (tmp_path / "1.png").write_bytes(CONTENT)
    with shard_server(tmp_path, ranged=False) as server:
        yield server


@pytest.fixture
def fetcher():
    """One that may reach this machine, where the tests' server is."""
    return Fetcher(lambda address: address == "127.0.0.1")


def test_memory_does_not_grow_with_the_hosts_of_a_list():
    fetcher, held = Fetcher(), []
    tracemalloc.start()
    try:
        for number in range(4000):
            with pytest.raises(LeftOutError, match="private address"):
                fetcher.fetch(f"http://10.0.{number // 250}.{number % 250}/1.png")
            if number in (999, 3999):  # after the first, caches of the libraries are full
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        assert held[1] - held[0] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://[1.png", "http://127.0.0.1:x/1.png", f"http://{'a' * 300}.com/1.png", "http://a..b/"]
)
def test_an_address_that_is_none_is_left_out_at_once(fetcher, url, monkeypatch):
    monkeypatch.setattr(fetch_module, "pause_seconds", None)
    with pytest.raises(LeftOutError, match="no web address"):
        fetcher.fetch(url)


def redirect(server, place):
    """Sends whoever asks for the picture elsewhere."""

    def fault(handler, name, first):
        if name != "1.png":
            return False
        handler.send_response(302)
        handler.send_header("Location", place)
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    server.fault = fault


def test_a_host_that_leads_to_no_address_is_left_out(server, fetcher):
    redirect(server, "http://[::1/1.png")
    with pytest.raises(LeftOutError, match="no web address"):
        fetcher.fetch(f"{server.url}/1.png")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",  # where clouds tell their machines' secrets
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1%eth0",
        "fc00::1",
        "::ffff:10.0.0.1",
        "2002:0a00:0001::",
        "::127.0.0.1",
        "::ffff:0:10.0.0.1",
        "64:ff9b::10.0.0.1",  # of a gateway to IPv4
        "64:ff9b:1::10.0.0.1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_addresses_inside_a_network_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "64:ff9b::8.8.8.8"])
def test_addresses_of_the_internet_are_public(address):
    assert is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "2130706433", "[::1]"])
def test_no_connection_is_made_to_this_machine(server, host):
    with pytest.raises(LeftOutError, match="private address"):
        Fetcher().fetch(f"http://{host}:{server.server_port}/1.png")
    assert server.requests == []


def test_a_redirection_into_the_network_is_refused(server):
    """From a host that may be reached to one that may not; the name is looked up when the connection is made."""
    redirect(server, f"http://127.0.0.2:{server.server_port}/secret")
    with pytest.raises(LeftOutError, match="private address"):
        Fetcher(lambda address: address == "127.0.0.1").fetch(f"{server.url}/1.png")
    assert server.requests == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/a", "data:,a", "http://", "nonsense"])
def test_other_kinds_of_addresses_are_not_opened(fetcher, url):
    with pytest.raises(LeftOutError):
        fetcher.fetch(url)


@pytest.mark.parametrize(
    "tags, is_out",
    [
        ([], False),
        (["noarchive"], False),
        (["noai"], True),
        (["NoIndex, nofollow"], True),
        (["noarchive", "noimageai"], True),
        (["otherbot: noai"], False),
        (["training-transformers-together: noai"], True),
        (["unavailable_after: 25 Jun 2030 15:00:00 PST"], False),
    ],
)
def test_pictures_that_are_not_for_training_are_left_out(server, fetcher, tags, is_out):
    def tagged(handler, name, first):
        handler.send_response(200)
        for tag in tags:
            handler.send_header("X-Robots-Tag", tag)
        handler.send_header("Content-Length", "4")
        handler.end_headers()
        handler.wfile.write(b"1234")
        return True

    server.fault = tagged
    assert is_opted_out(tags) == is_out
    if is_out:
        with pytest.raises(LeftOutError, match="opted out of training"):
            fetcher.fetch(f"{server.url}/1.png")
    else:
        assert fetcher.fetch(f"{server.url}/1.png") == b"1234"


@pytest.mark.parametrize("code, tries, reason", [(404, 1, "not found"), (429, 3, "not answer"), (503, 3, "not answer")])
def test_only_what_may_change_is_asked_for_again(server, fetcher, code, tries, reason):
    asked = []
    server.fault = lambda handler, name, first: asked.append(name) or handler.send_error(code) or True
    with pytest.raises(LeftOutError, match=reason):
        fetcher.fetch(f"{server.url}/1.png")
    assert len(asked) == tries


def test_a_host_that_stumbles_is_asked_again(server, fetcher):
    fails = iter([True, True])
    server.fault = lambda handler, name, first: next(fails, False) and (handler.send_error(503) or True)
    assert fetcher.fetch(f"{server.url}/1.png") == CONTENT


def test_a_picture_without_an_end_is_given_up(server, fetcher, monkeypatch):
    monkeypatch.setattr(fetch_module, "LARGEST_PICTURE_BYTES", 5000)
    with pytest.raises(LeftOutError, match="huge file"):
        fetcher.fetch(f"{server.url}/1.png")


def test_a_picture_that_trickles_is_given_up(server, fetcher, monkeypatch):
    monkeypatch.setattr(fetch_module, "PICTURE_SECONDS", 0.1)

    def trickle(handler, name, first):
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        for _ in range(10):
            handler.wfile.write(b"a")
            time.sleep(0.04)
        return True

    server.fault = trickle
    with pytest.raises(LeftOutError, match="does not answer"):
        fetcher.fetch(f"{server.url}/1.png")


def test_a_host_is_asked_by_few_at_a_time(server, fetcher):
    """Each answer waits until as many are asked for at once as may be."""
    now, most, lock, full = 0, 0, threading.Lock(), threading.Barrier(CONNECTIONS_PER_HOST, timeout=20)

    def count(handler, name, first):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        full.wait()
        with lock:
            now -= 1

    server.fault = count
    threads = [threading.Thread(target=fetcher.fetch, args=(f"{server.url}/1.png",)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == CONNECTIONS_PER_HOST
