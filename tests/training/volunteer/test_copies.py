"""Two processes with one identity: both notice, and the later one takes an identity of its own."""

from __future__ import annotations

import shutil

import pytest

from tests.training.roles import test_peer
from training.swarm.node.identity import Identity
from training.volunteer import copies
from training.volunteer.connection import Connection
from training.volunteer.copies import LOOK_SECONDS, CopiedIdentity, Copies
from training.volunteer.reporter import TOTALS_FILE
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
    (tmp_path / TOTALS_FILE).write_text("{}")
    (tmp_path / "place").write_text("here")
    one = board.program()
    one.is_second = True
    with pytest.raises(CopiedIdentity):
        one.check(TOTALS_FILE)
    before = board.identity.peer_id
    board.identity._lock.close()
    again = Identity(tmp_path)
    assert again.peer_id != before and not (tmp_path / TOTALS_FILE).exists()
    assert (tmp_path / "place").read_text() == "here"
    facts = dict.fromkeys(("run", "redial", "addresses", "link", "named"))
    assert Connection(settings=PeerSettings(initial_peers=()), identity=again, **facts).name == "ada"


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
