"""A volunteer's page over real HTTP: its document and its picture, the leaderboards of periods, and static files."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import httpx
import pytest

from tests.support.serving import serving
from tests.training.publish.history.test_credit import NAMES, Swarm
from training.publish.live import live
from training.publish.live.picture import picture_of
from training.recipe import load_recipe

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</text><script>alert(1)</script>\"'& \ufffe"


@pytest.fixture
def swarm(tmp_path):
    """Ada computed 40 days ago, Alan since; Grace was late."""
    run = load_recipe("demo")
    swarm = Swarm(tmp_path, recipe_digest=run.digest)
    live.store_run(swarm.history, run, "", initial_peers=[], join_command="", parameters=1)
    swarm.begin("ada", "alan", "grace")
    swarm.average(1, ada=500, alan=1, minutes=10)
    swarm.clock.now += 40 * 86400
    swarm.say("grace", 2, missed="late")
    swarm.average(2, ada=300, alan=100)
    yield swarm
    swarm.history.close()


@pytest.fixture
def get(swarm, tmp_path):
    app = live.create_app(swarm.history, pictures=tmp_path, clock=swarm.clock)
    with serving(app) as url:
        yield lambda path: httpx.get(url + path, timeout=10)


def page_of(get, name):
    board = get("/live/leaderboard.json").json()["volunteers"]
    return next(one["page"] for one in board if one["name"] == name)


def test_leaderboards_of_periods(get):
    days = {hours: get(f"/live/leaderboard.json?hours={hours}").json() for hours in (24, 720)}
    whole = get("/live/leaderboard.json").json()
    assert [(one["name"], one["samples"]) for one in days[24]["volunteers"]] == [("ada", 300), ("alan", 100)]
    assert (days[24]["hours"], days[24]["total"], days[24]["least_seconds"]) == (24, 2, 600)
    assert [(one["name"], one["samples"]) for one in whole["volunteers"]] == [("ada", 800), ("alan", 101), ("grace", 0)]
    assert (whole["hours"], whole["total"], whole["contributors"]) == (None, 3, 2)
    for wrong in ("0", "-1", "x", "1e9", "9999999999"):
        assert get(f"/live/leaderboard.json?hours={wrong}").status_code == 422


def test_a_volunteers_document(get, swarm):
    told = get(f"/live/volunteers/{page_of(get, 'ada')}.json").json()
    assert (told["run_id"], told["name"], told["samples"], told["machines"]) == ("demo", "ada", 800, 1)
    assert [(one["hours"], one["samples"], one["rank"]) for one in told["periods"]] == [
        (24, 300, None), (720, 300, None), (None, 800, 1)
    ]  # fmt: skip
    assert [(one["epoch"], one["samples"], one["missed"]) for one in told["recent"]] == [(2, 300, None), (1, 500, None)]
    grace = get(f"/live/volunteers/{page_of(get, 'grace')}.json").json()
    assert grace["missed"] == {"late": 1} and grace["recent"][0]["missed"] == "late"
    assert grace["periods"][2] == {"hours": None, "samples": 0, "seconds": 0.0, "share": 0.0, "rank": None}
    assert not {"peer_id", "id", "volunteer"} & told.keys() and NAMES["ada"] not in str(told)


def test_a_peer_finds_what_is_counted_of_it(get, swarm):
    told = get(f"/live/peers/{NAMES['ada']}.json").json()
    assert told == {"last_seen": swarm.clock.now, "samples": 800, "time": swarm.clock.now}
    for unknown in ("12D3KooWnobody", "%00", "'"):
        assert get(f"/live/peers/{unknown}.json").json() == told | {"last_seen": None, "samples": 0}


@pytest.mark.parametrize("page", ["0" * 16, "a", "..%2f..%2fhistory", "%00", "0" * 17, "A" * 16])
def test_unknown_pages_are_not_found(get, page):
    assert get(f"/live/volunteers/{page}.json").status_code == 404
    assert get(f"/live/volunteers/{page}.svg").status_code == 404


@pytest.mark.parametrize("name", ["ada", HOSTILE, "名前" * 20, "\U0001f600" * 40, "W" * 40, " "])
def test_a_picture_is_an_svg_that_runs_nothing_whatever_the_name(get, swarm, name):
    swarm.say(name, 2, peer_id=NAMES["ada"])
    swarm.observe()
    page = page_of(get, name)
    answer = get(f"/live/volunteers/{page}.svg")
    assert answer.headers["content-type"].startswith("image/svg+xml")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    drawn = ElementTree.fromstring(answer.text)
    assert {one.tag for one in drawn.iter()} <= {f"{SVG}{tag}" for tag in ("svg", "title", "style", "rect", "text")}
    assert not any(key.startswith("on") or "href" in key for one in drawn.iter() for key in one.attrib)
    texts = ["".join(one.itertext()) for one in drawn.iter(f"{SVG}text")]
    assert name.replace("\ufffe", "") in texts and "800" in texts and "1" in texts
    assert len(list(drawn.iter(f"{SVG}rect"))) == 1 + 2  # the ground, and an epoch each


def test_a_picture_of_somebody_without_samples(get):
    answer = get(f"/live/volunteers/{page_of(get, 'grace')}.svg")
    assert "–" in ["".join(one.itertext()) for one in ElementTree.fromstring(answer.text).iter(f"{SVG}text")]


def test_static_files_equal_the_live_ones_and_forget_the_pages_of_before(get, swarm, tmp_path):
    folder = tmp_path / "out"
    live.export(swarm.history, folder, pictures=tmp_path, clock=swarm.clock)
    pages = {path.stem for path in (folder / "live" / "volunteers").iterdir()}
    assert len(pages) == 3
    before = page_of(get, "ada")
    served = get(f"/live/volunteers/{before}.json").json()
    stored = httpx.Response(200, content=(folder / "live" / "volunteers" / f"{before}.json").read_bytes()).json()
    assert stored == served | {"active": False, "samples_per_second": None}
    assert (folder / "live" / "volunteers" / f"{before}.svg").read_text() == picture_of(stored)
    swarm.say("anonymous", 2, peer_id=NAMES["ada"])
    swarm.observe()
    assert get(f"/live/volunteers/{before}.json").status_code == 404
    live.export(swarm.history, folder, pictures=tmp_path, clock=swarm.clock)
    assert {path.stem for path in (folder / "live" / "volunteers").iterdir()} == set(swarm.history.pages())
    assert len(pages & set(swarm.history.pages())) == 2 and before not in swarm.history.pages()
    assert all("ada" not in path.read_text() for path in (folder / "live").rglob("*.json"))
