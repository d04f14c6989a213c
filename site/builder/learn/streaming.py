"""The measured streams of samples as a table, for the page on data streaming."""

from __future__ import annotations

from html import escape

from builder.benchmark_records import record
from builder.markup.tables import stacked
from calculator.units import show_bytes, show_count


def stream_table() -> str:
    """HTML table: each figure of the record, for this trainer and for the trainers with which it was compared."""
    results = record("data_stream")["results"]
    names = list(dict.fromkeys(one["peer_name"] for one in results if one["peer_name"]))
    rows = []
    for metric in dict.fromkeys(one["metric"] for one in results):
        of_metric = [one for one in results if one["metric"] == metric]
        theirs = {one["peer_name"]: _value(one["peer"], one["unit"]) for one in of_metric if one["peer"] is not None}
        ours = _value(of_metric[0]["ours"], of_metric[0]["unit"])
        rows.append((escape(metric), ours, *(theirs.get(name, "–") for name in names)))
    # The page's text has the whole names; the table would be wider than its column with them.
    shown = (name.removesuffix(" Streaming") for name in names)
    return stacked("Measured streams", ("Figure", "This trainer", *shown), rows)


def stream_facts() -> str:
    """Date and machine of the measurement of the streams."""
    facts = record("data_stream")
    return f"{facts['date']}, {facts['machine']['cores']} cores, load {facts['machine']['load']} when the program ended"


def _value(value: float, unit: str) -> str:
    if unit == "bytes":
        return show_bytes(round(value))
    if unit == "1":
        return f"{100 * value:.1f} %"
    # Counts have their unit in the name of the figure; only times are so small.
    return show_count(round(value)) if value >= 100 or value == round(value) else f"{value:.2f} {unit}"
