"""Draws the run's fixed prompts from a checkpoint, in a separate process of low priority.

`PictureDrawer` is the monitor's end; `main` is the process. It reads one job per line from standard input and writes
one answer per line to standard output, until the input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from training.errors import BadInput, TrainingError
from training.publish.history import Picture
from training.storage.whole import whole_file

if TYPE_CHECKING:
    import numpy as np

NICENESS = 15
"""How much the process yields to volunteers on the same machine; 19 is the most."""

DRAW_SECONDS = 600.0
"""A drawing that takes longer is aborted."""


class PictureDrawer:
    """Draws in a background process, which starts with the first job.

    Args:
        shards: Folder or URL of the prepared shards: the codec and the tokenizer are read from there.
        log: The process's error output is appended here.
    """

    def __init__(self, shards: str, log: BinaryIO):
        self._shards = shards
        self._log = log
        self._process: subprocess.Popen | None = None

    def draw(self, checkpoint: Path, folder: Path, *, seconds: float = DRAW_SECONDS) -> list[Picture]:
        """Draws the checkpoint's prompts into `folder/NAME/NUMBER.png`, judged where the judge knows the words.

        NAME is the checkpoint's epoch; in a branch its lineage follows, so that pictures of before stay.

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
        return [Picture(**picture) for picture in answer["pictures"]]

    def close(self) -> None:
        """Ends the process at once; a drawing under way is aborted."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def main(shards: str) -> None:
    """Answers jobs until standard input ends."""
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too, but the monitor must end it
    os.nice(NICENESS)
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints goes to the log, not between the answers
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = {"pictures": _draw(shards, Path(job["checkpoint"]), Path(job["folder"]))}
        except Exception as error:  # the process must survive a bad checkpoint
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def _draw(shards: str, checkpoint_path: Path, folder: Path) -> list[dict]:
    """The fields of a `Picture` for each of the recipe's prompts, always drawn with the same seeds."""
    from training.checkpoints.branches import folder_name
    from training.checkpoints.checkpoint import load_checkpoint
    from training.generate.pictures import Sampling, draw_prompts, load_codec_and_tokenizer

    checkpoint = load_checkpoint(checkpoint_path)
    codec, tokenizer = load_codec_and_tokenizer(checkpoint, shards)
    monitor = checkpoint.config.monitor
    drawn = draw_prompts(
        checkpoint.model,
        codec,
        tokenizer,
        monitor.prompts,
        sampling=Sampling.of_recipe(monitor),
        seed=checkpoint.config.seed,
    )
    name = folder_name(checkpoint_path)
    (folder / name).mkdir(parents=True, exist_ok=True)
    pictures = []
    for number, picture in enumerate(drawn):
        file = f"{name}/{number}.png"
        _write_png(picture.pixels, folder / file)
        shape, colour = _judged(picture.pixels, picture.prompt)
        pictures.append({"prompt": picture.prompt, "file": file, "shape": shape, "colour": colour})
    return pictures


def _judged(pixels: np.ndarray, prompt: str) -> tuple[bool | None, bool | None]:
    """Whether shape and colour are right; None if the judge does not know the prompt's words."""
    from training.generate.judge import judge

    try:
        verdict = judge(pixels, prompt)
    except BadInput:
        return None, None
    return bool(verdict.shape), bool(verdict.colour)


def _write_png(pixels: np.ndarray, path: Path) -> None:
    from PIL import Image

    with whole_file(path) as draft:
        Image.fromarray(pixels).save(draft, format="PNG")


if __name__ == "__main__":
    main(sys.argv[1])
