"""What the build changes in the theme's files makes pages faster, and changes nothing that a page shows."""

from __future__ import annotations

import pytest

from builder.markup.styles import ALL_BOXES, has_tabs, with_boxes, without_tabs
from builder.steps.finish import THEMES_SCRIPT

SIZES = """() => {
    const seen = { elements: 0, boxes: 0, others: [] };
    for (const one of document.querySelectorAll("*")) {
        for (const pseudo of [null, "::before", "::after"]) {
            const style = getComputedStyle(one, pseudo);
            if (pseudo && ["none", "normal"].includes(style.content)) continue;
            seen[pseudo ? "boxes" : "elements"] += 1;
            const wrong = style.boxSizing !== "border-box" && one.tagName !== "HR";
            if (wrong) seen.others.push(one.tagName + (pseudo ?? ""));
        }
    }
    return seen;
}"""


def test_rules_of_content_tabs_go_and_all_others_stay():
    css = (
        '@charset "UTF-8";a{b:c}@media print{.tabbed-set{d:e}f:is(.g,.h){i:j}}'
        ".k>.tabbed-set,.l:is(.m,.n)>o,.p .tabbed-labels{q:r}"
        ".tabbed-set>input:nth-child(2):checked~.tabbed-labels{s:t}u{}"
    )
    assert without_tabs(css) == '@charset "UTF-8";a{b:c}@media print{f:is(.g,.h){i:j}}.l:is(.m,.n)>o{q:r}u{}'
    assert has_tabs('<div class="tabbed-set tabbed-alternate">') and not has_tabs("<p>a tabbed-set</p>")


def test_pseudo_elements_that_are_shown_have_the_size_of_border_boxes():
    css = f'{ALL_BOXES}a:before{{content:"";width:1rem}}a:after{{width:1rem}}b{{content:c}}d::after{{e:f;content:"g"}}'
    assert with_boxes(css) == (
        '*{box-sizing:border-box}a:before{box-sizing:border-box;content:"";width:1rem}a:after{width:1rem}b{content:c}'
        'd::after{box-sizing:border-box;e:f;content:"g"}'
    )


def test_the_site_has_no_tabs_and_no_rule_for_all_pseudo_elements(built_site):
    sheets = {file.name: file.read_text(encoding="utf-8") for file in built_site.rglob("*.css")}
    assert sum("*{box-sizing:border-box}" in css for css in sheets.values()) == 1, (
        "the theme writes its rule in another way"
    )
    assert not [name for name, css in sheets.items() if ".tabbed-" in css or ALL_BOXES in css]


def test_the_themes_script_is_compiled_beside_the_main_thread(built_site):
    """Chromium reads the hint in a script's first line only."""
    (script,) = built_site.glob(THEMES_SCRIPT)
    assert script.read_text(encoding="utf-8").startswith('//# allFunctionsCalledOnLoad\n"use strict";')


@pytest.mark.browser
@pytest.mark.parametrize("address", ["", "calculator/", "dashboard/", "join/", "glossary/", "reference/api/"])
def test_every_box_of_a_page_has_the_size_that_the_theme_says(open_page, address):
    page = open_page(address)
    page.wait_for_load_state("networkidle")
    seen = page.evaluate(SIZES)
    assert seen["elements"] > 300 and seen["boxes"] > 5, "nothing was seen"
    assert seen["others"] == []
