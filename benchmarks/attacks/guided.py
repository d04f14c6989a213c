"""Malformed inputs that coverage guides, for each reader of what others send: atheris, which is libFuzzer for Python.

    nox -s fuzz -- --seconds 60      (for each reader)

Each reader runs in a process of its own, whose Python code of the trainer is instrumented. An input that breaks it, or
takes longer than `HANG_SECONDS`, is written to build/fuzz/ and named, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.attacks.malformed import HANG_SECONDS, LONGEST_INPUT
from benchmarks.attacks.message_readers import READERS

MOST_MIB = 3072
"""Of memory; what is imported takes half of one GiB."""
STARTED_SECONDS = 120
"""More than an import takes on a busy machine."""


def guide(name: str, options: list[str]) -> None:
    """Feeds a reader until libFuzzer's options end it; never returns."""
    import atheris

    with atheris.instrument_imports(include=["training"]):
        from training.swarm.engine import engine

        engine.prepare()
        reader = READERS[name][0]()

    def feed(raw: bytes) -> None:
        with suppress(*reader.refuses):
            reader.read(raw)

    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(reader.seeds):
            Path(corpus, str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], *options, corpus], feed)
        atheris.Fuzz()


def guided(name: str, seconds: int, out: Path) -> tuple[int, str]:
    """Inputs that a reader got in so many seconds, and what broke it; empty if nothing did."""
    prefix = out / name.replace(" ", "-")
    options = [f"-max_total_time={seconds}", f"-timeout={HANG_SECONDS}", f"-rss_limit_mb={MOST_MIB}"]
    options += [f"-max_len={LONGEST_INPUT}", f"-artifact_prefix={prefix}-", "-print_final_stats=1"]
    command = [sys.executable, __file__, "--reader", name, *(f"--option={one}" for one in options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + STARTED_SECONDS)
    found = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    fault = "" if done.returncode == 0 else done.stderr[-1500:]
    return int(found[1]) if found else 0, fault


def main() -> int:
    """Feeds the readers in turn; 1 if one of them broke."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each reader (60)")
    parser.add_argument("--only", nargs="*", choices=READERS, default=list(READERS), help="these readers")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz", help="gets the inputs that broke a reader")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    parser.add_argument("--option", action="append", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.reader:
        guide(flags.reader, flags.option)
    flags.out.mkdir(parents=True, exist_ok=True)
    broken = 0
    for name in flags.only:
        count, fault = guided(name, flags.seconds, flags.out)
        broken += bool(fault)
        print(f"{name:25} {count:9} inputs, {'BROKEN' if fault else 'none broke it'}\n{fault}".rstrip(), flush=True)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
