"""Links from any page to any other, independent of the generator.

A text writes `site:join/` for the address `join/` below the site's root. When the page is finished, `resolved` replaces
it by a link relative to the page. Relative links in the HTML within Markdown would not do: MkDocs leaves them as they
are, Zensical resolves them from the source file.
"""

from __future__ import annotations

import posixpath
import re

SCHEME = "site:"
# Only at the start of an attribute's value, which is quoted with " or, within another attribute, with &quot;.
_LINK = re.compile(rf'(?:(?<=")|(?<=&quot;)){SCHEME}(?P<target>[^"#?&]*)')


def site_link(target: str) -> str:
    """An address below the site's root, as a text writes it.

    >>> site_link("join/")
    'site:join/'
    """
    return f"{SCHEME}{target}"


def resolved(html: str, address: str) -> str:
    """The page's HTML, with all its `site:` links made relative to its own address.

    >>> resolved('<a href="site:join/#set-up-once">', "challenges/memory/")
    '<a href="../../join/#set-up-once">'
    """
    return _LINK.sub(lambda match: relative(match["target"], address), html)


def relative(target: str, address: str) -> str:
    """The relative link to `target` from the page at `address`; both are relative to the site's root.

    >>> relative("images/a.png", ""), relative("", "join/")
    ('images/a.png', '..')
    """
    link = posixpath.relpath(target or ".", address or ".")
    return f"{link}/" if target.endswith("/") and link != "." else link
