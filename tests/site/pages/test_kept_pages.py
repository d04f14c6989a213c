"""A page that one test after another uses is as new to each."""

from __future__ import annotations

import time

import pytest

from kept_pages import KeptPages

pytestmark = pytest.mark.browser

TRACES = """async () => ({
    stored: [localStorage.length, sessionStorage.length, (await caches.keys()).length, document.cookie],
    seen: [history.length, innerWidth, matchMedia("(prefers-color-scheme: dark)").matches, matchMedia("print").matches],
    moving: matchMedia("(prefers-reduced-motion: reduce)").matches,
})"""
LEAVE_TRACES = """async () => {
    localStorage.setItem("a", "1"); sessionStorage.setItem("a", "1"); document.cookie = "a=1";
    await caches.open("a"); location.hash = "#a"; alert("a");
}"""


@pytest.mark.parametrize("scripts", [True, False])
def test_a_page_with_a_fake_clock_is_not_used_again(chromium, server, scripts):
    kept = KeptPages(chromium)
    first = kept.take(scripts=scripts, width=700, dark=False)
    first.clock.install(time=0)
    first.origin = server.url
    first.goto(server.url + "404.html")
    first.clock.run_for(5000)
    kept.give_back(server.url)
    second = kept.take(scripts=scripts, width=700, dark=False)
    assert second is not first and abs(second.evaluate("Date.now()") / 1000 - time.time()) < 60
    second.context.close()


def test_nothing_of_one_test_is_there_in_the_next(chromium, server):
    kept = KeptPages(chromium)

    def take():
        page = kept.take(scripts=True, width=700, dark=False)
        page.origin = server.url
        page.goto(server.url + "404.html")
        return page

    first = take()
    new = first.evaluate(TRACES)
    first.evaluate(LEAVE_TRACES)
    assert first.complaints == ["dialog: a"]
    first.route("**/*", lambda route: route.abort())
    first.set_viewport_size({"width": 360, "height": 500})
    first.emulate_media(media="print", color_scheme="dark", reduced_motion="no-preference")
    kept.give_back(server.url)
    asked = len(server.requests)
    again = take()
    assert again is first and again.evaluate(TRACES) == new and again.complaints == []
    assert len(server.requests) > asked + 3, "what it loads is not in its cache"
    other = take()
    assert other.context is not again.context
    other.close()
    kept.give_back(server.url)
    for page in {take(), take()}:
        assert not page.is_closed()
        page.context.close()
