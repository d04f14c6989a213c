"""Second step of a build: a generator turns the prepared sources into HTML.

The published site is made by Material for MkDocs. Zensical, its successor, makes the same pages from the same sources;
tests/site/steps/test_generators.py compares the text of both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from builder.assets.browser_files import BuildFailed
from builder.steps.prepare import Sources

COMMANDS = {
    "material": ("mkdocs", "build", "--strict"),
    "zensical": ("zensical", "build", "--strict", "--clean"),
}
"""The command of each generator: a Python module and its arguments."""


def generate(generator: str, sources: Sources) -> Path:
    """Makes the HTML of the site; returns its folder.

    Raises:
        BuildFailed: If the generator fails; it prints the reason itself.
    """
    # Paths relative to the configuration's folder: Zensical panics on others, and writes nothing outside that folder.
    workplace = sources.folder.parent
    config, made = workplace / f"{generator}.yml", workplace / generator
    settings = sources.settings | {"docs_dir": sources.folder.name, "site_dir": made.name}
    # The theme's templates read `extra.generator` where the two generators need different HTML.
    settings["extra"] = settings["extra"] | {"generator": generator}
    config.write_text(yaml.safe_dump(settings, allow_unicode=True, sort_keys=False), encoding="utf-8")
    shutil.rmtree(made, ignore_errors=True)
    command = [sys.executable, "-m", *COMMANDS[generator], "--config-file", str(config)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    completed = subprocess.run(command, cwd=workplace, env=environment)
    if completed.returncode:
        raise BuildFailed(f"{' '.join(command[2:])} ended with exit code {completed.returncode}; its output is above.")
    return made
