"""Each fact has one owner: no default of a recipe and no constant is stated in two places."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from calculator.swarm.collaboration import Collaboration
from calculator.swarm.forecast import ExchangedVectors
from calculator.swarm.settings import DEFAULTS, ExchangeSettings
from training.optim.config import OptimizerConfig, ScheduleConfig
from training.swarm.config import SwarmConfig

ROOT = Path(__file__).resolve().parent.parent
FILES = [path for room in ("calculator", "training", "site/builder") for path in sorted((ROOT / room).rglob("*.py"))]
RECIPE_FIELDS = {name for section in (SwarmConfig, OptimizerConfig, ScheduleConfig) for name in section.model_fields}
ALIKE_BY_CHANCE = {"SEED": "each figure draws its own numbers", "LOOK_SECONDS": "at different things"}


def is_fact(value: ast.expr) -> bool:
    """True for a number or a text, literal or computed from literals; not for a name, nor for True and False."""
    nodes = list(ast.walk(value))
    constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Tuple, ast.Load)
    return (
        all(isinstance(node, allowed) for node in nodes)
        and bool(constants)
        and not any(constant is None or isinstance(constant, bool) for constant in constants)
    )


def constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Upper-case names of a module with their values; of `A, B = 1, 2` each."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(target.elts, value.elts, strict=True)
        for name, one in pairs:
            if isinstance(name, ast.Name) and name.id.isupper():
                yield name.id.lstrip("_"), one


def defaults(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Fields of classes and arguments of functions, with their defaults."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and field.value is not None:
                    yield field.target.id, field.value
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = node.args
            yield from zip([one.arg for one in given.args[-len(given.defaults) :]], given.defaults, strict=False)
            for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
                if value is not None:
                    yield one.arg, value


def stated(kind) -> dict[tuple[str, str], set[str]]:
    """(Name, value) -> files that state it."""
    found = defaultdict(set)
    for path in FILES:
        for name, value in kind(ast.parse(path.read_text(encoding="utf-8"))):
            if is_fact(value):
                found[name, ast.unparse(value)].add(path.relative_to(ROOT).as_posix())
    assert found
    return found


def test_no_constant_is_stated_twice():
    twice = {fact: where for fact, where in stated(constants).items() if len(where) > 1}
    assert {fact: where for fact, where in twice.items() if fact[0] not in ALIKE_BY_CHANCE} == {}


def test_no_default_of_a_recipe_is_stated_twice():
    found = stated(defaults)
    assert any(name in RECIPE_FIELDS for name, _ in found)
    assert {fact: where for fact, where in found.items() if fact[0] in RECIPE_FIELDS and len(where) > 1} == {}


@pytest.mark.parametrize("kind", [ExchangedVectors, Collaboration])
def test_forecasts_declare_no_setting_of_their_own(kind):
    """What they share with recipes they inherit."""
    inherited = {field.name for field in fields(ExchangeSettings)}
    assert not inherited & set(kind.__annotations__) and issubclass(kind, ExchangeSettings)


def test_recipes_have_the_defaults_of_the_forecast():
    for name, field in SwarmConfig.model_fields.items():
        if hasattr(DEFAULTS, name):
            assert field.default == getattr(DEFAULTS, name)
