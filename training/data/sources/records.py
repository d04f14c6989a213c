"""The records of a file, whatever its kind: JSON, CSV or a table, compressed or not.

    {"text": "Once upon a time"}       JSON lines, one record in each line: .jsonl, .ndjson, .json
    [{"text": "Once"}, {"text": ...}]  an array of JSON; in a .json also objects over several lines
    text,split                         CSV with a line of names: .csv, .tsv, with commas, tabs, semicolons or bars
    a.parquet, a.arrow                 tables
    a.jsonl.zst, a.csv.gz              all but tables compressed: .gz, .bz2, .xz, .zst

A record that cannot be read gives the reason instead. Memory holds one record, or a few hundred rows of a table.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import BinaryIO, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

JSON_KINDS, CSV_KINDS = (".jsonl", ".jsonlines", ".ndjson", ".json"), (".csv", ".tsv")
TABLE_KINDS = (".parquet", ".arrow")
RECORD_KINDS = (*JSON_KINDS, *CSV_KINDS, *TABLE_KINDS)
LONGEST_LINE = 1 << 25
"""Most characters of a record of JSON, or of a value of CSV."""
ROWS_AT_A_TIME = 256
"""Rows of a table that are in memory."""
READ_CHARACTERS = 1 << 16
DELIMITERS = ",\t;|"
NOT_UTF8, BROKEN_FILE, BROKEN, LONG_LINE = "not UTF-8", "broken file", "broken line", "long line"
NO_COLUMN, SAME_COLUMN, MORE_COLUMNS = "no such column", "two columns of one name", "more commas than columns"
BEGINS_ARRAY, BEGINS_OBJECT = re.compile(r"\s*\[\s*(\{|\]|$)"), re.compile(r"\s*\{\s*[\r\n]")
BETWEEN_VALUES = re.compile(r"[\s,\[\]]*")

T = TypeVar("T")
Record = dict[str, object] | str
"""The values of a record by their keys or columns; or the reason why it cannot be read."""


def _zstd(raw: BinaryIO) -> io.BufferedReader:
    return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))


COMPRESSIONS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _zstd}


def inflated(content: bytes, most: int) -> bytes:
    """Returns the first `most` bytes of a zip's deflated member.

    Raises:
        zlib.error: If it is damaged.
    """
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, most)


def kind_of(name: str) -> str:
    """Returns the suffix of a file's name in lower case, without that of a compression that can be read.

    >>> kind_of("a.JSONL.gz"), kind_of("a.parquet"), kind_of("a.parquet.gz"), kind_of("a.zip")
    ('.jsonl', '.parquet', '.gz', '.zip')
    """
    name = PurePath(name.lower())
    kind = name.with_suffix("").suffix if name.suffix in COMPRESSIONS else name.suffix
    return name.suffix if kind in ("", *TABLE_KINDS) else kind


def is_unicode(text: str) -> bool:
    """Returns whether a text has no half of a surrogate pair, which stands for a byte that is not UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def key_of(record: Mapping[str, object], names: Iterable[str]) -> str | None:
    """Returns the first of some names that a record has as a key, in small or capital letters;
    None if it has none of them.

    >>> key_of({"URL": "a", "Text": "b"}, ("caption", "text"))
    'Text'
    """
    names = tuple(names)
    for name in names:
        if name in record:
            return name
    small = {key.lower(): key for key in reversed(record)}
    return next((small[name.lower()] for name in names if name.lower() in small), None)


@contextmanager
def opened_text(path: Path, *, newline: str | None = None) -> Iterator[tuple[io.TextIOWrapper, BinaryIO, str]]:
    """Opens a file of text, compressed or not, in UTF-8 or, by its first two bytes, in UTF-16.

    Bytes that are not UTF-8 become lone surrogates, so that only their own record is left out.

    Returns:
        The text; the file itself, whose position says how much was read; and the first characters of the text.
    """
    with ExitStack() as opened:
        raw = opened.enter_context(path.open("rb"))
        opener = COMPRESSIONS.get(path.suffix.lower())
        content = raw if opener is None else opened.enter_context(opener(raw))
        start = content.peek(READ_CHARACTERS)
        is_wide = start[:2] in (b"\xff\xfe", b"\xfe\xff")
        encoding, errors = ("utf-16", "replace") if is_wide else ("utf-8-sig", "surrogateescape")
        text = io.TextIOWrapper(content, encoding=encoding, errors=errors, newline=newline)
        yield opened.enter_context(text), raw, start.decode(encoding, "replace")


def until_broken(read: Iterator[T]) -> Iterator[T | str]:
    """Yields values that are read; at a damaged place, yields a reason and ends.

    Raises:
        OSError: If the system cannot read the file.
    """
    try:
        yield from read
    except (EOFError, zlib.error, lzma.LZMAError, pa.ArrowException, UnicodeDecodeError):
        yield BROKEN_FILE
    except OSError as error:
        if error.errno is not None:
            raise
        yield BROKEN_FILE  # what Arrow and the compressions raise for bytes that are not theirs


class Records:
    """Yields the records of a file in order, each with its place, such as `line 3`.

    Args:
        path: A file of one of `RECORD_KINDS`; its content tells JSON from CSV if its name does not.
        wanted: Columns of a table that are read; letters may be small or capital.
        long: Names of columns with long text. If the last column of a CSV has such a name,
            further commas belong to its text.
    """

    def __init__(self, path: Path, wanted: Collection[str], *, long: Collection[str] = ()):
        self._path = path
        self._wanted, self._long = ({name.lower() for name in names} for names in (wanted, long))
        self.columns: list[str] = []
        """Columns of a table or CSV, once its first record was read."""
        self.missed: tuple[str, ...] = ()
        """Columns of the file, if it lacks the wanted ones."""
        self.read_bytes = 0
        """Bytes of the file that have been read."""

    def __iter__(self) -> Iterator[tuple[str, Record]]:
        """Yields places and records.

        Raises:
            OSError: If the file cannot be opened.
        """
        self.columns, self.missed = [], ()
        read = self._rows() if kind_of(self._path.name) in TABLE_KINDS else self._lines()
        for one in until_broken(read):
            yield ("its end", one) if isinstance(one, str) else one

    def _lines(self) -> Iterator[tuple[str, Record]]:
        is_csv = kind_of(self._path.name) in CSV_KINDS
        with opened_text(self._path, newline="" if is_csv else None) as (text, raw, start):
            for record in self._csv(text) if is_csv else self._json_or_csv(text, start):
                self.read_bytes = raw.tell()
                yield record

    def _json_or_csv(self, text: io.TextIOWrapper, start: str) -> Iterator[tuple[str, Record]]:
        kind = kind_of(self._path.name)
        if BEGINS_ARRAY.match(start) or (kind == ".json" and BEGINS_OBJECT.match(start)):
            return _values(text, is_array=BEGINS_ARRAY.match(start) is not None)
        if kind in JSON_KINDS or start.lstrip()[:1] in ("{", "[", ""):
            return _json_lines(text)
        return self._csv(text)

    def _csv(self, text: io.TextIOWrapper) -> Iterator[tuple[str, Record]]:
        lines = _Lines(text)
        delimiter = "\t" if kind_of(self._path.name) == ".tsv" else max(DELIMITERS, key=lines.first.count)
        # By default a text ends at 131 072 characters.
        csv.field_size_limit(LONGEST_LINE)
        # Strict: else a quote that is not closed would make one text of all lines up to the next quote.
        reader, place = csv.reader(lines, delimiter=delimiter, strict=True), 0
        while True:
            lines.taken.clear()
            place = lines.number + 1
            try:
                values = next(reader)
            except StopIteration:
                return
            except csv.Error:
                lines.give_back()
                yield f"line {place}", BROKEN
                continue
            if not self.columns:
                # A comma at the end of each line is no column.
                self.columns = [value.strip() for value in values[: len(values) - (values[-1:] == [""])]]
                if values and (fault := self._fault_of_columns()) is not None:
                    yield f"line {place}", fault
                    return
            elif values:
                yield f"line {place}", self._named(values, delimiter)

    def _fault_of_columns(self) -> str | None:
        names = [name.lower() for name in self.columns if name.lower() in self._wanted]
        if not names:
            self.missed = tuple(self.columns)
            return NO_COLUMN
        return SAME_COLUMN if len(set(names)) < len(names) else None

    def _named(self, values: list[str], delimiter: str) -> Record:
        most = len(self.columns)
        if any(value.strip() for value in values[most:]):
            if self.columns[-1].lower() not in self._long:
                return MORE_COLUMNS
            values = [*values[: most - 1], delimiter.join(values[most - 1 :])]
        if not all(map(is_unicode, values)):
            return NOT_UTF8
        return dict(zip(self.columns, map(_without_quotes, values), strict=False))

    def _rows(self) -> Iterator[tuple[str, Record]]:
        size, number = self._path.stat().st_size, 0
        with ExitStack() as opened:
            schema, count, batches = self._table(opened)
            self.columns = schema.names
            if (fault := self._fault_of_columns()) is not None:
                yield "its columns", fault
                return
            names = [name for name in schema.names if name.lower() in self._wanted]
            for batch in batches(names):
                for values in zip(*(_values_of(batch.column(name)) for name in names), strict=True):
                    number += 1
                    is_fine = not any(isinstance(value, str) and not is_unicode(value) for value in values)
                    yield f"row {number}", dict(zip(names, values, strict=True)) if is_fine else NOT_UTF8
                self.read_bytes = size * number // count if count else 0

    def _table(self, opened: ExitStack) -> tuple[pa.Schema, int, Callable[[list[str]], Iterable[pa.RecordBatch]]]:
        """Opens a table. Returns its schema, its number of rows, and a function that yields parts of some columns."""
        if kind_of(self._path.name) == ".parquet":
            file = opened.enter_context(pq.ParquetFile(self._path))
            return (
                file.schema_arrow,
                file.metadata.num_rows,
                lambda names: file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=names),
            )
        source = opened.enter_context(pa.memory_map(str(self._path)))
        try:
            file = opened.enter_context(pa.ipc.open_file(source))
            batches = (file.get_batch(number) for number in range(file.num_record_batches))
        except pa.ArrowInvalid:  # the other one of Arrow's formats, in which `datasets` keeps what it has read
            source.seek(0)
            file = batches = opened.enter_context(pa.ipc.open_stream(source))
        return file.schema, 0, lambda names: batches


def _without_quotes(value: str) -> str:
    """Removes quotes that follow a comma and a blank, which `csv` takes for a part of the value."""
    inner = value.strip()
    is_quoted = value[:1] == " " and len(inner) > 1 and inner[0] == inner[-1] == '"'
    return inner[1:-1].replace('""', '"') if is_quoted else value


def _values_of(column: pa.Array) -> list:
    """The values of a column. Arrow does not check whether text is UTF-8, and `to_pylist` fails as a whole."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        column = column.cast(pa.large_binary())
    return [
        value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value for value in column.to_pylist()
    ]


class _Lines:
    """Lines for `csv`. After an error, all lines of the record but the first are read again, as records of their own:
    a quote that is not closed takes the lines up to the next quote."""

    def __init__(self, text: io.TextIOBase):
        self._text = text
        self.first = text.readline(LONGEST_LINE)
        self._waiting = deque([self.first] if self.first else [])
        self.taken: list[str] = []
        """Lines that were read since this list was emptied."""
        self.number = 0
        """Number of lines that were read and not put back."""

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._waiting.popleft() if self._waiting else self._text.readline(LONGEST_LINE)
        if not line:
            raise StopIteration
        self.taken.append(line)
        self.number += 1
        return line

    def give_back(self) -> None:
        self._waiting.extendleft(reversed(self.taken[1:]))
        self.number -= len(self.taken[1:])


def _json_lines(text: io.TextIOBase) -> Iterator[tuple[str, Record]]:
    for number, line in enumerate(_lines_of(text), start=1):
        if line is None:
            yield f"line {number}", LONG_LINE
        elif line.strip():
            yield f"line {number}", _parsed(line)


def _lines_of(text: io.TextIOBase) -> Iterator[str | None]:
    """Yields the lines of a file, and None for a line that is too long for memory."""
    while line := text.readline(LONGEST_LINE):
        if len(line) < LONGEST_LINE or line.endswith(("\n", "\r")):
            yield line
            continue
        while (rest := text.readline(LONGEST_LINE)) and not rest.endswith(("\n", "\r")):
            pass
        yield None


def _parsed(line: str) -> Record:
    if not is_unicode(line):
        return NOT_UTF8
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return BROKEN
    return fields if isinstance(fields, dict) else BROKEN


def _values(text: io.TextIOBase, *, is_array: bool) -> Iterator[tuple[str, Record]]:
    """Yields the values of an array, or values one after another.
    Stops at a broken value, after which no value can be found."""
    decoder, number = json.JSONDecoder(), 0
    held, at, is_all, is_closed = "", 0, False, not is_array
    while True:
        between = BETWEEN_VALUES.match(held, at)
        at, is_closed = between.end(), is_closed or "]" in between[0]
        try:
            value, end = decoder.raw_decode(held, at)
        except (ValueError, RecursionError):
            size = len(held) - at
            if is_all or size > LONGEST_LINE:
                if size or not is_closed:
                    yield f"item {number + 1}", BROKEN_FILE
                return
            # Twice as much each time: a long value is parsed a few times, not once for each piece of it.
            more = text.read(max(READ_CHARACTERS, size))
            held, at, is_all = held[at:] + more, 0, not more
            continue
        number += 1
        fields = value if isinstance(value, dict) else BROKEN
        yield f"item {number}", fields if is_unicode(held[at:end]) else NOT_UTF8
        at = end
