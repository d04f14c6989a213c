"""Documents of every kind of text file, and why some are none."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.data.sources import documents as documents_module
from training.data.sources.documents import Piece, TextFile, text_files
from training.errors import BadInput

TEXTS = ["A cat.\n\nIt sleeps.", "Ein Hund – “bellt”", "قصة قصيرة", "🔴 赤い円", 'a "quoted" text\u2028and a\ttab']


def pieces(path, **settings):
    return list(TextFile(path, **settings))


def texts(path, **settings):
    return [piece if isinstance(piece, str) else piece.text for piece in pieces(path, **settings)]


def test_the_same_texts_come_from_every_kind_of_file(tmp_path):
    lines = "".join(json.dumps({"text": text, "url": "x"}) + "\n" for text in TEXTS)
    (tmp_path / "a.txt.jsonl").write_text(lines, encoding="utf-8-sig")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(lines.encode()))
    readable = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n\n" for text in TEXTS)
    (tmp_path / "c.json").write_text(readable, encoding="utf-8")
    pq.write_table(pa.table({"text": TEXTS, "url": ["x"] * len(TEXTS)}), tmp_path / "d.parquet")
    (tmp_path / "e.txt").write_text("\n<|endoftext|>\n".join(TEXTS) + "\n", encoding="utf-8")
    (tmp_path / "f.TXT.gz").write_bytes(gzip.compress("\n\n<|endoftext|>\n\n".join(TEXTS).encode()))
    (tmp_path / "notes.md").write_text("no text")
    files = text_files(tmp_path)
    assert [file.name[0] for file in files] == list("abcdef")
    assert [texts(file) for file in files] == [TEXTS] * 6
    assert all(piece.begins and piece.split == "train" for piece in pieces(files[0]))


def test_lines_that_are_no_documents_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(documents_module, "LONGEST_LINE", 200)
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
