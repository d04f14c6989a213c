"""Streaming: every sample once a pass, other peers in another order, over HTTP as from a folder, broken files named."""

import functools
import http.server
import os
import threading
import time
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from training.config import load_recipe
from training.data import stream as stream_module
from training.data.shards import Manifest, SplitEntry, describe_file, write_shard
from training.data.stream import open_shards, sample_stream
from training.data.tokenizer import Tokenizer
from training.errors import BadInput

MODEL = load_recipe("demo").model
COLOURS = ("red", "green", "blue")


@pytest.fixture
def folder(tmp_path):
    """Six shards of 40 samples; the codes say which sample it is."""
    folder = tmp_path / "shards"
    folder.mkdir()
    names, captions = [], []
    for shard in range(6):
        numbers = range(40 * shard, 40 * shard + 40)
        codes = np.array([[number] * 64 for number in numbers], dtype=np.uint16)
        words = [f"a {COLOURS[number % 3]} circle" for number in numbers]
        names.append(f"train-{shard:05d}.parquet")
        write_shard(folder / names[-1], ids=[str(number) for number in numbers], captions=words, codes=codes)
        captions += words
    Tokenizer.train(captions, 64).save(folder / "tokenizer.json")
    (folder / "codec.safetensors").write_bytes(b"weights")
    (folder / "codec.json").write_text("{}")
    manifest = Manifest(
        run_id="demo",
        input_digest="a" * 64,
        image_seq_len=64,
        image_vocab_size=256,
        text_vocab_size=7,
        codec_digest="b" * 64,
        reconstruction_error=0.0,
        pictures=240,
        left_out={},
        splits={"train": SplitEntry(samples=240, shards=tuple(names)), "held-out": SplitEntry(samples=0, shards=())},
        files={path.name: describe_file(path) for path in folder.iterdir()},
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    return folder


@pytest.fixture
def server(folder):
    """A plain static file server: no byte ranges."""
    requests = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            requests.append(self.path)

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=folder.parent)
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        server.requests = requests
        server.url = f"http://127.0.0.1:{server.server_port}/shards"
        yield server
        server.shutdown()
        thread.join()


def numbers(shards, count, *, seed=0, batch=10, buffer=64):
    stream = sample_stream(shards, model=MODEL, shuffle_buffer=buffer, peer_seed=seed, micro_batch_size=batch)
    return [int(row[0]) for one in islice(stream, count // batch) for row in one.codes]


def test_each_pass_has_every_sample_once_and_another_order(folder):
    drawn = numbers(open_shards(folder), 720)
    passes = [drawn[at : at + 240] for at in (0, 240, 480)]
    assert all(sorted(one) == list(range(240)) for one in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_batches_carry_text_codes_and_captions_of_the_same_samples(folder):
    shards = open_shards(folder)
    batch = next(sample_stream(shards, model=MODEL, shuffle_buffer=64, peer_seed=0, micro_batch_size=16))
    assert batch.text.shape == (16, MODEL.text_seq_len) and batch.codes.shape == (16, 64)
    assert batch.text.dtype == batch.codes.dtype and str(batch.text.dtype) == "torch.int64"
    assert batch.captions == [f"a {COLOURS[int(row[0]) % 3]} circle" for row in batch.codes]
    assert batch.text.tolist() == shards.tokenizer.encode(batch.captions, MODEL.text_seq_len).tolist()


def test_the_seed_decides_the_order(folder):
    shards = open_shards(folder)
    first, again, other = (numbers(shards, 240, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    starts = [[number // 40 for number in numbers(shards, 20, seed=seed, buffer=1)] for seed in range(4)]
    assert len({tuple(start) for start in starts}) > 1


def test_the_buffer_mixes_shards(folder):
    assert Counter(number // 40 for number in numbers(open_shards(folder), 60, buffer=240)).most_common(1)[0][1] < 30


def test_over_http_the_same_samples_come_in_the_same_order(folder, server, tmp_path):
    remote = open_shards(server.url, cache=tmp_path / "cache")
    assert numbers(remote, 480, seed=3) == numbers(open_shards(folder), 480, seed=3)
    fetched = Counter(request.rsplit("/", 1)[-1] for request in server.requests)
    assert set(fetched.values()) == {1} and "codec.safetensors" not in fetched
    assert (remote.codec_folder / "codec.safetensors").read_bytes() == b"weights"


def test_the_cache_serves_the_next_start(server, tmp_path):
    numbers(open_shards(server.url, cache=tmp_path / "cache"), 240)
    server.requests.clear()
    numbers(open_shards(server.url, cache=tmp_path / "cache"), 240)
    assert [request.rsplit("/", 1)[-1] for request in server.requests] == ["manifest.json"]


def test_the_cache_keeps_to_its_limit_and_lets_go_of_what_was_used_least_recently(server, tmp_path):
    shards = open_shards(server.url, cache=tmp_path / "cache")
    numbers(shards, 240)
    missing, *names = shards.names
    (shards.folder / missing).unlink()
    size = max(entry.bytes for name, entry in shards.manifest.files.items() if name.endswith(".parquet"))
    an_hour_ago = time.time() - 3600
    for age, name in enumerate(names):
        os.utime(shards.folder / name, (an_hour_ago - age, an_hour_ago - age))
    limited = open_shards(server.url, cache=tmp_path / "cache", cache_gb=3.5 * size / 1e9)
    limited.file(missing)
    kept = {path.name for path in limited.folder.glob("*.parquet")}
    assert kept == {missing, *names[:2]}
    assert sum(path.stat().st_size for path in limited.folder.glob("*.parquet")) <= 3.5 * size
    assert (limited.folder / "tokenizer.json").is_file()

    os.utime(limited.folder / missing, (an_hour_ago + 100, an_hour_ago + 100))
    limited.file(names[1])  # using it again makes it the newest
    limited.file(names[2])
    assert {path.name for path in limited.folder.glob("*.parquet")} == {missing, names[1], names[2]}
    limited.file(names[3])
    assert {path.name for path in limited.folder.glob("*.parquet")} == {names[1], names[2], names[3]}


def test_shards_that_were_just_used_stay_even_beyond_the_limit(server, tmp_path):
    shards = open_shards(server.url, cache=tmp_path / "cache", cache_gb=0)
    assert sorted(numbers(shards, 240)) == list(range(240))
    assert len(list(shards.folder.glob("*.parquet"))) == 6


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_cached_shard_of_the_same_size_with_other_bytes_is_fetched_again(folder, server, tmp_path):
    """Another run's under the same name, or one that a crash has half overwritten; also in the middle of a pass."""
    shards = open_shards(server.url, cache=tmp_path / "cache")
    drawn = numbers(shards, 240)
    for name in shards.names[:2]:
        damage(shards.folder / name)
    server.requests.clear()
    assert numbers(shards, 240) == drawn
    fetched = [request.rsplit("/", 1)[-1] for request in server.requests]
    assert sorted(fetched) == list(shards.names[:2])
    assert all((shards.folder / name).read_bytes() == (folder / name).read_bytes() for name in shards.names)


@pytest.mark.parametrize("remote", [False, True])
def test_a_damaged_shard_is_named_and_not_trained_on(folder, server, tmp_path, remote):
    damage(folder / "train-00003.parquet")
    shards = open_shards(server.url if remote else folder, cache=tmp_path / "cache")
    with pytest.raises(BadInput, match=r"train-00003\.parquet is broken.*SHA-256"):
        numbers(shards, 240)
    assert not list((tmp_path / "cache").rglob("*00003*"))


def test_a_shard_longer_than_said_is_not_read_to_its_end(folder, server, tmp_path):
    with (folder / "train-00000.parquet").open("ab") as file:
        file.write(b"x" * 1000)
    with pytest.raises(BadInput, match=r"train-00000\.parquet is broken"):
        numbers(open_shards(server.url, cache=tmp_path / "cache"), 240)


def test_a_missing_shard_is_named(folder, server, tmp_path):
    (folder / "train-00002.parquet").unlink()
    with pytest.raises(BadInput, match=r"train-00002\.parquet cannot be fetched: HTTP Error 404"):
        numbers(open_shards(server.url, cache=tmp_path / "cache"), 240)
    with pytest.raises(BadInput, match=r"train-00002\.parquet cannot be read"):
        numbers(open_shards(folder), 240)


@pytest.mark.parametrize("tears", [False, True])
def test_a_server_that_stumbles_is_asked_again(folder, server, tmp_path, monkeypatch, tears):
    """One that answers with an error, and one that breaks off in the middle of a file."""
    monkeypatch.setattr(stream_module.time, "sleep", lambda seconds: None)
    fails = iter([True, True])
    send = http.server.SimpleHTTPRequestHandler.do_GET

    def stumble(handler):
        if "00001" in handler.path and next(fails, False):
            if not tears:
                return handler.send_error(503)
            handler.copyfile = lambda source, out: out.write(source.read(100))
        return send(handler)

    monkeypatch.setattr(http.server.SimpleHTTPRequestHandler, "do_GET", stumble)
    assert sorted(numbers(open_shards(server.url, cache=tmp_path / "cache"), 240)) == list(range(240))


def test_no_server_and_no_folder_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(stream_module.time, "sleep", lambda seconds: None)
    with pytest.raises(BadInput, match="cannot be fetched"):
        open_shards("http://127.0.0.1:9/shards", cache=tmp_path)
    with pytest.raises(BadInput, match="python -m training prepare"):
        open_shards(tmp_path / "none")


def test_an_empty_split_and_another_model_are_refused(folder):
    with pytest.raises(BadInput, match="no 'held-out' samples"):
        open_shards(folder, "held-out")
    shards = open_shards(folder)
    for field, value in (("image_grid", 9), ("image_vocab_size", 99), ("text_vocab_size", 3)):
        model = MODEL.model_copy(update={field: value})
        with pytest.raises(BadInput, match="recipe's model"):
            sample_stream(shards, model=model, shuffle_buffer=8, peer_seed=0, micro_batch_size=1)
