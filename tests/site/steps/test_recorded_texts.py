"""A recorded run of a language model: its pages show texts where others show pictures."""

from __future__ import annotations

import json
import shutil

import jinja2
import pytest

from builder.dashboard.recorded_run import load_recorded, still_pictures
from builder.folders import PAGES
from builder.home import past
from builder.learn import results
from calculator.units import show_count

DOCUMENTS = ("run", "state", "history", "losses", "leaderboard", "pictures")
TEXT = "She opens\n\nthe <b>door</b>."


@pytest.fixture
def recorded(tmp_path):
    """Sources of a site with the recorded run's documents, with a text in the place of each picture."""
    (tmp_path / "live").mkdir()
    for name in DOCUMENTS:
        shutil.copy(PAGES / "live" / f"{name}.json", tmp_path / "live")
    file = tmp_path / "live" / "pictures.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    for snapshot in document["snapshots"]:
        snapshot["pictures"] = [{"prompt": one["prompt"], "text": TEXT, "good": None} for one in snapshot["pictures"]]
    file.write_text(json.dumps(document), encoding="utf-8")
    return tmp_path


def test_the_pages_show_the_texts_of_a_run_that_writes(recorded, monkeypatch):
    data = load_recorded(recorded)
    assert list(still_pictures(recorded)) == []
    loader = jinja2.FileSystemLoader(PAGES / "includes")
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, autoescape=False)
    environment.filters.update(thousands=show_count, url=str)
    environment.globals.update(past=past, run_replay=str)
    for page in ("dashboard.html", "home.html"):
        html = environment.get_template(page).render(made={"recorded": data})
        assert "the &lt;b&gt;door&lt;/b&gt;." in html and "<b>door" not in html and " as drawn at epoch" not in html
    monkeypatch.setattr(results, "PAGES", recorded)
    assert "the &lt;b&gt;door&lt;/b&gt;." in results.gallery() and results.gallery_caption() == ""
