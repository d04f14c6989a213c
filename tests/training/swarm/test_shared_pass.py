"""Words on a shared pass in a real DHT: they reach the others as they were said, and nonsense reaches nobody."""

from itertools import count
from types import SimpleNamespace

import pytest
from hivemind.utils import get_dht_time

from tests.programs import until
from training.config import load_recipe
from training.data.ranges import Ranges
from training.data.shared import MOST_CLAIMS, MOST_RANGES, Word
from training.swarm.dht import full_addresses, start_dht
from training.swarm.identity import Identity
from training.swarm.shared_pass import PassBoard

RUN = load_recipe("demo")
ORDER = "0123456789abcdef"
later = count(700, 5)
"""Seconds until a record expires: a node keeps the one that expires last."""


@pytest.fixture(scope="module")
def peers(tmp_path_factory):
    """Two nodes, each with its board."""
    found, known = [], []
    for name in ("ada", "bob"):
        identity = Identity(tmp_path_factory.mktemp(name))
        dht = start_dht(RUN, identity, initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        known = full_addresses(dht)
        board = PassBoard(dht, identity, prefix="demo", order=ORDER)
        found.append(SimpleNamespace(dht=dht, identity=identity, board=board))
    yield found
    for peer in found:
        peer.dht.shutdown()


def word_of(peer, **changes):
    told = {"done": Ranges([(0, 9), (20, 30)]), "claims": ((30, 40),), "wishes": ((50, 60),)}
    return Word(**{"peer": peer.board.peer, "claimed_until": get_dht_time() + 45.0, **told, **changes})


@pytest.mark.swarm
def test_a_word_reaches_the_others_as_it_was_said(peers):
    """The largest as well: of a hundred million samples, with as many ranges and pieces as may be told."""
    ada, bob = peers
    done = Ranges(
        [(0, 4 * 10**9), *((4 * 10**9 + at * 90_000, 4 * 10**9 + at * 90_000 + 70_000) for at in range(1, 999))]
    )
    pieces = tuple((5 * 10**9 + at * 9000, 5 * 10**9 + at * 9000 + 8192) for at in range(MOST_CLAIMS))
    largest = word_of(ada, done=done, claims=pieces, wishes=pieces)
    for word in (word_of(ada), largest):
        ada.board.post(word)
        packed = Ranges.unpack(word.done.pack(MOST_RANGES))
        expected = word_of(ada, done=packed, claims=word.claims, wishes=word.wishes, claimed_until=word.claimed_until)
        until(lambda expected=expected: bob.board.look() == [expected], within=30)
    assert ada.board.look() == []


@pytest.mark.swarm
def test_words_of_another_order_are_ignored(peers):
    ada, bob = peers
    bob.board.post(word_of(bob))
    until(lambda: len(ada.board.look()) == 1, within=30)
    PassBoard(bob.dht, bob.identity, prefix="demo", order="f" * 16).post(word_of(bob))
    until(lambda: ada.board.look() == [], within=30)


@pytest.mark.swarm
@pytest.mark.parametrize(
    "change",
    [
        {"order": "x"},
        {"order": ORDER + "\n"},
        {"done": [0, -1]},
        {"done": [0, 10**16]},
        {"done": [0, 1] * (MOST_RANGES + 1)},
        {"claims": [0, 1] * (MOST_CLAIMS + 1)},
        {"claims": "everything"},
        {"claimed_until": float("inf")},
    ],
    ids=str,
)
def test_no_node_stores_a_word_that_is_none(peers, change):
    """Only if it is well formed, as the first one is, does a node keep it."""
    ada, _ = peers
    record = {"order": ORDER, "done": [0, 9], "claims": [], "wishes": [], "claimed_until": 1.0}
    where = {"subkey": ada.identity.signer().local_public_key}
    assert ada.dht.store("demo_samples", record, get_dht_time() + next(later), **where)
    assert not ada.dht.store("demo_samples", record | change, get_dht_time() + next(later), **where)


@pytest.mark.swarm
@pytest.mark.parametrize("change", [{"done": [1]}, {"claims": [5]}, {"claims": [5, 5]}, {"wishes": [9, 2]}], ids=str)
def test_numbers_that_are_no_pieces_hide_no_other_word(peers, change):
    ada, bob = peers
    record = {"order": ORDER, "done": [0, 9], "claims": [], "wishes": [], "claimed_until": 1.0} | change
    where = {"subkey": ada.identity.signer().local_public_key}
    bob.board.post(word_of(bob))
    assert ada.dht.store("demo_samples", record, get_dht_time() + next(later), **where)
    until(lambda: bob.board.look() == [], within=30)
    assert [word.peer for word in PassBoard(bob.dht, ada.identity, prefix="demo", order=ORDER).look()] == [
        bob.board.peer
    ]
