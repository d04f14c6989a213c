"""Draws or continues the run's fixed prompts with a checkpoint, and measures its loss on held-out samples, and its CLIP
score.

All happen in a separate process of low priority.

`PictureDrawer` is the monitor's end; `main` is the process. It reads one job per line from standard input and writes
one answer per line to standard output, until the input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from training.errors import TrainingError
from training.publish.showcase import Shown
from training.tasks.held_out import HeldOut

NICENESS = 15
"""Niceness of the process, so that a volunteer on the same machine has priority; the largest is 19."""

DRAW_SECONDS = 600.0
"""Longest time of a drawing, or of a measurement, before it is aborted."""

PICTURES, HELD_OUT, CLIP_SCORE = "pictures", "held-out loss", "CLIP score"
"""Keys of the process's answers, which are also their names for people."""


class PictureDrawer:
    """Draws and measures in a background process, which starts with the first job.

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
        answer = self._answer({"checkpoint": str(checkpoint), "folder": str(folder)}, PICTURES, seconds)
        return [Shown(**picture) for picture in answer]

    def measure(self, checkpoint: Path, *, seconds: float = DRAW_SECONDS) -> HeldOut | None:
        """Computes the checkpoint's loss on held-out samples; None if nothing is held out.

        Raises:
            TrainingError: As `draw` does.
        """
        answer = self._answer({"checkpoint": str(checkpoint)}, HELD_OUT, seconds)
        return HeldOut(**answer) if answer is not None else None

    def score(self, checkpoint: Path, clip: str, *, seconds: float = DRAW_SECONDS) -> float:
        """Computes the checkpoint's CLIP score of pictures of held-out captions; `clip` names the CLIP model.

        Raises:
            TrainingError: As `draw` does.
        """
        return self._answer({"checkpoint": str(checkpoint), "clip": clip}, CLIP_SCORE, seconds)

    def _answer(self, job: dict[str, str], wanted: str, seconds: float) -> Any:
        """Gives the process a job, and returns the part `wanted` of its answer."""
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
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            # An empty line means that the process has ended, or that the watchdog has killed it.
            answer = json.loads(process.stdout.readline() or "{}")
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"The process that makes the {wanted} failed: {error}.",
                cure="Look at the line above it; the run itself goes on.",
            ) from None
        finally:
            watchdog.cancel()
        if wanted not in answer:
            raise TrainingError(
                f"The process made no {wanted}: {answer.get('error', 'it ended')}.",
                cure="Look at the line above it; the run itself goes on.",
            )
        return answer[wanted]

    def close(self) -> None:
        """Ends the process at once; a drawing under way is aborted."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def main(shards: str) -> None:
    """Answers jobs until standard input ends."""
    import signal

    import torch

    from training.publish.prompts import measure, score, show

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too, but the monitor must end it
    os.nice(NICENESS)
    with suppress(OSError):  # Linux then ends this process, and not the monitor, if the weights do not fit the memory
        Path("/proc/self/oom_score_adj").write_text("1000")
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints goes to the log, not between the answers
    for line in sys.stdin:
        job = json.loads(line)
        checkpoint = Path(job["checkpoint"])
        try:
            if "folder" in job:
                answer = {PICTURES: [asdict(one) for one in show(checkpoint, shards, Path(job["folder"]))]}
            elif "clip" in job:
                answer = {CLIP_SCORE: score(checkpoint, shards, job["clip"])}
            else:
                found = measure(checkpoint, shards)
                answer = {HELD_OUT: asdict(found) if found is not None else None}
        except Exception as error:  # the process must survive a bad checkpoint
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
