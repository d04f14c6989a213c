"""Folders, web servers and stores give the same bytes; what breaks off goes on where it broke off."""

import threading
import time

import fsspec
import pytest

from tests.support.shard_server import shard_server
from tests.training.data.numbered_shards import SAMPLES, write_numbered
from training.data.store.sets import open_shards
from training.data.stream.order import Place
from training.data.stream.stream import SampleSet, SampleStream
from training.errors import BadInput
from training.recipe import load_recipe
from training.storage import remote as source_module
from training.storage.remote import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MissingError,
    UnreachableError,
    open_source,
    pause_seconds,
)

CONTENT = bytes(range(256)) * 2000


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(source_module, "pause_seconds", lambda failures: 0.001)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a file.bin").write_bytes(CONTENT)
    return tmp_path


@pytest.fixture(params=["folder", "web", "web that sends whole files", "store"])
def source(request, folder):
    if request.param == "folder":
        yield open_source(str(folder))
    elif request.param == "store":
        files = fsspec.filesystem("memory")
        files.pipe_file("/set/a file.bin", CONTENT)
        yield open_source("memory://set/")
        files.rm("/set", recursive=True)
    else:
        with shard_server(folder, ranged=request.param == "web") as server:
            yield open_source(server.url + "/")


def test_parts_and_whole_files_come_from_every_source(source, tmp_path):
    assert source.read("a file.bin", start=1000, length=5000) == CONTENT[1000:6000]
    assert source.read("a file.bin", start=len(CONTENT) - 3, length=3) == CONTENT[-3:]
    assert source.read_all("a file.bin", limit=10**6) == CONTENT
    assert source.read_all("a file.bin", limit=99) == CONTENT[:100]  # one more says that it is longer
    source.download("a file.bin", tmp_path / "copy", length=len(CONTENT))
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_what_is_not_there_is_missing(source):
    with pytest.raises(MissingError, match="other"):
        source.read("other", length=4)
    with pytest.raises(MissingError):
        source.read("a file.bin", start=len(CONTENT) - 2, length=4)
    with pytest.raises(MissingError):
        source.read("a file.bin", start=len(CONTENT) + 1000, length=4)


@pytest.fixture
def server(folder):
    (folder / "file").write_bytes(CONTENT)
    with shard_server(folder) as server:
        yield server


def test_a_part_that_breaks_off_goes_on_from_there(server):
    """A link that breaks after each 70 kB still brings half a megabyte: no byte comes twice."""

    def break_off(handler, name, first):
        server.requests.append((name, first))
        handler.send_response(206)
        handler.send_header("Content-Length", str(len(CONTENT) - first))
        handler.end_headers()
        handler.wfile.write(CONTENT[first : first + 70_000])
        return True

    server.fault = break_off
    assert open_source(server.url).read("file", length=len(CONTENT)) == CONTENT
    assert [first for _, first in server.requests] == list(range(0, len(CONTENT), 70_000))


def test_a_slow_server_is_waited_for_as_long_as_bytes_come(server, monkeypatch):
    """Each byte comes within the time-out, the whole does not."""
    monkeypatch.setattr(source_module, "SILENCE_SECONDS", 0.2)

    def trickle(handler, name, first):
        handler.send_response(206)
        handler.send_header("Content-Length", "10")
        handler.end_headers()
        for at in range(10):
            time.sleep(0.03)
            handler.wfile.write(CONTENT[at : at + 1])
        return True

    server.fault = trickle
    assert open_source(server.url).read("file", length=10) == CONTENT[:10]


def test_a_document_that_drips_is_given_up(server, monkeypatch):
    """A byte now and then would hold a program for ever; nobody has said how long a manifest is."""
    monkeypatch.setattr(source_module, "GRACE_SECONDS", 0.1)

    def drip(handler, name, first):
        handler.send_response(200)
        handler.end_headers()
        while True:  # until the reader has gone
            handler.wfile.write(b"{")
            time.sleep(0.01)

    server.fault = drip
    with pytest.raises(UnreachableError, match="has not arrived within"):
        open_source(server.url).read_all("manifest.json", limit=1 << 25)


def test_a_silent_server_is_unreachable(server, monkeypatch):
    monkeypatch.setattr(source_module, "SILENCE_SECONDS", 0.05)
    asked, over = [], threading.Event()
    server.fault = lambda handler, name, first: asked.append(first) or over.wait(20)
    with pytest.raises(UnreachableError, match="timed out"):
        open_source(server.url).read("file", length=10)
    over.set()
    assert len(asked) == source_module.TRIES


@pytest.mark.parametrize("code, tries", [(404, 1), (403, 1), (410, 1), (429, 4), (500, 4), (503, 4)])
def test_only_answers_that_may_change_are_asked_for_again(server, code, tries):
    asked = []
    server.fault = lambda handler, name, first: asked.append(first) or handler.send_error(code) or True
    with pytest.raises((MissingError, UnreachableError), match=str(code)) as caught:
        open_source(server.url).read("file", length=10)
    assert len(asked) == tries and isinstance(caught.value, MissingError if tries == 1 else UnreachableError)


def test_pauses_grow_to_a_limit_and_differ():
    rounds = [[pause_seconds(failures) for failures in range(1, 30)] for _ in range(20)]
    assert all(FIRST_PAUSE_SECONDS / 2 <= one[0] <= 1.5 * FIRST_PAUSE_SECONDS for one in rounds)
    assert all(max(one) <= 1.5 * LONGEST_PAUSE_SECONDS for one in rounds)
    assert all(one[-1] >= LONGEST_PAUSE_SECONDS / 2 for one in rounds)
    assert len({one[0] for one in rounds}) == 20


def test_a_store_that_does_not_answer_is_given_up(monkeypatch):
    """Its library would wait for ever."""
    monkeypatch.setattr(source_module, "GRACE_SECONDS", 0.1)
    source, over = open_source("memory://set"), threading.Event()
    monkeypatch.setattr(type(source._files), "cat_file", lambda *_, **more: over.wait(60))
    with pytest.raises(UnreachableError, match="has not arrived within"):
        source.read_all("manifest.json", limit=100)
    over.set()


def test_addresses_of_no_known_kind_are_one_sentence():
    with pytest.raises(BadInput, match="nothing://set"):
        open_source("nothing://set")


def test_a_library_that_is_missing_is_named(monkeypatch):
    def missing(address):
        raise ImportError("Install gcsfs to access GCS")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(BadInput, match="Install gcsfs"):
        open_source("gs://bucket/set")


def test_hub_addresses_are_those_of_the_hub():
    """Nothing is fetched: the address names the repository, its revision and the folder in it."""
    source = open_source("hf://datasets/someone/shards@main/small")
    assert source.is_remote and type(source._files).__name__ == "HfFileSystem"


def test_shards_are_read_from_a_store(tmp_path):
    """As from `s3://`, through fsspec."""
    files = fsspec.filesystem("memory")
    for path in write_numbered(tmp_path / "shards").iterdir():
        files.pipe_file(f"/shards/{path.name}", path.read_bytes())
    shards = open_shards("memory://shards", cache=tmp_path / "cache")
    samples = SampleSet(shards, model=load_recipe("demo").model, shuffle_buffer=64)
    stream = SampleStream(samples, place=Place(seed=0), micro_batch_size=40)
    found = sorted(int(row[0]) for _ in range(6) for row in next(stream).codes)
    stream.close()
    assert found == list(range(SAMPLES))
