"""What a newcomer is told of servers that it does not reach: real sockets, real nodes, and networks of one protocol."""

import json
import signal
import socket
import sys
import threading
from contextlib import contextmanager

import psutil
import pytest

from tests.support.programs import ROOT, Programs, until
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
    """A program that sends these bytes to each caller, and hangs up; gives its port."""
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
        "ip link add only type veth peer name other; ip link set only up; ip link set other up",
        f"ip {family} addr add {prefix} dev only {'nodad' if family == '-6' else ''}",
        f"ip {family} route add default dev only",
    ]
    script = ONE_PROTOCOL.format(address="\n".join(lines) if prefix else "")
    done = alone(script, sys.executable, "-c", LOOK, address(4001, host))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["has"] == has and found["seen"] == seen
    assert all(f"a network that has {seen.split()[-1]}" in found["cure"] for _ in has)


TWO_PROTOCOLS = """
ip link set lo up
enter() {{ unshare -n sleep 300 & holder=$!
    until [ "$(readlink /proc/$holder/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done; }}
enter; four=$holder; enter; six=$holder
ip link add near4 type veth peer name far netns $four; ip addr add 11.2.2.1/24 dev near4; ip link set near4 up
nsenter -t $four -n sh -c "ip link set lo up; ip addr add 11.2.2.2/24 dev far; ip link set far up
    ip route add default via 11.2.2.1"
ip link add near6 type veth peer name far netns $six
ip addr add 2001:db8:7::1/64 dev near6 nodad; ip link set near6 up
nsenter -t $six -n sh -c "ip link set lo up; ip addr add 2001:db8:7::2/64 dev far nodad; ip link set far up
    ip route add default via 2001:db8:7::1"
"{python}" "{node}" "{folder}" boot /ip4/11.2.2.1/tcp/4001,/ip6/2001:db8:7::1/tcp/4001 "" & boot=$!
until [ -s "{folder}/boot.json" ]; do kill -0 $boot; sleep 0.1; done
id=$(cat "{folder}/boot.json")
nsenter -t $four -n "{python}" "{node}" "{folder}" ada /ip4/0.0.0.0/tcp/0 /ip4/11.2.2.1/tcp/4001/p2p/$id & ada=$!
nsenter -t $six -n "{python}" "{node}" "{folder}" bob /ip6/::/tcp/0 /ip6/2001:db8:7::1/tcp/4001/p2p/$id & bob=$!
until [ -s "{folder}/bob.json" ]; do kill -0 $ada $bob; sleep 0.1; done
kill $boot $ada $bob $four $six
"""
"""A server with addresses of both protocols, Ada with IPv4 alone, and Bob with IPv6 alone."""
NODE = """
import json, sys
from pathlib import Path
from training.processes.environment import prepare_environment
from training.processes.role import run_role
from training.recipe import load_recipe

prepare_environment()
folder, name, listen = Path(sys.argv[1]), sys.argv[2], sys.argv[3].split(",")


def role(stop):
    from tests.training.swarm.run.online_peers import record
    from training.storage.whole import write_whole
    from training.swarm.node.addresses import protocols
    from training.swarm.node.identity import Identity
    from training.swarm.node.metrics import MetricsBoard, read_records
    from training.swarm.node.slow_nodes import any_answers
    from training.swarm.run.online import go_online

    run, identity = load_recipe("demo"), Identity(folder / name)
    initial = [one for one in sys.argv[4:] if one]
    redial = go_online(run, identity, initial, host_maddrs=listen, may_be_alone=not initial)
    if name == "boot":
        write_whole(folder / "boot.json", str(identity.peer_id))
    board = MetricsBoard(dht=redial.dht, run_id=run.run_id, expiration_seconds=60.0)
    stop.listen()
    while not stop.wait(1.0):
        board.post(record(identity, name), identity)
        others = {one.name: one.peer_id for one in read_records(redial.dht, run.run_id)}
        if name == "bob" and "ada" in others:
            reached = {who: any_answers(redial.dht, [others[who]], 5.0) for who in others if who != name}
            write_whole(folder / "bob.json", json.dumps({"has": protocols(), "reached": reached}))


run_role(role)
"""


@pytest.mark.skipif(not CAN_UNSHARE, reason="this machine allows no network of one's own")
@pytest.mark.swarm
def test_volunteers_without_a_common_protocol_see_each_other_and_do_not_answer(tmp_path):
    """The newcomer is in the run, and would wait for ever for the weights; its arrival tells what it lacks."""
    (tmp_path / "node.py").write_text(NODE)
    script = TWO_PROTOCOLS.format(python=sys.executable, node=tmp_path / "node.py", folder=tmp_path)
    done = alone(script, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, within=240)
    assert (tmp_path / "bob.json").is_file(), done.stdout + done.stderr
    told = json.loads((tmp_path / "bob.json").read_text())
    assert told == {"has": ["IPv6"], "reached": {"boot": True, "ada": False}}


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
        log = peers.folder / "ada.log"
        until(lambda: log.exists() and "Error: " in log.read_text(), within=90)
    finally:
        for one in frozen:
            one.send_signal(signal.SIGCONT)
    told = log.read_text().split("Error: ")[1]
    assert "hang" in told and "tell the run's maintainer" in told
    assert "--initial-peers" not in told and "instead" not in told
