"""Locks on folders: two programs that start a run's servers in one, or keep their state there, would write the same
files."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import BadInput, reason_of

LOCK_FILE = "run.lock"
"""File in the run's folder that `only_one` locks."""
STATE_LOCK_FILE = "lock"
"""File in a peer's state folder that the peer locks; see `training.swarm.node.identity`."""


@contextmanager
def only_one(run_dir: Path, what: str, *, flag: str = "--run-dir") -> Iterator[None]:
    """Context that locks the run's folder, which is made if it is missing.

    Args:
        run_dir: Folder of the run.
        what: What the block does, such as "demo", for the message of the program that comes second.
        flag: Flag by which the user names the folder, for the message.

    Raises:
        BadInput: If the folder cannot be used, or another program has locked it.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = (run_dir / LOCK_FILE).open("a+")
    except OSError as error:
        raise BadInput(
            f"The run's folder {run_dir} cannot be used: {reason_of(error)}. Give another with {flag}."
        ) from None
    with lock:
        try:
            # The system releases this lock however the program ends; a file with a process id would stay after a crash.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            other = lock.read(40).strip() or "program"
            raise BadInput(f"Another {other} is running in {run_dir}; stop it, or give another {flag}.") from None
        lock.truncate(0)
        lock.write(what)
        lock.flush()
        yield


def is_locked(file: Path) -> bool:
    """Returns True if a program holds the lock on a file now; False if there is no such file."""
    try:
        with file.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
