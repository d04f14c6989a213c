"""Checkpoints are copied to a folder, to object storage and to a hub, and nothing waits for it."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import fsspec
import pytest
import yaml

from tests.support.programs import run_program, until
from tests.training.publish.history.test_history import Report
from training.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from training.errors import BadInput
from training.model.transformer import build_model
from training.processes.events import EventLog
from training.publish.card import model_card
from training.publish.config import MonitorConfig
from training.publish.copies.push import Pusher, open_target
from training.publish.history.history import History
from training.recipe import RECIPES, load_recipe

RUN, TEXT = load_recipe("demo"), (RECIPES / "demo.toml").read_text()
TWO = MonitorConfig(keep_last=2, keep_every_epochs=0, keep_best=0)


@pytest.fixture(scope="module")
def model():
    return build_model(RUN.model, seed=7)


@pytest.fixture
def save(tmp_path, model):
    def saved(epoch, loss=2.5):
        metrics = {"loss": loss, "total_samples": 100 * epoch}
        return save_checkpoint(
            tmp_path / "checkpoints", model=model, recipe_toml=TEXT, epoch=epoch, metrics=metrics, shards="a|b <c>"
        )

    return saved


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def events(tmp_path, kind):
    log = tmp_path / "events.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.fixture
def pusher(tmp_path):
    """Copies to `there`, with a short pause after a failure."""

    def started(target, pause=0.05):
        return Pusher(
            target,
            "there",
            checkpoints=tmp_path / "checkpoints",
            card=lambda path: f"card of {path.name}",
            events=EventLog(tmp_path / "events.jsonl"),
            first_pause_seconds=pause,
        )

    return started


def test_each_new_checkpoint_is_copied_and_old_ones_go(tmp_path, save, pusher):
    there = tmp_path / "there"
    first = save(10)
    pushing = pusher(open_target(str(there), TWO))
    until(lambda: len(events(tmp_path, "pushed")) == 1)
    assert files(there / first.name) == files(first)
    for number, epoch in enumerate((20, 30), start=2):
        path = save(epoch)
        pushing.look()
        until(lambda number=number: len(events(tmp_path, "pushed")) == number)
        assert load_checkpoint(there / path.name).epoch == epoch
    pushing.look()  # nothing new
    assert sorted(path.name for path in there.iterdir()) == ["README.md", "epoch-000020", "epoch-000030"]
    assert (there / "README.md").read_text() == "card of epoch-000030"
    assert [event["to"] for event in events(tmp_path, "pushed")] == ["there"] * 3


def test_what_fails_is_tried_again_with_the_newest_and_nobody_waits(tmp_path, save, pusher):
    """A file lies where the folder was, as when a mounted server is gone."""
    there = tmp_path / "there"
    target = open_target(str(there), TWO)
    there.rmdir()
    there.write_text("in the way")
    save(10)
    began = time.monotonic()
    pushing = pusher(target, pause=0.2)
    for _ in range(100):
        pushing.look()
    assert time.monotonic() - began < 0.2
    until(lambda: len(events(tmp_path, "warning")) >= 3)
    times = [event["time"] for event in events(tmp_path, "warning")]
    assert times[1] - times[0] >= 0.2 and times[2] - times[1] >= 0.4, "the pause doubles"
    assert "epoch-000010 cannot be copied to there: not a directory" in events(tmp_path, "warning")[0]["text"]
    newest = save(20)
    there.unlink()
    until(lambda: events(tmp_path, "pushed"))
    assert [path.name for path in there.iterdir() if path.is_dir()] == [newest.name]


def test_object_storage_has_whole_checkpoints_only_and_old_ones_go(save):
    """fsspec's storage in memory has the calls of the others."""
    target, storage = open_target("memory://bucket/run", TWO), fsspec.filesystem("memory")
    for epoch in (10, 20, 30):
        path = save(epoch)
        target.put(path, f"card {epoch}")
        there = {name.split("/")[-1]: storage.cat_file(name) for name in storage.ls(f"/bucket/run/{path.name}", False)}
        assert there == files(path)
    assert sorted(name.split("/")[-1] for name in storage.ls("/bucket/run", False)) == [
        "README.md",
        "epoch-000020",
        "epoch-000030",
    ]
    assert storage.cat_file("/bucket/run/README.md") == b"card 30"
    order = sorted(storage.ls("/bucket/run/epoch-000030", True), key=lambda entry: entry["created"])
    assert order[-1]["name"].endswith("/checkpoint.json")


PUSH = """
import sys; from pathlib import Path; from training.recipe import MonitorConfig
from training.publish.copies.push import open_target
for address in sys.argv[1].split():
    target = open_target(address, MonitorConfig(keep_last=2, keep_every_epochs=0, keep_best=0))
    for folder in sys.argv[2:]: target.put(Path(folder), f"card of {Path(folder).name}")
"""


@contextmanager
def server(answer):
    """A server that answers each request by `answer(method, address, body) -> (status, content, headers)`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self):
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = unchunked(self.rfile)
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "aws-chunked" in (self.headers.get("Content-Encoding") or ""):
                body = unchunked(io.BytesIO(body))
            status, content, headers = answer(self.command, urlsplit(self.path), body)
            self.send_response(status)
            for name, value in {"Content-Length": len(content), **headers}.items():
                self.send_header(name, str(value))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def log_message(self, *_):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_port}"
    finally:
        running.shutdown()
        running.server_close()


def unchunked(body):
    """The content of a body in HTTP's chunks or AWS's own: size in hex, content; after an empty one come headers."""
    content = b""
    while size := int(body.readline().split(b";")[0], 16):
        content += body.read(size)
        body.readline()
    while body.readline().strip():
        pass
    return content


class Bucket:
    """As much of S3 as an upload needs: objects, their listing, and uploads in parts."""

    def __init__(self):
        self.objects, self._parts = {}, {}

    def answer(self, method, address, body):
        key, query = unquote(address.path.lstrip("/")), parse_qs(address.query, keep_blank_values=True)
        if method == "POST" and "uploads" in query:
            self._parts[key] = {}
            return 200, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>", {}
        if method == "POST" and "delete" in query:
            gone = [f"{key.split('/')[0]}/{name}" for name in re.findall(r"<Key>(.*?)</Key>", body.decode())]
            self.objects = {name: content for name, content in self.objects.items() if name not in gone}
            return 200, b"<DeleteResult></DeleteResult>", {}
        if method == "POST":
            parts = self._parts.pop(key)
            self.objects[key] = b"".join(parts[number] for number in sorted(parts))
            return 200, b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>", {}
        if method == "PUT" and "partNumber" in query:
            self._parts[key][int(query["partNumber"][0])] = body
            return 200, b"", {"ETag": '"x"'}
        if method == "PUT":
            self.objects[key] = body
            return 200, b"", {"ETag": '"x"'}
        if method == "DELETE":
            self.objects.pop(key, None)
            return 204, b"", {}
        if "list-type" in query:
            return 200, self._listing(key.rstrip("/"), query), {"Content-Type": "application/xml"}
        if "/" not in key.rstrip("/"):
            return 200, b"", {}
        if key not in self.objects:
            return 404, b"", {}
        headers = {"ETag": '"x"', "Last-Modified": "Sun, 22 Nov 2026 12:00:00 GMT"}
        if method == "HEAD":
            return 200, b"", {**headers, "Content-Length": len(self.objects[key])}
        return 200, self.objects[key], headers

    def _listing(self, bucket, query):
        prefix, cut = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        found, folders = "", set()
        for name, content in sorted(self.objects.items()):
            name = name.removeprefix(f"{bucket}/")
            rest = name.removeprefix(prefix)
            if not name.startswith(prefix):
                continue
            if cut and cut in rest:
                folders.add(prefix + rest.split(cut)[0] + cut)
            else:
                found += f"<Contents><Key>{name}</Key><Size>{len(content)}</Size></Contents>"
        found += "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in sorted(folders))
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()


class Hub:
    """As much of the Hub as small files need; large ones would go to its storage first, which is not tested here."""

    def __init__(self):
        self.made, self.commits, self.url = [], [], ""

    def answer(self, method, address, body):
        if address.path == "/api/repos/create":
            self.made.append(json.loads(body))
            told = {"url": f"{self.url}/us/demo", "id": "us/demo"}
        elif address.path == "/api/validate-yaml":
            told = {"errors": [], "warnings": []}
        elif address.path == "/api/models/us/demo/preupload/main":
            asked = json.loads(body)["files"]
            told = {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in asked]}
        elif address.path == "/api/models/us/demo/commit/main":
            self.commits.append([json.loads(line) for line in body.splitlines()])
            told = {"success": True, "commitOid": "c", "commitUrl": f"{self.url}/us/demo/commit/c"}
        else:
            return 404, b"{}", {}
        return 200, json.dumps(told).encode(), {}


@pytest.mark.programs
def test_s3_and_the_hub_get_the_same_files_over_http(save):
    """In one program, since loading the libraries takes longer than all else."""
    bucket, hub = Bucket(), Hub()
    paths = [save(epoch) for epoch in (10, 20, 30)]
    with server(bucket.answer) as bucket_url, server(hub.answer) as hub.url:
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
        keys |= {"AWS_ENDPOINT_URL": bucket_url, "AWS_EC2_METADATA_DISABLED": "true"}
        keys |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_x", "HF_HUB_DISABLE_TELEMETRY": "1"}
        command = [sys.executable, "-c", PUSH, "s3://bucket/run hf://us/demo", *paths]
        done = run_program(command, env={**os.environ, **keys}, within=120)
    assert done.returncode == 0, done.stderr
    there = {name: content for name, content in bucket.objects.items() if not name.endswith("/")}
    wanted = {f"bucket/run/{path.name}/{name}": content for path in paths[1:] for name, content in files(path).items()}
    assert there == {**wanted, "bucket/run/README.md": b"card of epoch-000030"}
    assert {(one["organization"], one["name"]) for one in hub.made} == {("us", "demo")}
    assert len(hub.commits) == 3
    for path, (head, *sent) in zip(paths, hub.commits, strict=True):
        assert head["value"]["summary"] == f"Checkpoint {path.name}"
        there = {line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in sent}
        assert there == {**files(path), "README.md": f"card of {path.name}".encode()}


@pytest.mark.parametrize(
    "address, words",
    [("hf://name", "names no repository"), ("nothing://x", "Protocol not known"), ("gs://x/y", "gcsfs")],
)
def test_addresses_that_name_no_place_are_refused(address, words):
    with pytest.raises(BadInput, match=words):
        open_target(address, TWO)


def test_a_folder_that_cannot_be_made_is_refused_at_the_start(tmp_path):
    Path(tmp_path, "file").write_text("")
    with pytest.raises(BadInput, match="Checkpoints"):
        open_target(str(tmp_path / "file" / "there"), TWO)


def test_the_card_has_a_header_numbers_of_the_history_and_limits(tmp_path, save):
    history = History(tmp_path / "history.sqlite", run_id="demo", recipe_digest="d", expiration_seconds=30)
    history.observe([Report(name="al & <b>|`x`\n# heading", peer_id="B"), Report()])
    history.observe([Report(epoch=1, loss=3.0, samples=75, time=1)])
    history.observe([Report(name="al & <b>|`x`\n# heading", peer_id="B", epoch=1, loss=3.0, samples=25, time=1)])
    text = model_card(save(40), RUN, history)
    assert "volunteers train together over the Internet" in text
    history.set_run_value("document", json.dumps({"one_machine": True}))
    assert "volunteers' programs on one computer train together" in model_card(save(40), RUN, history)
    history.close()
    _, header, body = text.split("---\n", 2)
    assert yaml.safe_load(header)["pipeline_tag"] == "text-to-image"
    assert "license" not in yaml.safe_load(header)
    assert f"| Epoch (updates of the weights) | 40 of {RUN.schedule.total_epochs} |" in body
    assert "| Training loss at this epoch | 2.5 nats per token, of pictures and captions with their weights |" in body
    assert "| Samples that volunteers have contributed | 4,000 |" in body
    assert "| Training data | a\\|b \\<c\\> |" in body
    assert "- ada: 75 samples (75.0%)\n- al \\& \\<b\\>\\|\\`x\\` \\# heading: 25 samples (25.0%)\n" in body
    assert "The training is not finished" in body
    assert "contains no evaluation" in body
    assert [line for line in body.splitlines() if line.startswith("#")] == [
        f"# {RUN.title}",
        "## Volunteers",
        "## Use",
        "## Limits",
    ]


def test_the_card_says_what_a_run_of_text_or_of_adapters_makes(tmp_path, save):
    history = History(tmp_path / "history.sqlite", run_id="demo", recipe_digest="d", expiration_seconds=30)
    checkpoint = save(40)
    for recipe, weights, base in (
        ("stories", "a language model", None),
        ("lora-7b", "adapters (LoRA) for a language model", "mistralai/Mistral-7B-v0.3"),
    ):
        _, header, body = model_card(checkpoint, load_recipe(recipe), history).split("---\n", 2)
        assert yaml.safe_load(header)["pipeline_tag"] == "text-generation"
        assert yaml.safe_load(header).get("base_model") == base
        assert f"Weights of {weights} that volunteers train" in body
        assert "the run's tokenizer" in body and "2.5 nats per token |" in body
        assert ("frozen weights of mistralai/Mistral-7B-v0.3" in body) == (base is not None)
        assert not any(word in body for word in ("picture", "image", "draws")), body
    history.close()
