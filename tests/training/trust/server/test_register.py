"""The register: who is in, who is out, and what is never lost or changed."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
from types import SimpleNamespace

import pytest

from tests.training.trust.tickets import NOW, OTHER_PEER, PEER, ticket
from training.errors import BadInput
from training.trust.refusals import Refusal
from training.trust.server.ledger import REGISTER_FILE
from training.trust.server.moderation import Moderation
from training.trust.server.register import FORGOTTEN_AFTER_SECONDS, Entrant
from training.trust.ticket import LONGEST_SECONDS

DAY = 86_400


class Clock(SimpleNamespace):
    """A clock that a test sets."""

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock(now=NOW)


@pytest.fixture
def register(tmp_path, clock):
    return Moderation(tmp_path / "state" / REGISTER_FILE, run_id="demo", clock=clock)


def admit(register, account="hf:ada", peer=PEER, *, standing="vouched", hours=7, **more):
    admission = Entrant(account=account, standing=standing, **more)
    return register.admit(admission, peer, ticket_ends=register.now + hours * 3600, most_peers=2)


def refused(what, *values, **more):
    with pytest.raises(Refusal) as refusal:
        what(*values, **more)
    return refusal.value.reason


def peer(number):
    return f"Qm{number:044}".replace("0", "z")


def stored(register):
    """All that is in the file and the files beside it."""
    return b"".join(path.read_bytes() for path in register.path.parent.iterdir())


def test_only_its_owner_can_read_the_files(register):
    admit(register)
    with register._changing() as connection:  # while the file of newest changes is there
        connection.execute("UPDATE members SET joined = joined")
        modes = {path.name: path.stat().st_mode & 0o777 for path in register.path.parent.iterdir()}
    assert set(modes) >= {REGISTER_FILE, f"{REGISTER_FILE}-wal"} and set(modes.values()) == {0o600}
    register.path.chmod(0o644)
    with pytest.raises(BadInput, match="Others can read the register"):
        Moderation(register.path)


def test_an_invitation_admits_so_many_peers_for_so_long(register, clock):
    code = register.invite("ada", uses=1, seconds=DAY, who="mo")
    assert len(code.replace("-", "")) == 24
    assert admit(register, "", code=code) == "invited:ada"
    assert refused(admit, register, "", OTHER_PEER, code=code) == "code-over"
    assert refused(admit, register, "", OTHER_PEER, code=code[:-1]) == "code-unknown"
    several = register.invite("lab", uses=2, seconds=DAY, who="mo")
    assert [admit(register, "", peer(number), code=several.upper()) for number in (1, 2)] == [
        "invited:lab.1",
        "invited:lab.2",
    ]
    assert register.peers() == {"invited:ada": [PEER], "invited:lab.1": [peer(1)], "invited:lab.2": [peer(2)]}
    for name in ("lab", "invited:lab"):
        with pytest.raises(BadInput, match=r"for several. Give one of its members: invited:lab.1, invited:lab.2\.$"):
            register.ban(name, reason="", who="mo")
    late = register.invite("late", uses=1, seconds=DAY, who="mo")
    clock.now += DAY
    assert refused(admit, register, "", OTHER_PEER, code=late) == "code-over"
    assert register.invitations() == []


def test_codes_are_kept_as_hashes_only(register):
    code = register.invite("ada", uses=1, seconds=DAY, who="mo")
    assert code.encode() not in stored(register)
    assert hashlib.sha256(code.encode()).digest() in stored(register)
    assert register.invite("bo", uses=1, seconds=DAY, who="mo") != code


def test_a_name_is_given_once(register):
    code = register.invite("ada", uses=1, seconds=DAY, who="mo")
    with pytest.raises(BadInput, match="an invitation or a member ada already"):
        register.invite("ada", uses=1, seconds=DAY, who="mo")
    admit(register, "", code=code)
    assert register.remove("ada", who="mo") == "invited:ada"
    assert refused(admit, register, "", code=code) == "code-unknown"
    again = register.invite("ada", uses=1, seconds=DAY, who="mo")
    assert register.remove("ada", who="mo") == "the invitation ada"
    assert refused(admit, register, "", code=again) == "code-unknown"


def test_two_who_take_up_the_last_use_at_once_are_one(register):
    code = register.invite("ada", uses=1, seconds=DAY, who="mo")
    outcomes = []

    def take(number):
        try:
            outcomes.append(admit(register, "", peer(number), code=code))
        except Refusal as refusal:
            outcomes.append(refusal.reason)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["code-over"] * 7 + ["invited:ada"]


def test_an_account_has_so_many_peers_at_once(register, clock):
    admit(register, peer=peer(1))
    admit(register, peer=peer(2), hours=8)
    assert refused(admit, register, peer=peer(3)) == "too-many-peers"
    admit(register, peer=peer(2))  # one of those who are there
    clock.now += 7 * 3600
    admit(register, peer=peer(3))


def test_the_banned_get_no_ticket_under_either_name_and_the_list_says_so(register, clock):
    admit(register)
    before = register.ban_list()
    assert register.ban("ada", reason="gradients of 1e30", who="mo") == "hf:ada"
    bans = register.ban_list()
    assert bans.version > before.version
    assert bans.until == {"hf:ada": NOW + LONGEST_SECONDS, PEER: NOW + 7 * 3600}
    assert bans.bars(ticket(issued=NOW)) and not before.bars(ticket(issued=NOW))
    assert refused(admit, register) == "banned"
    assert refused(admit, register, peer=OTHER_PEER) == "banned"
    assert refused(admit, register, "hf:bo") == "banned"  # the same peer, with another account
    clock.now += LONGEST_SECONDS
    assert register.ban_list().until == {}  # nobody has a ticket of theirs any more, but the ban goes on
    assert refused(admit, register) == "banned"
    assert register.unban("ada", who="mo") == "hf:ada"
    admit(register)


def test_who_was_removed_and_comes_back_is_in_again(register):
    admit(register)
    assert register.remove("hf:ada", who="mo") == "hf:ada"
    assert refused(admit, register, renews=True) == "show-again"
    gone = register.ban_list()
    assert gone.until == {"hf:ada": NOW + 7 * 3600, PEER: NOW + 7 * 3600}
    admit(register)
    back = register.ban_list()
    assert back.until == {} and back.version > gone.version


@pytest.mark.parametrize("removed_before", [False, True])
def test_a_ban_holds_under_a_new_name_on_the_hub(register, removed_before):
    admit(register, "hf:eve", hub_id="64a0")
    if removed_before:
        register.remove("eve", who="mo")
    register.ban("hf:eve", reason="", who="mo")
    assert refused(admit, register, "hf:adam", OTHER_PEER, hub_id="64a0") == "banned"
    assert {one["name"] for one in register.banned()} == set(register.ban_list().until) == {"hf:eve", PEER}
    admit(register, "hf:adam", OTHER_PEER, hub_id="64a1")
    register.unban("eve", who="mo")
    admit(register, "hf:adam", peer(1), hub_id="64a0")


def test_a_short_name_that_two_have_is_not_guessed(register):
    admit(register)
    admit(register, "invited:ada", OTHER_PEER)
    with pytest.raises(BadInput, match="may be any of hf:ada, invited:ada"):
        register.ban("ada", reason="", who="mo")
    assert register.ban(OTHER_PEER, reason="", who="mo") == "invited:ada"
    register.ban("hf:ada", reason="", who="mo")
    with pytest.raises(BadInput, match="may be any of hf:ada, invited:ada"):
        register.unban("ada", who="mo")
    assert register.unban(OTHER_PEER, who="mo") == "invited:ada"
    assert register.unban("ada", who="mo") == "hf:ada"


def test_the_version_never_falls_behind_a_backup(register, clock):
    register.ban("hf:eve", reason="", who="mo")
    backup = register.path.with_name("backup.sqlite")
    with sqlite3.connect(register.path) as source, sqlite3.connect(backup) as target:
        source.backup(target)
    backup.chmod(0o600)
    clock.now += 10
    for number in range(5):
        register.ban(f"hf:eve{number}", reason="", who="mo")
    heard = register.ban_list().version
    clock.now += 10
    restored = Moderation(backup, clock=clock)
    restored.ban("hf:mallory", reason="", who="mo")
    assert restored.ban_list().version > heard


def test_what_is_over_is_forgotten_and_members_are_not(register, clock):
    code = register.invite("ada", uses=1, seconds=DAY, who="mo")
    admit(register, "", code=code)
    admit(register, f"open:{peer(1)}", peer(1), standing="open")
    admit(register, "hf:bo", peer(2), shown_until=NOW + DAY)
    admit(register, "hf:cy", peer(3))
    register.remove("hf:cy", who="mo")
    register.ban(f"open:{peer(4)}", reason="", who="mo")
    register.invite("late", uses=1, seconds=DAY, who="mo")
    clock.now += 7 * 3600 + FORGOTTEN_AFTER_SECONDS
    register.forget()
    assert {one["account"]: one["peers"] for one in register.members()} == {"invited:ada": 1, "hf:bo": 0}
    assert register.known(PEER) == {"account": "invited:ada", "standing": "vouched", "must_show": 0}
    assert [one["name"] for one in register.banned()] == [f"open:{peer(4)}"]
    assert register.invitations() == []


def test_the_audit_log_says_who_did_what_and_cannot_be_changed(register, clock):
    code = register.invite("ada", uses=3, seconds=DAY, who="mo")
    admit(register, "", code=code)
    admit(register, f"open:{OTHER_PEER}", OTHER_PEER, standing="open")
    clock.now += 60
    register.ban("ada.1", reason="spam", who="jo")
    register.unban("ada.1", who="jo")
    told = [(one["who"], one["what"], one["subject"], one["detail"]) for one in reversed(register.audit())]
    assert told == [
        ("mo", "invited", "ada", "3 uses until 2027-01-16 08:00"),
        ("server", "joined", "invited:ada.1", PEER),
        ("jo", "banned", "invited:ada.1", "spam"),
        ("jo", "unbanned", "invited:ada.1", ""),
    ]
    assert register.audit()[0]["time"] == NOW + 60
    with sqlite3.connect(register.path) as connection:
        for change in ("DELETE FROM audit", "UPDATE audit SET who = 'nobody'"):
            with pytest.raises(sqlite3.IntegrityError, match="append only"):
                connection.execute(change)


def test_another_runs_register_and_other_files_are_named(register, tmp_path):
    with pytest.raises(BadInput, match="has the members of the run demo, not of other"):
        Moderation(register.path, run_id="other")
    with pytest.raises(BadInput, match=r"members\.sqlite cannot be used: no such file"):
        Moderation(tmp_path / REGISTER_FILE)
    with sqlite3.connect(register.path) as connection:
        connection.execute("PRAGMA user_version = 9")
    with pytest.raises(BadInput, match="has register version 9"):
        Moderation(register.path)
    (tmp_path / "text").write_text("no database at all, but a text of some length\n" * 50)
    (tmp_path / "text").chmod(0o600)
    with pytest.raises(BadInput, match="is no register of members"):
        Moderation(tmp_path / "text", run_id="demo")
    (tmp_path / "empty").touch(0o600)
    with pytest.raises(BadInput, match="register version 0"):
        Moderation(tmp_path / "empty")
