"""`draw`: the demo's own captioned pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def run(
    out: Annotated[Path, typer.Option(help="Folder for the pictures and captions.jsonl; an older set is replaced.")],
    count: Annotated[int, typer.Option(min=1, help="Number of pictures.")] = 12_000,
    seed: Annotated[int, typer.Option(help="The same seed draws the same pictures.")] = 0,
    size: Annotated[int, typer.Option(min=16, max=512, help="Side of a picture in pixels.")] = 64,
) -> None:
    """Draw captioned pictures of coloured shapes: a training set whose results can be judged by rules."""
    from training.data.demo.draw import draw_set
    from training.processes.progress import show_progress

    with show_progress(sys.stdout) as show:
        splits = draw_set(
            out, count=count, seed=seed, size=size, progress=lambda done, total: show("Drawing pictures", done, total)
        )
    counts = ", ".join(f"{count} {split}" for split, count in splits.items())
    print(f"Drew {sum(splits.values())} pictures into {out}: {counts}.")
