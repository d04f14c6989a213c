"""The exchange of gradients, with averagers that are played: what a peer makes of averages that go wrong."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hivemind.p2p import PeerID
from hivemind.utils import ValueWithExpiration, get_dht_time

from tests.training.swarm.played import averaged
from training.recipe import load_recipe
from training.swarm.engine.process import DHT
from training.swarm.epoch.exchange import Exchange
from training.swarm.epoch.waiting import LeftBehindError
from training.swarm.peers.epochs import EpochEnd
from training.swarm.peers.groups import Announcement, Delay
from training.swarm.peers.progress import Progress
from training.swarm.peers.table import Peers
from training.swarm.round.pipe import Stage
from training.swarm.state.alignment import MOMENTS_UPDATES, TRANSITIONS, Alignment, AlignmentState, Event

SWARM = load_recipe("demo").swarm.model_copy(update={"matchmaking_seconds": 0.01})
SAMPLES = 32
EPOCH_SECONDS = 60.0


@pytest.fixture(scope="module")
def node():
    dht = DHT(start=True)
    yield dht
    dht.shutdown()


NOTED = []
"""What the progress was told of averages."""


class PlayedRound:
    """A round whose group is known before."""

    stage, started, cancelled = Stage.AVERAGING, False, False

    def __init__(self, outcome):
        self.outcome, self.weight = outcome, None

    def start(self, weight, *, cycle_seconds=None, free_seconds=0.0):
        self.started, self.weight = True, weight
        self.cycle, self.free = cycle_seconds, free_seconds

    def done(self):
        return self.started

    def cancel(self):
        self.cancelled = True

    def result(self, timeout=None):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class PlayedAverager:
    """Its rounds come out as told, one after the other; notes what their groups were told."""

    not_finite, is_new = False, True

    def __init__(self, *outcomes):
        self.outcomes, self.rounds, self.told = list(outcomes), [], []

    def look_for_group(self, epoch, *, wants_weights, expected_peers, seconds):
        self.told.append(Announcement(epoch, wants_weights, expected_peers))
        self.rounds.append(PlayedRound(self.outcomes.pop(0)))
        return self.rounds[-1]

    def load_mean(self):
        return SAMPLES


def exchange_of(*outcomes, others=lambda: 1, epochs_apart=0, progress=None, peers=2):
    """A peer's exchange whose rounds come out like this, while so many others train; its averager, its alignment."""
    played = SimpleNamespace(
        lively_peers=peers,
        awaited_peers=peers,
        num_peers=peers,
        give_up=lambda peers: None,
        dht=SimpleNamespace(peer_id=PeerID(b"0")),
        peers=Peers(),
        note_average=lambda *average: NOTED.append(average),
        look_around=lambda: (7, others()),
        look_who_stays=lambda: (7, others()),
        seconds_left=0.0,
        step_seconds=0.0,
        epoch_seconds=EPOCH_SECONDS,
        give_up_the_silent=lambda *seconds, **slow: None,
    )
    averager, alignment = PlayedAverager(*outcomes), AlignmentState()
    exchange = Exchange(SWARM, averager, progress or played, alignment, epochs_apart=epochs_apart)
    return exchange, averager, alignment


def average(exchange, epoch=7):
    end = EpochEnd(epoch=epoch, others=1)
    exchange.finish(exchange.begin(end), end)
    return end


@pytest.mark.parametrize("brought, samples", [({}, None), ({str(PeerID(b"1")): 3.0}, 3.0), ({"another": 3.0}, 0.0)])
def test_what_the_others_have_brought_is_compared_with_their_reports(brought, samples):
    """A peer that averages no part sees nobody's samples."""
    group = averaged([7, False, 0], [7, False, 0], brought=brought, lost=(str(PeerID(b"2")),), group_size=3)
    exchange, _, _ = exchange_of(group)
    end = EpochEnd(epoch=7, others=1, reports={b"1": 4.0})
    exchange.finish(exchange.begin(end), end)
    assert NOTED.pop() == ({b"1": 4.0}, {b"1": samples}, [b"2"])
    assert end.report([]).brought == {str(PeerID(b"1")): (8, samples)}


@pytest.mark.parametrize("others", [1, 2])
@pytest.mark.parametrize("samples", [None, 1.0, 0.8, 1.2])
def test_an_update_of_an_incomplete_group_with_few_samples_is_reported(samples, others):
    """None: the peer averages no part, and sees no samples."""
    target = SWARM.target_batch_size
    weight = samples and samples * target
    exchange, _, _ = exchange_of(averaged(weight=weight, group_size=2))
    end = EpochEnd(epoch=7, others=others)
    exchange.finish(exchange.begin(end), end)
    assert any(f"of {target} samples" in note for note in end.notes) is (samples == 0.8 and others == 2)


def test_a_full_group_of_a_larger_run_is_not_reported_as_incomplete():
    """Each group has a part of the volunteers, and so of the samples."""
    largest, target = SWARM.max_group_size, SWARM.target_batch_size
    noted = []
    for size in (largest, largest - 1):
        exchange, _, _ = exchange_of(averaged(weight=target / 2, group_size=size))
        end = EpochEnd(epoch=7, others=2 * largest - 1)
        exchange.finish(exchange.begin(end), end)
        noted.append(any(f"of {target} samples" in note for note in end.notes))
    assert noted == [False, True]


def test_a_groupmates_samples_are_of_the_epoch_that_it_has_announced():
    """With delayed gradients a group has two epochs."""
    told = [Announcement(epoch, False, 0).packed() for epoch in (7, 6)]
    end = average(exchange_of(averaged(*told, brought={str(PeerID(b"1")): 3.0}), epochs_apart=1)[0])
    assert end.report([]).brought == {str(PeerID(b"1")): (7, 3.0)}


def test_an_average_is_of_the_gradients_of_its_epoch_with_their_weight():
    exchange, averager, alignment = exchange_of(averaged())
    end = average(exchange)
    assert end.round.senders == 2 and end.fault is None and end.samples == SAMPLES
    assert averager.rounds[0].weight == SAMPLES and averager.told == [Announcement(7, False, 2)]
    assert alignment.now is Alignment.ALIGNED and not exchange.under_way and not averager.is_new


def test_a_peer_that_learns_at_the_end_of_an_epoch_that_it_is_behind_does_not_average_it():
    """What shows it is the last average, for which the next one waits where gradients are delayed.

    It would look for a group that the others look for an epoch later, and be nobody's groupmate until then.
    """
    told = [Announcement(epoch, False, 0).packed() for epoch in (7, 9)]  # the first one is the peer's own
    exchange, averager, alignment = exchange_of(averaged(*told))
    assert average(exchange).round is not None and alignment.behind
    end = EpochEnd(epoch=8, others=1, samples=20)
    with pytest.raises(LeftBehindError):
        exchange.begin(end)
    report = end.report([])
    assert report.missed and report.samples == 0 and "others were faster" in report.fault
    assert len(averager.rounds) == 1


@pytest.mark.parametrize("epochs, behind", [([9], True), ([9, 8], False), ([9, 9], True), ([9, 8, 8, 8, 8], False)])
def test_one_of_several_groupmates_alone_does_not_make_a_peer_skip_an_epoch(epochs, behind):
    """It may say at each epoch that it is at the next one."""
    told = [Announcement(epoch, False, 0).packed() for epoch in (8, *epochs)]  # the first one is the peer's own
    exchange, _, alignment = exchange_of(averaged(*told), epochs_apart=1)
    average(exchange, 8)
    assert alignment.behind == behind


@pytest.mark.parametrize("epochs_apart", [0, 1])
def test_a_peer_asks_for_the_weights_of_the_others_once(epochs_apart):
    """And again if the round that they have heard of came to nothing."""
    asked = Announcement(7, True, 2)
    exchange, averager, alignment = exchange_of(
        averaged(asked.packed()), *(averaged() for _ in range(4)), epochs_apart=epochs_apart
    )
    alignment.note(Event.AVERAGE_TORN)
    for epoch in range(7, 12):
        average(exchange, epoch)
    due = 8 + epochs_apart
    assert exchange.parameters_wanted_at == due
    assert [one.wants_weights for one in averager.told] == [not 7 < epoch <= due for epoch in range(7, 12)]
    alignment.note(Event.PARAMETERS_AVERAGED)
    averager.outcomes.append(averaged())
    average(exchange, 12)
    assert not averager.told[-1].wants_weights


def test_a_torn_average_leaves_other_weights_and_says_so():
    exchange, _, alignment = exchange_of(averaged(torn=True, group_size=3, lost=("one",)))
    assert "lost in the middle" in average(exchange).fault and alignment.drifted


@pytest.mark.parametrize("peers, drifted", [(3, False), (4, True), (5, True)])
def test_a_group_without_the_majority_may_not_be_the_only_one(peers, drifted):
    """The others may have averaged as well, with other gradients."""
    exchange, _, alignment = exchange_of(averaged(group_size=2), peers=peers)
    end = average(exchange)
    assert alignment.drifted is drifted and end.fault is None
    assert [f"2 of {peers} volunteers" in note for note in end.notes] == [True] * drifted


def test_those_that_only_say_that_they_train_cost_few_rounds_of_parameters():
    """Three of six come to no average. When they are here, or gone, the others ask once more."""
    half, whole = averaged(group_size=3), averaged(group_size=6)
    exchange, _, alignment = exchange_of(*[half] * 30, whole, whole, peers=6)
    asked = []
    for number in range(1, 33):
        notes = " ".join(average(exchange).notes)
        if alignment.drifted:
            asked.append(number)
        assert ("asks for a round of parameters" in notes) is alignment.drifted, notes
        alignment.note(Event.PARAMETERS_AVERAGED)
    assert asked == [1, 2, 4, 8, 16, 31]


def test_a_repeated_average_and_numbers_that_are_not_finite_are_noted():
    exchange, _, alignment = exchange_of(averaged(group_size=3, repeated=1, lost=("one",), refused=("two",)))
    end = average(exchange)
    assert end.fault is None and "2 of 3 have averaged again" in end.notes[0] and "what two sent" in end.notes[1]
    assert alignment.now is Alignment.ALIGNED


def test_without_an_average_the_peer_says_why_and_goes_on():
    exchange, averager, alignment = exchange_of(RuntimeError("the wire is cut"))
    end = average(exchange)
    assert end.fault == "the wire is cut" and end.round is None and averager.rounds[0].cancelled
    assert end.report([]).alone and alignment.now is Alignment.ALIGNED and not exchange.under_way


def test_a_peer_whose_groupmates_are_all_lost_averages_with_those_who_are_left():
    alone = averaged(senders=1, bytes_sent=3, lost=("one that left",))
    exchange, averager, _ = exchange_of(alone, averaged(bytes_sent=20))
    report = average(exchange).round
    assert (report.senders, report.bytes_sent, report.bytes_received) == (2, 23, 2)
    assert [round_.weight for round_ in averager.rounds] == [SAMPLES] * 2
    assert [one.epoch for one in averager.told] == [7, 7]
    exchange, averager, _ = exchange_of(alone, others=lambda: 0)
    assert average(exchange).round.senders == 1 and len(averager.rounds) == 1


def test_an_average_with_those_who_have_no_weight_is_one():
    """Of three one died; the two that were left have averaged again, one of them without weight."""
    exchange, averager, _ = exchange_of(averaged(senders=1, group_size=3, lost=("dead",)))
    assert average(exchange).round.senders == 1 and len(averager.rounds) == 1


@pytest.mark.swarm
@pytest.mark.parametrize("lives", [True, False])
def test_a_groupmate_that_knew_nothing_of_the_group_is_not_taken_for_dead(lives, node):
    """It lives, and looks for a group: the next one is with it. Without an answer it is not waited for."""
    other = PeerID(b"other")
    progress = Progress(matchmaking_seconds=10.0, dht=node, prefix="run", target_batch_size=64)
    facts = {"epoch": 7, "samples_accumulated": 32, "samples_per_second": 10.0, "client_mode": False}
    facts |= {"time": get_dht_time() - 1, "counted_at": get_dht_time() - 1, "step_samples": 4}
    told = {"peer_id": other.to_bytes(), **facts}
    records = {"other": ValueWithExpiration(value=told, expiration_time=get_dht_time() + 30)}
    progress._look = lambda: records
    progress._global = replace(progress._global, num_peers=2)
    alone = averaged(senders=1, lost=(str(other),), absent=(str(other),) if lives else ())
    exchange, _, _ = exchange_of(alone, averaged(), progress=progress)
    assert average(exchange).round.senders == (2 if lives else 1)


def test_a_group_that_this_peer_cannot_serve_gets_its_parts_without_weight():
    """Without them it would wait, and repeat the average."""
    exchange, averager, _ = exchange_of(averaged())
    exchange.look_for_group_early(7)
    averager.rounds[0].stage = Stage.WAITING
    exchange.leave_group()
    assert averager.rounds[0].weight == 0.0


def test_a_search_without_a_group_is_given_up():
    exchange, averager, _ = exchange_of(averaged())
    exchange.look_for_group_early(7)
    averager.rounds[0].stage = Stage.SEARCHING
    exchange.leave_group()
    assert averager.rounds[0].weight is None and averager.rounds[0].cancelled


def test_every_event_leads_somewhere_from_every_state():
    assert TRANSITIONS.keys() == set(Event)
    assert all(leads_to.keys() == set(Alignment) for leads_to in TRANSITIONS.values())


def test_a_peer_that_is_behind_has_no_weights_of_the_others_until_it_took_them():
    """A round of parameters that it was part of before brings weights of an epoch that is over."""
    alignment = AlignmentState()
    seen = []
    for event in (Event.OVERTAKEN, Event.PARAMETERS_AVERAGED, Event.SKIPPED_EPOCHS, Event.PARAMETERS_AVERAGED):
        alignment.note(event)
        seen.append(alignment.now)
    assert seen == [Alignment.BEHIND, Alignment.BEHIND, Alignment.DRIFTED, Alignment.ALIGNED]


def test_weights_count_little_until_the_moments_have_the_updates_that_the_peer_skipped():
    """And until a round of parameters after that: chaos, seed 82, found weights that wrong moments had moved by 4 %."""
    alignment = AlignmentState()
    alignment.note(Event.SKIPPED_EPOCHS)
    alignment.note(Event.PARAMETERS_AVERAGED)
    assert alignment.now is Alignment.ALIGNED
    lacked = []
    for _ in range(MOMENTS_UPDATES):
        lacked.append(alignment.lacks_updates)
        alignment.updated()
    assert all(lacked) and alignment.lacks_updates and alignment.may_differ and not alignment.drifted
    alignment.note(Event.PARAMETERS_AVERAGED)
    alignment.updated()
    assert not alignment.lacks_updates
    alignment.note(Event.SKIPPED_EPOCHS)
    alignment.note(Event.LOADED_STATE)  # with the moments
    assert not alignment.lacks_updates


@pytest.mark.parametrize("other, drifted", [([8, False, 2], False), ([8, True, 0], False), ([8, False, 0], True)])
def test_a_peer_that_made_an_update_alone_asks_for_weights_unless_only_newcomers_have_come(other, drifted):
    """They have downloaded its weights, so a round would cost all of them and change nothing; the others have made
    another update."""
    met = averaged(Announcement(8, False, 0).packed(), other)
    exchange, averager, alignment = exchange_of(RuntimeError("no group"), met, averaged())
    average(exchange, 7)
    assert not alignment.drifted and not averager.is_new
    average(exchange, 8)
    assert alignment.drifted is drifted


def test_an_average_knows_how_much_time_it_is_worth():
    """An epoch; waiting in the background costs nothing for as long."""
    exchange, averager, _ = exchange_of(averaged())
    average(exchange, 7)
    assert (averager.rounds[0].cycle, averager.rounds[0].free) == (EPOCH_SECONDS, 0)
    exchange, averager, _ = exchange_of(averaged(), epochs_apart=1)
    average(exchange, 7)
    assert averager.rounds[0].free == averager.rounds[0].cycle == EPOCH_SECONDS


def test_a_slow_peer_costs_no_more_than_the_time_that_the_training_stood_still():
    """With delayed gradients peers compute while they average."""
    slow = averaged(delays={str(PeerID(b"1")): Delay(4.0, 0.01)})
    exchange, _, _ = exchange_of(*[slow] * 9)
    assert not any("costs" in " ".join(average(exchange).notes) for _ in range(9))
