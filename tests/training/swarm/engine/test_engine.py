"""What this project changes in hivemind: only what `engine` lists, and only in the version that was read."""

import ast
import functools
import gc
import importlib
import importlib.metadata
import inspect
import re
import sys
import tomllib
from pathlib import Path

import hivemind
import pytest

from tests.support.programs import run_program
from training.errors import TrainingError
from training.swarm.engine import engine

ROOT = Path(__file__).parents[4]
SWARM = ROOT / "training" / "swarm"
MOST_NAMES = 6
"""Names of hivemind that are private or replaced."""


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


@functools.cache
def trees(folder):
    gc.collect()  # Python 3.11 cannot parse code while hivemind's objects are finalized
    gc.disable()
    try:
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}
    finally:
        gc.enable()


def names_set_in(tree):
    """Functions and classes, and the variables and attributes that are set."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


@functools.cache
def private_names_of_hivemind():
    hiveminds = trees(Path(hivemind.__file__).parent).values()
    return {name for tree in hiveminds for name in names_set_in(tree) if is_private(name)}


@functools.cache
def replaceable_names_of_hivemind():
    """Functions, methods and classes, and the variables of modules."""
    found = set()
    for tree in trees(Path(hivemind.__file__).parent).values():
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        found |= {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        targets = [target for line in tree.body if isinstance(line, ast.Assign) for target in line.targets]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


@functools.cache
def own_fields():
    """Fields that classes of the swarm declare, and attributes that their methods set."""
    nodes = [node for tree in trees(SWARM).values() for node in ast.walk(tree)]
    fields = {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and is_of_self(node)]
    return fields | {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}


def private_names_of(kind):
    """Those that hivemind's classes among the bases of a class define."""
    sources = [inspect.getsource(base) for base in kind.__mro__ if base.__module__.startswith("hivemind")]
    return {name for source in sources for name in names_set_in(ast.parse(source)) if is_private(name)}


def is_of_self(node):
    return isinstance(node.value, ast.Name) and node.value.id == "self"


def used_in(path, tree):
    """Names of hivemind that a file uses though they are private, or replaces on classes, modules or instances."""
    used, module = set(), importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    own = {*names_set_in(tree)} if path.name != "engine.py" else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hivemind"):
            used |= {alias.name for alias in node.names if is_private(alias.name)}
        elif isinstance(node, ast.ClassDef) and isinstance(kind := getattr(module, node.name, None), type):
            mentioned = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)} | {*names_set_in(node)}
            used |= mentioned & private_names_of(kind)
        elif isinstance(node, ast.Attribute) and not is_of_self(node):
            is_replaced = isinstance(node.ctx, ast.Store) and node.attr in replaceable_names_of_hivemind()
            if is_replaced and node.attr not in own_fields():
                used.add(node.attr)
            if is_private(node.attr) and node.attr in private_names_of_hivemind() - own:
                used.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            used.add(ast.unparse(node))
    return used


LISTED = set(re.findall(r"^\| `\w+\.(\w+)` \|", engine.__doc__, flags=re.MULTILINE))


def test_the_names_of_hivemind_that_are_private_or_replaced_are_those_that_the_engine_lists():
    used = {path.name: found for path, tree in trees(SWARM).items() if (found := used_in(path, tree))}
    assert set().union(*used.values()) == LISTED, used
    assert len(LISTED) <= MOST_NAMES


def test_the_listed_faults_have_a_page():
    assert (ROOT / "site" / "reference" / "hivemind.md").is_file()


@pytest.mark.parametrize("folder", ["training", "site", "calculator"])
def test_no_class_of_an_object_is_swapped_and_no_parent_skipped(folder):
    for path in trees(ROOT / folder):
        text = path.read_text(encoding="utf-8")
        assert "__class__ =" not in text, path
        assert not re.search(r"super\([A-Za-z]\w*, \w+\)", text), path


def test_hivemind_is_pinned_to_the_version_whose_source_was_read():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"hivemind=={engine.HIVEMIND_VERSION}" in project["dependencies"]
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
