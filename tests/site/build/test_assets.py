"""Fetching and making what the site serves itself: once, and with a word when it fails."""

from __future__ import annotations

import hashlib

import pytest

from builder.assets import browser_files


def test_npm_does_not_run_where_the_lock_has_not_changed(tmp_path):
    (tmp_path / "package-lock.json").write_text("{}")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / ".fetched-lock").write_text(hashlib.sha256(b"{}").hexdigest())
    said = []
    assert browser_files.fetch_packages(tmp_path, say=said.append) == tmp_path / "node_modules"
    assert said == []




def test_a_site_without_made_files_says_what_makes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(browser_files, "BUILT", tmp_path)
    with pytest.raises(browser_files.BuildFailed, match=r"python site/build\.py"):
        browser_files.load_assets()
