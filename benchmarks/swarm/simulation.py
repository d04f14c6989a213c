"""The simulator compared with measured swarms and with the closed form, and simulated runs of 10 to 10 000 volunteers.

    python benchmarks/swarm/simulation.py --json benchmarks/results/simulation.json

Two constants are fitted, each to one measured swarm of two peers: the time per micro-batch besides computing, and the
share of a link's rate that an average reaches. The other cases do not influence the fit: three and four peers, plain
hivemind, peers of speeds 1, 2 and 4, epochs of a minute, and local updates. The measurements are the records of
`benchmarks/swarm/swarm.py` that `RECORDS` names. The sweep over the number of volunteers takes half a minute.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.record import record, result
from calculator.swarm.collaboration import Kind
from calculator.swarm.exchange import Link
from calculator.swarm.forecast import COSTS, Costs, ExchangedVectors, Volunteers, forecast
from calculator.swarm.settings import SPARSE_STATES_EVERY
from training.recipe import load_recipe
from training.simulate.forecast import Outcome, collaboration_of, simulate
from training.simulate.population import Spread
from training.simulate.swarm import Rules

OVERLAPPED = ", overlapped"
"""End of the name of a stack with `delay_outer_step`."""
MODES = {"delayed": "delayed", "local": "diloco", "sparse": "sparse"}
"""Modes of the stacks, overlapped or not; the others await gradients."""
RECORDS = (
    "swarm.json", "swarm_awaited.json", "swarm_speeds.json", "swarm_minute.json", "swarm_local.json", "swarm_slow.json",
    "swarm_overlapped.json",
)  # fmt: skip
"""These contain each kind of swarm; the other records repeat some of them, with a death or with newcomers."""
PARAMETERS, SECONDS_A_SAMPLE, SECONDS_AN_EPOCH, MICRO_BATCH = 20_000_000, 0.125, 6.0, 4
"""The same as in benchmarks/swarm/swarm.py."""
USUAL_RATE = "100mbit"
BYTES_PER_SECOND = {USUAL_RATE: 12.5e6, "20mbit": 2.5e6}
STACKS = {
    "hivemind with the settings of 2021": "2021",
    "ours, gradients awaited": "awaited",
    "ours, gradients delayed": "delayed",
    "ours, local updates": "local",
    "ours, local updates, overlapped": "local, overlapped",
    "ours, sparse updates": "sparse",
    "ours, sparse updates, overlapped": "sparse, overlapped",
}
METRIC = re.compile(r"(\d+) peers(?: of speeds ((?:[\d.]+, )*[\d.]+))?, (.*): seconds an epoch")
SWEPT = (10, 30, 100, 300, 1000, 3000, 10_000)
SWEPT_KIND = dict(gpu="t4", micro_batch_size=4, present=0.5, session_hours=8.0)
PATIENT = dict(allreduce_timeout_seconds=600.0, averaging_timeout_seconds=900.0, next_chunk_timeout_seconds=120.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measured swarm."""

    stack: str
    """A value of `STACKS`."""
    speeds: tuple[float, ...]
    """Speed of each peer, in multiples of the usual speed."""
    computing_seconds: float
    """Computing time of an epoch when all peers compute together."""
    rate: str
    """Rate of each link; a key of `BYTES_PER_SECOND`."""
    measured: float
    """Seconds per epoch."""

    @property
    def fitted(self) -> bool:
        """True if a constant is fitted to this case."""
        usual = self.speeds == (1.0, 1.0) and self.computing_seconds == SECONDS_AN_EPOCH
        return usual and self.rate == USUAL_RATE and self.stack in ("awaited", "delayed")

    @property
    def words(self) -> str:
        """A description of the case."""
        uneven = f" of speeds {', '.join(f'{speed:g}' for speed in self.speeds)}" if len(set(self.speeds)) > 1 else ""
        longer = f", {self.computing_seconds:g} s of computing" if self.computing_seconds != SECONDS_AN_EPOCH else ""
        slower = f", {self.rate}" if self.rate != USUAL_RATE else ""
        return f"{len(self.speeds)} peers{uneven}, {self.stack}{longer}{slower}"

    def kinds(self) -> list[Volunteers]:
        """Its peers for the simulator; peers of equal speed are of one kind."""
        rate = BYTES_PER_SECOND[self.rate]
        link = Link(up_bytes_per_second=rate, down_bytes_per_second=rate)
        return [
            Volunteers(
                count=self.speeds.count(speed),
                samples_per_second=speed / SECONDS_A_SAMPLE,
                micro_batch_size=MICRO_BATCH,
                link=link,
            )
            for speed in dict.fromkeys(self.speeds)
        ]

    def rules(self, costs: Costs = COSTS) -> Rules:
        """The swarm's settings for the simulator, as in benchmarks/swarm/swarm.py."""
        old, mode = self.stack == "2021", MODES.get(self.stack.removesuffix(OVERLAPPED), "synchronous")
        exchange = ExchangedVectors(
            parameters=PARAMETERS,
            target_batch_size=int(self.computing_seconds / SECONDS_A_SAMPLE * sum(self.speeds)),
            gradient_codec="uniform8" if old else "blockwise8",
            state_bits=8 if old else 16,
            average_state_every=1 if old else SPARSE_STATES_EVERY if mode == "sparse" else 25,
            mode=mode,
            delay_outer_step=self.stack.endswith(OVERLAPPED),
            matchmaking_seconds=1.5,
        )
        return Rules(exchange=exchange, costs=costs, patient=not old, request_timeout_seconds=1.0)

    def simulated(self, costs: Costs = COSTS) -> float:
        """Simulated seconds per epoch."""
        return simulate(self.kinds(), self.rules(costs), epochs=5, spread=Spread.none()).epoch_seconds


def measured_cases(folder: Path = ROOT / "benchmarks" / "results") -> Iterator[Case]:
    """All recorded cases; if several records have a case, the last one counts."""
    found = {}
    for name in RECORDS:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        link = content["link"]
        for entry in content["results"]:
            if not (told := METRIC.fullmatch(entry["metric"])):
                continue
            peers, speeds, stack = told.groups()
            case = Case(
                stack=STACKS[stack],
                speeds=tuple(map(float, speeds.split(", "))) if speeds else (1.0,) * int(peers),
                computing_seconds=link.get("epoch_seconds", SECONDS_AN_EPOCH),
                rate=link["rate"],
                measured=entry["ours"],
            )
            found[case.words] = case
            if entry["peer"]:
                old = replace(case, stack="2021", measured=entry["peer"])
                found[old.words] = old
    yield from found.values()


def fit(cases: list[Case]) -> Costs:
    """The constants that make the simulator agree with the two fitted cases."""
    delayed, awaited = (
        next(case for case in cases if case.fitted and case.stack == kind) for kind in ("delayed", "awaited")
    )
    steps = SECONDS_AN_EPOCH / SECONDS_A_SAMPLE / MICRO_BATCH
    beside = (delayed.measured - SECONDS_AN_EPOCH) / steps / PARAMETERS
    costs = replace(COSTS, step_seconds_per_parameter=beside)

    def too_slow(share: float) -> bool:
        return awaited.simulated(replace(costs, link_share=share)) > awaited.measured

    return replace(costs, link_share=_bisect(too_slow, 0.3, 1.2))


def _bisect(above: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return (low + high) / 2


def compare(case: Case, costs: Costs) -> dict:
    """Seconds per epoch of a case: measured, simulated, and by the closed form; and the errors of the simulation."""
    simulated, computing = case.simulated(costs), case.computing_seconds
    return {
        "stack": case.stack,
        "peers": len(case.speeds),
        "speeds": case.speeds,
        "computing_seconds": computing,
        "rate": case.rate,
        "fitted": case.fitted,
        "measured_seconds": case.measured,
        "simulated_seconds": simulated,
        "error": simulated / case.measured - 1,
        "error_beside_computing": (simulated - computing) / (case.measured - computing) - 1,
        "closed_form_seconds": forecast(case.kinds(), case.rules(costs).exchange, costs).epoch_seconds,
    }


def settings() -> dict[str, tuple[str, dict, dict, bool]]:
    """Settings of the sweep: description, changes of the recipe, links, whether the progress record limits the run."""
    home, good = dict(up_megabits=50.0, down_megabits=100.0), dict(up_megabits=100.0, down_megabits=100.0)
    grown = dict(mode="delayed", average_state_every=25, state_bits=16, **PATIENT)
    return {
        "recipe": ("dalle-2021 as it is, links of 50/100 Mbit/s", {}, home, True),
        "timeouts": ("the same with time-outs that suit the links", PATIENT, home, True),
        "delayed": ("gradients delayed, parameters rarely averaged, 100/100 Mbit/s", grown, good, True),
        "batch": ("the same, 512 samples per volunteer and epoch", grown | {"batch_a_volunteer": 512}, good, True),
        "local": (
            "local updates, 4096 samples per volunteer between exchanges",
            PATIENT | {"mode": "diloco", "average_state_every": 10**6, "batch_a_volunteer": 4096}, good, True,
        ),
        "beyond": (
            "the same, if the progress record had no limits",
            PATIENT | {"mode": "diloco", "average_state_every": 10**6, "batch_a_volunteer": 4096}, good, False,
        ),
    }  # fmt: skip


def sweep(volunteers: int, name: str, epochs: int = 12, seed: int = 0) -> Outcome:
    """Simulates one setting with a number of volunteers."""
    _, changes, link, limited = settings()[name]
    changes = dict(changes)
    averaging = changes.pop("averaging_timeout_seconds", 180.0)
    a_volunteer = changes.pop("batch_a_volunteer", None)
    run = load_recipe("dalle-2021")
    collaboration = collaboration_of(run, [Kind(count=volunteers, **SWEPT_KIND, **link)])
    if a_volunteer:
        changes["target_batch_size"] = max(1, round(a_volunteer * volunteers * SWEPT_KIND["present"]))
    collaboration = replace(collaboration, **changes)
    rules = Rules(exchange=collaboration.exchange(), averaging_timeout_seconds=averaging, progress_limited=limited)
    return simulate(collaboration.kinds(), rules, epochs=epochs, seed=seed)


def main(arguments: list[str] | None = None) -> None:
    """Prints the tables; writes the JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result")
    flags = parser.parse_args(arguments)
    cases = sorted(
        measured_cases(), key=lambda case: (case.stack, case.computing_seconds, len(set(case.speeds)), case.words)
    )
    costs = fit(cases)
    beside, share = costs.step_seconds_per_parameter, costs.link_share
    print(f"fitted: {beside:.3g} s per parameter and micro-batch, {share:.3f} of a link's rate")
    compared = [compare(case, costs) for case in cases]
    print(f"\n{'':<40}{'measured':>10}{'simulated':>11}{'error':>8}{'closed form':>13}")
    for case, row in zip(cases, compared, strict=True):
        print(
            f"{case.words:<40}{row['measured_seconds']:>9.2f}s{row['simulated_seconds']:>10.2f}s"
            f"{row['error']:>+8.1%}{row['closed_form_seconds']:>12.2f}s{'  fitted' if row['fitted'] else ''}"
        )
    swept = []
    for name, (words, *_) in settings().items():
        print(f"\n{words}\n{'volunteers':>12}{'peers':>8}{'samples/s':>11}{'of ideal':>10}{'epoch':>9}{'took':>8}")
        for volunteers in SWEPT:
            outcome = sweep(volunteers, name)
            swept.append({"setting": name, "words": words} | asdict(outcome))
            epoch = "stalled" if outcome.stalled else f"{outcome.epoch_seconds:.0f} s"
            print(
                f"{volunteers:>12,}{outcome.peers:>8,.0f}{outcome.samples_per_second:>11,.1f}"
                f"{outcome.throughput_over_ideal:>10.1%}{epoch:>9}{outcome.wall_seconds:>7.1f}s  "
                + "; ".join(limit.partition(":")[0] for limit in outcome.limits)
            )
    if flags.json:
        held_out = [abs(row["error"]) for row in compared if not row["fitted"]]
        entries = [
            result(
                f"{case.words}: seconds an epoch", "s", row["simulated_seconds"],
                peer=row["measured_seconds"], peer_name="the measured swarm",
            )
            for case, row in zip(cases, compared, strict=True)
        ]  # fmt: skip
        entries.append(result("worst error of a case that is held out", "", max(held_out)))
        record(flags.json, "simulation", {}, entries, fitted=asdict(costs), cases=compared, sweep=swept)


if __name__ == "__main__":
    main()
