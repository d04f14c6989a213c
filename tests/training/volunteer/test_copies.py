"""Two processes with one identity: both notice, and the later one takes an identity of its own."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.training.roles import test_peer
from training.swarm.node.identity import Identity
from training.trust.proof import proven_peer_id, voucher_statement
from training.volunteer import copies
from training.volunteer.connection import Connection
from training.volunteer.copies import FIRST_KEY_FILE, LOOK_SECONDS, CopiedIdentity, Copies, own_voucher
from training.volunteer.reporter import TOTAL_FILE
from training.volunteer.settings import PeerSettings

shards, own_run = test_peer.shards, test_peer.own_run


class Board:
    """What lies under the key of one peer id: the word that was posted last. Programs read and write it in turn."""

    def __init__(self, monkeypatch, identity):
        self.now, self.identity, self.word, self.told = 0.0, identity, None, []
        self.own = identity.signer().local_public_key
        monkeypatch.setattr(copies, "posted_messages", lambda dht, key: {self.own: self.word} if self.word else {})
        monkeypatch.setattr(copies, "post_message", lambda dht, key, word, identity: setattr(self, "word", word))

    def program(self):
        tell, clock = self.told.append, lambda: self.now
        return Copies(None, "demo", self.identity, name="ada", tell=tell, clock=clock)

    def pass_time(self, seconds, *programs):
        for _ in range(int(seconds)):
            self.now += 1.0
            for program in programs:
                program.look()


@pytest.fixture
def board(monkeypatch, tmp_path):
    return Board(monkeypatch, Identity(tmp_path))


def test_both_notice_within_a_minute_and_the_later_one_gives_way(board):
    first = board.program()
    board.pass_time(1000, first)
    second = board.program()
    board.pass_time(60, second, first)
    assert second.is_second and not first.is_second
    assert len(board.told) == 2 and "that one began later" in "".join(board.told)
    assert all("counts for ada" in text for text in board.told)
    first.check()


@pytest.mark.parametrize("pause", [0, 5, 1000])
def test_a_restart_is_no_copy(board, pause):
    """The word of the last process still lies there, also of one that was killed."""
    board.pass_time(100, board.program())
    board.pass_time(pause)
    again = board.program()
    board.pass_time(1000, again)
    assert not (again.is_second or board.told)


def test_a_word_that_makes_no_sense_is_nothing(board):
    one = board.program()
    for word in ("", "1", "a b", "1 2 3"):
        board.pass_time(LOOK_SECONDS, one)
        board.word = word
    board.pass_time(60, one)
    assert not (one.is_second or board.told)


def test_the_later_one_begins_anew_as_another_peer_of_the_same_name(board, tmp_path):
    (tmp_path / TOTAL_FILE).write_text("{}")
    (tmp_path / "place").write_text("here")
    one = board.program()
    one.is_second = True
    with pytest.raises(CopiedIdentity):
        one.check(TOTAL_FILE)
    before = board.identity.peer_id
    board.identity._lock.close()
    again = Identity(tmp_path)
    assert again.peer_id != before and not (tmp_path / TOTAL_FILE).exists()
    assert (tmp_path / "place").read_text() == "here"
    facts = dict.fromkeys(("run", "redial", "addresses", "link", "named"))
    assert Connection(settings=PeerSettings(initial_peers=()), identity=again, **facts).name == "ada"
    voucher = own_voucher(tmp_path, "demo", str(again.peer_id), pytest.fail)
    assert proven_peer_id(voucher.key, voucher_statement("demo", str(again.peer_id)), voucher.signature) == str(before)
    assert os.stat(tmp_path / FIRST_KEY_FILE).st_mode & 0o77 == 0


def test_a_copy_of_a_copy_is_vouched_for_by_the_first_key(board, tmp_path):
    first = board.identity.peer_id
    for _ in range(2):
        copy = board.program()
        copy.is_second = True
        with pytest.raises(CopiedIdentity):
            copy.check()
        board.identity._lock.close()
        board.identity = Identity(tmp_path)
    own = str(board.identity.peer_id)
    voucher = own_voucher(tmp_path, "demo", own, pytest.fail)
    assert proven_peer_id(voucher.key, voucher_statement("demo", own), voucher.signature) == str(first)


@pytest.mark.parametrize("content", [b"", b"no key", bytes(range(256))])
def test_a_damaged_first_key_vouches_for_nobody_and_is_told(tmp_path, content):
    assert own_voucher(tmp_path, "demo", "QmAda", pytest.fail) is None
    (tmp_path / FIRST_KEY_FILE).write_bytes(content)
    told = []
    assert own_voucher(tmp_path, "demo", "QmAda", told.append) is None
    assert "counts for a volunteer of its own" in told[0]


@pytest.mark.swarm
@pytest.mark.timeout(900)
def test_a_copied_state_folder_becomes_a_second_peer_of_the_same_name(own_run):
    run = own_run
    run.join("ada")
    run.event("ada", "epoch")
    first = run.event("ada", "joined")["peer_id"]
    shutil.copytree(run.folder / "ada", run.folder / "copy", ignore=shutil.ignore_patterns("lock", "kept"))
    run.join("copy", "--name", "ada")
    run.event("copy", "epoch", senders=2)
    second = run.events("copy", "joined")[-1]
    assert second["peer_id"] != first and second["name"] == "ada"
    assert "this one began later, and takes an identity of its own" in run.log("copy")
    assert "that one began later" in run.log("ada")
