"""A leader that puts a peer into two groups proves that it lies, and no honest one seems to."""

import pytest
from hivemind.averaging.allreduce import AveragingMode
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2

from training.swarm import charters
from training.swarm.auditor import LIE_WEIGHT
from training.swarm.charters import (
    FAULT_WEIGHT,
    FRESH_SECONDS,
    MOST_LIST_BYTES,
    SHOWN_SECONDS,
    START_SECONDS,
    OldListError,
    Requests,
    signature_of,
)
from training.swarm.gathering import NonsenseError, Words, name_of, renewed
from training.swarm.identity import Identity
from training.swarm.receipts import Signer

PREFIX = "demo_gradients"
NOON = 1_000_000.0


class Clock:
    """DHT time of all peers of a test."""

    def __init__(self):
        self.now = NOON

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Of signatures, of this peer, and of its memory."""
    made = Clock()
    monkeypatch.setattr(charters, "get_dht_time", made)
    monkeypatch.setattr(charters.time, "monotonic", made)
    return made


@pytest.fixture(scope="module")
def identities(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identities")
    return {name: Identity(folder / name) for name in ("ada", "bob", "leader", "other")}


@pytest.fixture
def ids(identities):
    return {name: identity.peer_id for name, identity in identities.items()}


@pytest.fixture
def ada(ids, clock):
    """What Ada has asked; she has been there for long."""
    made = Requests(ids["ada"], PREFIX, clock=clock)
    clock.now += 10 * START_SECONDS
    return made


def words():
    return Words(mbits=None, mode=AveragingMode.NODE, told=[7, False, 3]).packed()


def list_of(identities, told, leader="leader", signer=None, prefix=PREFIX):
    """A leader's message: the words that it says of each peer."""
    peers, gathered = [identities[name].peer_id for name in told], list(told.values())
    group_id, own = name_of(peers, gathered), identities[signer or leader]
    return averaging_pb2.MessageFromLeader(
        code=averaging_pb2.BEGIN_ALLREDUCE,
        group_id=group_id,
        ordered_peer_ids=[peer.to_bytes() for peer in peers],
        gathered=gathered,
        suggested_leader=signature_of(Signer(own.public_key, own.sign), prefix, group_id),
    )


def ask(requests, leader):
    sent = words()
    requests.note_sent(leader, sent)
    return sent


def test_a_group_that_all_members_know_is_no_lie(ada, ids, identities):
    told = {"ada": ask(ada, ids["leader"]), "bob": words(), "leader": words()}
    group = list_of(identities, told)
    ada.take(group, ids["leader"])
    assert ada.liar_in(group) is None


def test_a_group_of_which_this_peer_has_not_heard_is_no_lie(ada, ids, identities):
    """The leader's message was lost; perhaps the peer has asked again, and was told of the next group."""
    first = list_of(identities, {"ada": ask(ada, ids["leader"]), "bob": words(), "leader": words()})
    assert ada.liar_in(first) is None
    ada.take(list_of(identities, {"ada": ask(ada, ids["leader"]), "leader": words()}), ids["leader"])
    assert ada.liar_in(first) is None


LIES = {
    "another order": lambda told: dict(reversed(told.items())),
    "another's words": lambda told: {**told, "bob": words()},
    "without another": lambda told: {name: told[name] for name in ("ada", "leader")},
}
MADE_UP = {
    "other words": lambda told: {**told, "ada": words()},
    "another nonce": lambda told: {**told, "ada": renewed(told["ada"])},
}


@pytest.mark.parametrize("lie", LIES)
def test_two_lists_for_one_request_are_a_lie(lie, ada, ids, identities):
    told = {"ada": ask(ada, ids["leader"]), "bob": words(), "leader": words()}
    ada.take(list_of(identities, told), ids["leader"])
    assert ada.liar_in(list_of(identities, LIES[lie](told))) == (ids["leader"], LIE_WEIGHT)


def test_so_are_two_lists_of_which_this_peer_was_told_neither(ada, ids, identities):
    """The leader has asked for the request twice, and uses each follower's other one."""
    told = {"ada": ask(ada, ids["leader"]), "bob": words(), "leader": words()}
    assert ada.liar_in(list_of(identities, told)) is None
    assert ada.liar_in(list_of(identities, {**told, "bob": words()})) == (ids["leader"], LIE_WEIGHT)
    with pytest.raises(NonsenseError, match="two groups at once"):
        ada.take(list_of(identities, {**told, "bob": words()}), ids["leader"])
    ada.take(list_of(identities, told), ids["leader"])


@pytest.mark.parametrize("lie", MADE_UP)
def test_words_that_were_never_sent_are_a_fault(lie, ada, ids, identities):
    """No more than that: an earlier process of this peer may have sent them."""
    told = {"ada": ask(ada, ids["leader"]), "bob": words(), "leader": words()}
    ada.take(list_of(identities, told), ids["leader"])
    assert ada.liar_in(list_of(identities, MADE_UP[lie](told))) == (ids["leader"], FAULT_WEIGHT)


def test_words_that_were_meant_for_another_leader_are_a_fault(ada, ids, identities):
    told = {"ada": ask(ada, ids["other"]), "bob": words(), "leader": words()}
    assert ada.liar_in(list_of(identities, told)) is None  # it was never asked
    ask(ada, ids["leader"])
    assert ada.liar_in(list_of(identities, told)) == (ids["leader"], FAULT_WEIGHT)


def test_nobody_is_blamed_for_what_it_has_not_signed_or_was_never_asked(ada, ids, identities):
    told = {"ada": words(), "bob": words(), "leader": words()}
    assert ada.liar_in(list_of(identities, told)) is None
    for name in ("leader", "bob", "other"):
        ask(ada, ids[name])
    assert ada.liar_in(list_of(identities, told)) == (ids["leader"], FAULT_WEIGHT)
    assert ada.liar_in(list_of(identities, told, signer="other")) is None  # no member
    assert ada.liar_in(list_of(identities, told, signer="bob")) == (ids["bob"], FAULT_WEIGHT)
    assert ada.liar_in(list_of(identities, told, prefix="another run")) is None
    changed = list_of(identities, told)
    changed.gathered[1] = words()
    assert ada.liar_in(changed) is None
    changed.group_id = name_of([PeerID(peer) for peer in changed.ordered_peer_ids], list(changed.gathered))
    assert ada.liar_in(changed) is None
    assert ada.liar_in(list_of(identities, {"bob": words(), "leader": words()})) is None  # names this peer nowhere
    assert ada.liar_in(averaging_pb2.MessageFromLeader(ordered_peer_ids=[ids["ada"].to_bytes()])) is None


def test_a_peer_that_was_there_before_with_another_process_blames_nobody(identities, ids, clock):
    told = {"ada": words(), "leader": words()}
    before = list_of(identities, told)
    clock.now += 1
    again = Requests(ids["ada"], PREFIX, clock=clock)
    ask(again, ids["leader"])
    assert again.liar_in(before) is None
    clock.now += 2 * START_SECONDS
    assert again.liar_in(before) is None
    assert again.liar_in(list_of(identities, told)) == (ids["leader"], FAULT_WEIGHT)


def test_hiveminds_clock_is_looked_up_at_each_call(ids, clock):
    """`clocks` puts another in its place after this module was loaded."""
    requests = Requests(ids["ada"], PREFIX)
    clock.now += 7
    assert requests._clock() == clock.now


def test_old_charters_say_nothing_and_requests_are_remembered_for_longer(ada, ids, identities, clock):
    told = {"ada": ask(ada, ids["leader"]), "bob": words(), "leader": words()}
    group, lie = list_of(identities, told), list_of(identities, {**told, "bob": words()})
    ada.take(group, ids["leader"])
    clock.now += SHOWN_SECONDS - 1
    ask(ada, ids["leader"])
    assert ada.liar_in(group) is None and ada.liar_in(lie) == (ids["leader"], LIE_WEIGHT)
    clock.now += 2
    assert ada.liar_in(lie) is None
    clock.now += 3 * SHOWN_SECONDS
    ask(ada, ids["leader"])
    assert len(ada._sent) == 1


def test_a_list_that_is_unsigned_old_or_signed_by_another_is_refused(ada, ids, identities, clock):
    told = {"ada": ask(ada, ids["leader"]), "bob": words(), "leader": words()}
    unsigned = list_of(identities, told)
    unsigned.suggested_leader = b""
    for group, sentence in [
        (unsigned, "has not signed"),
        (list_of(identities, told, signer="other"), "no member"),
        (list_of(identities, told, signer="bob"), "another one has signed"),
    ]:
        with pytest.raises(NonsenseError, match=sentence):
            ada.take(group, ids["leader"])
    group = list_of(identities, told)
    clock.now += FRESH_SECONDS + 1
    with pytest.raises(OldListError, match="another time"):
        ada.take(group, ids["leader"])


def test_a_list_is_kept_without_what_would_make_it_too_long_to_be_shown(ada, ids, identities):
    told = {"ada": ask(ada, ids["leader"]), "leader": words()}
    group = list_of(identities, told)
    padded = averaging_pb2.MessageFromLeader.FromString(group.SerializeToString() + b"\xfa\x06\x7f" + bytes(127))
    assert padded.ByteSize() > group.ByteSize()
    assert ada.take(padded, ids["leader"]) == group
    long = averaging_pb2.MessageFromLeader()
    long.CopyFrom(group)
    long.ordered_peer_ids[1] = bytes(MOST_LIST_BYTES)
    with pytest.raises(NonsenseError, match="too many members"):
        ada.take(long, ids["leader"])
