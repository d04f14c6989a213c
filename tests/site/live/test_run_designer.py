"""The run designer: what it writes is a recipe that starts a run, by scripts and without."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from builder.learn.figures import answer_of
from tests.support.programs import until
from training.recipe import CAUSAL_LM, load_recipe
from training.tasks.known import task_of

pytestmark = pytest.mark.browser

PAGE = "make-your-own-run/"


def downloaded(page, folder):
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download the recipe").click()
    assert waiting.value.suggested_filename == "my-run.toml"
    waiting.value.save_as(folder / "my-run.toml")
    return folder / "my-run.toml"


def caption(page):
    return page.locator("[data-figure=designer] [data-slot=caption]")


def test_a_downloaded_recipe_starts_a_run(open_page, tmp_path, programs):
    """As it comes from the browser, `bootstrap` takes it and prints an address."""
    page = open_page(PAGE)
    page.get_by_label("Model", exact=True).select_option("small")
    page.get_by_role("slider", name="Volunteers: how many").press("ArrowRight")
    wanted = answer_of("designer", {"model": "small", "first_count": "50"})
    expect(caption(page)).to_have_text(wanted["caption"])
    file = downloaded(page, tmp_path)
    assert file.read_text() == wanted["file"]["text"]
    page.locator("summary", has_text="my-run.toml").click()
    expect(page.locator("[data-slot=file-text]")).to_have_text(wanted["file"]["text"].strip())
    command = [sys.executable, "-m", "training", "bootstrap", "--recipe", file, "--state-dir", tmp_path / "run"]
    log = tmp_path / "printed"
    with log.open("w") as printed:
        process = programs.start(command, stdout=printed, stderr=subprocess.STDOUT)
    until(lambda: "/p2p/" in log.read_text() or process.poll() is not None, said=log.read_text)
    assert process.poll() is None and load_recipe(str(file)).run_id in log.read_text()


def test_the_recipe_of_the_values_before_is_not_offered_while_python_computes(open_page):
    """Python is held up here, as it is by a slow network at its start."""
    page = open_page(PAGE)
    held, holding = [], [True]
    page.route(re.compile(r"runtime/|\.whl|\.wasm"), lambda route: held.append(route) if holding else route.continue_())
    page.get_by_label("Model", exact=True).select_option("small")
    link = page.locator("[data-figure=designer] [data-slot=file]")
    expect(link).not_to_have_attribute("href", re.compile("."))
    expect(page.locator("[data-slot=file-text]")).to_contain_text("is being computed")
    holding.clear()
    for route in held:
        route.continue_()
    wanted = answer_of("designer", {"model": "small"})
    expect(page.locator("[data-slot=file-text]")).to_have_text(wanted["file"]["text"].strip())
    expect(link).to_have_attribute("href", re.compile("^data:"))


def test_without_python_no_recipe_is_promised(open_page):
    page = open_page(PAGE)
    page.expected_complaint = "runtime/"
    page.route(re.compile("runtime/"), lambda route: route.abort())
    page.get_by_label("Model", exact=True).select_option("small")
    expect(page.locator("[data-figure=designer]").get_by_role("status").first).to_contain_text("Python failed")
    expect(page.locator("[data-figure=designer] [data-slot=file]")).to_be_hidden()
    expect(page.locator("details", has=page.locator("[data-slot=file-text]"))).to_be_hidden()


def test_the_first_recipe_downloads_without_scripts(open_page, tmp_path):
    page = open_page(PAGE, scripts=False)
    file = downloaded(page, tmp_path)
    assert file.read_text() == answer_of("designer", {})["file"]["text"]
    assert load_recipe(str(file)).model == load_recipe("dalle-2021").model.model_copy(update={"text_padding_id": 0})


OF_PICTURES, OF_TEXT = ("Model",), ("Size", "Block length")


def test_the_other_kind_has_its_own_settings_and_gives_a_recipe_of_that_kind(open_page, tmp_path):
    page = open_page(PAGE)
    form = page.locator("[data-figure=designer] form")

    def shown() -> dict[str, bool]:
        fields = {name: form.get_by_label(name, exact=True).is_visible() for name in (*OF_PICTURES, *OF_TEXT)}
        return fields | {"Family": form.get_by_role("group", name="Family").is_visible()}

    pictures = dict.fromkeys(OF_PICTURES, True) | dict.fromkeys((*OF_TEXT, "Family"), False)
    assert shown() == pictures
    form.get_by_role("radio", name="Language model").check()
    assert shown() == {name: not visible for name, visible in pictures.items()}
    form.get_by_role("radio", name="Qwen3").check()
    form.get_by_label("Size", exact=True).select_option("stories")
    form.get_by_label("Block length", exact=True).press("Home")
    wanted = answer_of("designer", {"task": CAUSAL_LM, "family": "qwen3", "size": "stories", "block": "128"})
    expect(caption(page)).to_have_text(wanted["caption"])
    file = downloaded(page, tmp_path)
    assert file.read_text() == wanted["file"]["text"]
    run = load_recipe(str(file))
    assert (run.task, run.model.block_length) == (CAUSAL_LM, 128)
    assert task_of(run).on_paper().network.config.model_type == "qwen3"
    page.locator("[data-figure=designer]").get_by_role("button", name="Start over").click()
    assert shown() == pictures


def test_what_does_not_work_says_so_and_offers_no_recipe(open_page):
    page = open_page(PAGE + "?designer.first_count=10000&designer.second_count=0&designer.hours=24")
    expect(caption(page)).to_contain_text("Not feasible. All peers' progress is one record of the DHT")
    expect(page.get_by_role("link", name="Download the recipe")).to_be_hidden()
    page.locator("[data-figure=designer]").get_by_role("button", name="Start over").click()
    expect(page.get_by_role("link", name="Download the recipe")).to_be_visible()
    expect(caption(page)).to_contain_text("Feasible:")
