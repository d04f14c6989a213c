"""The port of a server: the same after a restart, and never shared with another program."""

import socket

import pytest

from training.errors import BadInput
from training.swarm.node import addresses
from training.swarm.node.addresses import settle_ports

ANY = "/ip4/127.0.0.1/tcp/0"


@pytest.fixture
def taken():
    """A port at which somebody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(addresses, "FREE_SECONDS", 0.2)


def test_a_port_that_was_chosen_once_stays(tmp_path):
    first = settle_ports(tmp_path, [ANY, "/ip6/::1/tcp/0"])
    port = int(first[0].split("/")[4])
    assert port > 1023 and first == [f"/ip4/127.0.0.1/tcp/{port}", f"/ip6/::1/tcp/{port}"]
    assert settle_ports(tmp_path, [ANY]) == first[:1]
    assert settle_ports(tmp_path, ["/ip4/127.0.0.1/tcp/7/ws", "/ip4/127.0.0.1/udp/0/quic"]) == [
        "/ip4/127.0.0.1/tcp/7/ws",
        "/ip4/127.0.0.1/udp/0/quic",
    ]


def test_another_port_is_chosen_when_the_kept_one_is_taken(tmp_path, taken):
    (tmp_path / "port").write_text(f"{taken}\n")
    (address,) = settle_ports(tmp_path, [ANY])
    assert address != f"/ip4/127.0.0.1/tcp/{taken}"
    assert settle_ports(tmp_path, [ANY]) == [address]


def test_a_damaged_note_of_the_port_counts_for_nothing(tmp_path):
    (tmp_path / "port").write_text("eighty")
    (address,) = settle_ports(tmp_path, [ANY])
    assert (tmp_path / "port").read_text() == address.split("/")[4] + "\n"


def test_a_port_that_was_asked_for_and_is_taken_is_one_sentence(tmp_path, taken):
    """Two network daemons would share it."""
    with pytest.raises(BadInput, match=f"already listens at /ip4/0.0.0.0/tcp/{taken}.*another --port"):
        settle_ports(tmp_path, [f"/ip4/0.0.0.0/tcp/{taken}"])


def test_a_port_that_becomes_free_in_time_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(addresses, "FREE_SECONDS", 20.0)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    wanted = f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}"
    monkeypatch.setattr(addresses.time, "sleep", lambda seconds: listener.close())
    assert settle_ports(tmp_path, [wanted]) == [wanted]
