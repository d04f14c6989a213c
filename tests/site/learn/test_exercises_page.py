"""The exercises in a browser: readable without scripts, solved by keys, judged by Python, kept, saved and loaded."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from calculator.__main__ import main
from calculator.exercises.catalogue import EXERCISES, FIRST, drawn
from calculator.exercises.exercise import Choice
from calculator.exercises.quantities import UNITS
from calculator.exercises.quiz import exercises_of, variant_of
from tests.site.live.test_calculator_page import ASK_ALL
from tests.site.pages.test_every_page import faults, open_all

pytestmark = pytest.mark.browser


def exercise(page, name: str):
    return page.locator(f'[data-exercise="{name}"]')


def opened(page, name: str):
    """An exercise that the reader unfolds by a key."""
    here = exercise(page, name)
    here.locator("summary").first.focus()
    page.keyboard.press("Enter")
    expect(here.locator("form")).to_be_visible()
    return here


def verdict(here):
    return here.get_by_role("status")


def number_of(name: str, variant: int) -> str:
    answer = drawn(name, variant).answer
    return f"{answer.value / UNITS[answer.unit].size:.9g} {answer.unit}"


def test_every_exercise_is_readable_without_scripts(open_page):
    page = open_page("exercises/", scripts=False)
    assert page.locator("[data-exercise]").count() == len(EXERCISES)
    for name in ("home-link", "failed-check", "restored"):
        here, question = exercise(page, name), drawn(name, FIRST)
        here.locator("summary").first.click()
        assert question.text.replace("`", "")[:60] in here.inner_text()
        here.locator("summary", has_text="Worked solution").click()
        # Playwright's locators by text and role leave out what stands in <noscript>.
        expect(here.locator("strong", has_text=question.remember)).to_be_visible()
        assert here.locator("button").count() == 2
        assert not any(button.is_visible() for button in here.locator("button").all())
    expect(page.get_by_role("button", name="Save progress")).to_be_hidden()


FIELDS = "main [data-exercise] :is(input, textarea, button, pre)"


def test_fields_are_made_as_an_exercise_is_opened(open_page):
    """Chromium lays out each folded field as a page opens: with those of all exercises, for a seventh of a second."""
    page = open_page("exercises/")
    page.wait_for_load_state("networkidle")
    assert page.locator(FIELDS).count() == 0
    assert drawn("home-link", FIRST).text[:60] in exercise(page, "home-link").text_content()
    here = opened(page, "sent-bytes")
    here.locator("summary", has_text="Worked solution").click()
    expect(here.get_by_role("button", name="Copy")).to_be_visible()
    opened(page, "home-link")
    assert page.locator("main form").count() == 2


def test_exercises_are_readable_when_the_sites_script_cannot_be_loaded(open_page):
    page = open_page()
    page.route("**/javascripts/site.mjs*", lambda route: route.abort())
    page.goto(page.url + "exercises/")
    here = opened(page, "failed-check")
    page.complaints.clear()  # The browser itself reports the failed requests that are made here.
    here.locator("summary", has_text="Worked solution").click()
    expect(here.get_by_text(drawn("failed-check", FIRST).remember)).to_be_visible()
    expect(here.get_by_role("button", name="Check")).to_be_hidden()


def test_exercises_are_readable_when_their_own_script_cannot_be_loaded(open_page):
    page = open_page("404.html")
    page.expected_complaint = "ERR_FAILED"
    page.route("**/javascripts/exercises/page.mjs", lambda route: route.abort())
    page.clock.install()
    page.goto(page.url.replace("404.html", "exercises/"))
    again = page.get_by_role("alert").get_by_role("button", name="Reload the page")
    for _ in range(4):
        page.wait_for_load_state("networkidle")
        page.clock.run_for(5000)
    expect(again).to_be_visible()
    here = opened(page, "failed-check")
    here.locator("summary", has_text="Worked solution").click()
    expect(here.get_by_text(drawn("failed-check", FIRST).remember)).to_be_visible()


def test_fields_are_made_on_a_page_that_the_theme_has_swapped_in(open_page):
    page = open_page("challenges/sharding/")
    page.wait_for_load_state("networkidle")
    page.evaluate("window.swapped = true")
    page.get_by_role("link", name="exercises on sharding").click()
    page.wait_for_url("**/exercises/#sharding")
    here = opened(page, "home-link")
    expect(here.get_by_label("Your answer")).to_be_visible()
    assert page.evaluate("window.swapped"), "the page was loaded anew"


def test_all_exercises_are_printed(open_page):
    page = open_page("exercises/")
    page.wait_for_load_state("networkidle")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("main form").count() == len(EXERCISES)
    assert page.locator("main noscript").count() == 0


def test_one_of_each_kind_is_solved_by_keys(open_page):
    page = open_page("exercises/")
    page.wait_for_load_state("networkidle")
    here = opened(page, "home-link")
    here.get_by_label("Your answer").focus()
    page.keyboard.type(f"{drawn('home-link', FIRST).answer.value / 8} s")
    page.keyboard.press("Enter")
    expect(verdict(here)).to_contain_text("Not yet. You have divided bytes by bits")
    page.keyboard.press("Control+A")
    page.keyboard.type(number_of("home-link", FIRST))
    page.keyboard.press("Enter")
    expect(verdict(here)).to_contain_text("Right.")
    here = opened(page, "failed-check")
    options = drawn("failed-check", FIRST).answer.options
    here.get_by_role("radio").first.focus()
    page.keyboard.press("Space")
    for _ in range([option.right for option in options].index(True)):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(verdict(here)).to_contain_text("Right.")
    here = opened(page, "sent-bytes")
    here.get_by_role("textbox").focus()
    page.keyboard.press("Control+End")
    page.keyboard.type("if peers < 2:\nreturn 0\n")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    page.keyboard.type("return size * 2 * (peers - 1) / peers")
    page.keyboard.press("Tab")
    expect(here.get_by_role("button", name="Check")).to_be_focused()
    page.keyboard.press("Enter")
    expect(verdict(here)).to_contain_text("Right.")
    expect(page.locator("[data-slot=total]")).to_have_text(f"You have solved 3 of {len(EXERCISES)}.")
    open_all(page)
    assert faults(page) == []


def test_a_program_without_end_is_ended_and_the_next_is_judged(open_page):
    page = open_page("exercises/#exercise-mean-shift")
    here = exercise(page, "mean-shift")
    field = here.get_by_role("textbox")
    field.fill("def mean_shift(order):\n    while True:\n        pass")
    here.get_by_role("button", name="Check").click()
    expect(verdict(here)).to_contain_text("was ended")
    field.fill(drawn("mean-shift", FIRST).answer.solution)
    here.get_by_role("button", name="Check").click()
    expect(verdict(here)).to_contain_text("Right.")


def test_other_numbers_are_drawn_kept_saved_and_loaded(open_page, tmp_path):
    page = open_page("exercises/#exercise-ring-steps")
    here = exercise(page, "ring-steps")
    first = here.locator("dd").inner_text()
    while here.locator("dd").inner_text() == first:
        here.get_by_role("button", name="Other numbers").click()
        expect(verdict(here)).to_contain_text("have changed")
    expect(here.get_by_role("button", name="Other numbers")).to_be_focused()
    peers = int(here.locator("dd").inner_text())
    here.get_by_label("Your answer").fill(str(2 * peers - 2))
    here.get_by_role("button", name="Check").click()
    expect(verdict(here)).to_contain_text("Right.")
    page.reload()
    expect(here.locator("dd")).to_have_text(str(peers))
    expect(here.locator("[data-slot=state]")).to_have_text("✓ solved")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save progress").click()
    file = tmp_path / "progress.json"
    saved.value.save_as(file)
    assert json.loads(file.read_text())["exercises"]["ring-steps"]["tries"] == 1
    page.get_by_role("button", name="Forget").click()
    expect(here.locator("[data-slot=state]")).to_have_text("")
    for content, message in (("[]", "saved progress"), (file.read_text(), "Loaded")):
        chosen = tmp_path / "chosen.json"
        chosen.write_text(content)
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Load a saved file").click()
        chooser.value.set_files(chosen)
        expect(page.locator("[data-slot=message]")).to_contain_text(message)
    expect(here.locator("[data-slot=state]")).to_have_text("✓ solved")


def test_python_in_the_browser_judges_as_here(open_page, server):
    """All exercises: an import that the trimmed runtime lacks would end as `failed`."""
    asked = []
    for name in EXERCISES:
        answer = drawn(name, 5).answer
        if isinstance(answer, Choice):
            text = str([option.right for option in answer.options].index(True))
        elif hasattr(answer, "solution"):
            text = answer.solution
        else:
            text = f"{answer.value / UNITS.get(answer.unit, UNITS['']).size:.9g}"
        asked.append(("grade", {"name": name, "variant": 5, "answer": text}))
    page = open_page("exercises/")
    runtime = json.loads(page.locator("[data-runtime]").get_attribute("data-runtime"))
    answers = page.evaluate(ASK_ALL, [server.url + "javascripts/python/worker.mjs", runtime, asked])
    judged = {request["name"]: answer for (_, request), answer in zip(asked, answers, strict=True)}
    assert {name: answer for name, answer in judged.items() if not answer.get("right")} == {}


def test_a_reader_takes_part_in_a_study(open_page, tmp_path, capsys):
    for part, known in (("before", 0), ("after", 1)):
        page = open_page(f"reference/study/?study=spring&reader=r01&part={part}")
        page.wait_for_load_state("networkidle")
        page.get_by_role("button", name="I take part").press("Enter")
        expect(page.get_by_role("heading", level=3)).to_have_count(10)
        assert faults(page) == []
        name = exercises_of("spring")[0]
        if known:
            variant = variant_of("spring", "r01", part, name)
            page.locator(f'[name="{name}"]').fill(number_of(name, variant))
        with page.expect_download() as saved:
            page.get_by_role("button", name="Finish").press("Enter")
        saved.value.save_as(tmp_path / saved.value.suggested_filename)
        expect(page.get_by_text("Saved as spring-r01-")).to_be_visible()
    assert main(["study", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["readers"], found["before"], found["after"]) == (1, 0, 1)


def test_a_bad_link_of_a_study_is_refused(open_page):
    page = open_page("reference/study/?study=Spring+1&reader=r01&part=before")
    page.get_by_role("button", name="I take part").click()
    expect(page.get_by_text("The name of a study has")).to_be_visible()


def test_the_page_of_studies_asks_nothing_without_a_link(open_page):
    page = open_page("reference/study/")
    page.wait_for_load_state("networkidle")
    expect(page.get_by_role("button", name="I take part")).to_be_hidden()
