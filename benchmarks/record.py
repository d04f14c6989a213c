"""What the benchmarks share: errors, percentiles, facts about the machine, and the form of a record."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path


def error_percent(predicted: float, true: float) -> float:
    """The signed error in percent; if the true value is 0, it is 0 for a prediction of 0 and 100 for any other."""
    if not true:
        return 0.0 if not predicted else 100.0
    return (predicted / true - 1) * 100


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed.

    >>> percentile([1, 2, 3, 4], 0.5), percentile([1, 2, 3, 4], 0.95)
    (2, 4)
    """
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def summary(errors: Sequence[float]) -> dict[str, float]:
    """Median, 95th percentile and worst of the absolute errors."""
    sizes = [abs(error) for error in errors]
    return {"median": statistics.median(sizes), "p95": percentile(sizes, 0.95), "worst": max(sizes)}


def machine(gpu: str | None = None) -> dict:
    """Cores, memory, load and GPU of this machine."""
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "memory_bytes": pages * page,
        "load": round(os.getloadavg()[0], 2),
        "gpu": gpu,
        "processor": platform.machine(),
    }


def result(metric: str, unit: str, ours: float, **others: object) -> dict:
    """One result of a record.

    Args:
        metric: Name of the figure.
        unit: Its unit; empty for ratios.
        ours: This project's value.
        others: Further fields, among them `peer` and `peer_name`: the value that ours is compared with, and its owner.
    """
    entry = {"metric": metric, "unit": unit, "ours": ours, "peer": None, "peer_name": None, "ratio": None}
    entry |= {"runs": 1, "min": ours, "max": ours, **others}
    if entry["peer"]:
        entry["ratio"] = ours / entry["peer"]
    return entry


def record(path: Path, name: str, versions: dict[str, str], results: list[dict], **more: object) -> None:
    """Writes a record: a JSON object with results, date, machine and versions.

    Args:
        path: The file.
        name: Name of the program.
        versions: Of the packages that matter; Python's is added.
        results: As made by `result`.
        more: Further fields; `gpu`, the name of a card, goes to the machine.
    """
    gpu = more.pop("gpu", None)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    versions = {"python": platform.python_version(), **versions}
    content = {"name": name, "date": date, "machine": machine(gpu), "versions": versions, "results": results, **more}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def replaced(
    earlier: Sequence[dict], results: Sequence[dict], *, figure: Callable[[dict], str] = lambda row: row["metric"]
) -> list[dict]:
    """Puts results in the place of earlier ones of the same figures; the others stay.

    Args:
        earlier: Results of a record.
        results: As made by `result`.
        figure: Names the figure of a result.
    """
    figures = {figure(row) for row in results}
    places = [at for at, row in enumerate(earlier) if figure(row) in figures]
    first = min(places, default=len(earlier))
    others = [row for row in earlier if figure(row) not in figures]
    return [*others[:first], *results, *others[first:]]


def renew(
    path: Path,
    results: list[dict],
    versions: dict[str, str],
    *,
    figure: Callable[[dict], str] = lambda row: row["metric"],
) -> None:
    """Puts results into a record in the place of earlier ones of the same figures; each says when it was measured.

    Args:
        path: Of the record.
        results: As made by `result`.
        versions: Of the packages that these were measured with.
        figure: What a result is of.
    """
    now = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "load": round(os.getloadavg()[0], 2)}
    kept = json.loads(path.read_text(encoding="utf-8"))
    kept["versions"] |= versions
    kept["results"] = replaced(kept["results"], [row | now for row in results], figure=figure)
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
