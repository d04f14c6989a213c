"""Who is gone in the middle of an all-reduce: those that answer no ping for some seconds, and nobody else."""

import asyncio

import pytest

from training.swarm.engine.coroutine import wait_for_result
from training.swarm.peers import vigil
from training.swarm.peers.vigil import Vigil

LOOKS = 12


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(vigil, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(vigil, "SILENT_SECONDS", 3.0)


def gone_among(late, answers):
    """Who is found gone within twelve looks, each a second after the one before.

    Args:
        late: For whom the all-reduce waits at a look, by the look's number.
        answers: Whether a peer answers a ping that was sent at a look, by the peer and the look's number; None: it
            never says anything.
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

        watching = Vigil(ping, late_now, gone.append, clock=lambda: float(now[0]))
        watch = asyncio.create_task(watching.watch())
        while now[0] < LOOKS:
            await asyncio.sleep(0.01)
        watch.cancel()
        await asyncio.wait([watch])
        return gone, max(at_once, default=0)

    return wait_for_result(play())


@pytest.mark.parametrize("answer", [None, False], ids=["says nothing", "refuses connections"])
def test_who_answers_no_ping_is_gone_and_who_is_only_slow_is_not(answer):
    gone, _ = gone_among(lambda look: {"dead", "slow"}, lambda peer, look: peer == "slow" or answer)
    assert gone == ["dead"]


def test_who_misses_a_ping_now_and_then_is_not_gone():
    gone, _ = gone_among(lambda look: {"ada"}, lambda peer, look: look % 3 == 0)
    assert gone == []


def test_an_old_ping_does_not_count_against_who_is_late_again():
    gone, _ = gone_among(lambda look: {"ada"} if look in (1, 2) or look >= 10 else set(), lambda peer, look: False)
    assert gone == []


def test_who_is_not_waited_for_is_not_asked():
    asked = set()
    gone, _ = gone_among(lambda look: {"late"}, lambda peer, look: asked.add(peer) or True)
    assert asked == {"late"} and gone == []


def test_of_many_late_peers_some_are_asked_at_once_and_all_that_are_gone_are_found(monkeypatch):
    monkeypatch.setattr(vigil, "PINGS_AT_ONCE", 4)
    peers = {f"peer {number}" for number in range(10)}
    gone, at_once = gone_among(lambda look: peers, lambda peer, look: False)
    assert set(gone) == peers and at_once <= 4
