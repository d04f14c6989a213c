"""The records of the benchmarks as tables: a summary, and a section for each record with its date and machine."""

from __future__ import annotations

import html
import re

from builder.benchmark_records import MEASURED, age, record
from builder.folders import RESULTS
from builder.markup.tables import stacked
from calculator.units import show_bytes, show_count
from training.recipe import load_recipe, recipe_names

OTHER_PAGE = {"memory_accuracy": "All errors, and the worst cases, are on the page [Accuracy](../accuracy.md)."}
"""Records that another page shows, and the sentence that replaces the table."""

DESCRIPTIONS = {
    "attacked_runs": "Three runs of real programs that one volunteer attacks: by the mean, with CenteredClip, and with "
    "tickets and a ban.",
    "audits": "Checks of reducers: their cost for four peers of one process, none of which lies, and after how many "
    "averages a reducer that lies in each is named.",
    "byzantine": "The loss of a swarm with hostile peers: weighted mean and CenteredClip, under byzfl's attacks and "
    "this trainer's own.",
    "local_losses_long": "As `local_losses`, with a model of a fifth of the weights, five times as many updates, and "
    "one seed (`--hidden 64 --layers 2 --updates 2000`).",
    "local_losses_small": "The loss of `sparse` alone, with a model of a fifth of the weights "
    "(`--hidden 64 --layers 2`).",
    "malformed": "Malformed inputs for each reader of what others send: how many were tried, and what broke.",
    "same_run_adapters": "The loss of two real peers compared with one process on the same samples, and the bytes of "
    "an epoch compared with the calculator's, with adapters of a language model (`--model adapters`).",
    "same_run_text": "The same with the language model of the recipe `stories` (`--model text`).",
    "swarm_awaited": "Swarms whose peers wait for the averaged gradients before they compute the next epoch.",
    "swarm_death": "The time from the death of a peer in the middle of an average to the next complete update "
    "(`--death`).",
    "swarm_local": "Local updates, with one exchange after twenty minutes of computing.",
    "swarm_minute": "The share of time in which peers compute, with epochs of a minute (`--epoch-seconds 60`).",
    "swarm_newcomer": "The time from the start of a newcomer's program to its first samples, for eight newcomers, one "
    "after the other.",
    "swarm_slow": "Sparse local updates on links of 20 Mbit/s, with an exchange after twelve seconds of computing.",
    "swarm_overlapped": "Local updates in 8 bits on links of 20 Mbit/s, whose exchange lasts as long as the next "
    "stretch computes.",
    "swarm_speeds": "The shares of samples of three peers, whose speeds are in the ratio of 1, 2 and 4.",
}
"""Descriptions of records that programs made with other flags; the others have the description of their program."""

MOST_OPEN_ROWS = 4
"""Most rows of a table that is shown open; longer tables are folded."""

MAIN_FIGURES = {
    "audits": "lies to all",
    "byzantine": "5 of 25 hostile: ALIE",
    "dashboard": "is opened, CPU time alone",
    "local_losses": "sparse: loss over",
    "local_losses_small": "sparse: loss over",
    "local_losses_long": "sparse: loss over",
    "malformed": "inputs that broke",
    "memory_accuracy": "peak on the GPU: worst error",
    "simulation": "worst error of a case",
    "swarm": "throughput over ideal",
    "swarm_awaited": "throughput over ideal",
    "swarm_death": "death",
    "swarm_local": "computing share",
    "swarm_minute": "computing share",
    "swarm_newcomer": "newcomer seconds",
    "swarm_overlapped": "computing share",
    "swarm_slow": "throughput over ideal",
    "swarm_speeds": "share of samples",
}
"""Words that the name of a record's main figure contains; the main figure of other records is their first."""


MODES = {
    "gradients awaited": "synchronous",
    "gradients delayed": "delayed",
    "local updates": "diloco",
    "local updates, overlapped": "diloco",
    "sparse updates": "sparse",
    "sparse updates, overlapped": "sparse",
}
"""Words of a figure of `benchmarks/swarm/swarm.py` -> the mode of the swarm that was measured."""


def performance_sections() -> str:
    """Markdown: for each record its description, date, machine and all its figures."""
    return "\n\n".join(_section(path.stem) for path in sorted(RESULTS.glob("*.json")))


def performance_summary() -> str:
    """HTML table: the main figure and the date of each record."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        result = main_figure(path.stem)
        link = f'<a href="#{_anchor(path.stem)}">{_title(path.stem)}</a>'
        date = f"<time>{record(path.stem)['date']}</time>"
        found = age(path.stem, _folder(path.stem))
        later = "–" if found is None else str(found[1])
        rows.append((link, html.escape(result["metric"]) + _mode(result["metric"]), *_figures(result), date, later))
    return stacked(
        "Main figures", ("Record", "Figure", "Ours", "Compared with", "Ratio", "Date", "Changes since"), rows
    )


def main_figure(name: str) -> dict:
    """The result that the summary shows of a record.

    Raises:
        ValueError: If the record has no result whose name contains the words of `MAIN_FIGURES`.
    """
    results, words = record(name)["results"], MAIN_FIGURES.get(name, "")
    found = next((result for result in results if words in result["metric"]), None)
    if found is None:
        raise ValueError(
            f"benchmarks/results/{name}.json has no figure with the words {words!r}; change MAIN_FIGURES in {__name__}."
        )
    return found


def _mode(metric: str) -> str:
    """HTML: the recipe's `mode` to which a figure of a swarm belongs, and the recipes that set it; empty for others."""
    mode = next((mode for words, mode in MODES.items() if words in metric), None)
    if mode is None:
        return ""
    names = [name for name in recipe_names() if load_recipe(name).swarm.mode == mode]
    return f" <small>(<code>mode = &quot;{mode}&quot;</code>, set by {', '.join(names) or 'no recipe here'})</small>"


def programs() -> dict[str, tuple[str, str]]:
    """Reads benchmarks/README.md: name of a program -> its folder, and the description of its measurement."""
    text = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/(\w+)\.py` \| (.*) \|$", text, re.M)
    return {name: (folder, measures) for folder, name, measures in rows}


def _folder(name: str) -> str:
    return programs()[record(name)["name"]][0]


def _section(name: str) -> str:
    facts = record(name)
    folder, measures = programs()[facts["name"]]
    description = DESCRIPTIONS.get(name) or measures
    machine = facts["machine"]
    where = [f"{machine['cores']} cores", f"{show_bytes(machine['memory_bytes'])} of memory"]
    where += [
        f"GPU: {machine['gpu']}" if machine.get("gpu") else "no GPU",
        f"load {machine['load']} when the program ended",
    ]
    versions = ", ".join(f"{what} {version}" for what, version in facts["versions"].items())
    about = f"{description[0].upper()}{description[1:].rstrip('.')}.\n"
    head = f"## {_title(name)} {{ #{_anchor(name)} }}\n\n{about}\n"
    head += (
        f"`benchmarks/{folder}/{facts['name']}.py`, {facts['date']}: {', '.join(where)}; {versions}.{_age(name)}\n\n"
    )
    return head + OTHER_PAGE.get(name, _folded(name, facts["results"]))


def _age(name: str) -> str:
    """A sentence on the code that has changed since a record was made; empty without the repository's history."""
    found = age(name, folder := _folder(name))
    if found is None:
        return ""
    commit, changes = found
    code = " and ".join(f"`{one}/`" for one in MEASURED[folder])
    if not changes:
        return f" Recorded in `{commit}`; {code} has not changed since."
    return f" Recorded in `{commit}`; {changes} later commit{'s' * (changes > 1)} changed {code}."


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _anchor(name: str) -> str:
    return name.replace("_", "-")


def _folded(name: str, results: list[dict]) -> str:
    """All figures of a record as a table, which is folded if it is long."""
    table = _table(_title(name), results)
    if len(results) <= MOST_OPEN_ROWS:
        return table
    return f'<details class="twin"><summary>All {len(results)} figures</summary>{table}</details>'


def _table(title: str, results: list[dict]) -> str:
    rows = [(html.escape(one["metric"]), *_figures(one), str(one["runs"])) for one in results]
    return stacked(f"{title}, results", ("Figure", "Ours", "Compared with", "Ratio", "Runs"), rows)


def _figures(result: dict) -> list[str]:
    """Three cells: our value, the value and name of what it is compared with, and the ratio of both."""
    peer, ratio = "–", "–" if result["ratio"] is None else f"{result['ratio']:.2g}"
    if result["peer"] is not None:
        peer = f"{_value(result['peer'], result['unit'])} <small>{html.escape(result['peer_name'] or '')}</small>"
    return [_value(result["ours"], result["unit"]), peer, ratio]


def _value(value: float, unit: str) -> str:
    """A value with its unit: bytes as MiB and so on, other numbers with three significant digits."""
    if unit == "bytes" and value >= 1024:
        return show_bytes(round(value))
    number = show_count(round(value)) if abs(value) >= 1000 else f"{value:.3g}"
    return f"{number} {html.escape(unit)}" if unit not in ("", "1") else number
