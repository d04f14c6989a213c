"""The exchange drawn on the page, beside a simulation with numbers and the published count of bytes."""

from __future__ import annotations

import random

import pytest

from calculator.figures.rules.all_reduce import direct_steps, held_after, ring_steps, sent_share

WAYS = {"ring": ring_steps, "direct": direct_steps}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("peers", range(2, 9))
def test_all_peers_end_with_the_exact_sum(way, peers):
    vectors = [
        [random.Random(100 * peer + part).randint(-1000, 1000) for part in range(peers)] for peer in range(peers)
    ]
    sums = [sum(column) for column in zip(*vectors, strict=True)]
    sent = [0] * peers
    received = [0] * peers
    for messages in WAYS[way](peers):
        before = [list(vector) for vector in vectors]
        for message in messages:
            assert message.sender != message.receiver
            value = before[message.sender][message.part]
            vectors[message.receiver][message.part] = (
                value if message.whole else vectors[message.receiver][message.part] + value
            )
            sent[message.sender] += 1
            received[message.receiver] += 1
    assert vectors == [sums] * peers
    assert {count / peers for count in sent + received} == {sent_share(peers)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("peers", [2, 5, 8])
def test_what_is_held_grows_to_everything_and_nothing_is_counted_twice(way, peers):
    """A part is the sum over the peers named as held in it: nobody's value may come in a second time."""
    ones = [[1] * peers for _ in range(peers)]
    for done, messages in enumerate(WAYS[way](peers), start=1):
        before = [list(vector) for vector in ones]
        for message in messages:
            value = before[message.sender][message.part]
            ones[message.receiver][message.part] = (
                value if message.whole else ones[message.receiver][message.part] + value
            )
        assert [[len(part) for part in parts] for parts in held_after(way, peers, done)] == ones
    assert all(len(part) == peers for parts in held_after(way, peers, 99) for part in parts)


def test_bytes_as_published():
    """2 (n - 1) / n of the vector: Patarasuk and Yuan 2009, section 3."""
    assert [sent_share(peers) for peers in (2, 4, 16)] == [1, 1.5, 1.875]
