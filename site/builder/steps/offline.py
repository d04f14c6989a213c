"""Writes the service worker, which lets a browser show the site offline: with the files to keep, and a version."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

SOURCE = Path(__file__).with_name("service-worker.js")

LARGE_FOLDERS = ("runtime", "vendor")
"""Folders whose files the service worker stores only when a page has loaded them.
The files' names change with their content."""

NOT_KEPT = ("live", "records", "runs.json", "assets/javascripts/lunr")
"""Files and folders that are never stored: the live run, which changes, records and list of other runs, and search in
languages that the site does not use."""

NAME = "service-worker.js"


def write_service_worker(built: Path) -> Path:
    """Writes the service worker of a built site into it; returns its path."""
    files, large = kept_files(built)
    # Browsers install a service worker again only if its text has changed. Without this version, a change in a page
    # would not change that text, and offline readers would see the old page.
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.encode() + b"\0" + (built / _file_of(file)).read_bytes() + b"\0")
    digest.update(json.dumps(large).encode() + SOURCE.read_bytes())
    head = f"const VERSION = {json.dumps(digest.hexdigest()[:12])};\n"
    head += f"const FILES = {json.dumps(files)};\nconst LARGE = {json.dumps(large)};\n\n"
    script = built / NAME
    script.write_text(head + SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    return script


def kept_files(built: Path) -> tuple[list[str], list[str]]:
    """Two lists of addresses relative to the site's root: pages with what belongs to them, and large files."""
    files, large = [], []
    for file in sorted(built.rglob("*")):
        name = file.relative_to(built).as_posix()
        if not file.is_file() or name == NAME or name.endswith((".map", ".gz")):
            continue
        if name in NOT_KEPT or name.startswith(tuple(f"{folder}/" for folder in NOT_KEPT)):
            continue
        address = name.removesuffix("index.html") if name.endswith("index.html") else name
        (large if name.split("/")[0] in LARGE_FOLDERS else files).append(address)
    return files, large


def _file_of(address: str) -> str:
    return f"{address}index.html" if address == "" or address.endswith("/") else address
