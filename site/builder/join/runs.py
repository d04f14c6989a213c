"""The runs that the site lists: site/runs.json, a list that maintainers edit.

Each entry has a `title`, and the address of the run's `monitor`, its `record`, or both. A record is a folder of the
site or an https address, with the files that `monitor --export` writes; it is shown when no monitor answers.
"""

from __future__ import annotations

import json
from pathlib import Path

from builder.assets.browser_files import BuildFailed

KEYS = {"title", "monitor", "record"}


def listed_runs(file: Path) -> list[dict[str, str]]:
    """The entries of the list.

    Raises:
        BuildFailed: If an entry has another form, or its record is missing.
    """
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BuildFailed(f"{file} is not JSON: {error}.") from None
    for entry in entries:
        if fault := _fault(entry, file.parent):
            raise BuildFailed(f"{file}: {json.dumps(entry)[:200]} {fault}.")
    return entries


def _fault(entry: object, site: Path) -> str:
    if (
        not isinstance(entry, dict)
        or not entry.keys() <= KEYS
        or not all(isinstance(one, str) for one in entry.values())
    ):
        return "must be an object with the texts title, monitor and record, and nothing else"
    if not entry.get("title") or not (entry.get("monitor") or entry.get("record")):
        return "needs a title, and a monitor or a record"
    if not entry.get("monitor", "https://").startswith("https://"):
        return "needs an https address as its monitor, because browsers let no https page ask another"
    record = entry.get("record", "https://")
    if not record.startswith("https://") and not (
        record.endswith("/") and (site / record / "live" / "run.json").is_file()
    ):
        return "needs as its record an https address, or a folder of the site that ends with / and has live/run.json"
    return ""
