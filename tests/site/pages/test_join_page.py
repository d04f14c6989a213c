"""The join page: each choice gives the builder's command or a reason, the address keeps it, exit codes are right."""

from __future__ import annotations

import html
import json
import re
import shlex
import sys

import pytest
from playwright.sync_api import expect

from builder.join import choices
from builder.steps.fill import repository
from tests.site.live.test_dashboard_page import live_run
from tests.site.pages.test_every_page import violations
from tests.support.programs import run_program
from training.publish.invitation import PROGRAM, join_command
from training.publish.notebook import notebook
from training.recipe import load_recipe

pytestmark = pytest.mark.browser

LIVE = join_command("https://run.example")
SHOWN = LIVE.replace(PROGRAM, choices.PROGRAM)

READ_ALL = """() => {
  const form = document.querySelector("[data-slot=form]");
  const values = (name) => [...form.elements[name]].map((one) => one.value);
  const set = (name, value) => { [...form.elements[name]].find((one) => one.value === value).checked = true; };
  const slot = (name) => document.querySelector(`[data-slot="${name}"]`);
  const found = [];
  for (const system of values("system")) for (const device of values("device"))
    for (const memory of values(device === "nvidia" ? "gpu" : "ram")) {
      Object.entries({ system, device, [device === "nvidia" ? "gpu" : "ram"]: memory })
        .forEach(([name, value]) => set(name, value));
      form.dispatchEvent(new Event("change"));
      const refused = !slot("refusal").classList.contains("hidden");
      found.push([system, device, memory, slot(refused ? "refusal" : "command").textContent, refused]);
    }
  return found;
}"""


def expected(recipe: str, system: str, device: str, memory: str) -> tuple[str, bool]:
    """The run's command with the builder's flags, or the builder's reason; and whether it is one."""
    if refusal := choices.refusal(system, device):
        return html.unescape(re.sub("<[^>]+>", "", refusal)), True
    chosen = choices.join_choices()["recipes"][recipe]["machines"][f"{device}-{memory}"]
    if not chosen["samples"]:
        return chosen["refusal"], True
    return f"{SHOWN} {choices.flags(chosen['samples'], kind=device)}", False


@pytest.fixture
def live(server):
    """A server with a run that newcomers can reach; the test may change its recipe."""
    server.live = live_run(epochs=20)
    server.live["run"] |= {"join_command": LIVE, "recipe_digest": load_recipe("demo").digest}
    return server


@pytest.mark.parametrize("recipe", choices.RECIPES)
def test_every_choice_gives_the_runs_command_with_the_builders_flags_or_the_reason(open_page, live, recipe):
    live.live["run"]["recipe_digest"] = load_recipe(recipe).digest
    page = open_page("join/")
    expect(page.locator("[data-slot=command]")).to_contain_text(SHOWN)
    found = page.evaluate(READ_ALL)
    sizes = {kind: sum(machine.kind == kind for machine in choices.machines()) for kind in ("nvidia", "cpu")}
    per_device = sizes["nvidia"] + (len(choices.DEVICE_KINDS) - 1) * sizes["cpu"]
    assert len(found) == len(choices.SYSTEMS) * per_device
    for *choice, text, refused in found:
        assert (text, refused) == expected(recipe, *choice), choice


@pytest.mark.parametrize("recipe", choices.DEMOS)
def test_without_a_live_run_each_command_starts_a_demo(open_page, recipe):
    page = open_page("join/")
    page.get_by_role("radio", name=f"Demo: {load_recipe(recipe).title}").check()
    expect(page.locator("[data-slot=command]")).to_have_text(choices.DEMOS[recipe])
    expect(page.get_by_role("heading", name="Demo on your machine")).to_be_visible()
    for name in ("Computes with", "Memory of the computer"):
        expect(page.get_by_role("group", name=name)).to_be_hidden()
    page.get_by_role("radio", name="Windows without WSL").check()
    expect(page.locator("[data-slot=refusal]")).to_contain_text("WSL 2")


def test_a_name_is_added_as_the_shell_reads_it(open_page, live):
    page = open_page("join/")
    page.get_by_label("Your name").fill("Ada's laptop")
    expect(page.locator("[data-slot=command]")).to_contain_text("--name")
    words = shlex.split(page.locator("[data-slot=command]").inner_text())
    assert words[-2:] == ["--name", "Ada's laptop"]
    page.get_by_role("radio", name="NVIDIA GPU").check()
    assert violations(page) == []
    page.get_by_role("radio", name="macOS").check()
    expect(page.locator("[data-slot=refusal]")).to_contain_text("CUDA 10.2")
    assert violations(page) == []


def test_no_page_of_a_volunteer_has_a_command_with_gaps(built_site):
    text = re.sub(r"<[^>]+>", "", (built_site / "join" / "index.html").read_text())
    assert not re.search("ADDRESS|YOUR-NAME|CODE", text)


def test_choices_are_kept_in_the_address_and_made_by_keyboard(open_page, live):
    page = open_page("join/")
    expect(page.locator("[data-slot=command]")).to_contain_text(SHOWN)
    expect(page.get_by_role("radio", name="Linux")).to_be_checked()
    page.get_by_role("radio", name="Processor only").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("radio", name="NVIDIA GPU", exact=True)).to_be_checked()
    page.get_by_role("radio", name="6 GB", exact=True).check()
    command = page.locator("[data-slot=command]").inner_text()
    expect(page.locator("[data-slot=announce]")).to_have_text(f"The command is now: {command}")
    kept = page.url
    assert "gpu=6" in kept and "device=nvidia" in kept
    page.goto(live.url + "accuracy/")
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


def test_without_scripts_all_flags_stand_in_a_table(open_page):
    page = open_page("join/", scripts=False)
    expect(page.locator("[data-slot=command]")).to_have_text(choices.page_data()["command"])
    expect(page.get_by_role("radio", name="Linux")).to_be_hidden()
    page.get_by_text("Flags and memory of all machines").click()
    rows = page.locator("table.commands tbody tr")
    shown = [re.split(r"[\t\n]+", row.inner_text()) for row in rows.all()]
    for name, recipe in choices.join_choices()["recipes"].items():
        for machine in choices.machines():
            chosen = recipe["machines"][machine.key]
            told = choices.flags(chosen["samples"], kind=machine.kind)
            told = told if chosen["samples"] else chosen["refusal"]
            assert sum(told in row and name in row for row in shown) == 1
    assert sum("--micro-batch-size" in " ".join(row) for row in shown) <= 4 * len(choices.RECIPES), (
        "machines with the same flags share a line"
    )


def test_the_notebook_names_the_run_and_the_chosen_flags(open_page, live, tmp_path):
    page = open_page("join/?device=nvidia&gpu=6")
    page.get_by_label("Your name").fill("Ada's $1 {laptop}")
    expect(page.locator("[data-slot=command]")).to_contain_text("--name")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Open as a notebook").click()
    saved.value.save_as(tmp_path / "join.ipynb")
    cells = json.loads((tmp_path / "join.ipynb").read_text())["cells"]
    general = json.loads(notebook("colab", source=repository()))["cells"]
    assert [cell for cell in cells if cell["id"] != "run"] == [cell for cell in general if cell["id"] != "run"]
    names: dict[str, str] = {}
    exec(next(cell["source"] for cell in cells if cell["id"] == "run"), names)
    assert names["RUN"] == "https://run.example"
    assert f"{SHOWN} {names['FLAGS']}" == page.locator("[data-slot=command]").inner_text()
    page.get_by_role("radio", name="Demo: ").first.check()
    expect(page.get_by_role("link", name="Open as a notebook")).to_be_hidden()


ADDRESS = "/ip4/127.0.0.1/tcp/9/p2p/QmW5mr225nSLbG3Ph6zfDME9sMcmJxfaLsf1APK2HQy9FD"
WRONG = [
    (["--recipe", "nonesuch", "--initial-peers", ADDRESS], 2),
    (["--recipe", "demo", "--initial-peers", "somewhere", "--shards", "."], 2),
    (["--recipe", "pyproject.toml", "--initial-peers", ADDRESS], 2),
]


@pytest.mark.parametrize("flags, code", WRONG)
def test_what_is_wrong_is_said_in_one_sentence_with_the_exit_code_of_the_page(open_page, flags, code):
    ended = run_program([sys.executable, "-m", "training", "join", *flags, "--dry-run"])
    assert ended.returncode == code and "Traceback" not in ended.stderr
    assert [line for line in ended.stderr.splitlines() if line][1].startswith("Error: ")
    for path in ("taking-part/", "reference/messages/"):
        codes = open_page(path, scripts=False).get_by_role("region", name="Exit codes").locator("tbody th")
        assert codes.all_text_contents() == ["1", "2", "3"]
