"""The pages' scripts as they are published: every module in one bundle, and few requests for a page."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from builder.assets import browser_files, scripts
from builder.folders import PAGES, ROOT

SOURCES = PAGES / "javascripts"
MODULE = re.compile(r"^// (site/javascripts/\S+\.mjs)$", re.MULTILINE)
"""esbuild's comment above the text of each module."""


def test_every_module_is_in_exactly_one_bundle(built_site):
    """A module in two bundles would have two states: two workers with Python, for example."""
    bundles = (built_site / "javascripts").rglob("*.mjs")
    published = Counter(module for bundle in bundles for module in MODULE.findall(bundle.read_text(encoding="utf-8")))
    assert published == Counter(file.relative_to(ROOT).as_posix() for file in SOURCES.rglob("*.mjs"))


def test_modules_that_are_loaded_by_their_address_keep_it(built_site):
    entries = scripts.entries(SOURCES)
    assert {"site.mjs", "calculator/page.mjs", "python/worker.mjs", "together/peer.mjs"} <= set(entries)
    assert [entry for entry in entries if not (built_site / "javascripts" / entry).is_file()] == []


@pytest.mark.browser
def test_the_calculator_asks_for_few_scripts(open_page, server):
    page = open_page("calculator/?micro_batch_size=2")
    page.get_by_text("Computed in your browser").wait_for()
    asked = [path for path in server.requests if path.startswith("/javascripts/") and path.endswith(".mjs")]
    assert {"/javascripts/site.mjs", "/javascripts/calculator/page.mjs"} <= set(asked)
    # The page has 25 modules: two entries, the worker, and a file for each set of pages that share some of them.
    assert len(asked) <= 10, asked


def test_an_import_of_a_missing_module_fails_the_build_with_its_name(tmp_path):
    (tmp_path / "calculator").mkdir()
    (tmp_path / "calculator" / "worker.mjs").write_text("")
    (tmp_path / "page.mjs").write_text('import "./missing.mjs";\n')
    (tmp_path / "site.mjs").write_text('import("./page.mjs");\n')
    with pytest.raises(browser_files.BuildFailed, match=r"missing\.mjs"):
        scripts.bundle_scripts(tmp_path, tmp_path / "out")


def test_a_site_without_parts_fails_the_build(tmp_path):
    (tmp_path / "site.mjs").write_text("import(`./page.mjs`);\n")
    with pytest.raises(browser_files.BuildFailed, match="imports no part"):
        scripts.entries(tmp_path)
