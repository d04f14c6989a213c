"""The simulator's record as tables: its errors, and the throughput of runs from 10 to 10 000 volunteers."""

from __future__ import annotations

from html import escape

from builder.benchmark_records import record
from builder.markup.tables import table
from calculator.swarm.forecast import MESSAGE_BYTES, PROGRESS_RECORD_BYTES
from calculator.units import show_count

STACKS = {
    "2021": "plain hivemind, the settings of 2021",
    "awaited": "this trainer, gradients awaited",
    "delayed": "this trainer, gradients delayed",
    "local": "this trainer, local updates",
    "local, overlapped": "this trainer, local updates, overlapped",
    "sparse": "this trainer, sparse local updates",
    "sparse, overlapped": "this trainer, sparse local updates, overlapped",
}
USUAL_SECONDS = 6
"""Computing time of an epoch in the usual case (benchmarks/swarm/swarm.py); the table names others only."""
SHOWN = {
    "recipe": "The 2021 recipe as it is; links of 50/100 Mbit/s",
    "timeouts": "The same, with time-outs that suit the links",
    "delayed": "Gradients delayed; links of 100/100 Mbit/s",
    "batch": "The same, with a batch of 512 samples per volunteer",
    "local": "Local updates, with an exchange after 4096 samples per volunteer",
    "beyond": "The same, if the progress record had no limits",
}
"""Settings of the sweep (`settings` in benchmarks/swarm/simulation.py), and their descriptions on the page."""


def simulation_error() -> str:
    """Worst error of the simulated cases to which no constant was fitted, as text."""
    return _worst("error")


def simulation_error_beside_computing() -> str:
    """Worst error of an epoch's time without computing, for cases to which no constant was fitted, as text."""
    return _worst("error_beside_computing")


def _worst(name: str) -> str:
    return f"{100 * max(abs(row[name]) for row in record('simulation')['cases'] if not row['fitted']):.0f}\u00a0%"


def local_losses(mode: str, name: str = "local_losses") -> str:
    """How far a mode of local updates ended above the loss of averaged gradients, as text: least to most."""
    found = _of_mode(name, mode, "loss over the synchronous one")
    return _span(found["min"] - 1, found["max"] - 1)


def local_stories(mode: str) -> str:
    """The share of unseen openings that a mode's model continued without a fault, as text: least to most."""
    found = _of_mode("local_losses", mode, "unseen openings that are continued without a fault")
    return _span(found["min"], found["max"], digits=0)


def local_exchanges(name: str = "local_losses") -> int:
    """Number of exchanges in the runs of a record of `local_losses.py`."""
    settings = record(name)["settings"]
    return settings["updates"] // settings["inner"]


def _of_mode(name: str, mode: str, figure: str) -> dict:
    return next(row for row in record(name)["results"] if row["metric"] == f"{mode}: {figure}")


def _span(low: float, high: float, digits: int = 1) -> str:
    least, most = (f"{100 * share:.{digits}f}".replace("-", "\u2212") for share in (low, high))
    return f"{least}\u00a0%" if least == most else f"{least} to {most}\u00a0%"


def most_peers() -> str:
    """The largest number of peers whose progress fits into one answer of the DHT."""
    return show_count(MESSAGE_BYTES // PROGRESS_RECORD_BYTES)


def simulation_cases() -> str:
    """HTML table: measured and simulated seconds per epoch."""
    lines = [
        (
            _swarm(row),
            f"{row['measured_seconds']:.2f}",
            f"{row['simulated_seconds']:.2f}",
            "fitted" if row["fitted"] else f"{100 * row['error']:+.1f}\u00a0%".replace("-", "\u2212"),
        )
        for row in record("simulation")["cases"]
    ]
    head = ("Swarm", "Measured, s per epoch", "Simulated, s per epoch", "Error")
    return table("Measured and simulated swarms", head, lines)


def _swarm(row: dict) -> str:
    """A description of one case."""
    speeds = [f"{speed:g}" for speed in row["speeds"]]
    uneven = f" of speeds {', '.join(speeds[:-1])} and {speeds[-1]}" if len(set(speeds)) > 1 else ""
    seconds = row["computing_seconds"]
    longer = f", {seconds:g} s of computing" if seconds != USUAL_SECONDS else ""
    slow = ", links of 20\u00a0Mbit/s" if row["rate"] == "20mbit" else ""
    return f"{row['peers']} peers{uneven}, {STACKS[row['stack']]}{longer}{slow}"


def simulation_sweep() -> str:
    """HTML table: the throughput as a share of the ideal, by setting and number of volunteers."""
    rows = [row for row in record("simulation")["sweep"] if row["setting"] in SHOWN]
    sizes = sorted({row["volunteers"] for row in rows})
    lines = []
    for setting, words in SHOWN.items():
        mine = {row["volunteers"]: row for row in rows if row["setting"] == setting}
        lines.append((escape(words), *(_reached(mine[size]) for size in sizes)))
    return table("The sweep", ("Volunteers", *map(show_count, sizes)), lines)


def _reached(row: dict) -> str:
    if row["stalled"]:
        return "no progress"
    share = row["samples_per_second"] / row["ideal_samples_per_second"]
    return f"{100 * share:.0f}\u00a0%"
