"""The join page: each choice gives the builder's command or a reason, the address keeps it, exit codes are right."""

from __future__ import annotations

import html
import json
import re
import sys

import pytest
from playwright.sync_api import expect

from builder.join import choices
from tests.programs import run_program
from training.recipe import load_recipe

pytestmark = pytest.mark.browser

READ_ALL = """() => {
  const form = document.querySelector("[data-slot=form]");
  const values = (name) => [...form.elements[name]].filter((one) => one.value !== "live").map((one) => one.value);
  const set = (name, value) => { [...form.elements[name]].find((one) => one.value === value).checked = true; };
  const slot = (name) => document.querySelector(`[data-slot="${name}"]`);
  const found = [];
  for (const system of values("system")) for (const device of values("device")) for (const link of values("link"))
    for (const recipe of values("recipe")) for (const memory of values(device === "nvidia" ? "gpu" : "ram")) {
      Object.entries({ system, device, link, recipe, [device === "nvidia" ? "gpu" : "ram"]: memory })
        .forEach(([name, value]) => set(name, value));
      form.dispatchEvent(new Event("change"));
      const refused = !slot("refusal").classList.contains("hidden");
      found.push([system, device, link, recipe, memory, slot(refused ? "refusal" : "command").textContent, refused]);
    }
  return found;
}"""


def expected(system: str, device: str, link: str, recipe: str, memory: str) -> tuple[str, bool]:
    """The builder's command, or its reason; and whether it is one."""
    if refusal := choices.refusal(system, device):
        return html.unescape(re.sub("<[^>]+>", "", refusal)), True
    chosen = choices.join_choices()["recipes"][recipe]["machines"][f"{device}-{memory}"]
    if not chosen["samples"]:
        return chosen["refusal"], True
    return choices.command(recipe, chosen["samples"], link=link, kind=device), False


def test_every_choice_gives_the_builders_command_or_its_reason(open_page):
    page = open_page("join/")
    page.wait_for_load_state("networkidle")
    found = page.evaluate(READ_ALL)
    sizes = {kind: sum(machine.kind == kind for machine in choices.machines()) for kind in ("nvidia", "cpu")}
    per_device = sizes["nvidia"] + (len(choices.DEVICE_KINDS) - 1) * sizes["cpu"]
    assert len(found) == len(choices.SYSTEMS) * len(choices.LINKS) * len(choices.RECIPES) * per_device
    for *choice, text, refused in found:
        assert (text, refused) == expected(*choice), choice


def test_choices_are_kept_in_the_address_and_made_by_keyboard(open_page, server):
    page = open_page("join/")
    expect(page.get_by_role("radio", name="Linux")).to_be_checked()
    page.get_by_role("radio", name="Processor only").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("radio", name="NVIDIA GPU", exact=True)).to_be_checked()
    page.get_by_role("radio", name="6 GB", exact=True).check()
    page.get_by_role("radio", name="dalle-2021").check()
    command = page.locator("[data-slot=command]").inner_text()
    assert "--recipe dalle-2021" in command
    expect(page.locator("[data-slot=announce]")).to_have_text(f"The command is now: {command}")
    kept = page.url
    assert "gpu=6" in kept and "recipe=dalle-2021" in kept
    page.goto(server.url + "accuracy/")
    page.goto(kept)
    expect(page.locator("[data-slot=command]")).to_have_text(command)


def test_the_system_is_the_browsers_own(chromium, server):
    for agent, system in (("MacIntel", "macOS"), ("Win32", "Windows with WSL 2")):
        context = chromium.new_context(service_workers="block")
        context.add_init_script(
            f"Object.defineProperty(navigator, 'platform', {{ get: () => '{agent}' }});"
            "Object.defineProperty(navigator, 'userAgentData', { get: () => undefined });"
        )
        page = context.new_page()
        page.goto(server.url + "join/")
        expect(page.get_by_role("radio", name=system)).to_be_checked()
        context.close()


def test_without_scripts_all_commands_stand_in_a_table(open_page):
    page = open_page("join/", scripts=False)
    expect(page.locator("[data-slot=command]")).to_have_text(choices.page_data()["command"])
    expect(page.get_by_role("radio", name="Linux")).to_be_hidden()
    page.get_by_text("All commands as a table").click()
    rows = page.locator("table.commands tbody tr")
    shown = [row.inner_text() for row in rows.all()]
    for name, recipe in choices.join_choices()["recipes"].items():
        for machine in choices.machines():
            chosen = recipe["machines"][machine.key]
            command = choices.command(name, chosen["samples"], link="router", kind=machine.kind)
            assert sum((command if chosen["samples"] else chosen["refusal"]) in text for text in shown) == 1
    assert sum(text.count("join --recipe") for text in shown) <= 4 * len(choices.RECIPES), (
        "machines with one command share a line"
    )


def test_the_notebook_has_the_chosen_command(open_page, built_site, tmp_path):
    made = json.loads((built_site / "notebooks" / "join.ipynb").read_text())
    sources = {cell["id"]: cell["source"] for cell in made["cells"]}
    samples = choices.micro_batch(load_recipe("demo"), choices.DEVICES["t4"])
    assert sources["join"].strip() == "!" + choices.command("demo", samples, link="router").replace(
        ".venv/bin/nox", "python -m nox"
    )
    page = open_page("join/?device=nvidia&gpu=6&recipe=dalle-2021&link=public")
    # Before the script has made this command, the link is to the notebook of everyone.
    expect(page.locator("[data-slot=command]")).to_contain_text("dalle-2021")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Open as a notebook").click()
    saved.value.save_as(tmp_path / "join.ipynb")
    own = {cell["id"]: cell["source"] for cell in json.loads((tmp_path / "join.ipynb").read_text())["cells"]}
    command = page.locator("[data-slot=command]").inner_text()
    assert own["join"] == "!" + command.replace(".venv/bin/nox", "python -m nox") + "\n"
    assert own["code"] == sources["code"]


ADDRESS = "/ip4/127.0.0.1/tcp/9/p2p/QmW5mr225nSLbG3Ph6zfDME9sMcmJxfaLsf1APK2HQy9FD"
WRONG = [
    (["--recipe", "nonesuch", "--initial-peers", ADDRESS], 2),
    (["--recipe", "demo", "--initial-peers", "somewhere", "--shards", "."], 2),
    (["--recipe", "pyproject.toml", "--initial-peers", ADDRESS], 2),
]


@pytest.mark.parametrize("flags, code", WRONG)
def test_what_is_wrong_is_said_in_one_sentence_with_the_exit_code_of_the_page(open_page, flags, code):
    ended = run_program([sys.executable, "-m", "training", "join", *flags, "--dry-run"])
    assert ended.returncode == code and ended.stderr.startswith("Error: ") and "Traceback" not in ended.stderr
    for path in ("join/", "reference/messages/"):
        codes = open_page(path, scripts=False).get_by_role("region", name="Exit codes").locator("tbody th")
        assert codes.all_text_contents() == ["1", "2", "3"]
