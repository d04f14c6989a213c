"""`python -m calculator schema`: an estimate as `--json` prints it, and a line of `batch`, as a JSON schema."""

from __future__ import annotations

import argparse
import json
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from calculator.step.answer import Estimate, GpuMemory, HostMemory
from calculator.step.setups import Setup

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", types.NoneType: "null"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command `schema` has no flags."""


def run(flags: dict, read: object) -> str:
    """Runs the command `schema`; returns the schema as text."""
    return json.dumps(schema(), indent=1)


def schema() -> dict:
    """A JSON schema of an estimate; its `$defs` has the schema of a setup, which a line of `batch` must follow."""
    estimate = _schema_of(Estimate)
    # `Estimate.as_dict` adds the sums.
    for name, part in (("gpu", GpuMemory), ("host", HostMemory)):
        estimate["properties"][name] = _schema_of(part, total={"type": "integer"})
    setup = _schema_of(Setup)
    # Every field has a default.
    del setup["required"]
    title = "An estimate: what `python -m calculator MODEL --json` prints"
    # Only with `--gpu`.
    estimate["properties"]["fit"] = {"type": "object"}
    return {"$schema": DRAFT, "title": title, **estimate, "$defs": {"setup": {"title": "A setup", **setup}}}


def _schema_of(record: type, **added: dict) -> dict:
    """Makes the schema of a dataclass or a named tuple."""
    hints = get_type_hints(record)
    names = [field.name for field in fields(record)] if is_dataclass(record) else list(record._fields)
    properties = {name: _schema(hints[name]) for name in names} | added
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _schema(hint: Any) -> dict:
    """Makes the schema of one annotation."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if origin is types.UnionType:
        return {"anyOf": [_schema(one) for one in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0])}
    if origin in (dict, Mapping):
        # A config.json may hold anything.
        return {"type": "object"} | ({} if arguments[1] is object else {"additionalProperties": _schema(arguments[1])})
    return _schema_of(hint)
