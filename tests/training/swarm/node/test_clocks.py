"""The time of the DHT: steps of the machine's clock count if they last."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from training.processes import uptime
from training.swarm.engine.steady_clock import STEP_LASTS_SECONDS, SteadyClock
from training.swarm.node import clocks


class Machine:
    """Its clock can be set; the other one cannot."""

    def __init__(self):
        self.passed, self.ahead = 0.0, 0.0
        self.now = SteadyClock(wall=lambda: 1e9 + self.passed + self.ahead, steady=lambda: 77.0 + self.passed)

    def after(self, seconds):
        """The time after so many seconds, in which it was asked for often."""
        for _ in range(10):
            self.passed += seconds / 10
            self.now()
        return self.now() - 1e9 - self.passed


@pytest.mark.parametrize("ahead", [300.0, -300.0])
def test_a_step_counts_when_it_has_lasted(ahead):
    machine = Machine()
    assert machine.after(1000) == pytest.approx(0, abs=1e-3)
    machine.ahead = ahead
    assert machine.after(0.9 * STEP_LASTS_SECONDS) == pytest.approx(0, abs=1e-3)
    machine.ahead = 0.0
    assert machine.after(10) == pytest.approx(0, abs=1e-3)
    machine.ahead = ahead
    assert machine.after(0.9 * STEP_LASTS_SECONDS) == pytest.approx(0, abs=1e-3)
    assert machine.after(0.3 * STEP_LASTS_SECONDS) == pytest.approx(ahead, abs=1e-3)


def test_another_step_has_to_last_by_itself():
    machine = Machine()
    for ahead in (300.0, 600.0, -300.0):
        machine.ahead = ahead
        assert machine.after(0.9 * STEP_LASTS_SECONDS) == pytest.approx(0, abs=1e-3)
    assert machine.after(0.3 * STEP_LASTS_SECONDS) == pytest.approx(-300.0, abs=1e-3)


def test_small_steps_count_at_once():
    """Such as those by which a server of time keeps a clock right."""
    machine = Machine()
    for number in range(1, 9):
        machine.ahead = 0.5 * number
        assert machine.after(1) == pytest.approx(machine.ahead, abs=1e-3)


def test_a_step_that_does_not_count_yet_is_known():
    """Then no message tells a person to set a clock that was set just now."""
    machine = Machine()
    machine.after(10)
    assert not machine.now.is_settling
    machine.ahead = 300.0
    machine.after(10)
    assert machine.now.is_settling
    machine.after(STEP_LASTS_SECONDS)
    assert not machine.now.is_settling


def test_a_macs_sleep_is_no_step_of_its_clock(monkeypatch):
    """On a Mac, `time.monotonic` stands still in sleep; another clock of the system goes on."""
    slept = [0.0]
    monkeypatch.setattr(uptime.sys, "platform", "darwin")
    clock = SimpleNamespace(
        clock_gettime=lambda which: {"raw": 50.0 + slept[0]}[which], CLOCK_MONOTONIC_RAW="raw", monotonic=lambda: 50.0
    )
    monkeypatch.setattr(uptime, "time", clock)
    now = SteadyClock(wall=lambda: 1e9 + slept[0], steady=uptime.seconds_since_boot)
    sleep = uptime.Sleep(uptime.seconds_since_boot, clock.monotonic)
    slept[0] = 3600.0
    assert now() == 1e9 + 3600 and not now.is_settling
    assert sleep.noticed() == 3600.0 and sleep.noticed() == 0.0

    async def ping(*_):
        return SimpleNamespace(dht_time=1e9 + slept[0] + 0.1)

    monkeypatch.setattr(clocks, "get_dht_time", now)
    monkeypatch.setattr(clocks, "ping", ping)
    node, known = SimpleNamespace(p2p=None), {"a server": "its place", "ada": "hers"}
    node.protocol = SimpleNamespace(routing_table=SimpleNamespace(peer_id_to_uid=known))
    dht = SimpleNamespace()
    dht.run_coroutine = lambda measure, return_future: _done(asyncio.run(measure(dht, node)))
    assert not clocks.is_settling() and clocks.check_clock(dht) == 0.0
    slept[0] = 3700.0  # for the others only: a clock that stands still is found wrong
    monkeypatch.setattr(clocks, "get_dht_time", lambda: 1e9 + 3600)
    with pytest.raises(clocks.WrongClock):
        clocks.check_clock(dht)


def _done(result):
    future = Future()
    future.set_result(result)
    return future
