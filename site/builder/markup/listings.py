"""Code that stays readable where it wraps: a line's continuation keeps its indent, a command breaks between words only.

Works on finished pages, so that texts, search and notebooks keep the plain code.
"""

from __future__ import annotations

import re

WHOLE = 28
"""Characters of a word in running text that still fit a phone's column unbroken."""

_CODE = re.compile(
    r'(?P<open>(?:<div class="(?P<kind>language-\w+)[^"]*">)?<pre[^>]*>(?:<span></span>)?<code(?P<facts>[^>]*)>)'
    r"(?P<block>.*?)(?P<close></code></pre>)"
    r"|<code>(?P<inline>[^<]*)</code>",
    re.DOTALL,
)
_PIECE = re.compile(r"<[^>]+>|\s+|[^<\s]+")
_BREAKS = re.compile(r"[-/]")
"""Browsers may break a line after these."""

NOT_SHELL = ("language-python", "language-json", "language-toml")


def wrapping(html: str) -> str:
    """The page with its code in lines and its commands in words."""
    return _CODE.sub(_rewritten, html)


def _rewritten(match: re.Match) -> str:
    if match["block"] is None:
        return _inline(match["inline"])
    if "file-text" in match["facts"]:  # a script renews it; its lines are short
        return match[0]
    shell = match["kind"] not in NOT_SHELL
    lines = re.findall(r"[^\n]*\n|[^\n]+", match["block"].rstrip("\n"))
    return match["open"] + "".join(_line(line, shell) for line in lines) + match["close"]


def _line(line: str, shell: bool) -> str:
    """Its end stands in it: between two lines it would be one of its own."""
    plain = re.sub("<[^>]+>", "", line)
    indent = len(plain) - len(plain.lstrip(" "))
    style = f' style="--indent:{indent}"' if indent else ""
    return f'<span class="line"{style}>{_words(line) if shell else line}</span>'


def _words(line: str) -> str:
    """Words at the line's own level that a browser might break, as boxes of their own."""
    made, word, depth = [], "", 0
    for piece in _PIECE.findall(line):
        if piece.isspace() and not depth:
            made += [_box(word), piece]
            word = ""
            continue
        word += piece
        if piece.startswith("<"):
            depth += -1 if piece.startswith("</") else 1
            if not depth and re.fullmatch(r'<span class="w">\s*</span>', word):
                made.append(word)
                word = ""
            elif not depth and (blank := re.search(r'<span class="w">\s*</span>$', word)):
                made += [_box(word[: blank.start()]), blank[0]]
                word = ""
    return "".join([*made, _box(word)])


def _box(word: str) -> str:
    return f'<span class="word">{word}</span>' if _BREAKS.search(re.sub("<[^>]+>", "", word)) else word


def _inline(text: str) -> str:
    words = text.split(" ")
    if len(words) == 1:
        return f'<code class="whole">{text}</code>' if _breakable(text) else f"<code>{text}</code>"
    kept = (f'<span class="whole">{word}</span>' if _breakable(word) else word for word in words)
    return f"<code>{' '.join(kept)}</code>"


def _breakable(word: str) -> bool:
    return len(word) <= WHOLE and _BREAKS.search(word) is not None
