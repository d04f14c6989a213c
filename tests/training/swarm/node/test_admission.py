"""What a peer lets in: one object checks tickets in all processes of a peer, and its news reach each of them."""

from __future__ import annotations

import multiprocessing
import threading
import time

import pytest

from tests.training.swarm.members import LINEAGE, admission, bans, closed_run, over, ticket
from training.recipe import RECIPES, parse_recipe
from training.swarm.node import admission as admissions
from training.swarm.node.admission import Admission, admission_of
from training.swarm.node.identity import Identity
from training.trust.bans import MOST_BANS
from training.trust.check import TicketRefused
from training.trust.keys import MembershipKey

KEY = MembershipKey.begin()


@pytest.fixture(scope="module")
def ada(tmp_path_factory):
    return Identity(tmp_path_factory.mktemp("ada"))


@pytest.fixture(scope="module")
def eve(tmp_path_factory):
    return Identity(tmp_path_factory.mktemp("eve"))


def fault(let_in, text, peer, *, trains=True):
    """Why a ticket is refused; None if it holds."""
    try:
        let_in.check(text, str(peer.peer_id), trains=trains)
    except TicketRefused as refused:
        return refused.fault
    return None


def test_an_open_run_has_none():
    run = parse_recipe((RECIPES / "demo.toml").read_text())
    assert Admission.of(run) is None and admission_of(object()) is None
    assert Admission.of(closed_run(KEY)).public_key == KEY.public


def test_members_are_let_in_and_nobody_else(ada, eve):
    let_in = admission(KEY)
    assert fault(let_in, ticket(KEY, ada), ada) is None
    assert fault(let_in, ticket(KEY, ada).encode(), ada) is None
    assert fault(let_in, ticket(KEY, ada), eve) == "other peer"
    assert fault(let_in, over(KEY, ada), ada) == "expired"
    assert fault(let_in, ticket(KEY, ada, run_id="another"), ada) == "other run"
    assert fault(let_in, ticket(MembershipKey.begin(), ada), ada) == "malformed"
    for junk in (None, 7, "", b"", b"\xff", ["x"], "x" * 10**6, {"a": 1}):
        assert fault(let_in, junk, ada) == "malformed"


def test_a_newcomer_that_knows_no_lineage_stores_records_and_does_not_train(ada):
    unbound = ticket(KEY, ada, lineage="-")
    assert fault(admission(KEY), unbound, ada, trains=False) is None
    assert fault(admission(KEY), unbound, ada) == "other lineage"
    assert fault(admission(KEY, lineages=[]), ticket(KEY, ada), ada) == "other lineage"


def in_another_process(work):
    """Forks a process that does some work when it is told, and returns how to tell it; the answer is the result."""
    here, there = multiprocessing.get_context("fork").Pipe()

    def serve():
        while there.recv():
            there.send(work())

    multiprocessing.get_context("fork").Process(target=serve, daemon=True).start()

    def tell():
        here.send(True)
        assert here.poll(10)
        return here.recv()

    return tell


def test_news_reach_processes_that_were_forked_before(ada):
    let_in, text = admission(KEY), ticket(KEY, ada)
    look = in_another_process(lambda: (let_in.own_ticket, fault(let_in, text, ada)))
    assert look() == ("", None)
    let_in.tell(own_ticket="mine", lineages=[LINEAGE])
    assert look() == ("mine", None)
    let_in.tell(own_ticket="mine", lineages=[LINEAGE], bans=bans("invited:ada"))
    assert look() == ("mine", "banned")
    let_in.tell(own_ticket="mine", lineages=[LINEAGE], bans=bans(str(ada.peer_id), version=2))
    assert look() == ("mine", "banned")
    let_in.tell(own_ticket="mine", lineages=[LINEAGE], bans=bans("invited:bo", version=3))
    assert look() == ("mine", None)
    let_in.tell(own_ticket="mine", lineages=["b" * 16])
    assert look() == ("mine", "other lineage")


def test_the_longest_ban_list_has_room(ada):
    let_in = admission(KEY)
    names = [f"open:{'x' * 90}{number:06}" for number in range(MOST_BANS - 1)]
    let_in.tell(own_ticket="x" * 1000, lineages=[LINEAGE], bans=bans("invited:ada", *names))
    look = in_another_process(lambda: fault(let_in, ticket(KEY, ada), ada))
    assert look() == "banned"


def test_a_reader_never_sees_half_of_the_news(ada):
    """While a thread writes news of two sizes, each reader sees one or the other."""
    let_in = admission(KEY)
    many = bans(*(f"open:{number}" for number in range(3000)))

    def looks():
        return {(news.own_ticket, news.bans is None) for news in (let_in.news for _ in range(2000))}

    seen = in_another_process(looks)
    stop = threading.Event()

    def write():
        while not stop.is_set():
            let_in.tell(own_ticket="short", lineages=[LINEAGE])
            let_in.tell(own_ticket="long", lineages=[LINEAGE], bans=many)
            stop.wait(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert seen() <= {("", True), ("short", True), ("long", False)}
    finally:
        stop.set()
        writer.join()
    assert seen() == {("long", False)}


def test_for_some_seconds_others_may_not_have_heard_of_a_ban(ada, monkeypatch):
    let_in = admission(KEY)
    let_in.tell(own_ticket="", lineages=[LINEAGE], bans=bans("invited:ada"))
    with pytest.raises(TicketRefused) as refused:
        let_in.check(ticket(KEY, ada), str(ada.peer_id), trains=True)
    assert let_in.may_be_late_news(refused.value)
    assert not let_in.may_be_late_news(TicketRefused("other peer", ""))
    later = time.monotonic() + admissions.LATE_NEWS_SECONDS
    monkeypatch.setattr(admissions.time, "monotonic", lambda: later)
    assert not let_in.may_be_late_news(refused.value)
