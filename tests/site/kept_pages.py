"""Pages of the browser that one test after another uses: a new window costs a second of computing, a kept one none.

A page that is handed out is as new: nothing is stored or cached, no request is watched or changed, no history lies
behind it, and its clock is the real one. Each is alone in its context, so that two pages of one test share nothing.
"""

from __future__ import annotations

from playwright.sync_api import Browser, CDPSession, ConsoleMessage, Page

FAKE_CLOCK = "'__pwClock' in globalThis"
"""JavaScript that is true if `page.clock` was used: Playwright then installs an object of this name in each page of the
context."""


class KeptPages:
    """Pages with scripts and pages without, made when none is free."""

    def __init__(self, browser: Browser):
        self._browser = browser
        self._free: dict[bool, list[tuple[Page, CDPSession]]] = {True: [], False: []}
        self._used: list[tuple[bool, Page, CDPSession]] = []

    def take(self, *, scripts: bool, width: int, dark: bool) -> Page:
        """A page as it is when a browser has just been opened."""
        page, tools = self._free[scripts].pop() if self._free[scripts] else self._make(scripts)
        self._used.append((scripts, page, tools))
        page.set_viewport_size({"width": width, "height": 800})
        scheme = "dark" if dark else "light"
        page.emulate_media(media="null", color_scheme=scheme, reduced_motion="reduce")
        page.complaints, page.expected_complaint, page.origin = [], None, ""
        return page

    def give_back(self, origin: str) -> None:
        """Takes all pages back from a test whose site was at `origin`, and leaves no trace of it."""
        for scripts, page, tools in self._used:
            if page.is_closed() or page.context.pages != [page]:
                page.context.close()
                continue
            page.unroute_all(behavior="ignoreErrors")
            page.goto("about:blank")
            if page.evaluate(FAKE_CLOCK):
                page.context.close()  # Playwright cannot give a context its own clock back
                continue
            page.mouse.move(0, 0)
            tools.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
            tools.send("Network.clearBrowserCache")
            tools.send("Page.resetNavigationHistory")
            self._free[scripts].append((page, tools))
        self._used.clear()

    def _make(self, scripts: bool) -> tuple[Page, CDPSession]:
        context = self._browser.new_context(service_workers="block", java_script_enabled=scripts)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        watch(page)
        return page, context.new_cdp_session(page)


def watch(page: Page) -> None:
    """Notes in `page.complaints` each error, each dialog, and each request that leaves `page.origin`.

    Chromium breaks its connections off, the local ones too, when a network interface of the machine comes or goes, as
    those of containers do: that says nothing of the page, which has to cope.
    """
    page.on("request", lambda request: _note_foreign(page, request.url))
    page.on("pageerror", lambda error: page.complaints.append(f"error: {error}"))
    page.on("console", lambda line: _is_error(line) and page.complaints.append(f"console: {line.text}"))
    page.on("dialog", lambda dialog: (page.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))


def _is_error(line: ConsoleMessage) -> bool:
    return line.type == "error" and "net::ERR_NETWORK_CHANGED" not in line.text


def _note_foreign(page: Page, url: str) -> None:
    if not url.startswith((page.origin, "data:", "blob:")):
        page.complaints.append(f"asked another origin: {url}")
