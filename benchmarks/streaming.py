"""Streams of shuffled, tokenized samples: this project's, the 2021 run's pipeline, plain `datasets`, LitData's and
MosaicML Streaming's, in turn.

    python benchmarks/streaming.py --json benchmarks/results/streaming.json

`--only PART ...` measures these parts again; the record keeps its other results, and says of the new ones when, and
under which load, they were measured.

The set has 50 000 samples of 1024 random codes in 8192 values, and captions of 5 to 20 words. All streams read the same
Parquet shards, mix 8192 samples, and give batches of 16 as tensors with the same tokenizer; LitData and MosaicML
Streaming read the same samples in their own formats, and mix them as their `shuffle` does by default. Each measurement
is a process of its own, with one thread for PyTorch; the streams take turns. The 2021 pipeline is written anew with the
same steps (`load_dataset` in streaming mode, `shuffle`, `map` over 256 samples that decodes, filters and tokenizes,
`DataLoader`), since the original does not run with today's `datasets`. LitData and MosaicML Streaming do not read from
an ordinary HTTP server, so they are not measured over the link. A process that has loaded PyTorch and a recipe counts
as idle.

A peer that is not installed is left out. The last two, beside PyTorch's CPU build:

    pip install --no-deps litdata mosaicml-streaming lightning-utilities boto3 botocore s3transfer jmespath obstore \
        tifffile xxhash python-snappy cramjam zstd catalogue torchvision==0.15.2

MosaicML Streaming imports torchvision for its pictures only; later versions of it ask for their own build of PyTorch.

The link is a server in this program's process: 50 Mbit/s for all connections together, and 25 ms for each request. The
stream of 20 GB is a set of 2865 shards that are all the same file under different names.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory_on_host import resident_bytes  # noqa: E402
from memory_report import record, result  # noqa: E402

from tests.shard_server import ShardServer, shard_server  # noqa: E402

SAMPLES, ROWS_PER_SHARD, CODES, VOCABULARY, TEXT = 50_000, 4096, 1024, 8192, 128
MIXED, BATCH = 8192, 16
LINK = {"bytes_per_second": 50e6 / 8, "latency_seconds": 0.025}
PEERS = {
    "2021": "the 2021 pipeline",
    "datasets": "plain datasets",
    "litdata": "LitData",
    "streaming": "MosaicML Streaming",
}
PACKAGES = {"2021": "datasets", "datasets": "datasets", "litdata": "litdata", "streaming": "mosaicml-streaming"}
"""What each peer needs."""
OWN_FORMATS = ("litdata", "streaming")
"""Peers that read no Parquet here, and nothing from an HTTP server."""
CHUNK_BYTES = 1 << 26
"""Of the peers' own formats: both libraries' usual size."""
RATE = 500
"""Samples a second of the trainer that waits."""
WAITING_SAMPLES = 12_000
LARGE_BYTES = 20_000_000_000
PARTS = ("whole", "first", "waiting", "killed", "large")
PEERS_SAMPLES = 10_000
"""After its first batch; a peer needs minutes for the whole set."""


def make_set(folder: Path) -> None:
    """Shards of random codes, as `prepare` writes them."""
    import numpy as np

    from training.data.shards import Manifest, SplitEntry, describe_file, describe_shard, write_shard
    from training.data.tokenizer import Tokenizer

    drawn, numbers = random.Random(0), np.random.default_rng(0)
    words = [f"word{number}" for number in range(3000)]
    captions = [" ".join(drawn.choices(words, k=drawn.randint(5, 20))) for _ in range(SAMPLES)]
    names = []
    for start in range(0, SAMPLES, ROWS_PER_SHARD):
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
        pictures=SAMPLES,
        left_out={},
        splits={"train": SplitEntry(samples=SAMPLES, shards=tuple(names))},
        files={path.name: describe_file(path) for path in folder.iterdir()},
        index={name: describe_shard(folder / name) for name in names},
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())


def make_large_set(folder: Path, small: Path, total_bytes: int) -> None:
    """A manifest of many shards, which are all the first one of the small set."""
    manifest = json.loads((small / "manifest.json").read_text())
    first = manifest["splits"]["train"]["shards"][0]
    size, rows = manifest["files"][first]["bytes"], manifest["index"][first]["rows"]
    names = [f"train-{number:05d}.parquet" for number in range(-(-total_bytes // size))]
    manifest["splits"]["train"] = {"samples": rows * len(names), "shards": names}
    manifest["files"] = {"tokenizer.json": manifest["files"]["tokenizer.json"]} | dict.fromkeys(
        names, manifest["files"][first]
    )
    manifest["index"] = dict.fromkeys(names, manifest["index"][first])
    manifest["input_digest"] = "1" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for name in (first, "tokenizer.json"):
        os.link(small / name, folder / name)


class OneFileServer(ShardServer):
    """Sends the first shard, which it has in memory, under every shard's name."""

    @cached_property
    def shard(self):
        """The shard's bytes."""
        return super().content_of("train-00000.parquet")

    def content_of(self, name):
        return self.shard if name.endswith(".parquet") else super().content_of(name)


# -- the streams ----------------------------------------------------------------------------------------------------


def our_stream(source: str, cache: str, *, place=None, cache_gb: float = 1.0):
    from training.config import load_recipe
    from training.data.order import Place
    from training.data.sets import open_shards
    from training.data.stream import SampleSet, SampleStream

    shards = open_shards(source, cache=Path(cache), cache_gb=cache_gb)
    model = load_recipe("dalle-2021").model.model_copy(update={"text_seq_len": TEXT})
    samples = SampleSet(shards, model=model, shuffle_buffer=MIXED)
    return SampleStream(samples, place=place or Place(seed=1), micro_batch_size=BATCH)


def _files(source: str) -> list[str]:
    return [f"{source}/train-{number:05d}.parquet" for number in range(-(-SAMPLES // ROWS_PER_SHARD))]


def _tokenizer(source: str):
    import tokenizers

    return tokenizers.Tokenizer.from_file(str(Path(os.environ["SET"]) / "tokenizer.json"))


def datasets_stream(source: str, cache: str):
    """Plain `datasets`: arrow batches, its own shuffle and batching."""
    import datasets
    import torch

    tokenizer = _tokenizer(source)
    tokenizer.enable_padding(length=TEXT)
    tokenizer.enable_truncation(TEXT)
    rows = datasets.load_dataset("parquet", data_files=_files(source), split="train", streaming=True)
    rows = rows.select_columns(["caption", "codes"]).shuffle(seed=1, buffer_size=MIXED).batch(BATCH)
    for batch in rows.with_format("numpy"):
        encoded = tokenizer.encode_batch_fast([str(caption) for caption in batch["caption"]])
        yield torch.tensor([one.ids for one in encoded]), torch.from_numpy(batch["codes"].astype("int64"))


def stream_of_2021(source: str, cache: str):
    """The steps of the 2021 run's pipeline."""
    import datasets
    import numpy as np
    import torch
    import transformers

    inner = transformers.PreTrainedTokenizerFast(tokenizer_object=_tokenizer(source), pad_token="[PAD]")

    def preprocess(batch):
        kept = [at for at, caption in enumerate(batch["caption"]) if len(caption) >= 3]
        captions = [batch["caption"][at] for at in kept]
        encoded = inner(captions, padding="max_length", truncation=True, max_length=TEXT)
        codes = [np.array(batch["codes"][at], dtype=np.int16) for at in kept]
        return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"], "image": codes}

    rows = datasets.load_dataset("parquet", data_files=_files(source), split="train", streaming=True)
    rows = rows.shuffle(seed=1, buffer_size=MIXED)
    rows = rows.map(preprocess, batched=True, batch_size=256, remove_columns=["id", "caption", "codes"])
    loader = torch.utils.data.DataLoader(rows.with_format("torch"), batch_size=BATCH)
    for batch in loader:
        yield batch["input_ids"], batch["image"].long()


def _rows(small: Path) -> Iterator[dict]:
    """All samples of the set."""
    import numpy as np
    import pyarrow.parquet as parquet

    for name in _files(str(small)):
        table = parquet.read_table(name, columns=["caption", "codes"])
        for caption, codes in zip(table["caption"].to_pylist(), table["codes"], strict=True):
            yield {"caption": caption, "codes": np.array(codes.values, dtype=np.uint16)}


def _collated(source: str):
    """A function that makes tensors of a batch's rows."""
    import numpy as np
    import torch

    tokenizer = _tokenizer(source)
    tokenizer.enable_padding(length=TEXT)
    tokenizer.enable_truncation(TEXT)

    def collate(rows: list[dict]) -> tuple:
        encoded = tokenizer.encode_batch_fast([row["caption"] for row in rows])
        codes = np.stack([row["codes"] for row in rows]).astype(np.int64)
        return torch.tensor([one.ids for one in encoded]), torch.from_numpy(codes)

    return collate


def write_litdata(small: Path, folder: Path) -> None:
    """The set in LitData's chunks."""
    import litdata

    litdata.optimize(
        _rows, [small], output_dir=str(folder), chunk_bytes=CHUNK_BYTES, num_workers=1, reorder_files=False
    )


def litdata_stream(source: str, cache: str):
    """LitData's own dataset and loader."""
    import litdata

    rows = litdata.StreamingDataset(f"{source}-litdata", shuffle=True, seed=1)
    return iter(litdata.StreamingDataLoader(rows, batch_size=BATCH, num_workers=0, collate_fn=_collated(source)))


def _mosaicml():
    """MosaicML's package, whose name is this program's."""
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != ROOT / "benchmarks"]
    import streaming

    return streaming


def write_streaming(small: Path, folder: Path) -> None:
    """The set in MosaicML Streaming's shards."""
    columns = {"caption": "str", "codes": f"ndarray:uint16:{CODES}"}
    with _mosaicml().MDSWriter(out=str(folder), columns=columns, size_limit=CHUNK_BYTES) as out:
        for row in _rows(small):
            out.write(row)


def mosaicml_stream(source: str, cache: str):
    """MosaicML Streaming's own dataset, and PyTorch's loader."""
    import torch

    settings = {"shuffle": True, "shuffle_seed": 1, "batch_size": BATCH}
    rows = _mosaicml().StreamingDataset(local=f"{source}-streaming", **settings)
    return iter(torch.utils.data.DataLoader(rows, batch_size=BATCH, collate_fn=_collated(source)))


STREAMS = {
    "ours": our_stream,
    "2021": stream_of_2021,
    "datasets": datasets_stream,
    "litdata": litdata_stream,
    "streaming": mosaicml_stream,
}
WRITERS = {"litdata": write_litdata, "streaming": write_streaming}


# -- measurements, each in a process of its own -----------------------------------------------------------------------


def _numbers(batch) -> list[int]:
    codes = batch.codes if hasattr(batch, "codes") else batch[1]
    return (codes[:, 0] * VOCABULARY + codes[:, 1]).tolist()


def measure_whole(side: str, source: str, cache: str) -> dict:
    """Rows per CPU second after the first batch, the first batch's time, and memory above an idle process."""
    from training.config import load_recipe

    load_recipe("dalle-2021")
    idle = resident_bytes()
    began, cpu = time.perf_counter(), time.process_time()
    stream = iter(STREAMS[side](source, cache))
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
    next(iter(STREAMS[side](source, cache)))
    return {"first_seconds": time.perf_counter() - began}


def measure_waiting(side: str, source: str, cache: str) -> dict:
    """The share of its time that a trainer waits which computes 500 samples a second."""
    stream = iter(STREAMS[side](source, cache))
    next(stream)
    began = time.perf_counter()
    waited = 0.0
    for _ in range(WAITING_SAMPLES // BATCH):
        time.sleep(BATCH / RATE)
        asked = time.perf_counter()
        next(stream)
        waited += time.perf_counter() - asked
    return {"share": waited / (time.perf_counter() - began)}


def measure_large(side: str, source: str, cache: str) -> dict:
    """The most disk space that the cache takes while a large set is streamed."""
    stream = our_stream(source, cache)
    batches = stream.order.samples // BATCH
    most, looked, until = 0, 0.0, time.monotonic() + float(os.environ["LARGE_SECONDS"])
    for number in range(1, batches + 1):
        next(stream)
        if time.monotonic() - looked > 1 or number == batches:
            most, looked = max(most, _disk_bytes(Path(cache))), time.monotonic()
            print(f"{number / batches:.4f} of the set, {most / 1e6:.1f} MB on disk", file=sys.stderr, flush=True)
        if looked > until:
            break
    return {"disk": most, "samples": number * BATCH}


def _disk_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # the cache has deleted it meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def stream_until_killed(side: str, source: str, cache: str) -> None:
    """Writes the numbers of its samples to a file, and kills itself after some batches."""
    from training.data.order import read_place

    place, log, batches = Path(cache, "place"), Path(cache, "log"), int(os.environ["BATCHES"])
    first = our_stream(source, cache)
    stream = our_stream(source, cache, place=read_place(place, order=first.order))
    with log.open("a") as file:
        for number in range(batches):
            file.write("".join(f"{one}\n" for one in _numbers(next(stream))))
            file.flush()
            stream.place.write(place, order=stream.order)
            if number == batches - 1:
                os.kill(os.getpid(), signal.SIGKILL)


def write_for_peer(side: str, source: str, cache: str) -> None:
    """Writes the set in a peer's own format beside it."""
    WRITERS[side](Path(source), Path(f"{source}-{side}"))


MEASUREMENTS = {
    "written": write_for_peer,
    "whole": measure_whole,
    "first": measure_first,
    "waiting": measure_waiting,
    "large": measure_large,
    "killed": stream_until_killed,
}


def in_own_process(what: str, side: str, source: str, small: Path, cache: Path | None = None, **more: str) -> dict:
    """What a measurement gives."""
    with tempfile.TemporaryDirectory() as temporary:
        environment = {**os.environ, "SET": str(small), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **more}
        environment |= {"TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_CACHE": temporary}
        command = [sys.executable, __file__, "--measure", what, side, source, str(cache or temporary)]
        # What a long measurement says of its progress is shown as it comes.
        errors = None if what == "large" else subprocess.PIPE
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
    if what == "killed":
        return {}
    if done.returncode:
        raise RuntimeError(f"{what} of {side} failed:\n{(done.stderr or '')[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def after_two_kills(small: Path) -> dict:
    """How many samples of the first pass come twice, and how many never, if a stream is killed twice."""
    with tempfile.TemporaryDirectory() as cache:
        batches = [701, 1203, SAMPLES // BATCH - 701 - 1203]
        for count in batches:
            in_own_process("killed", "ours", str(small), small, Path(cache), BATCHES=str(count))
        counts = Counter(int(line) for line in Path(cache, "log").read_text().split())
    given = sum(counts.values())
    return {"repeated": given - len(counts), "skipped": given - len(counts) - (given - SAMPLES // BATCH * BATCH)}


def compared(sides: list[str], rounds: int, what: str, source: str, small: Path) -> dict[str, dict[str, list[float]]]:
    """Side -> figure -> its values in all rounds; the sides take turns."""
    found: dict[str, dict[str, list[float]]] = {side: {} for side in sides}
    for number in range(rounds):
        for side in sides:
            for figure, value in in_own_process(what, side, source, small).items():
                found[side].setdefault(figure, []).append(value)
            print(f"round {number + 1} {what:<8} {side:<9} load {os.getloadavg()[0]:.1f}", flush=True)
    return found


def rows_of(metric: str, unit: str, found: dict[str, dict[str, list[float]]], figure: str) -> list[dict]:
    """Results of a figure: ours beside each peer's, or alone."""
    ours = found["ours"][figure]
    spread = {"runs": len(ours), "min": min(ours), "max": max(ours)}
    middle = statistics.median(ours)
    peers = [side for side in found if side != "ours"]
    if not peers:
        return [result(metric, unit, middle, **spread)]
    return [
        result(metric, unit, middle, peer=statistics.median(found[side][figure]), peer_name=PEERS[side], **spread)
        for side in peers
    ]


def measured(
    sides: list[str], rounds: int, folder: Path, *, large_bytes: int, large_seconds: float, parts: Collection[str]
) -> list[dict]:
    """The results of some of `PARTS`."""
    small = folder / "small"
    small.mkdir()
    make_set(small)
    for side in sides:
        if side in WRITERS and "whole" in parts:
            in_own_process("written", side, str(small), small)
    over_http = [side for side in sides if side not in OWN_FORMATS]
    rows = []
    if "whole" in parts:
        whole = compared(sides, rounds, "whole", str(small), small)
        rows += rows_of(
            "samples, shuffled, tokenized, as tensors", "samples per CPU second", whole, "rows_per_cpu_second"
        )
        rows += rows_of("first batch from a folder", "s", whole, "first_seconds")
        rows += rows_of("first batch from a folder, CPU time", "CPU s", whole, "first_cpu_seconds")
        rows += rows_of("memory above an idle process", "bytes", whole, "memory")
    with shard_server(small, **LINK) as server:
        if "first" in parts:
            first = compared(over_http, rounds, "first", server.url, small)
            rows += rows_of("first batch over 50 Mbit/s", "s", first, "first_seconds")
        if "waiting" in parts:
            waiting = compared(over_http, rounds, "waiting", server.url, small)
            rows += rows_of(f"share of waiting at {RATE} samples/s over 50 Mbit/s", "1", waiting, "share")
    if "killed" in parts:
        kills = after_two_kills(small)
        rows.append(result("samples repeated after two kills", "samples", kills["repeated"]))
        rows.append(result("samples skipped after two kills", "samples", kills["skipped"]))
    if "large" in parts:
        rows.append(disk_of_large(folder / "large", small, large_bytes, large_seconds))
    return rows


def disk_of_large(folder: Path, small: Path, large_bytes: int, most_seconds: float) -> dict:
    """The most disk space while a large set is streamed, or as much of it as the time suffices for."""
    folder.mkdir()
    make_large_set(folder, small, large_bytes)
    with shard_server(folder, kind=OneFileServer) as server:
        streamed = in_own_process("large", "ours", server.url, small, LARGE_SECONDS=str(most_seconds))
        sent = server.sent_bytes
    name = f"disk while {sent / 1e9:.1f} GB are streamed, limit 1 GB"
    return result(name, "bytes", streamed["disk"], sent_bytes=sent, samples=streamed["samples"])


def with_kept(rows: list[dict], path: Path) -> dict:
    """A record in which these results take the place of earlier ones of the same figures."""
    now = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "load": round(os.getloadavg()[0], 2)}
    kept = json.loads(path.read_text(encoding="utf-8"))
    figures = {_figure(row) for row in rows}
    rows = [row | now for row in rows]
    places = [at for at, row in enumerate(kept["results"]) if _figure(row) in figures]
    first = min(places, default=len(kept["results"]))
    others = [row for row in kept["results"] if _figure(row) not in figures]
    return kept | {"results": [*others[:first], *rows, *others[first:]]}


def _figure(row: dict) -> str:
    """The large set's size is a part of its result's name, and no figure of its own."""
    return re.sub(r"[\d.]+ GB are streamed", "", row["metric"])


def main() -> int:
    """Measures, prints and, if asked, records; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=3, metavar="N", help="measurements of each stream (3)")
    large = "bytes of the large set"
    arguments.add_argument("--large-bytes", type=int, default=LARGE_BYTES, metavar="N", help=large)
    seconds = "end the stream of the large set after so long (an hour); its result says how much was streamed"
    arguments.add_argument("--large-seconds", type=float, default=3600, metavar="S", help=seconds)
    some = "measure these parts alone, and keep the record's other results"
    arguments.add_argument("--only", nargs="+", choices=PARTS, help=some)
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
    versions = {} if chosen.ours_only else _versions()
    if not (chosen.ours_only or versions):
        print("Error: datasets is missing: run `pip install datasets`, or give --ours-only.", file=sys.stderr)
        return 2
    sides = ["ours", *(side for side in PEERS if PACKAGES[side] in versions)]
    with tempfile.TemporaryDirectory() as folder:
        parts = chosen.only or PARTS
        large = {"large_bytes": chosen.large_bytes, "large_seconds": chosen.large_seconds}
        rows = measured(sides, chosen.rounds, Path(folder), **large, parts=parts)
    for row in rows:
        peer = "" if row["peer"] is None else f"{row['peer']:>14,.2f}  {row['peer_name']}"
        print(f"{row['metric']:<52} {row['ours']:>16,.2f} {peer:<40} {row['unit']}")
    if chosen.json and chosen.only:
        path = Path(chosen.json)
        path.write_text(json.dumps(with_kept(rows, path), indent=1) + "\n", encoding="utf-8")
    elif chosen.json:
        import pyarrow

        record(Path(chosen.json), "streaming", {"pyarrow": pyarrow.__version__, **versions}, rows)
    return 0


def _versions() -> dict[str, str]:
    """Of the peers' packages that are installed."""
    found = {}
    for package in dict.fromkeys(PACKAGES.values()):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


if __name__ == "__main__":
    sys.exit(main())
