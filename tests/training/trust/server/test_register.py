"""The register: who is in, who is out, and what is never lost or changed."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import threading
from types import SimpleNamespace

import pytest

from tests.training.trust.tickets import NOW, OTHER_PEER, PEER, ticket
from training.errors import BadInput
from training.trust.bans import MOST_BANS
from training.trust.refusals import Refusal
from training.trust.reports import Check, Findings
from training.trust.server.ledger import MOST_REPORTS, REGISTER_FILE, REGISTER_VERSION
from training.trust.server.moderation import Moderation
from training.trust.server.register import FORGOTTEN_AFTER_SECONDS, Admission
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
    admission = Admission(account=account, standing=standing, **more)
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


@pytest.mark.parametrize("label", ["", "Ada", "a b", "a.1", "x" * 41, "[/]", "ada\n"])
def test_names_of_invitations_are_plain(register, label):
    with pytest.raises(BadInput, match="cannot be an invitation's name"):
        register.invite(label, uses=1, seconds=DAY, who="mo")


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


@pytest.mark.parametrize("uses", [1, 2])
@pytest.mark.parametrize("banned", [False, True])
def test_the_name_of_an_invitation_that_is_over_is_not_given_again_to_others(register, clock, uses, banned):
    """The account of who takes it up would be an earlier member's."""
    account = admit(register, "", code=register.invite("class", uses=uses, seconds=DAY, who="mo"))
    assert account == ("invited:class.1" if uses > 1 else "invited:class")
    register.invite("class-2", uses=1, seconds=DAY, who="mo")  # the account of another name
    if banned:
        register.remove(account, who="mo")
        register.ban(account, reason="", who="mo")
    clock.now += DAY
    register.forget()
    with pytest.raises(BadInput, match="an invitation or a member class already"):
        register.invite("class", uses=3, seconds=DAY, who="mo")


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


def test_who_was_removed_can_still_be_banned_with_all_peers(register):
    admit(register)
    register.remove("hf:ada", who="mo")
    register.ban("hf:ada", reason="", who="mo")
    assert set(register.ban_list().until) == {"hf:ada", PEER}
    assert refused(admit, register, "hf:bo") == "banned"


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


def test_somebody_who_never_came_can_be_banned_by_the_full_name(register):
    assert register.ban("hf:eve", reason="", who="mo") == "hf:eve"
    assert refused(admit, register, "hf:eve", OTHER_PEER) == "banned"
    register.ban(PEER, reason="", who="mo")
    assert refused(admit, register, "hf:bo") == "banned"
    register.unban(PEER, who="mo")
    admit(register, "hf:bo")
    with pytest.raises(BadInput, match="There is no member 'eve2'"):
        register.ban("eve2", reason="", who="mo")
    with pytest.raises(BadInput, match="There is no member '%'"):
        register.remove("%", who="mo")


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


def test_of_too_many_bans_the_list_has_as_many_as_it_can(register):
    with register._changing() as connection:
        rows = ((f"hf:{number}", f"hf:{number}", 1, NOW, NOW + number, "") for number in range(1, MOST_BANS + 2))
        connection.executemany("INSERT INTO bans VALUES (?, ?, ?, ?, ?, ?)", rows)
    until = register.ban_list().until
    assert len(until) == MOST_BANS and "hf:1" not in until and f"hf:{MOST_BANS + 1}" in until


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


def test_a_change_that_fails_changes_nothing(register):
    code = register.invite("ada", uses=1, seconds=DAY, who="mo")
    register.ban(PEER, reason="", who="mo")
    assert refused(admit, register, "", code=code) == "banned"
    assert admit(register, "", OTHER_PEER, code=code) == "invited:ada"  # the code was not used up


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


# -- validators' reports -----------------------------------------------------------------------------------------------


def findings(epoch=7, **more):
    return Findings(checks=(Check(epoch=epoch, samples=8, share=0.1, error=0.2),), **{"undeclared": 0, **more})


def suspend(register, about=PEER, found=None):
    return register.suspend(
        about, found or findings(), validator="hf:val", validators_peer=peer(9), spared=("hf:val", "hf:mo")
    )


def test_a_report_suspends_an_account_once_and_is_stored(register, clock):
    admit(register)
    admit(register, peer=OTHER_PEER)
    before = register.ban_list()
    assert suspend(register) == "hf:ada"
    suspended = register.ban_list()
    assert set(suspended.until) == {"hf:ada", PEER, OTHER_PEER} and suspended.version > before.version
    clock.now += 5
    suspend(register, OTHER_PEER, findings(epoch=8))
    assert register.ban_list().version == suspended.version
    (entry,) = [one for one in register.audit() if one["what"] == "suspended"]
    reason = "suspended by the validator hf:val after 1 check of work; `moderate evidence hf:ada` shows them"
    assert (entry["who"], entry["subject"], entry["detail"]) == ("validator hf:val", "hf:ada", reason)
    assert {(one["name"], one["reason"], one["reports"]) for one in register.banned()} == {
        (name, reason, 2) for name in ("hf:ada", PEER, OTHER_PEER)
    }
    account, reports = register.evidence("ada")
    assert account == "hf:ada"
    assert [(one["time"], one["who"], one["peer_id"]) for one in reports] == [
        (NOW, "hf:val", PEER),
        (NOW + 5, "hf:val", OTHER_PEER),
    ]
    assert [Findings.model_validate_json(one["detail"]) for one in reports] == [findings(), findings(epoch=8)]


def test_what_a_moderator_has_lifted_comes_back_by_new_checks_only(register):
    admit(register)
    suspend(register)
    register.unban("ada", who="mo")
    suspend(register)  # as somebody sends it again who has overheard it
    assert register.banned() == [] and len(register.evidence("ada")[1]) == 1
    suspend(register, found=findings(epoch=9))
    assert register.banned() and len(register.evidence("ada")[1]) == 2


def test_a_moderators_reason_outlives_a_report(register):
    admit(register)
    register.ban("ada", reason="spam", who="mo")
    suspend(register)
    assert {one["reason"] for one in register.banned()} == {"spam"} and len(register.evidence(PEER)[1]) == 1


def test_who_cannot_be_reported_or_may_not_report(register):
    admit(register)
    admit(register, "hf:mo", OTHER_PEER)
    assert refused(suspend, register, peer(1)) == "malformed"  # nobody knows it
    assert refused(suspend, register, OTHER_PEER) == "about-validator"
    for name in ("hf:val", peer(9)):
        register.ban(name, reason="", who="mo")
        assert refused(suspend, register) == "banned"
        register.unban(name, who="mo")
    assert register.banned() == [] and register.evidence("ada") == ("hf:ada", [])


def test_evidence_is_found_when_its_member_is_gone(register):
    admit(register)
    suspend(register)
    register.unban("ada", who="mo")
    register.remove("ada", who="mo")
    for name in ("ada", "hf:ada", PEER):
        account, reports = register.evidence(name)
        assert account == "hf:ada" and len(reports) == 1
    assert register.evidence("hf:bo") == ("hf:bo", [])
    with pytest.raises(BadInput, match="There is no member 'bo'"):
        register.evidence("bo")


def test_reports_are_not_changed_and_only_the_oldest_go(register):
    admit(register)
    suspend(register)
    with sqlite3.connect(register.path) as connection:
        for change in ("DELETE FROM reports", "UPDATE reports SET who = 'nobody'"):
            with pytest.raises(sqlite3.IntegrityError, match="append only"):
                connection.execute(change)
        rows = ((NOW, "hf:val", "hf:ada", PEER, str(number)) for number in range(MOST_REPORTS))
        connection.executemany("INSERT INTO reports (time, who, account, peer_id, detail) VALUES (?, ?, ?, ?, ?)", rows)
        kept = [detail for (detail,) in connection.execute("SELECT detail FROM reports ORDER BY number")]
    assert kept == [str(number) for number in range(MOST_REPORTS)]


VERSION_1 = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE members (
    account TEXT PRIMARY KEY, standing TEXT NOT NULL, joined INTEGER NOT NULL, shown_until INTEGER, hub_id TEXT
) STRICT;
CREATE TABLE peers (
    peer_id TEXT PRIMARY KEY, account TEXT NOT NULL REFERENCES members (account) ON DELETE CASCADE,
    first_seen INTEGER NOT NULL, ticket_ends INTEGER NOT NULL
) STRICT;
CREATE INDEX peers_of_account ON peers (account);
CREATE TABLE invitations (
    label TEXT PRIMARY KEY, code_hash BLOB NOT NULL UNIQUE, uses INTEGER NOT NULL, used INTEGER NOT NULL,
    expires INTEGER NOT NULL, made INTEGER NOT NULL
) STRICT;
CREATE TABLE bans (
    name TEXT PRIMARY KEY, account TEXT, is_ban INTEGER NOT NULL, since INTEGER NOT NULL,
    listed_until INTEGER NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE TABLE audit (
    number INTEGER PRIMARY KEY, time INTEGER NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL, subject TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit BEGIN SELECT raise(ABORT, 'append only'); END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit BEGIN SELECT raise(ABORT, 'append only'); END;
"""
"""The tables of the releases before validators."""


@pytest.fixture
def old_file(tmp_path):
    """A register of version 1 with a member, a ban and an entry of the log."""
    path = tmp_path / REGISTER_FILE
    path.touch(0o600)
    with sqlite3.connect(path) as connection:
        connection.executescript(f"PRAGMA journal_mode = WAL; {VERSION_1} PRAGMA user_version = 1;")
        connection.execute("INSERT INTO facts VALUES ('run_id', 'demo'), ('version', '17')")
        connection.execute("INSERT INTO members VALUES ('hf:ada', 'vouched', 5, NULL, NULL)")
        connection.execute("INSERT INTO peers VALUES (?, 'hf:ada', 5, ?)", (PEER, NOW + 60))
        connection.execute("INSERT INTO bans VALUES ('hf:eve', 'hf:eve', 1, 5, ?, 'spam')", (NOW + 60,))
        connection.execute("INSERT INTO audit VALUES (1, 5, 'mo', 'banned', 'hf:eve', 'spam')")
    connection.close()
    return path


@pytest.mark.parametrize("run_id", [None, "demo"])  # of `moderate`, and of the server
def test_a_file_of_version_1_gets_reports_and_keeps_the_rest(old_file, clock, run_id):
    register = Moderation(old_file, run_id=run_id, clock=clock)
    assert [(one["account"], one["peers"]) for one in register.members()] == [("hf:ada", 1)]
    assert register.ban_list().version == 17 and set(register.ban_list().until) == {"hf:eve"}
    assert [(one["name"], one["reason"], one["reports"]) for one in register.banned()] == [("hf:eve", "spam", 0)]
    assert [one["what"] for one in register.audit()] == ["banned"]
    suspend(register)
    assert len(Moderation(old_file, clock=clock).evidence("ada")[1]) == 1
    with sqlite3.connect(old_file) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (REGISTER_VERSION,)


def test_a_file_of_version_1_becomes_as_a_new_one(old_file, register):
    Moderation(old_file)

    def made(path):
        with sqlite3.connect(path) as connection:
            statements = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        return {name: re.sub(r"\s+", " ", sql) for name, sql in statements}

    assert made(old_file) == made(register.path)


def test_programs_that_open_an_old_file_at_once_migrate_it_once(old_file):
    failed = []

    def open_it():
        try:
            Moderation(old_file)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_the_file_of_a_newer_release_is_refused(register):
    with sqlite3.connect(register.path) as connection:
        connection.execute(f"PRAGMA user_version = {REGISTER_VERSION + 1}")
    with pytest.raises(BadInput, match=f"has register version {REGISTER_VERSION + 1}; this program knows"):
        Moderation(register.path, run_id="demo")
