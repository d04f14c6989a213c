"""What the benchmarks have recorded, as tables with date and machine: one section a program."""

from __future__ import annotations

import html
import re

from builder.benchmark_records import record
from builder.folders import RESULTS
from builder.markup.tables import stacked
from calculator.page.words import show_bytes, show_count

ELSEWHERE = {
    "memory_accuracy": "The errors by figure and the worst cases are on [a page of their own](../accuracy.md)."
}
"""Records with a page of their own: what stands here instead of the table."""

ASKED = {
    "swarm_awaited": "Swarms whose peers await their gradients.",
    "swarm_death": "A peer is killed in the middle of an average: how long until the next whole update (`--death`).",
    "swarm_local": "One exchange of local updates after twenty minutes of computing.",
    "swarm_minute": "Epochs of a minute (`--epoch-seconds 60`): the share of the time that peers compute.",
    "swarm_newcomer": "Eight peers come later, one after the other: from the start of a program to its first samples.",
    "swarm_speeds": "Peers of speeds 1, 2 and 4: each is to give its share of the samples.",
}
"""Further records of one program: what was asked of it."""

SHORT = 4
"""Lines of a table that need no fold."""

CHIEF = {
    "figures": "all figures: new drawing",
    "memory_accuracy": "peak on the GPU: worst error",
    "simulation": "worst error of a case",
    "swarm": "throughput over ideal",
    "swarm_awaited": "throughput over ideal",
    "swarm_death": "death",
    "swarm_local": "computing share",
    "swarm_minute": "computing share",
    "swarm_newcomer": "newcomer seconds",
    "swarm_speeds": "share of samples",
}
"""Words of the figure that stands for a record in the summary; of the others it is the first."""


def performance_sections() -> str:
    """Markdown: what each program measures, where and when, and its results beside its peer's."""
    return "\n\n".join(_section(path.stem) for path in sorted(RESULTS.glob("*.json")))


def performance_summary() -> str:
    """HTML table: of each record one figure, and its date."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        result = chief(path.stem)
        link = f'<a href="#{_anchor(path.stem)}">{_title(path.stem)}</a>'
        date = f"<time>{record(path.stem)['date']}</time>"
        rows.append((link, html.escape(result["metric"]), *_figures(result), date))
    return stacked("One figure a program", ("Program", "Figure", "Ours", "Beside", "Ratio", "Date"), rows)


def chief(name: str) -> dict:
    """The result that stands for a record.

    Raises:
        ValueError: If the one that is named is not there.
    """
    results, words = record(name)["results"], CHIEF.get(name, "")
    found = next((result for result in results if words in result["metric"]), None)
    if found is None:
        raise ValueError(f"benchmarks/results/{name}.json has no figure with the words {words!r}; change CHIEF.")
    return found


def programs() -> dict[str, str]:
    """Program -> what it measures, from benchmarks/README.md."""
    text = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(\w+)\.py` \| (.*) \|$", text, re.M))


def _section(name: str) -> str:
    facts = record(name)
    told = ASKED.get(name) or programs().get(facts["name"], "")
    machine = facts["machine"]
    where = [f"{machine['cores']} cores", f"{show_bytes(machine['memory_bytes'])} of memory"]
    where += [f"GPU: {machine['gpu']}" if machine.get("gpu") else "no GPU", f"load {machine['load']} at the end"]
    versions = ", ".join(f"{what} {version}" for what, version in facts["versions"].items())
    about = f"{told[0].upper()}{told[1:].rstrip('.')}.\n" if told else ""
    head = f"## {_title(name)} {{ #{_anchor(name)} }}\n\n{about}\n"
    head += f"`benchmarks/{facts['name']}.py`, {facts['date']}: {', '.join(where)}; {versions}.\n\n"
    return head + ELSEWHERE.get(name, _folded(name, facts["results"]))


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _anchor(name: str) -> str:
    return name.replace("_", "-")


def _folded(name: str, results: list[dict]) -> str:
    """All figures of a record; a table of few lines stands open."""
    table = _table(_title(name), results)
    if len(results) <= SHORT:
        return table
    return f'<details class="twin"><summary>All {len(results)} figures</summary>{table}</details>'


def _table(title: str, results: list[dict]) -> str:
    rows = [(html.escape(one["metric"]), *_figures(one), str(one["runs"])) for one in results]
    return stacked(f"{title}, results", ("What", "Ours", "Beside", "Ratio", "Runs"), rows)


def _figures(result: dict) -> list[str]:
    """Ours, the other with its name, and the ratio."""
    peer, ratio = "–", "–" if result["ratio"] is None else f"{result['ratio']:.2g}"
    if result["peer"] is not None:
        peer = f"{_value(result['peer'], result['unit'])} <small>{html.escape(result['peer_name'] or '')}</small>"
    return [_value(result["ours"], result["unit"]), peer, ratio]


def _value(value: float, unit: str) -> str:
    """With its unit: bytes as MiB and so on, other numbers with three digits that count."""
    if unit == "bytes" and value >= 1024:
        return show_bytes(round(value))
    number = show_count(round(value)) if abs(value) >= 1000 else f"{value:.3g}"
    return f"{number} {html.escape(unit)}" if unit not in ("", "1") else number
