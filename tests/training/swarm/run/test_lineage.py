"""Which lineage peers and servers take a run for, by what real DHT nodes tell each other."""

from __future__ import annotations

import doctest
import itertools
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.training.swarm.real_peers import scenarios
from tests.training.swarm.real_peers.started_peers import meet
from training.errors import BadInput
from training.processes.events import EventLog
from training.processes.notices import Notices
from training.recipe import load_recipe
from training.swarm.node.dht import full_addresses, post_message, start_dht
from training.swarm.node.identity import Identity
from training.swarm.run import lineage as lineages
from training.swarm.run import server_lineage
from training.swarm.run.lineage import (
    BRANCH_FILE,
    STATE_FILE,
    Lineage,
    LineageMessage,
    choose,
    keep,
    post_lineage,
    post_site,
    posted_lineages,
    posted_sites,
    read_kept,
)
from training.swarm.run.server_lineage import ServerLineage
from training.swarm.run.servers import Servers
from training.volunteer import belonging
from training.volunteer.belonging import Belonging

RUN, RUNS = load_recipe("demo"), itertools.count()
A, B, C = (Lineage(id=letter * 16) for letter in "abc")


def message(lineage, epoch, signer="server"):
    return LineageMessage(lineage=lineage, epoch=epoch, signer=signer)


@pytest.mark.parametrize(
    "messages, chosen",
    [
        ([message(A, 5), message(B, 7)], B),
        ([message(A, 5), message(B, 7, "stranger")], A),
        ([message(B, 7), message(A, 7)], A),
        ([message(A, 60), message(A.branch(40), 41)], "the branch"),
        ([message(A, 60), message(A.branch(40), 41, "stranger")], A),
        ([message(A, 60), message(B, 50), message(A.branch(40).branch(30), 31)], B),
        ([message(A, 5, "stranger"), message(B, 7, "stranger")], B),
        ([], None),
    ],
    ids=[
        "newest",
        "trusted",
        "smallest id",
        "branch",
        "a stranger's branch",
        "branch of a branch",
        "nobody",
        "nothing",
    ],
)
def test_which_message_counts(messages, chosen):
    found = choose(messages, ["server"])
    assert (found and found.lineage) == (messages[1].lineage if chosen == "the branch" else chosen)


def test_a_message_survives_its_way_and_malformed_ones_do_not():
    branch = A
    for epoch in (90, 80, 70, 60, 50, 40, 30, 20, 10, 5):
        branch = branch.branch(epoch)
    longest = message(branch, 999_999_999)
    assert len(longest.packed()) <= lineages.LONGEST_SERVER_MESSAGE and len(branch.ancestors) == lineages.MOST_ANCESTORS
    assert LineageMessage.read(longest.packed(), "server") == longest
    for malformed in ("", "a" * 16, "a" * 15 + " 7", "a" * 16 + " -7", "a" * 16 + " 7" * 3, "A" * 16 + " 7"):
        assert LineageMessage.read(malformed) is None


def test_weights_are_also_those_of_the_branches_that_went_on_from_them():
    branch = A.branch(40)
    assert branch.has(A.id, 40) and not branch.has(A.id, 41) and branch.has(branch.id, 90) and branch.has(None, 90)
    assert branch.branch(30).has(A.id, 30) and not branch.branch(30).has(A.id, 31)
    assert branch.branch(30).descends_from(A.id) and not branch.descends_from(B.id)
    assert branch.first_epoch == 40 and A.first_epoch == 0


def test_what_is_kept_is_read_again_and_a_damaged_file_is_no_new_run(tmp_path):
    assert read_kept(tmp_path) is None
    kept = LineageMessage(lineage=A.branch(40), epoch=60)
    keep(tmp_path, kept)
    assert read_kept(tmp_path) == kept
    for content in (
        "",
        "{}",
        "[]",
        '{"id": "x", "epoch": 1, "ancestors": []}',
        '{"id": 7, "epoch": 1, "ancestors": 7}',
    ):
        (tmp_path / STATE_FILE).write_text(content)
        with pytest.raises(BadInput, match="cannot be read"):
            read_kept(tmp_path)


def test_each_bit_of_what_is_kept_counts_or_says_nothing(tmp_path):
    """A digit that a disk has changed would be another run."""
    kept = LineageMessage(lineage=A.branch(40), epoch=60)
    keep(tmp_path, kept)
    whole = (tmp_path / STATE_FILE).read_bytes()
    for place in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        (tmp_path / STATE_FILE).write_bytes(damaged)
        with suppress(BadInput):
            assert read_kept(tmp_path) == kept


def test_the_examples():
    assert doctest.testmod(lineages).failed == 0


# -- servers -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """Nodes of two servers and of a volunteer, each with its identity."""
    started, addresses = [], []
    for name in ("first", "second", "volunteer"):
        identity = Identity(tmp_path_factory.mktemp(name))
        dht = start_dht(RUN, identity, initial_peers=addresses, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        addresses = addresses or full_addresses(dht)
        started.append(SimpleNamespace(identity=identity, dht=dht))
    yield started
    for node in started:
        node.dht.shutdown()


@pytest.fixture
def nodes(started, tmp_path, monkeypatch):
    """The same nodes in another run each time, with new state folders."""
    monkeypatch.setattr(server_lineage, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(belonging, "PATIENCE_SECONDS", 1.0)
    run_id = f"demo-{next(RUNS)}"
    monkeypatch.setattr(sys.modules[__name__], "RUN", RUN.model_copy(update={"run_id": run_id}))
    for number, node in enumerate(started):
        node.folder = tmp_path / str(number)
        node.folder.mkdir()
    return started


def serve(node, *trusted, **stored):
    """A server on a node that trusts others."""
    server = ServerLineage(
        node.dht,
        RUN,
        node.identity,
        node.folder,
        servers=Servers([full_addresses(other.dht)[0] for other in trusted]),
        tell=lambda text: server_said.append(text),
        **stored,
    )
    return server


server_said: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_said():
    server_said.clear()


def say(node, lineage, epoch):
    post_lineage(node.dht, RUN.run_id, LineageMessage(lineage=lineage, epoch=epoch), node.identity)


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def record(lineage, epoch, peer_id="volunteer"):
    return SimpleNamespace(lineage=lineage.id, epoch=epoch, peer_id=peer_id)


@pytest.mark.swarm
def test_servers_have_one_lineage_and_keep_it(nodes):
    first, second, _ = nodes
    one = serve(first)
    other = serve(second, first)
    assert one.lineage == other.lineage and one.epoch == 0
    assert not one.renew([record(one.lineage, 7), record(B, 9)])
    until(lambda: LineageMessage(lineage=one.lineage, epoch=7, signer=str(first.identity.peer_id)) in said_to(second))
    again = serve(first)
    assert (again.lineage, again.epoch) == (one.lineage, 7)
    assert one.servers == [str(first.identity.peer_id)] and len(other.servers) == 2


def said_to(node):
    return posted_lineages(node.dht, RUN.run_id)


@pytest.mark.swarm
def test_a_server_that_has_lost_its_folder_takes_over_the_run_that_is_there(nodes):
    first, second, volunteer = nodes
    begun, theirs = serve(first), B.branch(30)
    say(volunteer, theirs, 50)
    until(lambda: any(one.lineage == theirs for one in said_to(first)))
    assert not begun.renew([record(theirs, 50), record(C, 90)])  # nobody knows who is right
    there = [record(theirs, 49), record(theirs, 50, str(volunteer.identity.peer_id)), record(C, 90)]
    assert begun.renew(there) and (begun.lineage, begun.epoch) == (theirs, 50)
    assert not begun.renew([]) and "From now on" in server_said[-1]
    stored = serve(second, stored=C, stored_epoch=40)
    assert (stored.lineage, stored.epoch) == (C, 40)  # it has something to lose
    assert not stored.renew([record(B, 60)])


@pytest.mark.swarm
def test_a_word_of_a_stranger_takes_over_no_run_without_updates(nodes):
    first, second, volunteer = nodes
    begun = serve(first)
    say(volunteer, Lineage(id="f" * 16, ancestors=((B.id, 5),)), RUN.schedule.total_epochs)
    until(lambda: len(said_to(first)) == 2 and len(said_to(second)) == 2)
    assert not begun.renew([])
    assert serve(second, first).lineage == begun.lineage and not server_said


@pytest.mark.swarm
def test_a_word_of_a_stranger_makes_no_run_older_than_it_is(nodes):
    first, second, volunteer = nodes
    say(first, A, 5)
    say(second, A, RUN.schedule.total_epochs)
    until(lambda: len(said_to(volunteer)) == 2)
    assert join(volunteer, first)[0].newest_epoch() == 5
    assert join(volunteer)[0].newest_epoch() == RUN.schedule.total_epochs  # no server says anything
    say(second, A, RUN.schedule.total_epochs + 1)
    until(lambda: any(one.epoch > RUN.schedule.total_epochs for one in said_to(volunteer)))
    assert join(volunteer)[0].newest_epoch() == 5


@pytest.mark.swarm
def test_an_order_to_go_back_is_followed_by_those_who_trust_the_server_that_has_it(nodes):
    first, second, volunteer = nodes
    for node in (first, second):
        keep(node.folder, LineageMessage(lineage=A, epoch=60))
    monitor, bootstrap = serve(first), serve(second)
    branch = A.branch(40)
    keep(first.folder, LineageMessage(lineage=branch, epoch=40), BRANCH_FILE)
    assert monitor.renew([record(A, 61)]) and (monitor.lineage, monitor.epoch) == (branch, 40)
    assert not (first.folder / BRANCH_FILE).exists() and read_kept(first.folder).lineage == branch
    until(lambda: any(one.lineage == branch for one in said_to(second)))
    assert not bootstrap.renew([]) and bootstrap.lineage == A
    assert "give `restore` this server's --state-dir" in server_said[-1]
    trusting = serve(second, first)
    assert trusting.lineage == branch and trusting.epoch == 40
    say(volunteer, A, 90)
    until(lambda: any(one.epoch == 90 for one in said_to(first)))
    assert not monitor.renew([])  # never back to what it has branched off


@pytest.mark.swarm
def test_a_server_goes_on_while_it_cannot_write_its_lineage_and_writes_it_later(nodes):
    first, second, _ = nodes
    keep(first.folder, LineageMessage(lineage=A, epoch=60))
    server, branch = serve(first), A.branch(40)
    keep(first.folder, LineageMessage(lineage=branch, epoch=40), BRANCH_FILE)
    in_the_way = first.folder / STATE_FILE
    in_the_way.unlink()
    in_the_way.mkdir()
    assert server.renew([]) and not server.renew([record(branch, 41)])
    assert len([text for text in server_said if "cannot be written" in text]) == 1
    assert (first.folder / BRANCH_FILE).exists()
    until(lambda: any(one.lineage == branch and one.epoch == 41 for one in said_to(second)))
    in_the_way.rmdir()
    assert not server.renew([])
    assert not (first.folder / BRANCH_FILE).exists() and read_kept(first.folder) == LineageMessage(
        lineage=branch, epoch=41
    )


@pytest.mark.swarm
def test_an_order_to_begin_anew_is_not_undone_by_those_who_train_still(nodes):
    first, _, volunteer = nodes
    keep(first.folder, LineageMessage(lineage=A, epoch=60))
    say(volunteer, A, 61)
    server = serve(first)
    keep(first.folder, LineageMessage(lineage=A.branch(0), epoch=0), BRANCH_FILE)
    assert server.renew([record(A, 61)]) and server.epoch == 0
    assert not server.renew([record(A, 62)]) and server.lineage.descends_from(A.id)


@pytest.mark.swarm
def test_a_server_trusts_the_one_beside_it_and_repeats_the_address_of_its_site(nodes, tmp_path):
    """A volunteer who knows only the bootstrap peer learns where the checkpoints are; a stranger's site is left out."""
    first, second, volunteer = nodes
    post_site(volunteer.dht, RUN.run_id, "http://stranger.example", volunteer.identity)
    beside = tmp_path / "run" / "monitor"  # its state folder, which it has not made yet
    bootstrap = serve(first, beside=beside)
    beside.parent.mkdir()
    beside.symlink_to(second.identity.path.parent)
    monitor = serve(second, first, site="http://run.example")
    until(lambda: posted_sites(first.dht, RUN.run_id, {str(second.identity.peer_id)}))
    assert not bootstrap.renew([record(monitor.lineage, 1)]) and bootstrap.servers == monitor.servers
    until(lambda: posted_sites(volunteer.dht, RUN.run_id, {str(first.identity.peer_id)}))
    assert join(volunteer, first)[0].sites() == ["http://run.example"]
    branch = monitor.lineage.branch(1)
    keep(second.folder, LineageMessage(lineage=branch, epoch=1), BRANCH_FILE)
    monitor.renew([])
    until(lambda: any(one.lineage == branch for one in said_to(first)))
    assert bootstrap.renew([]) and bootstrap.lineage == branch


# -- volunteers --------------------------------------------------------------------------------------------------------


def join(node, *trusted):
    """What a volunteer makes of it, and what it prints."""
    console = Console(record=True, file=(node.folder / "printed").open("w"), width=1000)
    connection = SimpleNamespace(
        dht=node.dht,
        run=RUN,
        identity=node.identity,
        settings=SimpleNamespace(site=None),
        named=frozenset(),
        redial=SimpleNamespace(servers=Servers([full_addresses(other.dht)[0] for other in trusted])),
    )
    notices = Notices(events=EventLog(None), console=console)
    copies = SimpleNamespace(is_second=False, look=lambda: None)
    return Belonging(connection, node.folder, notices, copies), console.export_text


@pytest.mark.swarm
def test_a_newcomer_joins_what_the_servers_say_else_the_longest(nodes):
    first, second, volunteer = nodes
    say(first, A, 5)
    say(second, B, 9)
    until(lambda: len(said_to(volunteer)) == 2)
    one, _ = join(volunteer, first)
    assert one.lineage == A and one.newest_epoch() == 5
    assert join(volunteer)[0].lineage == B
    assert join(volunteer, first, second)[0].lineage == B


@pytest.mark.swarm
def test_a_newcomer_follows_a_word_without_any_volunteer_and_remembers_it(nodes):
    """The DHT has no record: the run is at epoch 7 all the same."""
    first, _, volunteer = nodes
    say(first, A, 7)
    until(lambda: said_to(volunteer))
    one, _ = join(volunteer, first)
    assert (one.lineage, one.newest_epoch()) == (A, 7)
    one.remember(9)
    assert read_kept(volunteer.folder) == LineageMessage(lineage=A, epoch=9)
    say(first, A.branch(3), 3)
    until(lambda: said_to(volunteer)[0].lineage != A)
    _, printed = join(volunteer, first)
    assert "The run has gone back to epoch 3 since you left it at epoch 9" in printed()


@pytest.mark.swarm
def test_a_volunteer_goes_over_to_a_branch_that_a_server_announces_and_to_nothing_else(nodes):
    first, second, volunteer = nodes
    say(first, A, 60)
    until(lambda: said_to(volunteer))
    one, printed = join(volunteer, first)
    branch = A.branch(40)
    say(second, branch, 40)  # a stranger
    until(lambda: len(said_to(volunteer)) == 2)
    one._look(said_to(volunteer))
    assert not one.is_left
    say(first, branch, 40)
    until(lambda: {message.lineage for message in said_to(volunteer)} == {branch})
    one._look(said_to(volunteer))
    assert one.is_left
    one.go_over(61)
    assert one.lineage == branch and not one.is_left
    assert "has gone back to epoch 40: this peer drops its weights of epoch 61" in printed()
    for _ in range(belonging.LOOKS):  # as of a server that has not heard of it
        one._look([message(A, 99, str(first.identity.peer_id))])
    assert not one.is_left


@pytest.mark.swarm
def test_a_look_while_a_volunteer_goes_over_does_not_leave_the_new_lineage_too(nodes, monkeypatch):
    first, _, volunteer = nodes
    say(first, A, 60)
    until(lambda: said_to(volunteer))
    one, _ = join(volunteer, first)
    branch = [message(A.branch(40), 40, str(first.identity.peer_id))]

    def look():
        with one.resting:  # as the watching thread does
            one._look(branch)

    looking = threading.Thread(target=look, daemon=True)

    def look_meanwhile(_notices, _text):
        looking.start()
        looking.join(0.2)

    one._look(branch)
    assert one.is_left
    monkeypatch.setattr(Notices, "warn", look_meanwhile)
    one.go_over(61)
    looking.join(10)
    assert not looking.is_alive() and one.lineage == branch[0].lineage and not one.is_left


@pytest.mark.swarm
def test_a_volunteer_of_a_lineage_that_no_server_announces_goes_over_when_it_is_sure(nodes):
    first, _, volunteer = nodes
    signer = str(first.identity.peer_id)
    say(first, A, 5)
    until(lambda: said_to(volunteer))
    one, _ = join(volunteer, first)
    for others in (
        [message(B, 9, "stranger")],
        [message(B, 0, signer)],
        [message(B, 9, signer), message(A, 5, signer)],
    ):
        for _ in range(belonging.LOOKS):
            one._look(others)
        assert not one.is_left
    for _ in range(belonging.LOOKS):
        assert not one.is_left
        one._look([message(B, 9, signer)])
    assert one.is_left


@pytest.mark.swarm
def test_junk_in_the_network_is_not_a_lineage(nodes):
    first, second, volunteer = nodes
    post_message(second.dht, f"{RUN.run_id}_lineage", "x" * 300, second.identity)
    post_message(first.dht, f"{RUN.run_id}_lineage", "no lineage at all", first.identity)
    time.sleep(0.5)
    assert said_to(volunteer) == []


@pytest.mark.swarm
def test_two_lineages_in_one_network_never_average_together(tmp_path):
    (met,) = meet(tmp_path, [scenarios.train_apart])
    for facts in met.values():
        assert len(facts["apart"]) >= 3
        assert all((report.senders, report.others, report.fault) == (1, 0, None) for report in facts["apart"])
    assert met["second"]["downloads"] == [False, True]  # from nobody of its own lineage, and from the first
    joined = next(report for report in met["second"]["together"] if report.senders == 2)
    assert joined.epoch > met["first"]["apart"][-1].epoch
