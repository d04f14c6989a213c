"""What peers tell a group: our own words come through, and anything else is one kind of error."""

import math
from contextlib import suppress

import pytest
from hivemind.averaging.allreduce import AveragingMode
from hivemind.p2p import PeerID
from hivemind.utils.serializer import MSGPackSerializer
from hypothesis import given
from hypothesis import strategies as st

from training.swarm import engine
from training.swarm.gathering import (
    FASTEST_MBITS,
    MOST_BYTES,
    NonsenseError,
    Words,
    bandwidths,
    check_members,
    name_of,
    renewed,
)

engine.prepare()
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9) | st.binary()
ANYTHING = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4), max_leaves=9)


def words(mbits=100.0, mode=AveragingMode.NODE, told=None):
    return Words(mbits=mbits, mode=mode, told=told)


@given(st.none() | st.floats(0, 1e9), st.sampled_from(AveragingMode), st.lists(st.integers(0, 99)))
def test_our_words_come_through(mbits, mode, told):
    packed = words(mbits, mode, told).packed()
    assert Words.read(packed) == Words.read(renewed(packed)) == words(mbits, mode, told)
    assert len({packed, renewed(packed), words(mbits, mode, told).packed()}) == 3


@given(ANYTHING | st.tuples(*[ANYTHING] * 5).map(list))
def test_other_words_are_refused_or_harmless(said):
    packed = MSGPackSerializer.dumps(said)
    try:
        read = Words.read(packed)
    except NonsenseError:
        return
    assert len(packed) <= MOST_BYTES and bandwidths([read])[0] in (read.mbits, 0.0, FASTEST_MBITS)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_words(packed):
    with suppress(NonsenseError):
        Words.read(packed)


@pytest.mark.parametrize("mbits", ["fast", math.nan, math.inf, -1.0, True, [1.0]])
def test_a_bandwidth_is_a_number(mbits):
    with pytest.raises(NonsenseError):
        Words.read(words(mbits).packed())


def test_a_peer_that_claims_to_be_fast_does_not_get_all_of_the_reduction():
    """hivemind's share is proportional to the square of it, or so: the others would get nothing."""
    honest = [words(mbits) for mbits in (80.0, 100.0, 120.0)]
    assert bandwidths([*honest, words(1e12)]) == [80.0, 100.0, 120.0, 1600.0]
    assert bandwidths([words(None), words(50.0, AveragingMode.CLIENT)]) == [None, 0.0]


def test_a_leader_names_each_member_once_with_words_that_make_sense():
    ada, alan, packed = PeerID(b"ada"), PeerID(b"alan"), words().packed()
    check_members([ada, alan], [packed, packed])
    for peers, gathered in (([ada, ada], [packed, packed]), ([ada], [packed, packed]), ([ada], [b"?"])):
        with pytest.raises(NonsenseError):
            check_members(peers, gathered)


def test_a_group_is_named_by_its_members_their_order_and_their_words():
    ada, alan = PeerID(b"ada"), PeerID(b"alan")
    one, other = words().packed(), words(mode=AveragingMode.CLIENT).packed()
    groups = [([ada, alan], [one, other]), ([alan, ada], [one, other]), ([ada, alan], [one, renewed(other)])]
    names = [name_of(*group) for group in groups]
    assert len(set(names)) == 3 and names == [name_of(*group) for group in groups]
