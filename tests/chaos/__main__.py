"""`python -m tests.chaos`: runs chaos, or the soak, and prints the verdict; exits with 1 if anything is wrong."""

from __future__ import annotations

import argparse
import heapq
import shutil
import sys
import tempfile
import time
from pathlib import Path

from calculator.swarm.settings import DEFAULTS, MODES
from tests.chaos import network
from tests.chaos.plan import KINDS

SEED = 20
"""Draws a fault of every kind within five minutes."""
EVERY_SECONDS = 20.0
CALM_SECONDS, SETTLE_SECONDS = 40.0, 45.0
"""Lengths of the part without faults, and of the one in which the run may recover."""
SHORT_MINUTES = 5.0
START_SECONDS, END_SECONDS = 30.0, 15.0
"""Parts of the time that starting and ending the programs take, about."""


def _flags(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nox -s chaos --", description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help=f"draws the faults ({SEED})")
    parser.add_argument("--minutes", type=float, default=SHORT_MINUTES, metavar="M", help="length of all of it (5)")
    parser.add_argument("--hours", type=float, metavar="H", help="the same, for the long form")
    parser.add_argument(
        "--every", type=float, default=EVERY_SECONDS, metavar="S", help="mean pause between faults (20)"
    )
    parser.add_argument("--only", metavar="KINDS", help=f"kinds of faults, with commas: {', '.join(KINDS)}")
    parser.add_argument(
        "--mode", choices=MODES, default=DEFAULTS.mode, help="how the volunteers exchange (%(default)s)"
    )
    parser.add_argument("--soak", type=int, metavar="EPOCHS", help="no faults, but half of the rounds fail")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs here, even if nothing is wrong")
    flags = parser.parse_args(arguments)
    flags.kinds = flags.only.split(",") if flags.only else list(KINDS)
    if unknown := set(flags.kinds) - KINDS.keys():
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; there are: {', '.join(KINDS)}")
    flags.seconds = 60 * (60 * flags.hours if flags.hours else flags.minutes)
    least = START_SECONDS + CALM_SECONDS + SETTLE_SECONDS + END_SECONDS
    if not flags.soak and flags.seconds < least + 60:
        parser.error(f"{flags.seconds:.0f} s are too few: the parts without faults take {least:.0f} s already")
    return flags


def main() -> int:
    flags = _flags(sys.argv[1:])
    try:
        network.enter(sys.argv[1:])
        from tests.support.programs import Programs, guard_tests

        guard_tests()
        folder = flags.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
        with Programs() as programs:
            good = _soak(flags, folder, programs) if flags.soak else _chaos(flags, folder, programs)
    except network.CannotRunHere as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    if good and flags.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"The logs of all programs are in {folder}.")
    return 0 if good else 1


def _chaos(flags: argparse.Namespace, folder: Path, programs) -> bool:
    from tests.chaos import faults, plan, table
    from tests.chaos.judging.evidence import gather
    from tests.chaos.judging.verdict import judge
    from tests.chaos.stage import Stage

    stage = Stage(folder, programs, mode=flags.mode)
    drawn = plan.draw(
        flags.seed,
        volunteers=stage.volunteers,
        seconds=flags.seconds - START_SECONDS - CALM_SECONDS - SETTLE_SECONDS - END_SECONDS,
        every=flags.every,
        kinds=flags.kinds,
    )
    table.show_plan(flags.seed, drawn)
    stage.open()
    stage.note("part", part="calm")
    table.say("All volunteers train. First, a part without faults.")
    _watch(stage, CALM_SECONDS)
    stage.note("part", part="chaos")
    began = time.monotonic()
    # A fault may begin at the moment at which another one ends: then the end comes first.
    actions = [(fault.begins, len(drawn) + number, faults.begin, fault) for number, fault in enumerate(drawn)]
    actions += [(fault.ends, number, faults.end, fault) for number, fault in enumerate(drawn)]
    heapq.heapify(actions)
    while actions:
        due, _, act, fault = heapq.heappop(actions)
        _watch(stage, began + due - time.monotonic())
        table.say_act(fault, over=act is faults.end)
        act(stage, fault)
    stage.note("part", part="settle")
    table.say("All faults are over.")
    _watch(stage, SETTLE_SECONDS)
    stage.note("part", part="end")
    stage.close()
    evidence = gather(folder, stage.volunteers)
    findings = judge(evidence)
    table.show(evidence, findings)
    return all(finding.good for finding in findings)


def _watch(stage, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        stage.look_after()
        time.sleep(min(0.5, max(until - time.monotonic(), 0.0)))


def _soak(flags: argparse.Namespace, folder: Path, programs) -> bool:
    from tests.chaos.soak import soak

    return soak(folder, programs, epochs=flags.soak)


if __name__ == "__main__":
    sys.exit(main())
