"""No block of code on the site escapes: Python is executed, data is read by its reader, each command is parsed or run.

What the trainer's commands then do is executed in tests/training: the demo's test runs prepare, bootstrap, monitor,
join, generate and evaluate, and tests/site/build/test_join_commands.py runs what the join page shows. The tutorial's blocks
build on each other: tests/site/learn/test_tutorial.py and, for its last section, tests/site/build/test_tutorial_run.py run them in
order. So do those of operate.md and of the two pages in `OPERATING`, which tests/site/pages/test_operate_page.py runs.
"""

from __future__ import annotations

import ast
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from tests.support.installed import SCRIPT
from tests.support.programs import ROOT, run_program
from tests.support.readers import written
from training.cli import build_app
from training.data.sources.kinds import read_captions
from training.recipe import RECIPES

FENCE = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
IN_TEMPLATE = re.compile(r"<pre[^>]*><code[^>]*>([^<{]+)</code>")
SITE = ROOT / "site"
OPERATING = ("operate.md", "reference/servers.md", "reference/members.md")


def blocks() -> Iterator[tuple[str, str, str]]:
    """(place, language, text) of every block in the site's texts and the pieces that they include."""
    for path in sorted(set(SITE.rglob("*.md")) - {SITE / name for name in ("tutorial.md", *OPERATING)}):
        text = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(SITE)}:{line}", match[1], match[2]
    for path in sorted((SITE / "includes").rglob("*.html")):
        for text in IN_TEMPLATE.findall(path.read_text(encoding="utf-8")):
            yield f"{path.name}: {text}", "bash", text


def of_language(language: str) -> list:
    return [pytest.param(text, id=place) for place, known, text in blocks() if known == language]


def test_every_block_is_of_a_language_that_is_tested():
    found = {(place, language) for place, language, _ in blocks()}
    assert len(found) > 10
    assert [one for one in found if one[1] not in ("bash", "python", "json", "toml")] == []


@pytest.mark.programs
@pytest.mark.parametrize("text", of_language("python"))
def test_python_runs(text):
    ended = run_program([sys.executable, "-c", text])
    assert ended.returncode == 0 and ended.stdout, ended.stderr


@pytest.mark.parametrize("text", of_language("json"))
def test_json_lines_are_rows_of_captions(text, tmp_path):
    (tmp_path / "captions.jsonl").write_text(text)
    rows = list(read_captions(tmp_path / "captions.jsonl"))
    assert len(rows) == len(text.strip().splitlines()) and not any(isinstance(row, str) for row in rows)


@pytest.mark.parametrize("text", of_language("toml") or [pytest.param("", id="none")])
def test_toml_is_toml(text):
    tomllib.loads(text)


@pytest.fixture(scope="module")
def commands() -> dict:
    """The trainer's commands by name."""
    return typer.main.get_command(build_app()).commands


@pytest.mark.programs
@pytest.mark.parametrize("text", of_language("bash"))
def test_commands_are_understood(text, commands, tmp_path, monkeypatch):
    """In a folder with the files and folders that the texts speak of."""
    for folder in ("public", "pictures", "shards", "runs/my-run", "runs/demo"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "my-run.toml").write_text((RECIPES / "demo.toml").read_text())
    for name in ("prompts.txt", "captions.jsonl"):
        (tmp_path / name).write_text("a red circle\n")
    (tmp_path / "answers").mkdir()
    written(tmp_path / "answers", {"r01": (3, 7), "r02": (4, 6)})
    monkeypatch.chdir(tmp_path)
    lines = [line.partition("  #")[0].strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        assert understood(line, commands), f"no test knows what to do with {line!r}"


def understood_elsewhere(words: list[str], commands: dict) -> bool:
    """True if a command installs or builds what the repository has, and then joins with flags that exist."""
    if words[:3] == ["sky", "jobs", "launch"]:
        variables = {word.partition("=")[0] for word, flag in zip(words[1:], words, strict=False) if flag == "--env"}
        return variables <= yaml.safe_load((ROOT / words[3]).read_text())["envs"].keys()
    image = "training-together"
    if words[:2] == ["podman", "build"]:
        return (ROOT / words[words.index("--file") + 1]).is_file() and words[words.index("--tag") + 1] == image
    name, *arguments = words[words.index(image if words[0] == "podman" else SCRIPT) + 1 :]
    commands[name].make_context(name, arguments)
    return True


def understood(line: str, commands: dict) -> bool:
    """True if a line of a shell can be run; wrong flags and values raise."""
    if line in ("{{ clone_command }}", "cd training-transformers-together"):
        return True
    if line in ("python3 -m venv .venv", ".venv/bin/pip install -r constraints/nox.txt"):
        return line in (ROOT / ".ci" / "run").read_text()
    words = shlex.split(line)
    if words[0] in ("uvx", "pipx", "podman", "sky"):
        return understood_elsewhere(words, commands)
    program = " ".join(words[:3])
    if program == ".venv/bin/nox -s training" or program == "python -m training":
        name, *arguments = words[4:] if "nox" in program else words[3:]
        if arguments != ["--help"]:
            commands[name].make_context(name, list(arguments))
        return name in commands
    if program == "python -m calculator":
        words = [str(Path(word).resolve()) if word == "answers" else word for word in words]
        ended = run_program([sys.executable, *words[1:]])
        assert ended.returncode == 0 and ended.stdout, ended.stderr
        return True
    if words[:2] == [".venv/bin/nox", "-s"]:
        sessions = functions_of(ROOT / "noxfile.py")
        files = [word for word in words[3:] if "/" in word]
        return words[2] in sessions and all((ROOT / file).exists() for file in files)
    if words[0] == "python" and words[1].startswith("benchmarks/"):
        source = (ROOT / words[1]).read_text()
        return all(f'"{word}"' in source for word in words[2:] if word.startswith("--"))
    return False


def functions_of(path: Path) -> set[str]:
    """Names of a file's functions."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.programs
@pytest.mark.parametrize("line", ["python -m training join --no-such-flag", "python -m calculator gpt2 --no-such-flag"])
def test_a_wrong_command_is_found(line, commands):
    with pytest.raises((Exception, AssertionError), match="no-such-flag"):
        understood(line, commands)
    assert not understood("rm -rf build", commands)
