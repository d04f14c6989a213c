"""Prepares the demo's run: draws pictures or writes stories, and makes shards of them."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from training.demo.children import Part, sweep
from training.demo.config import DemoConfig
from training.demo.display import LINE_SECONDS
from training.model.codecs.config import CodecConfig
from training.processes.interruption import Interrupted, Stop
from training.recipe import RunConfig

CODEC = Path(__file__).parents[1] / "data" / "demo" / "codec"
"""Codec of the recipe `demo`, trained by `prepare` on 12 000 drawn pictures. To make it again:

    python -m training draw --out pictures
    python -m training prepare --images pictures --captions pictures/captions.jsonl --out shards
    cp shards/codec.* training/data/demo/codec/

Training takes two minutes on two cores. With OMP_NUM_THREADS=1 and on a machine of the same kind, it gives the same
bytes."""


def prepare(config: DemoConfig, run: RunConfig, console: Console, stop: Stop) -> None:
    """Draws the pictures, or writes the stories, and makes the shards, unless they exist from an earlier start.

    Raises:
        Interrupted: If a signal arrives.
        TrainingError: If a command has failed.
    """
    shards = config.run_dir / "shards"
    if (shards / "manifest.json").is_file():
        console.print(f"Shards are ready in {shards}.")
    elif run.kind == "pictures":
        _prepare_pictures(config, run, console, stop, shards)
    else:
        _prepare_stories(config, run, console, stop, shards)


def _prepare_stories(config: DemoConfig, run: RunConfig, console: Console, stop: Stop, shards: Path) -> None:
    stories = config.run_dir / "stories"
    if not stories.is_dir():
        _work(config, console, stop, "stories", "--out", str(stories), "--count", str(config.stories))
    from training.tasks.known import task_of  # loads torch, which takes seconds

    sizes = ("--vocabulary", str(task_of(run).vocab_size), "--block-length", str(run.model.block_length))
    _work(config, console, stop, "prepare", "--text", str(stories), *sizes, "--out", str(shards))


def _prepare_pictures(config: DemoConfig, run: RunConfig, console: Console, stop: Stop, shards: Path) -> None:
    images = config.run_dir / "images"
    captions = images / "captions.jsonl"
    if not captions.is_file():
        _work(config, console, stop, "draw", "--out", str(images), "--count", str(config.pictures))
    _work(
        *(config, console, stop, "prepare"),
        *("--recipe", config.recipe, "--images", str(images)),
        *("--captions", str(captions), "--out", str(shards)),
        *(("--codec", str(CODEC / "codec.safetensors")) if fits(run.codec) else ()),
    )


def fits(codec: CodecConfig) -> bool:
    """Returns whether the shipped codec is one that a recipe asks for."""
    shipped = json.loads((CODEC / "codec.json").read_text(encoding="utf-8"))["config"]
    return codec.model_dump() == shipped | {"weights": None}


def _work(config: DemoConfig, console: Console, stop: Stop, command: str, *arguments: str) -> None:
    """Runs a command to its end; shows its progress bars on a terminal, otherwise its lines and signs of life."""
    console.print(f"{command}: starting ...")
    part = Part(
        command,
        [*config.python, command, *arguments],
        config.run_dir / "logs" / f"{command}.log",
        output=console.file.fileno() if console.is_terminal else subprocess.PIPE,
        threads=None,  # nothing else computes yet, so it may use all cores
    )
    try:
        _await_end(part, console, stop)
        if part.exit_code:
            raise part.failure("failed")
    except Interrupted:
        part.send(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            part.process.wait(3)
        raise
    finally:
        sweep([part])


def _await_end(part: Part, console: Console, stop: Stop) -> None:
    """Waits for a part's end; if its output goes to a pipe, copies it to log and console."""
    started = time.monotonic()
    said = [started]
    reader = threading.Thread(target=_copy_output, args=(part, console, said), daemon=True)
    if part.process.stdout is not None:
        reader.start()
    while part.exit_code is None:
        stop.wait(0.2)
        if reader.is_alive() and time.monotonic() - said[0] >= LINE_SECONDS:
            said[0] = time.monotonic()
            console.print(f"{part.name}: at work for {time.monotonic() - started:.0f} s")
    if reader.is_alive():
        # The part has ended, but its last lines may still be in the pipe.
        reader.join(5)


def _copy_output(part: Part, console: Console, said: list[float]) -> None:
    """Copies a part's lines to its log and the console, and notes the time in `said`."""
    with part.log.open("a", encoding="utf-8") as log:
        for line in part.process.stdout:
            log.write(line.decode(errors="replace"))
            if text := line.decode(errors="replace").rstrip():
                said[0] = time.monotonic()
                console.print(f"{part.name}: {text}", markup=False)
