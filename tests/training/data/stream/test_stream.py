"""Streaming: every sample once a pass, the same over HTTP as from a folder, within its limits, through all faults."""

import os
import sys
import threading
from collections import Counter
from contextlib import suppress

import pyarrow.parquet as pq
import pytest

from tests.support.shard_server import shard_server
from tests.training.data.numbered_shards import COLOURS, SAMPLES, change_manifest, write_numbered
from training.data.store import cache as cache_module
from training.data.store import shards as shards_module
from training.data.store.sets import open_shards
from training.data.stream import stream as stream_module
from training.data.stream.order import Place
from training.data.stream.stream import SampleSet, SampleStream
from training.errors import BadInput
from training.recipe import load_recipe
from training.storage import remote as source_module

MODEL = load_recipe("demo").model
GROUP = 16
"""Samples of a row group, so that a shard has groups of 16, 16 and 8."""


@pytest.fixture(autouse=True)
def small_groups(monkeypatch):
    monkeypatch.setattr(shards_module, "ROW_GROUP", GROUP)


@pytest.fixture
def pauses(monkeypatch):
    """The pauses between tries, which take no time."""
    pauses = []

    def pause_seconds(failures):
        pauses.append(failures)
        return 0.001

    for module in (source_module, stream_module):
        monkeypatch.setattr(module, "pause_seconds", pause_seconds)
    return pauses


@pytest.fixture
def folder(tmp_path):
    return write_numbered(tmp_path / "shards")


@pytest.fixture
def server(folder):
    with shard_server(folder) as server:
        yield server


class Streams:
    """Opens streams, and closes them."""

    def __init__(self):
        self.opened = []
        self.told = []

    def open(self, source, *, seed=0, place=None, batch=10, buffer=64, **settings):
        return self.open_set(
            open_shards(source, **settings), place=place or Place(seed=seed), batch=batch, buffer=buffer
        )

    def open_set(self, shards, *, place, batch=10, buffer=64):
        samples = SampleSet(shards, model=MODEL, shuffle_buffer=buffer)
        stream = SampleStream(samples, place=place, micro_batch_size=batch, tell=self.told.append)
        self.opened.append(stream)
        return stream

    def numbers(self, source, count, **settings):
        return drawn(self.open(source, **settings), count)


def drawn(stream, count):
    """Numbers of so many samples."""
    found = []
    while len(found) < count:
        found += [int(row[0]) for row in next(stream).codes]
    return found


@pytest.fixture
def streams():
    streams = Streams()
    yield streams
    for stream in streams.opened:
        stream.close()


EVERY = list(range(SAMPLES))


def test_batches_carry_text_codes_and_captions_of_the_same_samples(folder, streams):
    batch = next(streams.open(folder, batch=16))
    assert batch.text.shape == (16, MODEL.text_seq_len) and batch.codes.shape == (16, 64)
    assert batch.text.dtype == batch.codes.dtype and str(batch.text.dtype) == "torch.int64"
    assert batch.captions == [f"a {COLOURS[int(row[0]) % 3]} circle" for row in batch.codes]
    tokenizer = open_shards(folder).tokenizer
    assert batch.text.tolist() == tokenizer.encode(batch.captions, MODEL.text_seq_len).tolist()


def test_the_buffer_mixes_shards(folder, streams):
    """In a window of eight row groups; those before are smaller."""
    late = streams.numbers(folder, SAMPLES, buffer=240)[120:180]
    assert Counter(number // 40 for number in late).most_common(1)[0][1] < 30


@pytest.mark.parametrize("remote", [False, True])
def test_a_peer_killed_at_any_sample_repeats_and_skips_nothing(folder, server, streams, tmp_path, remote):
    source, settings = (server.url, {"cache": tmp_path / "cache"}) if remote else (folder, {})
    whole = streams.numbers(source, 2 * SAMPLES, seed=4, batch=1, **settings)
    place, found = Place(seed=4), []
    for count in (1, 16, 100, 122, 1, 2 * SAMPLES - 240):  # from the first sample to the middle of the second pass
        stream = streams.open(source, place=place, batch=1, **settings)
        found += drawn(stream, count)
        place = stream.place
        stream.close()
    assert found == whole
    assert place == Place(seed=4, finished_passes=2)


@pytest.mark.parametrize("ranged", [True, False])
def test_over_http_the_same_samples_come_in_the_same_order(folder, streams, tmp_path, ranged):
    """Each part of a shard is asked for once, also from a server that sends whole files."""
    with shard_server(folder, ranged=ranged) as server:
        remote = streams.numbers(server.url, 2 * SAMPLES, seed=3, cache=tmp_path / "cache")
        assert remote == streams.numbers(folder, 2 * SAMPLES, seed=3)
        fetched = Counter(server.requests)
        assert "codec.safetensors" not in server.files()
        if ranged:  # else all parts of a file begin at 0 for the server
            assert set(fetched.values()) == {1}
        shards = open_shards(server.url, cache=tmp_path / "cache")
        assert (shards.codec_folder / "codec.safetensors").read_bytes() == b"weights"


def test_the_first_batch_needs_one_row_group(folder, server, streams, tmp_path):
    """All others are held back until the batch is there."""
    shards = open_shards(folder)
    samples = SampleSet(shards, model=MODEL, shuffle_buffer=64)
    (first,) = next(samples.order.windows(Place(seed=0))).blocks
    shard, group = samples.blocks.locate(first)
    begin = pq.ParquetFile(folder / shard).metadata.row_group(group).column(0).data_page_offset
    footer = shards.manifest.files[shard].bytes - shards.manifest.index[shard].footer_bytes
    is_there = threading.Event()

    def hold(handler, name, start):
        if name.endswith(".parquet") and (name, start) not in ((shard, begin), (shard, footer)):
            assert is_there.wait(20)

    server.fault = hold
    batch = next(streams.open(server.url, cache=tmp_path / "cache", batch=4))
    assert not is_there.is_set() and len({int(row[0]) // 40 for row in batch.codes}) == 1
    is_there.set()


def test_the_cache_serves_the_next_start(server, streams, tmp_path):
    streams.numbers(server.url, SAMPLES, cache=tmp_path / "cache")
    server.requests.clear()
    streams.numbers(server.url, SAMPLES, cache=tmp_path / "cache")
    assert server.files() == ["manifest.json"]


def parts_in(folder):
    return [path for path in folder.rglob("*") if path.suffix in (".block", ".footer", ".parquet")]


def size_of(paths):
    return sum(path.stat().st_size for path in paths)


def size_at_once(folder):
    """Size of the parts that two looks have found: these were there at one moment, while a thread adds and deletes."""
    sizes = {}
    for path in parts_in(folder):
        with suppress(FileNotFoundError):
            sizes[path] = path.stat().st_size
    there = set(parts_in(folder))
    return sum(size for path, size in sizes.items() if path in there)


def test_the_disk_is_bounded_by_the_caches_limit(folder, streams, tmp_path):
    """About a third of the set; it is looked at after each batch of three passes."""
    with shard_server(folder) as server:
        limit = size_of(folder.glob("*.parquet")) // 3
        stream = streams.open(server.url, cache=tmp_path / "cache", cache_gb=limit / 1e9)
        found, sizes = [], []
        while len(found) < 3 * SAMPLES:
            found += drawn(stream, 10)
            sizes.append(size_at_once(tmp_path / "cache"))
    assert sorted(found) == sorted(3 * EVERY)
    assert 0 < max(sizes) <= limit


def test_a_cache_that_cannot_be_made_costs_the_cache_only(server, streams, tmp_path):
    (tmp_path / "cache").write_text("no folder can be here")
    assert sorted(streams.numbers(server.url, SAMPLES, cache=tmp_path / "cache")) == EVERY


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit for the size of a file")
def test_a_full_disk_costs_the_cache_only(server, streams, tmp_path):
    """The system stops each write of a row group in its middle, as on a full disk: with a limit for the size of files,
    since a file system of a hundred kilobytes needs the rights of root."""
    import resource

    shards = open_shards(server.url, cache=tmp_path / "cache")  # the tokenizer's file is kept before the disk is full
    before = set(threading.enumerate())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        stream = streams.open_set(shards, place=Place(seed=0))
        found = drawn(stream, SAMPLES)
        stream.close()
        for thread in set(threading.enumerate()) - before:  # they read ahead, and would write when the disk has room
            if thread.name == "samples":
                thread.join()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(found) == EVERY and stream.skipped_samples == 0
    assert [path for path in (tmp_path / "cache").rglob("*") if path.name.count(".block")] == []  # nor drafts of them


def test_a_codec_for_which_the_disk_has_no_room_is_one_sentence(server, tmp_path):
    (tmp_path / "cache").write_text("no folder can be here")
    with pytest.raises(BadInput, match="XDG_CACHE_HOME"):
        _ = open_shards(server.url, cache=tmp_path / "cache").codec_folder


def damage(path, at=None):
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


def test_a_cached_part_with_other_bytes_is_fetched_again(server, streams, tmp_path):
    """Another run's under the same name, or one that a crash has half overwritten."""
    whole = streams.numbers(server.url, SAMPLES, cache=tmp_path / "cache")
    streams.opened[-1].close()  # it reads ahead, and might fetch what is damaged, too
    blocks = sorted((tmp_path / "cache").rglob("*.block"))
    before = blocks[1].read_bytes()
    damage(blocks[1])
    blocks[2].write_bytes(b"")
    server.requests.clear()
    assert streams.numbers(server.url, SAMPLES, cache=tmp_path / "cache") == whole
    assert sorted(server.files()) == ["manifest.json", "train-00000.parquet", "train-00000.parquet"]
    assert blocks[1].read_bytes() == before


GROUP_OF_3 = {*range(120, 136)}
"""The first row group of shard 3, where the damage of most tests is."""


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize(
    "harm, lost",
    [
        ("a flipped bit", GROUP_OF_3),
        ("truncated", {*range(120, 160)}),
        ("swapped", {*range(120, 160)}),
        ("missing", {*range(120, 160)}),
    ],
)
def test_damage_is_skipped_and_counted(folder, server, streams, tmp_path, remote, harm, lost):
    path = folder / "train-00003.parquet"
    if harm == "a flipped bit":
        damage(path, at=40)
    elif harm == "truncated":
        path.write_bytes(path.read_bytes()[:100])
    elif harm == "swapped":
        path.write_bytes((folder / "train-00001.parquet").read_bytes())
    else:
        path.unlink()
    source, settings = (server.url, {"cache": tmp_path / "cache"}) if remote else (folder, {})
    stream = streams.open(source, batch=8, **settings)
    left = SAMPLES - len(lost)
    found = drawn(stream, 2 * left)
    assert [sorted(found[:left]), sorted(found[left:])] == [sorted(set(EVERY) - lost)] * 2
    assert stream.skipped_samples == 2 * len(lost)
    assert len(streams.told) == 2 * (1 if lost == GROUP_OF_3 else 3)
    assert all("train-00003.parquet" in words for words in streams.told)


def test_a_place_in_the_middle_of_damage_goes_on_behind_it(folder, streams):
    damage(folder / "train-00003.parquet", at=40)
    whole = streams.numbers(folder, SAMPLES, batch=1)
    stream = streams.open(folder, batch=1)
    found = drawn(stream, 100)
    assert found + streams.numbers(folder, SAMPLES - 100, batch=1, place=stream.place) == whole


def test_a_set_that_is_nothing_but_damage_is_one_sentence(folder, streams):
    for path in folder.glob("*.parquet"):
        path.unlink()
    with pytest.raises(BadInput, match="16 parts"):
        streams.numbers(folder, 10)


def test_codes_that_the_model_does_not_know_are_skipped(folder, streams):
    """The manifest says that there are 100; embeddings have no more."""
    change_manifest(folder, lambda manifest: manifest.update(image_vocab_size=100))
    samples = open_shards(folder)
    model = MODEL.model_copy(update={"image_vocab_size": 100})
    stream = SampleStream(
        SampleSet(samples, model=model, shuffle_buffer=64), place=Place(seed=0), micro_batch_size=8, tell=print
    )
    streams.opened.append(stream)
    assert max(drawn(stream, 80)) < 100 and stream.skipped_samples >= 16


@pytest.mark.parametrize("tears", [False, True])
def test_a_server_that_stumbles_is_asked_again(server, streams, tmp_path, pauses, tears):
    """One that answers with an error, and one that breaks off in the middle of a part."""
    fails = iter([True] * 3)

    def stumble(handler, name, first):
        if "00001" not in name or not next(fails, False):
            return False
        if not tears:
            handler.send_error(503)
            return True
        handler.send_response(206)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        content = (server.folder / name).read_bytes()
        handler.wfile.write(content[first : first + 10])
        return True

    server.fault = stumble
    stream = streams.open(server.url, cache=tmp_path / "cache")
    assert sorted(drawn(stream, SAMPLES)) == EVERY and stream.skipped_samples == 0
    assert 1 in pauses


@pytest.mark.parametrize("cache_gb", [1, 0])
def test_training_goes_on_while_the_server_is_away(server, streams, tmp_path, pauses, cache_gb):
    """With samples from the cache, or from memory if there is none; then each sample of the pass comes once."""
    is_away = threading.Event()
    server.fault = lambda handler, name, first: is_away.is_set() and (handler.send_error(503) or True)
    stream = streams.open(server.url, cache=tmp_path / "cache", cache_gb=cache_gb, batch=8)
    found = drawn(stream, 48)
    is_away.set()
    during, place = [], None
    while stream.repeated_samples == 0 or len(during) < 400:
        place = stream.place if stream.repeated_samples == 0 else place
        during += drawn(stream, 8)
    fresh = [*found, *during]
    is_away.clear()
    assert stream._coming.done.wait(10)
    fresh += drawn(stream, 8 * (stream_module.BATCHES_AHEAD + 1))  # those that were ready before
    before = stream.repeated_samples
    fresh += drawn(stream, 8)
    assert stream.repeated_samples == before  # it goes back at once
    while "again" not in streams.told[-1]:
        fresh += drawn(stream, 8)
    repeated = stream.repeated_samples
    while len(fresh) < SAMPLES + repeated:
        fresh += drawn(stream, 8)
    assert set(fresh) == set(EVERY)
    assert [words.split(":")[0] for words in streams.told] == [
        "Training goes on with samples that were fetched before",
        "The shards come again.",
    ]
    assert stream.skipped_samples == 0 and stream.waiting_seconds > 0
    counts = Counter(fresh)
    assert sum(counts.values()) - SAMPLES <= repeated


def test_the_place_stays_while_samples_are_repeated(server, streams, tmp_path, pauses):
    stream = streams.open(server.url, cache=tmp_path / "cache", batch=8)
    found = drawn(stream, 48)
    server.fault = lambda handler, name, first: handler.send_error(503) or True
    while stream.repeated_samples == 0:
        found += drawn(stream, 8)
    place = stream.place
    drawn(stream, 80)
    assert stream.place == place
    server.fault = lambda handler, name, first: False
    after = streams.numbers(server.url, SAMPLES - place.position, place=place, batch=1, cache=tmp_path / "cache")
    whole = streams.numbers(server.url, SAMPLES, batch=1, cache=tmp_path / "cache")
    assert after == whole[place.position :]


def test_no_server_and_no_folder_are_one_sentence(tmp_path, pauses):
    with pytest.raises(BadInput, match=r"shards/manifest\.json"):
        open_shards("http://127.0.0.1:9/shards", cache=tmp_path)
    with pytest.raises(BadInput, match="python -m training prepare"):
        open_shards(tmp_path / "none")


def test_a_server_that_goes_after_the_manifest_is_one_sentence(server, streams, tmp_path, pauses):
    server.fault = lambda handler, name, first: name.endswith(".parquet") and (handler.send_error(503) or True)
    with pytest.raises(BadInput, match=r"parquet.*503"):
        streams.numbers(server.url, 10, cache=tmp_path / "cache")


def test_a_stream_starts_from_its_cache_while_the_server_is_away(server, streams, tmp_path, pauses):
    """As far as the manifest can be read: it may be answered by a proxy."""
    streams.numbers(server.url, 100, cache=tmp_path / "cache")
    server.fault = lambda handler, name, first: name.endswith(".parquet") and (handler.send_error(503) or True)
    stream = streams.open(server.url, cache=tmp_path / "cache", seed=1)
    drawn(stream, 300)
    assert stream.repeated_samples > 0 and stream.waiting_seconds > 0


def test_an_empty_split_and_another_model_are_refused(folder):
    with pytest.raises(BadInput, match="held-out"):
        open_shards(folder, "held-out")
    shards = open_shards(folder)
    for field, value in (("image_grid", 9), ("image_vocab_size", 99), ("text_vocab_size", 3)):
        model = MODEL.model_copy(update={field: value})
        with pytest.raises(BadInput, match="recipe's model"):
            SampleSet(shards, model=model, shuffle_buffer=8)


def test_memory_is_bounded_whatever_the_recipe_asks_for(folder, monkeypatch):
    """64 codes of two bytes: 5000 bytes are 39 samples, so two row groups."""
    monkeypatch.setattr(stream_module, "WINDOW_BYTES", 5000)
    assert SampleSet(open_shards(folder), model=MODEL, shuffle_buffer=10**9).order.window_blocks == 2


@pytest.mark.parametrize("name", ["train-00000.parquet", "tokenizer.json", "codec.safetensors"])
def test_a_file_of_ten_terabytes_is_not_believed(folder, server, tmp_path, streams, name):
    def change(manifest):
        manifest["files"][name]["bytes"] = 10**13

    change_manifest(folder, change)
    if name == "train-00000.parquet":
        stream = streams.open(server.url, cache=tmp_path / "cache")
        assert sorted(drawn(stream, 200)) == list(range(40, 240)) and stream.skipped_samples == 40
        return
    with pytest.raises(BadInput, match="10000000000000"):
        shards = open_shards(server.url, cache=tmp_path / "cache")
        shards.file(name)


def test_an_index_that_contradicts_the_manifest_is_refused(folder):
    def change(manifest):
        manifest["index"]["train-00000.parquet"]["rows"] = 41

    change_manifest(folder, change)
    with pytest.raises(BadInput, match="240"):
        open_shards(folder)


def test_the_cache_lets_go_of_what_was_used_least_recently(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    cache = cache_module.Cache(folder, 1000)
    for age, name in enumerate("abcd"):
        cache.keep(f"{name}.block", bytes(240))
        os.utime(folder / f"{name}.block", (10**9 - age, 10**9 - age))
    assert cache.read("d.block") == bytes(240)  # now it is the newest
    (folder / "tokenizer.json").write_bytes(bytes(5000))
    cache.keep("e.block", bytes(240))
    assert cache.names() == {"a.block", "b.block", "d.block", "e.block"}
    cache.keep("large.block", bytes(1001))
    assert "large.block" not in cache.names() and (folder / "tokenizer.json").exists()
