"""A run for members only: whoever is uninvited gets no byte of a state, is in no group, and nobody believes a record.

The uninvited are real peers: nodes and averagers of this program, changed so that they let everybody in, and with the
ticket that they have.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hivemind.averaging.averager import compute_schema_hash
from hivemind.compression import NoCompression
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import ServicerBase
from hivemind.proto import averaging_pb2, dht_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import as_aiter
from hivemind.utils.serializer import MSGPackSerializer
from members import HOUR_SECONDS, LINEAGE, bans, closed_run, over, ticket

from tests.programs import until
from training.data.ranges import Ranges
from training.data.shared import Word as PassWord
from training.errors import TrainingError
from training.swarm import rounds
from training.swarm.admission import Admission
from training.swarm.alignment import AlignmentState
from training.swarm.auditor import Auditor
from training.swarm.coroutine import wait_for_result
from training.swarm.dht import full_addresses, post_recipe, posted_words, start_dht
from training.swarm.download import Landing, _Download, download_state, find_donors
from training.swarm.engine import open_connection
from training.swarm.host import Host
from training.swarm.identity import Identity
from training.swarm.lineage import Lineage, Word, post_lineage, posted_lineages, run_prefix
from training.swarm.matchmaking import PatientKeyManager, PatientMatchmaking
from training.swarm.metrics import MetricsBoard, PeerRecord, read_records
from training.swarm.parameters import ParameterAverager, state_prefix
from training.swarm.pipe import AveragerSettings, Stage
from training.swarm.progress import Progress
from training.swarm.service import Service
from training.swarm.serving import StateService
from training.swarm.shared_pass import PassBoard
from training.swarm.tokens import tell_tokens, told_tokens
from training.swarm.witnesses import SEED_BYTES
from training.swarm.witnesses import ask as ask_witnesses
from training.trust.check import TicketRefused
from training.trust.keys import MembershipKey

KEY = MembershipKey.begin()
RUN = closed_run(KEY)
PREFIX = run_prefix("demo", Lineage(id=LINEAGE))
STATE = state_prefix(PREFIX)
UNINVITED = ["no ticket", "expired", "another's", "another run's", "another key's", "banned"]
MODEL = torch.nn.Linear(30, 20)
SHAPES = [parameter.shape for parameter in MODEL.parameters()]
SEARCH_SECONDS = 12.0


class Careless(Admission):
    """Of a program that was changed so that it lets everybody in."""

    def check(self, *_, **__):
        return None


@dataclass
class Peer:
    """A peer with its node, and perhaps with its averager of parameters."""

    identity: Identity
    admission: Admission
    dht: object
    averager: ParameterAverager | None = None

    @property
    def id(self):
        return self.identity.peer_id

    def tell(self, text, **news):
        self.admission.tell(own_ticket=text, lineages=[LINEAGE], **news)

    def average(self, expected=2):
        """Begins a round that averages as soon as it has a group."""
        round_ = self.averager.begin_round([0, False, expected], seconds=SEARCH_SECONDS, expected_peers=expected)
        round_.start(1.0)
        return round_


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two members, one of them the first peer of the run; one that is banned, and one without a ticket of its own."""
    folder = tmp_path_factory.mktemp("world")
    groups = folder / "groups"
    groups.touch()
    announce = rounds.AllReduces.announce

    def announce_and_tell(self, *ids):
        with groups.open("a") as file:
            file.writelines(f"{self.peer_id} {one.hex()}\n" for one in ids)
        announce(self, *ids)

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds.AllReduces, "announce", announce_and_tell)
        ada = start(stack, folder / "ada", Admission)
        members = SimpleNamespace(ada=ada, groups=groups)
        members.bob = start(stack, folder / "bob", Admission, ada)
        members.banned = start(stack, folder / "banned", Careless, ada)
        members.eve = start(stack, folder / "eve", Careless, ada)
        for name, member in (("ada", ada), ("bob", members.bob)):
            text = ticket(KEY, member.identity, account=f"invited:{name}")
            member.tell(text, bans=bans(str(members.banned.id)))
        for peer in (ada, members.bob, members.banned, members.eve):
            offer(stack, peer)
        yield members


def uninvited(world, kind):
    """A peer that is uninvited in this way."""
    peer = world.banned if kind == "banned" else world.eve
    peer.tell(ticket_of(kind, peer.identity, world.ada.admission.own_ticket))
    return peer


def start(stack, folder, kind, first=None):
    identity, admission = Identity(folder), kind(KEY.public, "demo")
    known = full_addresses(first.dht) if first is not None else []
    dht = start_dht(RUN, identity, initial_peers=known, host_maddrs=["/ip4/127.0.0.1/tcp/0"], admission=admission)
    stack.callback(dht.shutdown)
    return Peer(identity, admission, dht)


def ticket_of(kind, identity, anothers):
    """What somebody who is uninvited has."""
    return {
        "no ticket": "",
        "expired": over(KEY, identity),
        "another's": anothers,
        "another run's": ticket(KEY, identity, run_id="another"),
        "another key's": ticket(MembershipKey.begin(), identity),
        "banned": ticket(KEY, identity, issued=int(time.time()) - HOUR_SECONDS),
    }[kind]


def offer(stack, peer, **changes):
    """Lets a peer average, and offer its state; `changes` are settings of its averager."""
    host = Host([{"params": list(MODEL.parameters())}], torch.optim.Adam, lambda epoch: 0.001)
    wanted = {
        "matchmaking_seconds": 2.0,
        "request_timeout_seconds": 1.0,
        "next_chunk_timeout_seconds": 5.0,
        "audit_share": 0.02,
    }
    settings = AveragerSettings(prefix=STATE, **{**wanted, **changes})
    codec, lineage = NoCompression(), Lineage(id=LINEAGE)
    peer.averager = ParameterAverager(
        host, AlignmentState(), dht=peer.dht, settings=settings, codec=codec, lineage=lineage
    )
    stack.callback(peer.averager.shutdown)
    peer.averager.offer_state(0.0)


# -- members -----------------------------------------------------------------------------------------------------------


def states_of(peer):
    """What a peer downloads, or why it gets nothing."""
    try:
        return download_state(
            peer.dht,
            PREFIX,
            lineage=Lineage(id=LINEAGE),
            shapes=SHAPES,
            chunk_seconds=10,
            total_seconds=20,
            max_bytes=10**7,
            epochs=range(5),
        )
    except TrainingError as error:
        return str(error)


def post_everything(peer):
    """Stores a record of each kind that peers store."""
    post_recipe(peer.dht, RUN, peer.identity)
    tell_tokens(peer.dht, RUN, peer.identity, "f" * 16)
    post_lineage(peer.dht, "demo", Word(lineage=Lineage(id=LINEAGE), epoch=3), peer.identity)
    MetricsBoard(dht=peer.dht, run_id="demo", expiration_seconds=60).post(metrics_of(peer), peer.identity)


def metrics_of(peer):
    facts = dict.fromkeys(("epoch", "samples", "averaged_epochs", "alone_epochs", "bytes_sent", "bytes_received"), 1)
    facts |= {"samples_per_second": 1.0, "seconds": 1.0, "loss": 1.0, "group_size": 1, "micro_batch_size": 1}
    told = {"name": "somebody", "peer_id": str(peer.id), "status": "training", "version": "1", "time": time.time()}
    return PeerRecord(**facts, **told)


def believed(peer):
    """Whose records a peer believes, of each kind."""
    signers = {
        "recipe": posted_words(peer.dht, "demo_recipe"),
        "tokens": told_tokens(peer.dht, RUN),
        "lineage": [word.signer for word in posted_lineages(peer.dht, "demo")],
        "metrics": [record.peer_id for record in read_records(peer.dht, "demo")],
        "offers": map(str, find_donors(peer.dht, PREFIX)),
    }
    return {kind: len(set(found)) for kind, found in signers.items()}


@pytest.mark.swarm
def test_members_believe_each_other_take_states_and_average(world):
    for member in (world.ada, world.bob):
        post_everything(member)
    until(lambda: believed(world.ada) == dict.fromkeys(believed(world.ada), 2), within=30)
    state = states_of(world.bob)
    assert state.donor == str(world.ada.id), state
    assert all(torch.equal(one, other) for one, other in zip(state.tensors, MODEL.parameters(), strict=False))
    rounds_ = [member.average() for member in (world.ada, world.bob)]
    for round_ in rounds_:
        assert round_.result(30).report.senders == 2


# -- the uninvited -----------------------------------------------------------------------------------------------------


@pytest.mark.swarm
@pytest.mark.parametrize("kind", UNINVITED)
def test_nobody_believes_a_record_of_the_uninvited(world, kind):
    """Neither what their own nodes keep, nor what they send to a member's node."""
    eve = uninvited(world, kind)
    before = {name: believed(member) for name, member in (("ada", world.ada), ("bob", world.bob))}
    post_everything(eve)
    assert set(wait_for_result(send_records(eve, world.ada.id))) == {False}
    # A member's own record through the uninvited is one that a member has made.
    assert {name: believed(member) for name, member in (("ada", world.ada), ("bob", world.bob))} == before
    assert str(eve.id) not in {word.signer for word in posted_lineages(world.ada.dht, "demo")}
    settings = {"prefix": PREFIX, "target_batch_size": 64, "lively_seconds": 5.0}
    if kind == UNINVITED[0]:
        progress = Progress(dht=eve.dht, private_key=eve.identity.private_key, **settings)
        progress.start()
        progress.report(10**6, 1)
        own = Progress(dht=world.ada.dht, private_key=world.ada.identity.private_key, **settings)
        time.sleep(2)
        assert own.look_around()[0] == 0
        progress.shutdown()


@pytest.mark.swarm
@pytest.mark.parametrize("kind", UNINVITED)
def test_nobody_believes_what_the_uninvited_say_of_a_shared_pass(world, kind):
    eve = uninvited(world, kind)
    boards = {
        peer.id: PassBoard(peer.dht, peer.identity, prefix=PREFIX, order="0" * 16)
        for peer in (world.ada, world.bob, eve)
    }
    for board in boards.values():
        word = {"done": Ranges([(0, 10**9)]), "claims": (), "wishes": (), "claimed_until": time.time() + 60}
        board.post(PassWord(peer=board.peer, **word))
    until(lambda: [word.peer for word in boards[world.ada.id].look()] == [str(world.bob.id)], within=30)
    assert [word.peer for word in boards[world.bob.id].look()] == [str(world.ada.id)]


async def send_records(eve, peer):
    """What a node answers to records of each kind that are sent to it directly."""
    p2p = await open_connection(eve.dht)
    stub = ServicerBase.get_stub.__func__(DHTProtocol, p2p, peer)
    signer, text = eve.identity.signer(), eve.admission.own_ticket
    answers = []
    try:
        samples = f"{PREFIX}_samples"
        for key in (
            "demo_recipe",
            "demo_metrics",
            f"{PREFIX}_progress",
            samples,
            f"{STATE}.0b",
            f"{STATE}.all_averagers",
        ):
            subkey = MSGPackSerializer.dumps(signer.local_public_key)
            record = DHTRecord(
                DHTID.generate(source=key).to_bytes(), subkey, MSGPackSerializer.dumps(1), get_dht_time() + 60
            )
            signed = signer.sign_value(record)
            for value in (signed, signed + b"[ticket:" + text.encode() + b"]"):
                request = dht_pb2.StoreRequest(
                    keys=[record.key],
                    subkeys=[subkey],
                    values=[value],
                    expiration_time=[record.expiration_time],
                    in_cache=[False],
                )
                answers += list((await stub.rpc_store(request, timeout=10)).store_ok)
    finally:
        await p2p.shutdown()
    return answers


async def send_dictionary(sender, signers, peer):
    """What a node answers to records of several peers under one key that are sent to it together."""
    p2p, records = await open_connection(sender.dht), DictionaryDHTValue()
    key, expires = DHTID.generate(source="demo_tokens").to_bytes(), get_dht_time() + 300
    for one in signers:
        subkey = one.dht.public_key
        record = DHTRecord(key, MSGPackSerializer.dumps(subkey), MSGPackSerializer.dumps("e" * 16), expires)
        value = one.identity.signer().sign_value(record) + b"[ticket:" + one.admission.own_ticket.encode() + b"]"
        records.store(subkey, value, expires)
    request = dht_pb2.StoreRequest(
        keys=[key],
        subkeys=[DHTProtocol.IS_DICTIONARY],
        values=[MSGPackSerializer.dumps(records)],
        expiration_time=[expires],
        in_cache=[False],
    )
    try:
        stub = ServicerBase.get_stub.__func__(DHTProtocol, p2p, peer)
        return list((await stub.rpc_store(request, timeout=10)).store_ok)
    finally:
        await p2p.shutdown()


@pytest.mark.swarm
@pytest.mark.parametrize("kind", UNINVITED)
def test_the_uninvited_get_no_byte_of_a_state(world, kind):
    eve = uninvited(world, kind)
    received = wait_for_result(take_states(eve, world.ada.id))
    assert received == {"as anybody": 0, "as a member": 0, "sample": 0}
    assert "sent nothing" in states_of(eve)


async def take_states(eve, donor):
    """Bytes that somebody gets by each way to ask for a state."""
    p2p = await open_connection(eve.dht)
    stub = StateService.get_stub(p2p, donor, namespace=STATE)
    text = [eve.admission.own_ticket.encode()]
    try:
        anybody = await stub.rpc_download_state(averaging_pb2.DownloadRequest())
        member = await stub.rpc_download_state_as_member(averaging_pb2.MessageFromLeader(gathered=text))
        asked = averaging_pb2.MessageFromLeader(group_id=b"1" * SEED_BYTES, gathered=text)
        sample = await stub.rpc_sample_state(asked)
        counts = [sum([message.ByteSize() async for message in stream]) for stream in (anybody, member)]
        return {"as anybody": counts[0], "as a member": counts[1], "sample": sample.ByteSize()}
    finally:
        await p2p.shutdown()


@pytest.mark.swarm
def test_members_take_no_state_from_the_uninvited_and_believe_none_as_a_witness(world):
    """Even if they know of its offer."""
    for kind in UNINVITED:
        eve = uninvited(world, kind)
        fault, samples = wait_for_result(take_from(world.ada, eve))
        assert isinstance(fault, TicketRefused) and samples == []
    world.eve.tell(ticket(KEY, world.eve.identity))
    state, samples = wait_for_result(take_from(world.ada, world.eve))
    assert state.donor == str(world.eve.id) and len(samples) == 1


async def take_from(peer, donor):
    """The state that a donor sends, or why it is refused; and its samples as a witness."""
    p2p = await open_connection(peer.dht)
    wanted = {"lineage": Lineage(id=LINEAGE), "shapes": SHAPES, "epochs": range(5), "landing": Landing()}
    limits = {"chunk_seconds": 10, "max_bytes": 10**7, "service": StateService}
    download = _Download(prefix=PREFIX, **wanted, **limits, admission=peer.admission)
    try:
        state = await download.fetch(p2p, donor.id)
    except TicketRefused as error:
        state = error
    try:
        return state, (await ask_witnesses(p2p, StateService, STATE, [donor.id], SHAPES, peer.admission))[1]
    finally:
        await p2p.shutdown()


@pytest.mark.swarm
def test_the_uninvited_are_in_no_group_while_members_go_on(world):
    alone = world.ada.averager.begin_round([0, False, 9], seconds=SEARCH_SECONDS, expected_peers=9)
    until(lambda: world.ada.id in looking(world.bob), within=10)
    # A member's request, which is the same but for the ticket.
    assert wait_for_result(ask_to_lead(world.bob, world.ada.id)) == averaging_pb2.ACCEPTED
    alone.cancel()
    until(lambda: world.ada.id not in looking(world.bob), within=10)
    for kind in UNINVITED:
        eve = uninvited(world, kind)
        search = eve.average(expected=3)
        waits = world.ada.averager.begin_round([0, False, 2], seconds=SEARCH_SECONDS, expected_peers=2)
        until(lambda: world.ada.id in looking(world.bob), within=10)
        assert wait_for_result(ask_to_lead(eve, world.ada.id)) == averaging_pb2.PROTOCOL_VIOLATION
        waits.start(1.0)
        for round_ in (waits, world.bob.average()):
            group = round_.result(30)
            assert set(map(str, group.told)) == {str(world.ada.id), str(world.bob.id)}
            assert group.report.senders == 2
        assert search.stage is Stage.SEARCHING and looking(world.bob) <= {world.ada.id, world.bob.id}
        search.cancel()


def looking(peer):
    """Who looks for a group, as a peer sees it."""
    manager = PatientKeyManager(
        peer.dht, STATE, "", None, follows=lambda other: True, pause=lambda: 0.0, window_seconds=60.0
    )

    async def look():
        return {other for other, _ in await manager.get_averagers(manager.current_key, True)}

    return wait_for_result(look())


async def ask_to_lead(eve, leader):
    """The answer to a request to join a group that is otherwise as a member's."""
    p2p = await open_connection(eve.dht)
    try:
        stub = Service.get_stub(p2p, leader, namespace=STATE)
        words = [None, 0, MSGPackSerializer.dumps([0, False, 2]), eve.admission.own_ticket]
        request = averaging_pb2.JoinRequest(
            schema_hash=compute_schema_hash([parameter.detach() for parameter in MODEL.parameters()]),
            expiration=get_dht_time() + 60,
            client_mode=False,
            gather=MSGPackSerializer.dumps(words),
            group_key=f"{STATE}.0b",
        )
        stream = await stub.rpc_join_group(request)
        return (await asyncio.wait_for(anext(stream), 10)).code
    finally:
        await p2p.shutdown()


@pytest.mark.swarm
def test_parts_and_verdicts_of_those_outside_a_group_are_not_accepted(world):
    """Even if they know the group's id."""
    rounds_ = [
        member.averager.begin_round([0, False, 2], seconds=SEARCH_SECONDS, expected_peers=2)
        for member in (world.ada, world.bob)
    ]
    until(lambda: all(round_.stage is Stage.WAITING for round_ in rounds_), within=30)
    for round_ in rounds_:
        round_.start(1.0)
    eve = uninvited(world, "expired")
    until(lambda: world.groups.read_text(), within=10)
    group = bytes.fromhex(world.groups.read_text().split()[-1])
    part, verdict = wait_for_result(send_to_group(eve, world.ada.id, group))
    assert part is None and verdict in (None, averaging_pb2.PROTOCOL_VIOLATION, averaging_pb2.BAD_GROUP_ID)
    for round_ in rounds_:
        assert round_.result(30).report.senders == 2
    # Members may check each other afterwards; nobody else is shown anything, or listened to.
    assert wait_for_result(ask_to_check(world.bob, world.ada.id, group))[0] > 0
    shown, accusation = wait_for_result(ask_to_check(eve, world.ada.id, group))
    assert shown == 0 and accusation in (None, averaging_pb2.PROTOCOL_VIOLATION)


async def send_to_group(eve, peer, group):
    """What a member answers to a part and a verdict for its group: the mean of the part, and the code."""
    p2p = await open_connection(eve.dht)
    stub = Service.get_stub(p2p, peer, namespace=STATE)
    part = verdict = None
    try:
        data = averaging_pb2.AveragingData(group_id=group, code=averaging_pb2.PART_FOR_AVERAGING, weight=1.0)
        with suppress(Exception):  # a call that is refused
            async for message in await stub.rpc_aggregate_part(as_aiter(data)):
                part = message.tensor_part.buffer or part
        with suppress(Exception):
            verdict = (await stub.rpc_agree(averaging_pb2.MessageFromLeader(group_id=group))).code
        return part, verdict
    finally:
        await p2p.shutdown()


async def ask_to_check(peer, asked, group):
    """Bytes that somebody is shown who says that it checks an average of a group, and the answer to an accusation."""
    p2p = await open_connection(peer.dht)
    try:
        stub = Auditor.get_stub(p2p, asked, namespace=STATE)
        reducer = {"suggested_leader": asked.to_bytes(), "gathered": [bytes(4)]}
        stream = await stub.rpc_show_part(averaging_pb2.MessageFromLeader(group_id=group, **reducer))
        shown = [(await asyncio.wait_for(anext(stream), 10)).ByteSize()]
        accusation = None
        with suppress(Exception):  # a call that is refused
            accusation = (await stub.rpc_accuse(as_aiter(averaging_pb2.DownloadData(metadata=b"nonsense")))).code
        return sum(shown), accusation
    finally:
        await p2p.shutdown()


# -- what a member believes of a leader --------------------------------------------------------------------------------


def follower(world):
    """Matchmaking of ada, as it follows bob."""
    one = object.__new__(PatientMatchmaking)
    one._admission, one.peer_id, one._spoilers, one._epochs_apart = world.ada.admission, world.ada.id, set(), 0
    one._idle, one._mute_at, one._nonsense_at = {}, {}, {}
    return one


@pytest.mark.swarm
@pytest.mark.parametrize("kind", UNINVITED)
def test_a_member_refuses_a_group_with_the_uninvited_and_its_leader_spoils(world, kind):
    eve, one = uninvited(world, kind), follower(world)
    texts = {peer.id: peer.admission.own_ticket for peer in (world.ada, world.bob, eve)}
    words = [MSGPackSerializer.dumps([None, 0, MSGPackSerializer.dumps(7), text]) for text in texts.values()]
    group = averaging_pb2.MessageFromLeader(ordered_peer_ids=[peer.to_bytes() for peer in texts], gathered=words)
    with pytest.raises(TicketRefused):
        wait_for_result(one.follower_assemble_group(world.bob.id, group))
    # An honest leader may not have heard of the ban yet.
    is_late_news = kind == "banned" and world.ada.admission.may_be_late_news(TicketRefused("banned", ""))
    assert one.take_spoilers() == (set() if is_late_news else {str(world.bob.id)})
    assert one._mute_at.keys() == (set() if is_late_news else {world.bob.id})  # it is not followed again soon


# -- a ban -------------------------------------------------------------------------------------------------------------


@pytest.mark.swarm
def test_a_ban_of_a_member_takes_its_records_its_states_and_its_groups(world):
    """It is told to ada alone: bob goes on believing, and ada finds all records but bob's nevertheless."""
    ada, bob = world.ada, world.bob
    for member in (ada, bob):
        post_everything(member)
    until(lambda: believed(ada) == dict.fromkeys(believed(ada), 2), within=30)
    news = {"bans": bans(str(world.banned.id), "invited:bob", version=2)}
    ada.tell(ticket(KEY, ada.identity, issued=int(time.time()) + 1, expires=int(time.time()) + HOUR_SECONDS), **news)
    until(lambda: believed(ada) == dict.fromkeys(believed(ada), 1), within=10)
    # What a node has that has not heard of the ban: the record of the banned hides no other.
    world.eve.tell(ticket(KEY, world.eve.identity, account="invited:carol"))
    assert wait_for_result(send_dictionary(bob, (bob, world.eve), ada.id)) == [True]
    posted = posted_words(ada.dht, "demo_tokens")
    assert set(posted) & {one.dht.public_key for one in (bob, world.eve)} == {world.eve.dht.public_key}
    assert wait_for_result(take_states(bob, ada.id)) == {"as anybody": 0, "as a member": 0, "sample": 0}
    rounds_ = [member.average() for member in (ada, bob)]
    for round_ in rounds_:
        with pytest.raises(Exception, match=r"no group|take part"):
            round_.result(SEARCH_SECONDS + 30)
