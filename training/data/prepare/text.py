"""Makes shards of text: reads documents, turns them into ids, packs them into blocks, writes.

Documents are read once, in the order of their files. When the blocks fill a shard, it is written, and then a note with
the place of the next document and the tokens that do not fill a block yet. After an interruption, the next call with
the same input continues from the last note. Memory holds one shard, whatever the size of the set.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from training.data.demo.captions import SPLITS, Split
from training.data.prepare.packing import Packed, Packer
from training.data.sources.documents import TEXT_COLUMN, Piece, TextFile, name_of, text_files
from training.data.sources.hub import HubText, hub_texts, is_hub
from training.data.sources.unused import Unusable, Unused, told_reasons, write_left_out
from training.data.sources.work import (
    NOTE_SUFFIX,
    Progress,
    alone_at,
    described,
    digest_of_input,
    finish,
    finished,
    held_out_places,
    part_folder,
)
from training.data.store.card import write_text_card
from training.data.store.shards import (
    GROUP_TOKENS,
    TOKENIZER_FILE,
    SplitEntry,
    TextManifest,
    token_type,
    write_text_shard,
)
from training.data.store.text_tokenizer import TextTokenizer
from training.data.stream.order import permuted
from training.errors import BadInput
from training.storage.whole import write_whole

SHARD_TOKENS = 1 << 24
"""Tokens of a shard, and a few more: 33 MB in 16 bit, before compression."""
BLOCK_LENGTH = 1024
READ_CHARACTERS = 1 << 20
"""Documents with this many characters together are turned into ids at once."""
READ_DOCUMENTS = 4096
VOCABULARY_CHARACTERS = 1 << 26
"""Characters of text on which a tokenizer is trained, from the beginning of every file;
memory holds all its different words meanwhile."""
SHOWN_EVERY = 64
"""Documents between two reports of progress."""
MEGABYTE = 10**6

_Placed = tuple[Piece | Unusable, int, int]
"""A piece, or the reason why it is left out; the number of its file; pieces of that file read so far, this one
included."""
_Batch = list[_Placed]


@dataclass(frozen=True, kw_only=True, slots=True)
class TextInput:
    """The text that a set is made of, and how it becomes blocks."""

    path: Path | str
    """A file or a folder of files of the kinds that `training.data.sources.documents` lists, or a set of the hub,
    `hf://`."""
    block_length: int = BLOCK_LENGTH
    """T, tokens of a block."""
    tokenizer: Path | None = None
    """Path of a `tokenizer.json`; None: a tokenizer is trained on the text."""
    vocabulary: int | None = None
    """Most ids of a tokenizer that is trained on the text, in place of `tokenizer`."""
    end_of_text: str | None = None
    """Token of `tokenizer` that ends a document; None: one of `END_NAMES`."""
    text_column: str = TEXT_COLUMN
    """Key of a line, or name of a column, that has the text."""
    min_characters: int = 1
    """Least characters of a document; shorter documents are left out."""
    seed: int = 0
    """Seed of the order of a shard's blocks."""
    holds_out: bool = False
    """True to hold some blocks of the first shard out of training if the source itself holds nothing out."""

    def __post_init__(self) -> None:
        if (self.tokenizer is None) == (self.vocabulary is None):
            raise BadInput(
                "Text needs a tokenizer. Give the tokenizer.json of a model with --tokenizer, or a number of ids with "
                "--vocabulary, and one is trained."
            )
        if self.vocabulary is not None and self.end_of_text is not None:
            raise BadInput("A tokenizer that is trained has its own end of text. Give --end-of-text with --tokenizer.")


def prepare_text(
    source: TextInput,
    out: Path,
    *,
    replace: bool = False,
    licence: str | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> tuple[TextManifest, bool]:
    """Makes a folder of shards of text.

    Args:
        source: The text.
        out: Folder to make.
        replace: Whether an `out` made from other input may be replaced.
        licence: Licence of the text, for the data card.
        progress: See `Progress`; amounts are megabytes of the files.

    Returns:
        The manifest, and whether anything had to be done.

    Raises:
        BadInput: If the input cannot be used. Single broken documents are only counted.
    """
    out = Path(os.path.realpath(out))  # the folder behind a link is made, and the link stays
    with alone_at(out):
        files, others = _files(source, out)
        digest = _input_digest(source, files, progress)
        if (there := finished(out, digest, replace=replace)) is not None:
            return there, False
        work = _TextWork(part_folder(out, digest), source, files, others, progress)
        manifest = work.make(digest)
        write_text_card(work.folder, manifest, licence=licence)
        finish(work.folder, out, manifest)
    return manifest, True


@dataclass(kw_only=True)
class _Note:
    """Progress up to a place in the documents, and the state from which work continues there."""

    number: int = -1
    """Number of the shards that were written last."""
    blocks: dict[Split, int] = field(default_factory=dict)
    """Blocks of each of these shards."""
    file: int = 0
    read: int = 0
    """Pieces of this file before the place, those left out included."""
    rests: dict[Split, dict] = field(default_factory=dict)
    """State of each split's packer; see `Packer.rest`."""
    documents: int = 0
    text_bytes: int = 0
    lengths: list[int] = field(default_factory=list)
    """Documents by length; see `TextManifest.document_lengths`."""
    unused: dict = field(default_factory=lambda: asdict(Unused()))
    """The documents that were left out; see `Unused`."""
    is_cut: bool = False
    """True if the beginning of the last document was left out; the rest of it is then left out too."""
    is_last: bool = False

    @classmethod
    def from_file(cls, path: Path) -> _Note:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True)
class _TextWork:
    """Work on the shards of a set; finished shards stay if it is interrupted."""

    folder: Path
    source: TextInput
    files: Sequence[TextFile | HubText]
    others: Sequence[Unusable]
    """Files that are not text."""
    progress: Progress

    def make(self, digest: str) -> TextManifest:
        """Makes all files except the manifest, and returns the manifest.

        Raises:
            BadInput: If the text does not fill one block.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        tokenizer = self._tokenizer()
        note, full = _Note(), {}
        # There may be thousands of notes: we keep the last one, and the numbers of blocks of all others.
        for path in self.folder.glob(f"*{NOTE_SUFFIX}"):
            found = _Note.from_file(path)
            full[found.number] = found.blocks
            note = found if found.number > note.number else note
        batches = _batches(self._pieces(note))
        while not note.is_last:
            note = self._next(note, batches, tokenizer)
            full[note.number] = note.blocks
        splits = {split: _entry(split, full) for split in SPLITS}
        unused = Unused(**note.unused)
        for other in self.others:
            unused.add(other)
        if not splits["train"].samples:
            reasons = told_reasons(unused.counts) or "nothing left out"
            told = unused.told("Give that of the text with --text-column.")
            raise BadInput(
                f"{self.source.path} does not fill a block of {self.source.block_length} tokens to train on: it has "
                f"{note.documents + len(self.others)} documents ({reasons}). {told}".rstrip(),
                cure="Check --text, or give a smaller --block-length.",
            )
        write_left_out(self.folder, unused.listed())
        return TextManifest(
            input_digest=digest,
            block_length=self.source.block_length,
            vocab_size=tokenizer.vocab_size,
            end_of_text=tokenizer.end_of_text,
            documents=note.documents + len(self.others),
            left_over_tokens=sum(len(rest["tokens"]) for rest in note.rests.values()),
            text_bytes=note.text_bytes,
            document_lengths=tuple(note.lengths),
            left_out=dict(sorted(unused.counts.items())),
            splits=splits,
            **described(self.folder, splits),
        )

    def _tokenizer(self) -> TextTokenizer:
        """Returns the tokenizer to encode with, and puts its file into the folder."""
        path, source = self.folder / TOKENIZER_FILE, self.source
        if source.tokenizer is not None:
            tokenizer = TextTokenizer.from_file(source.tokenizer, end_of_text=source.end_of_text)
            tokenizer.save(path)
        elif path.exists():  # of work that was interrupted
            tokenizer = TextTokenizer.from_file(path)
        else:
            tokenizer = TextTokenizer.train(self._sampled(), source.vocabulary)
            tokenizer.save(path)
        return tokenizer

    def _sampled(self) -> Iterator[str]:
        """Texts to train a tokenizer on: the same share of every file, from its beginning."""
        share = VOCABULARY_CHARACTERS // len(self.files)
        for done, file in enumerate(self.files):
            self.progress("Training the tokenizer, files", done, len(self.files))
            left = share
            for piece in file:
                if left <= 0:
                    break
                if isinstance(piece, Piece) and piece.split == "train":
                    yield piece.text[:left]
                    left -= len(piece.text)
        self.progress("Training the tokenizer, files", len(self.files), len(self.files))

    def _pieces(self, note: _Note) -> Iterator[_Placed]:
        """Yields the pieces after a note's place, each with the place after it."""
        sizes = [file.size_bytes for file in self.files]
        before, total = sum(sizes[: note.file]), sum(sizes)
        for number in range(note.file, len(self.files)):
            file = self.files[number]
            skipped = note.read if number == note.file else 0
            for read, piece in enumerate(islice(file, skipped, None), start=skipped + 1):
                yield piece, number, read
                if read % SHOWN_EVERY == 0:
                    self._show(before + file.read_bytes, total)
            before += sizes[number]
            self._show(before, total)

    def _show(self, done: int, total: int) -> None:
        self.progress("Packing text, MB of files", done // MEGABYTE, total // MEGABYTE)

    def _next(self, before: _Note, batches: Iterator[_Batch], tokenizer: TextTokenizer) -> _Note:
        """Reads until the blocks fill a shard, or to the end; writes shards and note."""
        settings = {
            "block_length": self.source.block_length,
            "end_of_text": tokenizer.end_of_text,
            "kind": token_type(tokenizer.vocab_size),
        }
        packers = {
            split: Packer.from_rest(before.rests[split], **settings) if split in before.rests else Packer(**settings)
            for split in SPLITS
        }
        note = _Note(**{**asdict(before), "number": before.number + 1})
        unused = Unused(**note.unused)
        while sum(packer.blocks for packer in packers.values()) * self.source.block_length < SHARD_TOKENS:
            batch = next(batches, None)
            if batch is None:
                note.is_last = True
                break
            self._pack([piece for piece, _, _ in batch], packers, tokenizer, note, unused)
            note.file, note.read = batch[-1][1:]
        note.unused, note.blocks = asdict(unused), {}
        taken = {}
        for split, packer in packers.items():
            is_ended = note.is_last and packer.is_open
            note.lengths = _counted(note.lengths, [*packer.finished, *([packer.length] if is_ended else [])])
            taken[split] = packer.take()
        if self._holds_out(note.number, taken):
            places = held_out_places(len(taken["train"].tokens))
            taken["train"], taken["held-out"] = taken["train"].divided(places)
        for split, packed in taken.items():
            note.blocks[split] = len(packed.tokens)
            if note.blocks[split]:
                name = _shard_name(split, note.number)
                order = permuted(np.arange(len(packed.tokens)), len(packed.tokens), f"{self.source.seed}/{name}")
                write_text_shard(self.folder / name, tokens=packed.tokens[order], starts=packed.starts[order])
            note.rests[split] = packers[split].rest
        # Only after the shards: a note without a shard would make the next start skip these documents.
        write_whole(self.folder / f"{note.number:05d}{NOTE_SUFFIX}", json.dumps(asdict(note)))
        return note

    def _holds_out(self, number: int, taken: dict[Split, Packed]) -> bool:
        """Returns whether blocks of a shard are held out.

        The source itself holds some out if a file's folder or a document of the first shard says so.
        """
        divided = any(file.split != "train" for file in self.files) or any(
            len(packed.tokens) for split, packed in taken.items() if split != "train"
        )
        return self.source.holds_out and number == 0 and not divided

    def _pack(
        self,
        pieces: list[Piece | Unusable],
        packers: dict[Split, Packer],
        tokenizer: TextTokenizer,
        note: _Note,
        unused: Unused,
    ) -> None:
        encoded = iter(tokenizer.encode([piece.text for piece in pieces if isinstance(piece, Piece)]))
        for piece in pieces:
            begins = isinstance(piece, Unusable) or piece.begins or note.is_cut
            ids = None if isinstance(piece, Unusable) else next(encoded)
            reason = piece.reason if ids is None else _reason_to_leave_out(piece, ids, self.source.min_characters)
            note.documents += begins
            if begins:
                note.is_cut = reason is not None
            if reason is None:
                packers[piece.split].add(ids, begins=begins)
                note.text_bytes += len(piece.text.encode())
            elif begins:
                unused.add(Unusable(reason=reason, file=piece.name) if isinstance(piece, Piece) else piece)


def _reason_to_leave_out(piece: Piece, ids: np.ndarray, min_characters: int) -> str | None:
    if piece.begins and not piece.text.strip():
        return "empty"
    # A document in several pieces is longer than `min_characters`.
    if piece.begins and not piece.goes_on and len(piece.text.strip()) < min_characters:
        return "too short"
    return None if len(ids) else "no tokens"


def _batches(pieces: Iterable[_Placed]) -> Iterator[_Batch]:
    """Groups pieces into batches with at least `READ_CHARACTERS` together; the last batch may be smaller."""
    batch, size = [], 0
    for one in pieces:
        batch.append(one)
        size += len(one[0].text) if isinstance(one[0], Piece) else 0
        if size >= READ_CHARACTERS or len(batch) == READ_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _counted(counts: list[int], lengths: list[int]) -> list[int]:
    """Adds lengths to counts by a length's number of bits; returns the new counts."""
    found = Counter({bits: count for bits, count in enumerate(counts, start=1)})
    found.update(length.bit_length() for length in lengths)
    return [found[bits] for bits in range(1, max(found, default=0) + 1)]


def _shard_name(split: Split, number: int) -> str:
    return f"{split}-{number:05d}.parquet"


def _entry(split: Split, full: dict[int, dict[Split, int]]) -> SplitEntry:
    """Builds the manifest's entry of a split; `full` maps a shard's number to its blocks in each split."""
    blocks = {_shard_name(split, number): full[number][split] for number in sorted(full) if full[number][split]}
    return SplitEntry(samples=sum(blocks.values()), shards=tuple(blocks))


def _files(source: TextInput, out: Path) -> tuple[Sequence[TextFile | HubText], list[Unusable]]:
    """Opens the files of a set; lists in addition the files that are not text."""
    if is_hub(source.path):
        return hub_texts(str(source.path), source.text_column), []
    path = Path(source.path)
    files, others = text_files(path, but=out)
    return [TextFile(file, source.text_column, name=name_of(file, path)) for file in files], others


def _input_digest(source: TextInput, files: Sequence[TextFile | HubText], progress: Progress) -> str:
    settings = asdict(source)
    del settings["path"], settings["tokenizer"]
    if not source.holds_out:
        del settings["holds_out"]  # sets that were made before it existed keep their digest
    described = [settings, SHARD_TOKENS, READ_CHARACTERS, GROUP_TOKENS, VOCABULARY_CHARACTERS]
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    digest.update(digest_of_input(source.tokenizer))
    for done, file in enumerate(files, start=1):
        digest.update(file.identity)
        progress("Reading the files", done, len(files))
    return digest.hexdigest()
