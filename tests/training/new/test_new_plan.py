"""What `new` finds in a folder, and the model that the calculator chooses for it and its volunteers."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from calculator.choose.devices import DEVICES
from calculator.swarm.designed_models import LANGUAGE_SIZES, LanguageModel
from training.errors import BadInput
from training.new.found import Found, look
from training.new.make import forecast_lines
from training.new.plan import MOST_PASSES, TOKENS_PER_PARAMETER, Wanted, choose_model, designed, people_of

CPUS, FEW, MANY = people_of(["2:cpu"]), people_of(["10:rtx-3060"]), people_of(["100:rtx-4090"])


def text(size: int | None) -> Found:
    return Found(kind="text", place="texts", words="", text_bytes=size)


def chosen(found: Found, people, days: float = 7):
    return choose_model(found, Wanted(people=people, days=days))


def test_text_and_pictures_are_told_apart(tmp_path):
    texts, pictures = tmp_path / "texts", tmp_path / "pictures"
    for number in range(3):
        for file in (texts / f"{number}.md", pictures / f"{number}.png", pictures / f"{number}.txt"):
            file.parent.mkdir(exist_ok=True)
            file.write_text("a red circle")
    (texts / "cover.jpg").write_bytes(b"")
    assert (look(str(texts)).kind, look(str(texts)).text_bytes) == ("text", 36)
    assert (look(str(pictures)).kind, look(str(pictures)).samples) == ("pictures", 3)
    assert look(str(texts / "0.md")).words == "1 file of text, 12 B"
    (pictures / "README.md").write_text("drawn by hand")
    assert (look(str(pictures)).kind, look(str(pictures)).samples) == ("pictures", 3)


def test_pictures_in_archives_and_tables_are_pictures(tmp_path):
    tables, archives = tmp_path / "tables", tmp_path / "archives"
    for folder in (tables, archives):
        folder.mkdir()
    pq.write_table(
        pa.table({"image": [{"bytes": b"", "path": "1.png"}], "caption": ["a circle"]}), tables / "a.parquet"
    )
    (archives / "00000.tar").write_bytes(b"")
    (archives / "1.ZIP").write_bytes(b"")
    found = look(str(tables))
    assert (found.kind, found.words, found.samples) == ("pictures", "1 Parquet file with pictures", None)
    assert look(str(archives)).words == "2 tars or zips of pictures"
    pq.write_table(pa.table({"text": ["Once upon a time"]}), tables / "a.parquet")
    assert look(str(tables)).kind == "text"


@pytest.mark.parametrize("place", ["nothing", "."])
def test_a_place_without_data_is_refused(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.exe").write_bytes(b"")
    with pytest.raises(BadInput, match="There is no nothing" if place == "nothing" else "neither text nor pictures"):
        look(place)


@pytest.mark.parametrize(
    "columns, kind", [(["text", "url"], "text"), (["jpg", "txt"], "pictures"), (["image", "caption"], "pictures")]
)
def test_a_set_of_the_hub_is_told_by_its_columns(monkeypatch, columns, kind):
    class Opened:
        features = None

        def __init__(self, address):
            assert address == "hf://owner/name"

        def columns(self):
            return columns

    monkeypatch.setattr("training.new.found.HubSet", Opened)
    found = look("hf://owner/name")
    assert (found.kind, found.text_bytes, found.samples) == (kind, None, None)
    assert chosen(found, FEW).parameters > chosen(found, CPUS).parameters


@pytest.mark.parametrize("size", [50, 2000, 5000, 20_000])
def test_a_little_text_gets_short_blocks(size, tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{number} birds. " for number in range(size // 9)))
    found = look(str(tmp_path))
    model = chosen(found, CPUS)
    assert 16 <= model.block_length <= 128
    assert model.block_length == 16 or 4 * 32 * model.block_length <= found.text_bytes


def test_a_larger_model_needs_text_volunteers_and_time():
    smallest, *_ = LANGUAGE_SIZES
    assert chosen(text(100_000), MANY).size == smallest, "too little text"
    assert chosen(text(10**11), CPUS, days=0.1).size == smallest, "too slow"
    assert chosen(text(10**11), FEW, days=0.01).size == smallest, "too little time"
    sizes = [chosen(text(10**11), people).parameters for people in (CPUS, FEW, MANY)]
    assert sizes == sorted(set(sizes))
    assert chosen(text(None), FEW) == chosen(text(10**11), FEW), "of a set of unknown size the volunteers decide"


@pytest.mark.parametrize("size", [3 * 10**9, 3 * 10**10, 3 * 10**11])
@pytest.mark.parametrize("people", [FEW, MANY])
def test_a_chosen_model_is_taught_fits_and_is_done_in_time(size, people):
    model = chosen(text(size), people)
    wish, made = designed(model, Wanted(people=people, days=7))
    assert all(made.micro_batches.values())
    assert made.days <= 7
    assert model.size == "stories" or MOST_PASSES * size / 4 >= TOKENS_PER_PARAMETER * model.parameters
    assert wish.samples * model.sequence_length >= TOKENS_PER_PARAMETER * model.parameters


def test_volunteers_are_read_with_their_links():
    assert [(one.count, one.gpu) for one in people_of(["3:cpu,30:T4", "1:4090"])] == [
        (3, "cpu"),
        (30, "t4"),
        (1, "rtx-4090"),
    ]
    (slow,) = people_of(["5:t4:2/20"])
    assert (slow.up_megabits, slow.down_megabits) == (2, 20)
    assert people_of(["4"])[0].gpu == "cpu"


@pytest.mark.parametrize("wrong", ["", "many", "0:cpu", "3:abacus", "3:t4:fast/slow", "3:t4:1.1.1/2", "3:cuda-20gb"])
def test_volunteers_that_cannot_be_read_are_named(wrong):
    with pytest.raises(BadInput) as raised:
        people_of([wrong])
    assert len(raised.value.sentence) < 700


def test_a_computer_without_a_gpu_is_no_gpu_to_choose():
    assert "cpu" not in DEVICES


@pytest.mark.parametrize(
    "people, mode, reason",
    [
        ("2:t4:1000/1000", "synchronous", "takes at most a tenth of the time"),
        ("8:cpu:1/1", "synchronous", "none leaves enough time for the exchange"),
        ("8:rtx-4090:20/100", "sparse, delay_outer_step", "so all train on during it"),
    ],
)
def test_the_forecast_says_the_mode_and_its_reason(people, mode, reason):
    model = LanguageModel(size="stories" if "cpu" in people else "160m", family="llama", block_length=512)
    lines = forecast_lines(*designed(model, Wanted(people=people_of([people]), days=7)), samples=10**6)
    (line,) = [line for line in lines if line.startswith("  mode ")]
    assert line.startswith(f"  mode     {mode}: ") and reason in line
