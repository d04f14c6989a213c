"""The ticket that a peer holds: got before it meets others, renewed, kept for a restart, and ended by a ban."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.support.programs import until
from tests.support.serving import serving
from tests.training.trust.tickets import Holder
from training.errors import BadInput, RefusedByRun, TrainingError
from training.processes.events import EventLog
from training.processes.notices import Notices
from training.recipe import RECIPES, parse_recipe
from training.swarm.node.admission import Admission
from training.swarm.run.lineage import Lineage
from training.trust import check
from training.trust import member as members
from training.trust.check import TicketRefused
from training.trust.client import Credentials
from training.trust.keys import MembershipKey
from training.trust.member import BANS_FILE, TICKET_FILE, Member
from training.trust.server import app as apps
from training.trust.server.app import create_app
from training.trust.server.desk import Desk
from training.trust.server.ledger import REGISTER_FILE
from training.trust.server.moderation import Moderation
from training.trust.server.policy import Policy
from training.trust.ticket import ANY_LINEAGE

HOLDER, OTHER = Holder(), Holder()
LINEAGE = Lineage(id="a" * 16)
BRANCH = LINEAGE.branch(7)
OPEN = parse_recipe((RECIPES / "demo.toml").read_text())


class World:
    """A membership server that may go away, and the peers of a volunteer."""

    def __init__(self, folder, policy):
        self.folder = folder
        self.register = Moderation(folder / "server" / REGISTER_FILE, run_id="demo")
        self.desk = Desk(self.register, MembershipKey.begin(), policy)
        self.code = self.register.invite("ada", uses=1, seconds=3600, who="mo")
        self.warned, self.console = [], Console(record=True, width=400, file=(folder / "printed").open("w"))
        self.url, self._serving = "", None

    def __enter__(self):
        self._serving = serving(create_app(self.desk, page_token=None))
        url = self._serving.__enter__()
        self.url = self.url or url
        return self

    def __exit__(self, *_):
        self._serving.__exit__(None, None, None)

    def member(self, state="peer", *, holder=HOLDER, **credentials):
        """A peer with its first ticket; `admission` is told what it hears."""
        text = (RECIPES / "demo.toml").read_text()
        text += f'[membership]\nkey = "{self.desk.key.public}"\nurl = "{self.url}"\n'
        notices = SimpleNamespace(warn=self.warned.append, tell=partial(self.console.print, markup=False))
        folder = self.folder / state
        folder.mkdir(exist_ok=True)
        run = parse_recipe(text)
        admission = Admission.of(run)
        peer = Member(run, holder, Credentials(**credentials), admission, folder, notices)
        peer.admission = admission
        return peer

    def printed(self):
        return self.console.export_text(clear=False)


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setattr(members, "BANS_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(apps, "LIMITS", {})
    return World(tmp_path, Policy())


def test_in_an_open_run_there_is_nothing_to_hold(tmp_path):
    console = Console(record=True, width=400, file=(tmp_path / "printed").open("w"))
    notices = Notices(events=EventLog(None), console=console)
    for credentials in (Credentials(), Credentials(invitation="x")):
        peer = Member(OPEN, HOLDER, credentials, None, tmp_path, notices)
        peer.bind(LINEAGE)
        assert (peer.ticket, peer.text, peer.refusal) == (None, None, None)
    assert not (tmp_path / TICKET_FILE).exists()
    assert console.export_text() == "This run is open to all: it asks for no invitation and no token.\n"


def test_a_peer_has_a_ticket_to_meet_others_and_then_one_for_its_lineage(world):
    with world:
        peer = world.member(invitation=world.code)
        assert (peer.ticket.lineage, peer.ticket.account) == (ANY_LINEAGE, "invited:ada")
        assert "You take part as invited:ada, a member who is vouched for." in world.printed()
        peer.bind(LINEAGE)
        assert peer.ticket.lineage == LINEAGE.id
        until(lambda: peer.bans is not None, within=10)
        assert peer.admission.news.server_since is not None
        assert peer.admission.check(peer.text, HOLDER.peer_id, trains=True) == peer.ticket
        before = peer.text
        peer.bind(BRANCH)  # a maintainer has gone back to an earlier epoch
        assert peer.ticket.lineage == BRANCH.id and peer.admission.own_ticket == peer.text
        for text in (before, peer.text):  # another member may not have its new ticket yet
            peer.admission.check(text, HOLDER.peer_id, trains=True)
    assert world.warned == []


def test_a_ticket_is_renewed_before_it_ends(world, monkeypatch):
    monkeypatch.setattr(members, "RENEWED_AT", 0.05)
    world.desk.policy = replace(world.desk.policy, ticket_seconds=20)
    with world:
        peer = world.member(invitation=world.code)
        peer.bind(LINEAGE)
        first = peer.ticket
        until(lambda: peer.ticket.issued >= first.issued + 1, within=10)
        with peer.resting:  # or it would be renewed between these lines
            assert peer.ticket.issued < first.expires and peer.ticket.lineage == LINEAGE.id
            assert (world.folder / "peer" / TICKET_FILE).read_text() == peer.text


def test_a_peer_that_starts_while_the_server_is_away_goes_on_with_its_ticket(world):
    with world:
        before = world.member(invitation=world.code)
        before.bind(LINEAGE)
    again = world.member()
    assert again.text == before.text and again.ticket.lineage == LINEAGE.id
    assert "does not answer" in world.warned[0] and "goes on with its last ticket, until" in world.warned[0]
    again.bind(LINEAGE)
    with pytest.raises(TrainingError, match="does not answer"):
        world.member(state="another", invitation="x")
    with pytest.raises(TrainingError, match="does not answer"):  # the ticket is another peer's
        world.member(holder=OTHER)
    (world.folder / "peer" / TICKET_FILE).write_text(before.text[:-1])
    with pytest.raises(TrainingError):
        world.member()


def test_a_ticket_that_is_over_is_of_no_use(world, monkeypatch):
    with world:
        over = world.member(invitation=world.code).ticket.ends
    monkeypatch.setattr(members, "time", SimpleNamespace(time=lambda: over))
    with pytest.raises(TrainingError):
        world.member()


def test_while_the_server_is_away_a_member_goes_on_and_is_told_once(world, monkeypatch):
    monkeypatch.setattr(members, "RETRY_SECONDS", 0.05)
    with world:
        peer = world.member(invitation=world.code)
    peer.bind(LINEAGE)
    time.sleep(0.5)
    assert peer.refusal is None and peer.ticket.lineage == ANY_LINEAGE
    (told,) = world.warned
    assert "does not answer" in told and "it tries again" in told and "\n" not in told
    assert not peer.is_server_away  # not yet: it has answered a moment ago
    monkeypatch.setattr(check, "AWAY_SECONDS", 0.0)
    assert peer.is_server_away


def test_a_ban_ends_the_membership_within_ten_seconds_and_stops_the_peer(world, monkeypatch):
    monkeypatch.setattr(members, "BANS_EVERY_SECONDS", 5.0)
    stop = SimpleNamespace(asked=False, wait=lambda seconds: False, listen=lambda: None)
    with world:
        peer = world.member(invitation=world.code)
        other = world.member(
            state="other", holder=OTHER, invitation=world.register.invite("bo", uses=1, seconds=9, who="mo")
        )
        peer.bind(LINEAGE)
        other.bind(LINEAGE)
        until_refused = peer.until_refused(stop)
        assert not until_refused.asked
        world.register.ban("ada", reason="", who="mo")
        banned_at = time.monotonic()
        until(lambda: peer.refusal is not None and other.bans is not None and other.bans.until, within=10)
        assert time.monotonic() - banned_at < 10
    assert until_refused.asked and not other.until_refused(stop).asked
    assert "maintainers have banned this account" in peer.refusal.sentence
    with pytest.raises(TicketRefused) as refused:  # the other one believes it no longer
        other.admission.check(peer.text, HOLDER.peer_id, trains=False)
    assert refused.value.fault == "banned"


def test_a_member_that_starts_while_the_server_is_away_still_knows_whom_it_has_banned(world):
    bo = world.register.invite("bo", uses=1, seconds=9, who="mo")
    with world:
        world.member(invitation=world.code).bind(LINEAGE)
        banned = world.member(state="other", holder=OTHER, invitation=bo)
        world.register.ban("bo", reason="", who="mo")
        until(lambda: "invited:bo" in (world.folder / "peer" / BANS_FILE).read_text(), within=10)
    again = world.member()
    with pytest.raises(TicketRefused) as refused:
        again.admission.check(banned.text, OTHER.peer_id, trains=False)
    assert refused.value.fault == "banned"
    kept = (world.folder / "peer" / BANS_FILE).read_text()
    (world.folder / "peer" / BANS_FILE).write_text(kept.replace("invited:bo", "invited:di"))  # nobody has signed this
    assert world.member().bans is None


def test_who_is_refused_at_the_start_does_not_begin(world):
    with world:
        with pytest.raises(RefusedByRun, match="does not know this invitation"):
            world.member(invitation="x")
        with pytest.raises(BadInput, match="is empty, too long, or has characters"):
            world.member(invitation="a b")
        peer = world.member(invitation=world.code)
        world.register.ban("ada", reason="", who="mo")
        with pytest.raises(RefusedByRun, match="have banned"):
            peer.bind(LINEAGE)


def test_the_renewing_thread_rests_while_processes_are_forked(world):
    with world:
        peer = world.member(invitation=world.code)
        peer.bind(LINEAGE)
        until(lambda: peer.bans is not None, within=10)
        with peer.resting:
            asked = threading.Event()
            world.desk.bans = lambda known: asked.set() or ""
            assert not asked.wait(0.5)
        assert asked.wait(10)
