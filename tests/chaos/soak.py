"""The soak: hundreds of short epochs, half of them with a round that fails, while memory, files and disk stay flat."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.table import Table

from tests.chaos.stage import BOOTSTRAP, MONITOR, Stage
from tests.chaos.table import console, say
from tests.chaos.volunteer import FAILING_ROUNDS, FORGIVING
from tests.support.programs import Programs

VOLUNTEERS = ("ada", "grace", "alan")
SHARE = 0.5
"""Share of the rounds that fail; each volunteer spoils as many of them as the others."""
RECIPE = {
    "target_batch_size": 24,
    "matchmaking_seconds": 0.6,
    "next_chunk_timeout_seconds": 1.0,
    "allreduce_timeout_seconds": 3.0,
}
"""Epochs of about a second."""
SAMPLE_SECONDS = 0.02
WARM_UP = 0.2
"""Share of the epochs after which everything that a program needs has been allocated once."""
MEASUREMENTS = 50
LARGEST_GROWTH = 0.05
"""From the first third of what is measured after the warm-up to the last."""
SMALL = {"memory": 4 << 20, "open files": 4, "disk": 256 << 10}
"""Growth below this does not count: a few pages, a connection that happens to be open, or one checkpoint more, which is
kept because it is the best."""
SECONDS_PER_EPOCH = 15.0
"""Longest, on average, before the soak gives up."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """What a program takes, all its processes together."""

    epoch: int
    memory: int
    """Bytes of its own pages; those that its processes share count once. Pages of files, such as PyTorch's libraries,
    do not count: the system drops and loads them, and shares them with all other programs."""
    files: int
    """Open files of all its processes."""
    disk: int
    """Bytes in its folders; the logs that chaos keeps are not among them."""


def soak(folder: Path, programs: Programs, *, epochs: int) -> bool:
    """Runs so many epochs and prints what grew; returns whether nothing did, and enough rounds failed."""
    own_share = 1 - (1 - SHARE) ** (1 / len(VOLUNTEERS))
    # Without forgiving, they would soon leave each other out of their groups, and no more rounds would fail.
    failing = {name: {FORGIVING: "1", FAILING_ROUNDS: str(own_share)} for name in VOLUNTEERS}
    stage = Stage(
        folder, programs, changes=RECIPE, volunteers=VOLUNTEERS, environment=failing, sample_seconds=SAMPLE_SECONDS
    )
    stage.open()
    say(f"All volunteers train; in {SHARE:.0%} of the rounds, one or another answers with an error.")
    uses: dict[str, list[Use]] = {name: [] for name in stage.programs}
    deadline, every = time.monotonic() + SECONDS_PER_EPOCH * epochs, max(epochs // MEASUREMENTS, 1)
    while (now := _epoch(stage)) < epochs:
        if time.monotonic() > deadline:
            say(f"Only {now} of {epochs} epochs have been done in {SECONDS_PER_EPOCH * epochs:.0f} s.")
            return False
        if now // every > len(uses[BOOTSTRAP]):
            for name, measured in uses.items():
                measured.append(measure(stage, name, now))
        stage.look_after()
        time.sleep(0.2)
    stage.close()
    return _show(stage, uses, epochs)


def _epoch(stage: Stage) -> int:
    return max((event["epoch"] for event in stage.events(VOLUNTEERS[0], "epoch")), default=0)


def measure(stage: Stage, name: str, epoch: int) -> Use:
    """What a program takes now."""
    memory, files = {}, 0
    root = psutil.Process(stage.programs[name].process.pid)
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error, OSError):
            memory[f"{process.pid} {process.name()}"] = _proportional_bytes(process.pid)
            files += process.num_fds()
    stage.note("memory", name=name, epoch=epoch, bytes=memory)  # to see which process grows, and when
    folders = [stage.folder / "temporary" / name]
    folders.append(stage.disk / "run" / "checkpoints" if name == MONITOR else stage.folder / "state" / name)
    return Use(epoch=epoch, memory=sum(memory.values()), files=files, disk=sum(map(_bytes_in, folders)))


def _proportional_bytes(process_id: int) -> int:
    lines = Path(f"/proc/{process_id}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def _bytes_in(folder: Path) -> int:
    total = 0
    for parent, _, files in os.walk(folder):  # unlike rglob, it does not mind a folder that is deleted meanwhile
        for name in files:
            with suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def growth(uses: list[Use], of: Callable[[Use], int]) -> tuple[float, float]:
    """Medians of the first and the last third after the warm-up.

    >>> uses = [Use(epoch=n, memory=10 + n, files=5, disk=0) for n in range(10)]
    >>> growth(uses, lambda use: use.memory), growth(uses, lambda use: use.files)
    ((12.5, 18.5), (5.0, 5.0))
    """
    measured = [of(use) for use in uses[round(len(uses) * WARM_UP) :]]
    third = max(len(measured) // 3, 1)
    return float(statistics.median(measured[:third])), float(statistics.median(measured[-third:]))


def _failed_rounds(stage: Stage) -> set[str]:
    """Epochs of which a volunteer says that a round failed, whether or not its repetition did as well."""
    said = [event["text"] for event in stage.events(VOLUNTEERS[0], "warning")]
    found = [re.match(r"Epoch (\d+).*(averaged again|was not averaged|was missed)", text) for text in said]
    return {match[1] for match in found if match}


def _show(stage: Stage, uses: dict[str, list[Use]], epochs: int) -> bool:
    table = Table("program", "of", "first third", "last third", "growth", "")
    good = True
    for name, measured in uses.items():
        parts = {"memory": lambda use: use.memory, "open files": lambda use: use.files, "disk": lambda use: use.disk}
        for what, of in parts.items():
            before, after = growth(measured, of)
            grown = (after - before) / before if before else 0.0
            flat = grown <= LARGEST_GROWTH or after - before <= SMALL[what]
            good &= flat
            shown = [
                f"{value / 2**20:.2f} MiB" if what != "open files" else f"{value:.0f}" for value in (before, after)
            ]
            table.add_row(name, what, *shown, f"{grown:+.1%}", "" if flat else "[bold red]grows[/]")
    console.print(table)
    failed = len(_failed_rounds(stage))
    say(f"Of {epochs} epochs, {failed} had a round that failed.")
    if failed < epochs * SHARE / 2:
        say("That are too few: the soak does not test what it is meant to.")
        good = False
    return good
