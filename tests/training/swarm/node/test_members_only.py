"""A run for members only: whoever is uninvited gets no byte of a state, is in no group, and nobody believes a record.

The uninvited are real peers: nodes and averagers of this program, changed so that they let everybody in, and with the
ticket that they have.
"""

from __future__ import annotations

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hivemind.compression import NoCompression
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PHandlerError, ServicerBase
from hivemind.proto import averaging_pb2, dht_pb2
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import as_aiter
from hivemind.utils.serializer import MSGPackSerializer

from tests.support.programs import until
from tests.training.swarm.members import HOUR_SECONDS, LINEAGE, bans, closed_run, over, ticket
from tests.training.swarm.real_peers.calls import PROOF, noting_calls
from training.errors import TrainingError
from training.swarm.defence.auditor import Auditor
from training.swarm.defence.options import make_auditor
from training.swarm.engine.codecs import encode
from training.swarm.engine.coroutine import wait_for_result
from training.swarm.engine.engine import open_connection
from training.swarm.node.admission import Admission
from training.swarm.node.dht import full_addresses, post_recipe, posted_messages, start_dht
from training.swarm.node.identity import Identity
from training.swarm.node.metrics import MetricsBoard, PeerRecord, read_records
from training.swarm.node.tokens import post_tokens, posted_tokens
from training.swarm.peers.progress import Progress
from training.swarm.round.gathering import FormedGroup
from training.swarm.round.matchmaking import Matchmaking, Search, announced, schema_of
from training.swarm.round.pipe import AveragerSettings, Stage
from training.swarm.round.service import Service
from training.swarm.run.lineage import Lineage, LineageMessage, post_lineage, posted_lineages, run_prefix
from training.swarm.state.alignment import AlignmentState
from training.swarm.state.download import _Download, download_state, find_donors
from training.swarm.state.master_weights import MasterWeights
from training.swarm.state.parameters import ParameterAverager, state_prefix
from training.swarm.state.serving import SEED_BYTES, StateService, offers_key
from training.swarm.state.witnesses import ask as ask_witnesses
from training.trust.check import TicketRefused
from training.trust.keys import MembershipKey

KEY = MembershipKey.begin()
RUN = closed_run(KEY)
PREFIX = run_prefix("demo", Lineage(id=LINEAGE))
STATE = state_prefix(PREFIX)
UNINVITED = ["no ticket", "expired", "another's", "another run's", "another key's", "banned"]
MODEL = torch.nn.Linear(30, 20)
SHAPES = [parameter.shape for parameter in MODEL.parameters()]
SEARCH_SECONDS, RECORD_SECONDS = 12.0, 5.0
PROGRESS = {"epoch": 3, "samples_accumulated": 5, "samples_per_second": 1.0, "time": 1.0, "client_mode": False}
PROGRESS |= {"counted_at": 1.0, "step_samples": 4}
RECORDS = {
    ("dht.py", "_recipe"): ("demo_recipe", RUN.digest),
    ("tokens.py", "_key(run)"): ("demo_tokens", "f" * 16),
    ("lineage.py", "_lineage"): ("demo_lineage", f"{LINEAGE} 3"),
    ("lineage.py", "_site"): ("demo_site", "https://localhost/"),
    ("metrics.py", "_metrics"): ("demo_metrics", lambda peer: metrics_of(peer).dict()),
    ("progress.py", "self.key"): (f"{PREFIX}_progress", lambda peer: PROGRESS | {"peer_id": peer.id.to_bytes()}),
    ("serving.py", "offers_key(self._prefix)"): (offers_key(STATE), 0.0),
    ("matchmaking.py", "self._key"): (f"{STATE}.0b", False),
}
"""For each place in the code that stores a record: its key, and what a peer may store there."""


class Careless(Admission):
    """Admission of a program that was changed so that it lets everybody in."""

    def check(self, *_, **__):
        return None

    def note(self, ticket):
        pass


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
    find_group = Matchmaking.find_group

    async def find_group_and_tell(self, *args, **kwargs):
        group = await find_group(self, *args, **kwargs)
        if group is not None:
            with groups.open("a") as file:
                file.write(f"{group.group_id.hex()}\n")
        return group

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch, noting_calls(folder / "calls") as calls:
        patch.setattr(Matchmaking, "find_group", find_group_and_tell)
        ada = start(stack, folder / "ada", Admission)
        members = SimpleNamespace(ada=ada, groups=groups, calls=calls)
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


def tries(*calls):
    """Decorates a test of each kind of uninvited peer; it fails unless these calls of that peer have come to others."""

    def decorated(test):
        @pytest.mark.swarm
        @pytest.mark.parametrize("kind", UNINVITED)
        @functools.wraps(test)
        def with_each_kind(world, kind, **fixtures):
            since = world.calls.place
            test(world=world, kind=kind, **fixtures)
            assert set(calls) <= world.calls.of(uninvited(world, kind).id, since)

        with_each_kind.calls = frozenset(calls)
        return with_each_kind

    return decorated


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
    master = MasterWeights([{"params": list(MODEL.parameters())}], torch.optim.Adam, lambda epoch: 0.001)
    wanted = {
        "matchmaking_seconds": 2.0,
        "next_chunk_timeout_seconds": 5.0,
        "guard": functools.partial(make_auditor, share=0.02, clipping=None),
    }
    settings = AveragerSettings(prefix=STATE, **{**wanted, **changes})
    codec, lineage = NoCompression(), Lineage(id=LINEAGE)
    peer.averager = ParameterAverager(
        master, AlignmentState(), dht=peer.dht, settings=settings, codec=codec, lineage=lineage
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
    post_tokens(peer.dht, RUN, peer.identity, "f" * 16)
    post_lineage(peer.dht, "demo", LineageMessage(lineage=Lineage(id=LINEAGE), epoch=3), peer.identity)
    MetricsBoard(dht=peer.dht, run_id="demo", expiration_seconds=60).post(metrics_of(peer), peer.identity)


def metrics_of(peer):
    facts = dict.fromkeys(("epoch", "samples", "averaged_epochs", "alone_epochs", "bytes_sent", "bytes_received"), 1)
    facts |= {"samples_per_second": 1.0, "seconds": 1.0, "loss": 1.0, "group_size": 1, "micro_batch_size": 1}
    told = {"name": "somebody", "peer_id": str(peer.id), "status": "training", "version": "1", "time": time.time()}
    return PeerRecord(**facts, **told)


def believed(peer):
    """Whose records a peer believes, of each kind."""
    signers = {
        "recipe": posted_messages(peer.dht, "demo_recipe"),
        "tokens": posted_tokens(peer.dht, RUN),
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


@pytest.mark.swarm
def test_a_member_has_its_records_taken_and_gets_states(world):
    """The same requests as those of the uninvited below, by the same peer, with a ticket that holds."""
    good = ticket(KEY, world.eve.identity)
    sent = {shown: wait_for_result(send_records(world.eve, world.ada.id, ticket=shown)) for shown in (None, good)}
    assert sent == {shown: dict.fromkeys(RECORDS, shown == good) for shown in (None, good)}
    world.eve.tell(good)  # only now: with it, her averager's own offer would be later than the one sent here
    received = wait_for_result(take_states(world.eve, world.ada.id))
    assert received["as anybody"] == 0 < received["sample"] < received["as a member"]
    time.sleep(RECORD_SECONDS)  # so that no other test finds them


# -- the uninvited -----------------------------------------------------------------------------------------------------


@tries("DHTProtocol.rpc_store")
def test_nobody_believes_a_record_of_the_uninvited(world, kind):
    """Neither what their own nodes keep, nor what they send to a member's node."""
    eve = uninvited(world, kind)
    before = {name: believed(member) for name, member in (("ada", world.ada), ("bob", world.bob))}
    post_everything(eve)
    refused = dict.fromkeys(RECORDS, False)
    for shown in (None, eve.admission.own_ticket):
        assert wait_for_result(send_records(eve, world.ada.id, ticket=shown)) == refused
    # A member's own record through the uninvited is one that a member has made.
    assert {name: believed(member) for name, member in (("ada", world.ada), ("bob", world.bob))} == before
    assert str(eve.id) not in {word.signer for word in posted_lineages(world.ada.dht, "demo")}
    settings = {"prefix": PREFIX, "target_batch_size": 64, "matchmaking_seconds": 5.0 / 6}
    if kind == UNINVITED[0]:
        progress = Progress(dht=eve.dht, private_key=eve.identity.private_key, **settings)
        progress.start()
        progress.report(10**6, 1)
        own = Progress(dht=world.ada.dht, private_key=world.ada.identity.private_key, **settings)
        time.sleep(2)
        assert own.look_around()[0] == 0
        progress.shutdown()


async def send_records(eve, peer, *, ticket):
    """Which records of each kind a node takes that are sent to it directly; they expire soon."""
    p2p, signer = await open_connection(eve.dht), eve.identity.signer()
    stub = ServicerBase.get_stub.__func__(DHTProtocol, p2p, peer)
    shown = b"" if ticket is None else b"[ticket:" + ticket.encode() + b"]"
    subkey, taken = MSGPackSerializer.dumps(signer.local_public_key), {}
    try:
        for place, (key, value) in RECORDS.items():
            expires = get_dht_time() + RECORD_SECONDS
            packed = MSGPackSerializer.dumps(value(eve) if callable(value) else value)
            record = DHTRecord(DHTID.generate(source=key).to_bytes(), subkey, packed, expires)
            request = dht_pb2.StoreRequest(
                keys=[record.key],
                subkeys=[subkey],
                values=[signer.sign_value(record) + shown],
                expiration_time=[expires],
                in_cache=[False],
            )
            (taken[place],) = (await stub.rpc_store(request, timeout=10)).store_ok
    finally:
        await p2p.shutdown()
    return taken


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


@tries("StateService.rpc_download_state", "StateService.rpc_sample_state")
def test_the_uninvited_get_no_byte_of_a_state(world, kind):
    eve = uninvited(world, kind)
    received = wait_for_result(take_states(eve, world.ada.id))
    assert received == {"as anybody": 0, "as a member": 0, "sample": 0}
    got = states_of(eve)
    # Those who have let themselves in find each other, and give what they have.
    assert "sent nothing" in got if isinstance(got, str) else got.donor in (str(world.eve.id), str(world.banned.id))


async def take_states(eve, donor):
    """Bytes that somebody gets by each way to ask for a state."""
    p2p = await open_connection(eve.dht)
    stub = StateService.get_stub(p2p, donor, namespace=STATE)
    text = [eve.admission.own_ticket.encode()]
    try:
        anybody = await stub.rpc_download_state(averaging_pb2.MessageFromLeader())
        member = await stub.rpc_download_state(averaging_pb2.MessageFromLeader(gathered=text))
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
    wanted = {"lineage": Lineage(id=LINEAGE), "shapes": SHAPES, "epochs": range(5), "inspect": lambda *_: None}
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
def test_a_member_is_let_into_a_group(world):
    """By the same request as that of the uninvited below."""
    alone = world.ada.averager.begin_round([0, False, 9], seconds=SEARCH_SECONDS, expected_peers=9)
    until(lambda: world.ada.id in looking(world.bob), within=10)
    assert wait_for_result(ask_to_lead(world.bob, world.ada.id)) == averaging_pb2.ACCEPTED
    alone.cancel()
    until(lambda: world.ada.id not in looking(world.bob), within=10)


@tries("Service.rpc_join_group")
def test_the_uninvited_are_in_no_group_while_members_go_on(world, kind):
    eve = uninvited(world, kind)
    search = eve.average(expected=3)
    waits = world.ada.averager.begin_round([0, False, 2], seconds=SEARCH_SECONDS, expected_peers=2)
    until(lambda: world.ada.id in looking(world.bob), within=10)
    assert wait_for_result(ask_to_lead(eve, world.ada.id)) == averaging_pb2.PROTOCOL_VIOLATION
    waits.start(1.0)
    for round_ in (waits, world.bob.average()):
        group = round_.result(30)
        assert set(map(str, group.messages)) == {str(world.ada.id), str(world.bob.id)}
        assert group.report.senders == 2
    assert search.stage is Stage.SEARCHING and looking(world.bob) <= {world.ada.id, world.bob.id}
    search.cancel()


def looking(peer):
    """Peers that look for a group, as a peer sees them."""
    return {other for _, other in wait_for_result(announced(peer.dht, f"{STATE}.0b"))}


async def ask_to_lead(eve, leader):
    """The answer to a request to join a group that is otherwise as a member's."""
    p2p = await open_connection(eve.dht)
    try:
        stub = Service.get_stub(p2p, leader, namespace=STATE)
        words = [None, False, MSGPackSerializer.dumps([0, False, 2]), eve.admission.own_ticket, b""]
        request = averaging_pb2.JoinRequest(
            schema_hash=schema_of(MODEL.parameters()),
            expiration=get_dht_time() + 60,
            gather=MSGPackSerializer.dumps(words),
        )
        stream = await stub.rpc_join_group(request)
        return (await asyncio.wait_for(anext(stream), 10)).code
    finally:
        await p2p.shutdown()


@pytest.fixture
def group(world):
    """The id of a group of the two members, and their rounds, which wait to be started."""
    before = world.groups.stat().st_size
    rounds_ = [
        member.averager.begin_round([0, False, 2], seconds=SEARCH_SECONDS, expected_peers=2)
        for member in (world.ada, world.bob)
    ]
    until(lambda: all(round_.stage is Stage.WAITING for round_ in rounds_), within=30)
    (one,) = set(world.groups.read_text()[before:].split())
    return SimpleNamespace(id=bytes.fromhex(one), rounds=rounds_)


@pytest.mark.swarm
def test_members_check_each_other_after_an_average(world, group):
    """By the same requests as those of the uninvited below."""
    since = world.calls.place
    for round_ in group.rounds:
        round_.start(1.0)
    for round_ in group.rounds:
        assert round_.result(30).report.senders == 2
    shown, answer = wait_for_result(ask_to_check(world.bob, world.ada.id, group.id))
    assert shown > 0 and answer == averaging_pb2.PROTOCOL_VIOLATION  # it has read the accusation, which is nonsense
    assert PROOF in world.calls.of(world.bob.id, since)


@tries("Service.rpc_aggregate_part", "Service.rpc_agree", "Auditor.rpc_show_part", "Auditor.rpc_accuse")
def test_parts_and_verdicts_of_the_uninvited_do_not_count_in_a_group(world, group, kind):
    """Even if they know the group's id, and whether they come before its average or after it."""
    eve, since = uninvited(world, kind), world.calls.place
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(wait_for_result, send_to_group(eve, world.ada.id, group.id))
        calls = {"Service.rpc_aggregate_part", "Service.rpc_agree"}
        until(lambda: calls <= world.calls.of(eve.id, since), within=20)
        for round_ in group.rounds:
            round_.start(1.0)
        assert sent.result(30) == (None, averaging_pb2.PROTOCOL_VIOLATION)
    for round_ in group.rounds:
        report = round_.result(30).report
        assert (report.senders, report.weight, report.repeated, report.torn) == (2, 2.0, 0, False)
    for member in (world.ada, world.bob):
        for mean, parameter in zip(member.averager._tensors, MODEL.parameters(), strict=True):
            assert torch.allclose(mean, parameter)
    shown, answer = wait_for_result(ask_to_check(eve, world.ada.id, group.id))
    assert shown == 0 and answer in (None, averaging_pb2.PROTOCOL_VIOLATION)
    assert PROOF not in world.calls.of(eve.id, since)


async def send_to_group(eve, peer, group):
    """What a member answers to a part and a verdict for its group: the mean of the part, and the code."""
    p2p = await open_connection(eve.dht)
    stub = Service.get_stub(p2p, peer, namespace=STATE)

    async def send_part():
        part = encode(torch.full((sum(map(torch.Size.numel, SHAPES)) // 2,), 1e6))
        facts = {"group_id": group, "code": averaging_pb2.PART_FOR_AVERAGING, "weight": 1e9}
        with suppress(P2PHandlerError):  # a call that is refused
            async for message in await stub.rpc_aggregate_part(
                as_aiter(averaging_pb2.AveragingData(tensor_part=part, **facts))
            ):
                return message.tensor_part.buffer or None

    async def send_verdict():
        return (await stub.rpc_agree(averaging_pb2.MessageFromLeader(group_id=group))).code

    try:
        return tuple(await asyncio.gather(send_part(), send_verdict()))
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
        answer = None
        with suppress(Exception):  # a call that is refused, perhaps before it is read
            answer = await stub.rpc_accuse(as_aiter(averaging_pb2.DownloadData(metadata=b"nonsense")))
        return sum(shown), answer and answer.code
    finally:
        await p2p.shutdown()


# -- what a member believes of a leader --------------------------------------------------------------------------------


@pytest.mark.swarm
@pytest.mark.parametrize("kind", UNINVITED)
def test_a_member_refuses_a_group_with_the_uninvited_and_its_leader_spoils(world, kind):
    eve = uninvited(world, kind)
    texts = {peer.id: peer.admission.own_ticket for peer in (world.ada, world.bob, eve)}
    words = [MSGPackSerializer.dumps([None, False, MSGPackSerializer.dumps(7), text, b""]) for text in texts.values()]
    group = FormedGroup(peers=tuple(texts), messages=tuple(words))

    async def follow():
        settings, ada = AveragerSettings(prefix=STATE), SimpleNamespace(peer_id=world.ada.id)
        one = Matchmaking(ada, world.ada.dht, Service, settings, schema=b"schema")
        search = Search(message=words[0], deadline=get_dht_time(), expected=3, faults={})
        one._join(search, world.bob.id, group.message())
        assert not search.found.done()
        return search.faults

    # An honest leader may not have heard of the ban yet.
    is_late_news = kind == "banned" and world.ada.admission.may_be_late_news(TicketRefused("banned", ""))
    assert wait_for_result(follow()) == ({} if is_late_news else {world.bob.id: 1.0})


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
    posted = posted_messages(ada.dht, "demo_tokens")
    assert set(posted) & {one.dht.public_key for one in (bob, world.eve)} == {world.eve.dht.public_key}
    assert wait_for_result(take_states(bob, ada.id)) == {"as anybody": 0, "as a member": 0, "sample": 0}
    rounds_ = [member.average() for member in (ada, bob)]
    for round_ in rounds_:
        with pytest.raises(Exception, match=r"no group|take part"):
            round_.result(SEARCH_SECONDS + 30)
