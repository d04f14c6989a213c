"""Malformed inputs for each reader of what others send: how many were tried, and what broke.

    python benchmarks/attacks/malformed.py --json benchmarks/results/malformed.json      (about an hour; `nice -n 19`)

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.attacks.message_readers import EXTREMES, READERS
from benchmarks.record import record, result

HANG_SECONDS = 10
MOST_BYTES = 6 << 30
"""Of address space; what is imported takes 3."""
LONGEST_INPUT = 1 << 20
MOST_BROKEN_SHOWN = 5
BROKEN = "broken by malformed inputs:"
"""Begins the names of the readers' results."""


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


# -- one reader, in its process ----------------------------------------------------------------------------------------


def try_reader(name: str, count: int, seed: int, folder: Path) -> None:
    """Gives a reader its inputs; prints a line of JSON at the end."""
    from training.swarm.engine import engine

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
    return result(f"{BROKEN} {name}", "", len(facts["broken"]), **rest)


def with_earlier(measured: list[dict], file: Path | None) -> list[dict]:
    """Adds the results that a record has of readers which were not tried now; all in the readers' order."""
    earlier = json.loads(file.read_text())["results"] if file is not None and file.is_file() else []
    of_reader = {one["metric"]: one for one in (*earlier, *measured)}
    return [of_reader[metric] for name in READERS if (metric := f"{BROKEN} {name}") in of_reader]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the inputs of each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="readers that are tried at the same time")
    parser.add_argument(
        "--only", nargs="*", choices=READERS, default=list(READERS), help="the rest stays in the record"
    )
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
    measured = with_earlier(measured, arguments.json)
    total, broken = sum(one["tried"] for one in measured), sum(one["ours"] for one in measured)
    measured.insert(0, result("malformed inputs tried", "", total))
    measured.insert(1, result("malformed inputs that broke a reader", "", broken))
    if arguments.json:
        versions = {name: importlib.metadata.version(name) for name in ("torch", "hivemind", "msgpack", "pyarrow")}
        record(arguments.json, "malformed", versions, measured, seed=arguments.seed)


if __name__ == "__main__":
    main()
