"""What peers tell a group: our own messages come through, and anything else is one kind of error."""

import math
from contextlib import suppress

import pytest
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import PeerID
from hivemind.utils.serializer import MSGPackSerializer
from hypothesis import given
from hypothesis import strategies as st

from tests.training.swarm.played import nested
from training.swarm.engine import engine
from training.swarm.round.gathering import (
    FASTEST_MBITS,
    MOST_BYTES,
    SLOWEST_MBITS,
    FormedGroup,
    GroupMessage,
    NonsenseError,
    bandwidths,
    renewed,
    shares,
)

engine.prepare()
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9) | st.binary()
ANYTHING = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4), max_leaves=9)


def read(peers, gathered):
    """A group as a leader names it."""
    return FormedGroup.read(FormedGroup(peers=tuple(peers), messages=tuple(gathered)).message())


def message(mbits=100.0, client_mode=False, announcement=None):
    return GroupMessage(mbits=mbits, client_mode=client_mode, announcement=announcement)


@given(st.none() | st.floats(0, 1e9), st.booleans(), st.lists(st.integers(0, 99)))
def test_our_messages_come_through(mbits, mode, announcement):
    packed = message(mbits, mode, announcement).packed()
    assert GroupMessage.read(packed) == GroupMessage.read(renewed(packed)) == message(mbits, mode, announcement)
    assert len({packed, renewed(packed), message(mbits, mode, announcement).packed()}) == 3


@given(ANYTHING | st.tuples(*[ANYTHING] * 5).map(list))
def test_other_words_are_refused_or_harmless(said):
    packed = MSGPackSerializer.dumps(said)
    try:
        announcement = GroupMessage.read(packed)
    except NonsenseError:
        return
    assert len(packed) <= MOST_BYTES
    assert bandwidths([announcement])[0] in (announcement.mbits, 0.0, SLOWEST_MBITS, FASTEST_MBITS)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_words(packed):
    with suppress(NonsenseError):
        GroupMessage.read(packed)


@pytest.mark.parametrize("mbits", ["fast", math.nan, math.inf, -1.0, True, [1.0]])
def test_a_bandwidth_is_a_number(mbits):
    with pytest.raises(NonsenseError):
        GroupMessage.read(message(mbits).packed())


@pytest.mark.parametrize("announcement", [nested(505), [nested(4)], {"a": nested(4)}, DictionaryDHTValue(1)])
def test_what_is_nested_or_of_another_type_is_refused(announcement):
    """It would go to the trainer with the result of a round, which must be pickled for that."""
    with pytest.raises(NonsenseError, match="nested too deeply, or of an unknown type"):
        GroupMessage.read(message(announcement=announcement).packed())
    assert GroupMessage.read(message(announcement=nested(3)).packed()).announcement == nested(3)


def test_a_peer_that_claims_to_be_fast_does_not_get_all_of_the_reduction():
    """hivemind's share is proportional to the square of it, or so: the others would get nothing."""
    honest = [message(mbits) for mbits in (80.0, 100.0, 120.0)]
    assert bandwidths([*honest, message(1e12)]) == [80.0, 100.0, 120.0, 1600.0]
    assert bandwidths([message(None), message(50.0, True)]) == [None, 0.0]


MBITS = st.none() | st.just(0.0) | st.floats(0, 1e300) | st.floats(-320, 9).map(lambda power: 10.0**power)


@given(st.lists(st.tuples(MBITS, st.booleans()), min_size=2, max_size=12))
def test_whatever_links_peers_claim_all_values_are_averaged_by_those_that_can(claims):
    """hivemind's linear program has no solution for some of them; then it gives all the same, or fails."""
    group = [message(mbits, mode) for mbits, mode in claims]
    ids, packed = [PeerID(bytes([number])) for number in range(len(group))], [one.packed() for one in group]
    if all(one.client_mode or one.mbits == 0 for one in group):
        with pytest.raises(NonsenseError, match="nobody averages"):
            read(ids, packed)
        return
    read(ids, packed)
    found = shares(1000, group)
    assert sum(found) == 1000 and min(found) >= 0
    for share, one in zip(found, group, strict=True):
        assert not share or (not one.client_mode and one.mbits != 0)


def test_a_peer_that_claims_to_be_slow_takes_nobody_elses_work():
    honest, slow = [message(100.0)] * 3, message(5e-324)
    assert shares(999, [*honest, slow]) == [333, 333, 333, 0]
    assert shares(999, [*honest, message(90.0, True), slow]) == [333, 333, 333, 0, 0]


def test_a_leader_names_each_member_once_with_words_that_make_sense():
    ada, alan, packed = PeerID(b"ada"), PeerID(b"alan"), message().packed()
    read([ada, alan], [packed, packed])
    for peers, gathered in (([ada, ada], [packed, packed]), ([ada], [b"?"]), ([PeerID(bytes(65))], [packed])):
        with pytest.raises(NonsenseError):
            read(peers, gathered)


def test_a_group_is_named_by_its_members_their_order_and_their_words():
    """A leader that tells its followers different things of a member puts them into different groups."""
    ada, alan = PeerID(b"ada"), PeerID(b"alan")
    one, other = message().packed(), message(client_mode=True).packed()
    groups = [([ada, alan], [one, other]), ([alan, ada], [one, other]), ([ada, alan], [one, renewed(other)])]
    names = [read(*group).group_id for group in groups]
    assert len(set(names)) == 3 and names == [read(*group).group_id for group in groups]
