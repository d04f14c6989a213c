"""Two peers over real connections: neither is in a group of which it knows nothing, or it says so; and their means."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
import time
from types import SimpleNamespace
from typing import AsyncIterator  # noqa: UP035  hivemind knows this one alone

import pytest
import torch
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import Matchmaking
from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import as_aiter
from two_nodes import two_nodes

from benchmarks.attacks.message_readers import follower_of, led
from calculator.swarm.forecast import PATIENCE_WINDOWS
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.engine.process import DHT
from training.swarm.epoch.gradients import GradientAverager
from training.swarm.round.averager import Averager
from training.swarm.round.gathering import NonsenseError, Words, name_of, renewed
from training.swarm.round.matchmaking import MAJORITY_WINDOWS, MOST_REDIRECTS, PatientMatchmaking, _prompt
from training.swarm.round.pipe import AveragerSettings, Stage
from training.swarm.round.service import Service
from training.trust.check import TicketRefused

WINDOW_SECONDS, REQUEST_SECONDS = 10.0, 3.0


class Seeker(ServicerBase):
    """A peer that looks for a group, and first of all asks one that it is told."""

    idle = False
    """Whether it accepts whoever asks, and says nothing more."""
    mute = False
    """Whether it does not answer at all."""
    most = 2
    """Peers of its group."""

    def __init__(self, dht: DHT, *, window_seconds: float = WINDOW_SECONDS, request_seconds: float = REQUEST_SECONDS):
        self.dht, self._window_seconds, self._request_seconds = dht, window_seconds, request_seconds

    async def open(self) -> None:
        """Others can ask it from now on."""
        self.p2p = await self.dht.replicate_p2p()
        self.matchmaking = PatientMatchmaking(
            self.p2p,
            b"schema",
            self.dht,
            servicer_type=Seeker,
            prefix="meeting",
            target_group_size=self.most,
            min_group_size=2,
            min_matchmaking_time=self._window_seconds,
            request_timeout=self._request_seconds,
            client_mode=False,
        )
        await self.add_p2p_handlers(self.p2p, namespace="meeting")

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        if self.mute:
            await asyncio.sleep(WINDOW_SECONDS)
        if self.idle:
            yield averaging_pb2.MessageFromLeader(code=averaging_pb2.ACCEPTED)
            await asyncio.sleep(WINDOW_SECONDS)
        async for message in self.matchmaking.rpc_join_group(request, context):
            yield message

    async def meet(self, other: PeerID, both_ask: asyncio.Barrier) -> GroupInfo:
        """Looks for a group; both ask each other at the same moment, as with old news of when the other began."""
        leaders = self.matchmaking.potential_leaders
        pop_next_leader = leaders.pop_next_leader

        async def pop_other() -> PeerID:
            leaders.pop_next_leader = pop_next_leader
            while not math.isfinite(leaders.declared_expiration_time):
                await asyncio.sleep(0.01)
            await both_ask.wait()
            return other

        leaders.pop_next_leader = pop_other
        return await self.matchmaking.find_group(gather(None), deadline=get_dht_time() + 60, expected_peers=0)


async def cross(seekers: list[Seeker]) -> tuple[list[GroupInfo], float]:
    """The group that each finds, and the seconds from the question to the answer."""
    for seeker in seekers:
        await seeker.open()
    began = time.monotonic()
    both_ask = asyncio.Barrier(2)
    first, second = seekers
    groups = await asyncio.gather(first.meet(second.p2p.peer_id, both_ask), second.meet(first.p2p.peer_id, both_ask))
    return list(groups), time.monotonic() - began


nodes = pytest.fixture(scope="module")(two_nodes)
new_nodes = pytest.fixture(two_nodes)
"""A node offers calls in one event loop only."""


@pytest.mark.swarm
def test_two_peers_that_ask_each_other_at_once_are_in_one_group_of_which_both_know(nodes):
    groups, seconds = wait_for_result(cross([Seeker(node) for node in nodes]))
    assert groups[0].group_id == groups[1].group_id
    assert set(groups[0].peer_ids) == {node.peer_id for node in nodes}
    assert seconds < REQUEST_SECONDS


async def search_together(seekers: list[Seeker], *, seconds: float, expected_peers: int) -> list[GroupInfo | None]:
    """The group that each finds within so many seconds."""
    deadline = get_dht_time() + seconds
    searches = (
        seeker.matchmaking.find_group(gather(None), deadline=deadline, expected_peers=expected_peers)
        for seeker in seekers
    )
    return await asyncio.gather(*searches)


async def find_after_errors(seekers: list[Seeker]) -> list[GroupInfo]:
    """The group that each finds; the first time that each looks for leaders fails."""
    for seeker in seekers:
        await seeker.open()
        look, failed = seeker.matchmaking.group_key_manager._leaders, []

        async def look_after_an_error(*args, look=look, failed=failed):
            if not failed:
                failed.append(True)
                raise TimeoutError("the node is busy")
            return await look(*args)

        seeker.matchmaking.group_key_manager._leaders = look_after_an_error
    return await search_together(seekers, seconds=60, expected_peers=2)


@pytest.mark.swarm
def test_a_search_goes_on_after_a_look_that_has_failed(new_nodes):
    groups = wait_for_result(find_after_errors([Seeker(node, window_seconds=2.0) for node in new_nodes]))
    assert groups[0] is not None and groups[0].group_id == groups[1].group_id


async def find_beside_a_lasting_announcement(seekers: list[Seeker]) -> list[GroupInfo | None]:
    """The group that each finds; a third peer is expected and does not come, so that they have to look again."""
    for seeker in seekers:
        seeker.most = 4
        await seeker.open()
    key, stranger = seekers[0].matchmaking.group_key_manager.current_key, PeerID(b"a stranger")
    for seeker in seekers:
        told = {"value": True, "expiration_time": get_dht_time() + 3000, "return_future": True}
        await seeker.dht.store(key, subkey=stranger.to_bytes(), **told)
    return await search_together(seekers, seconds=30, expected_peers=3)


@pytest.mark.swarm
def test_an_announcement_that_lasts_for_an_hour_keeps_nobody_from_finding_the_others(new_nodes):
    seekers = [Seeker(node, window_seconds=1.5, request_seconds=1.0) for node in new_nodes]
    groups = wait_for_result(find_beside_a_lasting_announcement(seekers))
    assert None not in groups and groups[0].group_id == groups[1].group_id


async def follow_an_idle_leader(seeker: Seeker, leader: Seeker, *, times: int) -> list[set[str]]:
    """Asks it again and again; who counts as a spoiler after each time."""
    for one in (seeker, leader):
        await one.open()
    matchmaking, spoilers = seeker.matchmaking, []
    for _ in range(times):
        matchmaking.group_key_manager._follows = lambda peer: False  # asks nobody by itself
        found = matchmaking.find_group(gather(None), deadline=get_dht_time() + 60, expected_peers=0)
        search = asyncio.create_task(found)
        while not math.isfinite(matchmaking.potential_leaders.declared_expiration_time):
            await asyncio.sleep(0.01)
        assert await matchmaking._request_join_group(leader.p2p.peer_id) is None
        search.cancel()
        await asyncio.wait([search])
        spoilers.append(matchmaking.take_spoilers())
    return spoilers


@pytest.mark.swarm
def test_a_leader_that_says_nothing_more_is_not_asked_again_and_counts_as_a_spoiler_the_second_time(new_nodes):
    seeker, leader = (Seeker(node, window_seconds=1.0, request_seconds=0.6) for node in new_nodes)
    leader.idle = True
    spoilers = wait_for_result(follow_an_idle_leader(seeker, leader, times=2))
    assert spoilers == [set(), {str(new_nodes[1].peer_id)}]
    assert not seeker.matchmaking._follows(new_nodes[1].peer_id)


@pytest.mark.swarm
def test_a_leader_that_does_not_answer_is_left_alone_for_a_while_if_there_may_be_others(new_nodes):
    seeker, leader = (Seeker(node, window_seconds=1.0, request_seconds=0.6) for node in new_nodes)
    leader.mute = True
    assert wait_for_result(follow_an_idle_leader(seeker, leader, times=1)) == [set()]
    matchmaking, peer = seeker.matchmaking, new_nodes[1].peer_id
    matchmaking._expected = 2
    assert matchmaking._follows(peer)
    matchmaking._expected = 3
    assert not matchmaking._follows(peer)
    time.sleep(1.5)
    assert matchmaking._follows(peer)


async def send_part(node: DHT, peer: PeerID) -> averaging_pb2.AveragingData:
    """What a peer answers to a part of a tensor for a group that it has never heard of."""
    stub = Service.get_stub(await node.replicate_p2p(), peer, namespace="averaging")
    parts = as_aiter(averaging_pb2.AveragingData(group_id=b"a group without it"))
    return await anext(await stub.rpc_aggregate_part(parts))


async def ask_one_that_opens_no_stream(leader: P2P, seconds: float) -> None:
    """A call to a leader whose network daemon stands still, so that the connection stays and no stream opens."""
    peer = await P2P.create(initial_peers=await leader.get_visible_maddrs(), host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    os.kill(leader._child.pid, signal.SIGSTOP)
    os.waitpid(leader._child.pid, os.WUNTRACED)  # until all of its threads stand still
    try:
        stub = _prompt(Seeker, seconds).get_stub(peer, leader.peer_id, namespace="meeting")
        await asyncio.wait_for(stub.rpc_join_group(averaging_pb2.JoinRequest()), 20 * seconds)
    finally:
        os.kill(leader._child.pid, signal.SIGCONT)
        await peer.shutdown()


@pytest.mark.swarm
def test_no_leader_is_waited_for_that_lets_no_stream_open():
    """hivemind waits for some ten seconds, and meanwhile answers nobody who asks this peer."""

    async def ask() -> float:
        leader = await P2P.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await ask_one_that_opens_no_stream(leader, 1.0)
        await leader.shutdown()
        return time.monotonic() - began

    assert asyncio.run(ask()) < 10


async def begin_to_lead(
    leader: Seeker, *, seconds: float, expected_peers: int
) -> tuple[asyncio.Task, averaging_pb2.JoinRequest]:
    """A search that others may follow from now on, and the request with which they do."""
    matchmaking, deadline = leader.matchmaking, get_dht_time() + seconds
    finding = matchmaking.find_group(gather(None), deadline=deadline, expected_peers=expected_peers)
    search = asyncio.create_task(finding)
    while not math.isfinite(matchmaking.potential_leaders.declared_expiration_time):
        await asyncio.sleep(0.01)
    request = averaging_pb2.JoinRequest(
        schema_hash=matchmaking.schema_hash,
        expiration=deadline + 60,
        gather=gather(None),
        group_key=matchmaking.group_key_manager.current_key,
    )
    return search, request


async def tasks_left_by_followers(leader: Seeker, follower: PeerID) -> int:
    """Tasks more than before, after a search in which some have followed and hung up."""
    leader.most = 64
    await leader.open()
    before = len(asyncio.all_tasks())
    search, request = await begin_to_lead(leader, seconds=6, expected_peers=9)
    for _ in range(5):
        answers = leader.matchmaking.rpc_join_group(request, context_of(leader, follower))
        assert (await anext(answers)).code == averaging_pb2.ACCEPTED
        waiting = asyncio.create_task(anext(answers))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait([waiting])
    during = len(asyncio.all_tasks())
    assert await search is None
    await asyncio.sleep(0.5)
    assert during >= before + 5
    return len(asyncio.all_tasks()) - before


def context_of(leader: Seeker, follower: PeerID) -> P2PContext:
    """Of a call of a follower."""
    return P2PContext("join", leader.p2p.peer_id, follower)


async def lead_one(leader: Seeker, follower: PeerID) -> tuple[asyncio.Task, AsyncIterator]:
    """A search whose group of two begins now, and the answers to the follower, of which one has been read."""
    await leader.open()
    search, request = await begin_to_lead(leader, seconds=30, expected_peers=2)
    answers = leader.matchmaking.rpc_join_group(request, context_of(leader, follower))
    assert (await anext(answers)).code == averaging_pb2.ACCEPTED
    return search, answers


@pytest.mark.swarm
def test_a_follower_that_reads_nothing_more_does_not_hold_up_its_leader(new_nodes):
    """hivemind's leader waits until the list of the group has been sent to each follower, however long it is."""

    async def lead() -> set[PeerID]:
        search, answers = await lead_one(Seeker(new_nodes[0]), new_nodes[1].peer_id)
        assert (await anext(answers)).code == averaging_pb2.BEGIN_ALLREDUCE  # and no further: it is being sent
        done, _ = await asyncio.wait([search], timeout=WINDOW_SECONDS)
        return {peer for task in done for peer in task.result().peer_ids}

    assert wait_for_result(lead()) == {node.peer_id for node in new_nodes}


@pytest.mark.swarm
def test_a_search_that_is_given_up_while_its_group_begins_is_given_up(new_nodes):
    """hivemind's goes on, with a trainer that does not want it any more: the group would wait for this peer."""

    async def lead() -> bool:
        seeker = Seeker(new_nodes[0])
        search, answers = await lead_one(seeker, new_nodes[1].peer_id)
        manager = seeker.matchmaking.group_key_manager
        withdraw, withdraws = manager.declare_averager, asyncio.Event()

        async def withdraw_slowly(*args, **kwargs) -> bool:
            withdraws.set()
            await asyncio.sleep(1.0)
            return await withdraw(*args, **kwargs)

        manager.declare_averager = withdraw_slowly
        assert (await anext(answers)).code == averaging_pb2.BEGIN_ALLREDUCE
        assert await anext(answers, None) is None
        await withdraws.wait()
        search.cancel()
        await asyncio.wait([search], timeout=WINDOW_SECONDS)
        return search.cancelled()

    assert wait_for_result(lead())


@pytest.mark.swarm
def test_followers_leave_no_tasks_behind(new_nodes):
    seeker = Seeker(new_nodes[0], window_seconds=4.0, request_seconds=1.0)
    assert wait_for_result(tasks_left_by_followers(seeker, new_nodes[1].peer_id)) < 5


@pytest.mark.swarm
def test_a_peer_that_looks_for_a_group_says_at_once_that_it_is_in_no_other(nodes):
    node, other = nodes
    settings = AveragerSettings(
        prefix="averaging", matchmaking_seconds=WINDOW_SECONDS, request_timeout_seconds=REQUEST_SECONDS
    )
    averager = Averager([torch.zeros(4)], dht=node, settings=settings)
    try:
        round_ = averager.begin_round(seconds=60)
        time.sleep(1.0)
        assert round_.stage is Stage.SEARCHING
        answer = wait_for_result(asyncio.wait_for(send_part(other, node.peer_id), REQUEST_SECONDS))
        assert answer.code == averaging_pb2.BAD_GROUP_ID
    finally:
        averager.shutdown()


@pytest.mark.swarm
def test_micro_batches_of_uneven_size_count_by_their_samples(nodes):
    parameter = torch.nn.Parameter(torch.zeros(3))
    averager = GradientAverager([parameter], dht=nodes[0], settings=AveragerSettings(prefix="mean"), start=False)
    for samples, gradient in ((4, 1.0), (2, 4.0)):
        parameter.grad = torch.full((3,), gradient)
        averager.add_gradients(samples)
    assert averager.load_mean() == 6
    with averager.get_tensors() as (mean,):
        assert mean.tolist() == [2.0] * 3  # hivemind's is 1.5


# -- which requests a leader accepts -----------------------------------------------------------------------------------


ADA = SimpleNamespace(remote_id=PeerID(b"ada"))
"""Whose call it is."""


def gather(told):
    """What a peer's request to join a group carries."""
    return Words(mbits=None, client_mode=False, told=told).packed()


def leader_of_two(monkeypatch, most=64):
    """One that knows of one other, at epoch 7; hivemind would take whoever asks."""
    monkeypatch.setattr(Matchmaking, "_check_reasons_to_reject", lambda self, request, context: None)
    leader = object.__new__(PatientMatchmaking)
    leader.request_timeout, leader._arrivals, leader._epochs_apart = 60, {}, 0
    leader._nonsense_at, leader.min_matchmaking_time = {}, 5.0
    leader._expected, leader._most, leader.left_out = 2, most, frozenset()
    leader.step_control = SimpleNamespace(data_for_gather=gather([7, False, 2]))
    return leader


@pytest.mark.parametrize(
    "told, accepted",
    [
        (gather([7, True, 2]), True),
        (gather([6, False, 2]), False),
        (gather([8, False, 2]), False),
        (gather("hm"), True),
        (b"?", False),
    ],
    ids=["the same epoch", "an earlier one", "a later one", "none", "garbage"],
)
def test_a_group_is_of_one_epoch(told, accepted, monkeypatch):
    """A newcomer at an epoch that has just ended would make one of the others wait, and leave the third without it."""
    answer = leader_of_two(monkeypatch)._check_reasons_to_reject(averaging_pb2.JoinRequest(gather=told), ADA)
    assert (answer is None) == accepted


@pytest.mark.parametrize("told, most, expected", [(2, 64, 2), (3, 64, 3), (9, 64, 3), (3, 2, 2), (0, 64, 2)])
def test_a_group_waits_for_one_more_if_a_newcomer_knows_of_more(told, most, expected, monkeypatch):
    """Else it would make the group whole in the place of one of the others."""
    leader, context = leader_of_two(monkeypatch, most), ADA
    leader._arrivals[id(context)] = time.monotonic()
    assert leader._check_reasons_to_reject(averaging_pb2.JoinRequest(gather=gather([7, True, told])), context) is None
    assert leader._expected == expected


def follower():
    """One that has asked to be led, with its words."""
    one = object.__new__(PatientMatchmaking)
    one._admission, one.peer_id, one._spoilers, one._epochs_apart = None, PeerID(b"own"), set(), 0
    one._idle, one._mute_at, one._nonsense_at = {}, {}, {}
    one.step_control = SimpleNamespace(data_for_gather=gather([7, False, 2]))
    return one


@pytest.mark.parametrize("lie", ["about this peer", "about another", "an old name"])
def test_a_group_whose_leader_tells_its_followers_different_things_is_none(lie):
    """The peers would divide the tensors differently, and find fault with each other."""
    one, leader = follower(), PeerID(b"leader")
    own, other = one.step_control.data_for_gather, gather([7, False, 2])
    peers = [leader, one.peer_id]
    gathered, name = [other, own], name_of(peers, [other, own])
    if lie == "about this peer":
        gathered = [other, renewed(own)]
        name = name_of(peers, gathered)
    elif lie == "about another":
        gathered = [Words(mbits=None, client_mode=True, told=[7, False, 2]).packed(), own]
    else:
        name = name_of(peers, [other, renewed(own)])
    ids = [peer.to_bytes() for peer in peers]
    message = averaging_pb2.MessageFromLeader(group_id=name, ordered_peer_ids=ids, gathered=gathered)
    with pytest.raises(NonsenseError, match="a leader"):
        wait_for_result(one.follower_assemble_group(leader, message))
    assert one.take_spoilers() == {str(leader)}


@pytest.mark.parametrize("answers", [(99,), (averaging_pb2.ACCEPTED, 99)])
def test_a_leader_that_answers_with_a_code_that_there_is_not_is_a_spoiler(answers):
    """hivemind looks up the code's name, and the error ends the search. Nobody else can be blamed for that."""
    one = led()

    async def follow() -> set[str]:
        asked = follower_of(one, [averaging_pb2.MessageFromLeader(code=code) for code in answers])
        async with asked.lock_looking_for_group:
            with pytest.raises(NonsenseError, match="a leader answers with a code"):
                await asked._request_join_group(one.leader.peer_id)
        return asked.take_spoilers()

    assert wait_for_result(follow()) == {str(one.leader.peer_id)}


def test_a_leader_that_has_not_heard_of_a_ban_is_not_blamed_for_its_group(monkeypatch):
    """`follower_assemble_group` judges the refusal of a ticket; its error must not be taken for nonsense."""
    one = led()

    async def refuse(self, leader, message):
        raise TicketRefused("banned", "eve has been banned")

    async def follow() -> set[str]:
        begin = averaging_pb2.MessageFromLeader(code=averaging_pb2.BEGIN_ALLREDUCE)
        asked = follower_of(one, [averaging_pb2.MessageFromLeader(code=averaging_pb2.ACCEPTED), begin])
        async with asked.lock_looking_for_group:
            with pytest.raises(TicketRefused):
                await asked._request_join_group(one.leader.peer_id)
        return asked.take_spoilers()

    monkeypatch.setattr(PatientMatchmaking, "follower_assemble_group", refuse)
    assert wait_for_result(follow()) == set()


def test_redirects_lead_to_nobody_that_is_left_out_and_not_round_in_circles(monkeypatch):
    asked, names = [], [PeerID(bytes([number]) * 4) for number in range(9)]
    leads_to = dict(itertools.pairwise(names))

    async def redirected(self, leader):
        asked.append(leader)
        return await self._request_join_group(leads_to[leader])

    monkeypatch.setattr(Matchmaking, "_request_join_group", redirected)
    one = follower()
    one._asked, one._leader, one.request_timeout, one.left_out = [], None, 60, frozenset()

    def ask() -> list[PeerID]:
        asked.clear()
        assert wait_for_result(one._request_join_group(names[0])) is None
        assert one._asked == []
        return list(asked)

    assert ask() == names[: MOST_REDIRECTS + 1]
    one.left_out = frozenset({names[2]})
    assert ask() == names[:2]
    one.left_out, leads_to[names[1]] = frozenset(), names[0]
    assert ask() == names[:2]
    leads_to[names[0]] = names[0]
    assert ask() == names[:1]


def test_a_peer_that_has_waited_long_for_an_answer_may_have_given_up(monkeypatch):
    leader, context = leader_of_two(monkeypatch), ADA
    leader._arrivals[id(context)] = time.monotonic() - leader.request_timeout
    answer = leader._check_reasons_to_reject(averaging_pb2.JoinRequest(gather=gather([7, False, 2])), context)
    assert answer.code == averaging_pb2.NOT_LOOKING_FOR_GROUP


@pytest.mark.parametrize(
    "expected, needed",
    [(0, (2, 2, 2)), (2, (2, 2, 2)), (3, (3, 2, 2)), (4, (4, 3, 2)), (5, (5, 3, 2)), (64, (64, 33, 2))],
)
def test_a_group_waits_for_all_then_for_the_majority_and_then_for_anybody(expected, needed):
    """So peers do not part in pairs because one of them has a bad link."""
    leader = object.__new__(PatientMatchmaking)
    leader._expected, leader._least, leader.min_matchmaking_time = expected, 2, 100.0
    for windows, least in zip((1, PATIENCE_WINDOWS + 1, PATIENCE_WINDOWS + MAJORITY_WINDOWS + 1), needed, strict=True):
        leader._began = time.monotonic() - 100.0 * windows
        assert leader.min_group_size == least
