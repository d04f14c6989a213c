"""Readers of what others send, with valid inputs: what `malformed.py` and the tests feed.

A reader may refuse an input by the errors that it documents; anything else that it raises is a fault.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

EXTREMES = (0, 1, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Something that reads what others send."""

    read: Callable[[bytes], object]
    refuses: tuple[type[BaseException], ...]
    """What it may raise."""
    seeds: Sequence[bytes]
    """Valid inputs."""
    make: Callable[[random.Random], bytes] | None = None
    """Inputs of another kind; half of all, where there are any."""


# -- readers -----------------------------------------------------------------------------------------------------------


def packed_messages() -> Reader:
    """What hivemind unpacks, in every process of a peer."""
    from training.swarm.engine.bounds import unpack

    return Reader(read=unpack, refuses=(ValueError,), seeds=[pack([1, "a", {"b": [None, 2.5]}, b"c"])], make=nested)


def records() -> Reader:
    """Records of the DHT, under each key of a run: one byte for the key, one that says whether this peer signs what
    follows, as any peer may, the length of the subkey, the subkey, and the value."""
    from hivemind.dht import DHTID
    from hivemind.dht.validation import CompositeValidator, DHTRecord

    from training.swarm.engine.bounds import unpack
    from training.swarm.node.dht import record_validators
    from training.swarm.peers.records import progress_validator

    identity = new_identity()
    mine = [*record_validators("demo", identity), progress_validator("demo")]
    validators, place = CompositeValidator(mine), pack(identity.signer().local_public_key)
    told = told_in_records(identity)
    keys = [DHTID.generate(f"demo_{name}").to_bytes() for name in told]
    record_of = functools.partial(DHTRecord, expiration_time=time.time() + 600)

    def packed(number: int, value: object, *, is_signed: bool = False) -> bytes:
        body = pack(value)
        if is_signed:
            body = validators.sign_value(record_of(keys[number], place, body))
        return bytes([number, not is_signed]) + len(place).to_bytes(2, "little") + place + body

    def read(raw: bytes) -> bool:
        """Returns True if the record is accepted; then its readers must take it."""
        number, end = (raw[0] if raw else 0) % len(keys), 4 + int.from_bytes(raw[2:4], "little")
        record = record_of(keys[number], raw[4:end], raw[end:])
        if raw[1:2] > b"\x00":
            record = replace(record, value=validators.sign_value(record))
        if accepted := expect(bool, validators.validate(record)):
            list(told.values())[number][1](unpack(validators.strip_value(record)))
        return accepted

    def make(dice: random.Random) -> bytes:
        number = dice.randrange(len(told))
        return packed(number, altered(list(told.values())[number][0], dice))

    values = [value for value, _ in told.values()]
    seeds = [packed(n, value, is_signed=signed) for n, value in enumerate(values) for signed in (False, True)]
    return Reader(read=read, refuses=(), seeds=seeds, make=make)


def told_in_records(identity: object) -> dict[str, tuple[object, Callable[[object], object]]]:
    """Keys of a run -> what a peer stores there, and who reads what others have stored."""
    from training.swarm.node.metrics import PeerRecord, RecentEpoch
    from training.swarm.peers.records import PeerProgress
    from training.swarm.run.lineage import LineageMessage

    peer = identity.peer_id
    record = PeerRecord(
        **{"name": "Ada", "peer_id": str(peer), "status": "training", "lineage": "a" * 16, "epoch": 7, "loss": 2.5},
        **{"samples": 900, "samples_per_second": 1.5, "seconds": 600.0, "group_size": 3, "averaged_epochs": 6},
        **{"alone_epochs": 1, "micro_batch_size": 4, "bytes_sent": 10**9, "bytes_received": 10**9, "version": "1.0"},
        **{"time": 1.7e9, "recent": [RecentEpoch(epoch=6, loss=2.75, samples=128, time=1.6e9)]},
    )
    progress = PeerProgress(
        **{"peer_id": peer.to_bytes(), "epoch": 7, "samples_accumulated": 12, "samples_per_second": 1.5},
        **{"time": 1.7e9, "counted_at": 1.7e9, "step_samples": 4, "client_mode": False},
    )
    return {
        "metrics": (record.dict(), lambda value: finite(PeerRecord.parse_obj(value).dict())),
        "recipe": ("e" * 16, functools.partial(expect, str)),
        "tokens": ("f" * 16, functools.partial(expect, str)),
        "lineage": (f"{'a' * 16} 7", LineageMessage.read),
        "site": ("https://run.example", functools.partial(expect, str)),
        "progress": (progress.dict(), lambda value: value and finite(PeerProgress.parse_obj(value).dict())),
    }


def words_of_a_group() -> Reader:
    """What members tell their group."""

    from training.swarm.peers.groups import Announcement
    from training.swarm.round.gathering import GroupMessage, NonsenseError

    words = GroupMessage(mbits=50.0, client_mode=False, announcement=[7, False, 3], ticket="a ticket").packed()

    def read(raw: bytes) -> None:
        Announcement.read(GroupMessage.read(raw).announcement)

    return Reader(read=read, refuses=(NonsenseError,), seeds=[words], make=nested)


def tickets() -> Reader:
    """Tickets and ban lists."""
    from training.trust.bans import read_bans
    from training.trust.keys import MembershipKey
    from training.trust.ticket import Ticket, read_ticket

    key = MembershipKey.begin()
    peer = str(new_identity().peer_id)
    ticket = Ticket(run_id="demo", account="invited:ada", peer_id=peer, standing="vouched", issued=1, expires=2).signed(
        key
    )

    def read(raw: bytes) -> None:
        if read_ticket(raw, key.public) is not None and raw != ticket.encode():
            raise AssertionError("a changed ticket holds")
        read_bans(raw, key.public, "demo")

    return Reader(read=read, refuses=(), seeds=[ticket.encode()])


def verdicts() -> Reader:
    """Verdicts on an average, and decisions of referees."""
    from google.protobuf.message import DecodeError
    from hivemind.p2p import PeerID
    from hivemind.proto import averaging_pb2

    from training.swarm.round.agreement import Decision, Verdict, repetition_of

    peers = [PeerID(bytes([number]) * 34) for number in range(4)]
    verdict = Verdict(whole=False, faulty=frozenset(peers[:2])).message(b"group")
    members = tuple(peers[:3])
    decision = Decision(group_id=repetition_of(b"group", members), members=members).message()

    def read(raw: bytes) -> None:
        message = averaging_pb2.MessageFromLeader.FromString(raw)
        with suppress(ValueError):  # each is refused by the reader of the other
            Verdict.read(message, peers)
        with suppress(ValueError):
            Decision.read(message, b"group", peers)

    return Reader(read=read, refuses=(DecodeError,), seeds=[one.SerializeToString() for one in (verdict, decision)])


@dataclass(frozen=True, kw_only=True)
class Led:
    """A peer that a leader has taken into a group of two, as the leader tells it."""

    peer: object
    words: bytes
    leader: object
    messages: tuple[bytes, ...]
    """The group's list, and a message of a leader that sends its followers away."""


def led() -> Led:
    """A new one."""
    from hivemind.p2p import PeerID
    from hivemind.proto import averaging_pb2

    peer, leader, words = PeerID(b"p" * 34), new_identity(), words_of_a_group().seeds[0]
    listed = averaging_pb2.MessageFromLeader(
        code=averaging_pb2.BEGIN_ALLREDUCE,
        ordered_peer_ids=[peer.to_bytes(), leader.peer_id.to_bytes()],
        gathered=[words, words_of_a_group().seeds[0]],
    )
    elsewhere = averaging_pb2.MessageFromLeader(code=averaging_pb2.GROUP_DISBANDED)
    messages = tuple(each.SerializeToString() for each in (listed, elsewhere))
    return Led(peer=peer, words=words, leader=leader, messages=messages)


def words_of_leaders() -> Reader:
    """What a leader answers a follower, first or second."""
    from google.protobuf.message import DecodeError
    from hivemind.proto import averaging_pb2

    from training.swarm.engine.coroutine import wait_for_result

    one = led()

    async def follow(*answers: object) -> bool:
        """Returns True if the peer is in a group then."""
        matchmaking, search = follower_of(one, answers)
        await matchmaking._ask(search, one.leader.peer_id)
        return search.found.done()

    def read(raw: bytes) -> bool:
        message, joined = averaging_pb2.MessageFromLeader.FromString(raw), False
        accepted = averaging_pb2.MessageFromLeader(code=averaging_pb2.ACCEPTED)
        for answers in ((message,), (accepted, message)):
            joined |= wait_for_result(follow(*answers))
        return joined

    return Reader(read=read, refuses=(DecodeError,), seeds=one.messages)


def follower_of(one: Led, answers: Sequence[object]) -> tuple[object, object]:
    """The part of a peer's averager that looks for a group, and a search of it; its leaders answer so, one message
    after the other."""
    from types import SimpleNamespace
    from unittest.mock import AsyncMock

    from hivemind.utils import get_dht_time
    from hivemind.utils.asyncio import as_aiter

    from training.swarm.round.matchmaking import Matchmaking, Search
    from training.swarm.round.pipe import AveragerSettings

    stub = SimpleNamespace(rpc_join_group=AsyncMock(side_effect=lambda request: as_aiter(*answers)))
    own, servicer = SimpleNamespace(peer_id=one.peer), SimpleNamespace(get_stub=lambda *_, **__: stub)
    matchmaking = Matchmaking(own, SimpleNamespace(), servicer, AveragerSettings(prefix="demo"), schema=b"schema")
    search = Search(message=one.words, deadline=get_dht_time() + 60, expected=2, faults={})
    search.window_ends = search.deadline
    return matchmaking, search


def accusations() -> Reader:
    """Proofs that a reducer has lied, as `framed` messages."""
    from types import SimpleNamespace

    from google.protobuf.message import DecodeError
    from hivemind.proto import averaging_pb2
    from hivemind.utils.asyncio import as_aiter

    from tests.training.swarm.audited import ADA, BOB, EVE, played, proof_of
    from training.swarm.engine.bounds import unpack
    from training.swarm.engine.coroutine import wait_for_result
    from training.swarm.engine.quota import Quota

    network, proof = played(proof_of)
    auditor = network.auditors[BOB]
    auditor._proofs = Quota(at_once=9, of_one=9, seconds=0.0)
    facts = unpack(averaging_pb2.DownloadData.FromString(proof[0]).metadata)
    with_another = [*facts[:4], [BOB.to_bytes(), another_receipt(network).facts()], *facts[5:]]

    def with_facts(facts: object) -> bytes:
        return framed([averaging_pb2.DownloadData(metadata=pack(facts)).SerializeToString(), *proof[1:]])

    def read(raw: bytes) -> bool:
        """Returns True if the peer finds it a proof."""
        stream = as_aiter(*(averaging_pb2.DownloadData.FromString(one) for one in unframed(raw)))
        answer = wait_for_result(auditor.rpc_accuse(stream, SimpleNamespace(remote_id=ADA)))
        if {peer for peer, *_ in network.caught[BOB]} - {str(EVE)}:
            raise AssertionError("an honest peer is convicted")
        return answer.code == averaging_pb2.ACCEPTED

    def make(dice: random.Random) -> bytes:
        return with_facts(altered(dice.choice((facts, with_another)), dice))

    return Reader(read=read, refuses=(DecodeError,), seeds=[framed(proof), with_facts(with_another)], make=make)


def another_receipt(network: object) -> object:
    """A receipt of the liar for another peer, of other commitments."""
    from tests.training.swarm.audited import ADA, BOB, EVE, SIGNERS, THREE
    from training.swarm.defence.receipts import Receipt

    words = {"commitments": b"c" * 32, "answers": b"a" * 32}
    statement = Receipt.statement(network.transcripts[ADA].scope, reducer=EVE, receiver=BOB, **words)
    return Receipt(**words, signed=SIGNERS[THREE.index(EVE)].signed(statement))


def requests_for_parts() -> Reader:
    """What a groupmate asks for that checks a reducer."""
    from google.protobuf.message import DecodeError
    from hivemind.proto import averaging_pb2

    from tests.training.swarm.audited import ADA, BOB, EVE, played
    from training.swarm.defence.auditor import EVADED
    from training.swarm.engine.coroutine import wait_for_result

    network, _ = played(lambda network: network.average())
    transcript, auditor = network.transcripts[BOB], network.auditors[BOB]
    asked = {"group_id": transcript.scope.group_id, "suggested_leader": EVE.to_bytes()}
    requests = [averaging_pb2.MessageFromLeader(**asked, gathered=[bytes(4), *more]) for more in ([], [EVADED])]

    async def shown(request: object) -> int:
        return sum([len(message.tensor_part.buffer) async for message in auditor._show(request, ADA)])

    def read(raw: bytes) -> int:
        """Bytes of the part that it is shown."""
        transcript.peers[ADA].asked = 0  # it may ask so often
        return wait_for_result(shown(averaging_pb2.MessageFromLeader.FromString(raw)))

    return Reader(read=read, refuses=(DecodeError,), seeds=[one.SerializeToString() for one in requests])


def shown_parts() -> Reader:
    """What a reducer and a groupmate show to a peer that checks the reducer, as `framed` messages."""
    from contextlib import aclosing
    from types import SimpleNamespace

    from google.protobuf.message import DecodeError
    from hivemind.proto import averaging_pb2
    from hivemind.utils.asyncio import as_aiter

    from tests.training.swarm.audited import ADA, BOB, EVE, played
    from training.swarm.defence.auditor import LIE_WEIGHT
    from training.swarm.engine.bounds import unpack
    from training.swarm.engine.coroutine import wait_for_result

    network, _ = played(lambda network: network.average())
    transcript, show = network.transcripts[ADA], network.stub
    kept = dict(transcript.peers[EVE].kept)
    request = averaging_pb2.MessageFromLeader(
        group_id=transcript.scope.group_id, suggested_leader=EVE.to_bytes(), gathered=[bytes(4)]
    )

    async def shown_by(peer: object) -> list[bytes]:
        async with aclosing(network.auditors[peer]._show(request, ADA)) as messages:
            return [message.SerializeToString() async for message in messages]

    seeds = [wait_for_result(shown_by(peer)) for peer in (EVE, BOB)]

    def read(raw: bytes) -> bool:
        """Returns True if the check was possible."""
        messages = [averaging_pb2.DownloadData.FromString(one) for one in unframed(raw)]

        async def rpc_show_part(_request: object) -> object:
            return as_aiter(*messages)

        possible = False
        for liar in (EVE, BOB):
            network.stub = lambda own, peer, liar=liar: (
                SimpleNamespace(rpc_show_part=rpc_show_part) if peer == liar else show(own, peer)
            )
            transcript.peers[EVE].kept.update(kept)
            for one in network.transcripts.values():
                one.peers[ADA].asked = 0
            network.auditors[ADA]._evasions.clear()
            for one in transcript.peers.values():
                one.evaded = False
            wait_for_result(network.auditors[ADA]._check(transcript, EVE, 0))
            possible |= not network.auditors[ADA]._evasions
        if any(weight == LIE_WEIGHT for _, weight, _ in network.caught[ADA]):
            raise AssertionError("an honest reducer is convicted")
        return possible

    def make(dice: random.Random) -> bytes:
        first, *more = dice.choice(seeds)
        facts = altered(unpack(averaging_pb2.DownloadData.FromString(first).metadata), dice)
        return framed([averaging_pb2.DownloadData(metadata=pack(facts)).SerializeToString(), *more])

    return Reader(read=read, refuses=(DecodeError,), seeds=[framed(one) for one in seeds], make=make)


def parts_of_tensors() -> Reader:
    """Parts of tensors in each codec, as they come by the network. A part that cannot be read bans its sender,
    whatever the error; so only the process may not suffer."""
    import torch
    from hivemind.proto import runtime_pb2

    from training.swarm.engine.codecs import decode, encode

    codecs = (runtime_pb2.NONE, runtime_pb2.FLOAT16, runtime_pb2.UNIFORM_8BIT, runtime_pb2.BLOCKWISE_8BIT)
    seeds = [encode(torch.randn(700), codec).SerializeToString() for codec in codecs]

    def read(raw: bytes) -> None:
        decode(runtime_pb2.Tensor.FromString(raw))

    return Reader(read=read, refuses=(Exception,), seeds=seeds)


def sparse_messages() -> Reader:
    """What a peer sends to its group with `mode = "sparse"`, and others pass on."""
    import torch

    from training.swarm.epoch.sparse import SparseMean

    shapes = [torch.Size((5000,)), torch.Size((7,))]
    mean = SparseMean(shapes, kept=64)
    seeds = [bytes(mean.pack([torch.randn(shape) for shape in shapes], weight).tolist()) for weight in (8.0, 0.0)]

    def read(raw: bytes) -> None:
        weight, code = mean.read(torch.frombuffer(bytearray(raw or b"\0"), dtype=torch.uint8))
        expect(float, weight)
        for piece, places, values in mean.code.decode(code):
            if not 0 <= int(places.min()) <= int(places.max()) < piece.blocks * piece.code.values:
                raise AssertionError("a place is outside of its tensor")
            if not bool(values.isfinite().all()):
                raise AssertionError("a value is not finite")

    return Reader(read=read, refuses=(ValueError,), seeds=seeds)


def samples_of_weights() -> Reader:
    """What witnesses answer."""
    import numpy as np

    from training.swarm.state.witnesses import Sample

    sample = Sample(epoch=3, drifted=False, values=np.ones(16, np.float32)).packed()
    return Reader(read=lambda raw: Sample.read(raw, 16), refuses=(ValueError,), seeds=[sample], make=nested)


def facts_of_states() -> Reader:
    """What a donor tells of the state that it sends to a newcomer; its tensors follow."""
    import torch
    from hivemind.p2p import PeerID
    from hivemind.proto import averaging_pb2
    from hivemind.utils.asyncio import as_aiter

    from training.errors import TrainingError
    from training.swarm.engine.codecs import encode
    from training.swarm.engine.coroutine import wait_for_result
    from training.swarm.run.lineage import Lineage
    from training.swarm.state.download import _Download
    from training.swarm.state.serving import StateService

    shapes, lineage = [torch.Size((3, 2)), torch.Size((4,))], Lineage(id="a" * 16)
    download = _Download(
        **{"prefix": "demo", "lineage": lineage, "service": StateService, "shapes": shapes, "chunk_seconds": 5.0},
        **{"max_bytes": 10**6, "epochs": range(3, 400), "inspect": lambda *_: None, "admission": None},
    )
    tensors = [encode(torch.ones(shape)) for shape in (*shapes, *shapes)]
    state = [{"type": "value", "value": 7}, {"type": "tensor", "index": 0}, {"type": "tensor", "index": 1}]
    facts = {"epoch": 7, "lineage": lineage.id, "wants_weights": False, "optimizer_metadata": state}

    def read(raw: bytes) -> bool:
        first, *more = (averaging_pb2.DownloadData(tensor_part=one) for one in tensors)
        first.metadata = raw
        taken = wait_for_result(download._take(as_aiter(first, *more), PeerID(b"donor")))
        return expect(int, taken.epoch) in download.epochs and expect(bool, taken.wants_weights) is not None

    def make(dice: random.Random) -> bytes:
        return pack(altered(facts, dice))

    return Reader(read=read, refuses=(TrainingError,), seeds=[pack(facts)], make=make)


def statements() -> Reader:
    """What peers sign in an average."""
    from training.swarm.defence.receipts import Commitment, Receipt, pack_signed, read_signed
    from training.swarm.node.identity import Signed

    signed = Signed(b"key", b"signature")
    commitment = Commitment(digests=(b"d" * 32,) * 3, weights=(1.0,) * 3, signed=signed)
    receipt = Receipt(commitments=b"c" * 32, answers=b"a" * 32, signed=signed)
    seeds = [pack(commitment.facts()), pack(receipt.facts()), pack_signed(signed, b"c" * 32)]
    from training.swarm.engine.bounds import unpack

    def read(raw: bytes) -> None:
        refused = 0
        for reader in (
            lambda: Commitment.read(unpack(raw)),
            lambda: Receipt.read(unpack(raw)),
            lambda: read_signed(raw, more=1),
        ):
            try:
                reader()
            except ValueError:
                refused += 1
        if refused < 2:
            raise AssertionError("one input is two different statements")

    return Reader(read=read, refuses=(), seeds=seeds, make=nested)


def recipes() -> Reader:
    """Recipes, which `join` fetches from an address."""
    from training.errors import BadInput
    from training.recipe import RECIPES, parse_recipe

    seeds = [path.read_bytes() for path in sorted(RECIPES.glob("*.toml"))]
    return Reader(read=lambda raw: parse_recipe(raw.decode("utf-8", "replace")), refuses=(BadInput,), seeds=seeds)


def manifests() -> Reader:
    """Manifests of shards."""
    from training.data.store.shards import parse_manifest
    from training.errors import BadInput

    folder = shards()
    manifest = (folder / "manifest.json").read_bytes()
    return Reader(read=lambda raw: parse_manifest(raw, source="manifest"), refuses=(BadInput,), seeds=[manifest])


def rows_of_shards() -> Reader:
    """Shards, which a server sends; streams also compare them with the digests of the manifest."""
    from training.data.store.shards import read_shard
    from training.errors import BadInput

    seed = next(shards().glob("*.parquet")).read_bytes()
    path = Path(tempfile.mkdtemp()) / "shard.parquet"

    def read(raw: bytes) -> None:
        path.write_bytes(raw)
        for _ in read_shard(path):
            pass

    return Reader(read=read, refuses=(BadInput,), seeds=[seed])


def facts_of_checkpoints() -> Reader:
    """`checkpoint.json`, which a site sends beside the weights."""
    return _of_checkpoint("checkpoint.json")


def weights_of_checkpoints() -> Reader:
    """The weights of a checkpoint, whose digests fit: a hostile site sends both."""
    return _of_checkpoint("model.safetensors")


def _of_checkpoint(name: str) -> Reader:
    """Reads a small checkpoint, of which one file is the input, with its digest in the facts."""
    from training.checkpoints.checkpoint import FACTS_FILE, load_checkpoint, save_checkpoint
    from training.errors import BadInput
    from training.recipe import parse_recipe, read_recipe
    from training.tasks.known import task_of

    recipe = read_recipe("demo")
    for before, after in SMALL_MODEL.items():
        assert before in recipe
        recipe = recipe.replace(before, after)
    saved = {"recipe_toml": recipe, "epoch": 40, "metrics": {"loss": 1.5}, "shards": "shards", "codec_digest": "c" * 64}
    folder = save_checkpoint(
        Path(tempfile.mkdtemp()), model=task_of(parse_recipe(recipe)).build_model(), clock=lambda: 1.0, **saved
    )
    seed, facts = (folder / name).read_bytes(), json.loads((folder / FACTS_FILE).read_text(encoding="utf-8"))

    def read(raw: bytes) -> None:
        (folder / name).write_bytes(raw)
        if name != FACTS_FILE:
            facts["files"][name] = {"sha256": hashlib.sha256(raw).hexdigest(), "bytes": len(raw)}
            (folder / FACTS_FILE).write_text(json.dumps(facts), encoding="utf-8")
        load_checkpoint(folder)

    return Reader(read=read, refuses=(BadInput,), seeds=[seed])


SMALL_MODEL = {
    "hidden_size = 128": "hidden_size = 8",
    "num_heads = 4": "num_heads = 1",
    "head_dim = 32": "head_dim = 8",
}
"""Changes of the recipe `demo`: its checkpoint is read in milliseconds."""


def indexes_of_checkpoints() -> Reader:
    """The list of checkpoints that a run's site serves."""
    from pydantic import ValidationError

    from training.checkpoints.serve.index import Index

    entry = {"name": "epoch-000040", "epoch": 40, "lineage": "a" * 16, "recipe_digest": "b" * 16, "written_at": 1.5}
    entry["files"] = {"model.safetensors": {"sha256": "d" * 64, "bytes": 12}}
    seed = json.dumps({"checkpoints": [entry]}).encode()

    def read(raw: bytes) -> None:
        for one in Index.model_validate_json(raw).checkpoints:
            if "/" in one.name or one.bytes < 0:
                raise AssertionError("a checkpoint with a name that leads elsewhere, or of no size")

    return Reader(read=read, refuses=(ValidationError,), seeds=[seed])


READERS = {
    "packed messages": (packed_messages, 500_000),
    "records of the DHT": (records, 150_000),
    "words of a group": (words_of_a_group, 120_000),
    "tickets and ban lists": (tickets, 150_000),
    "verdicts and decisions": (verdicts, 80_000),
    "words of leaders": (words_of_leaders, 20_000),
    "accusations": (accusations, 20_000),
    "requests for parts": (requests_for_parts, 40_000),
    "shown parts": (shown_parts, 10_000),
    "parts of tensors": (parts_of_tensors, 80_000),
    "sparse messages": (sparse_messages, 60_000),
    "samples of weights": (samples_of_weights, 60_000),
    "facts of states": (facts_of_states, 40_000),
    "signed statements": (statements, 60_000),
    "recipes": (recipes, 5_000),
    "manifests of shards": (manifests, 20_000),
    "rows of shards": (rows_of_shards, 20_000),
    "facts of checkpoints": (facts_of_checkpoints, 20_000),
    "weights of checkpoints": (weights_of_checkpoints, 20_000),
    "indexes of checkpoints": (indexes_of_checkpoints, 50_000),
}
"""Reader -> how to make it, and how many inputs it gets."""


def pack(value: object) -> bytes:
    """As hivemind packs."""
    from hivemind.utils.serializer import MSGPackSerializer

    return MSGPackSerializer.dumps(value)


def new_identity() -> object:
    """A peer's key."""
    from training.swarm.node.identity import Identity

    return Identity(Path(tempfile.mkdtemp()))


def framed(messages: Sequence[bytes]) -> bytes:
    """The messages of a stream, each after its length."""
    return b"".join(len(one).to_bytes(4, "little") + one for one in messages)


def unframed(raw: bytes) -> list[bytes]:
    """The messages, of which the last may be cut off."""
    messages = []
    while raw:
        length = int.from_bytes(raw[:4], "little")
        messages.append(raw[4 : 4 + length])
        raw = raw[4 + length :]
    return messages


def shards() -> Path:
    """A folder of shards with random codes."""
    from tests.support.random_shards import write_shards
    from training.recipe import load_recipe

    return write_shards(Path(tempfile.mkdtemp()) / "shards", load_recipe("demo"))


def expect(kind: type, value: object) -> object:
    """The value, which must be of this type."""
    if type(value) is not kind:
        raise AssertionError(f"the answer is {value!r:.60}, no {kind.__name__}")
    return value


ODD = (None, True, -1, 2**63, 2**64 - 1, 1.5, float("nan"), float("inf"), -float("inf"), "", "\x00", "\u202e", "text")
ODD += (b"", b"\xff" * 99, [], [[]], {}, [b""] * 4, [None] * 2000)
"""Values that do not belong into a message."""


def altered(value: object, dice: random.Random) -> object:
    """A copy of lists and dictionaries in each other, with an odd value somewhere, or without one."""
    if not isinstance(value, list | tuple | dict) or not value or dice.random() < 0.1:
        return dice.choice(ODD)
    key = dice.choice(list(value)) if isinstance(value, dict) else dice.randrange(len(value))
    parts = dict(value) if isinstance(value, dict) else list(value)
    if dice.random() < 0.2:
        del parts[key]
    else:
        parts[key] = altered(parts[key], dice)
    return parts


def finite(value: object) -> None:
    """Refuses numbers that are not finite: no comparison with one holds, and no document of a site may have any."""
    try:
        json.dumps(value, allow_nan=False, default=repr)
    except ValueError:
        raise AssertionError(f"{value!r:.200} has numbers that are not finite") from None


def nested(dice: random.Random) -> bytes:
    """A message of msgpack: random objects in each other, hivemind's extension types among them."""
    import msgpack

    def value(depth: int) -> object:
        kind = dice.randrange(12 if depth else 7)
        if kind < 7:
            text = dice.choice(("", "demo", "\x00", "\u202e", "[/]", "\ud7ff" * 9))
            numbers = (dice.choice(EXTREMES), -dice.choice(EXTREMES[:-1]), float("nan"), float("inf"), 1e308, 0.5)
            return dice.choice((None, True, text, dice.choice(numbers), dice.randbytes(dice.randrange(40)), b""))
        if kind < 9:
            return [value(depth - 1) for _ in range(dice.randrange(6))]
        if kind == 9:
            return {dice.choice(("epoch", "values", 1, b"k", None)): value(depth - 1) for _ in range(dice.randrange(4))}
        return msgpack.ExtType(dice.choice((0x40, 0x50, 0x41, 0)), packed(value(depth - 1)))

    def packed(one: object) -> bytes:
        return msgpack.dumps(one, use_bin_type=True)

    deep = dice.choice((1, 2, 3, 5))
    if dice.random() < 0.01:  # tuples in tuples, as in the message that once ended nodes
        raw = packed(1)
        for _ in range(dice.choice((10, 300, 3000))):
            raw = packed(msgpack.ExtType(0x40, packed([msgpack.ExtType(0x40, raw)]) if dice.random() < 0.5 else raw))
            if len(raw) > 100_000:
                break
        return raw
    raw = bytearray(packed(value(deep)))
    if raw and dice.random() < 0.3:
        raw[dice.randrange(len(raw))] = dice.randrange(256)
    return bytes(raw)
