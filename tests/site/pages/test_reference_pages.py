"""The reference pages say all that the code and the records say."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import griffe
import hivemind
import pytest
import typer

import calculator
from benchmarks.swarm import swarm
from builder import benchmark_records
from builder.folders import RESULTS
from builder.markup import links, paths
from builder.reference import claims, docstrings, hivemind_faults, messages, performance
from tests.support.programs import run_program
from training.cli import COMMANDS, build_app

pytestmark = pytest.mark.browser


def test_every_command_stands_there_with_every_flag(open_page):
    page = open_page("reference/commands/", scripts=False)
    group = typer.main.get_command(build_app())
    assert list(group.commands) == list(COMMANDS)
    for name, command in group.commands.items():
        shown = page.get_by_role("region", name=f"Flags of {name}", exact=True).locator("tbody th").all_text_contents()
        assert len(shown) == len(command.params)
        flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("-")}
        assert flags <= set(" ".join(shown).replace(",", " ").split()), name


def test_a_number_as_a_default_is_shown_as_one(open_page):
    page = open_page("reference/commands/", scripts=False)
    (default,) = page.locator("tr", has=page.get_by_text("--gpus N", exact=True)).locator("td").last.all_text_contents()
    assert default.strip() == "1"


def test_the_calculators_public_names_stand_there(open_page):
    page = open_page("reference/api/", scripts=False)
    headings = set(page.locator("main h3").all_inner_texts())
    for name in set(calculator.__all__) - {"PRESETS"}:
        assert any(heading.split("(")[0].strip() == name for heading in headings), (name, headings)
    assert page.locator("blockquote").count() == 0, "examples stand as quotations"
    assert page.get_by_text("Sequences in one forward pass").count() or page.locator(".doc-attribute").count() > 30


@pytest.mark.parametrize("module", [docstrings, links, paths], ids=lambda module: module.__name__)
def test_examples_of_the_builder_hold(module):
    held = doctest.testmod(module)
    assert held.failed == 0 < held.attempted


def test_a_docstring_that_the_page_cannot_show_is_named(tmp_path):
    (tmp_path / "odd_example.py").write_text('def odd():\n    """Odd.\n\n    Returns:\n        One.\n    """\n')
    odd = griffe.load("odd_example", search_paths=[tmp_path], docstring_parser="google")["odd"]
    with pytest.raises(ValueError, match=r"odd_example\.odd has a section 'returns'"):
        list(docstrings._sections(odd))


def test_the_mode_of_a_swarms_figure_is_named_with_the_recipes_that_set_it():
    ours = {
        words.removeprefix("ours, "): swarm.MODES.get(stack, "synchronous") for stack, words in swarm.STACKS.items()
    }
    assert ours == performance.MODES | {swarm.STACKS["2021"]: "synchronous"}
    delayed = performance._mode(performance.main_figure("swarm")["metric"])
    assert "delayed" in delayed and "no recipe" in delayed
    assert "demo" in performance._mode(performance.main_figure("swarm_awaited")["metric"])
    assert not performance._mode(performance.main_figure("model_step")["metric"])


def test_performance_tables_are_the_records(open_page):
    page = open_page("reference/performance/")
    page.locator("main details").evaluate_all("all => all.forEach((one) => (one.open = true))")
    summary = page.get_by_role("region", name="Main figures").locator("tbody tr")
    assert summary.count() == len(list(RESULTS.glob("*.json")))
    for path, line in zip(sorted(RESULTS.glob("*.json")), summary.all(), strict=True):
        assert performance.main_figure(path.stem)["metric"] in line.text_content()
    text = page.get_by_role("main").inner_text()
    for path in sorted(RESULTS.glob("*.json")):
        facts = json.loads(path.read_text())
        heading = page.locator(f"#{path.stem.replace('_', '-')}")
        assert heading.count() == 1, path.name
        assert facts["name"] in performance.programs(), f"benchmarks/README.md does not name {facts['name']}.py"
        if path.stem in performance.OTHER_PAGE:
            continue
        title = f"{path.stem.replace('_', ' ').capitalize()}, results"
        rows = page.get_by_role("region", name=title, exact=True).locator("tbody tr")
        ends = "rows => rows.map(({ cells }) => [cells[0].textContent, cells[cells.length - 1].textContent])"
        assert rows.evaluate_all(ends) == [[result["metric"], str(result["runs"])] for result in facts["results"]]
        assert facts["date"] in text


def test_a_record_counts_the_later_commits_to_the_code_that_it_measures(tmp_path, monkeypatch):
    def commit(name):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
        who = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        for words in (["add", name], [*who, "commit", "-q", "-m", name]):
            run_program(["git", *words], cwd=tmp_path)

    monkeypatch.setattr(benchmark_records, "ROOT", tmp_path)
    age = benchmark_records.age.__wrapped__
    assert age("swarm", "swarm") is None, "there is no repository"
    run_program(["git", "init", "-q"], cwd=tmp_path)
    for name in ("training/swarm/before.py", "benchmarks/results/swarm.json", "training/swarm/a.py", "site/b.md"):
        commit(name)
    commit_of_record = benchmark_records._git("rev-parse", "--short", "HEAD~2")
    assert age("swarm", "swarm") == (commit_of_record, 1)
    assert age("swarm", "memory") == (commit_of_record, 0)


def test_every_claim_has_a_test_or_a_record_that_exists(open_page):
    made = [claim for of_page in claims.claims().values() for claim in of_page]
    for claim in made:
        assert claim.get("tests") or claim.get("records"), claim["claim"]
    page = open_page("reference/how-we-know/", scripts=False)
    assert page.locator("table tbody tr").count() == len(made)
    with pytest.raises(ValueError, match="no-such-test"):
        claims.test_link("test_house.py::no-such-test")


def test_every_symptom_has_a_remedy_a_place_that_tells_it_and_a_test(open_page, monkeypatch):
    symptoms = messages.symptoms()
    assert len(symptoms) == 28 and all(one["do"] for one in symptoms)
    assert len({one["test"] for one in symptoms}) == len({one["seen"] for one in symptoms}) == 28
    page = open_page("reference/messages/", scripts=False)
    rows = page.get_by_role("region", name="When something is wrong").locator("tbody tr")
    assert rows.count() == 28
    for wrong in ({"test": "test_house.py::no-such-test"}, {"says": "training/cli.py::no_such_function"}):
        monkeypatch.setattr(messages, "symptoms", lambda wrong=wrong: [symptoms[0] | wrong])
        with pytest.raises(ValueError, match="which does not exist"):
            messages.symptom_table()


def test_every_figure_of_the_dashboard_is_explained(open_page):
    page = open_page("dashboard/", scripts=False)
    labels = page.locator(".tiles dt").all_text_contents()
    columns = page.locator(".board thead th").all_text_contents()
    terms = page.locator(".explained dt").all_text_contents()
    assert len(terms) == len(labels) + len(columns) >= 12
    assert all(label.startswith(term) for label, term in zip(labels, terms, strict=False))
    assert all(column in term for column, term in zip(columns, terms[len(labels) :], strict=True))
    assert all(text.strip() for text in page.locator(".explained dd").all_text_contents())


def test_every_fault_of_hivemind_is_there_and_held_by_a_test(open_page):
    faults = [fault for section in hivemind_faults.sections().values() for fault in section]
    package = Path(hivemind.__file__).parent
    for fault in faults:
        assert fault["tests"], fault["happens"]
        files, words = [], []
        for quoted in fault["where"].split("`")[1::2]:
            (files if quoted.endswith(".py") else words).append(quoted)
        assert all(word in (package / file).read_text() for file in files for word in words), fault["where"]
        assert files and all((package / file).is_file() for file in files)
    page = open_page("reference/hivemind/", scripts=False)
    assert page.locator("article li:has(small)").count() == len(faults)
    shown = page.locator("article").inner_text()
    assert all(word in shown for fault in faults for word in fault["where"].split("`")[1::2])
