"""Builds the site: `python site/build.py` fetches and makes what the site serves itself, and makes its pages.

Pages are made in three steps (site/builder/steps): prepare writes plain Markdown, a generator makes HTML of it, and
finish works on the HTML. The result lies in public/ and asks no other origin for anything. What was fetched, made or
prepared stays in node_modules/ and build/site/, so that a second build takes seconds. SITE_URL names the address that
the site will have, REPO_URL what `git clone` takes on the join page.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from builder.assets.browser_files import BuildFailed, make_assets  # noqa: E402  (the paths above come first)
from builder.steps.finish import finish  # noqa: E402
from builder.steps.generate import COMMANDS, generate  # noqa: E402
from builder.steps.prepare import prepare  # noqa: E402


def main() -> int:
    """Builds the site; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", default="public", metavar="FOLDER", help="where the site goes (public)")
    arguments.add_argument("--generator", default="material", choices=COMMANDS, help="what makes the HTML (material)")
    arguments.add_argument("--assets-only", action="store_true", help="stop before the pages")
    chosen = arguments.parse_args()
    try:
        make_assets(ROOT, say=lambda line: print(line, flush=True))
        if not chosen.assets_only:
            made = generate(chosen.generator, prepare())
            finish(made)
            shutil.rmtree(chosen.out, ignore_errors=True)
            shutil.move(made, chosen.out)
    except BuildFailed as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
