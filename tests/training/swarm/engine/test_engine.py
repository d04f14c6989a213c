"""What this project changes in hivemind: only what `engine` lists, and only in the version that was read."""

import ast
import functools
import gc
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import hivemind
import pytest

from tests.programs import run_program
from training.errors import TrainingError
from training.swarm.engine import engine

ROOT = Path(__file__).parents[4]
SWARM = ROOT / "training" / "swarm"
MOST_PRIVATE_NAMES = 5


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def trees(folder):
    gc.collect()  # Python 3.11 cannot parse code while hivemind's objects are finalized
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}
    finally:
        gc.enable()


@functools.cache
def private_names_of_hivemind():
    """Private methods, class attributes, instance attributes and module variables that hivemind defines."""
    names = set()
    for tree in trees(Path(hivemind.__file__).parent).values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return {name for name in names if is_private(name)}


def inherits_from_hivemind(node, tree):
    imported = {
        alias.asname or alias.name
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("hivemind")
        for alias in statement.names
    }
    return any(isinstance(base, ast.Name) and base.id in imported - {"ServicerBase"} for base in node.bases)


def used_private_names(tree):
    """Names that a file may have from hivemind: imported, of other objects, or of hivemind's subclasses."""
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hivemind"):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            used.add(node.attr)
        elif isinstance(node, ast.Dict):
            used |= {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
        elif isinstance(node, ast.ClassDef) and inherits_from_hivemind(node, tree):
            for inner in ast.walk(node):
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    used.add(inner.name)
                elif isinstance(inner, ast.Attribute):
                    used.add(inner.attr)
    return {name for name in used if is_private(name)}


def own_private_names(tree):
    """Those that a file defines itself: functions outside hivemind's subclasses, and attributes that it sets."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
    return own


LISTED = set(re.findall(r"^\| `\w+\.(_\w+)` \|", engine.__doc__, flags=re.MULTILINE))


def test_the_private_names_of_hivemind_are_those_that_the_engine_lists():
    theirs = private_names_of_hivemind()
    used = set()
    for path, tree in trees(SWARM).items():
        own = own_private_names(tree) if path.name != "engine.py" else set()
        used |= used_private_names(tree) & theirs - own
    assert used == LISTED
    assert len(LISTED) <= MOST_PRIVATE_NAMES


def test_each_listed_name_is_one_of_hivemind_with_a_page_that_tells_the_fault():
    assert private_names_of_hivemind() >= LISTED
    assert (ROOT / "site" / "reference" / "hivemind.md").is_file()


@pytest.mark.parametrize("folder", ["training", "site", "calculator"])
def test_nothing_is_replaced_on_an_object_or_a_class_in_passing(folder):
    """No class is swapped, no method set from outside, no parent skipped."""
    for path, tree in trees(ROOT / folder).items():
        text = path.read_text(encoding="utf-8")
        assert "__class__ =" not in text, path
        assert not re.search(r"super\([A-Za-z]\w*, \w+\)", text), path
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and path.parent.name == "swarm" and path.name != "engine.py":
                for target in node.targets:
                    is_class = (
                        isinstance(target, ast.Attribute)
                        and isinstance(target.value, ast.Name)
                        and target.value.id[0].isupper()
                    )
                    assert not is_class, f"{path}:{node.lineno}"


def test_hivemind_is_pinned_to_the_version_whose_source_was_read():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"hivemind=={engine.HIVEMIND_VERSION}" in project["optional-dependencies"]["training"]
    assert importlib.metadata.version("hivemind") == engine.HIVEMIND_VERSION


def test_another_version_of_hivemind_is_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(engine, "version", lambda package: "1.2.0")
    with pytest.raises(TrainingError, match=r"hivemind 1\.2\.0 is installed.*pip install hivemind==1\.1\.12"):
        engine.prepare()


FORKED = """
import gc, os
from training.processes.environment import prepare_environment
prepare_environment()
import training.swarm.optimizer
from training.swarm.engine import engine

def own_kilobytes():
    with open("/proc/self/smaps_rollup") as memory:
        return sum(int(line.split()[1]) for line in memory if line.startswith("Private_"))

PREPARE
if not os.fork():
    before = own_kilobytes()
    gc.collect()
    print(own_kilobytes() - before, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells which memory is shared")
@pytest.mark.parametrize("prepares", [True, False])
def test_a_collection_of_garbage_does_not_copy_what_forks_share(prepares):
    """The node and the averagers are forks; without the preparation, each takes 59 MB more after its first one."""
    program = FORKED.replace("PREPARE", "engine.prepare()" if prepares else "")
    printed = run_program([sys.executable, "-c", program])
    assert (int(printed.stdout) < 8 << 10) is prepares, printed
