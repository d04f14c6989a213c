"""Options that several commands have in common: whose pictures are drawn, and how boldly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Checkpoint = Annotated[Path, typer.Option(help="Checkpoint folder, or a run's folder: its latest checkpoint is taken.")]
Shards = Annotated[
    str | None, typer.Option(help="Folder or URL of the shards, if they no longer lie where the run had them.")
]
TopK = Annotated[
    int | None,
    typer.Option(min=0, help="Draw from the likeliest so many codes; 0: from all. Default: the recipe's."),
]
TopP = Annotated[
    float | None, typer.Option(help="Draw from the likeliest codes up to this probability. Default: the recipe's.")
]
Temperature = Annotated[float | None, typer.Option(help="Above 1 is bolder, below 1 safer. Default: the recipe's.")]
