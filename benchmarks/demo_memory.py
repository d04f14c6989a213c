"""Memory of the whole demo: pictures, codec, bootstrap peer, monitor, three volunteers and the drawing.

    python benchmarks/demo_memory.py --json benchmarks/results/demo_memory.json      (Linux)

Adds up, every half second, what all processes of the demo hold: for each its proportional set size (PSS), in which
memory that several processes share counts once. There is nothing to compare with, so no peer stands beside the figure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from memory_report import record, result  # noqa: E402

LOOK_SECONDS = 0.5
EPOCHS = 12
"""Pictures are drawn and a checkpoint is saved after ten."""


def main() -> int:
    """Runs the demo from nothing, and prints or records the most memory that it held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    chosen = parser.parse_args()
    import hivemind
    import torch

    with tempfile.TemporaryDirectory() as folder:
        most, processes = most_memory([sys.executable, "-m", "training", "demo", "--epochs", str(EPOCHS)], Path(folder))
    print(f"The demo held at most {most / 1e9:.2f} GB, in {processes} processes.")
    if chosen.json:
        entry = result("the demo with three volunteers: memory at most", "bytes", most)
        versions = {module.__name__: module.__version__ for module in (torch, hivemind)}
        record(chosen.json, "demo_memory", versions, [entry], epochs=EPOCHS, processes=processes)
    return 0


def most_memory(command: list[str], folder: Path) -> tuple[int, int]:
    """Runs a command; the most bytes that it and its children held, and in how many processes.

    Raises:
        RuntimeError: If it fails.
    """
    import psutil

    with (folder / "log").open("w+") as log:
        program = subprocess.Popen([*command, "--run-dir", str(folder / "run")], cwd=ROOT, stdout=log, stderr=log)
        most, processes = 0, 0
        while program.poll() is None:
            with suppress(psutil.NoSuchProcess):
                family = [psutil.Process(program.pid), *psutil.Process(program.pid).children(recursive=True)]
                held = sum(pss_bytes(process.pid) for process in family)
                if held > most:
                    most, processes = held, len(family)
            time.sleep(LOOK_SECONDS)
        if program.returncode:
            log.seek(0)
            raise RuntimeError(f"The demo failed: {log.read()[-2000:]}")
    return most, processes


def pss_bytes(process: int) -> int:
    """A process's proportional set size; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
