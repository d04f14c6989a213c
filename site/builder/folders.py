"""Where the project keeps what the builder reads, and where the builder puts what it makes."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""Of the project."""
PAGES = ROOT / "site"
"""Markdown, scripts, styles, pictures and the recorded run, as they are written."""
RESULTS = ROOT / "benchmarks" / "results"
"""What the benchmarks have recorded."""
BUILT = ROOT / "build" / "site"
"""What is fetched, made and prepared; a second build uses it again."""
