"""The calls that reach the peers of a test, and their callers: in a file, since forked processes answer the calls."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from training.swarm.defence.auditor import Auditor
from training.swarm.engine import engine
from training.swarm.node.protocol import DHTProtocol
from training.swarm.round.service import Service
from training.swarm.state.serving import StateService

SERVICERS = (Service, Auditor, StateService, DHTProtocol)
PROOF = "Auditor._read_proof"
"""Stands for an accusation that a peer listens to, which is no call of its own."""


def calls_that_are_answered() -> set[str]:
    """Names of all calls that others can make."""
    return {f"{one.__name__}.{name}" for one in SERVICERS for name in dir(one) if name.startswith("rpc_")}


@dataclass(frozen=True)
class Calls:
    """The calls that all peers of a test have written down."""

    file: Path

    @property
    def place(self) -> int:
        """Position in the file at which the next call will stand."""
        return self.file.stat().st_size

    def of(self, peer: object, since: int = 0) -> set[str]:
        """The calls that a peer has made since a position in the file."""
        lines = self.file.read_bytes()[since:].decode().splitlines()
        return {call for call, _, caller in (line.partition(" ") for line in lines) if caller == str(peer)}


@contextmanager
def noting_calls(file: Path) -> Iterator[Calls]:
    """Peers whose processes start within this context write which calls come to them."""
    file.touch()
    engine.prepare()
    with pytest.MonkeyPatch.context() as patch:
        for call in (*calls_that_are_answered(), PROOF):
            servicer, name = call.split(".")
            owner = next(one for one in SERVICERS if one.__name__ == servicer)
            patch.setattr(owner, name, _noting(getattr(owner, name), call, file))
        yield Calls(file)


def _noting(method: Callable, call: str, file: Path) -> Callable:
    """The method, which writes its caller first; hivemind takes it for the same one, by its signature."""

    def note(caller: object) -> None:
        with file.open("a") as lines:
            lines.write(f"{call} {getattr(caller, 'remote_id', caller)}\n")

    @functools.wraps(method)
    def noted(self, request, context):
        note(context)
        return method(self, request, context)

    noted.__signature__ = inspect.signature(method)
    return noted
