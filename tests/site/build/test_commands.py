"""Every command that the site shows exists, with every flag it names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from calculator.__main__ import main as calculator
from tests.support.readers import written
from training.cli import build_app
from training.volunteer.manners import keys
from training.volunteer.manners.commands import WORDS
from training.volunteer.manners.sensors import NEVER, RULES, rules_for

SITE = Path(__file__).resolve().parents[3] / "site"
SOURCES = [*SITE.rglob("*.md"), *(SITE / "includes").glob("*.html")]
TRAINER = re.compile(r"(?:python -m training|nox -s training --) ([a-z]+)([^\n<`|]*)")
NOX = re.compile(r"nox -s ([a-z]+)")


def shown(pattern: re.Pattern) -> list[tuple[str, ...]]:
    """All matches in the site's texts."""
    return [
        match if isinstance(match, tuple) else (match,)
        for source in SOURCES
        for match in pattern.findall(source.read_text(encoding="utf-8"))
    ]


@pytest.fixture(scope="module")
def commands() -> dict:
    """The trainer's commands by name."""
    return typer.main.get_command(build_app()).commands


def test_commands_of_the_trainer_take_the_flags_shown(commands):
    found = shown(TRAINER)
    assert {name for name, _ in found} >= {"join", "bootstrap", "monitor", "prepare", "generate", "evaluate"}
    for name, rest in found:
        known = {flag for parameter in commands[name].params for flag in parameter.opts} | {"--help"}
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, f"{name}{rest}"


def test_flags_named_alone_belong_to_join(commands):
    text = (SITE / "taking-part.md").read_text(encoding="utf-8")
    known = {flag for parameter in commands["join"].params for flag in parameter.opts} | {"--help"}
    assert set(re.findall(r"`(--[a-z-]+)", text)) <= known


def test_the_volunteers_page_names_the_keys_commands_and_reasons_that_exist():
    text = (SITE / "taking-part.md").read_text(encoding="utf-8")
    section = text[text.index("## Limits and pauses") : text.index("## Sharing your machine")]
    named = set(re.findall(r"`([a-z]+)`|volunteer ([a-z]+)", section))
    words = {one for pair in named for one in pair if one}
    assert words == {*(key.split()[0] for key in keys.HELP.split(", ")), *WORDS, NEVER}
    (reasons,) = re.findall(r"--pause-when ([a-z,]+)`", section)
    assert set(reasons.split(",")) == RULES.keys() and len(rules_for("battery,heat")) == 2


def test_commands_of_the_calculator_run(capsys, tmp_path):
    """With the files of a study in the folder `answers`."""
    written(tmp_path, {"r01": (3, 7), "r02": (4, 6)})
    found = shown(re.compile(r"python -m calculator ([^\n<`|]+)"))
    assert found
    for (words,) in found:
        assert calculator([str(tmp_path) if word == "answers" else word for word in shlex.split(words)]) == 0, words
        assert capsys.readouterr().out


def test_sessions_of_nox_exist():
    noxfile = (SITE.parent / "noxfile.py").read_text(encoding="utf-8")
    sessions = {name for (name,) in shown(NOX)}
    assert "demo" in sessions
    assert all(re.search(rf"@nox\.session.*\ndef {name}\(", noxfile) for name in sessions), sessions
