"""Malformed inputs for each reader of what others send: how many were tried, and what broke.

    python benchmarks/malformed.py --json benchmarks/results/malformed.json      (about an hour; `nice -n 19`)

Each reader gets random bytes, and valid inputs with random changes: flipped, cut, doubled, swapped and inserted bytes,
extreme numbers, pieces of other valid inputs; messages of msgpack are also made of random objects in each other. A
reader may refuse an input by the error that it documents. Counted as broken are any other error, a result that is none,
a process that dies or takes more than `MOST_BYTES` of memory, and an input that takes more than `HANG_SECONDS` of
computing.

Each reader runs in a process of its own. The input that it is reading stands in a file, so that one that ends the
process is known.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import mmap
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory_report import record, result  # noqa: E402

HANG_SECONDS = 10
MOST_BYTES = 6 << 30
"""Of address space; what is imported takes 3."""
LONGEST_INPUT = 1 << 20
EXTREMES = (0, 1, 127, 128, 255, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
MOST_BROKEN_SHOWN = 5


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


def verdicts() -> Reader:
    """Verdicts on an average, and decisions of referees."""
    from google.protobuf.message import DecodeError
    from hivemind.p2p import PeerID
    from hivemind.proto import averaging_pb2

    from training.swarm.agreement import Decision, Verdict

    peers = [PeerID(bytes([number]) * 34) for number in range(4)]
    verdict = Verdict(whole=False, faulty=frozenset(peers[:2])).message(b"group")
    decision = Decision(group_id=b"again", members=tuple(peers[:3]), doubted=(peers[3],)).message()

    def read(raw: bytes) -> None:
        message = averaging_pb2.MessageFromLeader.FromString(raw)
        Verdict.read(message)
        Decision.read(message, peers)

    seeds = [one.SerializeToString() for one in (verdict, decision)]
    return Reader(read=read, refuses=(DecodeError, ValueError), seeds=seeds)


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

    signed = Signed(b"key", b"signature")
    commitment = Commitment(digests=(b"d" * 32,) * 3, weights=(1.0,) * 3, signed=signed)
    receipt = Receipt(commitments=b"c" * 32, answers=b"a" * 32, signed=signed)
    seeds = [pack(commitment.facts()), pack(receipt.facts()), pack_signed(signed, b"c" * 32)]
    from training.swarm.bounds import unpack

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


READERS = {
    "packed messages": (packed_messages, 500_000),
    "records of the DHT": (records, 150_000),
    "words of a group": (words_of_a_group, 120_000),
    "tickets and ban lists": (tickets, 150_000),
    "verdicts and decisions": (verdicts, 80_000),
    "parts of tensors": (parts_of_tensors, 80_000),
    "samples of weights": (samples_of_weights, 60_000),
    "signed statements": (statements, 60_000),
    "recipes": (recipes, 5_000),
    "manifests of shards": (manifests, 20_000),
    "rows of shards": (rows_of_shards, 20_000),
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


# -- inputs ------------------------------------------------------------------------------------------------------------


def changed(seeds: Sequence[bytes], dice: random.Random) -> bytes:
    """A valid input with some changes, or random bytes."""
    if dice.random() < 0.05:
        return dice.randbytes(dice.randrange(400))
    raw = bytearray(dice.choice(seeds))
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        if not raw:
            break
        place, length = dice.randrange(len(raw)), dice.choice((1, 1, 2, 4, 16, 200))
        match dice.randrange(7):
            case 0:
                raw[place] ^= 1 << dice.randrange(8)
            case 1:
                raw[place] = dice.randrange(256)
            case 2:
                del raw[place : place + length]
            case 3:
                raw[place:place] = raw[place : place + length] * dice.choice((1, 2, 50))
            case 4:
                size = dice.choice((1, 2, 4, 8))
                order = dice.choice(("little", "big"))
                raw[place : place + size] = (dice.choice(EXTREMES) % 256**size).to_bytes(size, order)
            case 5:
                other = dice.choice(seeds)
                start = dice.randrange(len(other))
                raw[place : place + length] = other[start : start + length]
            case 6:
                raw[place : place + length] = dice.randbytes(length)
    return bytes(raw[:LONGEST_INPUT])


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


# -- one reader, in its process ----------------------------------------------------------------------------------------


def try_reader(name: str, count: int, seed: int, folder: Path) -> None:
    """Gives a reader its inputs; prints a line of JSON at the end."""
    from training.swarm import engine

    engine.prepare()
    make, _ = READERS[name]
    reader, dice = make(), random.Random(seed)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    with (folder / "input").open("w+b") as file:
        file.truncate(8 + LONGEST_INPUT)
        current = mmap.mmap(file.fileno(), 8 + LONGEST_INPUT)
    broken, refused, slowest = [], 0, 0.0
    for _ in range(count):
        has_other = reader.make is not None and dice.random() < 0.5
        raw = reader.make(dice) if has_other else changed(reader.seeds, dice)
        current[: 8 + len(raw)] = struct.pack("<Q", len(raw)) + raw
        signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)  # ends this process
        began = time.perf_counter()
        try:
            reader.read(raw)
        except reader.refuses:
            refused += 1
        except BaseException as error:
            broken.append({"error": f"{type(error).__name__}: {error}"[:200], "input": raw[:400].hex()})
        slowest = max(slowest, time.perf_counter() - began)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps({"tried": count, "refused": refused, "broken": broken, "slowest_seconds": slowest}), flush=True)


def tried(name: str, count: int, seed: int) -> dict:
    """What came of a reader's inputs."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--reader", name, "--count", str(count), "--seed", str(seed)]
        ended = subprocess.run([*command, "--folder", folder], capture_output=True, text=True)
        lines = [line for line in ended.stdout.splitlines() if line.startswith('{"tried"')]
        if lines:
            return json.loads(lines[-1])
        raw = (Path(folder) / "input").read_bytes() if (Path(folder) / "input").is_file() else bytes(8)
        (length,) = struct.unpack("<Q", raw[:8])
        why = "took too long" if ended.returncode == -signal.SIGPROF else f"ended with {ended.returncode}"
        broken = {"error": f"its process {why}: {ended.stderr[-300:]}", "input": raw[8 : 8 + length][:400].hex()}
        return {"tried": 0, "refused": 0, "broken": [broken], "slowest_seconds": 0.0}


def told(name: str, facts: dict) -> dict:
    """Prints what came of a reader's inputs; the result for the record."""
    print(f"{name:25} {facts['tried']:8} tried, {facts['refused']:8} refused, {len(facts['broken'])} broken, ", end="")
    print(f"slowest {facts['slowest_seconds']:.3f} s", flush=True)
    for one in facts["broken"][:MOST_BROKEN_SHOWN]:
        print(f"    {one['error']}\n    {one['input']}", flush=True)
    rest = {key: facts[key] for key in ("tried", "refused", "slowest_seconds")}
    return result(f"broken by malformed inputs: {name}", "", len(facts["broken"]), **rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the inputs of each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="readers that are tried at the same time")
    parser.add_argument("--only", nargs="*", choices=READERS, default=list(READERS))
    parser.add_argument("--json", type=Path, help="write the record here")
    for hidden, kind in (("--reader", str), ("--count", int), ("--folder", Path)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        try_reader(arguments.reader, arguments.count, arguments.seed, arguments.folder)
        return
    counts = {name: max(1, int(READERS[name][1] * arguments.share)) for name in arguments.only}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = pool.map(lambda name: tried(name, counts[name], arguments.seed), counts)
        measured = [told(name, facts) for name, facts in zip(counts, found, strict=True)]
    total, broken = sum(one["tried"] for one in measured), sum(one["ours"] for one in measured)
    measured.insert(0, result("malformed inputs tried", "", total))
    measured.insert(1, result("malformed inputs that broke a reader", "", broken))
    if arguments.json:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "hivemind", "msgpack", "pyarrow")}
        record(arguments.json, "malformed", versions, measured, seed=arguments.seed)


if __name__ == "__main__":
    main()
