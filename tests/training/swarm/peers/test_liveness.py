"""Which groupmates an all-reduce stops waiting for: those that answer no ping, and those that are much slower."""

import asyncio
from contextlib import suppress

import pytest

from training.swarm.engine.coroutine import wait_for_result
from training.swarm.peers import liveness
from training.swarm.peers.groups import Contribution
from training.swarm.peers.liveness import NEARLY, Late, Liveness, SlowSenders, limit_of
from training.swarm.peers.times import LOOK_SECONDS, REDUCER_FACTOR

ADA, ALAN, GRACE, MALLORY = "ada", "alan", "grace", "mallory"
LIMIT, LOOKS = 6.0, 12
NOBODY = Late({}, reduce=False)
QUICK = {ADA: 0.1, ALAN: 0.1, GRACE: 0.1, MALLORY: 0.1}


def given_up(late, *, others=3, seconds=LIMIT, until=40.0, stall_at=None):
    """The peer that is given up, and after how many seconds; None if nobody is.

    Args:
        late: Who is late at a moment.
        others: Peers in the group beside this one.
        seconds: The limit.
        until: When the all-reduce ends.
        stall_at: When the process is held up for ten seconds.
    """

    async def play():
        now, given, held_up = [0.0], [], [stall_at]

        async def sleep(seconds):
            now[0] += seconds
            if held_up[0] is not None and now[0] >= held_up[0]:
                now[0], held_up[0] = now[0] + 10.0, None
            if now[0] > until:
                raise asyncio.CancelledError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(liveness.asyncio, "sleep", sleep)

            def give_up(peers):
                given.append((set(peers), now[0]))
                raise asyncio.CancelledError

            one = Liveness(
                ping=None,
                late=lambda: late(now[0]),
                asked=lambda: (),
                slow=SlowSenders(others, seconds),
                on_overdue=give_up,
                on_gone=None,
                clock=lambda: now[0],
            )
            with suppress(asyncio.CancelledError):
                await one.watch()
        return given[0] if given else None

    return wait_for_result(play())


def sends(*peers, every=None, first=QUICK):
    """These send a part every so many seconds, or none; the others have sent everything."""
    return lambda now: Late(dict.fromkeys(peers, 0 if every is None else int(now / every)), reduce=False, first=first)


def answers(*peers, every=None):
    return lambda now: Late(dict.fromkeys(peers, 0 if every is None else int(now / every)), reduce=True, first=QUICK)


def test_a_peer_that_alone_is_late_is_given_up_at_its_limit():
    assert given_up(sends(MALLORY)) == ({MALLORY}, LIMIT)
    assert given_up(answers(MALLORY)) == ({MALLORY}, LIMIT * REDUCER_FACTOR)
    assert given_up(sends()) is None
    assert given_up(sends(MALLORY), seconds=None) is None


def test_a_part_now_and_then_does_not_help():
    assert given_up(sends(MALLORY, every=4.0)) == ({MALLORY}, pytest.approx(LIMIT, abs=2 * LOOK_SECONDS))
    who, second = given_up(answers(MALLORY, every=4.0))
    assert who == {MALLORY} and LIMIT < second <= 10


def test_whoever_misses_more_than_half_of_the_others_gives_nobody_up():
    """Its own link may be what all wait for. In a pair nobody can tell."""
    assert given_up(sends(MALLORY), others=1) is None
    assert given_up(sends(ADA, MALLORY)) is None
    assert given_up(sends(ADA, MALLORY), others=4) == ({ADA, MALLORY}, LIMIT)


def test_a_process_that_was_held_up_itself_gives_nobody_up():
    assert given_up(sends(MALLORY), stall_at=3.0) == ({MALLORY}, LIMIT + 10 - LOOK_SECONDS)
    assert given_up(lambda now: sends(*[MALLORY][: now < 14])(now), stall_at=3.0) is None


def in_step(*paces, link_parts=2):
    """When each sender's parts come, and when a reducer reads them: a part when all have sent the one before.

    Args:
        paces: Seconds that each sender's link needs for a part.
        link_parts: So many parts wait on the way.
    """
    names = (ADA, ALAN, GRACE, MALLORY)
    averaged, arrived, read = [0.0], [[] for _ in paces], [[] for _ in paces]
    for part in range(60):
        for sender, pace in enumerate(paces):
            room = averaged[part - link_parts] if part >= link_parts else 0.0
            arrived[sender].append(max(arrived[sender][-1] if part else 0.0, room) + pace)
            read[sender].append(max(arrived[sender][-1], averaged[part]))
        averaged.append(max(one[part] for one in read))

    def late(now):
        counts = {name: sum(moment <= now for moment in one) for name, one in zip(names, read, strict=False)}
        last = min(counts.values())
        first = {name: one[0] for name, one in zip(names, read, strict=False) if one[0] <= now}
        return Late({n: c for n, c in counts.items() if c == last < 60}, reduce=False, first=first)

    return late, averaged[-1]


@pytest.mark.parametrize("slower", [1.02, 1.2, 1.5, 3.0])
def test_a_peer_whose_link_is_somewhat_slower_is_never_given_up(slower):
    """The parts of the others lie ready while its parts are awaited: the average waits for it nearly all the time."""
    late, end = in_step(1.0, 1.0, 1.0, slower)
    assert end > 10 * LIMIT
    assert given_up(late, until=end) is None


def test_a_peer_whose_link_is_very_much_slower_is_given_up_when_it_has_cost_more_than_it_is_worth():
    late, end = in_step(0.1, 0.1, 0.1, 5.0)
    who, second = given_up(late, until=end)
    assert who == {MALLORY} and second == pytest.approx(LIMIT, abs=1.0) and second < end / 10


def test_honest_peers_that_hear_of_a_failure_name_the_same_peer():
    one, late = SlowSenders(3, LIMIT), sends(MALLORY)(0)
    one.note(late, NEARLY * LIMIT - 0.1)
    assert not one.overdue(NEARLY)
    one.note(late, 0.2)
    assert one.overdue(NEARLY) == {MALLORY} and not one.overdue()


def test_a_peer_is_worth_its_share_of_the_time_between_two_averages():
    def limit(cycle, peers, chunk=5.0, free=0.0):
        return limit_of(Contribution(weight=1.0, cycle_seconds=cycle, free_seconds=free), peers, chunk)

    assert limit(600.0, 4) == 150.0
    assert limit(600.0, 100) == 60.0  # a tenth at least
    assert limit(8.0, 4) == 5.0  # no sooner than a peer that sends nothing
    assert limit(600.0, 4, free=600.0) == 750.0
    assert limit(None, 4) is limit(8.0, 4, chunk=None) is None


# -- those that are gone ----------------------------------------------------------------------------------------------


@pytest.fixture
def short_waits(monkeypatch):
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(liveness, "SILENT_SECONDS", 3.0)


def gone_among(late, answers, parts=lambda look: {}, first=None):
    """Peers that are found gone within twelve looks, each a second after the one before.

    Args:
        late: For whom the all-reduce waits at a look, by the look's number.
        answers: Whether a peer answers a ping that was sent at a look, by the peer and the look's number; None: it
            never says anything.
        parts: Number of parts that have come from each late peer, by the look's number.
        first: Seconds until the first part came, by peer.
    """

    async def play():
        now, gone, at_once = [0], [], []

        async def ping(peer, seconds):
            at_once.append(len(watching._pings))
            answer = answers(peer, now[0])
            if answer is None:
                await asyncio.sleep(60)
            return answer

        def late_now():
            now[0] += 1
            return late(now[0])

        watching = Liveness(
            ping,
            late=lambda: Late(parts(now[0]), reduce=False, first=first or {}),
            asked=late_now,
            slow=SlowSenders(1, None),
            on_overdue=None,
            on_gone=gone.append,
            clock=lambda: float(now[0]),
        )
        watch = asyncio.create_task(watching.watch())
        while now[0] < LOOKS:
            await asyncio.sleep(0.01)
        watch.cancel()
        await asyncio.wait([watch])
        return gone, max(at_once, default=0)

    return wait_for_result(play())


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("answer", [None, False], ids=["says nothing", "refuses connections"])
def test_who_answers_no_ping_is_gone_and_who_is_only_slow_is_not(answer):
    gone, _ = gone_among(lambda look: {"dead", "slow"}, lambda peer, look: peer == "slow" or answer)
    assert gone == ["dead"]


@pytest.mark.usefixtures("short_waits")
def test_who_misses_a_ping_now_and_then_is_not_gone():
    gone, _ = gone_among(lambda look: {"ada"}, lambda peer, look: look % 3 == 0)
    assert gone == []


@pytest.mark.usefixtures("short_waits")
def test_who_sends_parts_over_a_full_link_is_not_gone_until_it_stops():
    """Its answers to pings wait behind its parts."""
    late, silent, every_other = (lambda look: {"ada"}), (lambda peer, look: None), (lambda look: {"ada": look // 2})
    assert gone_among(late, silent, every_other) == ([], 1)
    assert gone_among(late, silent, lambda look: every_other(min(look, 4))) == (["ada"], 1)
    stopped = {"ada": 7}
    assert gone_among(late, silent, lambda look: stopped) == (["ada"], 1)
    assert gone_among(late, silent, lambda look: stopped, first={"ada": 4.0}) == ([], 1), "four times as long is usual"


@pytest.mark.usefixtures("short_waits")
def test_an_old_ping_does_not_count_against_who_is_late_again():
    gone, _ = gone_among(lambda look: {"ada"} if look in (1, 2) or look >= 10 else set(), lambda peer, look: False)
    assert gone == []


@pytest.mark.usefixtures("short_waits")
def test_who_is_not_waited_for_is_not_asked():
    asked = set()
    gone, _ = gone_among(lambda look: {"late"}, lambda peer, look: asked.add(peer) or True)
    assert asked == {"late"} and gone == []


@pytest.mark.usefixtures("short_waits")
def test_of_many_late_peers_some_are_asked_at_once_and_all_that_are_gone_are_found(monkeypatch):
    monkeypatch.setattr(liveness, "PINGS_AT_ONCE", 4)
    peers = {f"peer {number}" for number in range(10)}
    gone, at_once = gone_among(lambda look: peers, lambda peer, look: False)
    assert set(gone) == peers and at_once <= 4
