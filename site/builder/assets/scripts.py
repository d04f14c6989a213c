"""The pages' scripts, bundled by esbuild: a page loads a few files in place of some twenty modules.

Each module that a page requests costs its reader CPU time, and an imported module is requested only when the importing
one has arrived. So every part of a page becomes one file, and modules that several parts share become files of their
own: they run once in a visit, and their state survives when the theme swaps pages.
"""

from __future__ import annotations

import re
from pathlib import Path

from builder.assets.browser_files import BuildFailed, node_program
from builder.folders import ROOT

FIRST = "site.mjs"
"""The module that every page loads."""
WORKER = re.compile(r'new Worker\(siteURL\("javascripts/([^"]+)"\)')
"""A module that another starts in a worker."""
PART = re.compile(r'import\("\./([^"]+)"\)')
"""A module that `FIRST` imports for the pages that need it."""


def entries(scripts: Path) -> list[str]:
    """Modules in a folder that are loaded by their address; all others are imported by these.

    Raises:
        BuildFailed: If the first module names no part: then its text is not as `PART` expects.
    """
    parts = PART.findall((scripts / FIRST).read_text(encoding="utf-8"))
    if not parts:
        raise BuildFailed(f'{scripts / FIRST} imports no part of a page as import("./NAME.mjs").')
    texts = [file.read_text(encoding="utf-8") for file in scripts.rglob("*.mjs")]
    return [FIRST, *sorted({worker for text in texts for worker in WORKER.findall(text)}), *parts]


def bundle_scripts(scripts: Path, out: Path, *, packages: Path = ROOT / "node_modules") -> None:
    """Writes a bundle for each entry into `out`, under the entry's name, and the shared modules beside them.

    Raises:
        BuildFailed: If esbuild fails, for example because a module imports what does not exist.
    """
    options = ["--bundle", "--splitting", "--format=esm", "--target=esnext", "--charset=utf8", "--log-level=warning"]
    options += [f"--outbase={scripts}", f"--outdir={out}", "--out-extension:.js=.mjs"]
    modules = [str(scripts / entry) for entry in entries(scripts)]
    node_program("node", [str(packages / "esbuild" / "bin" / "esbuild"), *modules, *options], cwd=ROOT)
