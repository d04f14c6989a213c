"""Copies of prepared shards: whole or not to be taken for whole, and resumed wherever they broke off."""

import hashlib

import fsspec
import pytest

from tests.training.data.numbered_shards import change_manifest, write_numbered
from tests.training.publish.copies.test_push import Bucket, server
from training.data.store.sets import open_shards
from training.errors import BadInput, TrainingError
from training.publish.copies.sets import push_set
from training.storage import remote as storage_module
from training.storage.remote import MissingError, open_source


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = write_numbered(tmp_path_factory.mktemp("prepared") / "shards")
    (folder / "README.md").write_text("card")
    return folder


@pytest.fixture
def memory():
    storage = fsspec.filesystem("memory")
    storage.store.clear()
    yield storage
    storage.store.clear()


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(storage_module, "pause_seconds", lambda failures: 0.0)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def in_memory(storage):
    return {name.rpartition("/")[2]: storage.cat_file(name) for name in storage.find("/set")}


def test_a_copy_in_a_folder_is_read_as_the_set(prepared, tmp_path):
    there = tmp_path / "below" / "copy"
    assert push_set(prepared, str(there)) == len(contents(prepared))
    assert contents(there) == contents(prepared) and open_shards(there).samples == open_shards(prepared).samples
    assert push_set(prepared, str(there)) == 0


class KilledError(BaseException):
    """What stands for the end of the program."""


def killed_at(patch, storage, step):
    """The program ends before its n-th change at the target; returns the names of what was sent before."""
    names = []

    def dying(real):
        def call(*arguments, **settings):
            if len(names) + 1 >= step:
                raise KilledError
            names.append(arguments[-1] if isinstance(arguments[-1], str) else arguments[0])
            return real(*arguments, **settings)

        return call

    for name in ("put_file", "pipe_file", "rm_file"):
        patch.setattr(storage, name, dying(getattr(storage, name)))
    return names


def test_broken_off_anywhere_it_goes_on_and_nobody_reads_half_a_set(prepared, memory, monkeypatch):
    total = len(contents(prepared)) + 2  # the mark, and that it is deleted
    for step in range(1, total + 1):
        memory.store.clear()
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            before = killed_at(patch, memory, step)
            push_set(prepared, "memory://set")
        if step < total:  # the last one finds the manifest
            with pytest.raises(BadInput):
                open_shards("memory://set")
        sent = push_set(prepared, "memory://set")
        assert in_memory(memory) == contents(prepared), step
        # README.md, which the manifest does not describe, may be sent again.
        assert len(before) + sent <= total + 2, step


def other(prepared, tmp_path):
    """A set of the same sizes with other content, and a shard of its own."""
    folder = write_numbered(tmp_path / "other")
    content = bytearray((folder / "codec.safetensors").read_bytes())
    content[0] ^= 1
    (folder / "codec.safetensors").write_bytes(content)
    (folder / "old.parquet").write_bytes(b"old")

    def change(manifest):
        manifest["input_digest"] = "c" * 64
        manifest["files"]["codec.safetensors"]["sha256"] = hashlib.sha256(content).hexdigest()
        manifest["files"]["old.parquet"] = {"bytes": 3, "sha256": hashlib.sha256(b"old").hexdigest()}

    change_manifest(folder, change)
    return folder


def test_files_of_another_set_are_never_taken_for_those_of_this(prepared, memory, monkeypatch, tmp_path):
    """Shards that are prepared again have the sizes of the old ones."""
    older = other(prepared, tmp_path)
    push_set(older, "memory://set")
    with pytest.raises(BadInput, match="--replace"):
        push_set(prepared, "memory://set")
    assert in_memory(memory)["manifest.json"] == (older / "manifest.json").read_bytes()
    for step in range(2, 20, 3):
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            killed_at(patch, memory, step)
            push_set(prepared, "memory://set", replace=True)
        push_set(prepared, "memory://set", replace=True)
        found = in_memory(memory)
        assert {name: found[name] for name in contents(prepared)} == contents(prepared)
        push_set(older, "memory://set", replace=True)
    push_set(prepared, "memory://set", replace=True)
    assert in_memory(memory) == contents(prepared)


def test_what_fails_is_tried_again_and_then_told(prepared, memory, monkeypatch, no_pauses):
    real, failures = memory.put_file, [0]

    def failing(*arguments, **settings):
        failures[0] += 1
        if failures[0] % 3:
            raise OSError("connection lost")
        return real(*arguments, **settings)

    monkeypatch.setattr(memory, "put_file", failing)
    push_set(prepared, "memory://set")
    assert in_memory(memory) == contents(prepared)
    memory.store.clear()
    monkeypatch.setattr(memory, "put_file", lambda *_, **__: (_ for _ in ()).throw(OSError("gone")))
    with pytest.raises(TrainingError, match=r"memory://set.*gone") as told:
        push_set(prepared, "memory://set")
    assert "continues where it broke off" in told.value.sentence


def test_a_damaged_file_is_not_sent(prepared, memory, tmp_path):
    folder = write_numbered(tmp_path / "shards")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(BadInput, match=r"tokenizer\.json"):
        push_set(folder, "memory://set")


def test_s3_gets_the_files_and_gives_them_back(prepared, monkeypatch):
    bucket = Bucket()
    with server(bucket.answer) as url:
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
        for name, value in {**keys, "AWS_ENDPOINT_URL": url, "AWS_EC2_METADATA_DISABLED": "true"}.items():
            monkeypatch.setenv(name, value)
        push_set(prepared, "s3://bucket/set")
        source, expected = open_source("s3://bucket/set"), contents(prepared)
        for name, content in expected.items():
            assert source.read_all(name, limit=10**6) == source.read(name, length=len(content)) == content
        with pytest.raises(MissingError):
            source.read("nothing", length=1)
    there = {name: content for name, content in bucket.objects.items() if not name.endswith("/")}
    assert there == {f"bucket/set/{name}": content for name, content in contents(prepared).items()}


@pytest.mark.parametrize(
    "address, words",
    [
        ("hf://demo", "names no data set of the hub; give --push as hf://OWNER/NAME"),
        ("nothing://x", "Protocol not known"),
    ],
)
def test_other_places_are_refused(prepared, address, words):
    with pytest.raises(BadInput, match=words):
        push_set(prepared, address)


def test_a_folder_without_shards_is_refused(tmp_path):
    with pytest.raises(BadInput, match="shards"):
        push_set(tmp_path, str(tmp_path / "there"))
    assert not (tmp_path / "there").exists()
