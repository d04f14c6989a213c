"""The folders that the builder reads from and writes to."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The project's root."""
PAGES = ROOT / "site"
"""Markdown, scripts, styles, pictures and the recorded run, as they are written."""
RESULTS = ROOT / "benchmarks" / "results"
"""What the benchmarks have recorded."""
BUILT = ROOT / "build" / "site"
"""What a build fetches and makes; the next build reuses it."""
