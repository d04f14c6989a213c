"""The folders that the builder reads from and writes to."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The project's root."""
PAGES = ROOT / "site"
"""The sources of the pages: Markdown, scripts, styles, pictures and the recorded run."""
RESULTS = ROOT / "benchmarks" / "results"
"""Folder of the benchmarks' records."""
BUILT = ROOT / "build" / "site"
"""Files that a build makes and the next build reuses."""
