"""Long-running role: it stops in time when it is asked to, and its child processes with it.

hivemind's averagers make their parent ignore Ctrl-C, and some of its threads and processes never end by themselves. So
a role installs its signal handlers again after each averager, and exits without waiting for threads or processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from training.errors import BeginsAnew, TrainingError, first_line
from training.processes.children import ChildGroup
from training.processes.servers.again import environment_of_next_start

GRACE_SECONDS = 5.0
"""Longest time that a role has to finish after Ctrl-C or SIGTERM; then it is killed."""


class StopRequest:
    """Request to stop, by SIGINT, SIGTERM or SIGHUP.

    The first signal is the request, and begins `grace_seconds`; after these, or at the second signal, the process ends.
    """

    def __init__(self, children: ChildGroup, grace_seconds: float = GRACE_SECONDS):
        self._children = children
        self._grace_seconds = grace_seconds
        self._asked = threading.Event()
        self._undone: list[Callable[[], None]] = []

    @property
    def asked(self) -> bool:
        """True from the first signal on."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleeps this long, or until a stop is requested. Returns whether it was requested."""
        return self._asked.wait(seconds)

    def start(self, command: Sequence[object], **options: object) -> subprocess.Popen:
        """Starts a program that ends with this role, however the role ends; see `ChildGroup.start`."""
        return self._children.start(command, **options)

    def listen(self) -> None:
        """Installs the signal handlers. Call it again after creating an averager, which makes SIGINT ignored."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def ask(self) -> None:
        """Requests the stop, as the first signal does; a second call changes nothing."""
        if not self._asked.is_set():
            self._asked.set()
            deadline = threading.Timer(self._grace_seconds, self._end, args=[0])
            deadline.daemon = True
            deadline.start()

    def at_end(self, undo: Callable[[], None]) -> None:
        """Calls a function when the process ends, also when it ends after its grace or at a second signal."""
        self._undone.append(undo)

    def undo(self) -> None:
        """Calls the functions of `at_end`, once."""
        while self._undone:
            with suppress(Exception):  # such as a terminal that was closed
                self._undone.pop()()

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._asked.is_set():
            self._end(128 + number)
        self.ask()

    def _end(self, code: int) -> NoReturn:
        self.undo()
        self._children.kill()
        os._exit(code)


def lack_of_shared_memory(error: BaseException) -> str | None:
    """Message for an error of torch that comes from a full /dev/shm; None for other errors."""
    if not (isinstance(error, RuntimeError) and "</torch_" in str(error)):  # torch's name for a file of shared memory
        return None
    return (
        f"/dev/shm, in which the program's processes share weights and gradients, is too small: "
        f"{first_line(error).rstrip('.')}. Enlarge it (`docker run --shm-size=8g`, or `mount -o remount,size=8g "
        "/dev/shm`); `python -m training doctor` with the same recipe says how much the run takes."
    )


def run_role(
    role: Callable[[StopRequest], None], *, grace_seconds: float = GRACE_SECONDS, begins_anew: bool = False
) -> NoReturn:
    """Runs a role to its end and exits: 0 when it returns, an error's own code, 1 after any other exception.

    The process ends without waiting for threads or children, some of which hivemind leaves hanging. With `begins_anew`,
    it starts its program again after an error that permits it (`BeginsAnew`).
    """
    environment, again = dict(os.environ), None
    multiprocessing.set_start_method("fork", force=True)  # hivemind's processes cannot be pickled
    children = ChildGroup()
    stop = StopRequest(children, grace_seconds)
    stop.listen()
    code = 0
    try:
        role(stop)
    except TrainingError as error:
        code = error.exit_code
        if begins_anew and isinstance(error, BeginsAnew) and not stop.asked:
            again = environment_of_next_start(environment)
        told = f"Warning: {error} The program begins anew." if again is not None else f"Error: {error.sentence}"
        print(told, file=sys.stderr)
    except BaseException as error:  # the traceback is printed; the children must not survive
        if (lacks := lack_of_shared_memory(error)) is not None:
            print(f"Error: {lacks}", file=sys.stderr)
        else:
            traceback.print_exc()
        code = 1
    stop.undo()
    children.kill()
    # `os._exit` flushes nothing.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    if again is not None:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], again)
    os._exit(code)
