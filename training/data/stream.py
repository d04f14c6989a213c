"""Streams prepared shards as endless batches, from a folder or from any static web server.

A peer fetches one shard at a time, checks it against the manifest's SHA-256, and keeps it in its cache, where it is
checked again whenever it is read; the cache has a limit (`training.data.cache`). The codec is fetched only when
pictures are to be decoded. The samples pass through a `datasets.IterableDataset`, which shuffles the order of the
shards and, in a buffer, the samples; each peer has its own seed for this.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException, IncompleteRead
from pathlib import Path

import torch
from torch import LongTensor

from training.config import ModelConfig
from training.data.cache import CACHE_GB, default_cache, make_room, mark_used
from training.data.captions import Split
from training.data.shards import (
    MANIFEST_FILE,
    TOKENIZER_FILE,
    FileEntry,
    Manifest,
    check_file,
    check_fit,
    is_same_file,
    parse_manifest,
    read_manifest,
    read_shard,
)
from training.data.tokenizer import Tokenizer
from training.errors import BadInput
from training.model.codec import CONFIG_FILE, WEIGHTS_FILE
from training.storage.whole import whole_file

TRIES, TRY_TIMEOUT_SECONDS = 4, 30.0
"""How often a file is requested at most, and the time-out of each request."""

LARGEST_MANIFEST_BYTES = 1 << 28


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Samples of one micro-batch."""

    text: LongTensor
    """(B, T_text); 0 is padding."""
    codes: LongTensor
    """(B, image tokens), row by row."""
    captions: list[str]


@dataclass(frozen=True, kw_only=True)
class Shards:
    """Opened shards of one split. Files are fetched at their first use."""

    source: str
    """Folder, or URL without a slash at its end."""
    split: Split
    manifest: Manifest
    folder: Path
    """The folder of the files, including those that are still to be fetched."""
    tokenizer: Tokenizer
    cache_bytes: int
    """Disk space that fetched shards may take, in this run and others."""

    @property
    def names(self) -> tuple[str, ...]:
        """File names of the split's shards."""
        return self.manifest.splits[self.split].shards

    @property
    def samples(self) -> int:
        """Samples of the split."""
        return self.manifest.splits[self.split].samples

    def file(self, name: str) -> Path:
        """A file beside the manifest, fetched if necessary and checked.

        Raises:
            BadInput: If it cannot be fetched, or differs from the manifest's description.
        """
        entry = self.manifest.files[name]
        if not _is_url(self.source) or not name.endswith(".parquet"):
            return _file(self.source, self.folder, name, entry)
        if not (self.folder / name).is_file():
            make_room(self.folder.parent, needed_bytes=entry.bytes, limit_bytes=self.cache_bytes)
        path = _file(self.source, self.folder, name, entry)
        mark_used(path)
        return path

    @property
    def codec_folder(self) -> Path:
        """Folder with the codec's two files, for `training.model.codec.load_codec`."""
        self.file(WEIGHTS_FILE)
        return self.file(CONFIG_FILE).parent


def open_shards(
    source: str | Path, split: Split = "train", *, cache: Path | None = None, cache_gb: float = CACHE_GB
) -> Shards:
    """Opens prepared shards.

    Args:
        source: A folder, or an http(s) URL under which a folder's files are served.
        split: One of `SPLITS` in `training.data.captions`.
        cache: Folder for fetched files; None is `default_cache()`.
        cache_gb: Disk space that fetched shards may take, in GB (10**9 bytes).

    Raises:
        BadInput: If they cannot be read, or the split has no samples.
    """
    source = str(source).rstrip("/")
    manifest = open_manifest(source)
    if _is_url(source):
        # Named by the input's digest: shards that are prepared again at the same address do not mix with older files.
        folder = (cache or default_cache()) / "shards" / manifest.input_digest[:24]
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = Path(source)
    if split not in manifest.splits or not manifest.splits[split].samples:
        raise BadInput(
            f"The shards at {source} have no {split!r} samples, only: {_counts(manifest)}.",
            cure="Give shards with that part; `prepare` makes all.",
        )
    if TOKENIZER_FILE not in manifest.files:
        raise BadInput(f"The shards at {source} have no {TOKENIZER_FILE}. Prepare them again.")
    tokenizer = Tokenizer.from_file(_file(source, folder, TOKENIZER_FILE, manifest.files[TOKENIZER_FILE]))
    return Shards(
        source=source,
        split=split,
        manifest=manifest,
        folder=folder,
        tokenizer=tokenizer,
        cache_bytes=int(cache_gb * 1e9),
    )


def open_manifest(source: str) -> Manifest:
    """The manifest of prepared shards, never taken from the cache.

    Args:
        source: As for `open_shards`.

    Raises:
        BadInput: If it cannot be read.
    """
    if not _is_url(source):
        return read_manifest(Path(source))
    address = f"{source.rstrip('/')}/{MANIFEST_FILE}"
    return parse_manifest(_fetch(address, limit=LARGEST_MANIFEST_BYTES), source=address)


def sample_stream(
    shards: Shards, *, model: ModelConfig, shuffle_buffer: int, peer_seed: int, micro_batch_size: int
) -> Iterator[Batch]:
    """Endless batches; the order differs between passes over the shards and between seeds.

    Args:
        shards: From `open_shards`.
        model: The recipe's model; its sizes must be those of the shards.
        shuffle_buffer: Samples in the shuffle buffer.
        peer_seed: Any integer; equal seeds give equal batches.
        micro_batch_size: B.

    Raises:
        BadInput: If the shards were prepared for another model, or a file is broken.
    """
    check_fit(shards.manifest, model, source=shards.source)
    return _batches(shards, model, shuffle_buffer, peer_seed, micro_batch_size)


def _batches(
    shards: Shards, model: ModelConfig, shuffle_buffer: int, peer_seed: int, micro_batch_size: int
) -> Iterator[Batch]:
    import datasets

    rows = datasets.IterableDataset.from_generator(
        partial(_rows, shards),
        features=datasets.Features(
            {"caption": datasets.Value("string"), "codes": datasets.List(datasets.Value("uint16"))}
        ),
        # `datasets` shuffles the order of a list among these arguments: the order of the shards.
        gen_kwargs={"names": list(shards.names)},
        # numpy takes no negative seed.
    ).shuffle(seed=peer_seed % 2**32, buffer_size=shuffle_buffer)
    # Kept from one pass to the next, so that the last samples of a pass are not lost.
    captions: list[str] = []
    codes: list = []
    for epoch in range(2**31):
        # Without this, each pass would have the same order.
        rows.set_epoch(epoch)
        for row in rows:
            captions.append(row["caption"])
            codes.append(row["codes"])
            if len(captions) == micro_batch_size:
                yield Batch(
                    text=shards.tokenizer.encode(captions, model.text_seq_len),
                    codes=torch.tensor(codes, dtype=torch.long),
                    captions=captions,
                )
                captions, codes = [], []


def _rows(shards: Shards, names: list[str]) -> Iterator[dict]:
    for name in names:
        for sample in read_shard(shards.file(name)):
            yield {"caption": sample.caption, "codes": sample.codes}


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _counts(manifest: Manifest) -> str:
    return ", ".join(f"{entry.samples} {split}" for split, entry in manifest.splits.items())


def _file(source: str, folder: Path, name: str, entry: FileEntry) -> Path:
    path = folder / name
    if not _is_url(source):
        check_file(path, entry, source=str(path))
        return path
    if not is_same_file(path, entry):
        # Checked before it gets its name, so that a broken download is never taken for a cached file.
        with whole_file(path) as draft:
            draft.write_bytes(_fetch(f"{source}/{urllib.parse.quote(name)}", limit=entry.bytes))
            check_file(draft, entry, source=f"{source}/{name}")
    return path


def _fetch(url: str, *, limit: int) -> bytes:
    """The body of a URL, at most `limit` + 1 bytes; failed and interrupted requests are repeated."""
    for attempt in range(TRIES):
        try:
            with urllib.request.urlopen(url, timeout=TRY_TIMEOUT_SECONDS) as response:
                # One byte more than expected is enough to see that a file is too long.
                body = response.read(limit + 1)
                if response.length and len(body) <= limit:  # `read` does not report that the connection was lost
                    raise IncompleteRead(body, response.length)
                return body
        except (OSError, HTTPException) as error:
            # Below 500 the address is wrong or refused (404, 403), and asking again does not help.
            gone = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if gone or attempt == TRIES - 1:
                raise BadInput(f"{url} cannot be fetched: {error}. Check the address and the network.") from None
            time.sleep(0.5 * 2**attempt)
    raise AssertionError("the last try returns or raises")
