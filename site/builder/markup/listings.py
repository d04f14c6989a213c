"""Makes long lines of code wrap readably: a wrapped line keeps its indent, and a command breaks only between words.

The last step of the build does this to the HTML, so that notebooks and the search index have the plain code.
"""

from __future__ import annotations

import re

UNBROKEN_CHARACTERS = 28
"""Characters of the longest word in running text that fits a phone's column without a break."""

_CODE = re.compile(
    r'(?P<open>(?:<div class="(?P<kind>language-\w+)[^"]*">)?<pre[^>]*>(?:<span></span>)?<code(?P<facts>[^>]*)>)'
    r"(?P<block>.*?)(?P<close></code></pre>)"
    r"|<code>(?P<inline>[^<]*)</code>",
    re.DOTALL,
)
_PIECE = re.compile(r"<[^>]+>|\s+|[^<\s]+")
_BREAKS = re.compile(r"[-/]")
"""Characters after which browsers may break a line; they would break `--dry-run` or a path in the middle."""

NOT_SHELL = ("language-python", "language-json", "language-toml")
"""Languages whose lines may break anywhere; all other code is taken for commands."""


def wrapping(html: str) -> str:
    """The page's HTML with an element around each line of code and each word that must not break, for CSS to style."""
    return _CODE.sub(_rewritten, html)


def _rewritten(match: re.Match) -> str:
    if match["block"] is None:
        return _inline(match["inline"])
    if "file-text" in match["facts"]:  # A script replaces this text, and with it our elements; its lines are short.
        return match[0]
    shell = match["kind"] not in NOT_SHELL
    lines = re.findall(r"[^\n]*\n|[^\n]+", match["block"].rstrip("\n"))
    return match["open"] + "".join(_line(line, shell) for line in lines) + match["close"]


def _line(line: str, shell: bool) -> str:
    """A line as an element. It contains its line break: between two elements, the break would show as an empty line."""
    plain = re.sub("<[^>]+>", "", line)
    indent = len(plain) - len(plain.lstrip(" "))
    style = f' style="--indent:{indent}"' if indent else ""
    return f'<span class="line"{style}>{_words(line) if shell else line}</span>'


def _words(line: str) -> str:
    """Puts each word that a browser might break into an element of its own.

    Blanks inside a highlighted span do not end a word: an element that began inside the span could not end outside it.
    """
    made, word, depth = [], "", 0
    for piece in _PIECE.findall(line):
        if piece.isspace() and not depth:
            made += [_unbroken(word), piece]
            word = ""
            continue
        word += piece
        if piece.startswith("<"):
            depth += -1 if piece.startswith("</") else 1
            # Pygments marks some blanks as such; they too separate words.
            if not depth and re.fullmatch(r'<span class="w">\s*</span>', word):
                made.append(word)
                word = ""
            elif not depth and (blank := re.search(r'<span class="w">\s*</span>$', word)):
                made += [_unbroken(word[: blank.start()]), blank[0]]
                word = ""
    return "".join([*made, _unbroken(word)])


def _unbroken(word: str) -> str:
    return f'<span class="word">{word}</span>' if _BREAKS.search(re.sub("<[^>]+>", "", word)) else word


def _inline(text: str) -> str:
    words = text.split(" ")
    if len(words) == 1:
        return f'<code class="whole">{text}</code>' if _breakable(text) else f"<code>{text}</code>"
    kept = (f'<span class="whole">{word}</span>' if _breakable(word) else word for word in words)
    return f"<code>{' '.join(kept)}</code>"


def _breakable(word: str) -> bool:
    return len(word) <= UNBROKEN_CHARACTERS and _BREAKS.search(word) is not None
