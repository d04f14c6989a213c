"""Attacks on runs and on readers of what others send: the table of scenarios, and the program that runs them.

    python benchmarks/attacks/attacks.py byzantine --json benchmarks/results/byzantine.json
    python benchmarks/attacks/attacks.py audits "lies to one"
    python benchmarks/attacks/attacks.py attacked_runs tickets --small
    python benchmarks/attacks/attacks.py malformed --guided 60

The first word names a kind of attack, the others some of its scenarios; without them all are run:

- byzantine: hostile peers in a swarm that trains (an hour on two free cores);
- audits: checks of reducers, and reducers that lie (ten minutes);
- attacked_runs: runs of real programs that one volunteer attacks (a quarter of an hour);
- malformed: malformed inputs for each reader of what others send (an hour; with `--guided` coverage guides them).

A record keeps its results of other scenarios. With `--small` each scenario takes seconds and shows only that it runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record

KINDS = ("byzantine", "audits", "attacked_runs", "malformed")
"""Modules of this folder, each with the table `SCENARIOS`, the function `measure` and the `PACKAGES` that matter."""


def main(arguments: list[str] | None = None) -> int:
    """Runs scenarios, prints their results, and writes the record if asked; returns 1 if a guided input broke one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("scenarios", nargs="*", help="some of the kind's scenarios; `--list` names them")
    parser.add_argument("--list", action="store_true", help="print the scenarios of the kind, and end")
    parser.add_argument("--small", action="store_true", help="as small as possible; not for a record")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="runs or readers at a time (1)")
    parser.add_argument("--guided", type=int, metavar="SECONDS", help="for each reader, inputs that coverage guides")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the record, which keeps its other results")
    flags = parser.parse_intermixed_args(arguments)
    module = importlib.import_module(f"benchmarks.attacks.{flags.kind}")
    if flags.list:
        print(*module.SCENARIOS, sep="\n")
        return 0
    scenarios = flags.scenarios or list(module.SCENARIOS)
    if unknown := set(scenarios) - set(module.SCENARIOS):
        parser.error(f"{flags.kind} has no scenario {min(unknown)!r}; `--list` names them.")
    if flags.guided:
        return int(any([module.guided(name, flags.guided) for name in scenarios]))
    earlier = json.loads(flags.json.read_text(encoding="utf-8")) if flags.json and flags.json.exists() else {}
    content = module.measure(scenarios, earlier, small=flags.small, processes=flags.processes)
    for one in content["results"]:
        peer = "" if one["peer"] is None else f"{one['peer']:14.4g} {one['peer_name']}"
        print(f"{one['metric']:<110}{one['ours']:12.4g} {one['unit']}{peer}")
    if flags.json:
        results = content.pop("results")
        record(flags.json, "attacks", {name: version(name) for name in module.PACKAGES}, results, **content)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
