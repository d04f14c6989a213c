"""Documents of every kind of text file, and why some are none."""

import bz2
import csv
import gzip
import io
import json
import lzma

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.sources import documents as documents_module
from training.data.sources import records as records_module
from training.data.sources.documents import Piece, TextFile, text_files
from training.data.sources.unused import Unusable
from training.errors import BadInput

TEXTS = ["A cat.\n\nIt sleeps.", "Ein Hund – “bellt”", "قصة قصيرة", "🔴 赤い円", 'a "quoted" text\u2028and a\ttab']


def pieces(path, **settings):
    return list(TextFile(path, **settings))


def texts(path, **settings):
    return [piece.reason if isinstance(piece, Unusable) else piece.text for piece in pieces(path, **settings)]


def csv_of(texts, delimiter=","):
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([["url", "text"], *(["x", text] for text in texts)])
    return file.getvalue()


def test_the_same_texts_come_from_every_kind_of_file(tmp_path):
    lines = "".join(json.dumps({"text": text, "url": "x"}) + "\n" for text in TEXTS)
    readable = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n\n" for text in TEXTS)
    records = [{"url": "x", "text": text} for text in TEXTS]
    ends = {
        "txt.jsonl": lines.encode("utf-8-sig"),
        "json.gz": gzip.compress(lines.encode()),
        "json": readable.encode(),
        "txt": ("\n<|endoftext|>\n".join(TEXTS) + "\n").encode(),
        "TXT.gz": gzip.compress("\n\n<|endoftext|>\n\n".join(TEXTS).encode()),
        "md": "\n<|endoftext|>\n".join(TEXTS).encode(),
        "txt.json": json.dumps(records).encode(),
        "lines.JSON": json.dumps(records, indent=2, ensure_ascii=False).encode("utf-8-sig"),
        "values.json": "\n".join(json.dumps(record, indent=1) for record in records).encode(),
        "array.jsonl.xz": lzma.compress(json.dumps(records).encode()),
        "ndjson.bz2": bz2.compress(lines.encode()),
        "jsonl.zst": pa.compress(lines.encode(), codec="zstd", asbytes=True),
        "json.zst": b"".join(
            pa.compress(part.encode(), codec="zstd", asbytes=True) for part in (lines[:99], lines[99:])
        ),
        "csv": csv_of(TEXTS).encode("utf-8-sig"),
        "wide.csv": csv_of(TEXTS, ";").encode("utf-16"),
        "tsv.gz": gzip.compress(csv_of(TEXTS, "\t").encode()),
    }
    for number, (end, content) in enumerate(ends.items(), start=10):
        (tmp_path / f"{number}.{end}").write_bytes(content)
    (tmp_path / "notes.pdf").write_text("no text")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "a.txt").write_text("hidden")
    (tmp_path / "._10.jsonl").write_bytes(b"\0\5\x16\7")  # macOS keeps a file's attributes so, on foreign disks
    files, others = text_files(tmp_path)
    assert [file.name[:2] for file in files] == [str(number) for number in range(10, 10 + len(ends))]
    assert [(texts(file), file.name) for file in files] == [(TEXTS, file.name) for file in files]
    assert all(piece.begins and piece.split == "train" for piece in pieces(files[0]))
    assert {one.file: one.reason for one in others} == {
        "notes.pdf": "other kind of file",
        ".hidden.txt": "hidden file",
        ".git": "hidden file",
        "._10.jsonl": "hidden file",
    }


STRING = pa.array(TEXTS)
COLUMNS = {
    "string": STRING,
    "large": STRING.cast(pa.large_string()),
    "view": STRING.cast(pa.string_view()),
    "bytes": STRING.cast(pa.binary()),
    "dictionary": STRING.dictionary_encode(),
    "dictionary of views": pa.DictionaryArray.from_arrays(
        pa.array(range(5), pa.int8()), STRING.cast(pa.large_string())
    ),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("kind", ["parquet", "arrow file", "arrow stream"])
def test_every_type_of_a_column_that_holds_text(tmp_path, column, kind):
    table, path = pa.table({"n": range(5), "text": column}), tmp_path / f"a.{kind.split()[0]}"
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        opener = pa.ipc.new_file if kind == "arrow file" else pa.ipc.new_stream
        with opener(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    assert texts(path) == TEXTS
    assert [piece.name for piece in pieces(path)][-1] == f"{path.name}, row 5"


def test_empty_cells_and_cells_of_other_types(tmp_path):
    for name, column in {"a": ["one", None, ""], "b": [1, 2, 3], "c": [["one"], [], None]}.items():
        pq.write_table(pa.table({"text": column}), tmp_path / f"{name}.parquet")
    assert texts(tmp_path / "a.parquet") == ["one", "", ""]
    assert texts(tmp_path / "b.parquet") == ["broken line"] * 3
    assert texts(tmp_path / "c.parquet") == ["broken line"] * 2 + [""]


@pytest.mark.parametrize(
    "name, content, keys",
    [
        ("a.csv", "id,body\n1,x\n", ("id", "body")),
        ("a.jsonl", '{"id": 1, "body": "x"}\n', ("id", "body")),
        ("a.json", '{"data": [{"text": "x"}]}', ("data",)),
    ],
)
def test_the_keys_are_named_where_the_text_is_missing(tmp_path, name, content, keys):
    (tmp_path / name).write_text(content)
    (one,) = pieces(tmp_path / name)
    assert one.keys == keys and one.file == f"{name}, line 1"


def test_columns_are_named_where_the_text_is_missing(tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "body": ["x", "y"]}), tmp_path / "a.parquet")
    assert pieces(tmp_path / "a.parquet") == [
        Unusable(reason="no such column", file="a.parquet, its columns", keys=("id", "body"))
    ]
    pq.write_table(pa.Table.from_arrays([pa.array(["x"])] * 2, names=["text", "Text"]), tmp_path / "b.parquet")
    assert texts(tmp_path / "b.parquet") == ["two columns of one name"]


def test_an_array_that_breaks_gives_what_is_before(tmp_path):
    whole = json.dumps([{"text": text} for text in TEXTS])
    (tmp_path / "a.json").write_text(whole[: len(whole) - 20])
    assert texts(tmp_path / "a.json") == [*TEXTS[:-1], "broken file"]
    (tmp_path / "b.json").write_text(whole[:-1])  # without the bracket at its end
    assert texts(tmp_path / "b.json") == [*TEXTS, "broken file"]
    (tmp_path / "c.json").write_text('[{"text": "a"}, 5, "b", null, {"text": "c"}, {"n": 1}]')
    assert texts(tmp_path / "c.json") == ["a", *["broken line"] * 3, "c", "line without text"]
    (tmp_path / "d.json").write_text("[]")
    (tmp_path / "e.jsonl").write_text("")
    assert texts(tmp_path / "d.json") == texts(tmp_path / "e.jsonl") == []


def test_a_value_of_an_array_may_be_longer_than_what_is_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(records_module, "READ_CHARACTERS", 16)
    long = ["x" * 1000, *TEXTS, "y" * 50]
    (tmp_path / "a.json").write_text(json.dumps([{"text": text} for text in long], indent=1))
    assert texts(tmp_path / "a.json") == long


def test_commas_of_the_last_column_are_its_own(tmp_path):
    lines = ["id,text", "1,one, two", '2,"one, two"', "3,one,", "4,", "5", '6, "six, ""6"""', '7,"""7"""']
    (tmp_path / "a.csv").write_text("\n".join(lines))
    assert texts(tmp_path / "a.csv") == ["one, two", "one, two", "one", "", "line without text", 'six, "6"', '"7"']
    (tmp_path / "b.csv").write_text("text,id\none, two,1\nthree,2\n")
    assert texts(tmp_path / "b.csv") == ["more commas than columns", "three"]
    (tmp_path / "c.csv").write_text("text\none, two\n\nthree\n")
    assert texts(tmp_path / "c.csv") == ["one, two", "three"]


def test_a_quote_that_is_not_closed_takes_its_own_line_only(tmp_path):
    lines = [
        "id,text",
        '1,"a line',
        "2,a second",
        "3,a third",
        '4,"a',
        'fourth"',
        '5,"a fifth" one',
        "6,a sixth",
        '7,"',
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    found = pieces(tmp_path / "a.csv")
    assert texts(tmp_path / "a.csv") == [
        *("broken line", "a second", "a third", "a\nfourth", "broken line", "a sixth", "broken line")
    ]
    assert [one.file for one in found if isinstance(one, Unusable)] == [
        "a.csv, line 2",
        "a.csv, line 7",
        "a.csv, line 9",
    ]


def test_a_text_of_a_csv_may_be_long(tmp_path):
    (tmp_path / "a.csv").write_text(csv_of(["x, " * 100_000]))
    assert texts(tmp_path / "a.csv") == ["x, " * 100_000]


def test_lines_that_are_no_documents_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(records_module, "LONGEST_LINE", 200)
    lines = [
        b'{"text": "good"}',
        '{"text": "Stra\u00dfe"}'.encode("latin-1"),
        b'{"text": "half a \\ud800 pair"}',
        b'{"text": 5}',
        b'{"other": "text"}',
        b'["text"]',
        b'{"text": "torn',
        b"[" * 150,
        json.dumps({"text": "a" * 700}).encode(),
        b'{"text": ""}',
        b'{"text": "after", "split": "validation"}',
        b'{"text": "where", "split": "elsewhere"}',
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    assert texts(tmp_path / "a.jsonl") == [
        "good",
        "not UTF-8",
        *["broken line"] * 2,
        "line without text",
        *["broken line"] * 3,
        "long line",
        "",
        "after",
        "unknown split",
    ]
    assert [piece.split for piece in pieces(tmp_path / "a.jsonl") if isinstance(piece, Piece)] == [
        "train",
        "train",
        "held-out",
    ]


def test_a_document_that_is_not_utf8_leaves_the_others_in(tmp_path):
    (tmp_path / "a.txt").write_bytes("eins\n<|endoftext|>\nzw\u00f6i\n<|endoftext|>\ndrei".encode("latin-1"))
    assert texts(tmp_path / "a.txt") == ["eins", "not UTF-8", "drei"]
    broken = pa.array([b"one", b"\xff\xfe", b"three"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": broken}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == ["one", "not UTF-8", "three"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_a_long_document_comes_in_pieces(tmp_path, monkeypatch, name):
    """Each begins with a space or the end of a line, as tokenizers of today have words begin."""
    monkeypatch.setattr(documents_module, "LONGEST_PIECE", 100)
    long = " ".join(f"word{number}" for number in range(60)) + "\n" + "x" * 250
    content = {"a.jsonl": json.dumps({"text": long}) + '\n{"text": "short"}', "a.txt": f"{long}\n<|endoftext|>\nshort"}
    (tmp_path / name).write_text(content[name])
    *parts, last = pieces(tmp_path / name)
    assert last == Piece(text="short") and [part.begins for part in parts] == [True] + [False] * (len(parts) - 1)
    assert "".join(part.text for part in parts) == long and max(len(part.text) for part in parts) <= 200
    if name == "a.jsonl":
        assert all(part.text[0] in " \n" for part in parts[1:-3]) and len(parts) > 6


def test_a_file_that_breaks_off_gives_what_is_before(tmp_path):
    lines = "".join(json.dumps({"text": f"document {number:060d}"}) + "\n" for number in range(20_000))
    content = gzip.compress(lines.encode(), mtime=0)
    (tmp_path / "a.json.gz").write_bytes(content[: len(content) // 2])
    *there, last = texts(tmp_path / "a.json.gz")
    assert last == "broken file" and there == [f"document {number:060d}" for number in range(len(there))]
    assert len(there) > 5000
    (tmp_path / "b.json.gz").write_text('{"text": "not compressed"}')
    assert texts(tmp_path / "b.json.gz") == ["broken file"]
    pq.write_table(pa.table({"text": ["a" * 1000] * 1000}), tmp_path / "c.parquet")
    (tmp_path / "c.parquet").write_bytes((tmp_path / "c.parquet").read_bytes()[:500])
    assert texts(tmp_path / "c.parquet") == ["broken file"]


def test_a_place_without_text_is_refused(tmp_path):
    (tmp_path / "a.pdf").touch()
    for path in (tmp_path, tmp_path / "a.pdf"):
        with pytest.raises(BadInput, match="has no text"):
            text_files(path)
    with pytest.raises(BadInput, match="none"):
        text_files(tmp_path / "none")
    with pytest.raises(BadInput, match="no such file"):
        pieces(tmp_path / "none.txt")
