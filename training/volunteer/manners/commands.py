"""Commands to a running volunteer, by files in its state folder.

`training volunteer pause` writes the word to `command`; the volunteer takes it, and writes a line on what it does to
`answer`. Both files are their owner's alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from training.errors import TrainingError
from training.storage.whole import whole_file
from training.volunteer.manners.manners import Manners

COMMAND_FILE, ANSWER_FILE = "command", "answer"
LOOK_SECONDS = 0.5
"""Seconds between two looks at the folder."""
ANSWER_SECONDS = 20.0
"""Longest wait for an answer: on a busy machine a volunteer that loads its libraries takes seconds."""
WORDS = ("status", "pause", "snooze", "resume", "finish", "leave")


def obey(folder: Path, manners: Manners) -> None:
    """Takes a command from a state folder, if there is one, and answers it."""
    try:
        word = (folder / COMMAND_FILE).read_text(encoding="utf-8")
        is_own = (folder / COMMAND_FILE).stat().st_uid == os.getuid()
        (folder / COMMAND_FILE).unlink()
    except (OSError, ValueError):
        return
    if not is_own or word not in WORDS:
        return
    if word != "status":
        getattr(manners, word)()
    rest = manners.rest()
    with suppress(OSError):  # if the disk is full, the command counts all the same
        _write(folder / ANSWER_FILE, manners.describe() if rest is None else f"Paused: {rest}.")


def obey_all(folder: Path, manners: Manners) -> None:
    """Takes commands in a thread for as long as the program runs."""
    (folder / COMMAND_FILE).unlink(missing_ok=True)  # for a volunteer that has ended

    def work() -> None:
        while True:
            obey(folder, manners)
            time.sleep(LOOK_SECONDS)

    threading.Thread(target=work, daemon=True, name="commands").start()


def command(
    folder: Path,
    word: str,
    *,
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> str:
    """Gives a command to the volunteer with this state folder, and returns its answer.

    Args:
        folder: State folder of a running volunteer.
        word: One of `WORDS`.
        clock: Seconds that only grow.
        wait: Waits for some seconds.

    Raises:
        TrainingError: If the volunteer does not answer.
    """
    answer, until = folder / ANSWER_FILE, clock() + ANSWER_SECONDS
    answer.unlink(missing_ok=True)
    _write(folder / COMMAND_FILE, word)
    while clock() < until:
        with suppress(FileNotFoundError):
            said = answer.read_text(encoding="utf-8")
            answer.unlink(missing_ok=True)
            return said
        wait(LOOK_SECONDS / 2)
    (folder / COMMAND_FILE).unlink(missing_ok=True)
    raise TrainingError(f"The volunteer of {folder} has not answered within {ANSWER_SECONDS:.0f} s.")


def _write(path: Path, text: str) -> None:
    with whole_file(path, flushed=False) as draft:
        draft.touch(mode=0o600)
        draft.write_text(text, encoding="utf-8")
