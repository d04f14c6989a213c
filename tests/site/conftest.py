"""The built site, a server that shows it, and a browser that looks at it.

BUILT_SITE names a built site and spares building one; CHROMIUM names the browser's program.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.programs import ROOT, run_program

sys.path += [str(ROOT), str(ROOT / "site"), str(Path(__file__).parent)]

from kept_pages import KeptPages, watch
from site_server import SiteServer

expect.set_options(timeout=20_000)

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the site, as `python site/build.py` makes it."""
    if given := os.environ.get("BUILT_SITE"):
        return Path(given)
    out = tmp_path_factory.mktemp("site") / "public"
    ended = run_program([sys.executable, "site/build.py", "--out", out])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return out


@pytest.fixture
def server(built_site: Path) -> Iterator[SiteServer]:
    """The site at an address of its own, with nothing live."""
    site = SiteServer(built_site)
    yield site
    site.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium: the one named, one found, or Playwright's own.

    It ends with the module: Playwright keeps an event loop running in its thread, in which no later test of this
    process could run one of its own.
    """
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def kept_pages(chromium: Browser) -> KeptPages:
    """Pages that one test after another uses."""
    return KeptPages(chromium)


@pytest.fixture
def open_page(kept_pages: KeptPages, chromium: Browser, server: SiteServer) -> Iterator[Callable[..., Page]]:
    """Opens an address of the site: `open_page("join/", width=360, dark=True, scripts=False)`.

    When the test ends, no page may have asked another origin for anything, nor said an error, nor opened a dialog; a
    test that provokes failed requests takes their messages out of `page.complaints`, or names them in
    `page.expected_complaint` where they may come at any time. With `offline_copy` the page is in a window of its own,
    where the site's service worker runs and the network can be cut.
    """
    contexts: list[BrowserContext] = []
    pages: list[Page] = []

    def open_at(
        address: str = "", *, width: int = 1280, dark: bool = False, scripts: bool = True, offline_copy: bool = False
    ) -> Page:
        if offline_copy:
            contexts.append(chromium.new_context(viewport={"width": width, "height": 800}, reduced_motion="reduce"))
            page = contexts[-1].new_page()
            page.complaints, page.expected_complaint = [], None
            watch(page)
        else:
            page = kept_pages.take(scripts=scripts, width=width, dark=dark)
        page.origin = server.url
        page.set_default_timeout(20_000)
        pages.append(page)
        page.goto(server.url + address)
        return page

    yield open_at
    complaints = [
        complaint
        for page in pages
        for complaint in page.complaints
        if page.expected_complaint is None or page.expected_complaint not in complaint
    ]
    for context in contexts:
        context.close()
    kept_pages.give_back(server.url)
    assert complaints == []
