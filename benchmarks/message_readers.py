"""Readers of what others send, with valid inputs: what `malformed.py`, `guided.py` and the tests feed.

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
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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
    from training.swarm.bounds import unpack

    return Reader(read=unpack, refuses=(ValueError,), seeds=[pack([1, "a", {"b": [None, 2.5]}, b"c"])], make=nested)


def records() -> Reader:
    """Records of the DHT, with their keys and signatures."""
    from hivemind.dht.validation import CompositeValidator, DHTRecord

    from training.swarm.dht import record_validators

    identity = new_identity()
    validators = CompositeValidator(record_validators("demo", identity))
    place, key = pack(identity.signer().local_public_key), b"k" * 20
    record_of = functools.partial(DHTRecord, key, place)
    expires = time.time() + 600
    signed = validators.sign_value(record_of(pack("e" * 16), expires))

    def read(raw: bytes) -> bool:
        cut = raw[:2]
        end = int.from_bytes(cut, "little") % (len(raw) + 1)
        return expect(bool, validators.validate(DHTRecord(key, raw[2:end], raw[end:], expires)))

    return Reader(read=read, refuses=(), seeds=[(2 + len(place)).to_bytes(2, "little") + place + signed])


def words_of_a_group() -> Reader:
    """What members tell their group."""
    from hivemind.averaging.allreduce import AveragingMode

    from training.swarm.gathering import NonsenseError, Words
    from training.swarm.groups import Announcement

    words = Words(mbits=50.0, mode=AveragingMode.NODE, told=[7, False, 3], ticket="a ticket").packed()

    def read(raw: bytes) -> None:
        Announcement.read(Words.read(raw).told)

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


def reports() -> Reader:
    """What validators report to the membership server."""
    from training.trust.refusals import Refusal
    from training.trust.reports import Findings, read_findings, write_findings

    peer = str(new_identity().peer_id)
    checks = [{"epoch": epoch, "samples": 8, "share": 0.125, "error": 0.25} for epoch in (7, 10)]
    seed = write_findings({"checks": checks, "copied_from": [peer], "undeclared": 1}).encode()

    def read(raw: bytes) -> None:
        found = read_findings(raw.decode("utf-8", "replace"))
        if Findings.model_validate_json(found.model_dump_json()) != found:
            raise AssertionError("what is stored of a report is another one")

    return Reader(read=read, refuses=(Refusal,), seeds=[seed])


def verdicts() -> Reader:
    """Verdicts on an average, decisions of referees, and the lists of groups that peers show."""
    from google.protobuf.message import DecodeError
    from hivemind.p2p import PeerID
    from hivemind.proto import averaging_pb2

    from training.swarm.agreement import Decision, Verdict, repetition_of
    from training.swarm.charters import Requests, signature_of
    from training.swarm.gathering import name_of
    from training.swarm.receipts import Signer

    peers, leader = [PeerID(bytes([number]) * 34) for number in range(4)], new_identity()
    verdict = Verdict(whole=False, faulty=frozenset(peers[:2])).message(b"group")
    members = tuple(peers[:3])
    decision = Decision(group_id=repetition_of(b"group", members), members=members, doubted=(peers[3],)).message()

    listed = (peers[0], leader.peer_id)
    gathered = [words_of_a_group().seeds[0]] * len(listed)
    charter = averaging_pb2.MessageFromLeader(
        code=averaging_pb2.BEGIN_ALLREDUCE,
        group_id=name_of(listed, gathered),
        ordered_peer_ids=[peer.to_bytes() for peer in listed],
        gathered=gathered,
        suggested_leader=signature_of(
            Signer(leader.public_key, leader.sign), "demo_gradients", name_of(listed, gathered)
        ),
    )
    requests = Requests(peers[0], "demo_gradients", clock=lambda: time.time() + 60)  # it has been there for long
    requests.note_sent(leader.peer_id, b"other words")

    def read(raw: bytes) -> None:
        message = averaging_pb2.MessageFromLeader.FromString(raw)
        with suppress(ValueError):  # each is refused by the reader of the other
            Verdict.read(message)
        with suppress(ValueError):
            Decision.read(message, b"group", peers)
        if (found := requests.liar_in(message)) is not None and found[0] != leader.peer_id:
            raise AssertionError("a peer is blamed for what it has not signed")

    seeds = [one.SerializeToString() for one in (verdict, decision, charter)]
    return Reader(read=read, refuses=(DecodeError,), seeds=seeds)


def parts_of_tensors() -> Reader:
    """Parts of tensors in each codec, as they come by the network. A part that cannot be read bans its sender,
    whatever the error; so only the process may not suffer."""
    import torch
    from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
    from hivemind.proto import runtime_pb2

    codecs = (runtime_pb2.NONE, runtime_pb2.FLOAT16, runtime_pb2.UNIFORM_8BIT, runtime_pb2.BLOCKWISE_8BIT)
    seeds = [serialize_torch_tensor(torch.randn(700), codec).SerializeToString() for codec in codecs]

    def read(raw: bytes) -> None:
        deserialize_torch_tensor(runtime_pb2.Tensor.FromString(raw))

    return Reader(read=read, refuses=(Exception,), seeds=seeds)


def samples_of_weights() -> Reader:
    """What witnesses answer."""
    import numpy as np

    from training.swarm.witnesses import Sample

    sample = Sample(epoch=3, drifted=False, values=np.ones(16, np.float32)).packed()
    return Reader(read=lambda raw: Sample.read(raw, 16), refuses=(ValueError,), seeds=[sample], make=nested)


def statements() -> Reader:
    """What peers sign in an average."""
    from training.swarm.receipts import Commitment, Receipt, Signed, pack_signed, read_signed
    from training.swarm.work import Declared

    signed = Signed(b"key", b"signature")
    declared = Declared(order="0123456789abcdef", seed=7, spans=((0, 9), (12, 13)), mass=81.5).packed()
    commitment = Commitment(digests=(b"d" * 32,) * 3, weights=(1.0,) * 3, declared=declared, signed=signed)
    receipt = Receipt(commitments=b"c" * 32, answers=b"a" * 32, signed=signed)
    seeds = [pack(commitment.facts()), pack(receipt.facts()), pack_signed(signed, b"c" * 32), declared]
    from training.swarm.bounds import unpack

    def read(raw: bytes) -> None:
        Declared.read(raw)  # None for what is none
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
    from training.config import RECIPES, parse_recipe
    from training.errors import BadInput

    seeds = [path.read_bytes() for path in sorted(RECIPES.glob("*.toml"))]
    return Reader(read=lambda raw: parse_recipe(raw.decode("utf-8", "replace")), refuses=(BadInput,), seeds=seeds)


def manifests() -> Reader:
    """Manifests of shards."""
    from training.data.shards import parse_manifest
    from training.errors import BadInput

    folder = shards()
    manifest = (folder / "manifest.json").read_bytes()
    return Reader(read=lambda raw: parse_manifest(raw, source="manifest"), refuses=(BadInput,), seeds=[manifest])


def rows_of_shards() -> Reader:
    """Shards, which a server sends; streams also compare them with the digests of the manifest."""
    from training.data.shards import read_shard
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
    from training.config import parse_recipe, read_recipe
    from training.errors import BadInput
    from training.task import task_of

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

    from training.checkpoints.index import Index

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
    "reports of validators": (reports, 100_000),
    "verdicts and decisions": (verdicts, 80_000),
    "parts of tensors": (parts_of_tensors, 80_000),
    "samples of weights": (samples_of_weights, 60_000),
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
    from training.swarm.identity import Identity

    return Identity(Path(tempfile.mkdtemp()))


def shards() -> Path:
    """A folder of shards with random codes."""
    from tests.random_shards import write_shards
    from training.config import load_recipe

    return write_shards(Path(tempfile.mkdtemp()) / "shards", load_recipe("demo"))


def expect(kind: type, value: object) -> object:
    """The value, which must be of this type."""
    if type(value) is not kind:
        raise AssertionError(f"the answer is {value!r:.60}, no {kind.__name__}")
    return value


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
