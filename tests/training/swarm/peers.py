"""Real peers for tests: each is a process of its own with its own node, and plays scenarios that the test names.

A scenario is a function of `scenarios.py`, with what it is to be called with; `meet` starts the peers and gives what
the scenarios returned.
"""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.programs import ROOT, Programs

SWARM_TESTS = Path(__file__).parent
PATIENCE_SECONDS = 300
"""All scenarios of a meeting are over by then."""

Scenario = Callable[["Peer"], object]
"""A function of `scenarios.py`, or a `functools.partial` of one."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """What a scenario has to do with; in the peer's process."""

    name: str
    names: tuple[str, ...]
    """Of all peers of the meeting."""
    folder: Path
    """They all see it."""
    dht: object
    identity: object
    stop: object
    """`StopRequest` of the process; listen to signals again when an averager was made."""

    def await_others(self, what: str) -> None:
        """Until all peers have come to this point."""
        (self.folder / f"{self.name}.{what}").touch()
        while not all((self.folder / f"{name}.{what}").is_file() for name in self.names):
            time.sleep(0.05)


def meet(
    folder: Path, scenarios: Sequence[Scenario], names: Sequence[str] = ("first", "second"), *, behind_nat: str = ""
) -> list[dict[str, object]]:
    """Lets peers play scenarios, one after the other; for each of these, what the peers that lived through it returned.

    Args:
        folder: Empty.
        scenarios: The same for all peers.
        names: Of the peers; the others find the run at the first one.
        behind_nat: The peer of this name accepts no connections.
    """
    (folder / "scenarios").write_bytes(pickle.dumps((tuple(names), behind_nat, list(scenarios))))
    with Programs() as programs:
        peers = [
            programs.start(
                [sys.executable, SWARM_TESTS / "one_peer.py", folder, name],
                env={"PYTHONPATH": f"{ROOT}:{SWARM_TESTS}", "OMP_NUM_THREADS": "1", "PATH": ""},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for name in names
        ]
        outputs = [peer.communicate(timeout=PATIENCE_SECONDS)[0] for peer in peers]
    assert not any(peer.returncode for peer in peers if peer.returncode != -signal.SIGKILL), "\n".join(outputs)
    return [
        {name: pickle.loads(path.read_bytes()) for name in names if (path := folder / f"{name}-{number}").is_file()}
        for number in range(len(scenarios))
    ]


def relative_error(tensor, expected) -> float:
    """Norm of the difference over the norm of what is expected."""
    return float((tensor - expected).norm() / expected.norm())
