"""Watchdog: kills the process group that it leads, and removes a folder, once the process that started it is gone.

It runs as an isolated script, so it imports only the standard library; `training.processes.children` starts it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

POLL_SECONDS = 0.2


def watch(role: int, folder: str) -> None:
    """Waits until process `role` is no longer the parent, then kills the process group, this process included.

    Args:
        role: Process id of the parent.
        folder: Folder of temporary files of the role and its children.
    """
    # A closed terminal must not end the watchdog before the role.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # When the role dies, another process becomes the parent, whichever way it died.
    while os.getppid() == role:
        time.sleep(POLL_SECONDS)
    # The folder first: the kill also ends this process.
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
