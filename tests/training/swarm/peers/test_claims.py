"""What peers tell of their progress counts as far as they bring it to averages."""

import pytest
from hivemind.dht import DHT
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time

from tests.training.swarm.played import averaged
from training.swarm.peers.claims import FORGIVEN_AVERAGES, MEETINGS, MOST_BROKEN, Claims, Ending
from training.swarm.peers.progress import Progress, Source, seconds_until

TARGET, ADA, EVE = 64, b"ada", b"eve"


@pytest.fixture
def claims():
    return Claims(TARGET)


def end(claims, epoch, *, told=(20, 20), brought=(20, 20), leaders=(), away=(), peers=3):
    """An epoch that ends, and its average; the numbers are of Ada and Eve."""
    told = dict(zip((ADA, EVE), told, strict=True))
    came = {peer: samples for peer, samples in zip((ADA, EVE), brought, strict=True) if peer not in away}
    present = frozenset([ADA, EVE, *(str(number).encode() for number in range(3, peers))])
    claims.note_end(epoch, Ending(told=told, leaders=frozenset(leaders), present=present))
    claims.note_average(epoch, brought=came, members=list(came), own_samples=20)


def test_a_peer_that_brings_what_it_told_is_believed_whatever_it_brings(claims):
    for epoch, samples in enumerate((20, 1, 64, 0, 300)):
        end(claims, epoch, told=(20, min(samples, TARGET)), brought=(20, samples))
        assert claims.share(EVE) == claims.share(ADA) == 1.0 and claims.may_lead(EVE)


def test_a_peer_that_had_to_pause_is_believed(claims):
    end(claims, 0, told=(20, 40), brought=(20, 22))
    assert claims.share(EVE) == 1.0


def test_of_a_peer_that_told_too_much_what_it_brought_counts_and_it_is_believed_later_each_time(claims):
    epoch = 0
    for averages in (1, 2, 3):
        end(claims, epoch, told=(20, TARGET), brought=(20, 4))
        for _ in range(averages):
            assert claims.share(EVE) == 4 / TARGET and not claims.may_lead(EVE)
            epoch += 1
            end(claims, epoch)
        assert claims.share(EVE) == 1.0 and claims.may_lead(EVE)
        epoch += 1
    assert claims.share(ADA) == 1.0


def test_one_broken_word_is_forgotten_after_many_kept_ones(claims):
    for epoch in (0, 1):
        end(claims, epoch, told=(20, TARGET), brought=(20, 4))
    for epoch in range(2, 2 + FORGIVEN_AVERAGES):
        end(claims, epoch)
    end(claims, 50, told=(20, TARGET), brought=(20, 4))  # the second one again, not the third
    end(claims, 51)
    assert claims.share(EVE) < 1.0
    end(claims, 52)
    assert claims.share(EVE) == 1.0


def test_a_peer_whom_the_others_leave_behind_believes_everybody_again(claims):
    end(claims, 0, told=(20, TARGET), brought=(20, 4), leaders=[EVE])
    claims.believe_all()
    assert claims.share(EVE) == 1.0 and claims.may_lead(EVE)


def test_who_ends_an_epoch_too_early_leads_nobody_any_more_but_its_samples_count(claims):
    end(claims, 0, told=(4, 4), brought=(4, 4), leaders=[EVE])
    assert not claims.may_lead(EVE) and claims.may_lead(ADA) and claims.share(EVE) == 1.0


def test_who_falls_short_again_and_again_is_believed_again(claims):
    for epoch in range(40):
        end(claims, epoch, told=(20, TARGET), brought=(20, 4))
    for epoch in range(40, 40 + MOST_BROKEN):
        assert claims.share(EVE) < 1.0
        end(claims, epoch)
    assert claims.share(EVE) == 1.0


def test_a_peer_that_sees_nobodys_samples_believes_who_comes_again(claims):
    for epoch in range(8):
        end(claims, epoch, away=[EVE])
    assert claims.share(EVE) == 0.0
    claims.note_end(9, Ending(told={EVE: TARGET}, leaders=frozenset(), present=frozenset([ADA, EVE])))
    claims.note_average(9, brought={}, members=[ADA], lost=[EVE], own_samples=20)
    assert claims.share(EVE) == 0.0  # who is lost on the way has not come
    claims.note_end(10, Ending(told={EVE: TARGET}, leaders=frozenset(), present=frozenset([ADA, EVE])))
    claims.note_average(10, brought={}, members=[ADA, EVE], own_samples=20)
    assert claims.share(EVE) == 1.0 and claims.may_lead(EVE)


@pytest.mark.parametrize(
    "right", [dict(told=(20, 20), brought=(20, 20)), dict(told=(4, 4), brought=(4, 4), peers=9), dict(away=[ADA, EVE])]
)
def test_who_ends_an_epoch_in_time_may_lead_and_so_may_one_whose_group_this_peer_has_missed(claims, right):
    end(claims, 0, **right, leaders=[EVE])
    assert claims.may_lead(EVE)


def test_a_peer_that_comes_to_no_average_counts_for_nothing_until_it_does(claims):
    for epoch in range(2 * int(MEETINGS)):  # Ada is one of two whom it should meet
        assert claims.share(EVE) == 1.0
        end(claims, epoch, away=[EVE])
    assert claims.share(EVE) == 0.0
    end(claims, 9)
    assert claims.share(EVE) == 1.0


def test_in_a_large_run_a_peer_may_be_in_another_group(claims):
    for epoch in range(8 * int(MEETINGS) - 1):
        end(claims, epoch, away=[EVE], peers=9)
        assert claims.share(EVE) == 1.0
    end(claims, 100, away=[EVE], peers=9)
    assert claims.share(EVE) == 0.0


def test_groups_wait_ever_more_rarely_for_a_peer_that_comes_to_no_average(claims):
    awaited = []
    for epoch in range(11):  # at each second one, this peer should have met it
        awaited.append(claims.is_awaited(EVE))
        claims.note_end(epoch, Ending(told={}, leaders=frozenset(), present=frozenset([EVE])))
        claims.note_average(epoch, brought={ADA: 20}, members=[ADA], own_samples=20)
    assert awaited == [True] * 6 + [False] * 2 + [True] * 2 + [False]
    end(claims, 99)
    assert claims.is_awaited(EVE)


def test_what_was_found_out_of_many_peers_is_forgotten_but_of_those_heard_of_last(claims, monkeypatch):
    monkeypatch.setattr("training.swarm.peers.claims.MOST_PEERS", 2)
    end(claims, 0, told=(TARGET, TARGET), brought=(4, 4))
    claims.note_end(1, Ending(told={EVE: TARGET, b"new": 4}, leaders=frozenset(), present=frozenset()))
    claims.note_average(1, brought={EVE: 4, b"new": 4}, members=[EVE, b"new"], own_samples=20)
    assert claims.share(ADA) == 1.0 and claims.share(EVE) < 1.0


def test_sources_that_run_dry_are_left_to_the_others():
    slow, dry = Source(have=10, rate=2, most=64), Source(have=0, rate=1e7, most=20)
    assert seconds_until(64, [slow, dry]) == pytest.approx(17)
    assert seconds_until(64, [slow]) == 27
    assert seconds_until(64, [slow, slow]) == 11
    assert seconds_until(64, [Source(have=64, rate=0, most=64)]) == 0
    assert seconds_until(64, [Source(have=0, rate=0, most=64)]) > 1e9


# -- in a peer's progress ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node():
    dht = DHT(start=True)
    yield dht
    dht.shutdown()


def told(peer_id, *, epoch=3, samples=4, rate=1.0):
    now = get_dht_time()
    value = dict(peer_id=peer_id, epoch=epoch, samples_accumulated=samples, samples_per_second=rate, client_mode=False)
    return ValueWithExpiration(value={**value, "time": now}, expiration_time=now + 30)


LIES = {
    "samples": dict(samples=10**9),
    "speed": dict(rate=9e6),
    "the next epoch": dict(epoch=4),
}


@pytest.mark.swarm
@pytest.mark.parametrize("lie", LIES)
def test_one_liar_ends_one_epoch_and_not_the_next(node, lie):
    progress = Progress(lively_seconds=5.0, dht=node, prefix=lie.replace(" ", "_"), target_batch_size=TARGET)
    progress.report(3, 4)

    def look(lies):
        others = [told(ADA, epoch=epoch), told(b"grace", epoch=epoch), told(EVE, **{"epoch": epoch, **lies})]
        found = [told(node.peer_id.to_bytes(), epoch=epoch), *others]
        progress._global = progress._combine(dict(enumerate(found)))

    epoch = 3
    look({})
    assert not progress.ready_to_update_epoch and 10 < progress.seconds_left < 15
    look(LIES[lie])
    assert progress.ready_to_update_epoch
    members = [PeerID(peer) for peer in (ADA, EVE, b"grace")]
    report = averaged(brought=dict.fromkeys(map(str, members), 4.0)).report
    with progress.end_epoch():
        progress.begin_epoch(4)
    progress.note_average(3, report, members, own_samples=4)
    epoch = 4
    progress.report(4, 4)
    look({**LIES[lie], "epoch": LIES[lie].get("epoch", 3) + 1})
    assert not progress.ready_to_update_epoch and progress.seconds_left > 5
