"""Texts of other peers in messages: a peer may send any bytes, and they reach terminals and logs."""

from __future__ import annotations

from itertools import islice

LONGEST_QUOTE = 200
"""Most characters of a quoted text; as long as a sentence."""


def quoted(text: str) -> str:
    r"""Returns the first `LONGEST_QUOTE` printable characters of a text, in one line.

    Control characters, which would command the terminal, are left out, and so are characters that are invisible or
    change the direction of the text around them. Names and other records with such characters are refused
    (`metrics.PLAIN`).

    >>> quoted("no room\n\x1b[2Jtry later")
    'no room [2Jtry later'
    """
    return "".join(islice(filter(str.isprintable, " ".join(text.split())), LONGEST_QUOTE)).strip()
