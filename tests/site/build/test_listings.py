"""Code on narrow pages: what is copied stays what it was, commands break between words, Python keeps its indents."""

from __future__ import annotations

import html
import re

import pytest

from builder.markup.listings import wrapping

pytestmark = pytest.mark.browser

SHELL = (
    '<div class="language-bash highlight"><pre><span></span><code>python<span class="w"> </span>-m<span class="w"> '
    '</span>training<span class="w"> </span>generate<span class="w"> </span><span class="s2">"a red-hot circle"</span>'
    '<span class="w"> </span>--checkpoint<span class="w"> </span>runs/my-run\n<span class="nb">cd</span> runs\n</code>'
    "</pre></div>"
)
PYTHON = (
    '<div class="language-python highlight"><pre><span></span><code><span class="k">for</span> x <span '
    'class="ow">in</span>'
    " a:\n    y = x - 1\n\n        deep(y)\n</code></pre></div>"
)


@pytest.mark.parametrize("block", [SHELL, PYTHON, "<p><code>--client-mode</code> <code>join --threads 2</code></p>"])
def test_the_words_stay_what_they_were(block):
    assert plain(wrapping(block)) == plain(block).rstrip("\n")




WRAPPED = """() => [...document.querySelectorAll("main pre .line")].flatMap((line) => {
  const found = [];
  const left = line.getBoundingClientRect().left + parseFloat(getComputedStyle(line).paddingLeft);
  const walker = document.createTreeWalker(line, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    for (const word of text.data.matchAll(/--[a-z-]+/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      found.push([word[0], range.getClientRects().length]);
    }
  }
  return found;
})"""
HANGING = """() => [...document.querySelectorAll("main pre .line")].filter((line) => line.style.cssText).map((line) => {
  const range = document.createRange();
  range.selectNodeContents(line);
  const rects = [...range.getClientRects()].filter((rect) => rect.width);
  const first = Math.min(...rects.map((rect) => rect.top));
  const later = rects.filter((rect) => rect.top > first + 8);
  return [later.length, Math.min(...later.map((rect) => rect.left)) - line.getBoundingClientRect().left];
}).filter(([count]) => count)"""


def test_on_a_phone_no_flag_is_cut_and_no_indent_lost(open_page):
    page = open_page("make-your-own-run/", width=360)
    flags = page.evaluate(WRAPPED)
    assert len(flags) > 15 and [flag for flag, lines in flags if lines > 1] == []
    page = open_page("tutorial/", width=360)
    wrapped = page.evaluate(HANGING)
    assert len(wrapped) > 5
    assert all(left > 30 for _, left in wrapped), "what goes on begins further left than its line"


def plain(text: str) -> str:
    return html.unescape(re.sub("<[^>]+>", "", text))
