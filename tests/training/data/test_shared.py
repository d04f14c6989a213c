"""A pass that peers share: each sample is taken once, by whoever is there; what peers leave behind is taken up."""

import json
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.data import shared as shared_module
from training.data.order import Order, Place
from training.data.ranges import Ranges
from training.data.shared import (
    CLAIM_SECONDS,
    HORIZON_SAMPLES,
    LATE_SECONDS,
    MOST_CLAIMS,
    REPORT_SECONDS,
    SETTLE_SECONDS,
    STALE_SECONDS,
    Ledger,
    SharedPass,
    Word,
)

ORDER = Order([16] * 64, window_samples=32)
SAMPLES = ORDER.samples


class Air:
    """What peers announce, at once; and a clock."""

    def __init__(self):
        self.words, self.now = {}, 1000.0


class Board:
    """A peer's place in the air; it is cut off while `fault` is set."""

    def __init__(self, air, peer):
        self.air, self.peer, self.fault = air, peer, None

    def look(self):
        if self.fault is not None:
            raise self.fault
        return [word for name, word in self.air.words.items() if name != self.peer]

    def post(self, word):
        if self.fault is not None:
            raise self.fault
        self.air.words[self.peer] = word


class Peer:
    """A peer that computes what it is asked to."""

    def __init__(self, air, name, *, file=None, order=ORDER):
        self.air, self.told, self.order = air, [], order
        self.board = Board(air, name)
        self.ledger = Ledger(order, seed=5, peer=name, chance=random.Random(name))
        self.shared = SharedPass(self.ledger, self.board, file=file, tell=self.told.append, now=lambda: air.now)
        self.piece, self.computed = None, []

    def step(self):
        return self.shared.step()

    def compute(self, count, *, insists=False):
        """Computes so many samples, if it has them or takes them without asking; they enter an update."""
        while count > 0 and (self.piece or self.ledger.claims or insists):
            begin, end = self.piece or self.shared.piece(0)
            stop = min(end, begin + count)
            self.computed += range(begin, stop)
            count -= stop - begin
            self.piece = (stop, end) if stop < end else None
            self.reach(stop)

    def reach(self, sample):
        finished, position = divmod(sample, self.order.samples)
        self.shared.reached(Place(seed=5, finished_passes=finished, position=position))


@pytest.fixture
def air():
    return Air()


def turn(air, peers, seconds=SETTLE_SECONDS):
    for peer in peers:
        peer.step()
    air.now += seconds


def settle(air, *peers):
    for _ in range(3):
        turn(air, peers)


# -- the order ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 900), st.integers(0, 900), st.sampled_from([1, 90, 500]))
@settings(max_examples=40, deadline=None)
def test_parts_of_an_order_are_parts_of_it(begin, length, window):
    order = Order([40] * 11 + [7], window_samples=window)
    whole = []
    for one in order.windows(Place(seed=3)):
        whole += [(one.blocks[at], row) for at, row in one.picks.tolist()]
        if len(whole) >= begin + length:
            break
    found = []
    for one in order.between(3, begin, begin + length):
        found += [(one.blocks[at], row) for at, row in one.picks.tolist()]
        assert set(range(len(one.blocks))) == set(one.picks[:, 0].tolist())  # no block that nobody needs
    assert found == whole[begin : begin + length]


def test_windows_are_found_by_their_samples():
    order = Order([40] * 11 + [7], window_samples=90)
    begin = 0
    for window, _ in zip(order.windows(Place(seed=3)), range(15), strict=False):
        end = begin + len(window.picks)
        for sample in (begin, end - 1):
            assert order.window_around(3, sample) == (begin, end)
        begin = end
    assert begin > order.samples


def test_a_large_set_is_cut_into_as_many_windows_as_are_asked_for():
    order = Order([256] * 100_000, window_samples=8192)
    cut = order.in_windows(4096)
    ends = {cut.window_around(1, sample)[1] for sample in range(0, order.samples, 1000)}
    assert 4096 <= len(ends) <= 1.2 * 4096
    assert order.in_windows(10).largest_window == 8192  # never more than the peer mixes


# -- one peer, and two -------------------------------------------------------------------------------------------------


def test_a_peer_alone_takes_each_sample_once_and_then_goes_on_with_the_next_pass(air):
    peer = Peer(air, "ada")
    while len(peer.computed) < SAMPLES + 100:
        turn(air, [peer])
        peer.compute(50)
    assert sorted(peer.computed[:SAMPLES]) == list(range(SAMPLES))
    assert len(set(peer.computed)) == len(peer.computed)
    assert peer.ledger.done.floor >= SAMPLES and 0 < peer.shared.share_done < 0.5


def test_of_two_that_wish_for_the_same_the_lower_id_gets_it(air):
    order = Order([16], window_samples=16)
    ada, bob = (Peer(air, name, order=order) for name in ("ada", "bob"))
    for peer in (bob, ada):  # each has looked before the other has said anything
        peer.ledger.hear([], air.now)
        peer.ledger.wish(16, least=16)
    assert Ranges(ada.ledger.wishes) == Ranges(bob.ledger.wishes) == Ranges([(0, 16)])
    words = [peer.ledger.word(air.now + CLAIM_SECONDS) for peer in (ada, bob)]
    for peer in (ada, bob):
        peer.ledger.hear(words, air.now)
        peer.ledger.keep()
    assert Ranges(ada.ledger.claims) == Ranges([(0, 16)]) and not bob.ledger.claims


def test_what_is_claimed_stays_with_whoever_has_claimed_it(air):
    ada, bob = Peer(air, "ada"), Peer(air, "bob")
    settle(air, bob)
    claimed = [*bob.ledger.claims]
    ada.ledger.wishes = list(claimed)  # by a look that was late
    ada.step()
    assert claimed and not set(claimed) & set(ada.ledger.claims)


def test_a_set_of_a_few_samples_is_passed_again_and_again(air):
    order = Order([8, 8], window_samples=8)
    ada, bob = (Peer(air, name, order=order) for name in ("ada", "bob"))
    while min(len(ada.computed), len(bob.computed)) < 1000:
        turn(air, [ada, bob])
        ada.compute(90)
        bob.compute(90)
    assert max(Counter(ada.computed + bob.computed).values()) == 1
    assert ada.ledger.done.floor > 40 * order.samples


def test_two_peers_share_a_pass(air):
    ada, bob = Peer(air, "ada"), Peer(air, "bob")
    settle(air, ada, bob)
    while len(ada.computed) + len(bob.computed) < SAMPLES:
        turn(air, [ada, bob])
        ada.compute(3)
        bob.compute(30)
    counts = Counter(ada.computed + bob.computed)
    assert max(counts.values()) == 1
    assert len([sample for sample in counts if sample < SAMPLES]) > 0.9 * SAMPLES
    assert 5 * len(ada.computed) < len(bob.computed)


# -- leaving, dying, coming back ---------------------------------------------------------------------------------------


def everything_done(air, peers, most=2000):
    for _ in range(most):
        turn(air, peers)
        for peer in peers:
            peer.compute(10)
        if all(peer.ledger.done.floor >= SAMPLES for peer in peers):
            return
    raise AssertionError("the pass does not end")


def test_a_killed_peers_claim_ends_and_somebody_goes_on_where_it_stopped(air):
    ada, bob = Peer(air, "ada"), Peer(air, "bob")
    settle(air, ada, bob)
    ada.compute(20)
    ada.step()
    bob_before = [*bob.ledger.claims]
    held = Ranges([*ada.ledger.given, *ada.ledger.claims])
    air.now += CLAIM_SECONDS - 1
    bob.step()
    bob.step()
    assert not set(map(tuple, held)) & set(bob.ledger.claims) and bob_before
    everything_done(air, [bob])
    counts = Counter(ada.computed + bob.computed)
    assert sorted(sample for sample in counts if sample < SAMPLES) == list(range(SAMPLES))
    assert max(counts.values()) == 1  # what it had announced is not done again


@pytest.mark.parametrize("silent_seconds", [LATE_SECONDS - 3, LATE_SECONDS + 1])
def test_at_the_end_of_a_pass_others_take_what_a_silent_peer_holds(air, silent_seconds):
    """Before that, its claims are its own for as long as it said; and its pieces come before those of the next pass."""
    ada, bob = Peer(air, "ada"), Peer(air, "bob")
    settle(air, bob, ada)
    held = {sample for piece in (*bob.ledger.given, *bob.ledger.claims) for sample in range(*piece)}
    ada.ledger.done.update([(0, min(held)), (max(held) + 1, SAMPLES)])
    air.now += silent_seconds
    ada.step()
    wished = {sample for piece in (*ada.ledger.wishes, *ada.ledger.claims) for sample in range(*piece)}
    assert held and bool(held & wished) == (silent_seconds > LATE_SECONDS)
    for _ in range(3):
        turn(air, [ada])
    passes = [begin // SAMPLES for begin, _ in ada.ledger.claims]
    assert passes == sorted(passes)


def test_a_newcomer_takes_little_until_its_speed_is_known(air):
    """At the end of a pass, all others would wait for the last piece of one that is slow."""
    order = Order([256] * 1000, window_samples=8192)
    ada = Peer(air, "ada", order=order)
    for number in range(9):
        lie(air, claims=[(order.samples - 1 - number, order.samples - number)], name=str(number))
    ada.step()
    assert 8 <= sum(end - begin for begin, end in ada.ledger.wishes) <= order.samples / 10 / 10 / 8
    while ada.ledger.computed < 20_000:
        ada.compute(2000)
        turn(air, [ada], seconds=REPORT_SECONDS)
        for number in range(9):
            lie(air, claims=[(order.samples - 1 - number, order.samples - number)], name=str(number))
    ada.shared.step()
    assert sum(end - begin for begin, end in ada.ledger.claims) > 2000


def test_who_leaves_gives_its_claims_back_at_once(air):
    ada, bob = Peer(air, "ada"), Peer(air, "bob")
    settle(air, ada, bob)
    ada.compute(4)
    held = Ranges([*ada.ledger.given, *ada.ledger.claims])
    ada.shared.close()
    bob.step()
    assert bob.ledger.peers == 1
    everything_done(air, [bob])
    assert held.total and max(Counter(ada.computed + bob.computed).values()) == 1


def test_what_a_peer_has_done_survives_it(air):
    """Its word is gone when carol comes; bob has heard it and says so himself."""
    ada, bob = Peer(air, "ada"), Peer(air, "bob")
    settle(air, ada, bob)
    ada.compute(60)
    ada.shared.close()
    bob.step()
    del air.words["ada"]
    air.now += 2 * CLAIM_SECONDS
    carol = Peer(air, "carol")
    carol.step()
    assert ada.computed and carol.ledger.done == Ranges((sample, sample + 1) for sample in ada.computed)


def test_a_restarted_peer_goes_on_in_the_middle_of_its_piece(air, tmp_path):
    ada = Peer(air, "ada", file=tmp_path / "kept")
    settle(air, ada)
    ada.compute(9)
    held = [*ada.ledger.given, *ada.ledger.claims]
    again = Peer(air, "ada", file=tmp_path / "kept")
    again.step()
    assert [*again.ledger.claims][: len(held)] == held
    assert again.ledger.done.total == 9


def test_a_restarted_peer_does_not_repeat_what_others_have_taken_up(air, tmp_path):
    ada, bob = Peer(air, "ada", file=tmp_path / "kept"), Peer(air, "bob")
    settle(air, ada, bob)
    ada.compute(9)
    ada.step()
    air.now += 2 * CLAIM_SECONDS
    everything_done(air, [bob])
    again = Peer(air, "ada", file=tmp_path / "kept")
    settle(air, again)
    again.compute(200)
    assert max(Counter(ada.computed + bob.computed + again.computed).values()) == 1


@pytest.mark.parametrize(
    "content", ["", "{}", '{"order": "x", "seed": 5, "done": [[0, 9]], "held": []}', "[1]", "null"]
)
def test_a_file_that_cannot_be_used_is_ignored(air, tmp_path, content):
    (tmp_path / "kept").write_text(content)
    assert Peer(air, "ada", file=tmp_path / "kept").ledger.done.total == 0


def test_a_full_disk_is_told_once(air, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_module, "write_whole", full)
    ada = Peer(air, "ada", file=tmp_path / "kept")
    settle(air, ada)
    assert len(ada.told) == 1 and "no space left on device. After a restart, this peer asks the others" in ada.told[0]


def test_the_file_is_json_of_this_order(air, tmp_path):
    ada = Peer(air, "ada", file=tmp_path / "kept")
    settle(air, ada)
    kept = json.loads((tmp_path / "kept").read_text())
    assert kept["order"] == ORDER.digest and kept["held"]


# -- peers that cannot be reached, and that lie ------------------------------------------------------------------------


def test_who_cannot_reach_the_others_goes_on_and_shares_again_later(air):
    ada, bob = Peer(air, "ada"), Peer(air, "bob")
    settle(air, ada, bob)
    ada.board.fault = TimeoutError("no answer")
    for _ in range(6):
        turn(air, [ada, bob], seconds=REPORT_SECONDS)
        ada.compute(40, insists=True)
        bob.compute(40)
    assert len(ada.computed) >= 200
    ada.board.fault = None
    everything_done(air, [ada, bob])
    assert [words.split(" (")[0] for words in ada.told] == [
        "The other peers cannot be asked which samples are taken",
        "The other peers answer again: this peer shares the pass over the samples with them.",
    ]
    # Its random place may be one where the others were.
    assert sum(Counter(ada.computed + bob.computed).values()) - len(set(ada.computed + bob.computed)) < SAMPLES / 4


def lie(air, *, done=(), claims=(), until=CLAIM_SECONDS, name="0"):
    word = Word(peer=name, done=Ranges(done), claims=tuple(claims), wishes=(), claimed_until=air.now + until)
    air.words[name] = word


def test_who_claims_everything_holds_little(air):
    lie(air, claims=[(0, 10**15)] * 99)
    bob = Peer(air, "bob")
    settle(air, bob)
    assert bob.ledger.claims and ORDER.largest_window <= min(bob.ledger.claims)[0] < SAMPLES / 2
    lie(air, claims=[(at * 32, at * 32 + 32) for at in range(2 * MOST_CLAIMS)])
    assert Ranges.pack(bob.ledger._pieces(air.words.values(), "claims"), 9) == [0, MOST_CLAIMS * 32]


def test_a_claim_that_lasts_too_long_does_not_count(air):
    lie(air, claims=[(0, 32)], until=10 * CLAIM_SECONDS)
    bob = Peer(air, "bob")
    settle(air, bob)
    assert (0, 1) not in Ranges(bob.ledger.claims).gaps(0, 1) or bob.ledger.peers == 1


def test_a_claim_whose_peer_does_not_come_further_ends(air):
    bob = Peer(air, "bob")
    for _ in range(int(STALE_SECONDS / REPORT_SECONDS) + 2):
        lie(air, claims=[(0, 32)])
        turn(air, [bob], seconds=REPORT_SECONDS)
    assert bob.ledger.peers == 1
    lie(air, claims=[(3, 32)])
    turn(air, [bob])
    assert bob.ledger.peers == 2


def test_a_liar_leads_nobody_further_than_the_horizon(air):
    """At one look, if a third of the others may lie."""
    honest = [Peer(air, name) for name in ("ada", "bob", "carol")]
    settle(air, *honest)
    lie(air, done=[(0, 10**15)])
    honest[0].step()
    assert honest[0].ledger.done == Ranges([(0, HORIZON_SAMPLES)])


# -- a swarm -----------------------------------------------------------------------------------------------------------


def test_a_swarm_with_leavers_and_joiners_repeats_little(air):
    """Twenty peers, of whom six leave or are killed while six others come."""
    order = Order([16] * 4096, window_samples=32)
    chance = random.Random(1)
    peers = [Peer(air, f"{number:02d}", order=order) for number in range(20)]
    everybody, rates = list(peers), {}
    due = {peer: air.now for peer in peers}
    seen = np.zeros(order.samples, dtype=int)
    while not seen.all():
        air.now += 1.0
        for peer in list(peers):
            if air.now >= due[peer]:
                due[peer] = air.now + peer.step()
            before = len(peer.computed)
            peer.compute(rates.setdefault(peer, chance.choice([5, 10, 40])))
            for sample in peer.computed[before:]:
                if sample < order.samples:
                    seen[sample] += 1
        if int(air.now) % 25 == 0 and len(everybody) < 26:
            peers.remove(gone := chance.choice(peers))
            if chance.random() < 0.5:
                gone.shared.close()
            everybody.append(Peer(air, f"{len(everybody):02d}", order=order))
            peers.append(everybody[-1])
            due[peers[-1]] = air.now
    computed = sum(len(peer.computed) for peer in everybody)
    early = computed - order.samples  # of the next pass, or once more
    assert len(everybody) == 26 and early / order.samples < 0.08
