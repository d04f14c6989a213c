"""The child's side of `children`: it hears what is asked, tells its steps, and does not outlive the doctor for long."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

_lock = threading.Lock()


def live_briefly() -> None:
    """Ends this process and what it has started after as many seconds as the first argument says.

    The doctor starts it in a group of its own. If the doctor is killed, nobody else ends it.
    """
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(int(sys.argv[1]))


def hear() -> dict:
    """What the doctor asks; waits for it. Empty if the doctor is gone."""
    return json.loads(sys.stdin.readline() or "{}")


def tell(step: str, **facts: object) -> None:
    """Writes a step's facts, from any thread."""
    with _lock:
        print(json.dumps({"step": step, **facts}), flush=True)
