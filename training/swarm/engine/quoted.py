"""Words of another peer as a message may quote them: it may send any bytes, and they reach terminals and logs."""

from __future__ import annotations

from itertools import islice

LONGEST_QUOTE = 200
"""Characters; a sentence."""


def quoted(text: str) -> str:
    r"""The first printable characters of a text, in one line.

    Control characters are left out, which would command the terminal, and so is what is invisible or changes the
    direction of the text around it; names and other records with such characters are refused (`metrics.PLAIN`).

    >>> quoted("no room\n\x1b[2Jtry later")
    'no room [2Jtry later'
    """
    return "".join(islice(filter(str.isprintable, " ".join(text.split())), LONGEST_QUOTE)).strip()
