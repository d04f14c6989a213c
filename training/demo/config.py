"""The demo's settings, and the command that starts the demo again with equal settings."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The demo's settings."""

    recipe: str = "demo"
    run_dir: Path = Path("runs/demo")
    """Folder of everything that the run produces; a second start in this folder continues the run."""
    site: Path | None = None
    """Built site to serve."""
    port: int | None = None
    """Port of the site; None: the usual one, or a free one if that is taken."""
    volunteers: int = 3
    epochs: int | None = None
    """Number of epochs after which the demo stops; None: it continues until Ctrl-C."""
    pictures: int = 12_000
    """Pictures to draw for training."""
    stories: int = 100_000
    """Stories to write for training, if the recipe's model reads text."""
    python: tuple[str, ...] = (sys.executable, "-m", "training")
    """The command line of the trainer."""


def command_again(config: DemoConfig) -> str:
    """The command that continues this run: the same settings without `epochs`."""
    usual, words = DemoConfig(), [*short_command(config.python), "demo"]
    for name in ("recipe", "run_dir", "site", "port", "volunteers", "pictures", "stories"):
        if (value := getattr(config, name)) != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def short_command(command: Sequence[str]) -> list[str]:
    """Returns a command with its program's path shortened to the form that people type here."""
    program = Path(command[0])
    if program.is_relative_to(Path.cwd()):
        program = program.relative_to(Path.cwd())
    elif shutil.which(program.name) == str(program):
        program = Path(program.name)
    return [str(program), *command[1:]]
