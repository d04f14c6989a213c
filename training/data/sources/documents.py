"""The documents of all kinds of text files that people have.

    a.jsonl, a.json, a.csv, a.parquet   records with a key or column "text", and optionally "split"
    a.txt, a.md                         one document, or several with lines of "<|endoftext|>" between them
    a.json.gz, a.txt.zst                any of them compressed, but for tables, such as the files of C4

A document that cannot be used gives the reason instead of a text. Long documents come in pieces, so that memory does
not depend on a document's length.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from training.data.demo.captions import SPLITS, Split
from training.data.sources.records import (
    BROKEN,
    NOT_UTF8,
    RECORD_KINDS,
    Record,
    Records,
    is_unicode,
    key_of,
    kind_of,
    opened_text,
    until_broken,
)
from training.data.sources.unused import HIDDEN, Unusable
from training.data.sources.work import digest_of_input, files_below
from training.data.store.text_tokenizer import END_OF_TEXT
from training.errors import BadInput, reason_of

PLAIN_KINDS = (".txt", ".text", ".md", ".markdown", ".rst")
TEXT_KINDS = (*RECORD_KINDS, *PLAIN_KINDS)
TEXT_COLUMN = "text"
LONGEST_PIECE = 1 << 20
"""Characters of a piece."""
OTHER_SPLITS: dict[str, Split] = {
    **dict.fromkeys(("training",), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation"), "held-out"),
}
"""Other names of a set's splits, as `datasets` knows them."""
NO_TEXT, NOT_TEXT, UNKNOWN_SPLIT = "line without text", "other kind of file", "unknown split"


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A document, or a part of a long one."""

    text: str
    split: Split = "train"
    begins: bool = True
    """True if the piece begins a document; otherwise it continues the piece before."""
    goes_on: bool = False
    """True if another piece of the document follows."""
    name: str = field(default="", compare=False)
    """The file and the place in it, for people."""


def text_files(path: Path, *, but: Path | None = None) -> tuple[list[Path], list[Unusable]]:
    """Lists a file of text, or the text files below a folder by name, and the files that are not text.

    Args:
        path: The file or folder.
        but: Folder of the shards that are made of it, which may lie in it; they are not text.

    Raises:
        BadInput: If there are no text files.
    """
    if not path.exists():
        raise BadInput(f"There is no {path}. Give a file, or a folder of files, with --text.")
    files, others = [], []
    for file in sorted(files_below(path, but=but)) if path.is_dir() else [path]:
        reason = HIDDEN if path.is_dir() and file.name.startswith(".") else _reason_not_to_read(file)
        if reason is None:
            files.append(file)
        else:
            others.append(Unusable(reason=reason, file=name_of(file, path)))
    if not files:
        found = f" It has {others[0].file}: {others[0].reason}." if path.is_dir() and others else ""
        raise BadInput(
            f"{path} has no text.{found} Give a file, or a folder of files, that ends in {', '.join(TEXT_KINDS)}."
        )
    return files, others


def _reason_not_to_read(file: Path) -> str | None:
    if kind_of(file.name) not in TEXT_KINDS:
        return NOT_TEXT
    return None if file.is_file() else "unreadable file"  # reading a pipe would wait for ever


def name_of(file: Path, folder: Path) -> str:
    """Name of a file in a folder, for people; bytes that are not UTF-8 are escaped."""
    name = file.name if file == folder else file.relative_to(folder).as_posix()
    return name.encode("utf-8", "backslashreplace").decode()


class TextFile:
    """Yields the pieces of a file in order, and for each document that cannot be used the reason.

    Args:
        path: One of `text_files`.
        column: Key of a line, or name of a column, that has the text.
        name: Name of the file, for people; its first folder may name a split. Default: without its folder.
    """

    def __init__(self, path: Path, column: str = TEXT_COLUMN, *, name: str | None = None):
        self._path, self._column, self._name = path, column, name or path.name
        self.split = split_of_folder(self._name)
        """Split that the file's folder names."""
        self._records = Records(path, (column, "split"), long=(column,))
        self.read_bytes = 0
        """Bytes of the file that have been read."""

    @property
    def _is_plain(self) -> bool:
        return kind_of(self._path.name) in PLAIN_KINDS

    @property
    def size_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._path.stat().st_size

    @property
    def identity(self) -> bytes:
        """Digest of the content and of what only the file's name tells: plain text or records, and a split."""
        split = b"" if self.split == "train" else self.split.encode()
        return digest_of_input(self._path) + (b"plain" if self._is_plain else b"") + split

    def __iter__(self) -> Iterator[Piece | Unusable]:
        """Yields pieces and reasons; raises BadInput if the file cannot be opened."""
        try:
            yield from self._texts() if self._is_plain else self._of_records()
        except OSError as error:
            raise BadInput(
                f"{self._path} cannot be read: {reason_of(error)}.",
                cure="Check that the file is there, whole, and readable for you.",
            ) from None

    def _texts(self) -> Iterator[Piece | Unusable]:
        number = 0
        for found in until_broken(self._plain()):
            number += isinstance(found, str) or found.begins
            name = f"{self._name}, text {number}"
            if isinstance(found, str):
                yield Unusable(reason=found, file=name)
            else:
                yield replace(found, name=name, split=self.split)

    def _plain(self) -> Iterator[Piece | str]:
        with opened_text(self._path) as (text, raw, _):
            for piece in _plain(text):
                self.read_bytes = raw.tell()
                yield piece

    def _of_records(self) -> Iterator[Piece | Unusable]:
        for place, record in self._records:
            self.read_bytes = self._records.read_bytes
            name = f"{self._name}, {place}"
            for piece in self._pieces(record, name):
                if isinstance(piece, Piece):
                    yield piece
                else:
                    keys = tuple(record) if piece == NO_TEXT else self._records.missed
                    yield Unusable(reason=piece, file=name, keys=keys)

    def _pieces(self, record: Record, name: str) -> Iterator[Piece | str]:
        if isinstance(record, str):
            yield record
        elif (key := key_of(record, (self._column,))) is None:
            yield NO_TEXT
        elif (text := record[key]) is None:
            yield from pieces_of("", record.get("split") or self.split, name)
        elif not isinstance(text, str) or not is_unicode(text):  # half of a surrogate pair is not valid text
            yield BROKEN
        else:
            yield from pieces_of(text, record.get("split") or self.split, name)


def pieces_of(text: str, split: object, name: str) -> Iterator[Piece | str]:
    """Yields pieces of a text, cut at a space or the end of a line; a reason if the split's name is unknown."""
    split = split_named(split)
    if split is None:
        yield UNKNOWN_SPLIT
        return
    at = 0
    while len(text) - at > LONGEST_PIECE:
        end = max(text.rfind(sign, at + 1, at + LONGEST_PIECE) for sign in " \n")
        end = end if end > 0 else at + LONGEST_PIECE
        yield Piece(text=text[at:end], split=split, begins=at == 0, goes_on=True, name=name)
        at = end
    yield Piece(text=text[at:], split=split, begins=at == 0, name=name)


def split_named(name: object) -> Split | None:
    """Returns our split for the name in a record: "train" if the record has none, None if the name is unknown."""
    if name in (None, ""):
        return "train"
    name = OTHER_SPLITS.get(name.lower(), name) if isinstance(name, str) else None
    return name if name in SPLITS else None


def split_of_folder(name: str) -> Split:
    """Returns the split that a file's first folder names; "train" if the folder names none.

    >>> split_of_folder("validation/1.txt"), split_of_folder("texts/1.txt"), split_of_folder("test.txt")
    ('held-out', 'train', 'train')
    """
    folder = name.split("/")[0] if "/" in name else None
    return split_named(folder) or "train"


def _plain(lines: io.TextIOWrapper) -> Iterator[Piece | str]:
    """Yields documents of a text file, without empty lines around them; a reason for a document that cannot be used."""
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
    return Piece(text=text, begins=begins, goes_on=not ends) if is_unicode(text) else NOT_UTF8
