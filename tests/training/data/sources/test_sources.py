"""Rows of every kind of set, in a table on disk, whose order depends on the seed only."""

import io
import json
import tarfile
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from training.data.sources.kinds import BROKEN, read_addresses, read_captions, read_folder
from training.data.sources.rows import Row, RowTable, Unusable, reason_to_leave_out
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
        "broken line",
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


@pytest.mark.parametrize("line", ["image,text", "file;caption", "a.png,a cat"])
def test_a_csv_without_the_columns_is_one_sentence(tmp_path, line):
    (tmp_path / "a.csv").write_text(f"{line}\n1.png,a cat\n")
    with pytest.raises(BadInput, match=f"columns {line.split(',')[0]}"):
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
        ("00000.tar/00/d.jpg", "no caption"),
        ("00001.tar", "broken tar"),
    ]
    assert [row.file for row in read_folder(tmp_path / "00000.tar") if isinstance(row, Row)] == [
        "00000.tar/00/a.png",
        "00000.tar/00/e.png",
    ]


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
    assert list(read_addresses(tmp_path / "1.parquet")) == rows


ROWS = [
    Row(file=f"{number}.png", caption="a cat", split="held-out" if number % 5 == 0 else "train") for number in range(50)
]


def table_of(tmp_path, name, rows):
    (tmp_path / name).mkdir()
    return RowTable(tmp_path / name, iter(rows))


def test_a_table_gives_each_row_once_in_an_order_of_the_seed(tmp_path):
    table = table_of(
        tmp_path, "a", [*ROWS, BROKEN, Unusable(reason="broken tar", file="a.tar"), Row(file="x", caption="")]
    )
    assert (table.count("train"), table.count("held-out"), table.kept, table.read) == (40, 10, 50, 53)
    assert table.left_out == {"broken line": 1, "broken tar": 1, "short caption": 1}
    assert list(table.unusable()) == [{"file": "a.tar", "reason": "broken tar"}]
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
