"""The list of runs is read as its page describes it, a wrong entry is named, and the site's addresses are known."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from builder.assets.browser_files import BuildFailed
from builder.folders import PAGES, ROOT
from builder.join.runs import listed_runs
from builder.steps import fill


@pytest.fixture
def site(tmp_path):
    """The folder of a site with one record."""
    (tmp_path / "records" / "my-run" / "live").mkdir(parents=True)
    (tmp_path / "records" / "my-run" / "live" / "run.json").write_text("{}")
    return tmp_path


def read(site, entries):
    (site / "runs.json").write_text(json.dumps(entries))
    return listed_runs(site / "runs.json")


def test_the_entry_on_the_page_is_one(site):
    (shown,) = re.findall(r'`(\{"title".*?\})`', (PAGES / "reference" / "servers.md").read_text())
    entries = [json.loads(shown), {"title": "Old", "record": "records/my-run/"}]
    assert read(site, entries) == entries


def test_the_sites_own_list_is_right():
    listed_runs(PAGES / "runs.json")


@pytest.mark.parametrize(
    "entry, said",
    [
        ("https://run.example", "must be an object"),
        ({"title": "A", "url": "https://run.example"}, "must be an object"),
        ({"title": "A", "monitor": 3}, "must be an object"),
        ({"title": "A"}, "needs a title, and a monitor or a record"),
        ({"monitor": "https://run.example"}, "needs a title"),
        ({"title": "A", "monitor": "http://run.example"}, "needs an https address"),
        ({"title": "A", "record": "records/other/"}, "needs as its record"),
        ({"title": "A", "record": "records/my-run"}, "needs as its record"),
    ],
)
def test_a_wrong_entry_is_named_with_the_reason(site, entry, said):
    with pytest.raises(BuildFailed, match=said):
        read(site, [entry])
    with pytest.raises(BuildFailed, match=r"runs\.json is not JSON"):
        (site / "runs.json").write_text("[")
        listed_runs(site / "runs.json")


def test_the_code_is_cloned_from_the_address_in_the_packages_metadata(monkeypatch):
    monkeypatch.delenv("REPO_URL", raising=False)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert fill.repository() == project["urls"]["Repository"]
    monkeypatch.setenv("REPO_URL", "https://host.example/a/copy")
    assert fill.repository() == "https://host.example/a/copy"


def test_a_build_without_its_addresses_says_so_in_one_sentence(monkeypatch):
    for variable in ("SITE_URL", "REPO_URL"):
        monkeypatch.delenv(variable, raising=False)
    here, default = "http://127.0.0.1:8000/", fill.repository()
    assert all(word in fill.unset_addresses(here) for word in ("SITE_URL", here, "REPO_URL", default))
    assert fill.unset_addresses(here).count(". ") == 0
    monkeypatch.setenv("SITE_URL", "https://site.example/")
    assert "SITE_URL" not in fill.unset_addresses("https://site.example/")
    monkeypatch.setenv("REPO_URL", "https://host.example/a/copy")
    assert fill.unset_addresses("https://site.example/") == ""
