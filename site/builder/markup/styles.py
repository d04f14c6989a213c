"""Removes rules from style sheets that cost a browser time on every element of every page, and have no effect here.

A change of colours styles each element anew, in one task; on the dashboard of a large run these are thousands
(benchmarks/page/dashboard.py). Two kinds of the theme's rules took two fifths of its styling:

- 140 rules for content tabs that a browser compares with every element, whatever it is: two of three of all such rules.
- `*, ::before, ::after { box-sizing: inherit }`: it matches the pseudo-elements of all elements, so that a browser
  styles these too, three boxes for one, and then drops all that have no `content`. And Chromium does not share computed
  styles between the cells of a table if a rule says `inherit` of what is not inherited by itself.
"""

from __future__ import annotations

import re

TABS = ".tabbed-"
"""Beginning of the class names of content tabs, and of the parts that a script adds to them."""
RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
COMMA = re.compile(r",(?![^()]*\))")
PSEUDO = re.compile(r":(before|after)\b")
CONTENT = re.compile(r"(?:^|[;\s])content:")
ALL_BOXES = "*,:after,:before{box-sizing:inherit}"
BOXES = "*{box-sizing:border-box}"


def has_tabs(html: str) -> bool:
    """Returns whether a page has content tabs."""
    return 'class="tabbed-' in html


def without_tabs(css: str) -> str:
    """The style sheet without the selectors of content tabs, and without the rules that only these had."""

    def kept(rule: re.Match[str]) -> str:
        selectors, declarations = rule.groups()
        if TABS not in selectors:
            return rule[0]
        left = [selector for selector in COMMA.split(selectors) if TABS not in selector]
        return f"{','.join(left)}{{{declarations}}}" if left else ""

    return RULE.sub(kept, css)


def with_boxes(css: str) -> str:
    """The style sheet with border boxes for all elements, and for those pseudo-elements that have a `content`.

    The theme sets it on the root, from where all inherit it.
    """

    def sized(rule: re.Match[str]) -> str:
        selectors, declarations = rule.groups()
        if not PSEUDO.search(selectors) or not CONTENT.search(declarations):
            return rule[0]
        return f"{selectors}{{box-sizing:border-box;{declarations}}}"

    return RULE.sub(sized, css.replace(ALL_BOXES, BOXES))
