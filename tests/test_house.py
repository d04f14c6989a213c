"""What stands where, and which arrows hold between the rooms."""

import ast
import graphlib
import re
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"calculator", "training", "site", "benchmarks", "tests"}
FOLDERS = ROOMS | {"deploy"}
"""The rooms, and the folder without Python files."""
LONGEST_FUNCTION = 90
"""Lines of code in a function; docstring, comments and empty lines do not count."""
LARGEST_FOLDER = 12
"""Source files in a folder, beside `__init__.py`."""
NOT_SOURCE = {".json", ".md", ".npz", ".png", ".safetensors", ".svg", ".toml", ".txt", ".yml"}
"""Endings of data, recipes, pins and pictures, and of pages: a page's folder is a part of its address."""
SWARM_FLOORS = [
    ["optimizer"],
    ["epoch"],
    ["state"],
    ["round", "run"],
    ["defence"],
    ["peers"],
    ["node"],
    ["engine"],
    ["config"],
]
"""Folders of the swarm, the highest floor first: each imports from lower floors only."""


def files_of(room: str) -> list[Path]:
    found = sorted((ROOT / room).rglob("*.py"))
    assert found, f"{room} has no Python files"
    return found


def place_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_names(path: Path) -> set[str]:
    """Full names of all that a file imports: modules, and what it takes from them.

    Imports inside functions count, and those for type checkers as well.
    """
    names = set()
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            names |= {".".join([*above, *filter(None, [node.module]), alias.name]) for alias in node.names}
    return names


def imported_modules(path: Path) -> set[str]:
    """First names of what a file imports."""
    return {name.split(".")[0] for name in imported_names(path)}


def test_calculator_imports_the_standard_library_only():
    allowed = sys.stdlib_module_names - {"site"} | {"calculator"}
    assert [place_of(path) for path in files_of("calculator") if imported_modules(path) - allowed] == []


def test_training_imports_of_the_rooms_only_the_calculator():
    allowed = {"training", "calculator"}
    assert [place_of(path) for path in files_of("training") if imported_modules(path) & ROOMS - allowed] == []


def test_hivemind_is_imported_by_the_swarm_only():
    files = [path for room in ("calculator", "training", "site") for path in files_of(room)]
    importing = {path for path in files if "hivemind" in imported_modules(path)}
    assert importing, "the test sees no import"
    assert [place_of(path) for path in importing if not place_of(path).startswith("training/swarm/")] == []


def test_no_folder_has_many_files():
    listed = run_program(["git", "ls-files"])
    listed.check_returncode()
    files = [Path(line) for line in listed.stdout.splitlines()]
    sources = [file for file in files if file.suffix not in NOT_SOURCE and file.name != "__init__.py"]
    sizes = Counter(file.parent.as_posix() for file in sources)
    assert {"calculator", "deploy", "site/javascripts", "tests", "training"} <= sizes.keys(), "the test sees no file"
    assert {folder: size for folder, size in sizes.items() if size > LARGEST_FOLDER} == {}


def test_files_import_each_other_in_no_circle():
    """Also within packages."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("site.").removesuffix(".__init__"): path
        for room in ("calculator", "training", "site", "benchmarks")
        for path in files_of(room)
    }
    needs = {}
    for module, path in modules.items():
        names = imported_names(path)
        found = {name if name in modules else name.rpartition(".")[0] for name in names}
        needs[module] = found & modules.keys() - {module}
    assert sum(map(len, needs.values())) > len(modules)
    graphlib.TopologicalSorter(needs).prepare()  # raises CycleError, which names the circle


def test_the_swarms_folders_import_from_lower_floors_only():
    floor_of = {name: floor for floor, names in enumerate(SWARM_FLOORS) for name in names}
    upward, seen = [], 0
    for path in files_of("training/swarm"):
        own = path.relative_to(ROOT / "training" / "swarm").parts[0].removesuffix(".py")
        for name in imported_names(path):
            other = name.removeprefix("training.swarm.").split(".")[0]
            if name.startswith("training.swarm.") and other != own:
                seen += 1
                if floor_of[other] <= floor_of[own] or (own, other) == ("round", "defence"):
                    upward.append(f"{place_of(path)} imports {name}")
    assert seen, "the test sees no import"
    assert upward == []


def test_a_run_that_averages_by_the_mean_loads_no_defence():
    program = (
        "import sys, training.roles.peer, training.swarm.optimizer; "
        "print([name for name in sys.modules if name.startswith('training.swarm.defence')])"
    )
    done = run_program([sys.executable, "-c", program])
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


CALCULATOR = (
    {"errors", "units"}, {"models"}, {"tape"}, {"families"}, {"parts"}, {"step"}, {"choose"}, {"swarm"}, {"reports"},
    {"page", "figures"}, {"exercises"}, {"browser"}, {"__main__"},
)  # fmt: skip
"""The calculator's folders and files, the lowest first; each imports only from those before it."""


def test_folders_of_the_calculator_import_downwards_only():
    """Imports for type checkers count too."""
    height = {name: number for number, names in enumerate(CALCULATOR) for name in names}
    found = []
    for path in files_of("calculator"):
        above = path.relative_to(ROOT / "calculator").with_suffix("").parts[0]
        if above != "__init__":
            used = {name.split(".")[1] for name in imported_names(path) if name.startswith("calculator.")}
            found += [(place_of(path), above, name) for name in used - {above}]
    assert len(found) > len(height), "the test sees no import"
    assert [(place, name) for place, own, name in found if height[name] >= height[own]] == []


def test_commands_do_not_import_each_others_roles():
    roles = {path.stem for path in (ROOT / "training" / "roles").glob("*.py")} - {"__init__"}
    for path in (ROOT / "training" / "roles").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        for other in roles - {path.stem}:
            assert f"training.roles.{other}" not in text, f"{path.name} imports the role {other}"


def test_reading_a_recipe_loads_nothing_heavy():
    program = (
        "import sys, training.recipe as c; c.load_recipe('demo'); "
        "print([heavy for heavy in ('torch', 'hivemind', 'datasets') if heavy in sys.modules])"
    )
    done = run_program([sys.executable, "-c", program])
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("words", [["--help"], ["join", "--help"]])
def test_help_loads_neither_torch_nor_recipes(words):
    """It answers within 0.3 s; either of them takes as long by itself."""
    program = (
        f"import sys, training.cli as c\nsys.argv = ['training', *{words}]\n"
        "try: c.main()\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'rich', 'calculator', 'training.recipe') if name in sys.modules])"
    )
    assert run_program([sys.executable, "-c", program]).stdout.splitlines()[-1] == "[]"


def test_the_site_needs_no_library_of_the_trainer_to_list_its_commands():
    blocked = ("torch", "hivemind", "fastapi", "cryptography", "base58", "huggingface_hub", "uvicorn", "psutil")
    program = f"import sys; sys.modules |= dict.fromkeys({blocked}); import training.cli as c; c.build_app()"
    done = run_program([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr


def test_the_site_needs_no_library_of_the_trainer_to_say_what_a_run_takes():
    """`nox -s site` installs none of them."""
    blocked = ("torch", "hivemind", "transformers", "numpy", "PIL", "datasets", "tokenizers", "safetensors")
    program = (
        f"import sys; sys.path.insert(0, 'site'); sys.modules |= dict.fromkeys({blocked}); "
        "from builder.join.choices import page_data; page_data()"
    )
    done = run_program([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr


def test_readme_and_ci_run_the_same_test_command():
    command = "python3 -m venv .venv && .venv/bin/pip install -r constraints/nox.txt && .venv/bin/nox -s tests"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert command in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_no_file_stands_at_the_trainers_top_but_what_all_its_folders_need():
    files = {path.stem for path in (ROOT / "training").glob("*.py")}
    assert files == {"__init__", "__main__", "cli", "errors", "native", "recipe", "section"}


def test_packages_of_the_trainer_import_each_other_in_no_circle():
    packages = {path.parent.name for path in (ROOT / "training").glob("*/__init__.py")}
    needs = {package: set() for package in packages}
    for package in packages:
        for path in (ROOT / "training" / package).rglob("*.py"):
            parts = [name.split(".") for name in imported_names(path)]
            needs[package] |= {name[1] for name in parts if name[0] == "training"} & packages - {package}
    assert any(needs.values())
    graphlib.TopologicalSorter(needs).prepare()  # raises CycleError, which names the circle


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Lines of a function's code."""
    documented = function.body[0] if ast.get_docstring(function) is not None else None
    left_out = set(range(documented.lineno, documented.end_lineno + 1)) if documented else set()
    numbers = set(range(function.lineno, function.end_lineno + 1)) - left_out
    return sum(bool((line := lines[number - 1].strip()) and not line.startswith("#")) for number in numbers)


def test_no_function_is_long():
    """Methods and inner functions count too."""
    long = {}
    files = [path for room in sorted(ROOMS - {"tests"}) for path in files_of(room)]
    for path in [*files, ROOT / "noxfile.py"]:
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                long[f"{place_of(path)}: {node.name}"] = code_lines(node, lines)
    assert max(long.values()) > LONGEST_FUNCTION // 3, "the test sees no function"
    assert {name: size for name, size in long.items() if size > LONGEST_FUNCTION} == {}


def test_actions_are_pinned_by_commit_and_only_the_job_that_publishes_may_write():
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        text = path.read_text(encoding="utf-8")
        used = re.findall(r"uses: (\S+)(.*)", text)
        assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action, _ in used), used
        assert all(re.fullmatch(r" # v\d+\.\d+\.\d+", version) for _, version in used), used
        workflow = yaml.safe_load(text)
        assert workflow["permissions"] == {"contents": "read"}
        writers = [job for job in workflow["jobs"].values() if "write" in job.get("permissions", {}).values()]
        assert len(writers) == (path.name == "site.yml")
        # A build runs what many packages bring, so it must not be able to publish.
        assert not any("run" in step for job in writers for step in job["steps"])
        assert all("constraints/nox.txt" in command for command in re.findall(r"run: .*pip install.*", text))


def test_the_readme_has_a_line_for_each_folder_of_two_levels():
    listed = run_program(["git", "ls-files", *sorted(FOLDERS)])
    listed.check_returncode()
    paths = [Path(line).parts for line in listed.stdout.splitlines()]
    folders = {f"{path[0]}/" for path in paths} | {f"{path[0]}/{path[1]}/" for path in paths if len(path) > 2}
    tree = (ROOT / "README.md").read_text(encoding="utf-8").split("## The tree\n\n```\n")[1].split("```")[0]
    told, room = set(), ""
    for line in tree.splitlines():
        name, _, what = line.strip().partition(" ")
        assert what.strip(), f"the tree says nothing of {name}"
        if not line.startswith(" "):
            room = name
        told.add(name if name == room else room + name)
    assert {name for name in told if name.split("/")[0] in FOLDERS} == folders
