"""Builds the site: `python site/build.py` fetches what it serves itself, makes the browser's Python, and runs MkDocs.

The result lies in public/ and asks no other origin for anything. What was fetched or made stays in node_modules/ and
build/site/, so that a second build takes seconds. SITE_URL names the address that the site will have, REPO_URL what
`git clone` takes on the join page.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from builder.assets import BuildFailed, make_assets  # noqa: E402  (the paths above come first)
from builder.offline import write_service_worker  # noqa: E402


def main() -> int:
    """Builds the site; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", default="public", metavar="FOLDER", help="where the site goes (public)")
    arguments.add_argument("--assets-only", action="store_true", help="stop before MkDocs")
    chosen = arguments.parse_args()
    try:
        make_assets(ROOT, say=lambda line: print(line, flush=True))
    except BuildFailed as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    if chosen.assets_only:
        return 0
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(Path(chosen.out).resolve())]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment).returncode
    if ended == 0:
        write_service_worker(Path(chosen.out).resolve())
    return ended


if __name__ == "__main__":
    sys.exit(main())
