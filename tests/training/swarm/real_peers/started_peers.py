"""Real peers for tests: each is a process of its own with its own node, and plays scenarios that the test names.

A scenario is a function of `scenarios.py`, perhaps with some of its arguments; `meet` starts the peers and returns what
the scenarios returned.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.support.programs import ROOT, Programs, until

ONE_PEER = Path(__file__).with_name("one_peer.py")
PATIENCE_SECONDS = 300
"""All scenarios of a meeting are over by then."""

Scenario = Callable[["Peer"], object]
"""A function of `scenarios.py`, or a `functools.partial` of one."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A peer as a scenario sees it, in the peer's process."""

    name: str
    names: tuple[str, ...]
    """Names of all peers of the meeting."""
    folder: Path
    """Folder that all peers of the meeting see."""
    dht: object
    identity: object
    stop: object
    """`StopRequest` of the process; listen to signals again when an averager was made."""

    def await_others(self, what: str) -> None:
        """Waits until all peers have come to this point."""
        (self.folder / f"{self.name}.{what}").touch()
        while not all((self.folder / f"{name}.{what}").is_file() for name in self.names):
            time.sleep(0.05)


def meet(
    folder: Path, scenarios: Sequence[Scenario], names: Sequence[str] = ("first", "second"), *, behind_nat: str = ""
) -> list[dict[str, object]]:
    """Lets peers play scenarios one after the other; returns for each what the peers that lived through it returned.

    Args:
        folder: An empty folder.
        scenarios: The same for all peers.
        names: Names of the peers; the others find the run at the first one.
        behind_nat: The peer of this name accepts no connections.

    Raises:
        AssertionError: As soon as a peer fails, with what it has printed; the others, which may wait for it, are ended.
            A peer that was killed by SIGKILL has not failed: some scenarios do that to themselves.
    """
    (folder / "scenarios").write_bytes(pickle.dumps((tuple(names), behind_nat, list(scenarios))))
    with Programs() as programs:
        peers = {name: _start(programs, folder, name) for name in names}
        until(lambda: _failed(peers) or _all_ended(peers), PATIENCE_SECONDS, partial(_said_by, folder, names))
        failed = _failed(peers)  # before the others are killed
    assert not failed, _said_by(folder, failed)
    return [
        {name: pickle.loads(path.read_bytes()) for name in names if (path := folder / f"{name}-{number}").is_file()}
        for number in range(len(scenarios))
    ]


def _start(programs: Programs, folder: Path, name: str) -> subprocess.Popen:
    # To a file: a pipe that is read only at the end holds up a peer that prints much.
    with (folder / f"{name}.out").open("w") as output:
        return programs.start(
            [sys.executable, ONE_PEER, folder, name],
            env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _failed(peers: Mapping[str, subprocess.Popen]) -> list[str]:
    return [name for name, peer in peers.items() if peer.poll() not in (None, 0, -signal.SIGKILL)]


def _all_ended(peers: Mapping[str, subprocess.Popen]) -> bool:
    return all(peer.poll() is not None for peer in peers.values())


def _said_by(folder: Path, names: Sequence[str]) -> str:
    return "\n".join(f"{name}:\n{(folder / f'{name}.out').read_text(errors='replace')}" for name in names)


def relative_error(tensor, expected) -> float:
    """Norm of the difference over the norm of what is expected."""
    return float((tensor - expected).norm() / expected.norm())
