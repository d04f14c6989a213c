"""What a volunteer is told if the run's page does not count its peer: real HTTP, a real history, a moved clock."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from tests.support.serving import serving
from tests.training.doctor.places import file_of
from tests.training.doctor.places import serving as serving_answer
from tests.training.publish.history.test_credit import NAMES, Swarm
from training.publish.live import live
from training.recipe import load_recipe
from training.volunteer.terminal.counted import Counted


class Ada:
    """Her peer, which looks every minute of the given clock, and what it has told."""

    def __init__(self, sites, clock):
        self.told, self.samples, self._clock = [], 0, clock
        facts = {"sites": lambda: sites, "brought": lambda: self.samples, "tell": self.told.append}
        self.counted = Counted(NAMES["ada"], clock=lambda: clock.now, **facts)

    def look(self, count, each=lambda: None):
        """Looks so many times, a minute or two apart, with something that happens before each."""
        for _ in range(count):
            self._clock.now += 60
            each()
            self.counted.look()


def renew(swarm, epoch):
    """Her record comes again, and says nothing new."""
    swarm.say("ada", epoch)
    swarm.observe()


@pytest.fixture
def swarm(tmp_path):
    run = load_recipe("demo")
    swarm = Swarm(tmp_path, recipe_digest=run.digest)
    live.store_run(swarm.history, run, "", initial_peers=[], join_command="", parameters=1)
    yield swarm
    swarm.history.close()


@pytest.fixture
def page(swarm, tmp_path):
    with serving(live.create_app(swarm.history, pictures=tmp_path, clock=swarm.clock)) as url:
        yield url


def test_a_peer_that_is_counted_is_told_nothing(swarm, page):
    ada, epochs = Ada([page], swarm.clock), iter(range(1, 99))
    swarm.begin("ada", "alan")

    def average():
        swarm.average(next(epochs), ada=30, alan=20)
        ada.samples += 30

    ada.look(20, average)
    ada.look(20, lambda: renew(swarm, 20))  # it waits, or is paused
    assert ada.told == []


def test_a_peer_whose_records_do_not_arrive_is_told_its_id_and_when_they_do(swarm, page):
    ada = Ada([page], swarm.clock)
    swarm.begin("alan")
    ada.look(10)
    (told,) = ada.told
    assert NAMES["ada"] in told and "`doctor`" in told
    swarm.begin("ada")
    ada.look(2, lambda: renew(swarm, 0))
    assert len(ada.told) == 2 and "again" in ada.told[1]


def test_a_peer_whose_credit_stands_still_while_it_works_is_told(swarm, page):
    """Its records arrive, and no other record tells of its samples."""
    ada, epochs = Ada([page], swarm.clock), iter(range(1, 99))
    swarm.begin("ada", "alan")

    def works():
        swarm.average(next(epochs), alan=20)  # a minute passes
        renew(swarm, 0)
        ada.samples += 30

    ada.look(5, works)
    assert ada.told == []
    ada.look(5, works)
    (told,) = ada.told
    assert "credited nothing" in told and "less than a minute" in told and "tell the run's maintainer" in told


def test_a_page_that_is_away_for_long_is_told_once(swarm):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = f"http://127.0.0.1:{taken.getsockname()[1]}"
    ada = Ada([gone], swarm.clock)
    ada.look(30)
    (told,) = ada.told
    assert gone in told and "monitor is away" in told and "the last 64 epochs" in told


@pytest.mark.parametrize("status, body", [(404, "nothing"), (200, "<html>"), (200, "[]"), (200, '{"time": null}')])
def test_a_site_that_tells_nothing_of_peers_is_no_fault(status, body):
    clock = SimpleNamespace(now=0.0)
    with serving_answer(file_of(body, status=status)) as site:
        ada = Ada([site], clock)
        ada.look(20)
    assert ada.told == []


def test_without_a_site_nobody_is_asked():
    ada = Ada([], SimpleNamespace(now=0.0))
    ada.look(20)
    assert ada.told == []
