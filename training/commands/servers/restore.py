"""`restore`: lets a run go on from an earlier checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def run(
    run_dir: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="Folder of the run's monitor, with its checkpoints.")
    ],
    to: Annotated[
        int, typer.Option(min=0, help="Epoch of the checkpoint to go back to; 0 begins anew with fresh weights.")
    ],
    state_dir: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            file_okay=False,
            help="State folder of a bootstrap peer on this machine, which then announces it too; may be repeated. "
            "That of `serve` is found by itself.",
        ),
    ] = None,
) -> None:
    """Let a run go back to an earlier checkpoint, as a new branch that all volunteers go over to."""
    from training.processes.environment import prepare_environment

    prepare_environment()
    from training.checkpoints.restore import order_restore

    for line in order_restore(run_dir, to, state_dirs=tuple(state_dir or ())):
        print(line)
