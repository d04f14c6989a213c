"""A run that loses its servers: who stays finds them again when they are back, and newcomers find who stayed."""

import http.server
import json
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.support.programs import ROOT, Programs, are_gone, until
from training.storage.whole import write_whole

pytestmark = pytest.mark.swarm

QUICK = {
    "look_seconds": 0.5,
    "ping_seconds": 2.0,
    "longest_retry_seconds": 2.0,
    "acquaintance_seconds": 2.0,
    "site_seconds": 1.0,
    "book_seconds": 1.0,
    "alarm_seconds": 6.0,
    "clock_seconds": 1.0,
}
"""The same as a peer's, so much faster that a test lasts seconds."""
ONLINE_PEERS = Path(__file__).with_name("online_peers.py")
HEALED_SECONDS = 60.0
"""A split must be over by then."""


class Peers:
    """Peers that can be started, killed and asked what they see."""

    def __init__(self, folder, programs):
        self.folder, self.pids = folder, {}
        self.nursery = programs.start(
            [sys.executable, ONLINE_PEERS],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, name, *initial_peers, **wanted):
        """Starts a peer, and again with the same folder if it was there before; gives its address once it is online."""
        self.begin(name, *initial_peers, **wanted)
        return until(lambda: self.seen(name), within=60, said=lambda: self.log(name))["addresses"][0]

    def begin(self, name, *initial_peers, **wanted):
        """The same, without waiting until it is online."""
        (self.folder / f"{name}.json").unlink(missing_ok=True)
        wanted = {"folder": str(self.folder), "name": name, "initial_peers": initial_peers, "pace": QUICK, **wanted}
        self.nursery.stdin.write(json.dumps(wanted) + "\n")
        self.nursery.stdin.flush()
        self.pids[name] = int(self.nursery.stdout.readline())

    def seen(self, name):
        with suppress(OSError):
            return json.loads((self.folder / f"{name}.json").read_text())
        return {}

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def set_clock(self, name, ahead_seconds):
        """Sets the clock of the peer's process, before or after its start."""
        write_whole(self.folder / f"{name}.clock", str(ahead_seconds))

    def kill(self, *names):
        """Kills peers as a power cut does, and waits until the others no longer see them.

        A busy machine may end a process, and give its files free, some time after it was killed.
        """
        killed = [psutil.Process(self.pids.pop(name)) for name in names]
        killed += [child for process in killed for child in process.children(recursive=True)]
        for process in killed[: len(names)]:
            process.kill()
        assert are_gone(killed, within=60)
        for name in self.pids:
            until(lambda name=name: not set(names) & set(self.seen(name).get("names", names)), within=60)

    def await_meeting(self, *names):
        """Waits until all of these see all of these."""

        def met():
            return all(set(self.seen(name).get("names", ())) >= set(names) for name in names)

        until(met, within=HEALED_SECONDS, said=lambda: str({name: self.seen(name) for name in names}))


class Dying(socketserver.ThreadingTCPServer):
    """A server that still accepts connections, but has no node any more."""

    allow_reuse_address = True

    def __init__(self, address):
        place = ("127.0.0.1", int(address.split("/")[4]))
        super().__init__(place, socketserver.BaseRequestHandler)  # which closes each connection at once

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with Programs() as programs:
        yield Peers(tmp_path_factory.mktemp("peers"), programs)


@pytest.fixture
def peers(nursery, tmp_path):
    nursery.folder = tmp_path
    yield nursery
    for pid in nursery.pids.values():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    nursery.pids.clear()


def test_volunteers_and_a_newcomer_meet_when_the_bootstrap_peer_is_back(peers):
    """It has forgotten whom it knew, so they must come to it; one of them accepts no connections.

    The volunteers are told when it has been gone for a while, and when it is back.
    """
    address = peers.start("boot")
    peers.start("ada", address)
    peers.start("bob", address, client_mode=True)
    peers.await_meeting("boot", "ada", "bob")
    assert peers.seen("bob")["told"] == []
    peers.kill("boot")
    (told,) = until(lambda: peers.seen("bob")["told"], within=60)
    assert told.startswith("No server of the run has answered for ") and "still reaches one other peer" in told
    seen = peers.seen("bob")
    assert (seen["servers"], seen["answering"]) == (1, 0) and seen["silent_seconds"] > QUICK["alarm_seconds"]

    (peers.folder / "boot" / "address_book.json").unlink()
    assert peers.start("boot") == address
    peers.start("new", address)
    peers.await_meeting("boot", "ada", "bob", "new")
    until(lambda: len(peers.seen("bob")["told"]) == 2, within=60)
    seen = peers.seen("bob")
    assert seen["told"][1] == "A server of the run answers again."
    assert seen["answering"] == 1


def test_all_bootstrap_peers_die_at_once_and_come_back(peers):
    """Each names the other one, so that neither can wait for the other; newcomers at both must be in one run."""
    first = peers.start("first")
    second = peers.start("second", first, may_be_alone=True)
    peers.start("ada", first, second)
    peers.start("bob", second)
    peers.await_meeting("first", "second", "ada", "bob")
    until(lambda: len(peers.seen("second")["known"]) == 3, within=60, said=lambda: str(peers.seen("second")))
    peers.kill("first", "second")
    peers.await_meeting("ada", "bob")  # who stays stays together
    assert peers.start("second", first, may_be_alone=True) == second
    assert peers.start("first") == first
    peers.start("new", first)
    peers.await_meeting("first", "second", "ada", "bob", "new")


class Cable:
    """A TCP forwarder that can be plugged in; until then nobody accepts connections at its port."""

    def __init__(self, port):
        self._to, self._listener = port, socket.socket()
        self.links, self._dead = [], set()
        self._listener.bind(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]

    def plug_in(self):
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            ends = self._listener.accept()[0], socket.create_connection(("127.0.0.1", self._to))
            self.links.append(ends)
            for one, other in (ends, reversed(ends)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def lose_links(self):
        """Passes nothing more on of the connections so far, as a router that has forgotten them; nobody hears of it."""
        self._dead |= {one for ends in self.links for one in ends}

    def _pass_on(self, one, other):
        with suppress(OSError):
            while data := one.recv(1 << 16):
                if one not in self._dead:
                    other.sendall(data)
        one.close()
        other.close()


def test_two_halves_of_a_run_become_one_when_the_network_lets_them(peers):
    """Each half has a bootstrap peer and volunteers, and goes on for itself until the halves reach each other."""
    first = peers.start("first")
    ada = peers.start("ada", first)
    cable = Cable(int(first.split("/")[4]))
    through = first.replace(f"/tcp/{first.split('/')[4]}/", f"/tcp/{cable.port}/")
    # Somebody whom it has met, so that it begins although no server answers.
    (peers.folder / "second").mkdir()
    peer_id = ada.split("/")[-1]
    book = {"peers": [{"peer_id": peer_id, "addresses": [f"/ip4/127.0.0.1/tcp/9/p2p/{peer_id}"], "seen": time.time()}]}
    (peers.folder / "second" / "address_book.json").write_text(json.dumps(book))
    second = peers.start("second", through, may_be_alone=True)
    peers.start("bob", second)
    peers.await_meeting("second", "bob")
    peers.await_meeting("first", "ada")
    time.sleep(3)
    assert not {"first", "ada"} & set(peers.seen("bob")["names"])
    cable.plug_in()
    peers.await_meeting("first", "ada", "second", "bob")


def test_a_volunteer_whose_machine_has_slept_connects_anew(peers):
    """Its connections are dead, and its network daemon does not know that yet."""
    server = peers.start("server")
    cable = Cable(int(server.split("/")[4]))
    cable.plug_in()
    through = server.replace(f"/tcp/{server.split('/')[4]}/", f"/tcp/{cable.port}/")
    peers.start("ada", through, client_mode=True)
    peers.await_meeting("server", "ada")
    before = len(cable.links)
    cable.lose_links()
    slept = peers.folder / "ada.slept"
    slept.touch()
    until(lambda: not slept.exists(), within=60)
    peers.await_meeting("server", "ada")
    until(lambda: peers.seen("ada")["answering"] == 1, within=60, said=lambda: str(peers.seen("ada")))
    assert len(cable.links) > before and peers.seen("ada")["told"] == []


def test_a_volunteer_comes_back_through_its_address_book_when_no_server_is_left(peers):
    """And also when the server that answers has just come back itself and knows nobody: the other one calls nobody."""
    address = peers.start("boot")
    ada = peers.start("ada", address, pace={"look_seconds": 1000})
    peers.start("bob", address)
    peers.await_meeting("boot", "ada", "bob")
    until(lambda: ada.split("/")[-1] in peers.seen("bob")["known"], within=60)
    peers.kill("boot", "bob")
    peers.start("bob", address)
    peers.await_meeting("ada", "bob")
    assert peers.seen("bob")["told"][0].startswith("No server of the run answers; calling the 2 peers")
    peers.kill("bob")
    with Dying(address):
        peers.start("bob", address)
    peers.await_meeting("ada", "bob")
    assert peers.seen("bob")["told"][0].startswith("No server of the run answers; calling the 2 peers")
    peers.kill("bob")
    (peers.folder / "boot" / "address_book.json").unlink()
    peers.start("boot")
    peers.start("bob", address)
    peers.await_meeting("ada", "bob", "boot")
    assert peers.seen("bob")["told"] == []


def test_a_volunteer_that_nobody_answers_waits_for_the_servers(peers):
    """All have left, and the server's machine is rebooted."""
    address = peers.start("boot")
    ada = peers.start("ada", address)
    peers.start("bob", address)
    until(lambda: ada.split("/")[-1] in peers.seen("bob")["known"], within=60)
    peers.kill("boot", "ada", "bob")
    peers.begin("bob", address)
    time.sleep(10)
    assert not peers.seen("bob")
    peers.start("boot")
    peers.await_meeting("boot", "bob")
    calling, waiting = peers.seen("bob")["told"][:2]
    assert calling.startswith("No server of the run answers; calling the 2 peers")
    assert waiting == "None of them answers. Calling all of them, and the servers, for 120 s."


def test_who_leaves_while_its_book_is_written_leaves_no_half_one(peers):
    server = peers.start("server")
    peers.start("ada", server, slow_disk=True)

    def drafts():
        return list((peers.folder / "ada").glob(".address_book.json.draft-*"))

    until(drafts, within=60)
    os.kill(peers.pids.pop("ada"), signal.SIGTERM)
    until(lambda: not drafts(), within=20)
    assert json.loads((peers.folder / "ada" / "address_book.json").read_text())["peers"]


@pytest.mark.parametrize("answers", [False, True], ids=["which is away", "which has no word of the run yet"])
def test_volunteers_that_are_back_before_the_servers_wait_for_one(peers, answers):
    """They meet each other at once, but none of them can tell the others that the run is here."""
    address = peers.start("boot", recipe="posts")
    ada = peers.start("ada", address, recipe="finds")
    bob = peers.start("bob", address, recipe="finds")
    for name, other in (("ada", bob), ("bob", ada)):
        until(lambda name=name, other=other: other.split("/")[-1] in peers.seen(name)["known"], within=60)
    peers.kill("boot", "ada", "bob")
    if answers:
        peers.begin("boot", recipe="posts", posts_after=30)
    peers.begin("ada", address, recipe="finds")
    peers.begin("bob", address, recipe="finds")
    time.sleep(25)
    assert not peers.seen("ada") and not peers.seen("bob")
    if not answers:
        peers.start("boot", recipe="posts")
    peers.await_meeting("boot", "ada", "bob")
    told = peers.seen("ada")["told"]
    assert any(said.startswith("The peers that answer do not know the run demo yet. If they have ") for said in told)


def test_a_newcomer_that_names_a_run_which_nobody_knows_is_told_so(peers):
    address = peers.start("boot")
    peers.begin("ada", address, recipe="finds")
    log = peers.folder / "ada.log"
    until(lambda: log.exists() and "know no run named 'demo'" in log.read_text(), within=60)


def test_servers_that_have_moved_are_found_through_the_runs_site(peers, tmp_path):
    (tmp_path / "live").mkdir()
    document = tmp_path / "live" / "run.json"
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        site = f"http://127.0.0.1:{server.server_port}/"
        first = peers.start("boot")
        document.write_text(json.dumps({"initial_peers": [first]}))
        peers.start("ada", site, client_mode=True)
        peers.await_meeting("boot", "ada")
        peers.kill("boot")
        (peers.folder / "boot" / "port").unlink()
        moved = peers.start("boot")
        assert moved != first and moved.split("/")[-1] == first.split("/")[-1]
        document.write_text(json.dumps({"initial_peers": [moved]}))
        peers.await_meeting("boot", "ada")
        server.shutdown()


@pytest.mark.parametrize("server_answers, ahead_seconds", [(True, 300.0), (False, -300.0)])
def test_who_comes_back_with_a_wrong_clock_is_told(peers, server_answers, ahead_seconds):
    """Also if only peers of its address book answer, which hivemind does not compare clocks with."""
    server = peers.start("server")
    for name in ("ada", "bob", "grace"):
        peers.start(name, server)
    peers.await_meeting("server", "ada", "bob", "grace")
    until(lambda: len(peers.seen("grace")["known"]) == 3, within=60)
    peers.kill("grace", *([] if server_answers else ["server"]))
    peers.set_clock("grace", ahead_seconds)
    peers.begin("grace", server)
    said = f"Error: The clock of this machine is 5 min {'ahead of' if ahead_seconds > 0 else 'behind'} the clocks of "
    until(lambda: said in peers.log("grace"), within=60)
    assert not peers.seen("grace")


def test_one_wrong_clock_ends_nobody_else(peers):
    """All come back, and the first one that the others meet has a wrong clock. It is told when a third one is there."""
    server = peers.start("server")
    for name in ("ada", "bob", "grace"):
        peers.start(name, server)
    until(lambda: all(len(peers.seen(name)["known"]) == 3 for name in ("ada", "bob", "grace")), within=60)
    peers.kill("server", "ada", "bob", "grace")
    peers.set_clock("ada", 300.0)
    peers.begin("ada", server)
    peers.begin("grace", server)
    time.sleep(15)
    assert not peers.seen("grace") and "Error" not in peers.log("grace")
    peers.start("bob", server)
    peers.await_meeting("bob", "grace")
    waiting = "The clock of the only peer that answers differs from this one by 300 s. Waiting for another peer, which "
    assert f"{waiting}decides, for 120 s." in peers.seen("grace")["told"]
    until(lambda: "5 min ahead of the clocks" in peers.log("ada"), within=60)


def test_who_has_a_clock_that_jumps_is_told(peers):
    server = peers.start("server")
    peers.start("ada", server)
    peers.await_meeting("server", "ada")

    def told():
        return [sentence for sentence in peers.seen("ada").get("told", ()) if "clock" in sentence]

    peers.set_clock("ada", 300.0)
    time.sleep(2)
    peers.set_clock("ada", 0.0)
    time.sleep(5)
    assert not told()  # it was for a moment only
    peers.set_clock("ada", 300.0)
    until(lambda: told() and "5 min ahead of" in told()[-1], within=60)
    peers.set_clock("ada", 0.0)
    until(lambda: told()[-1] == "The clock of this machine is right again.", within=60)
    assert len(told()) == 2
