"""Streams of shuffled, tokenized samples: this project's, the 2021 run's pipeline, plain `datasets`, LitData's and
MosaicML Streaming's, in turn.

    python benchmarks/data/data_stream.py --json benchmarks/results/data_stream.json

`--only PART ...` measures these parts again; the record keeps its other results, and says of the new ones when, and
under which load, they were measured.

The set has 50 000 samples of 1024 random codes in 8192 values, and captions of 5 to 20 words. All streams read the same
Parquet shards, mix 8192 samples, and give batches of 16 as tensors with the same tokenizer; LitData and MosaicML
Streaming read the same samples in their own formats, and mix them as their `shuffle` does by default. Each measurement
is a process of its own, with one thread for PyTorch; the streams take turns. The 2021 pipeline is written anew with the
same steps (`load_dataset` in streaming mode, `shuffle`, `map` over 256 samples that decodes, filters and tokenizes,
`DataLoader`), since the original does not run with today's `datasets`. LitData and MosaicML Streaming do not read from
an ordinary HTTP server, so they are not measured over the link. A process that has loaded PyTorch and a recipe counts
as idle. Killed streams go on from the state that their library keeps, which is written after each batch; the 2021
pipeline kept none.

`--peer-python FILE` names the Python of another environment that has the peers beside this project's packages. For the
last two, with PyTorch's CPU build (they pin old versions of other packages):

    pip install --no-deps litdata mosaicml-streaming lightning-utilities boto3 botocore s3transfer jmespath obstore \
        tifffile xxhash python-snappy cramjam zstd catalogue torchvision==0.15.2

MosaicML Streaming imports torchvision for its pictures only; later versions of it ask for their own build of PyTorch.

The link is a server in this program's process: 50 Mbit/s for all connections together, and 25 ms for each request.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.data.stream_peers import BATCH, CODES, MIXED, PEERS, TEXT, PeerStream
from benchmarks.memory.memory_on_host import resident_bytes
from benchmarks.record import record, renew, result
from tests.support.shard_server import ShardServer, shard_server

SAMPLES, ROWS_PER_SHARD, VOCABULARY = 50_000, 4096, 8192
LINK = {"bytes_per_second": 50e6 / 8, "latency_seconds": 0.025}
RATE = 500
"""Samples a second of the trainer that waits."""
WAITING_SAMPLES = 12_000
PARTS = ("whole", "first", "waiting", "killed")
PEERS_SAMPLES = 10_000
"""After its first batch; a peer needs minutes for the whole set."""
PEERS_KILLED = 12_288
"""Samples of the set on which peers are killed, for the same reason."""


def make_set(folder: Path, samples: int) -> None:
    """Shards of so many samples of random codes, as `prepare` writes them."""
    import numpy as np

    from training.data.store.shards import Manifest, SplitEntry, describe_file, describe_shard, write_shard
    from training.data.store.tokenizer import Tokenizer

    drawn, numbers = random.Random(0), np.random.default_rng(0)
    words = [f"word{number}" for number in range(3000)]
    captions = [" ".join(drawn.choices(words, k=drawn.randint(5, 20))) for _ in range(samples)]
    names = []
    for start in range(0, samples, ROWS_PER_SHARD):
        part = captions[start : start + ROWS_PER_SHARD]
        codes = numbers.integers(0, VOCABULARY, (len(part), CODES), dtype=np.uint16)
        # The first two codes say which sample it is.
        codes[:, 0], codes[:, 1] = np.divmod(np.arange(start, start + len(part)), VOCABULARY)
        names.append(f"train-{len(names):05d}.parquet")
        ids = [str(start + row) for row in range(len(part))]
        write_shard(folder / names[-1], ids=ids, captions=part, codes=codes)
    Tokenizer.train(captions, 4096).save(folder / "tokenizer.json")
    manifest = Manifest(
        run_id="benchmark",
        input_digest="0" * 64,
        image_seq_len=CODES,
        image_vocab_size=VOCABULARY,
        text_vocab_size=3002,
        codec_digest="0" * 64,
        reconstruction_error=0.0,
        pictures=samples,
        picture_bytes=0,
        near_duplicates=0,
        left_out={},
        splits={"train": SplitEntry(samples=samples, shards=tuple(names))},
        files={path.name: describe_file(path) for path in folder.iterdir()},
        index={name: describe_shard(folder / name) for name in names},
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())


# -- the streams ----------------------------------------------------------------------------------------------------


def our_stream(source: str, cache: str, *, place=None, cache_gb: float = 1.0):
    from training.data.store.sets import open_shards
    from training.data.stream.order import Place
    from training.data.stream.stream import SampleSet, SampleStream
    from training.recipe import load_recipe

    shards = open_shards(source, cache=Path(cache), cache_gb=cache_gb)
    model = load_recipe("dalle-2021").model.model_copy(update={"text_seq_len": TEXT})
    samples = SampleSet(shards, model=model, shuffle_buffer=MIXED)
    return SampleStream(samples, place=place or Place(seed=1), micro_batch_size=BATCH)


class Ours:
    """This project's stream."""

    def __init__(self, source: str, state: dict | None, cache: str):
        from training.data.stream.order import Place

        self.stream = our_stream(source, cache, place=None if state is None else Place(**state))

    def batches(self) -> Iterator[tuple]:
        """See `PeerStream`; a pass has no end, since the next one begins."""
        for batch in self.stream:
            yield batch.text, batch.codes

    def state(self, samples: int) -> dict:
        """See `PeerStream`."""
        return asdict(self.stream.place)


def opened(side: str, source: str, cache: str, state: Any = None) -> PeerStream:
    """A stream of a side, from a state on."""
    return Ours(source, state, cache) if side == "ours" else PEERS[side].open(source, state)


# -- measurements, each in a process of its own -----------------------------------------------------------------------


def _numbers(batch: tuple) -> list[int]:
    _, codes = batch
    return (codes[:, 0] * VOCABULARY + codes[:, 1]).tolist()


def measure_whole(side: str, source: str, cache: str) -> dict:
    """Rows per CPU second after the first batch, the first batch's time, and memory above an idle process."""
    from training.recipe import load_recipe

    load_recipe("dalle-2021")
    idle = resident_bytes()
    began, cpu = time.perf_counter(), time.process_time()
    stream = opened(side, source, cache).batches()
    batch = next(stream)
    first = {"first_seconds": time.perf_counter() - began, "first_cpu_seconds": time.process_time() - cpu}
    seen, cpu, most = set(_numbers(batch)), time.process_time(), resident_bytes()
    rows, last = 0, SAMPLES - 2 * BATCH if side == "ours" else PEERS_SAMPLES
    while rows < last:
        batch = next(stream)
        rows += len(_numbers(batch))
        if rows % (64 * BATCH) == 0:
            most = max(most, resident_bytes())
            seen.update(_numbers(batch))
    return {**first, "rows_per_cpu_second": rows / (time.process_time() - cpu), "memory": most - idle}


def measure_first(side: str, source: str, cache: str) -> dict:
    """Seconds until the first batch."""
    began = time.perf_counter()
    next(opened(side, source, cache).batches())
    return {"first_seconds": time.perf_counter() - began}


def measure_waiting(side: str, source: str, cache: str) -> dict:
    """The share of its time that a trainer waits which computes 500 samples a second."""
    stream = opened(side, source, cache).batches()
    next(stream)
    began = time.perf_counter()
    waited = 0.0
    for _ in range(WAITING_SAMPLES // BATCH):
        time.sleep(BATCH / RATE)
        asked = time.perf_counter()
        next(stream)
        waited += time.perf_counter() - asked
    return {"share": waited / (time.perf_counter() - began), "disk": _disk_bytes(Path(cache))}


def _disk_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # the cache has deleted it meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def stream_until_killed(side: str, source: str, cache: str) -> None:
    """Writes the numbers of its samples to a file, and where it is to another, and kills itself after some batches."""
    kept, log, most = Path(cache, "state.json"), Path(cache, "log"), int(os.environ["BATCHES"])
    stream = opened(side, source, cache, json.loads(kept.read_text()) if kept.exists() else None)
    samples = 0
    with log.open("a") as file:
        for number, batch in enumerate(stream.batches(), start=1):
            file.write("".join(f"{one}\n" for one in _numbers(batch)))
            file.flush()
            samples += len(batch[1])
            state = stream.state(samples)
            if state is not None:
                kept.write_text(json.dumps(state))
            if number == most:
                os.kill(os.getpid(), signal.SIGKILL)


def make_peers_set(side: str, source: str, folder: str) -> None:
    """Writes the set as a peer reads it."""
    PEERS[side].make(Path(source), Path(folder))


MEASUREMENTS = {
    "whole": measure_whole,
    "first": measure_first,
    "waiting": measure_waiting,
    "killed": stream_until_killed,
    "make": make_peers_set,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Sides that are measured in turn."""

    sides: list[str]
    rounds: int
    peer_python: str
    """Python of an environment that has the peers' packages and this project's."""
    folder: Path
    """Folder of the sets."""

    @property
    def small(self) -> Path:
        """The set of 50 000 samples."""
        return self.folder / "small"

    def peers(self, *, read_web: bool = False) -> list[str]:
        """Sides that are no ours."""
        return [side for side in self.sides if side != "ours" and (PEERS[side].reads_web or not read_web)]

    def set_of(self, side: str, parquet: Path) -> str:
        """The set that a side reads: the Parquet shards, or its own files, which are made of these once."""
        if side == "ours" or PEERS[side].make is None:
            return str(parquet)
        own = parquet.with_name(f"{parquet.name}-{side}")
        if not own.exists():
            own.mkdir()
            self.measure("make", side, str(parquet), own)
        return str(own)

    def measure(self, what: str, side: str, source: str, cache: Path | None = None, **more: str) -> dict:
        """What a measurement gives, in a process of its own."""
        with tempfile.TemporaryDirectory() as temporary:
            environment = {**os.environ, "SET": str(self.small), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}
            environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_CACHE": temporary}
            python = sys.executable if side == "ours" else self.peer_python
            command = [python, __file__, "--measure", what, side, source, str(cache or temporary)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if what == "killed" and done.returncode == -signal.SIGKILL:
            return {}
        if done.returncode:
            raise RuntimeError(f"{what} of {side} failed:\n{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1]) or {}

    def compared(self, what: str, server: ShardServer | None = None) -> dict[str, dict[str, list[float]]]:
        """Side -> figure -> its values in all rounds; the sides take turns. Over the link if there is a server."""
        sides = ["ours", *self.peers(read_web=server is not None)]
        found: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
        for number in range(self.rounds):
            for side in sides:
                source = self.set_of(side, self.small) if server is None else server.url
                for figure, value in self.measure(what, side, source).items():
                    found[side].setdefault(figure, []).append(value)
                print(f"round {number + 1} {what:<8} {side:<9} load {os.getloadavg()[0]:.1f}", flush=True)
        return found

    def after_two_kills(self, side: str, parquet: Path, samples: int) -> dict:
        """How many samples of the first pass come twice, and how many never, if a stream is killed twice."""
        with tempfile.TemporaryDirectory() as cache:
            source, batches = self.set_of(side, parquet), samples // BATCH
            first, second = int(0.22 * batches), int(0.38 * batches)
            for count in (first, second, batches - first - second):
                self.measure("killed", side, source, Path(cache), SET=str(parquet), BATCHES=str(count))
            counts = Counter(int(line) for line in Path(cache, "log").read_text().split())
        print(f"two kills {side:<9} load {os.getloadavg()[0]:.1f}", flush=True)
        return {"repeated": counts.total() - len(counts), "skipped": samples - len(counts)}


def rows_of(metric: str, unit: str, found: dict[str, dict[str, list[float]]], figure: str) -> list[dict]:
    """Results of a figure: ours beside each peer's, or alone."""
    ours = found["ours"][figure]
    spread = {"runs": len(ours), "min": min(ours), "max": max(ours)}
    middle = statistics.median(ours)
    peers = [side for side in found if side != "ours"]
    if not peers:
        return [result(metric, unit, middle, **spread)]
    return [
        result(metric, unit, middle, peer=statistics.median(found[side][figure]), peer_name=PEERS[side].title, **spread)
        for side in peers
    ]


def measured(comparison: Comparison, parts: Collection[str]) -> list[dict]:
    """The results of some of `PARTS`."""
    comparison.small.mkdir()
    make_set(comparison.small, SAMPLES)
    rows = []
    if "whole" in parts:
        whole = comparison.compared("whole")
        rows += rows_of(
            "samples, shuffled, tokenized, as tensors", "samples per CPU second", whole, "rows_per_cpu_second"
        )
        rows += rows_of("first batch from a folder", "s", whole, "first_seconds")
        rows += rows_of("first batch from a folder, CPU time", "CPU s", whole, "first_cpu_seconds")
        rows += rows_of("memory above an idle process", "bytes", whole, "memory")
    with shard_server(comparison.small, **LINK) as server:
        if "first" in parts:
            first = comparison.compared("first", server)
            rows += rows_of("first batch over 50 Mbit/s", "s", first, "first_seconds")
        if "waiting" in parts:
            waiting = comparison.compared("waiting", server)
            rows += rows_of(f"share of waiting at {RATE} samples/s over 50 Mbit/s", "1", waiting, "share")
            rows += rows_of(f"disk after {WAITING_SAMPLES:,} samples over HTTP", "bytes", waiting, "disk")
    if "killed" in parts:
        rows += rows_of_kills(comparison)
    return rows


def rows_of_kills(comparison: Comparison) -> list[dict]:
    """Results of the kills; the peers' of a smaller set."""
    few = comparison.folder / "few"
    few.mkdir()
    make_set(few, PEERS_KILLED)
    found = {"ours": comparison.after_two_kills("ours", comparison.small, SAMPLES)}
    found |= {side: comparison.after_two_kills(side, few, PEERS_KILLED) for side in comparison.peers()}
    listed = {side: {figure: [count] for figure, count in counts.items()} for side, counts in found.items()}
    return [
        row | {"peer_samples": PEERS_KILLED}
        for figure in ("repeated", "skipped")
        for row in rows_of(f"samples {figure} after two kills", "samples", listed, figure)
    ]


def versions_in(python: str, sides: list[str]) -> dict[str, str | None]:
    """Versions of the packages that peers need, in an environment; None for one that is missing."""
    command = [python, str(ROOT / "benchmarks" / "data" / "stream_peers.py"), *sides]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> int:
    """Measures, prints and, if asked, records; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3, metavar="N", help="measurements of each stream (3)")
    some = "measure these parts alone, and keep the record's other results"
    arguments.add_argument("--only", nargs="+", choices=PARTS, help=some)
    peers = "measure these peers (all)"
    arguments.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS), help=peers)
    python = "Python of an environment that has the peers' packages beside this project's (this one)"
    arguments.add_argument("--peer-python", default=sys.executable, metavar="FILE", help=python)
    arguments.add_argument("--ours-only", action="store_true", help="measure no peers")
    arguments.add_argument("--json", metavar="FILE", help="record the results")
    arguments.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.measure:
        import torch

        torch.set_num_threads(1)
        what, *rest = chosen.measure
        print(json.dumps(MEASUREMENTS[what](*rest)), flush=True)
        os._exit(0)  # threads of the streams would be waited for
    if chosen.only and chosen.json and not Path(chosen.json).is_file():
        print(f"Error: {chosen.json} is no record whose other results could be kept; omit --only.", file=sys.stderr)
        return 2
    peers = [] if chosen.ours_only else chosen.peers
    found = versions_in(chosen.peer_python, peers)
    if None in found.values():
        lacking = [PEERS[side] for side in peers if None in (found[name] for name in PEERS[side].packages)]
        commands = "".join(f"\n    {peer.title}: {peer.install}" for peer in lacking)
        print(
            f"Error: a peer is missing. Install it, omit it from --peers, or give --ours-only:{commands}",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory() as folder:
        sides = ["ours", *peers]
        comparison = Comparison(sides=sides, rounds=chosen.rounds, peer_python=chosen.peer_python, folder=Path(folder))
        rows = measured(comparison, chosen.only or PARTS)
    for row in rows:
        peer = "" if row["peer"] is None else f"{row['peer']:>14,.2f}  {row['peer_name']}"
        print(f"{row['metric']:<52} {row['ours']:>16,.2f} {peer:<40} {row['unit']}")
    if chosen.json and chosen.only:
        renew(Path(chosen.json), rows, found, figure=lambda row: f"{row['metric']} {row['peer_name']}")
    elif chosen.json:
        import pyarrow

        record(Path(chosen.json), "data_stream", {"pyarrow": pyarrow.__version__, **found}, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
