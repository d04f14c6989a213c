"""Malformed inputs for each reader of what others send: how many were tried, and what broke.

    nice -n 19 python benchmarks/attacks/attacks.py malformed --json benchmarks/results/malformed.json    (an hour)
    nox -s fuzz -- --guided 60      (coverage guides the inputs: atheris, which is libFuzzer for Python)

Each reader gets random bytes, and valid inputs with random changes: flipped, cut, doubled, swapped and inserted bytes,
extreme numbers, pieces of other valid inputs; messages of msgpack are also made of random objects in each other. A
reader may refuse an input by the error that it documents. Counted as broken are any other error, a result of the wrong
kind, a process that dies or takes more than `MOST_BYTES` of memory, and an input that takes more than `HANG_SECONDS` of
computing.

Each reader runs in a process of its own. The input that it is reading stands in a file, so that an input that ends the
process is known. With `--guided`, inputs that break a reader are written to build/fuzz/.
"""

from __future__ import annotations

import json
import mmap
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.attacks.message_readers import EXTREMES, READERS
from benchmarks.record import replaced, result

PACKAGES = ("torch", "hivemind", "msgpack", "pyarrow")
SCENARIOS = tuple(READERS)
SMALL_SHARE = 0.002
"""Share of the inputs of each reader, in a small run."""
HANG_SECONDS = 10
MOST_BYTES = 6 << 30
"""Limit of the address space; the imported libraries take 3 GiB."""
LONGEST_INPUT = 1 << 20
SEED = 0
MOST_BROKEN_SHOWN = 5
GUIDED_MOST_MIB, GUIDED_START_SECONDS = 3072, 120
"""Memory, and time for imports, of a reader whose inputs coverage guides."""
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


def try_reader(name: str, count: int, folder: Path) -> None:
    """Gives a reader its inputs; prints a line of JSON at the end."""
    from training.swarm.engine import engine

    engine.prepare()
    make, _ = READERS[name]
    reader, dice = make(), random.Random(SEED)
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


def guide(name: str, options: Sequence[str]) -> None:
    """Feeds a reader until libFuzzer's options end it; never returns."""
    import atheris

    with atheris.instrument_imports(include=["training"]):
        from training.swarm.engine import engine

        engine.prepare()
        reader = READERS[name][0]()

    def feed(raw: bytes) -> None:
        with suppress(*reader.refuses):
            reader.read(raw)

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(reader.seeds):
            Path(corpus, str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], *options, corpus], feed)
        atheris.Fuzz()


# -- all readers -------------------------------------------------------------------------------------------------------


def tried(name: str, count: int) -> dict:
    """Tries a reader in a process of its own; prints and returns its result."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "try", name, str(count), folder]
        ended = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in ended.stdout.splitlines() if line.startswith('{"tried"')]
        facts = json.loads(lines[-1]) if lines else _broken_by(ended, Path(folder) / "input")
    print(f"{name:25} {facts['tried']:8} tried, {facts['refused']:8} refused, {len(facts['broken'])} broken, ", end="")
    print(f"slowest {facts['slowest_seconds']:.3f} s", flush=True)
    for one in facts["broken"][:MOST_BROKEN_SHOWN]:
        print(f"    {one['error']}\n    {one['input']}", flush=True)
    rest = {key: facts[key] for key in ("tried", "refused", "slowest_seconds")}
    return result(f"{BROKEN} {name}", "", len(facts["broken"]), **rest)


def _broken_by(ended: subprocess.CompletedProcess, file: Path) -> dict:
    """What ended a reader's process: the input that it was reading."""
    raw = file.read_bytes() if file.is_file() else bytes(8)
    (length,) = struct.unpack("<Q", raw[:8])
    why = "took too long" if ended.returncode == -signal.SIGPROF else f"ended with {ended.returncode}"
    broken = {"error": f"its process {why}: {ended.stderr[-300:]}", "input": raw[8 : 8 + length][:400].hex()}
    return {"tried": 0, "refused": 0, "broken": [broken], "slowest_seconds": 0.0}


def guided(name: str, seconds: int) -> bool:
    """Tries inputs that coverage guides, in a process of its own; returns whether one broke the reader."""
    out = ROOT / "build" / "fuzz"
    out.mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds}", f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={GUIDED_MOST_MIB}"]
    options += [f"-max_len={LONGEST_INPUT}", f"-artifact_prefix={out / name.replace(' ', '-')}-"]
    command = [sys.executable, __file__, "guide", name, *options, "-print_final_stats=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GUIDED_START_SECONDS)
    found = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    fault = "" if done.returncode == 0 else f"\n{done.stderr[-1500:]}"
    count = int(found[1]) if found else 0
    print(f"{name:25} {count:9} inputs, {'BROKEN' if fault else 'none broke it'}{fault}", flush=True)
    return bool(fault)


def measure(scenarios: Sequence[str], earlier: dict, *, small: bool, processes: int) -> dict:
    """Tries readers; results beside the earlier ones of other readers, with their sums."""
    counts = {name: max(1, int(READERS[name][1] * (SMALL_SHARE if small else 1))) for name in scenarios}
    with ThreadPoolExecutor(processes) as pool:
        measured = list(pool.map(tried, counts, counts.values()))
    all_of = {one["metric"]: one for one in replaced(earlier.get("results", ()), measured)}
    rows = [all_of[metric] for name in READERS if (metric := f"{BROKEN} {name}") in all_of]
    total, broken = sum(one["tried"] for one in rows), sum(one["ours"] for one in rows)
    sums = [result("malformed inputs tried", "", total), result("malformed inputs that broke a reader", "", broken)]
    return {"results": [*sums, *rows], "seed": SEED}


if __name__ == "__main__":  # one reader's process
    kind, reader_name, *given = sys.argv[1:]
    if kind == "guide":
        guide(reader_name, given)
    else:
        try_reader(reader_name, int(given[0]), Path(given[1]))
