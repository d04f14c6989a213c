"""`volunteer`: asks a running `join` what it does, or tells it to pause, go on or leave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from training.errors import BadInput

Word = Annotated[
    Literal["status", "pause", "snooze", "resume", "finish", "leave"],
    typer.Argument(
        help="status: what it does. pause: compute nothing, but keep the memory. snooze: pause for an hour. resume: go "
        "on. finish: leave when this epoch has ended. leave: leave at once, as with Ctrl-C."
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(help="State folder of the volunteer. Default: all volunteers of yours that run without --state-dir."),
]


def run(word: Word, state_dir: StateDir = None) -> None:
    """Tell a running volunteer on this machine to pause, go on or leave; or ask what it does."""
    from training.volunteer.manners.commands import command
    from training.volunteer.manners.folders import of_running, state_folders

    folders = of_running(state_folders() if state_dir is None else state_dir)
    if not folders:
        where = "" if state_dir is None else f" with the state folder {state_dir}"
        raise BadInput(
            f"No volunteer of yours runs on this machine{where}.",
            cure="If it was started with --state-dir, give the same here.",
        )
    for folder in folders:
        print(f"{folder.name}: {command(folder, word)}")
