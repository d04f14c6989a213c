"""How groups form: among peers in this process, whose clock is real, and over real connections."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from hivemind.p2p import P2P, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import as_aiter

from benchmarks.attacks.message_readers import follower_of, led
from calculator.swarm.forecast import PATIENCE_WINDOWS
from tests.training.swarm.two_nodes import two_nodes
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.engine.engine import open_connection
from training.swarm.engine.process import DHT
from training.swarm.epoch.gradients import GradientAverager
from training.swarm.node.admission import Admission
from training.swarm.round.averager import Averager
from training.swarm.round.gathering import FormedGroup, GroupMessage
from training.swarm.round.matchmaking import IDLE_WEIGHT, MAJORITY_WINDOWS, Matchmaking, Search
from training.swarm.round.pipe import AveragerSettings, Stage
from training.swarm.round.service import Service
from training.trust.check import TicketRefused

WINDOW_SECONDS, REQUEST_SECONDS = 1.0, 0.3
ADA, BOB, EVE, DAN = (PeerID(name.encode()) for name in ("ada", "bob", "eve", "dan"))
Message = averaging_pb2.MessageFromLeader


def message(announcement=None):
    """What a peer tells its group."""
    return GroupMessage(mbits=None, client_mode=False, announcement=announcement).packed()


class Network:
    """Peers that call each other in this process, and the records that all of them see."""

    def __init__(self):
        self.peers: dict[PeerID, Matchmaking] = {}
        self.records: dict[bytes, SimpleNamespace] = {}
        self.age_seconds = 0.0
        """How much earlier windows seem to end than they do."""
        self.lookups = []
        """Errors of the next looks for leaders."""

    def join(self, peer: PeerID, **settings: object) -> Matchmaking:
        """A peer that others can call."""
        known = {"matchmaking_seconds": WINDOW_SECONDS, "request_timeout_seconds": REQUEST_SECONDS}
        settings = AveragerSettings(prefix="meeting", **known | settings)
        dht = SimpleNamespace(peer_id=peer, store=self.store, get=self.get, run_coroutine=self.run_coroutine)
        self.peers[peer] = Matchmaking(SimpleNamespace(peer_id=peer), dht, self, settings, schema=b"schema")
        return self.peers[peer]

    def store(self, key, *, subkey, value, expiration_time, return_future):
        self.records[subkey] = SimpleNamespace(value=value, expiration_time=expiration_time)

    async def get(self, key, *, latest, return_future):
        if self.lookups:
            raise self.lookups.pop()
        there = {key: record for key, record in self.records.items() if record.expiration_time > get_dht_time()}
        return SimpleNamespace(
            value={
                key: SimpleNamespace(value=record.value, expiration_time=record.expiration_time - self.age_seconds)
                for key, record in there.items()
            }
        )

    async def run_coroutine(self, ask, *, return_future):
        return set()  # nobody is slow

    def get_stub(self, connection, leader, *, namespace):
        async def rpc_join_group(request):
            return self.peers[leader].rpc_join_group(request, SimpleNamespace(remote_id=connection.peer_id))

        return SimpleNamespace(rpc_join_group=rpc_join_group)


class Silent:
    """A leader that accepts, or does not even answer, and says nothing more."""

    def __init__(self, *messages: Message):
        self._messages = messages

    async def rpc_join_group(self, request, context) -> AsyncIterator[Message]:
        for message in self._messages:
            yield message
        await asyncio.sleep(60)


def lead_first(network: Network, peer: PeerID, *messages: Message) -> None:
    """This peer announces itself, so that it is asked first, and sends this to each follower."""
    network.peers[peer] = Silent(*messages)
    network.store("", subkey=peer.to_bytes(), value=True, expiration_time=get_dht_time() + 0.9, return_future=True)


def find(one: Matchmaking, *, seconds=10.0, expected=0, announcement=None, faults=None):
    """A search; a coroutine."""
    deadline = get_dht_time() + seconds
    return one.find_group(
        message(announcement), deadline=deadline, expected_peers=expected, faults={} if faults is None else faults
    )


async def meet(*searches) -> list[FormedGroup | None]:
    """The group that each finds; they begin one after the other."""
    tasks = []
    for search in searches:
        tasks.append(asyncio.ensure_future(search))
        await asyncio.sleep(0.05)
    return await asyncio.gather(*tasks)


# -- a group forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_group_begins_as_soon_as_all_expected_peers_are_there(size):
    network, began = Network(), time.monotonic()
    peers = [network.join(peer) for peer in (ADA, BOB, EVE, DAN)[:size]]
    groups = wait_for_result(meet(*(find(peer, expected=size) for peer in peers)))
    assert len({group.group_id for group in groups}) == 1 and set(groups[0].peers) == set(network.peers)
    assert time.monotonic() - began < WINDOW_SECONDS


def test_peers_that_know_of_nobody_form_a_group_when_the_first_one_s_window_ends():
    network, began = Network(), time.monotonic()
    groups = wait_for_result(meet(*(find(network.join(peer)) for peer in (ADA, BOB, EVE))))
    assert len({group.group_id for group in groups}) == 1
    assert WINDOW_SECONDS <= time.monotonic() - began < 2 * WINDOW_SECONDS


def test_a_group_that_lacks_a_peer_waits_until_it_is_told_that_the_peer_is_gone():
    network = Network()

    async def lose_one() -> list[FormedGroup]:
        ada, bob = network.join(ADA), network.join(BOB)
        searches = asyncio.gather(find(ada, expected=3), find(bob, expected=3))
        await asyncio.sleep(0.5)
        assert not searches.done()
        ada.expect_fewer(1)
        bob.expect_fewer(1)
        return await asyncio.wait_for(searches, WINDOW_SECONDS / 4)

    groups = wait_for_result(lose_one())
    assert groups[0].group_id == groups[1].group_id


def test_a_peer_in_client_mode_follows_and_never_leads():
    network = Network()
    groups = wait_for_result(
        meet(find(network.join(ADA, client_mode=True), expected=2), find(network.join(BOB), expected=2))
    )
    assert groups[0].group_id == groups[1].group_id
    assert network.records.keys() == {BOB.to_bytes()}


def test_a_search_that_finds_nobody_ends_at_its_deadline():
    network, began = Network(), time.monotonic()
    assert wait_for_result(find(network.join(ADA), seconds=1.5)) is None
    assert 1.5 <= time.monotonic() - began < 2.0
    assert network.records[ADA.to_bytes()].value is False


def test_a_search_goes_on_after_a_look_that_has_failed():
    network = Network()
    network.lookups = [TimeoutError("the node is busy")] * 2
    groups = wait_for_result(meet(find(network.join(ADA), expected=2), find(network.join(BOB), expected=2)))
    assert groups[0].group_id == groups[1].group_id


def test_a_search_that_is_given_up_leaves_nothing_behind_and_another_one_may_begin():
    network = Network()

    async def give_up() -> list[FormedGroup]:
        ada, bob = network.join(ADA), network.join(BOB)
        before = asyncio.all_tasks()
        first = asyncio.gather(find(ada, expected=3), find(bob, expected=3), return_exceptions=True)
        await asyncio.sleep(0.5)
        first.cancel()
        again = asyncio.gather(find(ada, expected=2), find(bob, expected=2))
        with suppress(asyncio.CancelledError):
            await first
        groups = await again
        await asyncio.sleep(0.1)
        assert asyncio.all_tasks() == before
        return groups

    groups = wait_for_result(give_up())
    assert groups[0].group_id == groups[1].group_id


def test_two_peers_that_ask_each_other_at_once_are_in_one_group_of_which_both_know():
    """As with old news of when the other began."""
    network, began = Network(), time.monotonic()
    network.age_seconds = 0.5
    groups = wait_for_result(asyncio.wait_for(meet_at_once(network.join(ADA), network.join(BOB)), 10))
    assert groups[0].group_id == groups[1].group_id and time.monotonic() - began < WINDOW_SECONDS


async def meet_at_once(*peers: Matchmaking) -> list[FormedGroup | None]:
    return await asyncio.gather(*(find(peer, expected=len(peers)) for peer in peers))


def test_an_announcement_that_lasts_for_an_hour_keeps_nobody_from_finding_the_others():
    network = Network()
    network.store("", subkey=EVE.to_bytes(), value=True, expiration_time=get_dht_time() + 3000, return_future=True)
    groups = wait_for_result(meet(find(network.join(ADA), expected=2), find(network.join(BOB), expected=2)))
    assert groups[0].group_id == groups[1].group_id


# -- leaders that waste a peer's time ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages, weight",
    [
        ([], 0.0),
        ([Message(code=averaging_pb2.ACCEPTED)], IDLE_WEIGHT),
        ([Message(code=averaging_pb2.ACCEPTED), Message(code=averaging_pb2.BEGIN_ALLREDUCE)], 1.0),
    ],
    ids=["mute", "idle", "nonsense"],
)
def test_a_leader_that_wastes_time_is_noted_and_the_others_find_each_other(messages, weight):
    network, faults = Network(), {}
    lead_first(network, EVE, *messages)
    ada = find(network.join(ADA), expected=3, faults=faults)
    groups = wait_for_result(meet(ada, find(network.join(BOB), expected=2)))
    assert set(groups[0].peers) == {ADA, BOB}
    assert faults == {EVE: weight}


def test_a_leader_that_is_left_out_is_not_asked():
    network, faults = Network(), {}
    lead_first(network, EVE)
    ada = network.join(ADA)
    ada.left_out = frozenset({EVE})
    assert wait_for_result(find(ada, seconds=1.0, expected=3, faults=faults)) is None
    assert not faults


def search(*, expected=2):
    """A search of a peer at epoch 7 that has announced itself; needs a running event loop."""
    found = Search(message=message([7, False, 2]), deadline=get_dht_time() + 60, expected=expected, faults={})
    found.window_ends = get_dht_time() + 5
    return found


def answer_to(request_words, *, peer=BOB, expected=2, prepare=lambda one, found: None, seconds=10.0, **settings):
    """The code with which a leader at epoch 7 refuses a peer, and the number of peers that it expects then."""

    async def ask():
        one, found = Network().join(ADA, **settings), search(expected=expected)
        prepare(one, found)
        request = averaging_pb2.JoinRequest(
            schema_hash=b"schema", expiration=get_dht_time() + seconds, gather=request_words
        )
        return one._refusal(found, request, peer), found.expected

    return wait_for_result(ask())


@pytest.mark.parametrize(
    "announcement, refusal",
    [
        (message([7, True, 2]), None),
        (message([6, False, 2]), averaging_pb2.BAD_GROUP_KEY),
        (message([8, False, 2]), averaging_pb2.BAD_GROUP_KEY),
        (message("hm"), None),
        (b"?", averaging_pb2.PROTOCOL_VIOLATION),
    ],
    ids=["the same epoch", "an earlier one", "a later one", "none", "garbage"],
)
def test_a_group_is_of_one_epoch(announcement, refusal):
    """A newcomer at an epoch that has just ended would make one of the others wait, and leave the third without it."""
    assert answer_to(announcement)[0] == refusal


@pytest.mark.parametrize("announcement, expected", [(2, 2), (3, 3), (9, 3), (0, 2)])
def test_a_group_waits_for_one_more_if_a_newcomer_knows_of_more(announcement, expected):
    """Else it would make the group whole in the place of one of the others."""
    assert answer_to(message([7, True, announcement])) == (None, expected)


@pytest.mark.parametrize("seconds", [1.0, math.nan, -math.inf])
def test_a_leader_refuses_whoever_s_window_ends_before_its_own(seconds):
    """Two peers that ask each other at the same moment would both follow."""
    assert answer_to(message(), seconds=seconds)[0] == averaging_pb2.BAD_EXPIRATION_TIME


def left_out(one, found):
    one.left_out = frozenset({BOB})


def told_nonsense(one, found):
    found.faults[BOB] = 1.0


def follows(one, found):
    found.follows = True


def has_a_group(one, found):
    found.found.cancel()


@pytest.mark.parametrize(
    "prepare, refusal",
    [
        (left_out, averaging_pb2.PROTOCOL_VIOLATION),
        (told_nonsense, averaging_pb2.PROTOCOL_VIOLATION),
        (follows, averaging_pb2.NOT_A_LEADER),
        (has_a_group, averaging_pb2.NOT_LOOKING_FOR_GROUP),
    ],
)
def test_a_leader_refuses_followers(prepare, refusal):
    assert answer_to(message(), prepare=prepare)[0] == refusal


@pytest.mark.parametrize(
    "expected, needed",
    [(0, (2, 2, 2)), (2, (2, 2, 2)), (3, (3, 2, 2)), (4, (4, 3, 2)), (5, (5, 3, 2)), (64, (64, 33, 2))],
)
def test_a_group_waits_for_all_then_for_the_majority_and_then_for_anybody(expected, needed):
    """So peers do not part in pairs because one of them has a bad link."""

    async def fewest(windows):
        one, found = Network().join(ADA, matchmaking_seconds=100.0), search(expected=expected)
        found.began = time.monotonic() - 100.0 * windows
        return one._fewest(found)

    for windows, least in zip((1, PATIENCE_WINDOWS + 1, PATIENCE_WINDOWS + MAJORITY_WINDOWS + 1), needed, strict=True):
        assert wait_for_result(fewest(windows)) == least


# -- followers ---------------------------------------------------------------------------------------------------------


async def lead(network: Network, *followers: PeerID, expected: int) -> tuple[asyncio.Task, list[AsyncIterator]]:
    """A search of ada, and the answers to its followers, of each of which one has been read."""
    leader = network.join(ADA, matchmaking_seconds=5.0)
    finding = asyncio.create_task(find(leader, expected=expected))
    await asyncio.sleep(0.05)
    answers = []
    for peer in followers:
        request = averaging_pb2.JoinRequest(schema_hash=b"schema", expiration=get_dht_time() + 60, gather=message())
        answers.append(leader.rpc_join_group(request, SimpleNamespace(remote_id=peer)))
        assert (await anext(answers[-1])).code == averaging_pb2.ACCEPTED
    return finding, answers


def test_a_follower_that_reads_nothing_more_does_not_hold_up_its_leader():
    async def begin() -> FormedGroup:
        finding, (answers,) = await lead(Network(), BOB, expected=2)
        assert (await anext(answers)).code == averaging_pb2.BEGIN_ALLREDUCE  # and no further: it is being sent
        return await asyncio.wait_for(finding, 1.0)

    assert set(wait_for_result(begin()).peers) == {ADA, BOB}


def test_a_follower_that_hangs_up_is_in_no_group():
    async def begin() -> FormedGroup:
        finding, (bob, eve) = await lead(Network(), BOB, EVE, expected=3)
        await bob.aclose()
        dan = asyncio.ensure_future(anext(eve))
        await asyncio.sleep(0.1)
        assert not finding.done()
        dan.cancel()
        finding.cancel()
        await asyncio.wait([finding, dan])
        return finding.cancelled()

    assert wait_for_result(begin())


def test_followers_are_sent_away_when_their_leader_gives_up():
    async def begin() -> int:
        finding, (answers,) = await lead(Network(), BOB, expected=3)
        coming = asyncio.ensure_future(anext(answers))
        await asyncio.sleep(0.05)
        finding.cancel()
        return (await asyncio.wait_for(coming, 1.0)).code

    assert wait_for_result(begin()) == averaging_pb2.GROUP_DISBANDED


def test_a_follower_that_is_banned_while_it_waits_is_in_no_group(monkeypatch):
    def check(self, peer, announcement):
        if peer == BOB:
            raise TicketRefused("banned", "bob has been banned")

    async def begin() -> FormedGroup:
        leader, found = Network().join(ADA), search(expected=3)
        found.followers |= {BOB: message(), EVE: message()}
        assert not leader._begin(found, 3) and leader._begin(found, 2)
        return found.found.result()

    monkeypatch.setattr(Matchmaking, "_check_ticket", check)
    assert set(wait_for_result(begin()).peers) == {ADA, EVE}


# -- what a follower believes ------------------------------------------------------------------------------------------


def test_a_follower_whose_words_were_changed_does_not_join():
    """The peers would divide the tensors differently, and find fault with each other."""

    async def join(announcement):
        ada, found = Network().join(ADA), search()
        group = FormedGroup.of({BOB: message([7, False, 2]), ADA: announcement or found.message})
        ada._join(found, BOB, group.message())
        return found.found.done(), found.faults

    assert wait_for_result(join(None)) == (True, {})
    assert wait_for_result(join(message([7, False, 2]))) == (False, {BOB: 1.0})


def test_a_follower_joins_no_group_of_several_epochs():
    async def join(epoch):
        ada, found = Network().join(ADA), search()
        ada._join(found, BOB, FormedGroup.of({BOB: message([epoch, False, 2]), ADA: found.message}).message())
        return found.found.done(), found.faults

    assert wait_for_result(join(7)) == (True, {})
    assert wait_for_result(join(9)) == (False, {BOB: 1.0})


@pytest.mark.parametrize("code", [99, averaging_pb2.INTERNAL_ERROR])
@pytest.mark.parametrize("accepts", [False, True])
def test_a_leader_that_answers_with_another_code_leads_to_no_group(code, accepts):
    async def follow() -> bool:
        answers = [Message(code=averaging_pb2.ACCEPTED)] * accepts + [Message(code=code)]
        matchmaking, found = follower_of(one, answers)
        await matchmaking._ask(found, one.leader.peer_id)
        return found.found.done() or bool(found.faults) or found.asks or found.follows

    one = led()
    assert not wait_for_result(follow())


@pytest.mark.parametrize("is_late_news", [False, True])
def test_a_leader_that_has_not_heard_of_a_ban_is_not_blamed_for_its_group(is_late_news, monkeypatch):
    def refuse(self, peer, announcement):
        raise TicketRefused("banned", "eve has been banned")

    monkeypatch.setattr(Matchmaking, "_check_ticket", refuse)
    monkeypatch.setattr(Admission, "may_be_late_news", lambda self, refused: is_late_news)

    async def join():
        ada, found = Network().join(ADA), search()
        ada._admission = Admission("", "demo")
        ada._join(found, BOB, FormedGroup.of({BOB: message([7, False, 2]), ADA: found.message}).message())
        return found.found.done(), found.faults

    assert wait_for_result(join()) == (False, {} if is_late_news else {BOB: 1.0})


# -- over real connections ---------------------------------------------------------------------------------------------


nodes = pytest.fixture(scope="module")(two_nodes)


async def send_part(node: DHT, peer: PeerID) -> averaging_pb2.AveragingData:
    """What a peer answers to a part of a tensor for a group that it has never heard of."""
    connection = await open_connection(node)
    try:
        stub = Service.get_stub(connection, peer, namespace="averaging")
        parts = as_aiter(averaging_pb2.AveragingData(group_id=b"a group without it"))
        return await anext(await stub.rpc_aggregate_part(parts))
    finally:
        await connection.shutdown()


@pytest.mark.swarm
def test_no_leader_is_waited_for_that_lets_no_stream_open():
    """Its network daemon stands still, so that the connection stays and no stream opens; hivemind waits ten seconds."""

    async def ask() -> float:
        leader = await P2P.create(host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        peer = await P2P.create(initial_peers=await leader.get_visible_maddrs(), host_maddrs=["/ip4/127.0.0.1/tcp/0"])
        settings = AveragerSettings(prefix="meeting", request_timeout_seconds=1.0)
        one = Matchmaking(peer, SimpleNamespace(), Service, settings, schema=b"schema")
        os.kill(leader._child.pid, signal.SIGSTOP)
        os.waitpid(leader._child.pid, os.WUNTRACED)  # until all of its threads stand still
        began = time.monotonic()
        try:
            await one._ask(search(), leader.peer_id)
        finally:
            os.kill(leader._child.pid, signal.SIGCONT)
            await peer.shutdown()
            await leader.shutdown()
        return time.monotonic() - began

    assert asyncio.run(ask()) < 10


@pytest.mark.swarm
def test_a_peer_that_looks_for_a_group_says_at_once_that_it_is_in_no_other(nodes):
    node, other = nodes
    settings = AveragerSettings(prefix="averaging", matchmaking_seconds=10.0, request_timeout_seconds=3.0)
    averager = Averager([torch.zeros(4)], dht=node, settings=settings)
    try:
        round_ = averager.begin_round(seconds=60)
        time.sleep(1.0)
        assert round_.stage is Stage.SEARCHING
        answer = wait_for_result(asyncio.wait_for(send_part(other, node.peer_id), 3.0))
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
