"""Rows of every kind of set, in a table on disk, whose order depends on the seed only."""

import gzip
import io
import json
import os
import re
import tarfile
import tracemalloc
import zipfile
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from training.data.sources.folders import read_folder
from training.data.sources.hub_rows import HubRows
from training.data.sources.kinds import Keys, read_addresses, read_captions
from training.data.sources.records import inflated
from training.data.sources.rows import Row, RowTable, reason_to_leave_out
from training.data.sources.unused import Unusable
from training.errors import BadInput


def picture(colour=(200, 10, 10)):
    file = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(file, format="PNG")
    return file.getvalue()


def test_a_csv_is_read_as_json_lines_are(tmp_path):
    rows = [
        {"file": "1.png", "caption": 'a "red" circle, large', "split": "train"},
        {"file": "2.png", "caption": "über\nzwei Zeilen", "split": "held-out", "nsfw": "true"},
        {"file": "3.png", "caption": ""},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({**row, "nsfw": "nsfw" in row}) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text(
        '\ufefffile,caption,split,nsfw\n1.png,"a ""red"" circle, large",train,\n'
        '2.png,"über\nzwei Zeilen",held-out,true\n3.png,,,\n',
        encoding="utf-8",
    )
    read = list(read_captions(tmp_path / "a.csv"))
    assert read == list(read_captions(tmp_path / "a.jsonl"))
    assert [(row.file, row.split, row.unsafe) for row in read] == [
        ("1.png", "train", False),
        ("2.png", "held-out", True),
        ("3.png", "train", False),
    ]


def test_lines_that_are_no_rows_are_counted(tmp_path):
    (tmp_path / "a.csv").write_text("file,caption,split\n1.png,a cat,other\n,a cat,train\n2.png,a dog,train\n")
    assert [row.reason if isinstance(row, Unusable) else row.file for row in read_captions(tmp_path / "a.csv")] == [
        "unknown split",
        "broken line",
        "2.png",
    ]
    (tmp_path / "a.jsonl").write_text("[" * 100_000 + "\n{}\n" + '{"file": "1.png", "caption": "a cat"}\n')
    assert [row.reason if isinstance(row, Unusable) else row.file for row in read_captions(tmp_path / "a.jsonl")] == [
        "broken line",
        "line without file and caption",
        "1.png",
    ]


def test_memory_does_not_grow_with_the_folders_and_files_of_a_set(tmp_path, monkeypatch):
    for number in range(40):
        (tmp_path / f"{number:02}").mkdir()
        for name in range(100):
            (tmp_path / f"{number:02}" / f"{name}.png").touch()

    def most(folder):
        tracemalloc.start()
        try:
            assert all(row.reason == "no caption" for row in read_folder(folder))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    most(tmp_path / "00")  # what Python loads for the first one counts for none
    assert most(tmp_path) < 2 * most(tmp_path / "00")
    for name in range(100, 10_000):
        (tmp_path / "01" / f"{name}.png").touch()
    assert most(tmp_path / "01") < 2 * most(tmp_path / "00")


def test_files_are_read_in_the_order_of_their_names_those_of_a_folder_first(tmp_path):
    for name in ("b/2.png", "b/10.png", "b/a/1.png", "z.png", "B.png", "é.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "b" / "again").symlink_to(tmp_path)
    assert [row.file for row in read_folder(tmp_path)] == [
        "B.png",
        "z.png",
        "é.png",
        "b/10.png",
        "b/2.png",
        "b/a/1.png",
    ]


@pytest.mark.parametrize("line", ["picture,words", "picture;caption", "a.png,a cat"])
def test_a_csv_without_the_columns_is_one_sentence(tmp_path, line):
    (tmp_path / "a.csv").write_text(f"{line}\n1.png,a cat\n")
    with pytest.raises(BadInput, match=f"columns {re.split('[,;]', line)[0]}"):
        list(read_captions(tmp_path / "a.csv"))


def test_texts_beside_pictures_are_their_captions(tmp_path):
    (tmp_path / "below").mkdir()
    for name, text in {"1.png": "a cat", "below/2.JPG": " a dog \n", "3.png": None, "4.webp": b"\xff\xfe"}.items():
        (tmp_path / name).write_bytes(picture())
        if text is not None:
            content = text if isinstance(text, bytes) else text.encode()
            (tmp_path / name).with_suffix(".txt").write_bytes(content)
    (tmp_path / "notes.txt").write_text("no picture")
    rows = list(read_folder(tmp_path))
    assert {(row.file, row.caption) for row in rows if isinstance(row, Row)} == {
        ("1.png", "a cat"),
        ("below/2.JPG", "a dog"),
    }
    assert {(row.file, row.reason) for row in rows if isinstance(row, Unusable)} == {
        ("3.png", "no caption"),
        ("4.webp", "broken text"),
        ("notes.txt", "text without a picture"),
    }
    with pytest.raises(BadInput, match="is no folder"):
        list(read_folder(tmp_path / "none"))


def write_tar(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_tars_of_webdataset(tmp_path):
    """The offsets are those of the bytes in the file."""
    pictures = {"00/a.png": picture((1, 2, 3)), "00/b.c.png": picture((4, 5, 6)), "00/d.jpg": picture((7, 8, 9))}
    write_tar(
        tmp_path / "00000.tar",
        [
            ("00/a.png", pictures["00/a.png"]),
            ("00/a.txt", b"a cat"),
            ("00/b.json", json.dumps({"caption": "a dog", "NSFW": "NSFW", "width": 3}).encode()),
            ("00/b.c.png", b"no picture: its suffix is c.png"),
            ("00/d.jpg", pictures["00/d.jpg"]),
            ("00/e.png", pictures["00/b.c.png"]),
            ("00/e.json", b'{"caption": "a bird", "NSFW": "UNLIKELY"}'),
            ("00/f.txt", b"without a picture"),
        ],
    )
    (tmp_path / "00001.tar").write_bytes(b"no tar")
    rows = list(read_folder(tmp_path))
    found = [row for row in rows if isinstance(row, Row)]
    assert [(row.file, row.caption) for row in found] == [
        ("00000.tar/00/a.png", "a cat"),
        ("00000.tar/00/e.png", "a bird"),
    ]
    content = (tmp_path / "00000.tar").read_bytes()
    assert content[found[0].offset : found[0].offset + found[0].size] == pictures["00/a.png"]
    assert [(row.file, row.reason) for row in rows if isinstance(row, Unusable)] == [
        ("00000.tar/00/b.c.png", "no caption"),
        ("00000.tar/00/d.jpg", "no caption"),
        ("00000.tar/00/b.json", "text without a picture"),
        ("00000.tar/00/f.txt", "text without a picture"),
        ("00001.tar", "broken tar"),
    ]
    assert [row.file for row in read_folder(tmp_path / "00000.tar") if isinstance(row, Row)] == [
        "00000.tar/00/a.png",
        "00000.tar/00/e.png",
    ]


def test_zips_are_read_as_tars_are(tmp_path):
    """Members that are stored and members that are deflated; the offsets are those of the bytes in the file."""
    content = picture((1, 2, 3))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        made.mkdir("pictures")
        made.writestr("pictures/1.png", content)
        made.writestr("pictures/1.txt", "a cat", zipfile.ZIP_DEFLATED)
        made.writestr("pictures/2.bmp", bytes(9000), zipfile.ZIP_DEFLATED)
        made.writestr("pictures/2.json", '{"caption": "a dog"}')
        made.writestr("pictures/3.png", content, zipfile.ZIP_BZIP2)
        made.writestr("__MACOSX/pictures/._1.png", "x")
    (tmp_path / "b.zip").write_bytes(b"PK no zip")
    rows = list(read_folder(tmp_path))
    assert usable(rows) == [("a.zip/pictures/1.png", "a cat"), ("a.zip/pictures/2.bmp", "a dog")]
    assert unusable(rows) == {
        "a.zip/pictures/3.png": "encrypted, or compressed in a rare way, in a zip",
        "a.zip/__MACOSX/pictures/._1.png": "hidden file",
        "b.zip": "broken zip",
    }
    assert unusable(read_folder(tmp_path / "none.zip")) == {"none.zip": "broken zip"}
    stored, deflated = (row for row in rows if isinstance(row, Row))
    whole = (tmp_path / "a.zip").read_bytes()
    assert whole[stored.offset : stored.offset + stored.size] == content and not stored.deflated
    assert inflated(whole[deflated.offset : deflated.offset + deflated.size], 10_000) == bytes(9000)
    assert inflated(whole[deflated.offset : deflated.offset + deflated.size], 10) == bytes(10)


def test_links_in_a_tar_are_named(tmp_path):
    """Plain `tar` packs a file with two names once, and a link for the second."""
    for name in ("1.png", "1.txt"):
        (tmp_path / name).write_bytes(picture() if name == "1.png" else b"a cat")
        os.link(tmp_path / name, tmp_path / f"2{name[1:]}")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("1.png", "1.txt", "2.png", "2.txt"):
            tar.add(tmp_path / name, arcname=name)
    rows = list(read_folder(tmp_path / "a.tar"))
    assert usable(rows) == [("a.tar/1.png", "a cat")]
    assert unusable(rows) == {"a.tar/2.png": "link in a tar", "a.tar/2.txt": "link in a tar"}


def usable(rows):
    return [(row.file, row.caption) for row in rows if isinstance(row, Row)]


def unusable(rows):
    return {row.file: row.reason for row in rows if isinstance(row, Unusable)}


NAMES = {
    "dots": ["22.00", "22.01", "a.b.c", "photo 2021.05.01 12.30", "v1.0-0001"],
    "plain": ["000", "001", "002"],
    "folders": ["x/1", "y/1", "./z.w/1"],
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("order", ["one after the other", "pictures first", "texts first"])
def test_the_files_of_a_sample_in_a_tar(tmp_path, names, order):
    """Names with dots, and members as plain `tar` writes them: in any order."""
    pairs = [[(f"{name}.PNG", picture()), (f"{name}.txt", f"caption of {name}".encode())] for name in names]
    members = [member for pair in pairs for member in pair]
    if order != "one after the other":
        members.sort(key=lambda member: member[0].endswith(".PNG") != (order == "pictures first"))
    write_tar(tmp_path / "A.TAR", [*members, ("._22.00.png", b"attributes"), ("readme.md", b"what this is")])
    rows = list(read_folder(tmp_path))
    assert usable(rows) == [(f"A.TAR/{name}.PNG", f"caption of {name}") for name in names]
    assert unusable(rows) == {"A.TAR/._22.00.png": "hidden file", "A.TAR/readme.md": "other kind of file"}
    content = (tmp_path / "A.TAR").read_bytes()
    assert all(content[row.offset :].startswith(picture()) for row in rows if isinstance(row, Row))


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "json"])
def test_metadata_as_imagefolder_reads_it(tmp_path, kind):
    """https://huggingface.co/docs/datasets/image_dataset: `file_name` is relative to the metadata's folder."""
    for name in ("train/1.png", "train/sub/2.JPG", "train/3.png", "test/4.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(picture())
    lists = {
        "train": [("1.png", "a cat"), ("sub/2.JPG", "a dog"), ("gone.png", "a bird")],
        "test": [("4.png", "a fish")],
    }
    for folder, rows in lists.items():
        path = tmp_path / folder / f"metadata.{kind}"
        fields = [{"file_name": name, "text": text, "label": 3} for name, text in rows]
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(fields), path)
        elif kind == "csv":
            path.write_text("file_name,text,label\n" + "".join(f"{name},{text},3\n" for name, text in rows))
        else:
            lines = json.dumps(fields) if kind == "json" else "\n".join(map(json.dumps, fields))
            path.write_text(lines, encoding="utf-8-sig")
    rows = list(read_folder(tmp_path))
    assert [(row.file, row.caption, row.split) for row in rows if isinstance(row, Row)] == [
        ("test/4.png", "a fish", "held-out"),
        ("train/1.png", "a cat", "train"),
        ("train/sub/2.JPG", "a dog", "train"),
        ("train/gone.png", "a bird", "train"),
    ]
    assert unusable(rows) == {"train/3.png": "not in the captions"}


def test_metadata_without_the_keys_names_them(tmp_path):
    (tmp_path / "1.png").write_bytes(picture())
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "1.png", "prompt": "a cat"}\n')
    line, found = read_folder(tmp_path)
    assert (line.reason, line.file) == ("line without file and caption", "metadata.jsonl, line 1")
    assert line.keys == ("file_name", "prompt") and found == Unusable(reason="no caption", file="1.png")
    row, *others = read_folder(tmp_path, Keys().named(None, "prompt"))
    assert (row.caption, others) == ("a cat", [])


def test_what_else_lies_in_a_folder_of_pictures(tmp_path):
    for name in ("a/1.HEIC", "a/2.avif", "a/3.jpg", "a/4.Png", "5.jpeg", "a/6.jpg", "val/7.gif", "svg/8.svg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(picture())
    texts = {"a/1.txt": "an apple", "a/2.TXT": "a pear", "a/3.jpg.txt": "a plum", "a/4.caption": "a fig"}
    texts |= {"5.json": '{"caption": ["a kiwi", "a green kiwi"], "NSFW": "NSFW"}', "a/6.json": '{"prompt": "a lime"}'}
    texts |= {"val/7.txt": "a date", "a/9.txt": "alone", "Thumbs.db": "", ".DS_Store": "", "a/._1.HEIC": ""}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-16" if name == "a/1.txt" else "utf-8")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.png").write_bytes(picture())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "samples.png").write_bytes(picture())
    write_tar(tmp_path / "a" / "more.tar", [("1.png", picture()), ("1.txt", b"a rose")])
    (tmp_path / "b.tar.gz").write_bytes(b"\x1f\x8b")
    os.mkfifo(tmp_path / "a" / "pipe.txt")
    rows = list(read_folder(tmp_path, but=tmp_path / "out"))
    assert sorted(usable(rows)) == [
        ("5.jpeg", "a kiwi"),
        ("a/1.HEIC", "an apple"),
        ("a/2.avif", "a pear"),
        ("a/3.jpg", "a plum"),
        ("a/4.Png", "a fig"),
        ("a/more.tar/1.png", "a rose"),
        ("val/7.gif", "a date"),
    ]
    kiwi = next(row for row in rows if row.file == "5.jpeg")
    assert kiwi.more_captions == 1 and kiwi.unsafe
    assert [row.file for row in rows if isinstance(row, Row) and row.split == "held-out"] == ["val/7.gif"]
    assert unusable(rows) == {
        "a/6.jpg": "no caption",
        "a/9.txt": "text without a picture",
        "a/pipe.txt": "text without a picture",
        "svg/8.svg": "other kind of file",
        "Thumbs.db": "other kind of file",
        ".DS_Store": "hidden file",
        "a/._1.HEIC": "hidden file",
        ".git": "hidden file",
        "b.tar.gz": "compressed tar",
    }
    assert [row.keys for row in rows if row.file == "a/6.jpg"] == [("prompt",)]


def test_pictures_that_the_captions_do_not_name(tmp_path):
    for name in ("1.png", "2.png", "sub/3.png", ".4.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(picture())
    lines = [{"file": "./1.png", "caption": "a cat"}, {"file": "sub//3.png", "caption": "a dog"}]
    (tmp_path / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rows = list(read_folder(tmp_path, captions=read_captions(tmp_path / "captions.jsonl")))
    assert usable(rows) == [("./1.png", "a cat"), ("sub//3.png", "a dog")]
    assert unusable(rows) == {"2.png": "not in the captions"}


def test_names_with_the_folder_or_the_slashes_of_windows(tmp_path):
    images = tmp_path / "pics"
    for name in ("1.png", "sub/2.png", "3.png", "pics/4.png"):
        (images / name).parent.mkdir(parents=True, exist_ok=True)
        (images / name).write_bytes(picture())
    names = ["pics/1.png", "pics\\sub\\2.png", f"{images}/3.png", "pics/4.png", "/etc/5.png", "pics/6.png"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"file": name, "caption": "a cat"}) + "\n" for name in names))
    rows = list(read_folder(images, captions=read_captions(tmp_path / "a.jsonl")))
    assert [row.file for row in rows] == ["1.png", "sub/2.png", "3.png", "pics/4.png", "/etc/5.png", "6.png"]


CAPTIONS = {
    "array.json": json.dumps([{"file": "1.png", "caption": "a cat"}, {"file": "2.png", "caption": "a dog, asleep"}]),
    "names.jsonl": '{"file_name": "1.png", "text": "a cat"}\n{"image": "2.png", "captions": ["a dog, asleep", "x"]}',
    "mixed.ndjson": '{"image_path": "1.png", "text": ["", "a cat"]}\n{"FileName": "2.png", "Caption": "a dog, asleep"}',
    "last.csv": "file,caption\n1.png,a cat\n2.png,a dog, asleep\n",
    "flickr.txt": 'image,caption\n1.png,a cat\n2.png,"a dog, asleep"\n',
    "bars.csv": "image_name| comment_number| caption\n1.png| 0| a cat\n2.png| 0| a dog, asleep\n",
    "semicolons.csv": "\ufefffile;caption\n1.png;a cat\n2.png;a dog, asleep\n",
    "tabs.tsv": "filename\ttext\n1.png\ta cat\n2.png\ta dog, asleep\n",
}


@pytest.mark.parametrize("name, content", CAPTIONS.items(), ids=CAPTIONS)
@pytest.mark.parametrize("end", ["", ".gz", ".zst"])
def test_captions_files_as_people_have_them(tmp_path, name, content, end):
    content = content.encode()
    content = {"": content, ".gz": gzip.compress(content), ".zst": pa.compress(content, codec="zstd", asbytes=True)}[
        end
    ]
    (tmp_path / f"{name}{end}").write_bytes(content)
    assert usable(read_captions(tmp_path / f"{name}{end}")) == [("1.png", "a cat"), ("2.png", "a dog, asleep")]


COCO = {
    "info": {"year": 2017},
    "images": [{"id": 7, "file_name": "1.png", "height": 9}, {"id": 8, "file_name": "2.png"}, {"id": 9}],
    "annotations": [
        {"image_id": 8, "id": 1, "caption": "a dog, asleep"},
        {"image_id": 7, "id": 2, "caption": "a cat\n"},
        {"image_id": 7, "id": 3, "caption": "a grey cat"},
    ],
}


@pytest.mark.parametrize("order", [("info", "images", "annotations"), ("annotations", "images", "info")])
@pytest.mark.parametrize("indent", [None, 2])
def test_captions_of_coco(tmp_path, order, indent):
    (tmp_path / "a.json").write_text(json.dumps({key: COCO[key] for key in order}, indent=indent))
    rows = list(read_captions(tmp_path / "a.json"))
    assert usable(rows) == [("1.png", "a cat"), ("2.png", "a dog, asleep")]
    assert rows[0].more_captions == 1 and unusable(rows) == {"a.json, image 3": "no caption"}
    (tmp_path / "a.json").write_text(json.dumps(COCO)[:-9])
    assert unusable(read_captions(tmp_path / "a.json")) == {"a.json": "broken file"}


def test_captions_of_columns_that_somebody_names(tmp_path):
    pq.write_table(pa.table({"id": ["1.png"], "prompt": ["a cat"], "caption": ["not this"]}), tmp_path / "a.parquet")
    with pytest.raises(BadInput, match=r"columns id, prompt, caption;.*"):
        list(read_captions(tmp_path / "a.parquet"))
    assert usable(read_captions(tmp_path / "a.parquet", Keys().named("id", "prompt"))) == [("1.png", "a cat")]


def test_a_line_whose_commas_are_ambiguous_is_counted(tmp_path):
    (tmp_path / "a.csv").write_text("file,caption,split\n1.png,a cat, asleep,train\n2.png,a dog,train\n")
    cat, dog = read_captions(tmp_path / "a.csv")
    assert cat == Unusable(reason="more commas than columns", file="a.csv, line 2") and dog.caption == "a dog"


def test_a_line_that_is_not_utf8_is_counted(tmp_path):
    line = json.dumps({"file": "1.png", "caption": "Straße"}, ensure_ascii=False)
    (tmp_path / "a.jsonl").write_bytes(line.encode() + b"\n" + line.encode("latin-1"))
    (tmp_path / "a.csv").write_bytes(b"file,caption\n" + "1.png,Straße\n".encode() + "1.png,Straße\n".encode("latin-1"))
    for name, line in {"a.jsonl": 2, "a.csv": 3}.items():
        right, wrong = read_captions(tmp_path / name)
        assert right.caption == "Straße" and wrong == Unusable(reason="not UTF-8", file=f"{name}, line {line}")


@pytest.mark.parametrize("fault", ["a header is overwritten", "it ends after a member", "it ends in a header"])
def test_a_tar_that_breaks_in_the_middle_is_named(tmp_path, fault):
    """Python's reader takes each of these for the end."""
    parts = [(f"{number}.{suffix}", b"x" * 100) for number in range(4) for suffix in ("png", "txt")]
    write_tar(tmp_path / "a.tar", parts)
    assert not [row for row in read_folder(tmp_path) if isinstance(row, Unusable)]
    content, header = bytearray((tmp_path / "a.tar").read_bytes()), 4 * 1024
    if fault == "a header is overwritten":
        content[header : header + 512] = b"\xff" * 512
    else:
        del content[header + (0 if fault == "it ends after a member" else 100) :]
    (tmp_path / "a.tar").write_bytes(content)
    *rows, last = read_folder(tmp_path)
    assert [row.file for row in rows] == ["a.tar/0.png", "a.tar/1.png"]
    assert last == Unusable(reason="broken tar", file="a.tar")


class HubSetOf:
    """A set of the hub with one file."""

    features = None

    def __init__(self, rows):
        part = SimpleNamespace(split="train", name="train/0", rows=lambda skipped=0: iter(rows[skipped:]))
        self.parts, self.column = (part,), lambda given, usual, **more: given


def test_rows_of_the_hub_that_are_left_out_are_named(tmp_path):
    captions = [["a cat", "a small cat"], [], "a dog", None, "x"]
    found = HubSetOf([{"image": {"bytes": picture()}, "caption": caption} for caption in captions])
    rows = HubRows(found, tmp_path, image_column="image", caption_column="caption")
    ((_, batch),) = rows.batches("train", 10, seed="1", folder=tmp_path)
    assert sorted((row.file, row.caption) for row in batch) == [("train/0/0", "a cat"), ("train/0/2", "a dog")]
    assert rows.unused.counts == {"short caption": 3} and rows.read == 5
    assert [(one["file"], one["reason"]) for one in rows.unusable()] == [
        ("train/0/0", "more captions than the first, which is used"),
        *[(f"train/0/{number}", "short caption") for number in (1, 3, 4)],
    ]


def test_some_rows_of_a_set_without_such_are_held_out_if_asked(tmp_path):
    """The second of each twenty, on disk and in a stream; neither twice, nor lost, nor for the tokenizer."""
    held = {1, 21, 41}
    found = HubSetOf([{"image": {"bytes": picture()}, "caption": f"cat {number}"} for number in range(45)])
    (tmp_path / "hub").mkdir()
    streamed = HubRows(found, tmp_path / "hub", image_column="image", caption_column="caption", holds_out=True)
    (tmp_path / "disk").mkdir()
    rows = [Row(file=f"{number}.png", caption=f"cat {number}") for number in range(45)]
    table = RowTable(tmp_path / "disk", iter(rows), holds_out=True)
    for source in (streamed, table):
        wanted = {"held-out": held, "train": set(range(45)) - held, "new-pairs": set()}
        for split, numbers in wanted.items():
            batches = list(source.batches(split, 50, seed="1", folder=tmp_path / "hub"))
            captions = [row.caption for _, batch in batches for row in batch]
            assert sorted(captions) == sorted(f"cat {number}" for number in numbers)
        assert not {f"cat {number}" for number in held} & set(source.captions(100, seed="1"))
    (tmp_path / "named").mkdir()
    named = RowTable(
        tmp_path / "named", iter([*rows, Row(file="a.png", caption="a dog", split="held-out")]), holds_out=True
    )
    assert named.count("held-out") == 1 and named.count("train") == 45
    (tmp_path / "one").mkdir()
    assert RowTable(tmp_path / "one", iter(rows[:1]), holds_out=True).count("train") == 1


def test_lists_of_addresses_as_laions(tmp_path):
    table = pa.table(
        {
            "SAMPLE_ID": [1, 2, 3, 4, 5, 6],
            "URL": ["http://a/1.jpg", "https://b/2", "ftp://c/3", None, "http://d/4", "http://e/5"],
            "TEXT": ["a cat", "a dog", "a bird", "a fish", None, "a wide picture"],
            "NSFW": ["UNLIKELY", "NSFW", "UNSURE", "UNLIKELY", "UNLIKELY", None],
            "WIDTH": [100, 100, 100, 100, 100, 500],
            "HEIGHT": [100, 150, 100, 100, 100, 100],
        }
    )
    pq.write_table(table, tmp_path / "1.parquet")
    rows = list(read_addresses(tmp_path))
    assert [row.reason for row in rows[2:5]] == ["no web address", "broken line", "broken line"]
    cat, dog, wide = rows[0], rows[1], rows[5]
    assert (cat.url, cat.caption, cat.unsafe) == ("http://a/1.jpg", "a cat", False)
    assert dog.unsafe and dog.aspect_ratio == 1.5
    assert reason_to_leave_out(wide) == "extreme aspect ratio" and reason_to_leave_out(cat) is None
    assert usable(read_addresses(tmp_path / "1.parquet")) == usable(rows)


def test_lists_of_addresses_of_other_kinds(tmp_path):
    small = pa.table(
        {"url": pa.array(["http://a/1.jpg"]).dictionary_encode(), "caption": pa.array(["a cat"], pa.string_view())}
    )
    (tmp_path / "below").mkdir()
    pq.write_table(small, tmp_path / "below" / "1.PARQUET")
    (tmp_path / "2.tsv").write_text("caption\turl\na dog\thttp://b/2.jpg\n")
    (tmp_path / "3.jsonl").write_text(
        '{"url": "https://c/3.jpg", "text": ["a bird", "a big bird"], "width": 5, "height": "x"}'
    )
    pq.write_table(pa.table({"link": ["x"]}), tmp_path / "4.parquet")
    (tmp_path / "5.parquet").write_bytes(b"PAR1")
    (tmp_path / "6.sha256").write_text("")
    rows = list(read_addresses(tmp_path))
    assert usable(rows) == [("http://b/2.jpg", "a dog"), ("https://c/3.jpg", "a bird"), ("http://a/1.jpg", "a cat")]
    assert unusable(rows) == {
        "4.parquet, its columns": "no such column",
        "5.parquet, its end": "broken file",
        "6.sha256": "other kind of file",
    }
    assert [row.keys for row in rows if row.file.startswith("4.")] == [("link",)]


ROWS = [
    Row(file=f"{number}.png", caption="a cat", split="held-out" if number % 5 == 0 else "train") for number in range(50)
]


def table_of(tmp_path, name, rows):
    (tmp_path / name).mkdir()
    return RowTable(tmp_path / name, iter(rows))


def test_a_table_gives_each_row_once_in_an_order_of_the_seed(tmp_path):
    table = table_of(
        tmp_path,
        "a",
        [
            *ROWS,
            Unusable(reason="broken line", file="a.jsonl, line 3"),
            Unusable(reason="broken tar", file="a.tar"),
            Row(file="x", caption=""),
        ],
    )
    assert (table.count("train"), table.count("held-out"), table.kept, table.read) == (40, 10, 50, 53)
    assert table.unused.counts == {"broken line": 1, "broken tar": 1, "short caption": 1}
    assert [(one["file"], one["reason"]) for one in table.unusable()] == [
        ("a.jsonl, line 3", "broken line"),
        ("a.tar", "broken tar"),
        ("x", "short caption"),
    ]
    orders = [
        [row.file for start in (0, 17, 34) for row in table.shuffled("train", start, start + 17, seed=seed)]
        for seed in ("1", "1", "2")
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(row.file for row in ROWS if row.split == "train")
    assert list(table) == ROWS and table.count("new-pairs") == 0


def test_rows_wait_on_disk(tmp_path):
    """Four times as many rows take no more memory."""
    most = []
    for count in (100, 1_500, 6_000):
        many = (Row(file=f"{number}.png", caption=f"a cat with the number {number}") for number in range(count))
        tracemalloc.start()
        table = table_of(tmp_path, f"{count}", many)
        rows = table.shuffled("train", 0, 100, seed="1")
        most.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len({row.file for row in rows}) == 100 and table.kept == count
    assert most[2] < most[1] + 200_000 < (tmp_path / "6000" / "rows.jsonl").stat().st_size
