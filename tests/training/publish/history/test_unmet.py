"""Volunteers who average with nobody are named, and nobody else is."""

from __future__ import annotations

import pytest

from tests.training.publish.history.test_history import Report
from training.publish.history.unmet import UNMET_EPOCHS, Unmet
from training.swarm.node.metrics import PeerRecord

SECONDS = 30.0


def followed(
    *peers: PeerRecord, moves: dict[str, str], epochs: int = 10, seconds_per_epoch: float = 10.0
) -> frozenset[str]:
    """Peers that are named after some epochs in which each peer averages, is alone, or does nothing (was killed)."""
    unmet, named = Unmet(), frozenset()
    for epoch in range(epochs + 1):
        named = unmet.saw(peers, now=epoch * seconds_per_epoch, seconds=SECONDS)
        for peer in peers:
            peer.averaged_epochs += moves[peer.peer_id] == "averages"
            peer.alone_epochs += moves[peer.peer_id] == "alone"
    return named


@pytest.mark.parametrize(
    "moves, named",
    [
        ({"ada": "alone", "bo": "alone"}, {"ada", "bo"}),
        ({"ada": "averages", "bo": "averages", "cy": "alone"}, {"cy"}),
        ({"ada": "averages", "bo": "averages", "cy": "nothing"}, set()),
        ({"ada": "alone", "bo": "nothing"}, set()),  # bo was killed, and its record is still there
        ({"ada": "alone"}, set()),
        ({"ada": "averages", "bo": "averages"}, set()),
    ],
)
def test_who_averages_with_nobody_is_named(moves, named):
    assert followed(*(Report(peer_id=name) for name in moves), moves=moves) == named


def test_a_few_epochs_or_a_short_time_are_not_enough():
    moves = {"ada": "alone", "bo": "alone"}
    peers = [Report(peer_id=name) for name in moves]
    assert followed(*peers, moves=moves, epochs=UNMET_EPOCHS - 1) == set()
    assert followed(*peers, moves=moves, seconds_per_epoch=SECONDS / 11) == set()


def test_one_average_is_enough_not_to_be_named():
    unmet, peers = Unmet(), [Report(peer_id=name) for name in ("ada", "bo", "cy")]
    unmet.saw(peers, now=0, seconds=SECONDS)
    for peer, averaged in zip(peers, (40, 40, 0), strict=True):
        peer.averaged_epochs, peer.alone_epochs = averaged, 40 - averaged
    assert unmet.saw(peers, now=60, seconds=SECONDS) == {"cy"}
    peers[2].averaged_epochs += 1
    assert unmet.saw(peers, now=61, seconds=SECONDS) == set()
