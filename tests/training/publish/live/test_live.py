"""The live API over real HTTP: documents, recipe, shards, site; and the same as static files."""

from __future__ import annotations

import json
import socket
import time

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import checks

from tests.support.serving import serving
from tests.training.publish.history.test_history import Clock, Report
from training.errors import TrainingError
from training.publish.history.history import History
from training.publish.live import live
from training.publish.live.rendered import KEPT_SECONDS
from training.publish.showcase import Shown
from training.recipe import load_recipe
from training.tasks.held_out import HeldOut


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def history(tmp_path, clock):
    """A run with three epochs, two volunteers of whom one has left, and one snapshot."""
    run = load_recipe("demo")
    history = History(
        tmp_path / "history.sqlite", run_id="demo", recipe_digest=run.digest, expiration_seconds=30, clock=clock
    )
    live.store_run(
        history,
        run,
        'run_id = "demo"\n',
        initial_peers=["/ip4/127.0.0.1/tcp/1/p2p/Q"],
        join_command="training-transformers-together join https://run.example",
        parameters=123,
    )
    history.observe([Report(), Report(name="al & <b>", peer_id="B")])
    for epoch in (1, 2, 3):
        history.observe([Report(epoch=epoch, loss=3.0 / epoch, samples=10 * epoch, time=epoch)])
        if epoch == 1:
            history.observe([Report(name="al & <b>", peer_id="B", epoch=1, samples=10, time=1)])
        clock.now += 20
    history.observe([Report(epoch=3, loss=1.0, samples=30, time=9)])
    history.add_held_out(2, HeldOut(loss=1.75, samples=64, tokens=8128))
    history.add_clip_score(2, 0.25)
    history.add_snapshot(2, [Shown(prompt="a red circle", file="000002/0.png", shape=True, colour=False)])
    (tmp_path / "pictures" / "000002").mkdir(parents=True)
    (tmp_path / "pictures" / "000002" / "0.png").write_bytes(b"\x89PNG picture")
    yield history
    history.close()


@pytest.fixture
def address(tmp_path, history, clock):
    """Address of a real server over the history, a site and shards."""
    site, shards = tmp_path / "site", tmp_path / "shards"
    for folder in (site / "calculator", shards):
        folder.mkdir(parents=True)
    (site / "index.html").write_text("<h1>home</h1>")
    (site / "calculator" / "index.html").write_text("<h1>calculator</h1>")
    (site / "404.html").write_text("<h1>nothing here</h1>")
    (site / "worker.mjs").write_text("export {}")
    (site / "pyodide.wasm").write_bytes(b"\0asm")
    (shards / "train-00000.parquet").write_bytes(bytes(range(256)))
    (tmp_path / "secret.txt").write_text("secret")
    (shards / "link.txt").symlink_to(tmp_path / "secret.txt")
    app = live.create_app(history, pictures=tmp_path / "pictures", shards=shards, site=site, clock=clock)
    with serving(app) as url:
        yield url


def get(address, path, **headers):
    return httpx.get(address + path, headers=headers, timeout=10)


def test_documents_say_what_was_observed(address):
    documents = {name: get(address, f"/live/{name}.json").json() for name in live.DOCUMENTS}
    run, state = documents["run"], documents["state"]
    assert run["run_id"] == "demo" and run["kind"] == "pictures"
    assert run["join_command"] == "training-transformers-together join https://run.example"
    assert run["total_epochs"] == load_recipe("demo").schedule.total_epochs
    assert run["parameters"] == 123
    assert run["started_at"] == 1000.0
    assert run["prompts"][0] == "a red circle"
    assert state == {
        "time": 1060.0,
        "status": "running",
        "cause": "",
        "remedy": "",
        "epoch": 3,
        "loss": 1.0,
        "samples_per_second": 5.0,
        "active_peers": 1,
        "total_samples": 40,
        "last_epoch_at": 1040.0,
        "updated_every_seconds": live.UPDATED_EVERY_SECONDS,
        "stream": True,
    }
    assert [row["loss"] for row in documents["history"]["epochs"]] == [2.5, 1.5, 1.0]
    assert documents["history"]["held_out"] == [
        {"epoch": 2, "time": 1060.0, "loss": 1.75, "samples": 64, "tokens": 8128, "clip_score": 0.25}
    ]
    assert [branch["left"] for branch in documents["history"]["branches"]] == [[]]
    assert documents["losses"]["peers"] == {"ada": [[1, 3.0], [2, 1.5], [3, 1.0]], "al & <b>": [[1, 2.0]]}
    assert [(row["name"], row["share"], row["active"]) for row in documents["leaderboard"]["volunteers"]] == [
        ("ada", 0.75, True),
        ("al & <b>", 0.25, False),
    ]
    (snapshot,) = documents["pictures"]["snapshots"]
    (picture,) = snapshot["pictures"]
    assert picture == {
        "prompt": "a red circle",
        "file": "/live/pictures/000002/0.png",
        "shape": True,
        "colour": False,
    }
    assert [event["kind"] for event in documents["events"]["events"]] == ["joined", "joined", "left"]


def test_pages_of_other_sites_may_read_the_run_and_its_clock_and_nothing_else(address):
    for path in ("/live/run.json", "/live/state.json", "/live/pictures/000002/0.png", "/live/nothing.json"):
        headers = get(address, path, origin="https://site.example").headers
        assert headers["access-control-allow-origin"] == "*" and headers["access-control-expose-headers"] == "date"
        assert "access-control-allow-credentials" not in headers
    for path in ("/", "/recipe.toml", "/shards/train-00000.parquet"):
        assert "access-control-allow-origin" not in get(address, path, origin="https://site.example").headers


def test_old_history_without_a_monitor_state_is_exported(history):
    assert live.state_document(history, now=0, live=False)["status"] == "stopped"


def test_history_since(address):
    news = get(address, "/live/history.json?since=2").json()
    assert [row["epoch"] for row in news["epochs"]] == [3]
    assert [row["epoch"] for row in news["held_out"]] == [2], "it was measured when the run was beyond epoch 2"
    assert get(address, "/live/history.json?since=x").status_code == 422


def test_parts_of_long_documents(history, address):
    for epoch in range(4, 1004):
        history.observe([Report(epoch=epoch, loss=1.0, samples=10 * epoch, time=100 + epoch)])
    whole = get(address, "/live/history.json").json()["epochs"]
    thin = get(address, "/live/history.json?points=10").json()["epochs"]
    assert thin[-500:] == whole[-500:]
    assert 10 <= len(thin) - 500 <= 11
    assert sum(row["samples"] for row in thin) == sum(row["samples"] for row in whole)
    assert thin[0]["epoch"] == sorted(row["epoch"] for row in whole)[len(whole[:-500]) // 10 - 1]
    losses = get(address, "/live/losses.json?most=1&points=5").json()["peers"]
    assert list(losses) == ["ada"]
    assert len(losses["ada"]) <= 6
    assert get(address, "/live/losses.json?most=1&since=1001").json()["peers"] == {"ada": [[1002, 1.0], [1003, 1.0]]}
    page = get(address, "/live/leaderboard.json?most=1&offset=1").json()
    assert ([one["name"] for one in page["volunteers"]], page["total"]) == (["al & <b>"], 2)
    assert page["volunteers"][0]["share"] == pytest.approx(10 / (10 + 10 * 1003))
    for path in ("losses.json?most=0", "leaderboard.json?offset=-1", "history.json?points=x"):
        assert get(address, f"/live/{path}").status_code == 422


def test_long_documents_are_compressed(address, history):
    for epoch in range(4, 60):
        history.observe([Report(epoch=epoch, loss=1.0, samples=10 * epoch, time=100 + epoch)])
    packed = get(address, "/live/history.json")
    plain = get(address, "/live/history.json", **{"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.json() == plain.json()
    assert int(packed.headers["content-length"]) < len(plain.content) / 3


def test_new_observation_is_served_within_a_second(address, history):
    get(address, "/live/history.json")
    history.observe([Report(epoch=4, samples=40, time=10)])
    until, epochs = time.monotonic() + 2 * KEPT_SECONDS, []
    while epochs != [1, 2, 3, 4] and time.monotonic() < until:
        epochs = [row["epoch"] for row in get(address, "/live/history.json").json()["epochs"]]
    assert epochs == [1, 2, 3, 4]


def test_unchanged_document_is_not_sent_again(address):
    first = get(address, "/live/leaderboard.json")
    again = get(address, "/live/leaderboard.json", **{"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == "no-cache"


def test_types_pages_and_errors(address):
    expected = {
        "/": (200, "text/html"),
        "/calculator/": (200, "text/html"),
        "/worker.mjs": (200, "text/javascript"),
        "/pyodide.wasm": (200, "application/wasm"),
        "/recipe.toml": (200, "text/plain"),
        "/live/pictures/000002/0.png": (200, "image/png"),
        "/live/nothing.json": (404, "application/json"),
        "/nowhere/": (404, "text/html"),
    }
    seen = {path: get(address, path) for path in expected}
    types = {path: (r.status_code, r.headers["content-type"].split(";")[0]) for path, r in seen.items()}
    assert types == expected
    assert get(address, "/shards/").status_code == 404
    assert "nothing here" in seen["/nowhere/"].text
    assert all(response.headers["x-content-type-options"] == "nosniff" for response in seen.values())


@pytest.mark.parametrize(
    "path",
    [
        "/shards/../secret.txt",
        "/shards/%2e%2e/secret.txt",
        "/shards/..%2fsecret.txt",
        "/shards/link.txt",
        "/live/pictures/../../secret.txt",
        "/live/pictures/%2e%2e/history.sqlite",
        "/../secret.txt",
        "//etc/passwd",
    ],
)
def test_nothing_outside_the_folders_is_served(address, path):
    """Over a raw socket: a client library would tidy the path."""
    host, port = address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.split(b" ")[1] in (b"404", b"400")
    assert b"secret" not in answer
    assert b"root:" not in answer


def test_export_equals_live(address, history, tmp_path, clock):
    """A finished run as static files says the same, but that nobody is there any more."""
    live.export(history, tmp_path / "export", pictures=tmp_path / "pictures", clock=clock)
    exported = {name: json.loads((tmp_path / "export/live" / f"{name}.json").read_bytes()) for name in live.DOCUMENTS}
    served = {name: get(address, f"/live/{name}.json").json() for name in live.DOCUMENTS}
    served["run"] |= {"initial_peers": [], "join_command": ""}
    served["state"] |= {"status": "stopped", "active_peers": 0, "samples_per_second": None, "stream": False}
    for words in ("cause", "remedy"):
        served["state"][words] = exported["state"][words]
    assert (
        "This is a copy of the run, made on 1 January 1970 at 00:17 UTC while its monitor ran"
        in exported["state"]["cause"]
    )
    served["leaderboard"]["volunteers"][0] |= {"active": False, "samples_per_second": None}
    assert exported == served
    for path in ("recipe.toml", "live/pictures/000002/0.png"):
        assert (tmp_path / "export" / path).read_bytes() == get(address, f"/{path}").content


def test_status_follows_the_run(history, clock):
    assert live.state_document(history, now=0)["status"] == "running"
    clock.now += 100
    history.observe([])
    assert live.state_document(history, now=0)["status"] == "waiting"
    history.observe([Report(epoch=load_recipe("demo").schedule.total_epochs, samples=50, time=20)])
    assert live.state_document(history, now=0)["status"] == "finished"
    assert live.state_document(history, now=0, live=False)["status"] == "finished"


def test_empty_run_has_every_document(tmp_path):
    run = load_recipe("demo")
    history = History(tmp_path / "empty.sqlite", run_id="demo", recipe_digest=run.digest, expiration_seconds=30)
    with pytest.raises(TrainingError, match="start its monitor"):
        live.run_document(history)
    live.store_run(history, run, "", initial_peers=[], join_command="", parameters=0)
    documents = {name: live.compute_document(name, history, now=5.0) for name in live.DOCUMENTS}
    assert documents["state"]["status"] == "waiting"
    assert documents["state"]["epoch"] is None
    assert (
        documents["history"]["epochs"] == documents["history"]["held_out"] == []
        and len(documents["history"]["branches"]) == 1
    )
    assert documents["leaderboard"] == {
        "volunteers": [], "hours": None, "total": 0, "contributors": 0, "least_seconds": 600
    }  # fmt: skip
    assert all(live.render(document) for document in documents.values())
    history.close()


def described(name, where, kind):
    return {"name": name, "in": where, "required": where == "path", "schema": kind}


def operation(*parameters, answers=(200, 404), json_too=()):
    """A GET of the description below; `json_too` are the statuses whose answer is a JSON object."""
    content = {"content": {"application/json": {"schema": {"type": "object"}}}}
    responses = {str(status): {"description": "", **(content if status in json_too else {})} for status in answers}
    return {"get": {"parameters": list(parameters), "responses": responses}}


WORDS = {"type": "string", "maxLength": 60}
NUMBERS = [described(name, "query", {"type": "integer", "minimum": least}) for name, least in live.LEAST.items()]
RANGES = described("Range", "header", WORDS), described("If-None-Match", "header", WORDS)
DESCRIPTION = {
    "openapi": "3.1.0",
    "info": {"title": "the live API", "version": "1"},
    "paths": {
        "/live/{name}.json": operation(
            described("name", "path", {"enum": [*live.DOCUMENTS, "x"]}),
            *NUMBERS,
            *RANGES,
            answers=(200, 304, 404, 422),
            json_too=(200, 422),
        ),
        **{
            f"/live/volunteers/{{page}}.{kind}": operation(
                described("page", "path", {"anyOf": [{"type": "string", "pattern": "^[0-9a-f]{16}$"}, WORDS]}),
                *RANGES,
                answers=(200, 304, 404),
            )
            for kind in ("json", "svg")
        },
        "/recipe.toml": operation(*RANGES, answers=(200,)),
        "/live/pictures/{file}": operation(
            described("file", "path", WORDS), *RANGES, answers=(200, 206, 304, 404, 416)
        ),
        "/shards/{file}": operation(
            described("file", "path", {"anyOf": [{"const": "train-00000.parquet"}, WORDS]}),
            *RANGES,
            answers=(200, 206, 304, 400, 404, 416),
        ),
    },
}
"""By hand: the documents have routes of Starlette's, which FastAPI describes none of."""
PROMISED = [checks.not_a_server_error, checks.status_code_conformance, checks.response_schema_conformance]


@pytest.mark.parametrize("path", DESCRIPTION["paths"])
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.name)
def test_no_request_breaks_the_api(address, path, mode):
    """Requests that schemathesis draws from the description, and such as are against it."""
    drawn = schemathesis.openapi.from_dict(DESCRIPTION)[path]["GET"].as_strategy(generation_mode=mode)

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(drawn)
    def ask(case):
        case.call_and_validate(base_url=address, checks=PROMISED, timeout=20)

    ask()
