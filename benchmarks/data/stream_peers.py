"""The streams with which `data_stream.py` compares this project's, each over a set of the kind that it reads.

A stream gives batches of text and codes as tensors. Its `state` says where it is, in JSON, as its library keeps it; a
stream that is opened with a state goes on from there. All shuffle, and all use the same tokenizer in the same way.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

MIXED, BATCH, TEXT, CODES = 8192, 16, 128, 1024
SEED = 1
CHUNK_BYTES = 1 << 26
"""Size of a file of the sets that LitData and MosaicML Streaming read; both usually have this size."""


class PeerStream(Protocol):
    """What a peer's stream does."""

    def batches(self) -> Iterator[tuple]:
        """Text and codes of 16 samples as tensors, to the end of a pass."""

    def state(self, samples: int) -> Any:
        """Where the stream is after so many samples of this process; None if its library cannot say it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A library with its stream."""

    title: str
    packages: tuple[str, ...]
    """As they are installed."""
    install: str
    """The command that installs what is missing."""
    open: Callable[[str, Any], PeerStream]
    """The stream of a set, from a state on, or from the beginning if that is None."""
    make: Callable[[Path, Path], None] | None = None
    """Writes the set in the library's own files into a folder, from the Parquet shards; None: it reads these."""
    reads_web: bool = True
    """True if it reads from an address with http://."""


def versions(peers: Sequence[Peer]) -> dict[str, str | None]:
    """Versions of the peers' packages; None for one that is missing."""
    found: dict[str, str | None] = {}
    for package in (package for peer in peers for package in peer.packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def _tokenizer():
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(Path(os.environ["SET"]) / "tokenizer.json"))
    tokenizer.enable_padding(length=TEXT)
    tokenizer.enable_truncation(TEXT)
    return tokenizer


def _shards(source: str) -> list[str]:
    count = len(list(Path(os.environ["SET"]).glob("train-*.parquet")))
    return [f"{source}/train-{number:05d}.parquet" for number in range(count)]


def _samples(small: Path) -> Iterator[dict]:
    from training.data.store.shards import read_shard

    for path in sorted(small.glob("train-*.parquet")):
        for sample in read_shard(path):
            yield {"caption": sample.caption, "codes": sample.codes.copy()}


def _collator() -> Callable[[list[dict]], tuple]:
    import numpy as np
    import torch

    tokenizer = _tokenizer()

    def collate(samples: list[dict]) -> tuple:
        encoded = tokenizer.encode_batch_fast([sample["caption"] for sample in samples])
        codes = np.stack([np.asarray(sample["codes"]) for sample in samples]).astype(np.int64)
        return torch.tensor([one.ids for one in encoded]), torch.from_numpy(codes)

    return collate


class Of2021:
    """The steps of the 2021 run's pipeline, which kept no state."""

    def __init__(self, source: str, state: Any):
        self._source = source

    def batches(self) -> Iterator[tuple]:
        """See `PeerStream`."""
        import datasets
        import numpy as np
        import torch
        import transformers

        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=_tokenizer(), pad_token="[PAD]")

        def preprocess(batch):
            kept = [at for at, caption in enumerate(batch["caption"]) if len(caption) >= 3]
            captions = [batch["caption"][at] for at in kept]
            encoded = tokenizer(captions, padding="max_length", truncation=True, max_length=TEXT)
            codes = [np.array(batch["codes"][at], dtype=np.int16) for at in kept]
            return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"], "image": codes}

        rows = datasets.load_dataset("parquet", data_files=_shards(self._source), split="train", streaming=True)
        rows = rows.shuffle(seed=SEED, buffer_size=MIXED)
        rows = rows.map(preprocess, batched=True, batch_size=256, remove_columns=["id", "caption", "codes"])
        for batch in torch.utils.data.DataLoader(rows.with_format("torch"), batch_size=BATCH):
            yield batch["input_ids"], batch["image"].long()

    def state(self, samples: int) -> None:
        """See `PeerStream`."""


class OfDatasets:
    """Plain `datasets`: arrow batches, its own shuffle and batching."""

    def __init__(self, source: str, state: Any):
        import datasets

        rows = datasets.load_dataset("parquet", data_files=_shards(source), split="train", streaming=True)
        rows = rows.select_columns(["caption", "codes"]).shuffle(seed=SEED, buffer_size=MIXED).batch(BATCH)
        self._rows = rows.with_format("numpy")
        if state is not None:
            self._rows.load_state_dict(state)

    def batches(self) -> Iterator[tuple]:
        """See `PeerStream`."""
        import torch

        tokenizer = _tokenizer()
        for batch in self._rows:
            encoded = tokenizer.encode_batch_fast([str(caption) for caption in batch["caption"]])
            yield torch.tensor([one.ids for one in encoded]), torch.from_numpy(batch["codes"].astype("int64"))

    def state(self, samples: int) -> Any:
        """See `PeerStream`."""
        return self._rows.state_dict()


class OfLitData:
    """LitData's `StreamingDataset` over its own chunks, with its `StreamingDataLoader`."""

    def __init__(self, source: str, state: Any):
        import litdata

        rows = litdata.StreamingDataset(source, shuffle=True, seed=SEED)
        self._loader = litdata.StreamingDataLoader(rows, batch_size=BATCH, num_workers=0, collate_fn=_collator())
        if state is not None:
            self._loader.load_state_dict(state)

    def batches(self) -> Iterator[tuple]:
        """See `PeerStream`."""
        yield from self._loader

    def state(self, samples: int) -> Any:
        """See `PeerStream`."""
        return self._loader.state_dict()


def make_litdata(small: Path, folder: Path) -> None:
    """The set in LitData's chunks."""
    import litdata

    writer = litdata.streaming.Cache(str(folder), chunk_bytes=CHUNK_BYTES)
    for number, sample in enumerate(_samples(small)):
        writer[number] = sample
    writer.done()
    writer.merge()


class OfMosaicML:
    """MosaicML's `StreamingDataset` over its own shards, with its default way to shuffle."""

    def __init__(self, source: str, state: Any):
        import streaming

        streaming.base.util.clean_stale_shared_memory()  # of a process that was killed
        self._rows = streaming.StreamingDataset(local=source, shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
        if state is not None:
            self._rows.load_state_dict(state)

    def batches(self) -> Iterator[tuple]:
        """See `PeerStream`."""
        import torch

        yield from torch.utils.data.DataLoader(self._rows, batch_size=BATCH, collate_fn=_collator())

    def state(self, samples: int) -> Any:
        """See `PeerStream`."""
        return self._rows.state_dict(samples, from_beginning=False)


def make_mosaicml(small: Path, folder: Path) -> None:
    """The set in MosaicML Streaming's shards."""
    from streaming import MDSWriter

    columns = {"caption": "str", "codes": f"ndarray:uint16:{CODES}"}
    with MDSWriter(out=str(folder), columns=columns, size_limit=CHUNK_BYTES) as writer:
        for sample in _samples(small):
            writer.write(sample)


PEERS = {
    "2021": Peer(
        title="the 2021 pipeline",
        packages=("datasets", "transformers"),
        install="pip install datasets transformers",
        open=Of2021,
    ),
    "datasets": Peer(title="plain datasets", packages=("datasets",), install="pip install datasets", open=OfDatasets),
    "litdata": Peer(
        title="LitData",
        packages=("litdata",),
        install="pip install litdata",
        open=OfLitData,
        make=make_litdata,
        reads_web=False,
    ),
    "mosaicml": Peer(
        title="MosaicML Streaming",
        packages=("mosaicml-streaming",),
        install="pip install mosaicml-streaming",
        open=OfMosaicML,
        make=make_mosaicml,
        reads_web=False,
    ),
}


if __name__ == "__main__":  # `benchmarks/data/data_stream.py` asks so what another environment has
    print(json.dumps(versions([PEERS[side] for side in sys.argv[1:]])))
