"""What a newcomer is told of servers that it does not reach: real sockets, real nodes, and networks of one protocol."""

import json
import signal
import socket
import sys
import threading
from contextlib import contextmanager

import psutil
import pytest

from tests.programs import Programs, until
from tests.training.doctor.places import CAN_UNSHARE, alone, closed_port, file_of, listening, serving
from tests.training.swarm.run.test_redial import Peers
from training.errors import TrainingError
from training.recipe import load_recipe
from training.swarm.engine.process import DHT
from training.swarm.node import dht
from training.swarm.node.addresses import GREETING, why_unreached
from training.swarm.node.dht import answering
from training.swarm.node.identity import Identity

DEMO = load_recipe("demo")
PEER_ID = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"


def address(port, host="ip4/127.0.0.1"):
    return f"/{host}/tcp/{port}/p2p/{PEER_ID}"


@contextmanager
def answers(answer):
    """A program that sends these bytes to whoever calls, and hangs up; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work():
            while True:
                try:
                    called = listener.accept()[0]
                except OSError:
                    return
                with called:
                    called.recv(len(GREETING))
                    called.sendall(answer)

        threading.Thread(target=work, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def test_who_does_not_answer_is_told_apart():
    with answers(GREETING) as port:
        assert why_unreached(address(port)) is None
    with answers(b"") as port:
        left = why_unreached(address(port))
    with serving(file_of("a page")) as url:
        page = why_unreached(address(url.rsplit(":", 1)[1]))
    with listening() as hanging:
        silent = why_unreached(address(hanging.getsockname()[1]), 0.2)
    refused = why_unreached(address(closed_port()))
    assert left == page and "no peer of a run" in page.seen
    assert "nothing comes" in silent.seen and "hangs" in silent.cure
    assert len({one.cure for one in (page, silent, refused)}) == 3


def test_what_only_the_daemon_can_call_is_left_to_it():
    with listening() as hanging:
        port = hanging.getsockname()[1]
        assert why_unreached(f"/ip4/127.0.0.1/tcp/{port}/ws/p2p/{PEER_ID}", 0.1) is None
    assert why_unreached(f"/ip4/127.0.0.1/udp/9/quic-v1/p2p/{PEER_ID}") is None


def test_each_kind_of_fault_has_its_advice_once():
    page = "give the address of the run's site instead"
    with answers(b"") as one, answers(b"") as other, pytest.raises(TrainingError) as error:
        answering([address(one), address(other), address(closed_port())])
    assert error.value.sentence.count(page) == 1 and "Check that the run is on" in error.value.cure


ONE_PROTOCOL = """
ip link set lo up
{address}
"$@"
"""
LOOK = """
import json, sys
from training.swarm.node.addresses import protocols, why_unreached
fault = why_unreached(sys.argv[1])
print(json.dumps({"has": protocols(), "seen": fault.seen, "cure": fault.cure}))
"""


@pytest.mark.skipif(not CAN_UNSHARE, reason="this machine allows no network of one's own")
@pytest.mark.programs
@pytest.mark.parametrize(
    "prefix, host, has, seen",
    [
        ("2001:db8:7::1/64", "ip4/198.51.100.7", ["IPv6"], "this machine has no IPv4"),
        ("192.0.2.7/24", "ip6/2001:db8:9::7", ["IPv4"], "this machine has no IPv6"),
        (None, "ip4/198.51.100.7", [], "this machine has no network"),
    ],
    ids=["IPv6 alone", "IPv4 alone", "offline"],
)
def test_no_protocol_in_common_is_told(prefix, host, has, seen):
    """Networks of RFC 5737 and 3849, which are for examples."""
    family = "-6" if prefix and ":" in prefix else "-4"
    lines = [
        "ip link add only type dummy; ip link set only up",
        f"ip {family} addr add {prefix} dev only {'nodad' if family == '-6' else ''}",
        f"ip {family} route add default dev only",
    ]
    script = ONE_PROTOCOL.format(address="\n".join(lines) if prefix else "")
    done = alone(script, sys.executable, "-c", LOOK, address(4001, host))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["has"] == has and found["seen"] == seen
    assert all(f"a network that has {seen.split()[-1]}" in found["cure"] for _ in has)


@pytest.mark.swarm
def test_a_node_that_does_not_start_has_the_advice_for_its_reason(tmp_path, monkeypatch):
    """Another id than that of the peer at the address; and a start that takes too long, as on an overloaded machine."""
    boot = DHT(start=True)
    try:
        place = str(boot.get_visible_maddrs()[0]).rpartition("/p2p/")[0]
        settings = {"initial_peers": [f"{place}/p2p/{PEER_ID}"], "host_maddrs": ["/ip4/127.0.0.1/tcp/0"]}
        with pytest.raises(TrainingError) as other:
            dht.start_dht(DEMO, Identity(tmp_path / "other"), **settings)
        monkeypatch.setattr(dht, "START_SECONDS", 0.01)
        with pytest.raises(TrainingError) as slow:
            dht.start_dht(DEMO, Identity(tmp_path / "slow"), host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    finally:
        boot.shutdown()
    assert "the ids at their ends" in other.value.cure
    assert "too busy" in slow.value.cure


@pytest.fixture
def peers(tmp_path):
    with Programs() as programs:
        yield Peers(tmp_path, programs)


@pytest.mark.swarm
@pytest.mark.parametrize("which", ["all its processes", "all but its network daemon"])
def test_a_server_that_hangs_is_not_called_a_wrong_address(peers, which):
    server = peers.start("boot")
    role = psutil.Process(peers.pids["boot"])
    frozen = [role, *role.children(recursive=True)]
    if which == "all but its network daemon":
        frozen = [one for one in frozen if one.name() != "p2pd"]
    for one in frozen:
        one.send_signal(signal.SIGSTOP)
    try:
        peers.begin("ada", server)
        until(lambda: "Error: " in peers.log("ada"), within=90)
    finally:
        for one in frozen:
            one.send_signal(signal.SIGCONT)
    told = peers.log("ada").split("Error: ")[1]
    assert "hang" in told and "tell the run's maintainer" in told
    assert "--initial-peers" not in told and "instead" not in told
