"""Second step of a build: a generator makes HTML of the prepared sources.

Material for MkDocs makes the site that is published. Zensical, its successor, makes the same pages of the same sources;
tests/site/steps/test_generators.py compares their words.
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
"""Generator -> the program that it is, with its flags."""


def generate(generator: str, sources: Sources) -> Path:
    """Makes the site; returns its folder.

    Raises:
        BuildFailed: If the generator does; what it prints says why.
    """
    # Zensical takes relative paths only, and writes nothing outside the folder of its configuration.
    workplace = sources.folder.parent
    config, made = workplace / f"{generator}.yml", workplace / generator
    settings = sources.settings | {"docs_dir": sources.folder.name, "site_dir": made.name}
    settings["extra"] = settings["extra"] | {"generator": generator}
    config.write_text(yaml.safe_dump(settings, allow_unicode=True, sort_keys=False), encoding="utf-8")
    shutil.rmtree(made, ignore_errors=True)
    command = [sys.executable, "-m", *COMMANDS[generator], "--config-file", str(config)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=workplace, env=environment)
    if ended.returncode:
        raise BuildFailed(f"{' '.join(command[2:])} ended with exit code {ended.returncode}.")
    return made
