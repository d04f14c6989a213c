"""Members whom nobody vouches for count a quarter in averages: many of them may be one person."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

from tests.training.swarm.members import admission, ticket
from tests.training.swarm.node.test_members_only import KEY, offer, start
from training.swarm.defence.clipping import Clipping, centered_clip
from training.swarm.defence.receipts import Scope
from training.swarm.node.admission import Admission
from training.swarm.node.identity import Identity
from training.swarm.peers.groups import UNVOUCHED_SHARE

CLIPPING = Clipping(radius=1.0, iterations=5, weight_over_median=1.0)


@pytest.mark.parametrize(("share", "carried_away"), [(1.0, True), (UNVOUCHED_SHARE, False)])
def test_many_of_them_that_agree_do_not_carry_an_average_away(share, carried_away):
    torch.manual_seed(0)
    honest = [torch.randn(1000) + 1 for _ in range(6)]
    hostile = [torch.randn(1000) - 9 for _ in range(10)]
    average = centered_clip([*honest, *hostile], [1.0] * 16, CLIPPING, [1.0] * 6 + [share] * 10)
    assert bool(average.mean() < -4) is carried_away
    if not carried_away:
        assert (average - torch.stack(honest).mean(0)).norm() < torch.stack(honest).std(0).norm()


def test_who_goes_by_other_standings_signs_another_all_reduce(tmp_path):
    ada, bob = (Identity(tmp_path / name).peer_id for name in ("ada", "bob"))
    scopes = [
        Scope(prefix="p", group_id=b"g", peers=(ada, bob), unvouched=frozenset(unvouched))
        for unvouched in ((), (ada,), (bob,), (ada, bob))
    ]
    assert len({scope.digest for scope in scopes}) == 4
    assert scopes[2].shares == [1.0, UNVOUCHED_SHARE]


def test_only_the_servers_own_word_vouches(tmp_path):
    ada = Identity(tmp_path / "ada")
    own = admission(KEY, ticket(KEY, ada))
    assert own.vouches_for(ticket(KEY, ada))
    assert not own.vouches_for(ticket(KEY, ada, standing="open"))
    assert not own.vouches_for(ticket(KEY, ada, standing="open").replace("open", "vouched")) and not own.vouches_for("")


@pytest.mark.swarm
def test_in_an_average_of_real_peers_they_count_a_quarter(tmp_path):
    with ExitStack() as stack:
        ada = start(stack, tmp_path / "ada", Admission)
        bob = start(stack, tmp_path / "bob", Admission, ada)
        for peer, facts in ((ada, {}), (bob, {"account": "invited:bob", "standing": "open"})):
            peer.tell(ticket(KEY, peer.identity, **facts))
            offer(stack, peer, reduction=CLIPPING)
        rounds = [ada.average(), bob.average()]
        reports = [round_.result(60).report for round_ in rounds]
        assert [report.senders for report in reports] == [2, 2]
        assert [report.weight for report in reports] == [1 + UNVOUCHED_SHARE] * 2
        assert [report.own_share for report in reports] == pytest.approx([0.8, 0.2])
