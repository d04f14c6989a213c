"""Keys on the terminal on which `join` shows its screen."""

from __future__ import annotations

import os
import select
import termios
import threading
import tty
from collections.abc import Callable
from contextlib import suppress

from training.volunteer.manners.manners import Manners

LOOK_SECONDS = 0.5
"""Seconds after which the thread looks anew whether it may read from the terminal."""
HELP = "p pause, s snooze an hour, f finish this epoch and leave, q leave"


def press(key: str, manners: Manners) -> None:
    """Obeys a key of `HELP`; ignores other keys."""
    doing: Callable[[], None] | None = {
        "p": manners.switch,
        "s": manners.snooze,
        "f": manners.finish,
        "q": manners.leave,
    }.get(key.lower())
    if doing is not None:
        doing()


def listen(terminal: int, manners: Manners) -> Callable[[], None]:
    """Reads single keys from a terminal in a thread. Returns a function that ends this and restores the terminal.

    Ctrl-C remains a signal. In the background the program neither reads nor changes the terminal, which would stop it.

    Args:
        terminal: File descriptor of the terminal.
        manners: Gets the volunteer's wishes.
    """
    before, ended = termios.tcgetattr(terminal), threading.Event()
    changing = threading.Lock()

    def work() -> None:
        with suppress(OSError, termios.error):  # the terminal was closed
            while not ended.is_set():
                if os.tcgetpgrp(terminal) != os.getpgrp():
                    ended.wait(LOOK_SECONDS)
                    continue
                with changing:
                    # Also after Ctrl-Z and `fg`: the shell has set its own mode meanwhile.
                    if not ended.is_set() and termios.tcgetattr(terminal)[3] & termios.ICANON:
                        tty.setcbreak(terminal)
                if select.select([terminal], [], [], LOOK_SECONDS)[0]:
                    press(os.read(terminal, 1).decode("ascii", "ignore"), manners)

    def restore() -> None:
        with changing:
            ended.set()
            if os.tcgetpgrp(terminal) == os.getpgrp():
                termios.tcsetattr(terminal, termios.TCSADRAIN, before)

    threading.Thread(target=work, daemon=True, name="keys").start()
    return restore
