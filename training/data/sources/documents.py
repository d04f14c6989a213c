"""The documents of all kinds of text files that people have.

    a.jsonl, a.json    {"text": "Once upon a time ..."} in each line, and optionally "split"
    a.txt              one document, or several with lines of "<|endoftext|>" between them
    a.parquet          a column "text", and optionally "split"
    a.json.gz          any of the first three compressed, such as the files of C4

A document that cannot be used gives the reason instead of a text. Long ones come in pieces, so that memory depends on
none of them.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from training.data.demo.captions import SPLITS, Split
from training.data.sources.work import digest_of_input
from training.data.store.text_tokenizer import END_OF_TEXT
from training.errors import BadInput, reason_of

TEXT_SUFFIXES = (".jsonl", ".json", ".txt", ".parquet", ".jsonl.gz", ".json.gz", ".txt.gz")
TEXT_COLUMN = "text"
LONGEST_PIECE, LONGEST_LINE = 1 << 20, 1 << 25
"""Characters of a piece, and of a line of JSON."""
ROWS_AT_A_TIME = 256
"""Rows of a Parquet file that are in memory."""
OTHER_SPLITS: dict[str, Split] = {"training": "train", **dict.fromkeys(("validation", "valid", "test"), "held-out")}
"""Other names of a set's splits."""
NOT_UTF8, BROKEN_FILE, LONG_LINE, NO_COLUMN = "not UTF-8", "broken file", "long line", "line without text"


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A document, or a part of a long one."""

    text: str
    split: Split = "train"
    begins: bool = True
    """True if the piece begins a document; otherwise it continues the piece before."""
    goes_on: bool = False
    """True if another piece of the document follows."""


def text_files(path: Path, *, but: Path | None = None) -> list[Path]:
    """Lists a file of text, or those in a folder and the folders below by name, hidden ones left out.

    Args:
        path: The file or folder.
        but: Folder of the shards that are made of it, which may lie in it; they are not text.

    Raises:
        BadInput: If there are none.
    """
    if path.is_dir():
        found = (file for file in sorted(path.rglob("*")) if _is_text(file) and file.is_file())
        shown = (file for file in found if "/." not in f"/{file.relative_to(path).as_posix()}")
        files = [file for file in shown if but not in Path(os.path.realpath(file)).parents]
    else:
        files = [path] if _is_text(path) else []
    if not path.exists():
        raise BadInput(f"There is no {path}. Give a file, or a folder of files, with --text.")
    if not files:
        raise BadInput(
            f"{path} has no text. Give a file, or a folder of files, that ends in {', '.join(TEXT_SUFFIXES)}."
        )
    return files


def _is_text(path: Path) -> bool:
    return path.name.lower().endswith(TEXT_SUFFIXES)


class TextFile:
    """Yields the pieces of a file in order, and for each document that cannot be used the reason.

    Args:
        path: One of `text_files`.
        column: Key of a line, or name of a column, that has the text.
    """

    def __init__(self, path: Path, column: str = TEXT_COLUMN):
        self._path, self._column, self._name = path, column, path.name.lower()
        self.read_bytes = 0
        """Bytes of the file that have been read."""

    @property
    def _is_plain(self) -> bool:
        return self._name.removesuffix(".gz").endswith(".txt")

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._path.stat().st_size

    @property
    def identity(self) -> bytes:
        """Digest of the content, and whether it is plain text or lines of JSON, which the name alone says."""
        return digest_of_input(self._path) + (b"plain" if self._is_plain else b"")

    def __iter__(self) -> Iterator[Piece | str]:
        """Yields pieces and reasons; raises BadInput if the file cannot be opened, or lacks the column."""
        try:
            if self._name.endswith(".parquet"):
                yield from self._rows()
            else:
                yield from self._lines()
        except OSError as error:
            raise BadInput(
                f"{self._path} cannot be read: {reason_of(error)}.",
                cure="Check that the file is there, whole, and readable for you.",
            ) from None

    def _lines(self) -> Iterator[Piece | str]:
        with ExitStack() as opened:
            raw = opened.enter_context(self._path.open("rb"))
            content = opened.enter_context(gzip.open(raw)) if self._name.endswith(".gz") else raw
            # Bytes that are not UTF-8 become lone surrogates, so that only their own document is left out.
            lines = io.TextIOWrapper(content, encoding="utf-8-sig", errors="surrogateescape")
            try:
                for piece in _plain(lines) if self._is_plain else self._of_column(_json(lines, self._column)):
                    self.read_bytes = raw.tell()
                    yield piece
            except (gzip.BadGzipFile, EOFError, zlib.error):
                yield BROKEN_FILE

    def _of_column(self, pieces: Iterable[Piece | str | tuple[str, ...]]) -> Iterator[Piece | str]:
        """Refuses a file whose text has another key: one of whose lines lacks the column before any has it."""
        found = False
        for piece in pieces:
            if isinstance(piece, tuple) and not found:
                raise BadInput(
                    f"A line of {self._path} has the keys {', '.join(piece)}. Give that of the text with --text-column."
                )
            found |= isinstance(piece, Piece)
            yield NO_COLUMN if isinstance(piece, tuple) else piece

    def _rows(self) -> Iterator[Piece | str]:
        size, done = self._path.stat().st_size, 0
        try:
            with pq.ParquetFile(self._path) as opened:
                self._check_column(opened.schema_arrow)
                names = [name for name in (self._column, "split") if name in opened.schema_arrow.names]
                for batch in opened.iter_batches(batch_size=ROWS_AT_A_TIME, columns=names):
                    done += batch.num_rows
                    self.read_bytes = size * done // max(opened.metadata.num_rows, 1)
                    # As bytes: Arrow does not check whether text in a file is UTF-8.
                    texts = batch.column(self._column).cast(pa.large_binary()).to_pylist()
                    splits = batch.column("split").to_pylist() if "split" in names else ["train"] * len(texts)
                    for text, split in zip(texts, splits, strict=True):
                        yield from _cell(text, split)
        except (pa.ArrowException, UnicodeDecodeError):
            yield BROKEN_FILE
        except OSError as error:
            if error.errno is not None:
                raise
            yield BROKEN_FILE  # Arrow's error for a file that ends too early

    def _check_column(self, schema: pa.Schema) -> None:
        if self._column not in schema.names:
            raise BadInput(f"{self._path} has the columns {schema.names}. Give that of the text with --text-column.")
        for name in (self._column, "split"):
            if schema.names.count(name) > 1:
                raise BadInput(
                    f"{self._path} has more than one column {name!r}.",
                    cure="Rename all of them but one, or leave it out.",
                )
        kind = schema.field(self._column).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise BadInput(
                f"The column {self._column!r} of {self._path} holds {kind}; text is a string. Give another one with "
                "--text-column."
            )


def _json(lines: io.TextIOWrapper, column: str) -> Iterator[Piece | str | tuple[str, ...]]:
    for line in lines_of(lines):
        if line is None:
            yield LONG_LINE
        elif line.strip():
            yield from _json_line(line, column)


def lines_of(text: io.TextIOBase) -> Iterator[str | None]:
    """Yields the lines of a file, and None for a line that is too long for memory."""
    while line := text.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE or line.endswith(("\n", "\r")):
            yield line
            continue
        while (rest := text.readline(LONGEST_LINE)) and not rest.endswith(("\n", "\r")):
            pass
        yield None


def _json_line(line: str, column: str) -> Iterator[Piece | str | tuple[str, ...]]:
    if not _is_unicode(line):
        yield NOT_UTF8
        return
    try:
        fields = json.loads(line)
        if isinstance(fields, dict) and column not in fields:
            yield tuple(f"{key:.40}" for key in list(fields)[:20])
            return
        text, split = fields[column], fields.get("split", "train")
        if not isinstance(text, str) or not _is_unicode(text):
            raise ValueError("half of a surrogate pair is not valid text")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        yield "broken line"
        return
    yield from pieces_of(text, split)


def _cell(text: bytes | None, split: object) -> Iterator[Piece | str]:
    try:
        yield from pieces_of((text or b"").decode(), split)
    except UnicodeDecodeError:
        yield NOT_UTF8


def pieces_of(text: str, split: object) -> Iterator[Piece | str]:
    """Pieces of a text, the later ones from a space or the end of a line on; a reason if its split has another name."""
    split = OTHER_SPLITS.get(split, split) if isinstance(split, str) else None
    if split not in SPLITS:
        yield "unknown split"
        return
    at = 0
    while len(text) - at > LONGEST_PIECE:
        end = max(text.rfind(sign, at + 1, at + LONGEST_PIECE) for sign in " \n")
        end = end if end > 0 else at + LONGEST_PIECE
        yield Piece(text=text[at:end], split=split, begins=at == 0, goes_on=True)
        at = end
    yield Piece(text=text[at:], split=split, begins=at == 0)


def _plain(lines: io.TextIOWrapper) -> Iterator[Piece | str]:
    """Documents of a text file, without the empty lines around them."""
    kept: list[str] = []
    size, begins, found = 0, True, 0
    while line := lines.readline(LONGEST_PIECE):
        ends = line.strip() == END_OF_TEXT
        if not ends:
            kept.append(line)
            size += len(line)
        if ends or size >= LONGEST_PIECE:
            piece = _piece(kept, begins=begins, ends=ends)
            yield piece
            # After a piece that is left out, the next piece begins a document of its own.
            begins, size, found = ends or isinstance(piece, str), 0, found + 1
            kept.clear()
    if kept or not found:
        yield _piece(kept, begins=begins, ends=True)


def _piece(lines: list[str], *, begins: bool, ends: bool) -> Piece | str:
    text = "".join(lines)
    text = text.lstrip("\n") if begins else text
    text = text.rstrip("\n") if ends else text
    return Piece(text=text, begins=begins, goes_on=not ends) if _is_unicode(text) else NOT_UTF8


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
