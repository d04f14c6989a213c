"""Losses of runs with hostile peers, for the page on security: measured, from the benchmark's record."""

from __future__ import annotations

import html

from builder.benchmark_records import record, recorded
from builder.markup.tables import stacked
from calculator.units import show_count
from training.swarm.config import SwarmConfig

RECORD = "byzantine"
CHECKS = "audits"
"""Name of the record of checks of reducers."""
MALFORMED = "malformed"
"""Name of the record of malformed inputs."""
HOSTILE_OF_25, HOSTILE_OF_53 = 5, 12
WHAT_THEY_SEND = {
    "sign flip": "minus the honest mean",
    "IPM": "minus twice the honest mean",
    "IPM, best": "minus the honest mean, as often as harms most",
    "ALIE": "the honest mean, off by 1.5 standard deviations in each value",
    "ALIE, best": "the same, off by as much as harms most",
    "mimic": "what one honest peer sends",
    "Gaussian": "noise that is far larger than gradients",
    "infinite": "infinity",
    "label flip": "honest gradients of wrong pictures",
    "not a number": "NaN",
    "weight 1e9": "minus the honest mean, said to be of a billion samples",
    "copied": "the last average",
    "times -1000": "the honest mean times -1000",
    "parameters": "honest gradients, but 0.5 for all parameters, with a weight of a billion",
    "reducer": "honest gradients; answers with averages times -1000",
    "reducer, hidden": "honest gradients; answers with averages that are off by 1.5 standard deviations",
    "reducer, silent": "honest gradients; answers with minus the averages, and shows nothing to those who check",
    "reducer, every other time": "the same in every other average, and honest in between",
}
"""Attack -> description of the hostile peers' gradients, in the order of the table."""


def hostile_table() -> str:
    """HTML table: for each attack the losses over those of a run in which nobody is hostile.

    Raises:
        ValueError: If the record has an attack that the table does not explain, or lacks one.
    """
    quarter, twelve = (_by_attack(f"loss over clean, {group} hostile:") for group in ("5 of 25", "12 of 53"))
    seven = _by_attack("updates until back")
    if quarter.keys() != WHAT_THEY_SEND.keys():
        raise ValueError(f"benchmarks/results/{RECORD}.json has other attacks than {__name__}; change WHAT_THEY_SEND.")
    rows = [
        (
            f"{html.escape(attack)} <small>{html.escape(sent)}</small>",
            _percent(quarter[attack]["peer"]),
            _percent(quarter[attack]["ours"]),
            _percent(quarter[attack]["max"]),
            _percent(twelve[attack]["ours"]),
            f"{seven[attack]['ours']:.0f}",
        )
        for attack, sent in WHAT_THEY_SEND.items()
    ]
    columns = (
        "Attack",
        "Mean, 5 of 25",
        "CenteredClip, 5 of 25",
        "its worst seed",
        "CenteredClip, 12 of 53",
        "7 of 16: updates until recovered",
    )
    return stacked("Loss with hostile peers, compared with a run without", columns, rows, kind="numbers percents")


def over_many_seeds(attack: str) -> str:
    """Mean rise of the loss with its standard error, such as "2.5 ± 0.3 %"."""
    found = _by_attack("loss over clean, 5 of 25 hostile, mean of many seeds")[attack]
    more = f"{100 * (found['ours'] - 1):.1f}".replace("-", "\u2212")
    return f"{more}\u00a0±\u00a0{100 * found['error']:.1f}\u00a0%"


def seeds() -> str:
    """Number of runs of each attack, as text."""
    return str(_by_attack("loss over clean, 5 of 25 hostile, mean of many seeds")["mimic"]["runs"])


def liars() -> dict[str, str]:
    """Updates until the last of five lying reducers among 25 was left out, and of 12 among 53 that hide their lies.

    Has also the number left out of 12 reducers that lie every other time.

    Raises:
        ValueError: If one of them was never left out: then the page must say so.
    """
    found, last = _by_attack("loss over clean, 5 of 25 hostile:"), {}
    kinds = {"proven": ("reducer", "reducer, hidden"), "silent": ("reducer, silent",)}
    for name, attacks in {**kinds, "alternating": ("reducer, every other time",)}.items():
        runs = [run for attack in attacks for run in found[attack]["left_out_after"]]
        if any(len(run) < HOSTILE_OF_25 for run in runs):
            raise ValueError(f"benchmarks/results/{RECORD}.json has reducers that lie and stay; change the page.")
        last[name] = str(max(map(max, runs)))
    of_53 = _by_attack("loss over clean, 12 of 53 hostile:")
    (silent,) = of_53["reducer, silent"]["left_out_after"]
    (alternating,) = of_53["reducer, every other time"]["left_out_after"]
    if len(silent) < HOSTILE_OF_53:
        raise ValueError(f"benchmarks/results/{RECORD}.json has reducers that lie and stay; change the page.")
    return {**last, "of_53": str(max(silent)), "alternating_of_53": str(len(alternating))}


def without_momentum(attack: str) -> str:
    """Rise of the loss if peers send gradients in place of momentum."""
    return _more(_by_attack("loss over clean without momentum")[attack]["ours"])


def clipping_cost() -> str:
    """Additional CPU time of a run in which nobody is hostile."""
    return _more(next(iter(_by_attack("CPU seconds of").values()))["ratio"])


def checks() -> dict[str, str]:
    """Facts about checks of reducers, from the benchmark's record and the default of recipes.

    Raises:
        ValueError: If an honest peer was accused: then the page must not say that none was.
    """
    if _check("honest peers that were accused")["ours"]:
        raise ValueError(f"benchmarks/results/{CHECKS}.json has honest peers that were accused; change the page.")
    cpu = _check("CPU of an honest average")
    return {
        "share": f"{100 * SwarmConfig.model_fields['audit_share'].default:.0f}\u00a0%",
        "lies_to_all": _averages(_check("averages until a reducer that lies to all ")),
        "lies_to_one": _averages(_check("averages until a reducer that lies to one ")),
        "count": show_count(_check("honest answers: distance")["runs"]),
        "seconds": f"{cpu['ours']:.2f}\u00a0s",
        "seconds_without": f"{cpu['peer']:.2f}\u00a0s",
        "numbers": show_count(cpu["values"]),
    }


def malformed() -> str:
    """Number of malformed inputs that were tried; none broke a reader.

    Raises:
        ValueError: If an input has broken a reader.
    """
    found = {one["metric"]: one["ours"] for one in record(MALFORMED)["results"]}
    if found["malformed inputs that broke a reader"]:
        raise ValueError(f"benchmarks/results/{MALFORMED}.json has an input that broke a reader; change the page.")
    return show_count(found["malformed inputs tried"])


def _averages(named: dict) -> str:
    """Words for a range, such as "4 averages (1 to 9 in 8 runs)"."""
    count = round(named["ours"])
    averages = "average" if count == 1 else "averages"
    return f"{count}\u00a0{averages} ({named['min']:.0f} to {named['max']:.0f} in {named['runs']} runs)"


def _check(beginning: str) -> dict:
    return next(one for one in recorded(CHECKS) if one["metric"].startswith(beginning))


def _by_attack(beginning: str) -> dict[str, dict]:
    """Results whose names begin with `beginning`, by the attack at the name's end."""
    found = [one for one in recorded(RECORD) if one["metric"].startswith(beginning)]
    return {one["metric"].rpartition(": ")[2]: one for one in found}


def _percent(over_clean: float) -> str:
    """A loss over that of the clean run, as a difference unless that is many times the loss."""
    if over_clean >= 10:
        return f"{over_clean:.0f}\u00a0times"
    return f"{100 * (over_clean - 1):+.1f}\u00a0%".replace("-", "−")


def _more(ratio: float) -> str:
    """A ratio above 1, as a difference within a sentence."""
    return f"{100 * (ratio - 1):.0f}\u00a0%"
