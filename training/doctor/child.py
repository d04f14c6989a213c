"""Child programs of the doctor for libraries that may hang or crash: torch and the GPU's driver, or hivemind's daemon.

Arguments: `compute` or `network`; how many seconds it may live; `Asked` as JSON. It writes one line of JSON for each
check, with its name and findings, as soon as they are known: what it has written before it crashes counts.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from training.doctor.facts import Asked, Facts
from training.doctor.finding import Finding
from training.processes.environment import prepare_environment

_lock = threading.Lock()


def answer(check: str, findings: list[Finding] | Finding) -> None:
    """Writes the findings of a check; may be called from any thread."""
    several = [findings] if isinstance(findings, Finding) else findings
    with _lock:
        print(json.dumps([check, [asdict(finding) for finding in several]]), flush=True)


def main() -> None:
    """Runs all checks of a child."""
    name, seconds, asked = sys.argv[1:]
    # The doctor starts it in a group of its own. If the doctor is killed, nobody else ends it.
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(int(seconds))
    prepare_environment()
    facts = Facts(_asked(json.loads(asked)))
    if name == "compute":
        from training.doctor.checks.compute import examine
    else:
        from training.doctor.checks.network import examine
    examine(facts, answer)


def _asked(words: dict) -> Asked:
    folder = words["state_dir"]
    lists = {name: tuple(words[name]) for name in ("initial_peers", "host_maddrs")}
    return Asked(**{**words, **lists, "state_dir": Path(folder) if folder else None})


if __name__ == "__main__":
    main()
