"""Text through the same door as pictures: every block once a pass, the same over HTTP, through kills and faults."""

import json

import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError

from tests.support.shard_server import shard_server
from tests.training.data.numbered_shards import change_manifest, write_numbered
from tests.training.data.stream.test_stream import MODEL
from tests.training.data.text_shards import LENGTH, WORDS, blocks_in, prepare_documents, write_documents
from training.data.prepare import text as prepare_module
from training.data.store import shards as shards_module
from training.data.store.blocks import Blocks, DamagedError
from training.data.store.sets import open_manifest, open_shards
from training.data.store.shards import Manifest, check_fit, parse_manifest
from training.data.stream.order import Place
from training.data.stream.stream import SampleSet, SampleStream, TextSet
from training.errors import BadInput
from training.recipe import load_recipe
from training.tasks.known import task_of
from training.volunteer.samples import own_samples
from training.volunteer.settings import PeerSettings

IDS = len(WORDS) + 2
START = Place(seed=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Some 250 blocks in four shards, with row groups of 16 blocks."""
    folder = tmp_path_factory.mktemp("text")
    write_documents(folder / "a.jsonl", 300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "GROUP_TOKENS", 16 * LENGTH)
        patch.setattr(prepare_module, "SHARD_TOKENS", 1024)
        patch.setattr(prepare_module, "READ_DOCUMENTS", 4)
        prepare_documents(folder / "shards", folder / "a.jsonl")
    return folder / "shards"


@pytest.fixture
def stream():
    opened = []

    def open_stream(source, *, place=START, batch=1, tell=lambda text: None, **settings):
        shards = open_shards(source, kind="text", **settings)
        samples = TextSet(shards, block_length=LENGTH, vocab_size=IDS, shuffle_buffer=64)
        opened.append(SampleStream(samples, place=place, micro_batch_size=batch, tell=tell))
        return opened[-1]

    yield open_stream
    for one in opened:
        one.close()


def drawn(stream, count):
    """(Tokens, starts) of so many blocks."""
    found = []
    while len(found) < count:
        batch = next(stream)
        found += zip(map(tuple, batch.tokens.tolist()), map(tuple, batch.starts.tolist()), strict=True)
    return found


def test_each_pass_has_every_block_once_and_another_order(folder, stream):
    expected = blocks_in(folder)
    found = drawn(stream(folder), 2 * len(expected))
    first, second = found[: len(expected)], found[len(expected) :]
    assert sorted(first) == sorted(second) == sorted(expected) and first != second != expected


def test_batches_are_tensors(folder, stream):
    batch = next(stream(folder, batch=5))
    assert len(batch) == 5 and batch.tokens.shape == batch.starts.shape == (5, LENGTH)
    assert (batch.tokens.dtype, batch.starts.dtype) == (torch.int64, torch.bool)
    # Behind each end of text, and nowhere else but at the first place, a document begins.
    ends = batch.tokens == open_shards(folder, kind="text").tokenizer.end_of_text
    assert torch.equal(batch.starts[:, 1:], ends[:, :-1])


@pytest.mark.parametrize("remote", [False, True])
def test_a_peer_killed_at_any_sample_repeats_and_skips_nothing(folder, stream, tmp_path, remote):
    count = len(blocks_in(folder))
    with shard_server(folder) as server:
        source, settings = (server.url, {"cache": tmp_path / "cache"}) if remote else (folder, {})
        whole = drawn(stream(folder), 2 * count)
        place, found = Place(seed=4), []
        for some in (1, 15, 100, count - 60, 1, count - 57):
            one = stream(source, place=place, **settings)
            found += drawn(one, some)
            place = one.place
            one.close()
        assert found == whole and place == Place(seed=4, finished_passes=2)


def test_a_damaged_row_group_is_left_out_and_counted(folder, stream, tmp_path):
    copy = tmp_path / "shards"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    shard = copy / open_shards(folder, kind="text").names[0]
    content = bytearray(shard.read_bytes())
    content[pq.ParquetFile(shard).metadata.row_group(0).column(0).data_page_offset + 60] ^= 1
    shard.write_bytes(content)
    told = []
    expected = blocks_in(folder)
    one = stream(copy, tell=told.append)
    found = drawn(one, len(expected) - 16)
    assert sorted(found) == sorted(expected[16:]) and one.skipped_samples == 16
    assert "16 samples" in told[0] and f"row group 0 of {shard.name}" in told[0]


def test_each_kind_of_run_refuses_the_shards_of_the_other(folder, tmp_path):
    pictures = write_numbered(tmp_path / "pictures")
    for call in (open_shards, open_manifest):
        with pytest.raises(BadInput, match="hold blocks of text; pictures with captions are needed here") as refused:
            call(str(folder))
        assert refused.value.sentence.count("\n") == 0 and "prepare --images" in refused.value.sentence
        with pytest.raises(BadInput, match="hold pictures with captions; blocks of text are needed here"):
            call(str(pictures), kind="text")
        assert call(str(folder), kind=None) and call(str(pictures), kind=None)
    either = open_shards(folder, kind=None), open_shards(pictures, kind=None)
    with pytest.raises(BadInput, match="hold blocks of text"):
        SampleSet(either[0], model=MODEL, shuffle_buffer=8)
    with pytest.raises(BadInput, match="hold pictures"):
        TextSet(either[1], block_length=LENGTH, vocab_size=IDS, shuffle_buffer=8)
    with pytest.raises(BadInput, match="hold blocks of text"):
        check_fit(either[0].manifest, MODEL, source="x")
    peer = PeerSettings(initial_peers=(), shards=str(folder))
    with pytest.raises(BadInput, match="hold blocks of text"):  # what `join` calls
        own_samples(task_of(load_recipe("demo")), peer, tmp_path / "place", seed=0, micro_batch_size=4, tell=print)


def test_a_manifest_of_another_kind_is_refused(folder, tmp_path):
    with pytest.raises(ValidationError):
        Manifest.model_validate_json((folder / "manifest.json").read_text())
    pictures = json.loads((write_numbered(tmp_path / "pictures") / "manifest.json").read_text())
    with pytest.raises(BadInput, match=r"'sound'.*'pictures', 'text'"):
        parse_manifest(json.dumps({**pictures, "kind": "sound"}), source="x")


def changed(folder, tmp_path, change):
    """A copy of the set with another manifest."""
    copy = tmp_path / "changed"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    change_manifest(copy, change)
    return copy


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda manifest: manifest.update(index={}), "index"),
        (lambda manifest: manifest.update(end_of_text=202), "end|no tokenizer"),
        (lambda manifest: manifest.update(vocab_size=203), "203"),
        (lambda manifest: manifest.update(block_length=1 << 18), "manifest"),
        (
            lambda manifest: (
                [one.update(group_rows=4096) for one in manifest["index"].values()]
                and manifest.update(block_length=1 << 17)
            ),
            "4096.*131072",
        ),
    ],
)
def test_a_manifest_that_cannot_be_true_is_refused(folder, tmp_path, change, words):
    with pytest.raises(BadInput, match=words):
        open_shards(changed(folder, tmp_path, change), kind="text")


def test_a_shard_of_another_block_length_is_refused(folder, tmp_path):
    copy = changed(folder, tmp_path, lambda manifest: manifest.update(block_length=32))
    shards = open_shards(copy, kind="text")
    with pytest.raises(DamagedError, match=r"fixed_size_binary\[32\]"):
        Blocks(shards.manifest, shards.names, shards.files, None).read(0)
