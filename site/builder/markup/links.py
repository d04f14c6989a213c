"""Links from any page to an address of the site, which no generator has to know.

A text writes `site:join/` for an address relative to the site's root; the finished page has a link relative to itself.
Generators do not agree on what a relative link in HTML within Markdown starts from: MkDocs leaves it as it stands,
Zensical takes it for one between source files.
"""

from __future__ import annotations

import posixpath
import re

SCHEME = "site:"
_LINK = re.compile(rf'(?:(?<=")|(?<=&quot;)){SCHEME}(?P<target>[^"#?&]*)')


def site_link(target: str) -> str:
    """How a text names an address.

    >>> site_link("join/")
    'site:join/'
    """
    return f"{SCHEME}{target}"


def resolved(html: str, address: str) -> str:
    """A page with its links relative to itself.

    >>> resolved('<a href="site:join/#set-up-once">', "challenges/memory/")
    '<a href="../../join/#set-up-once">'
    """
    return _LINK.sub(lambda match: relative(match["target"], address), html)


def relative(target: str, address: str) -> str:
    """The link from one address of the site to another, both relative to its root.

    >>> relative("images/a.png", ""), relative("", "join/")
    ('images/a.png', '..')
    """
    link = posixpath.relpath(target or ".", address or ".")
    return f"{link}/" if target.endswith("/") and link != "." else link
