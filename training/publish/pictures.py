"""Draws or continues the run's fixed prompts with a checkpoint, in a separate process of low priority.

`PictureDrawer` is the monitor's end; `main` is the process. It reads one job per line from standard input and writes
one answer per line to standard output, until the input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from training.errors import TrainingError
from training.publish.showcase import Shown

NICENESS = 15
"""Niceness of the process, so that a volunteer on the same machine has priority; the largest is 19."""

DRAW_SECONDS = 600.0
"""Longest time of a drawing before it is aborted."""


class PictureDrawer:
    """Draws in a background process, which starts with the first job.

    Args:
        shards: Folder or URL of the prepared shards: tokenizer and codec are read from there.
        log: File to which the process's error output is appended.
    """

    def __init__(self, shards: str, log: BinaryIO):
        self._shards = shards
        self._log = log
        self._process: subprocess.Popen | None = None

    def draw(self, checkpoint: Path, folder: Path, *, seconds: float = DRAW_SECONDS) -> list[Shown]:
        """Draws the checkpoint's prompts into `folder/NAME/NUMBER.png`, or continues them, and judges the results.

        NAME is the checkpoint's epoch. In a later branch the lineage follows, so that earlier pictures stay.

        Raises:
            TrainingError: If the drawing fails, takes longer than `seconds`, or `close` is called meanwhile.
        """
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "training.publish.pictures", self._shards],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            )
        process = self._process
        watchdog = threading.Timer(seconds, process.kill)
        watchdog.daemon = True
        watchdog.start()
        try:
            job = {"checkpoint": str(checkpoint), "folder": str(folder)}
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            # An empty line means that the process has ended, or that the watchdog has killed it.
            answer = json.loads(process.stdout.readline() or "{}")
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"The pictures' process failed: {error}.",
                cure="Look at the line above it; the run itself goes on, only the pictures are missing.",
            ) from None
        finally:
            watchdog.cancel()
        if "pictures" not in answer:
            raise TrainingError(
                f"The pictures were not drawn: {answer.get('error', 'the process ended')}.",
                cure="Look at the line above it; the run itself goes on, only the pictures are missing.",
            )
        return [Shown(**picture) for picture in answer["pictures"]]

    def close(self) -> None:
        """Ends the process at once; a drawing under way is aborted."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def main(shards: str) -> None:
    """Answers jobs until standard input ends."""
    import signal

    import torch

    from training.publish.prompts import show

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too, but the monitor must end it
    os.nice(NICENESS)
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints goes to the log, not between the answers
    for line in sys.stdin:
        job = json.loads(line)
        try:
            drawn = show(Path(job["checkpoint"]), shards, Path(job["folder"]))
            answer = {"pictures": [asdict(one) for one in drawn]}
        except Exception as error:  # the process must survive a bad checkpoint
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
