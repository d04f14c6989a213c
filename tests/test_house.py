"""What stands where, and which arrows hold between the rooms."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"calculator", "training", "site", "benchmarks", "tests"}


def imported_modules(path: Path) -> set[str]:
    """First names of what a file imports absolutely."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def files_of(room: str) -> list[Path]:
    found = sorted((ROOT / room).rglob("*.py"))
    assert found, f"{room} has no Python files"
    return found


@pytest.mark.parametrize("path", files_of("calculator"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_calculator_imports_the_standard_library_only(path):
    assert imported_modules(path) <= sys.stdlib_module_names - {"site"} | {"calculator"}


@pytest.mark.parametrize("path", files_of("training"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_training_imports_of_the_rooms_only_the_calculator(path):
    assert imported_modules(path) & ROOMS <= {"training", "calculator"}


def test_commands_do_not_import_each_others_roles():
    roles = {path.stem for path in (ROOT / "training" / "roles").glob("*.py")} - {"__init__"}
    for path in (ROOT / "training" / "roles").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for other in roles - {path.stem}:
            assert f"training.roles.{other}" not in text, f"{path.name} imports the role {other}"


def test_reading_a_recipe_loads_nothing_heavy():
    program = (
        "import sys, training.config as c; c.load_recipe('demo'); "
        "print([heavy for heavy in ('torch', 'hivemind', 'datasets') if heavy in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_help_answers_without_loading_torch():
    program = (
        "import sys, training.cli as c\nsys.argv = ['training', '--help']\n"
        "try: c.main()\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True).returncode == 0


def test_readme_and_ci_run_the_same_test_command():
    command = "python3 -m venv .venv && .venv/bin/pip install nox && .venv/bin/nox -s tests"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
