"""Child processes of a role, which end with the role, however it ends.

hivemind forks a process for the DHT and one for each averager, and starts the network daemon `p2pd`; all of them
survive when their parent is killed. Here every forked child, with all that it starts, joins a process group that a
watchdog leads: Ctrl-C in the terminal does not reach the group, and the watchdog kills it when the role is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from training.processes import watchdog

_FOLDER = "training-role-"


class ChildGroup:
    """Process group of a role's children, and their folder for temporary files, which is removed with them.

    Create one per process, before any process is forked.
    """

    def __init__(self) -> None:
        _remove_folders_of_the_dead()
        # Python's own `tempfile` reads the variable of the module; other programs, such as p2pd, read the environment.
        self._folder = tempfile.tempdir = tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-")
        os.environ["TMPDIR"] = self._folder
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid()), self._folder],
            process_group=0,  # the leader of a new group, which `_enter` makes the children join
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        # hivemind forks by itself and offers no hook, but Python calls this function after every fork.
        os.register_at_fork(after_in_child=self._enter)

    def _enter(self) -> None:
        with suppress(OSError):  # if the watchdog was killed, there is no group to enter
            os.setpgid(0, self._watchdog.pid)
        # Otherwise the role's handlers would run in the child, too. The role handles Ctrl-C; SIGTERM ends the child at
        # once.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if (torch := sys.modules.get("torch")) is not None:
            # The parent's OpenMP threads do not exist in the child; work that torch gives to them would never end.
            torch.set_num_threads(1)

    def start(self, command: Sequence[object], **options: object) -> subprocess.Popen:
        """Starts a program in the group.

        Args:
            command: Program and arguments.
            options: Further arguments of `subprocess.Popen`.
        """
        return subprocess.Popen(
            list(map(str, command)),
            process_group=self._watchdog.pid,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            **options,
        )

    def kill(self) -> None:
        """Kills all children and the watchdog, and removes their temporary files."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._watchdog.pid, signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


def _remove_folders_of_the_dead() -> None:
    """Removes temporary folders of roles that were killed together with their watchdogs."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*-*"):
        role = folder.name.removeprefix(_FOLDER).split("-")[0]
        with suppress(OSError):
            if role.isdigit() and folder.stat().st_uid == os.getuid() and not _is_running(int(role)):
                shutil.rmtree(folder, ignore_errors=True)


def _is_running(process_id: int) -> bool:
    try:
        # Signal 0 only checks that the process exists.
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
