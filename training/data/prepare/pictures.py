"""Makes shards of pictures and captions: filter, crop, encode, write (paper, section 3.2).

The work is done in a hidden folder beside the target, one shard after the other; the folder is renamed when it is
complete. If the work is interrupted, the next call with the same input continues after the last finished shard. Rows
wait in a table on disk (`training.data.sources.rows`), so that memory does not grow with the set.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from training.data.demo.captions import SPLITS, Split
from training.data.sources.fetch import Fetcher
from training.data.sources.folders import archives_of, read_folder, tables_of
from training.data.sources.hub import HubSet, LocalSet
from training.data.sources.hub_rows import HubRows
from training.data.sources.kinds import ADDRESSES, USUAL, lists_of, read_addresses, read_captions
from training.data.sources.near import NearDuplicates
from training.data.sources.pictures import Picture, Pictures
from training.data.sources.rows import Row, RowTable
from training.data.sources.unused import Unusable, Unused, told_reasons, write_left_out
from training.data.sources.work import (
    MARKS_FILE,
    NOTE_SUFFIX,
    Progress,
    alone_at,
    described,
    digest_of,
    digest_of_input,
    finish,
    finished,
    part_folder,
)
from training.data.store.card import write_card
from training.data.store.shards import ROW_GROUP, TOKENIZER_FILE, Manifest, SplitEntry, write_shard
from training.data.store.tokenizer import Tokenizer
from training.errors import BadInput
from training.model.codecs.codec import CONFIG_FILE, WEIGHTS_FILE, ImageCodec, load_codec, save_codec, train_small_codec
from training.recipe import RunConfig
from training.storage.whole import write_whole

ROWS_PER_SHARD = 4096
"""Rows per shard, including those whose pictures turn out to be unusable."""
CODEC_PICTURES = 8192
"""The number of random pictures on which a codec is trained."""
LARGEST_WORD_VOCABULARY = 4096
"""The most text ids for which a word-level tokenizer is trained; recipes with more need a tokenizer file."""
DECODED_EVERY = 32
"""One picture in this many is decoded again, to measure what the codec loses: with 2021's codec, decoding takes 1.5
times as long as encoding."""
NEAR_DUPLICATE = "near-duplicate"
NO_ROWS = "there are no rows"
CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """The pictures and captions that a set is made of; `training.data.sources.kinds` lists the kinds."""

    images: Path | None = None
    """Folder of the pictures, tars, zips, or Parquet files with pictures inside; or a tar or zip."""
    captions: Path | None = None
    """JSON lines, CSV or COCO's JSON; None: captions are beside the pictures."""
    urls: Path | None = None
    """Parquet file with addresses of pictures, or a folder of such files; in place of `images` and `captions`."""
    hub: str | None = None
    """Data set of the hub, `hf://OWNER/NAME[/config][@revision]`; in place of `images`, `captions` and `urls`."""
    image_column: str | None = None
    """Key or column of the pictures, their names or their addresses; None: the first usual name that is found."""
    caption_column: str | None = None
    """Key or column of the captions; None: the first usual name that is found."""
    holds_out: bool = False
    """True to hold some pictures out of training if the source itself holds none out."""

    def __post_init__(self) -> None:
        given = [one for one in (self.images, self.urls, self.hub) if one is not None]
        if len(given) != 1 or (self.images is None and self.captions is not None):
            raise BadInput(
                "Pictures come from --images, with or without --captions, or from --urls alone. Give one of both, or "
                "--text."
            )

    def open_rows(self, folder: Path, out: Path) -> RowTable | HubRows:
        """Opens the rows that are not left out; `folder` is for temporary files, `out` for the shards."""
        tables = self.tables(out)
        if self.hub is None and not tables:
            return RowTable(folder, self.rows(out), holds_out=self.holds_out)
        columns = {"image_column": self.image_column, "caption_column": self.caption_column}
        columns["holds_out"] = self.holds_out
        return HubRows(LocalSet(self.images, tables) if tables else HubSet(self.hub), folder, **columns)

    def tables(self, out: Path) -> list[Path]:
        """The Parquet files that have the pictures inside."""
        return [] if self.images is None or self.captions is not None else tables_of(self.images, but=out)

    def rows(self, out: Path) -> Iterator[Row | Unusable]:
        """All rows, and the lines or files that cannot be used."""
        keys = (USUAL if self.urls is None else ADDRESSES).named(self.image_column, self.caption_column)
        if self.urls is not None:
            return read_addresses(self.urls, keys)
        captions = None if self.captions is None else read_captions(self.captions, keys)
        return read_folder(self.images, keys, captions=captions, but=out)

    def files(self, out: Path) -> list[Path]:
        """The files in which the rows are, tars included."""
        if self.hub is not None:
            return []
        if self.urls is not None:
            return lists_of(self.urls)
        if self.captions is not None:
            return [self.captions]
        return self.tables(out) or archives_of(self.images, but=out)


def prepare(
    source: Input,
    out: Path,
    run: RunConfig,
    *,
    codec_file: Path | None = None,
    tokenizer_file: Path | None = None,
    codec_steps: int = 1600,
    replace: bool = False,
    seed: int = 0,
    workers: int | None = None,
    device: torch.device = CPU,
    licence: str | None = None,
    fetcher: Fetcher | None = None,
    drops_near_duplicates: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> tuple[Manifest, bool]:
    """Makes a folder of shards.

    Args:
        source: The pictures and captions.
        out: Folder to make.
        run: Recipe with the model, codec and data sections to use.
        codec_file: A trained codec. Default: `run.codec.weights`, or a small codec trained on the pictures.
        tokenizer_file: A `tokenizer.json`. Default: a word-level one trained on the training captions.
        codec_steps: Gradient steps for training a codec.
        replace: Whether an `out` made from other input may be replaced.
        seed: Seed of the samples' order and the codec's training.
        workers: Pictures that are decoded at the same time; None: as many as there are cores.
        device: Device on which the codec encodes. A GPU rounds differently, so a few codes may differ.
        licence: Licence of pictures and captions, for the data card.
        fetcher: Fetches pictures of `source.urls`; None: one that reaches public addresses only.
        drops_near_duplicates: Whether pictures that are nearly the same as an earlier one are left out; they are
            counted in any case.
        progress: See `Progress`.

    Returns:
        The manifest, and whether anything had to be done.

    Raises:
        BadInput: If an input cannot be used. Single broken pictures are only counted.
    """
    out = Path(os.path.realpath(out))  # the folder behind a link is made, and the link stays
    place = {"prefix": f".{out.name}.rows-", "dir": out.parent, "ignore_cleanup_errors": True}
    with alone_at(out), tempfile.TemporaryDirectory(**place) as folder:
        table = source.open_rows(Path(folder), out)
        images = Path(folder) if isinstance(table, HubRows) else source.images
        pictures = Pictures(images, run, workers=workers, fetcher=fetcher)
        if table.kept is not None and not table.count("train"):
            raise _nothing_left("to train on", table.unused, held_out=table.kept)
        files = [codec_file, tokenizer_file, *source.files(out)]
        settings = [codec_steps, seed, drops_near_duplicates, *(["holds out"] if source.holds_out else [])]
        digest = _input_digest(table, pictures, run, files, settings, progress)
        if (there := finished(out, digest, replace=replace)) is not None:
            return there, False
        work = _Work(part_folder(out, digest), table, pictures, run, seed, drops_near_duplicates, progress, device)
        manifest = work.make(digest, codec_file, tokenizer_file, codec_steps)
        write_card(work.folder, manifest, run, licence=licence)
        write_left_out(work.folder, _left_out(work.folder, table))
        finish(work.folder, out, manifest)
    return manifest, True


@dataclass(frozen=True, slots=True)
class _Work:
    """Work on the shards of a set; finished shards stay if it is interrupted."""

    folder: Path
    table: RowTable | HubRows
    pictures: Pictures
    run: RunConfig
    seed: int
    drops: bool
    """True if near-duplicates are left out."""
    progress: Progress
    device: torch.device
    """Device on which the codec encodes."""

    def make(self, digest: str, codec_file: Path | None, tokenizer_file: Path | None, codec_steps: int) -> Manifest:
        """Makes all files except the manifest, and returns the manifest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        tokenizer = self._tokenizer(tokenizer_file)
        tokenizer.save(self.folder / TOKENIZER_FILE)
        codec = self._codec(codec_file, codec_steps)
        with NearDuplicates(self.folder / MARKS_FILE, _marked(self.folder)) as near:
            splits, totals = self._encode(codec.to(self.device), near)
        return Manifest(
            run_id=self.run.run_id,
            input_digest=digest,
            image_seq_len=self.run.model.image_seq_len,
            image_vocab_size=self.run.model.image_vocab_size,
            text_vocab_size=tokenizer.vocab_size,
            codec_digest=json.loads((self.folder / CONFIG_FILE).read_text())["digest"],
            reconstruction_error=totals.squared_error / totals.decoded,
            pictures=self.table.read,
            picture_bytes=totals.picture_bytes,
            near_duplicates=totals.near_duplicates,
            left_out=dict(sorted(totals.left_out.items())),
            splits=splits,
            **described(self.folder, splits, [WEIGHTS_FILE, CONFIG_FILE]),
        )

    def _encode(self, codec: ImageCodec, near: NearDuplicates) -> tuple[dict[Split, SplitEntry], _Note]:
        """Encodes all rows into shards. Returns the splits, and the sum of all shards' notes.

        Raises:
            BadInput: If no picture can be trained on.
        """
        splits: dict[Split, SplitEntry] = {}
        totals = _Note()
        for split in SPLITS:
            names, samples = [], 0
            batches = self.table.batches(split, ROWS_PER_SHARD, seed=str(self.seed), folder=self.folder)
            for number, rows in batches:
                # By the place of its rows: a shard without a usable picture is not among `names`. If the next shard had
                # the same number, the note of the former would be found, and the rows would count as finished.
                name = f"{split}-{number:05d}.parquet"
                note = self._shard(rows, self.folder / name, codec, near, totals.rows)
                totals.add(note)
                names += [name] if note.samples else []
                samples += note.samples
            splits[split] = SplitEntry(samples=samples, shards=tuple(names))
        totals.left_out.update(self.table.unused.counts)  # a stream's are known only now
        if not splits["train"].samples:
            for note in sorted(self.folder.glob(f"*{NOTE_SUFFIX}")):
                for one in _Note.read(note).listed:
                    self.table.unused.add(Unusable(**one))
            raise _nothing_left("to train on", self.table.unused)
        return splits, totals

    def _shard(self, rows: list[Row], path: Path, codec: ImageCodec, near: NearDuplicates, done: int) -> _Note:
        """Encodes rows into one shard, unless it is already finished; notes the result in a file beside it."""
        note_path = path.with_suffix(NOTE_SUFFIX)
        if note_path.exists():
            note = _Note.read(note_path)
            self.progress("Encoding", done + note.rows, self.table.kept)
            return note
        note = _Note()
        ids, captions, codes = [], [], []
        for found in self.pictures.batches(rows):
            usable = []
            for row, picture in zip(rows[note.rows :], found, strict=False):
                if isinstance(picture, str):
                    note.leave_out(row, picture)
                    continue
                is_near = near.add(picture.mark)
                note.near_duplicates += is_near
                if is_near and self.drops:
                    note.leave_out(row, NEAR_DUPLICATE)
                else:
                    usable.append((row, picture))
            if usable:
                codes.append(note.encode([picture for _, picture in usable], codec, self.device))
                ids += [row.file for row, _ in usable]
                captions += [row.caption for row, _ in usable]
            note.rows += len(found)
            self.progress("Encoding", done + note.rows, self.table.kept)
        if ids:
            write_shard(path, ids=ids, captions=captions, codes=np.concatenate(codes))
        note.marked = near.keep()
        # Only after the shard: a note without a shard would make the next start skip these rows.
        note.write(note_path)
        return note

    def _tokenizer(self, tokenizer_file: Path | None) -> Tokenizer:
        room = self.run.model.text_vocab_size
        if tokenizer_file is not None:
            tokenizer = Tokenizer.from_file(tokenizer_file)
        elif room > LARGEST_WORD_VOCABULARY:
            raise BadInput(
                f"The recipe has {room} text ids; a tokenizer is trained for at most {LARGEST_WORD_VOCABULARY}. Give "
                "one with --tokenizer FILE, such as the tokenizer.json of T5."
            )
        elif (self.folder / TOKENIZER_FILE).exists():  # of work that was interrupted
            tokenizer = Tokenizer.from_file(self.folder / TOKENIZER_FILE)
        else:
            tokenizer = Tokenizer.train(self.table.captions(CODEC_PICTURES, seed=str(self.seed)), room)
        if tokenizer.vocab_size > room:
            raise BadInput(
                f"The tokenizer has {tokenizer.vocab_size} ids, the recipe's model.text_vocab_size is {room}. Use a "
                "smaller tokenizer or a larger vocabulary."
            )
        return tokenizer

    def _codec(self, codec_file: Path | None, steps: int) -> ImageCodec:
        """Returns the codec to encode with, and puts its files into the folder."""
        # Work on this input was interrupted. A codec trained again may differ from the one of the finished shards.
        if (self.folder / CONFIG_FILE).exists():
            return load_codec(self.folder, self.run.codec)
        source = codec_file or (Path(self.run.codec.weights) if self.run.codec.weights else None)
        if source is not None:
            codec = load_codec(source, self.run.codec)
        elif self.run.codec.kind != "small":
            raise BadInput(
                f"`prepare` cannot train a codec of the kind {self.run.codec.kind!r}. Give its weights with --codec "
                "FILE."
            )
        else:
            codec = self._trained_codec(steps)
        save_codec(codec, self.folder)
        return codec

    def _trained_codec(self, steps: int) -> ImageCodec:
        chosen = self.table.sample(CODEC_PICTURES, seed=str(self.seed))
        found: list[np.ndarray] = []
        opened, faults = 0, Unused()
        for batch in self.pictures.batches(chosen):
            found += [picture.pixels for picture in batch if isinstance(picture, Picture)]
            for row, reason in zip(chosen[opened:], batch, strict=False):
                if isinstance(reason, str):
                    faults.add(Unusable(reason=reason, file=row.file))
            opened += len(batch)
            self.progress("Opening pictures for the codec", opened, len(chosen))
        if not found:
            faults.update(self.table.unused)
            raise _nothing_left("to train a codec on", faults)
        return train_small_codec(
            torch.from_numpy(np.stack(found)),
            self.run.codec,
            steps=steps,
            seed=self.seed,
            progress=lambda done, total, loss: self.progress("Training the image codec", done, total),
        )


def _nothing_left(what: str, unused: Unused, *, held_out: int = 0) -> BadInput:
    counts = unused.counts | ({"held out": held_out} if held_out else {})
    told = unused.told("Name those of picture and caption with --image-column and --text-column.")
    return BadInput(
        f"No picture is left {what} ({told_reasons(counts) or NO_ROWS}). {told}".rstrip(),
        cure="Check --images, --captions or --urls.",
    )


class _Note:
    """Counts of encoded and left-out rows, of one shard or the sum of several."""

    def __init__(self, *, left_out: Counter[str] | None = None):
        self.rows = self.samples = self.picture_bytes = self.near_duplicates = 0
        self.marked = 0
        """Pictures of this shard and all before it that `NearDuplicates` has kept."""
        self.squared_error, self.decoded = 0.0, 0
        """Sum of the mean squared errors of the pictures that were decoded again, and their number."""
        self.left_out: Counter[str] = Counter() if left_out is None else left_out
        self.listed: list[dict[str, str]] = []
        """Pictures that were left out, with their reasons; only in the note of one shard."""

    def leave_out(self, row: Row, reason: str) -> None:
        """Notes a row without a usable picture."""
        self.left_out[reason] += 1
        self.listed.append({"file": row.file, "reason": reason})

    def encode(self, pictures: list[Picture], codec: ImageCodec, device: torch.device) -> np.ndarray:
        """Codes of pictures, uint16 (n, image tokens); the codec is on the device."""
        pixels = torch.from_numpy(np.stack([picture.pixels for picture in pictures])).to(device).float() / 255
        codes = codec.encode(pixels)
        sample = slice(-self.samples % DECODED_EVERY, None, DECODED_EVERY)
        original = pixels[sample]
        errors = (codec.decode(codes[sample]) - original).square() if len(original) else original
        self.squared_error += float(errors.mean(dim=(1, 2, 3)).sum())
        self.decoded += len(errors)
        self.samples += len(pictures)
        self.picture_bytes += sum(picture.file_bytes for picture in pictures)
        return codes.cpu().numpy().astype(np.uint16)

    def add(self, other: _Note) -> None:
        """Adds the counts of another note."""
        for name in ("rows", "samples", "picture_bytes", "near_duplicates", "squared_error", "decoded"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.left_out.update(other.left_out)

    def write(self, path: Path) -> None:
        """Writes the note, whole or not at all."""
        write_whole(path, json.dumps(vars(self)))

    @classmethod
    def read(cls, path: Path) -> _Note:
        """Reads a note from a file."""
        note, kept = cls(), json.loads(path.read_text())
        vars(note).update(kept)
        note.left_out = Counter(note.left_out)
        return note


def _input_digest(
    table: RowTable | HubRows,
    pictures: Pictures,
    run: RunConfig,
    files: list[Path | None],
    settings: list[int | str],
    progress: Progress,
) -> str:
    sizes = {"text_vocab_size": run.model.text_vocab_size, "rows_per_shard": ROWS_PER_SHARD, "row_group": ROW_GROUP}
    described = json.dumps([run.codec.model_dump(), sizes, settings], sort_keys=True)
    digest = hashlib.sha256(described.encode())
    for file in files:
        digest.update(digest_of_input(file))
    if isinstance(table, HubRows):
        digest.update(table.identity.encode())
        return digest.hexdigest()
    for done, row in enumerate(table):
        digest.update(f"{row.file}\0{row.caption}".encode())
        if row.archive is None and row.url is None:
            try:
                digest.update(digest_of(pictures.path(row)))
            except OSError:
                # If the picture is there at the next start, the digest differs, and the shards are made again.
                digest.update(b"missing")
        progress("Reading the pictures", done + 1, table.kept)
    return digest.hexdigest()


def _marked(folder: Path) -> int:
    """Counts the pictures of the finished shards in a folder that are in its file of marks."""
    return max((_Note.read(note).marked for note in folder.glob(f"*{NOTE_SUFFIX}")), default=0)


def _left_out(work: Path, table: RowTable | HubRows) -> Iterator[dict[str, str]]:
    """The files and lines that were left out, by `file`, each with its `reason`."""
    yield from table.unusable()
    for note in sorted(work.glob(f"*{NOTE_SUFFIX}")):
        yield from _Note.read(note).listed
