"""Preparing text: every block as the definition has it, every reason counted, every interruption survived."""

import json
import os
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import numpy as np
import pyarrow.parquet as pq
import pytest
import tokenizers
import yaml
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.training.data.text_shards import (
    END,
    LENGTH,
    WORDS,
    blocks_in,
    document,
    expected_blocks,
    prepare_documents,
    write_documents,
    write_tokenizer,
)
from training.cli import build_app
from training.data.prepare import text as prepare_module
from training.data.prepare.text import TextInput, prepare_text
from training.data.sources.unused import first_left_out
from training.data.store.sets import open_shards
from training.data.store.shards import check_file, read_manifest
from training.data.store.text_tokenizer import TextTokenizer
from training.errors import BadInput

HELD_OUT = [number for number in range(300) if number % 10 == 0]
TRAIN = [number for number in range(300) if number % 10]


@pytest.fixture
def small(monkeypatch):
    """Shards of some sixteen blocks, documents read four at a time."""
    monkeypatch.setattr(prepare_module, "SHARD_TOKENS", 256)
    monkeypatch.setattr(prepare_module, "READ_DOCUMENTS", 4)


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "text").mkdir()
    write_documents(tmp_path / "text" / "a.jsonl", 170)
    write_documents(tmp_path / "text" / "b.jsonl", 130, first=170)
    return tmp_path / "text"


def test_blocks_are_the_documents_one_behind_the_other(small, lines, tmp_path):
    """Across files and shards, each split for itself; within a shard, blocks are mixed."""
    manifest, made = prepare_documents(tmp_path / "shards", lines)
    assert made and manifest == read_manifest(tmp_path / "shards")
    for split, numbers in {"train": TRAIN, "held-out": HELD_OUT}.items():
        found, expected = blocks_in(tmp_path / "shards", split), expected_blocks(numbers)
        assert sorted(found) == sorted(expected) and found != expected
        assert manifest.splits[split].samples == len(expected)
        names = manifest.splits[split].shards
        assert len(names) > 3
        first = pq.read_metadata(tmp_path / "shards" / names[0]).num_rows
        assert sorted(found[:first]) == sorted(expected[:first])
    tokens = [sum(len(document(number).split()) + 1 for number in numbers) - 1 for numbers in (TRAIN, HELD_OUT)]
    assert manifest.left_over_tokens == sum(count % LENGTH for count in tokens)
    assert manifest.tokens == sum(count // LENGTH * LENGTH for count in tokens)
    assert manifest.documents == 300 and manifest.left_out == {}
    assert manifest.text_bytes == sum(len(document(number)) for number in range(300))
    for name, entry in manifest.files.items():
        check_file(tmp_path / "shards" / name, entry, source=name)


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["", "train", "validation", "test/deep"])), min_size=4, max_size=30
    ),
    st.booleans(),
)
def test_no_held_out_word_is_trained_on(drawn, is_plain):
    """Each document repeats a word of its own; its file's folder or its key says whether it is held out."""
    own = [(WORDS[number], LENGTH * (1 + lines), folder) for number, (lines, folder) in enumerate(drawn)]
    own.append((WORDS[-1], LENGTH, "train"))
    words = {split: {word for word, _, folder in own if folder.startswith(("val", "test")) == (split != "train")}
             for split in ("train", "held-out")}  # fmt: skip
    with TemporaryDirectory() as made:
        texts = Path(made, "texts")
        for word, times, folder in own:
            text, place = " ".join([word] * times), texts / (folder if is_plain else "")
            place.mkdir(parents=True, exist_ok=True)
            record = json.dumps({"text": text, "split": folder.partition("/")[0]})
            (place / (f"{word}.txt" if is_plain else f"{word}.jsonl")).write_text(text if is_plain else record)
        prepare_documents(Path(made, "shards"), texts)
        for split, expected in words.items():
            ids = {one for tokens, _ in blocks_in(Path(made, "shards"), split) for one in tokens}
            found = {WORDS[one - 2] for one in ids if one > 1}
            assert found == expected


def test_reasons_are_counted(tmp_path):
    good = [json.dumps({"text": document(number)}) for number in range(20)]
    bad = [
        '{"title": "no text"}',
        '{"text": ""}',
        '{"text": " \\n"}',
        '{"text": "w1"}',
        "{",
        '{"text": "w1 w2", "split": "x"}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join([*good, *bad]) + "\n")
    (tmp_path / "a.jsonl").open("ab").write('{"text": "Stra\u00dfe"}\n'.encode("latin-1"))
    manifest, _ = prepare_documents(tmp_path / "shards", tmp_path / "a.jsonl", min_characters=4)
    short = sum(len(document(number)) < 4 for number in range(20))
    assert manifest.left_out == {
        "broken line": 1,
        "empty": 2,
        "line without text": 1,
        "not UTF-8": 1,
        "too short": 1 + short,
        "unknown split": 1,
    }
    assert manifest.documents == 27 and manifest.splits["held-out"].samples == 0


def test_a_set_that_holds_nothing_out_holds_out_some_blocks_of_its_first_shard(small, tmp_path):
    """If that is asked for. All text is one document, which a split by documents would lose or not divide at all."""
    write_documents(tmp_path / "all.jsonl", 60, first=1)
    words = " ".join(json.loads(line)["text"] for line in (tmp_path / "all.jsonl").read_text().splitlines())
    (tmp_path / "one.txt").write_text(words)
    plain, _ = prepare_documents(tmp_path / "plain", tmp_path / "one.txt")
    divided, _ = prepare_documents(tmp_path / "divided", tmp_path / "one.txt", holds_out=True)
    assert plain.splits["held-out"].samples == 0 < divided.splits["held-out"].samples
    assert divided.splits["held-out"].samples == -(-(plain.splits["train"].samples - 1) // 20)
    both = blocks_in(tmp_path / "divided") + blocks_in(tmp_path / "divided", "held-out")
    assert sorted(both) == sorted(blocks_in(tmp_path / "plain")), "nothing is lost, and nothing is in both"
    assert divided.document_lengths == plain.document_lengths


def test_a_set_that_names_what_is_held_out_is_not_divided(lines, tmp_path):
    whole, _ = prepare_documents(tmp_path / "whole", lines)
    asked, _ = prepare_documents(tmp_path / "asked", lines, holds_out=True)
    assert asked.splits == whole.splits and blocks_in(tmp_path / "asked") == blocks_in(tmp_path / "whole")
    (tmp_path / "named" / "validation").mkdir(parents=True)
    for name in ("b.txt", "validation/a.txt"):
        (tmp_path / "named" / name).write_text(" ".join(WORDS[:100]))
    asked, _ = prepare_documents(tmp_path / "folders", tmp_path / "named", holds_out=True)
    assert {split: entry.samples for split, entry in asked.splits.items()} == {
        "train": 6,
        "held-out": 6,
        "new-pairs": 0,
    }


def test_shards_may_lie_in_the_folder_of_the_text(small, lines, tmp_path, monkeypatch):
    """Neither finished nor unfinished ones are text: tokenizer.json and the shards end as such files do."""
    expected, _ = prepare_documents(tmp_path / "elsewhere", lines)
    (lines / "more").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (lines / name).rename(lines / "more" / name)
    out, seen = lines / "more" / "shards", []

    def prepare(path, **settings):
        source = TextInput(path=path, block_length=LENGTH, tokenizer=tmp_path / "words.json")
        return prepare_text(source, out, **settings)

    def stop(stage, done, total):
        seen.append(stage)
        if seen.count("Packing text, MB of files") == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(lines, progress=stop)
    (unfinished,) = out.parent.glob(".shards.part-*")
    assert list(unfinished.glob("train-*.parquet"))
    assert prepare(lines) == (expected, True) and not unfinished.exists()
    monkeypatch.chdir(lines)
    assert prepare(Path(".")) == (expected, False)
    write_documents(lines / "more" / "shards-of-others.jsonl", 3)
    with pytest.raises(BadInput, match="other input"):
        prepare(lines)


def test_a_file_whose_text_has_another_key_is_refused_with_the_keys_that_it_has(tmp_path):
    (tmp_path / "a.jsonl").write_text('{\n{"id": 1, "content": "w1 w2"}\n')
    with pytest.raises(BadInput, match=r"id, content.*--text-column"):
        prepare_documents(tmp_path / "shards", tmp_path / "a.jsonl")
    assert not (tmp_path / "shards").exists()


def test_a_line_without_text_refuses_no_set(tmp_path):
    """Nor does a file without the column: both are counted and named."""
    (tmp_path / "text").mkdir()
    lines = ['{"version": 1}', *(json.dumps({"text": document(number)}) for number in range(20))]
    (tmp_path / "text" / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "text" / "b.csv").write_text("id,body\n1,x\n")
    (tmp_path / "text" / "c.pdf").touch()
    manifest, _ = prepare_documents(tmp_path / "shards", tmp_path / "text")
    assert manifest.left_out == {"line without text": 1, "no such column": 1, "other kind of file": 1}
    assert manifest.documents == 23
    assert first_left_out(tmp_path / "shards", 3) == {
        "line without text": (1, ["a.jsonl, line 1"]),
        "no such column": (1, ["b.csv, line 1"]),
        "other kind of file": (1, ["c.pdf"]),
    }


class KilledError(BaseException):
    """What stands for the end of the program."""


def die_at(monkeypatch, step):
    """The program ends before its n-th change of the disk; nothing is tidied up afterwards. Counts the steps."""
    count = [0]

    def dying(real):
        def call(*arguments, **settings):
            count[0] += 1
            if step is not None and count[0] >= step:
                raise KilledError
            return real(*arguments, **settings)

        return call

    for name in ("replace", "unlink", "mkdir", "fsync", "rmdir"):
        monkeypatch.setattr(os, name, dying(getattr(os, name)))
    return count


def test_killed_at_any_step_it_loses_at_most_the_shard_in_hand(small, lines, tmp_path, monkeypatch):
    packed = []
    pack = prepare_module._TextWork._pack

    def counted(work, pieces, *others):
        packed.extend(pieces)
        return pack(work, pieces, *others)

    monkeypatch.setattr(prepare_module._TextWork, "_pack", counted)
    monkeypatch.setattr(prepare_module, "SHARD_TOKENS", 1500)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # hundreds of them, and a busy disk takes seconds for each
    with monkeypatch.context() as patch:
        steps = die_at(patch, None)
        prepare_documents(tmp_path / "whole", lines)
    expected = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert len(packed) == 300
    of_a_shard = 1500 / (sum(len(document(number).split()) + 1 for number in range(300)) / 300) + 8
    for step in range(1, steps[0] + 1, 5):
        out = tmp_path / f"at-{step}" / "shards"
        out.parent.mkdir()
        packed.clear()
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            die_at(patch, step)
            prepare_documents(out, lines)
        prepare_documents(out, lines)
        assert {path.name: path.read_bytes() for path in out.iterdir()} == expected, step
        assert len(packed) <= 300 + 1.5 * of_a_shard, step
    assert step > 30


def test_memory_does_not_grow_with_the_set(tmp_path, monkeypatch):
    """Eight times the documents, in shards of the same size."""
    for name, size in {"SHARD_TOKENS": 1 << 12, "READ_DOCUMENTS": 32}.items():
        monkeypatch.setattr(prepare_module, name, size)
    peaks = []
    for times in (1, 8):
        write_documents(tmp_path / f"{times}.jsonl", 250 * times)
        tracemalloc.start()
        prepare_documents(tmp_path / f"of-{times}", tmp_path / f"{times}.jsonl")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0], peaks


def test_again_does_nothing_and_other_input_needs_replace(lines, tmp_path):
    prepare_documents(tmp_path / "shards", lines)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()}
    assert prepare_documents(tmp_path / "shards", lines)[1] is False
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "shards").iterdir()} == stamps
    before = blocks_in(tmp_path / "shards")
    with pytest.raises(BadInput, match="--replace"):
        prepare_documents(tmp_path / "shards", lines, seed=1)
    prepare_documents(tmp_path / "shards", lines, seed=1, replace=True)
    after = blocks_in(tmp_path / "shards")
    assert after != before and sorted(after) == sorted(before)


def test_a_trained_tokenizer_has_an_id_for_every_text(tmp_path):
    texts = ["Once upon a time, a fox and a bear had a ball.\n", "Füchse 狐 🦊 \u0000\x7f", "the fox the fox the fox"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    source = TextInput(path=tmp_path / "a.jsonl", block_length=4, vocabulary=280)
    manifest, _ = prepare_text(source, tmp_path / "shards")
    shards = open_shards(tmp_path / "shards", kind="text")
    assert 257 < shards.tokenizer.vocab_size == manifest.vocab_size <= 280
    odd = [*texts, "never seen: Ω ß \U0001f9ff <|endoftext|>"]
    assert [shards.tokenizer.decode(ids) for ids in shards.tokenizer.encode(odd)] == odd
    prepare_text(source, tmp_path / "again")
    for name in ("tokenizer.json", "manifest.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "shards" / name).read_bytes()


def test_the_end_of_text_within_a_document_ends_none(tmp_path):
    """Whoever writes it into a text must not be able to begin a document."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a <|endoftext|> b " * 20}))
    prepare_text(TextInput(path=tmp_path / "a.jsonl", block_length=16, vocabulary=257), tmp_path / "shards")
    end = open_shards(tmp_path / "shards", kind="text").tokenizer.end_of_text
    blocks = blocks_in(tmp_path / "shards")
    assert blocks and all(end not in tokens for tokens, _ in blocks)
    # A tokenizer of whole words knows no other way to write it; where documents begin is stored apart.
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": f"w1 {END} w2 " * 20}))
    prepare_documents(tmp_path / "words", tmp_path / "b.jsonl")
    assert sum(sum(starts) for _, starts in blocks_in(tmp_path / "words")) == 1


@pytest.mark.parametrize("count, bits", [(65_536, 16), (65_537, 32)])
def test_ids_take_16_bit_if_they_fit(tmp_path, count, bits):
    vocabulary = {f"w{number}": number for number in range(count - 1)} | {"</s>": count - 1}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.save(str(tmp_path / "t.json"))
    (tmp_path / "a.txt").write_text(f"w1 w{count - 2} w2 w3\n<|endoftext|>\nw5 w6")
    prepare_text(TextInput(path=tmp_path / "a.txt", block_length=3, tokenizer=tmp_path / "t.json"), tmp_path / "shards")
    assert sorted(tokens for tokens, _ in blocks_in(tmp_path / "shards")) == [(1, count - 2, 2), (3, count - 1, 5)]
    shard = pq.ParquetFile(tmp_path / "shards" / "train-00000.parquet")
    assert shard.schema_arrow.field("tokens").type.byte_width == 3 * bits // 8
    raw = sorted(np.frombuffer(one, f"<u{bits // 8}").tolist() for one in shard.read()["tokens"].to_pylist())
    assert raw[0] == [1, count - 2, 2]


def test_the_card_says_what_the_set_is(tmp_path):
    """Text stays text: neither a picture from elsewhere nor a tag."""
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "![x](http://elsewhere/x.png) <img src=x> " * 9}))
    source = TextInput(path=tmp_path / "a.jsonl", block_length=64, vocabulary=300)
    manifest, _ = prepare_text(source, tmp_path / "shards", licence="odc-by")
    card = (tmp_path / "shards" / "README.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert header["license"] == "odc-by" and header["task_categories"] == ["text-generation"]
    assert f"| Samples, train | {manifest.splits['train'].samples} |" in card
    assert "\\!\\[x\\]" in card and "<img" not in card.replace("\\<img", "")
    prepare_text(source, tmp_path / "other", licence="ours: ask us")
    header = yaml.safe_load((tmp_path / "other" / "README.md").read_text().split("---")[1])
    assert (header["license"], header["license_name"]) == ("other", "ours: ask us")


@pytest.mark.parametrize(
    "flag, value",
    [("--block-length", 1), ("--block-length", 2**17 + 1), ("--vocabulary", 256), ("--min-characters", 2**20 + 1)],
)
def test_numbers_out_of_range_are_refused(flag, value):
    refused = CliRunner().invoke(build_app(), ["prepare", "--text", "a.txt", "--out", "shards", flag, str(value)])
    assert refused.exit_code == 2 and flag in refused.output


def test_input_that_cannot_be_used_is_named(lines, tmp_path):
    tokenizer = write_tokenizer(tmp_path / "words.json")
    settings = {"path": lines, "block_length": LENGTH}
    for given in ({}, {"tokenizer": tokenizer, "vocabulary": 300}):
        with pytest.raises(BadInput, match="tokenizer"):
            TextInput(**settings, **given)
    with pytest.raises(BadInput, match="--end-of-text"):
        TextInput(**settings, vocabulary=300, end_of_text="x")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[END]": 1}, unk_token="a"))
    inner.save(str(tmp_path / "t.json"))
    with pytest.raises(BadInput, match=r"--end-of-text|end a document"):
        TextTokenizer.from_file(tmp_path / "t.json")
    assert TextTokenizer.from_file(tmp_path / "t.json", end_of_text="[END]").end_of_text == 1
    (tmp_path / "a.jsonl").write_text('{"text": "w1 w2"}\n{\n')
    with pytest.raises(BadInput, match=r"16 tokens.* 2 documents \(1 broken line\)"):
        prepare_documents(tmp_path / "shards", tmp_path / "a.jsonl")
    assert not (tmp_path / "shards").exists()
