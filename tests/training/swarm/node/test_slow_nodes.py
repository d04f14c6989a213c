"""Nodes that answer late: nobody waits for them, nor forgets them."""

import asyncio
import json
import time

import pytest

from tests.training.swarm.real_peers.scenarios import look_beside_a_slow_node
from tests.training.swarm.real_peers.started_peers import meet
from training.swarm.node.slow_nodes import ENOUGH_NODES, LATE_AFTER_SECONDS, MEMORY_SECONDS, REST_SECONDS, SlowNodes

QUICK = [f"quick {number}" for number in range(ENOUGH_NODES)]


async def after(seconds, value="an answer"):
    await asyncio.sleep(seconds)
    return value


async def nodes_with_quick_ones(clock=time.monotonic, seconds=0.0):
    nodes = SlowNodes(clock=clock)
    for peer in QUICK:
        assert await nodes.ask(peer, after(seconds)) == "an answer"
    return nodes


def test_a_slow_node_is_left_behind_until_it_has_rested():
    async def play():
        now = [0.0]
        nodes = await nodes_with_quick_ones(clock=lambda: time.monotonic() + now[0])
        began = time.monotonic()
        assert await nodes.ask("slow", after(3 * LATE_AFTER_SECONDS)) is None
        assert LATE_AFTER_SECONDS <= time.monotonic() - began < 2 * LATE_AFTER_SECONDS
        now[0] += REST_SECONDS  # it has not answered yet
        assert nodes.is_slow("slow")
        await asyncio.sleep(3 * LATE_AFTER_SECONDS)
        assert nodes.is_slow("slow") and not any(nodes.is_slow(peer) for peer in QUICK)
        now[0] += REST_SECONDS
        assert not nodes.is_slow("slow")
        assert await nodes.ask("slow", after(0.0)) == "an answer"

    asyncio.run(play())


def test_who_is_late_once_does_not_lag():
    async def play():
        nodes = await nodes_with_quick_ones()
        seen = []
        for seconds in (1.0, 0.0, 1.0, 1.0, 0.4, 0.4, 0.0):
            nodes.note("another", seconds, least=0.3 if seconds < 1 else LATE_AFTER_SECONDS)
            seen.append(nodes.lags("another"))
        assert seen == [False, False, False, True, True, True, False]
        assert not any(nodes.lags(peer) for peer in QUICK)

    asyncio.run(play())


def test_nobody_is_slow_if_all_are():
    async def play():
        nodes = await nodes_with_quick_ones(seconds=LATE_AFTER_SECONDS)
        assert await nodes.ask("another", after(2 * LATE_AFTER_SECONDS)) == "an answer"

    asyncio.run(play())


@pytest.mark.parametrize("forgotten", [False, True])
def test_without_enough_others_each_node_is_waited_for(forgotten):
    async def play():
        now = [0.0]
        nodes = await nodes_with_quick_ones(clock=lambda: now[0]) if forgotten else SlowNodes()
        now[0] += MEMORY_SECONDS
        assert await nodes.ask("the only one", after(2 * LATE_AFTER_SECONDS)) == "an answer"

    asyncio.run(play())


def test_a_dead_node_is_asked_again_after_times_that_double():
    async def play():
        now = [0.0]
        nodes = await nodes_with_quick_ones(clock=lambda: now[0])
        for rest in (REST_SECONDS, 2 * REST_SECONDS, 4 * REST_SECONDS, 4 * REST_SECONDS):
            assert not nodes.is_slow("dead")
            assert await nodes.ask("dead", after(0.0, None)) is None
            now[0] += rest - 0.1
            assert nodes.is_slow("dead")
            now[0] += 0.2
            assert await nodes.ask(QUICK[0], after(0.0)) == "an answer"
        assert await nodes.ask("dead", after(0.0)) == "an answer" and not nodes.is_slow("dead")
        assert await nodes.ask("dead", after(0.0, None)) is None
        now[0] += REST_SECONDS
        assert not nodes.is_slow("dead")  # the first failure again

    asyncio.run(play())


def test_if_nobody_answers_all_are_asked_again():
    async def play():
        nodes = await nodes_with_quick_ones()
        for peer in QUICK:
            assert await nodes.ask(peer, after(0.0, None)) is None
        assert not any(nodes.is_slow(peer) for peer in QUICK)
        assert await nodes.ask(QUICK[0], after(0.0)) == "an answer"
        assert not nodes.is_slow(QUICK[0]) and nodes.is_slow(QUICK[1])

    asyncio.run(play())


@pytest.mark.swarm
def test_nobody_waits_for_a_node_with_a_full_link_nor_follows_it(tmp_path):
    names = ("first", "second", "third", "fourth", "slow")
    (told,) = meet(tmp_path, [look_beside_a_slow_node], names)
    for name, facts in told.items():
        if name != "slow":
            assert facts["found"] == sorted(names), json.dumps(told, indent=1)
            assert facts["seconds"] < 2.0, json.dumps(told, indent=1)
            assert (facts["slow"], facts["late"], facts["silent"]) == (["slow"], ["slow"], []), json.dumps(
                told, indent=1
            )
            assert facts["answers"] == [True, False], json.dumps(told, indent=1)
