"""Builds the site: `python site/build.py` writes it to public/, with everything that its pages load.

First it fetches Pyodide and Plotly and makes the browser's Python (site/builder/assets). Then it makes the pages in
three steps (site/builder/steps): prepare writes plain Markdown, a generator turns it into HTML, and finish edits the
HTML. The pages request nothing from other origins but the monitors of the runs that site/runs.json lists or a reader
names. Fetched and prepared files stay in node_modules/ and build/site/, so that a second build takes seconds.

Environment variables: SITE_URL is the address at which the site will be published, REPO_URL the address that the join
page shows after `git clone`, if it is not the one in pyproject.toml.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from builder.assets.browser_files import BuildFailed, make_assets  # noqa: E402  (the paths above come first)
from builder.steps.fill import unset_addresses  # noqa: E402
from builder.steps.finish import finish  # noqa: E402
from builder.steps.generate import COMMANDS, generate  # noqa: E402
from builder.steps.prepare import prepare  # noqa: E402


def main() -> int:
    """Builds the site; returns the exit code."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", default="public", metavar="FOLDER", help="folder to write the site to (public)")
    arguments.add_argument(
        "--generator", default="material", choices=COMMANDS, help="program that makes the HTML (material)"
    )
    arguments.add_argument("--assets-only", action="store_true", help="make only what the pages load, not the pages")
    chosen = arguments.parse_args()
    try:
        make_assets(ROOT, say=lambda line: print(line, flush=True))
        if not chosen.assets_only:
            sources = prepare()
            if missing := unset_addresses(sources.settings["site_url"]):
                print(missing, flush=True)
            made = generate(chosen.generator, sources)
            finish(made)
            # Replaced only now, so that a build that fails leaves the last site as it was.
            shutil.rmtree(chosen.out, ignore_errors=True)
            shutil.move(made, chosen.out)
    except BuildFailed as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
