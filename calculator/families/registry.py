"""All families, found in the folders `language`, `mixtures` and `pictures`: each file there defines one as `FAMILY`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import iter_modules

from calculator.families import language, mixtures, pictures
from calculator.families.family import Family
from calculator.models.architecture import Architecture


def found_families() -> Iterator[Family]:
    """Imports each file of the folders and yields its family."""
    for folder in (language, mixtures, pictures):
        for file in iter_modules(folder.__path__, f"{folder.__name__}."):
            yield import_module(file.name).FAMILY


FAMILIES: dict[str, Family] = {family.name: family for family in found_families()}


def family_of(architecture: Architecture) -> Family:
    """The family of a model."""
    return FAMILIES[architecture.family]


def models_with(has: Callable[[Family], object]) -> str:
    """Names the models of all families for which `has` is true, for a sentence."""
    *names, last = [model for family in FAMILIES.values() if has(family) for model in family.models]
    return f"{', '.join(names)} and {last}" if names else last
