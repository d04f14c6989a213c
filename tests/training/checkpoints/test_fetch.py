"""A checkpoint comes whole from a monitor's own server, over real HTTP, whatever breaks on the way."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.support.serving import serving
from training.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from training.checkpoints.fetch import fetch_latest
from training.checkpoints.serve.offered import checkpoint_routes
from training.errors import BadInput, TrainingError
from training.model.transformer import build_model
from training.recipe import RECIPES, load_recipe, parse_recipe
from training.storage import remote
from training.storage.remote import RefusedAddress, check_redirect

RECIPE = (RECIPES / "demo.toml").read_text()
RUN = load_recipe("demo")
OTHER = RECIPE.replace("image_grid = 8", "image_grid = 8\nshift_tokens = false")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Checkpoints of two epochs, made once."""
    folder = tmp_path_factory.mktemp("saved")
    model = build_model(RUN.model, seed=7)
    extra = dict(model.state_dict())
    for epoch in (20, 40):
        save_checkpoint(
            folder, model=model, recipe_toml=RECIPE, epoch=epoch, metrics={}, shards="s", extra_tensors=extra
        )
    return folder


@pytest.fixture
def served(tmp_path, saved):
    """A copy that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "served"))


@contextmanager
def site(folder):
    """Address of a real server of a folder of checkpoints."""
    app = FastAPI()
    app.include_router(checkpoint_routes(folder))
    with serving(app) as url:
        yield url


class Between:
    """A server before another: it passes requests on, and breaks off, redirects or changes what comes back.

    Attributes:
        bytes_before_break: Each answer with a file's content ends after so many bytes.
        ranges: Whether requests for a part of a file are passed on as such.
        moved_to: Where to redirect all requests; None: nowhere.
        asked: Path and range of each request.
    """

    def __init__(self, behind: str, host: str = "127.0.0.1"):
        self.behind, self.asked = behind, []
        self.bytes_before_break, self.ranges, self.moved_to = None, True, None
        self.change = lambda path, body: body
        between = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                between._answer(self)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self.url = f"http://{host}:{self._server.server_port}"

    def _answer(self, request):
        asked = request.headers.get("Range")
        self.asked.append((request.path, asked))
        if self.moved_to is not None:
            request.send_response(302)
            request.send_header("Location", self.moved_to + request.path)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        headers = {"Range": asked} if asked and self.ranges else {}
        answer = httpx.get(self.behind + request.path, headers=headers)
        body = self.change(request.path, answer.content)
        request.send_response(answer.status_code)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        breaks = self.bytes_before_break is not None and request.path.endswith(".safetensors")
        request.wfile.write(body[: self.bytes_before_break] if breaks else body)

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def between(served):
    with site(served) as url, Between(url) as server:
        yield server


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_newest_checkpoint_arrives_whole_and_once(served, tmp_path):
    shown = []
    with site(served) as url:
        index = httpx.get(f"{url}/checkpoints/index.json").json()["checkpoints"]
        path = fetch_latest(url, tmp_path / "mine", recipe=RUN, show=lambda *told: shown.append(told))
        assert path == tmp_path / "mine" / "epoch-000040"
        assert files(path) == files(served / "epoch-000040")
        assert load_checkpoint(path, recipe=RUN).epoch == 40
        assert [entry.name for entry in (tmp_path / "mine").iterdir()] == ["epoch-000040"]
        total = sum(map(len, files(path).values()))
        assert shown[-1] == ("downloading the checkpoint", total, total)
        assert [done for _, done, _ in shown] == sorted(done for _, done, _ in shown)
        shown.clear()
        assert fetch_latest(url, tmp_path / "mine", recipe=RUN, show=lambda *told: shown.append(told)) == path
        assert shown == []
    assert [(entry["name"], entry["epoch"], entry["lineage"]) for entry in index] == [
        ("epoch-000020", 20, None),
        ("epoch-000040", 40, None),
    ]
    assert index[1]["recipe_digest"] == RUN.digest
    assert {name: file["bytes"] for name, file in index[1]["files"].items()} == {
        name: len(content) for name, content in files(path).items()
    }


def test_only_files_of_checkpoints_are_served(served):
    (served.parent / "secret.txt").write_text("secret")
    (served / "epoch-000040" / "notes.txt").write_text("notes")
    with site(served) as url:
        for path in ("../secret.txt", "%2e%2e/secret.txt", "epoch-000040/notes.txt", "epoch-000041/recipe.toml", ""):
            assert httpx.get(f"{url}/checkpoints/{path}").status_code == 404
        part = httpx.get(f"{url}/checkpoints/epoch-000040/recipe.toml", headers={"Range": "bytes=5-9"})
        assert (part.status_code, part.text) == (206, RECIPE[5:10])


def test_a_site_without_a_checkpoint_gives_none(tmp_path):
    with site(tmp_path / "nothing") as url:
        assert fetch_latest(url, tmp_path / "mine", recipe=RUN) is None
        assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_is_resumed(between, tmp_path, monkeypatch, ranges):
    """With ranges, no byte comes twice; without, a long file cannot come, and the error says how far it got."""
    monkeypatch.setattr(remote, "pause_seconds", lambda failures: 0.01)
    between.ranges = ranges
    size = (Path(tmp_path, "served", "epoch-000040", "model.safetensors")).stat().st_size
    between.bytes_before_break = size * 2 // 5
    if not ranges:
        monkeypatch.setattr(remote, "TRIES", 2)
        with pytest.raises(TrainingError, match=r"epoch-000040 .*stopped after [\d,]+ of [\d,]+ bytes"):
            fetch_latest(between.url, tmp_path / "mine", recipe=RUN)
        return
    path = fetch_latest(between.url, tmp_path / "mine", recipe=RUN)
    assert files(path) == files(tmp_path / "served" / "epoch-000040")
    begins = [asked and asked.partition("-")[0] for path, asked in between.asked if path.endswith("model.safetensors")]
    step = between.bytes_before_break
    assert begins == ["bytes=0", f"bytes={step}", f"bytes={2 * step}"]


def test_a_stop_ends_the_download_and_keeps_what_is_there(between, tmp_path):
    class Stop:
        asked = False

        def wait(self, seconds):
            return self.asked

    stop = Stop()

    def show(stage, done, total):
        stop.asked = True

    assert fetch_latest(between.url, tmp_path / "mine", recipe=RUN, stop=stop, show=show) is None
    (partial,) = (tmp_path / "mine").iterdir()
    assert partial.name.startswith(".fetching-epoch-000040-")
    assert sum(path.stat().st_size for path in partial.iterdir()) > 0
    assert fetch_latest(between.url, tmp_path / "mine", recipe=RUN).name == "epoch-000040"


def flip(body):
    return bytes([*body[:1000], body[1000] ^ 1]) + body[1001:]


def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_taken(between, tmp_path):
    between.change = lambda path, body: flip(body) if path.endswith("40/model.safetensors") else body
    path = fetch_latest(between.url, tmp_path / "mine", recipe=RUN)
    assert path.name == "epoch-000020"
    assert files(path) == files(tmp_path / "served" / "epoch-000020")
    between.change = lambda path, body: flip(body) if path.endswith("model.safetensors") else body
    shutil.rmtree(path)
    with pytest.raises(TrainingError, match=r"epoch-000040: model\.safetensors is damaged.*epoch-000020: model"):
        fetch_latest(between.url, tmp_path / "mine", recipe=RUN)
    assert list((tmp_path / "mine").iterdir()) == []


def test_checkpoints_of_another_recipe_are_refused(between, tmp_path):
    with pytest.raises(BadInput, match=f"of the recipe {RUN.digest}, not of demo"):
        fetch_latest(between.url, tmp_path / "mine", recipe=parse_recipe(OTHER))

    def lie(path, body):
        return body.replace(RUN.digest.encode(), parse_recipe(OTHER).digest.encode()) if "index" in path else body

    between.change = lie
    with pytest.raises(TrainingError, match=f"epoch 40 of the recipe {RUN.digest}; the index says"):
        fetch_latest(between.url, tmp_path / "mine", recipe=parse_recipe(OTHER))


def edit(change):
    """What a site says that changes its index so; its files stay as they are."""

    def changed(path, body):
        if "index" not in path:
            return body
        document = json.loads(body)
        change(document["checkpoints"][-1])
        return json.dumps(document).encode()

    return changed


def test_a_checkpoint_too_large_for_the_recipe_is_not_asked_for(between, tmp_path):
    between.change = edit(lambda entry: entry["files"]["model.safetensors"].update(bytes=10**12))
    assert fetch_latest(between.url, tmp_path / "mine", recipe=RUN).name == "epoch-000020"
    assert not [path for path, _ in between.asked if "000040" in path]


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.update(name="../epoch-000040"),
        lambda entry: entry["files"].update({"../evil": entry["files"]["recipe.toml"]}),
        lambda entry: entry.update(epoch=-1),
        lambda entry: entry["files"]["recipe.toml"].update(sha256="x"),
    ],
)
def test_an_index_that_leads_elsewhere_is_refused(between, tmp_path, change):
    between.change = edit(change)
    try:
        assert fetch_latest(between.url, tmp_path / "mine", recipe=RUN).name == "epoch-000020"
    except TrainingError as error:
        assert "not a list of checkpoints" in str(error)
    assert {path.name for path in tmp_path.iterdir()} <= {"served", "mine"}
    assert not [path for path, _ in between.asked if "evil" in path or ".." in path]


def test_only_the_wanted_lineage_is_taken(between, tmp_path):
    """A site that knows no lineage, as before there were any, has checkpoints of all."""
    assert fetch_latest(between.url, tmp_path / "any", recipe=RUN, lineage="a" * 16).name == "epoch-000040"
    between.change = edit(lambda entry: entry.update(lineage="b" * 16))
    assert fetch_latest(between.url, tmp_path / "mine", recipe=RUN, lineage="b" * 16).name == "epoch-000040"
    assert fetch_latest(between.url, tmp_path / "mine", recipe=RUN, lineage="a" * 16) is None


def test_a_site_that_does_not_answer_is_named(tmp_path):
    with pytest.raises(
        TrainingError, match=r"http://127\.0\.0\.1:9/checkpoints/index\.json cannot be read: connection"
    ):
        fetch_latest("http://127.0.0.1:9/", tmp_path, recipe=RUN)
    for address in ("/ip4/127.0.0.1/tcp/1/p2p/Q", "file:///etc"):
        with pytest.raises(BadInput, match="is not the address of a site"):
            fetch_latest(address, tmp_path, recipe=RUN)


def test_redirects_are_followed_within_one_kind_of_network(between, tmp_path):
    with Between(between.url) as first:
        first.moved_to = between.url
        assert fetch_latest(first.url, tmp_path / "mine", recipe=RUN).name == "epoch-000040"
        first.moved_to = "file://"
        with pytest.raises(TrainingError, match=r"less safe|not allowed"):
            fetch_latest(first.url, tmp_path / "other", recipe=RUN)


@pytest.mark.parametrize(
    "target",
    [
        *("http://127.0.0.1:80/", "http://10.1.2.3/", "http://[::1]/", "http://169.254.169.254/", "http://2130706433/"),
        *("http://[::ffff:192.168.1.1]/", "http://[fe80::1]/", "ftp://1.1.1.1/", "file:///etc/passwd"),
        "http://no.invalid/",
    ],
)
def test_a_public_site_cannot_send_us_into_a_private_network(target):
    with pytest.raises(RefusedAddress, match="it is redirected to"):
        check_redirect("http://1.1.1.1/checkpoints/index.json", target)
    check_redirect("http://1.1.1.1/", "https://9.9.9.9/")


def test_a_secure_site_cannot_send_us_to_an_insecure_one():
    with pytest.raises(RefusedAddress, match="less safe"):
        check_redirect("https://1.1.1.1/", "http://1.1.1.1/")
